use std::hash::BuildHasher;

use rustc_hash::FxBuildHasher;
use uroce::wire::{ICRC_BYTES, Opcode, Psn, Qpn};

use crate::ethernet::{ETHERNET_BYTES, is_ipv6, is_marked};
use crate::sim::network::bth_offset;

/// The fields of a packet that the oracles need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub opcode: Opcode,
    pub qpn: Qpn,
    pub psn: Psn,
    pub acknowledge_requested: bool,
    /// Whether the packet arrives with «congestion experienced».
    pub is_marked: bool,
    /// Whether the packet ends with a trailer and a tag (docs/EXTENSIONS.md).
    pub is_extended: bool,
    /// The nonce and the tag of a hello; `None` for other packets.
    pub hello: Option<(u32, u32)>,
    /// The index of the sender's interface, as the addresses of a [`Setting`](super::setting::Setting) encode it.
    pub rail: u8,
    /// Whether the packet lists further addresses of its sender.
    pub names_addresses: bool,
    /// The first words behind the BTH: the AETH in responses that have one, the DETH in datagrams.
    pub words: [[u8; 4]; 2],
    /// Whether it stands for an acknowledge that a request carries: it has no MSN.
    pub is_carried: bool,
}

impl Header {
    /// The header of a frame, which must have one.
    pub fn of(frame: &[u8]) -> Header {
        let bth = &frame[bth_offset(frame)..];
        let three = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
        let word = |at: usize| bth.get(at..at + 4).and_then(|word| word.try_into().ok()).unwrap_or_default();
        Header {
            opcode: Opcode(bth[0]),
            qpn: Qpn::new(three(5)),
            psn: Psn::new(three(9)),
            acknowledge_requested: bth[8] & 0x80 != 0,
            is_marked: is_marked(frame),
            is_extended: bth[8] & 0x20 != 0,
            hello: Header::hello_in(frame),
            rail: if is_ipv6(frame) { frame[ETHERNET_BYTES + 8 + 3] } else { frame[ETHERNET_BYTES + 12 + 1] },
            names_addresses: Opcode(bth[0]) == Opcode::RC_ACKNOWLEDGE
                && Header::split_tag(frame).is_some_and(|(bth, _)| bth.last() == Some(&0x40)),
            words: [word(12), word(16)],
            is_carried: false,
        }
    }

    /// The acknowledge that a request carries, as docs/EXTENSIONS.md describes it: kind 7.
    pub fn carried(&self, frame: &[u8]) -> Option<Header> {
        const BYTES: usize = 20;
        let (bth, _) = Header::split_tag(frame).filter(|_| !self.opcode.is_response())?;
        let &[a, b, c, .., 0x75] = bth.last_chunk::<BYTES>()? else { return None };
        let psn = Psn::new(u32::from_be_bytes([0, a, b, c]));
        // Without credits, as those of uroce have none.
        let words = [[0x1f, 0, 0, 0], [0; 4]];
        Some(Header { opcode: Opcode::RC_ACKNOWLEDGE, psn, words, is_carried: true, ..*self })
    }

    /// The PSN as a count from `base`: of all counts with the PSN on the wire the nearest to `near`. `None` before the
    /// first.
    pub fn count(&self, base: Psn, near: u64) -> Option<u64> {
        near.checked_add_signed(i64::from(self.psn.since(base.plus(near as u32))))
    }

    /// An extended packet from its BTH to its trailer, and its tag; `None` for other packets.
    fn split_tag(frame: &[u8]) -> Option<(&[u8], u32)> {
        let bth = &frame[bth_offset(frame)..frame.len() - ICRC_BYTES];
        let (rest, tag) = bth.split_last_chunk::<4>()?;
        (bth[8] & 0x20 != 0).then_some((rest, u32::from_be_bytes(*tag)))
    }

    /// The nonce and the tag of a hello, as docs/EXTENSIONS.md describes it: kind 5. `None` for all other frames.
    fn hello_in(frame: &[u8]) -> Option<(u32, u32)> {
        const BEFORE_TRAILER: usize = 12 + 4;
        let (bth, tag) = Header::split_tag(frame)?;
        let trailer = bth.get(BEFORE_TRAILER..).filter(|_| Opcode(bth[0]) == Opcode::RC_ACKNOWLEDGE)?;
        let &[a, b, c, d, .., 0x50] = trailer else { return None };
        Some((u32::from_be_bytes([a, b, c, d]), tag))
    }

    /// The PSNs that a selective acknowledge reports as arrived, as docs/EXTENSIONS.md describes it: kind 2. `Ok(None)`
    /// for all other frames; the error describes a contradiction.
    ///
    /// The oracle has a parser of its own, since the stack's is under test.
    pub fn selectively_acknowledged(frame: &[u8]) -> Result<Option<Vec<Psn>>, String> {
        const BEFORE_TRAILER: usize = 12 + 4;
        const BEFORE_BLOCKS: usize = 8;
        const BLOCK: usize = 12;
        const TAIL: usize = 4;
        let Some((bth, _)) = Header::split_tag(frame) else { return Ok(None) };
        let is_trailer = bth.len() >= BEFORE_TRAILER + BEFORE_BLOCKS + TAIL && bth.last() == Some(&0x20);
        if Opcode(bth[0]) != Opcode::RC_ACKNOWLEDGE || !is_trailer {
            return Ok(None);
        }
        let blocks = bth.get(BEFORE_TRAILER + BEFORE_BLOCKS..bth.len() - TAIL).unwrap_or_default();
        let tail = &bth[bth.len() - TAIL..];
        let count = usize::from(u16::from_be_bytes([tail[0], tail[1]]));
        if blocks.len() != count * BLOCK {
            return Err(format!("a selective acknowledge of {count} blocks has {} bytes of them", blocks.len()));
        }
        let mut psns = Vec::new();
        for block in blocks.chunks(BLOCK) {
            let base = Psn::new(u32::from_be_bytes([0, block[0], block[1], block[2]]));
            let bits = block[4..].iter().rev().enumerate().flat_map(|(byte, bits)| {
                (0..8).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| 8 * byte as u32 + bit)
            });
            psns.extend(bits.map(|bit| base.plus(bit)));
        }
        Ok(Some(psns))
    }

    /// A hash of the contents of a READ response or atomic acknowledge: its bytes, and whether it is the last. It
    /// leaves out the AETH, which depends on the responder's state.
    pub fn said_by(frame: &[u8]) -> u64 {
        const AETH: usize = 4;
        let bth = &frame[bth_offset(frame)..frame.len() - ICRC_BYTES];
        let opcode = Opcode(bth[0]);
        let has_aeth = opcode != Opcode::RC_READ_RESPONSE_MIDDLE;
        let is_last = matches!(opcode, Opcode::RC_READ_RESPONSE_LAST | Opcode::RC_READ_RESPONSE_ONLY);
        let said = bth.get(12 + AETH * usize::from(has_aeth)..);
        FxBuildHasher.hash_one((opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE, is_last, bth[1] >> 4 & 3, said))
    }

    /// The queue pair that sent a datagram.
    pub fn source_qpn(&self) -> Qpn {
        let [_, a, b, c] = self.words[1];
        Qpn::new(u32::from_be_bytes([0, a, b, c]))
    }
}
