use super::wire::{Body, MESSAGE_BYTES, Message, Reason};
use super::{Failure, Parts};

/// A stream, as both of its ends have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its name, which both programs know.
    pub name: u64,
    /// The version of all its bytes: a receiver that has some goes on with no others.
    pub version: u64,
    /// Its parts.
    pub parts: Parts,
}

impl Stream {
    /// What the peer must have alike.
    pub fn terms(&self) -> Terms {
        let Stream { name, version, parts } = self;
        let (bytes, count) = (parts.bytes(), parts.count() as u32);
        Terms { name: *name, version: *version, bytes, parts: count, checksum: parts.checksum() }
    }

    /// The message with this body.
    pub(super) fn message(&self, body: Body) -> [u8; MESSAGE_BYTES] {
        Message { terms: self.terms(), body }.to_bytes()
    }

    /// What the peer's message says, or why the stream fails by it, and what the peer is to be told of that.
    pub(super) fn read(&self, bytes: &[u8]) -> Result<Body, (Failure, Option<Reason>)> {
        let message = Message::parse(bytes).map_err(|malformed| (Failure::Malformed(malformed), None))?;
        match (message.body, self.terms().difference(&message.terms)) {
            (Body::Refusal(Reason::Terms), Some(difference)) => Err((Failure::Differs(difference), None)),
            (Body::Refusal(reason), _) => Err((Failure::Refused(reason), None)),
            (_, Some(difference)) => Err((Failure::Differs(difference), Some(Reason::Terms))),
            (body, None) => Ok(body),
        }
    }
}

/// What both ends must have alike, as their messages have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The stream's name.
    pub name: u64,
    /// The version of its bytes.
    pub version: u64,
    /// Length of all parts, in bytes.
    pub bytes: u64,
    /// The number of parts.
    pub parts: u32,
    /// Of the parts' lengths.
    pub checksum: u32,
}

/// In what two ends differ first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the numbers are
pub enum Difference {
    /// The streams have other names.
    #[error("stream {here} here, and stream {there} at the peer")]
    Name { here: u64, there: u64 },
    /// The bytes are of other versions.
    #[error("version {here} here, and version {there} at the peer")]
    Version { here: u64, there: u64 },
    /// There are more parts at one end.
    #[error("{here} parts here, and {there} at the peer")]
    Parts { here: u32, there: u32 },
    /// There are more bytes at one end.
    #[error("parts of {here} bytes in all here, and of {there} at the peer")]
    Bytes { here: u64, there: u64 },
    /// Parts have other lengths, and as many bytes in all.
    #[error("parts of other lengths here than at the peer (their checksums are {here:#010x} and {there:#010x})")]
    Lengths { here: u32, there: u32 },
}

impl Terms {
    /// In what the peer's differ; `None` when they are the same.
    pub fn difference(&self, peer: &Terms) -> Option<Difference> {
        if self.name != peer.name {
            return Some(Difference::Name { here: self.name, there: peer.name });
        }
        if self.version != peer.version {
            return Some(Difference::Version { here: self.version, there: peer.version });
        }
        if self.parts != peer.parts {
            return Some(Difference::Parts { here: self.parts, there: peer.parts });
        }
        if self.bytes != peer.bytes {
            return Some(Difference::Bytes { here: self.bytes, there: peer.bytes });
        }
        let (here, there) = (self.checksum, peer.checksum);
        (here != there).then_some(Difference::Lengths { here, there })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(name: u64, version: u64, lengths: &[u64]) -> Terms {
        Stream { name, version, parts: Parts::new(lengths).unwrap() }.terms()
    }

    #[test]
    fn the_first_difference_is_named_with_both_numbers() {
        let here = terms(1, 1, &[4, 4]);
        let text = |peer: Terms| here.difference(&peer).map(|difference| difference.to_string());
        assert_eq!(text(here), None);
        for (peer, words) in [
            (terms(2, 9, &[1]), "stream 1 here, and stream 2 at the peer"),
            (terms(1, 9, &[1]), "version 1 here, and version 9 at the peer"),
            (terms(1, 1, &[8]), "2 parts here, and 1 at the peer"),
            (terms(1, 1, &[4, 5]), "parts of 8 bytes in all here, and of 9 at the peer"),
            (terms(1, 1, &[5, 3]), "parts of other lengths here than at the peer"),
        ] {
            assert!(text(peer).unwrap().starts_with(words), "{peer:?}");
        }
    }
}
