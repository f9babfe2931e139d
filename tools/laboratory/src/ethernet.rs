//! The Ethernet headers that the laboratory puts before packets: no test looks at more of them than the EtherType.

/// Length of the Ethernet header, in bytes.
pub(crate) const ETHERNET_BYTES: usize = 14;

/// The EtherType of an IP packet.
pub(crate) fn ether_type(packet: &[u8]) -> [u8; 2] {
    if packet.first().is_some_and(|first| first >> 4 == 6) { [0x86, 0xdd] } else { [0x08, 0x00] }
}

/// Whether a frame without a VLAN tag has IPv6 in it.
pub(crate) fn is_ipv6(frame: &[u8]) -> bool {
    frame[12..ETHERNET_BYTES] == [0x86, 0xdd]
}

/// Whether a frame's IP packet carries «congestion experienced» (RFC 3168, section 5).
pub(crate) fn is_marked(frame: &[u8]) -> bool {
    let [first, second] = [frame[ETHERNET_BYTES], frame[ETHERNET_BYTES + 1]];
    let traffic_class = if is_ipv6(frame) { first << 4 | second >> 4 } else { second };
    traffic_class & 3 == 3
}

/// The Ethernet frame of an IP packet, with a header as a link would write it.
pub fn with_ethernet(packet: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &ether_type(packet), packet].concat()
}
