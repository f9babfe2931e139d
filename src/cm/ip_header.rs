use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::Addresses;

/// What RDMA CM says of itself in the first 36 bytes of a request's private data (IBTA Annex A11.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCmHeader {
    /// The addresses of the sender and of the receiver.
    pub addresses: Addresses,
    /// The sender's port.
    pub source_port: u16,
}

/// ```text
/// byte 0  version: major:4, minor:4    4  source address: 16 bytes
///      1  IP version:4                20  destination address: 16 bytes
///      2  source port:16                  an IPv4 address is in the last 4 bytes
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Wire {
    version: u8,
    ip_version: u8,
    source_port: U16,
    source: [u8; 16],
    destination: [u8; 16],
}

const _: () = assert!(size_of::<Wire>() == IpCmHeader::BYTES);

impl IpCmHeader {
    /// Length in bytes.
    pub const BYTES: usize = 36;

    /// Reads the header. `None` when the private data is shorter, of another version, or names addresses of no family.
    pub fn parse(private_data: &[u8]) -> Option<IpCmHeader> {
        let (wire, _) = Wire::read_from_prefix(private_data).ok()?;
        let address = |bytes: [u8; 16]| match wire.ip_version >> 4 {
            4 => Some(IpAddr::V4(Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(bytes))),
            _ => None,
        };
        // The minor version changes nothing that is read here.
        let addresses = Addresses::new(address(wire.source)?, address(wire.destination)?)?;
        (wire.version >> 4 == 0).then(|| IpCmHeader { addresses, source_port: wire.source_port.get() })
    }

    /// The bytes of the header.
    pub fn to_bytes(&self) -> [u8; IpCmHeader::BYTES] {
        let bytes = |address| match address {
            IpAddr::V4(address) => {
                let mut bytes = [0; 16];
                bytes[12..].copy_from_slice(&address.octets());
                bytes
            }
            IpAddr::V6(address) => address.octets(),
        };
        let (source, destination) = (self.addresses.source(), self.addresses.destination());
        let wire = Wire {
            version: 0,
            ip_version: if source.is_ipv4() { 0x40 } else { 0x60 },
            source_port: U16::new(self.source_port),
            source: bytes(source),
            destination: bytes(destination),
        };
        wire.as_bytes().try_into().expect("a layout of this length")
    }
}
