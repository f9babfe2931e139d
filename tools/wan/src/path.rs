use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::conditions::{Conditions, Loss};
use crate::delays::Delays;
use crate::frame;

/// One direction of one path: its conditions, its chance, and what became of its frames. It has no clock: times are
/// nanoseconds since whenever its user likes, and do not go back.
#[derive(Clone, Debug)]
pub struct Path {
    conditions: Conditions,
    chance: ChaCha8Rng,
    /// Whether it is in a burst of loss.
    is_bad: bool,
    /// When the last frame that came will have been sent at the rate.
    busy_until_ns: u64,
    /// When the last frame leaves the path, of those that keep their order.
    last_leave_ns: u64,
    counts: Counts,
    /// What the frames that its queue took waited for the rate.
    waits: Delays,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It leaves the path at this time.
    Leaves {
        /// In nanoseconds, on the clock of its arrival.
        at_ns: u64,
    },
    /// It is lost.
    Lost,
    /// The queue is full.
    QueueFull,
}

/// Frames of one direction of one path: arrived = lost + queue_full + refused + overflowed + forwarded + held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Came.
    pub arrived: u64,
    /// Came, in bytes.
    pub arrived_bytes: u64,
    /// Were lost, by the path's chance.
    pub lost: u64,
    /// Found the queue full.
    pub queue_full: u64,
    /// Were marked «congestion experienced».
    pub marked: u64,
    /// Were more than the forwarder holds at all (see `HELD_FRAMES_MAX`).
    pub overflowed: u64,
    /// Were refused by the interface that they should have left by.
    pub refused: u64,
    /// Left.
    pub forwarded: u64,
    /// Left, in bytes.
    pub forwarded_bytes: u64,
    /// Are on their way.
    pub held: u64,
}

impl Counts {
    /// Whether each frame that came is accounted for.
    pub fn is_conserved(&self) -> bool {
        let gone = self.lost + self.queue_full + self.overflowed + self.refused;
        self.arrived == gone + self.forwarded + self.held
    }

    /// The share of frames lost among those that were not dropped before.
    pub fn loss_share(&self) -> f64 {
        self.lost as f64 / (self.arrived - self.queue_full).max(1) as f64
    }
}

/// Nanoseconds that `bytes` take at `rate_bps`, rounded up: a path is never faster than it should be.
fn transmission_ns(bytes: u64, rate_bps: u64) -> u64 {
    u64::try_from((u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(rate_bps))).unwrap_or(u64::MAX)
}

impl Path {
    /// A path whose chance `seed` decides; `stream` tells paths of one seed apart.
    pub fn new(conditions: Conditions, seed: u64, stream: u64) -> Path {
        let mut chance = ChaCha8Rng::seed_from_u64(seed);
        chance.set_stream(stream);
        Path {
            conditions,
            chance,
            is_bad: false,
            busy_until_ns: 0,
            last_leave_ns: 0,
            counts: Counts::default(),
            waits: Delays::default(),
        }
    }

    /// What it does to frames.
    pub fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// Changes what it does to the frames that are still to come.
    pub fn set_conditions(&mut self, conditions: Conditions) {
        self.conditions = conditions;
        self.is_bad = false;
    }

    /// What became of its frames.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What the frames that its queue took waited for the rate; of a path without a rate none waits.
    pub fn waits(&self) -> &Delays {
        &self.waits
    }

    pub(crate) fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// Decides what becomes of a frame that arrives now, and marks it when it should be. In this order: the queue, the
    /// rate, loss, delay and jitter. A frame that leaves counts as held until its user says otherwise.
    pub fn arrive(&mut self, now_ns: u64, frame: &mut [u8]) -> Fate {
        let bytes = frame.len() as u64;
        self.counts.arrived += 1;
        self.counts.arrived_bytes += bytes;
        let mut sent_ns = now_ns;
        if let Some(rate_bps) = self.conditions.rate_bps {
            let waiting_ns = self.busy_until_ns.saturating_sub(now_ns);
            let waiting_bytes = (u128::from(waiting_ns) * u128::from(rate_bps) / 8_000_000_000) as u64;
            if waiting_bytes + bytes > self.conditions.queue_bytes() {
                self.counts.queue_full += 1;
                return Fate::QueueFull;
            }
            self.waits.note(waiting_ns);
            if self.conditions.ecn_bytes.is_some_and(|threshold| waiting_bytes > threshold) {
                self.counts.marked += u64::from(frame::mark(frame));
            }
            sent_ns = now_ns.max(self.busy_until_ns) + transmission_ns(bytes, rate_bps);
            self.busy_until_ns = sent_ns;
        }
        if self.is_lost() {
            self.counts.lost += 1;
            return Fate::Lost;
        }
        let jitter_ns = self.below(self.conditions.jitter.as_nanos() as u64);
        let mut at_ns = sent_ns + self.conditions.delay.as_nanos() as u64 + jitter_ns;
        if !self.conditions.overtaking {
            at_ns = at_ns.max(self.last_leave_ns);
            self.last_leave_ns = at_ns;
        }
        self.counts.held += 1;
        Fate::Leaves { at_ns }
    }

    fn is_lost(&mut self) -> bool {
        match self.conditions.loss {
            Loss::Nothing => false,
            Loss::Everything => true,
            Loss::Uniform(share) => self.happens(share),
            Loss::Bursts { share, mean_frames } => {
                // The chances of becoming good and bad that give these means.
                let good = 1.0 / mean_frames;
                let bad = (good * share / (1.0 - share)).min(1.0);
                let change = self.happens(if self.is_bad { good } else { bad });
                self.is_bad ^= change;
                self.is_bad
            }
        }
    }

    fn happens(&mut self, probability: f64) -> bool {
        const TWO_TO_THE_32: f64 = (1u64 << 32) as f64;
        f64::from(self.chance.next_u32()) < probability * TWO_TO_THE_32
    }

    /// A number from 0 to `limit`, which costs no chance when there is only one.
    fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 {
            return 0;
        }
        ((u128::from(self.chance.next_u64()) * (u128::from(limit) + 1)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FRAME_BYTES: usize = 4110;

    fn path(text: &str, seed: u64) -> Path {
        Path::new(text.parse().unwrap(), seed, 0)
    }

    /// Has `number` frames arrive, `every_ns` apart.
    fn play(path: &mut Path, number: u64, every_ns: u64) -> Vec<Fate> {
        (0..number).map(|i| path.arrive(i * every_ns, &mut [0; FRAME_BYTES])).collect()
    }

    #[test]
    fn a_frame_takes_its_transmission_and_the_delay() {
        // 4110 bytes at 500 Mb/s are 65.76 µs.
        let mut path = path("delay=20ms,rate=500M", 1);
        let fates = play(&mut path, 3, 10_000);
        assert_eq!(fates, [65_760, 131_520, 197_280].map(|at| Fate::Leaves { at_ns: at + 20_000_000 }));
        assert_eq!(path.arrive(1_000_000, &mut [0; 100]), Fate::Leaves { at_ns: 21_001_600 });
        let counts = *path.counts();
        assert_eq!((counts.arrived, counts.arrived_bytes, counts.held), (4, 3 * 4110 + 100, 4));
        assert!(counts.is_conserved());
    }

    #[test]
    fn what_the_queue_does_not_hold_is_dropped_and_the_rest_leaves_at_the_rate() {
        let mut path = path("rate=500M,queue=100k", 1);
        // At once: 24 frames are 98,640 bytes.
        let fates = play(&mut path, 30, 0);
        assert!(fates[..24].iter().enumerate().all(|(i, f)| *f == Fate::Leaves { at_ns: 65_760 * (i as u64 + 1) }));
        assert!(fates[24..].iter().all(|fate| *fate == Fate::QueueFull));
        // One frame's time later there is room for one.
        assert_eq!(path.arrive(65_760, &mut [0; FRAME_BYTES]), Fate::Leaves { at_ns: 65_760 * 25 });
        assert_eq!(path.arrive(65_760, &mut [0; FRAME_BYTES]), Fate::QueueFull);
        assert_eq!((path.counts().queue_full, path.counts().held), (7, 25));
        // 0 to 23 frames' times, and 23 again.
        let times = |wait: Duration| (wait.as_nanos() as f64 / 65_760.0).round();
        assert_eq!((path.waits().frames(), times(path.waits().mean()), times(path.waits().max())), (25, 12.0, 23.0));
        assert!(path.counts().is_conserved());
    }

    #[test]
    fn marks_begin_above_the_threshold() {
        let mut path = path("rate=500M,ecn=10k", 1);
        let mut capable = [0; FRAME_BYTES];
        capable[12] = 0x08;
        (capable[14], capable[15]) = (0x45, 0x02);
        let marks: Vec<bool> = (0..5)
            .map(|_| {
                let mut frame = capable;
                path.arrive(0, &mut frame);
                frame[15] & 3 == 3
            })
            .collect();
        // Found waiting: 0, 4110, 8220, 12,330 and 16,440 bytes.
        assert_eq!(marks, [false, false, false, true, true]);
        path.arrive(0, &mut [0; FRAME_BYTES]);
        assert_eq!(path.counts().marked, 2, "what knows nothing of ECN is not marked");
    }

    #[test]
    fn uniform_loss_is_as_wanted_and_the_seed_decides_it() {
        const FRAMES: u64 = 100_000;
        let lost = |seed| {
            let fates = play(&mut path("loss=0.01", seed), FRAMES, 1);
            fates.iter().map(|fate| *fate == Fate::Lost).collect::<Vec<_>>()
        };
        let first = lost(7);
        assert_eq!(first, lost(7));
        assert_ne!(first, lost(8));
        let share = first.iter().filter(|lost| **lost).count() as f64 / FRAMES as f64;
        // Five standard deviations of the binomial distribution.
        assert!((share - 0.01).abs() < 5.0 * (0.01 * 0.99 / FRAMES as f64).sqrt(), "{share}");
        // Losses are independent: about one in a hundred is followed by another.
        let pairs = first.windows(2).filter(|pair| pair[0] && pair[1]).count();
        assert!((2..=30).contains(&pairs), "{pairs} pairs of 1000");
    }

    #[test]
    fn bursts_have_the_share_and_the_mean_length() {
        const FRAMES: u64 = 1_000_000;
        let fates = play(&mut path("loss=0.05,burst=8", 3), FRAMES, 1);
        let lost = fates.iter().filter(|fate| **fate == Fate::Lost).count() as f64;
        let bursts = fates.windows(2).filter(|pair| pair[0] != Fate::Lost && pair[1] == Fate::Lost).count() as f64;
        // 6250 bursts of a geometric length, whose standard deviation is about its mean: five of the sum's.
        assert!((lost / bursts - 8.0).abs() < 5.0 * 8.0 / bursts.sqrt(), "{} frames a burst", lost / bursts);
        assert!((lost / FRAMES as f64 - 0.05).abs() < 0.005, "{lost} lost");
    }

    #[test]
    fn jitter_is_within_its_bounds_and_overtakes_only_when_allowed() {
        for (text, may_overtake) in [("delay=5ms,jitter=2ms", false), ("delay=5ms,jitter=2ms,overtaking", true)] {
            let fates = play(&mut path(text, 5), 10_000, 10_000);
            let times: Vec<u64> = fates
                .iter()
                .map(|fate| match fate {
                    Fate::Leaves { at_ns } => *at_ns,
                    other => panic!("{other:?}"),
                })
                .collect();
            let took = times.iter().enumerate().map(|(i, at)| at - i as u64 * 10_000);
            let (least, most) = took.fold((u64::MAX, 0), |(least, most), ns| (least.min(ns), most.max(ns)));
            assert!(least >= 5_000_000 && most <= 7_000_000, "{least} to {most} ns");
            assert!(most > 6_950_000, "{most} ns is not near the bound");
            assert_eq!(times.windows(2).any(|pair| pair[0] > pair[1]), may_overtake);
        }
    }

    #[test]
    fn a_path_may_go_dark_and_come_back() {
        let mut path = path("delay=1ms", 1);
        let fine = *path.conditions();
        assert_eq!(path.arrive(0, &mut [0; 60]), Fate::Leaves { at_ns: 1_000_000 });
        path.set_conditions(Conditions { loss: Loss::Everything, ..fine });
        assert_eq!(path.arrive(1, &mut [0; 60]), Fate::Lost);
        path.set_conditions(fine);
        assert_eq!(path.arrive(2, &mut [0; 60]), Fate::Leaves { at_ns: 1_000_002 });
        assert_eq!((path.counts().arrived, path.counts().lost, path.counts().held), (3, 1, 2));
    }
}
