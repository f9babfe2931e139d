use std::collections::BTreeMap;

use uroce::wire::Bth;
use zerocopy::FromBytes;

use super::network::bth_offset;
use super::random::Random;

/// Losses that depend on the packet and on how often it was sent, and on nothing else: two runs that send the same packets
/// lose the same ones, whatever else they send.
#[derive(Debug)]
pub(super) struct PairedLosses {
    seed: u64,
    share: f64,
    /// How often each packet was sent, by its queue pair and its PSN.
    sent: BTreeMap<(u32, u32), u64>,
}

impl PairedLosses {
    /// Losses of this share of packets, 0 to 1.
    pub fn new(seed: u64, share: f64) -> PairedLosses {
        PairedLosses { seed, share, sent: BTreeMap::new() }
    }

    /// Whether this frame, which begins with the Ethernet header, is lost.
    pub fn lose(&mut self, frame: &[u8]) -> bool {
        let Some(Ok((bth, _))) = frame.get(bth_offset(frame)..).map(Bth::ref_from_prefix) else { return false };
        let (qpn, psn) = (bth.destination().value(), bth.psn().value());
        let times = self.sent.entry((qpn, psn)).or_default();
        *times += 1;
        let packet = u64::from(qpn) << 24 | u64::from(psn);
        Random::new(self.seed ^ packet << 8, *times).chance(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame to a queue pair, with a PSN.
    fn frame(qpn: u8, psn: u8) -> [u8; 64] {
        let mut frame = [0; 64];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[42 + 7], frame[42 + 11]) = (qpn, psn);
        frame
    }

    #[test]
    fn the_same_packets_are_lost_whatever_goes_between_them_and_again_by_another_chance() {
        let lost = |others: u8| {
            let mut losses = PairedLosses::new(1, 0.25);
            let mut of = |psn: u8| {
                (0..others).for_each(|other| _ = losses.lose(&frame(9, other)));
                losses.lose(&frame(7, psn))
            };
            let (first, again): (Vec<bool>, Vec<bool>) =
                ((0..200).map(&mut of).collect(), (0..200).map(&mut of).collect());
            (first, again)
        };
        let (first, again) = lost(0);
        assert_eq!(lost(3), (first.clone(), again.clone()));
        let count = |lost: &[bool]| lost.iter().filter(|lost| **lost).count();
        assert!((30..70).contains(&count(&first)) && (30..70).contains(&count(&again)), "of 200 a quarter");
        assert_ne!(first, again);
    }
}
