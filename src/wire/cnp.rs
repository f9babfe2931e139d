use super::{Bth, Extension, Flow, Headers, Opcode, Psn, Qpn};

/// A congestion notification packet (CNP): it tells the peer that its packets arrive with «congestion experienced»
/// (IBTA Annex A17.9.3).
///
/// After the BTH come 16 reserved bytes of zeros. The BTH has BECN set, and no PSN, AckReq or MigReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cnp {
    /// The queue pair whose packets were marked.
    pub destination: Qpn,
}

impl Cnp {
    /// Length of the reserved bytes after the BTH. They count as payload.
    pub const RESERVED_BYTES: usize = 16;

    /// The DSCP of CNPs: class selector 6, which RNICs send them with, and which switches put into a strict queue.
    pub const DSCP: u8 = 48;

    /// The headers. Zeros, as many as [`RESERVED_BYTES`](Self::RESERVED_BYTES), are the payload.
    pub fn headers(self) -> Headers {
        let bth = Bth::new(Opcode::CNP, self.destination, Psn::new(0)).with_mig_req(false).with_becn(true);
        Headers { bth, extension: Extension::None }
    }

    /// The outer headers along `flow`: with the DSCP of CNPs, and without ECN, since a mark on it would tell nobody
    /// anything.
    pub fn flow(flow: &Flow) -> Flow {
        Flow { traffic_class: Self::DSCP << 2, ..*flow }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::Ipv4Addr;

    use super::super::*;
    use crate::frame::FrameBytes;

    fn flow() -> Flow {
        let [source, destination] = [1, 2].map(|host| Ipv4Addr::new(127, 0, 0, host));
        let addresses = Addresses::V4 { source, destination };
        Flow { addresses, source_port: 0xc123, traffic_class: 0x6a, hop_limit: 64, flow_label: 0 }
    }

    /// The packet from its BTH on, with a body of `bytes` zeros.
    fn written(headers: Headers, bytes: usize) -> Vec<u8> {
        let mut packet = vec![0xff; 200];
        let fill = |out: &mut [u8]| {
            out.fill(0);
            Ok::<_, Infallible>(())
        };
        let len = headers.write(&mut packet, &Cnp::flow(&flow()), 1, bytes, fill).unwrap();
        assert_eq!(packet[1], 0xc0, "DSCP 48, not ECN-capable");
        packet[28..len].to_vec()
    }

    /// What scapy 2.6's `cnp(0x123456)` is, from the BTH to before the ICRC.
    #[test]
    fn a_cnp_has_the_bytes_of_other_encoders() {
        let cnp = Cnp { destination: Qpn::new(0x123456) };
        let bytes = written(cnp.headers(), Cnp::RESERVED_BYTES);
        let (body, _icrc) = bytes.split_at(bytes.len() - ICRC_BYTES);
        let mut expected = vec![0x81, 0x00, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0, 0, 0, 0];
        expected.extend([0; 16]);
        assert_eq!(body, expected);
        let packet = Packet::parse(FrameBytes::from(&bytes[..])).unwrap();
        assert_eq!(packet.headers(), cnp.headers());
    }

    #[test]
    fn a_cnp_of_another_length_is_malformed() {
        let headers = Cnp { destination: Qpn::new(7) }.headers();
        for length in (0..60).filter(|length| *length != 16) {
            let bytes = written(headers, length);
            let error = Packet::parse(FrameBytes::from(&bytes[..])).unwrap_err();
            assert_eq!(error, PacketError::CnpLength(length.next_multiple_of(4)));
        }
        // Of the right length, but with a pad that takes part of the reserved bytes.
        let mut bytes = written(headers, 16);
        bytes[1] = 0x30;
        assert!(Packet::parse(FrameBytes::from(&bytes[..])).is_err());
    }
}
