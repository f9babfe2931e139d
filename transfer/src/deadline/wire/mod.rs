//! The datagrams, each with its layout: docs/EXTENSIONS.md has the same. All fields are big-endian.

mod data;
mod end;
mod header;
mod refusal;
mod report;
mod request;

pub use data::Data;
pub use end::EndReason;
pub use header::{Kind, Malformed};
pub use refusal::{Reason, Refusal};
pub use report::{Report, WholeWord};
pub use request::RequestPart;

use header::Header;

/// A datagram, and the request that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The number that the receiver has drawn for its request.
    pub request: u64,
    /// What it says.
    pub body: Body<'a>,
}

/// What a datagram says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// The receiver asks for blocks.
    Request(RequestPart),
    /// A symbol of a block.
    Data(Data<'a>),
    /// The receiver says what arrived.
    Report(Report),
    /// The receiver wants no more.
    End(EndReason),
    /// The sender does not send, or no more.
    Refusal(Refusal),
    /// The sender has the request, and has nothing else to say now.
    Here,
}

impl Datagram<'_> {
    /// Reads a datagram.
    ///
    /// # Errors
    /// [`Malformed`] when it is none of these, or its lengths contradict each other.
    pub fn parse(bytes: &[u8]) -> Result<Datagram<'_>, Malformed> {
        let (header, rest) = Header::read(bytes)?;
        let body = match header.kind() {
            Kind::Request => Body::Request(RequestPart::parse(rest)?),
            Kind::Data => Body::Data(Data::parse(rest)?),
            Kind::Report => Body::Report(Report::parse(rest)?),
            Kind::End => Body::End(EndReason::parse(rest)?),
            Kind::Refusal => Body::Refusal(Refusal::parse(rest)?),
            Kind::Here if rest.is_empty() => Body::Here,
            Kind::Here => return Err(Malformed::Long { need: header::BYTES, have: bytes.len() }),
            Kind::Unknown(kind) => return Err(Malformed::Kind(kind)),
        };
        Ok(Datagram { request: header.request(), body })
    }

    /// Writes the datagram; returns its length. `None` when the buffer is too short for it.
    pub fn write(&self, into: &mut [u8]) -> Option<usize> {
        let (head, rest) = into.split_at_mut_checked(header::BYTES)?;
        let (kind, len) = match &self.body {
            Body::Request(part) => (Kind::Request, part.write(rest)?),
            Body::Data(data) => (Kind::Data, data.write(rest)?),
            Body::Report(report) => (Kind::Report, report.write(rest)?),
            Body::End(reason) => (Kind::End, reason.write(rest)?),
            Body::Refusal(refusal) => (Kind::Refusal, refusal.write(rest)?),
            Body::Here => (Kind::Here, 0),
        };
        Header::new(kind, self.request).write(head);
        Some(header::BYTES + len)
    }
}

/// A header of a fixed length, and what follows it.
fn prefix<T>(bytes: &[u8]) -> Result<(&T, &[u8]), Malformed>
where
    T: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
{
    T::ref_from_prefix(bytes).map_err(|_| Malformed::Short { need: size_of::<T>(), have: bytes.len() })
}

/// Copies a header, and then lists, into the buffer; returns their length.
fn put(into: &mut [u8], parts: &[&[u8]]) -> Option<usize> {
    let mut at = 0;
    for part in parts {
        into.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::super::{Run, Shape};
    use super::*;

    fn samples() -> Vec<Datagram<'static>> {
        let shape = Shape::new(1 << 20, 1 << 16, 1024).unwrap();
        let runs = vec![Run { first: 9, count: 2 }, Run { first: 0, count: 1 }];
        let part =
            RequestPart { object: 3, version: 4, shape, repair_per_mille: 40, left_us: 5, part: 0, parts: 2, runs };
        let words = vec![WholeWord { index: 0, bits: 0x21 }];
        let report = Report {
            sequence: 1,
            left_us: 2,
            newest: 30,
            delay_us: 4,
            arrived: vec![Run { first: 29, count: 2 }, Run { first: 3, count: 1 }],
            words,
        };
        let refusal = Refusal { reason: Reason::OtherVersion, version: 1, bytes: u64::MAX, block_bytes: 3 };
        let data = Data { version: 9, number: 8, block: 7, symbol: 6, crc: 5, payload: &[1, 2, 3] };
        let bodies = [
            Body::Request(part),
            Body::Data(data),
            Body::Report(report),
            Body::End(EndReason::Complete),
            Body::Refusal(refusal),
            Body::Here,
        ];
        bodies.into_iter().map(|body| Datagram { request: 0x0102_0304_0506_0708, body }).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for datagram in samples() {
            let mut bytes = [0xaa; 512];
            let len = datagram.write(&mut bytes).unwrap();
            assert_eq!(Datagram::parse(&bytes[..len]), Ok(datagram.clone()));
            assert_eq!(datagram.write(&mut bytes[..len - 1]), None, "{datagram:?}");
        }
    }

    #[test]
    fn no_length_but_the_right_one_is_read() {
        for datagram in samples() {
            let mut bytes = [0; 512];
            let len = datagram.write(&mut bytes).unwrap();
            let is_data = matches!(datagram.body, Body::Data(_));
            for other in (0..len).chain(len + 1..len + 20) {
                let read = Datagram::parse(&bytes[..other]);
                // The payload ends with the datagram; the shape says how long it has to be.
                let may_be_read = is_data && other > len - 3;
                assert_eq!(read.is_ok(), may_be_read, "{other} of {len}: {read:?}");
            }
        }
    }

    #[test]
    fn what_is_none_is_said_to_be() {
        let mut bytes = [0; 64];
        let len = samples()[5].write(&mut bytes).unwrap();
        for (at, value, error) in [
            (3, b'2', Malformed::Magic(0x7544_4c32)),
            (4, 77, Malformed::Kind(77)),
            (5, 1, Malformed::Zero),
            (7, 1, Malformed::Zero),
        ] {
            let mut changed = bytes;
            changed[at] = value;
            assert_eq!(Datagram::parse(&changed[..len]), Err(error));
        }
    }
}
