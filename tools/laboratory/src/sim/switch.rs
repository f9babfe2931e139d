use super::network::{LinkId, bth_offset};

/// A switch: the links that lead to each node. Where there are several, the flow decides (ECMP): the UDP source port
/// and the addresses.
#[derive(Debug, Default)]
pub(super) struct Switch {
    /// The links to each node, by its index.
    routes: Vec<Vec<LinkId>>,
    /// The start value of the hash: switches hash differently, so that the second one does not use only some of its
    /// links.
    salt: u32,
    /// The UDP source port of the first link, if ports decide instead of a hash.
    first_port: Option<u16>,
}

impl Switch {
    pub fn new(salt: u32) -> Switch {
        Switch { routes: Vec::new(), salt, first_port: None }
    }

    /// A switch whose links are chosen by UDP source port, from `first_port` on.
    pub fn by_port(first_port: u16) -> Switch {
        Switch { routes: Vec::new(), salt: 0, first_port: Some(first_port) }
    }

    pub fn add_route(&mut self, node: usize, link: LinkId) {
        if self.routes.len() <= node {
            self.routes.resize_with(node + 1, Vec::new);
        }
        self.routes[node].push(link);
    }

    /// The link for a frame, from the Ethernet header on; `None` when there is no route.
    pub fn route(&self, node: usize, frame: &[u8]) -> Option<LinkId> {
        match self.routes.get(node)?.as_slice() {
            [] => None,
            [only] => Some(*only),
            links => {
                let choice = match self.first_port {
                    Some(first) => source_port(frame).wrapping_sub(first).into(),
                    None => flow_hash(frame, self.salt),
                };
                Some(links[choice as usize % links.len()])
            }
        }
    }
}

/// The UDP source port of a frame; 0 when the frame is too short.
pub(super) fn source_port(frame: &[u8]) -> u16 {
    let at = bth_offset(frame) - 8;
    frame.get(at..at + 2).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]))
}

/// The hash of a frame's addresses and UDP source port.
fn flow_hash(frame: &[u8], salt: u32) -> u32 {
    let fields = match frame.get(12..14) {
        Some([0x86, 0xdd]) => frame.get(22..56),
        _ => frame.get(26..36),
    };
    let mut hash = crc32fast::Hasher::new_with_initial(salt);
    hash.update(fields.unwrap_or_default());
    hash.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_may_have_their_links_one_by_one() {
        let mut switch = Switch::by_port(0xc000);
        (0..4).for_each(|link| switch.add_route(2, LinkId(link)));
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        for port in 0..8_u16 {
            frame[34..36].copy_from_slice(&(0xc000 + port).to_be_bytes());
            assert_eq!(switch.route(2, &frame), Some(LinkId(usize::from(port) % 4)));
        }
    }

    #[test]
    fn source_ports_spread_over_all_links_and_a_flow_stays_on_one() {
        let mut switch = Switch::new(7);
        (0..4).for_each(|link| switch.add_route(2, LinkId(link)));
        let frame = |port: u16| {
            let mut frame = [0; 60];
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            frame
        };
        let used: std::collections::BTreeSet<_> = (0..50).map(|port| switch.route(2, &frame(port)).unwrap()).collect();
        assert_eq!(used.len(), 4);
        assert_eq!(switch.route(2, &frame(9)), switch.route(2, &frame(9)));
        assert_eq!(switch.route(3, &frame(9)), None);
    }
}
