use uroce::time::{Duration, Instant};
use uroce::wire::LinkRecord;

use super::goodput::FRAME;
use super::marking::Marking;
use super::policer::{Bucket, Policer};
use super::random::Random;

/// The properties of a link in one direction: rate, delay, queue and faults.
#[derive(Clone, Debug)]
pub struct LinkProfile {
    /// The rate, in bytes of Ethernet frames a second, without preamble, checksum and gap.
    pub bytes_per_second: u64,
    /// The propagation delay of the link.
    pub delay: Duration,
    /// Upper bound on the bytes that wait to be sent; a frame that finds the queue full is lost.
    pub queue_bytes: u64,
    /// Which frames are marked «congestion experienced»; `None` for none.
    pub marking: Option<Marking>,
    /// The faults of the link.
    pub faults: Faults,
}

/// The faults of a link. Shares are probabilities for each frame, 0 to 1.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The share of frames that are lost independently.
    pub loss: f64,
    /// Losses in bursts; `None` for none.
    pub bursts: Option<Bursts>,
    /// The share of frames that arrive twice.
    pub duplicate: f64,
    /// The share of frames that are delayed, so that others overtake them; the copy of a duplicated frame is delayed as
    /// well.
    pub reorder: f64,
    /// Upper bound on that delay.
    pub reorder_by: Duration,
    /// The share of frames in which one to three bits are flipped, from the BTH to the ICRC.
    pub corrupt: f64,
    /// The share of frames of which a third party sends a forgery, with a right ICRC but a wrong source, P_Key, PSN or
    /// tag.
    pub forge: f64,
    /// The times in which all frames are lost.
    pub blackholes: Vec<Blackhole>,
    /// What polices the rate of the link; `None` for nothing.
    pub policer: Option<Policer>,
}

/// The Gilbert–Elliott model of losses: a good and a bad state, with a probability at each frame to change between
/// them.
#[derive(Clone, Copy, Debug)]
pub struct Bursts {
    /// The probability to change from good to bad.
    pub enter: f64,
    /// The probability to change from bad to good: bursts are 1/`leave` frames long on average.
    pub leave: f64,
    /// The share of frames that are lost in the bad state; the good state loses none.
    pub loss: f64,
}

/// A time in which a link loses all frames.
#[derive(Clone, Copy, Debug)]
pub struct Blackhole {
    /// The first moment of the time.
    pub from: Instant,
    /// The first moment after the time.
    pub until: Instant,
}

/// Why a frame was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named for what they are
pub enum Lost {
    Chance,
    Burst,
    Blackhole,
    QueueFull,
    Policed,
}

impl Faults {
    /// A link without faults.
    pub const NONE: Faults = Faults {
        loss: 0.0,
        bursts: None,
        duplicate: 0.0,
        reorder: 0.0,
        reorder_by: Duration::ZERO,
        corrupt: 0.0,
        forge: 0.0,
        blackholes: Vec::new(),
        policer: None,
    };

    /// The mean length of a burst, in frames.
    const BURST: f64 = 8.0;

    /// A link that loses a share of `loss` of its frames, 0 to 1: independently, or in bursts of eight on average.
    pub fn losses(loss: f64, bursts: bool) -> Faults {
        if !bursts {
            return Faults { loss, ..Faults::NONE };
        }
        let leave = 1.0 / Faults::BURST;
        let enter = leave * loss / (1.0 - loss);
        Faults { bursts: Some(Bursts { enter, leave, loss: 1.0 }), ..Faults::NONE }
    }
}

/// What happens to a frame that was given to a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// When the frame arrives at the other end.
    pub arrival: Instant,
    /// When its copy arrives; `None` without one.
    pub duplicate: Option<Instant>,
    /// When the forgery made from it arrives; `None` without one.
    pub forgery: Option<Instant>,
    pub corrupted: bool,
    pub marked: bool,
}

/// A link and its state.
#[derive(Debug)]
pub(super) struct Link {
    profile: LinkProfile,
    /// When all waiting bytes will have been sent.
    busy_until: Instant,
    /// Bytes of frames that were sent or wait.
    taken_bytes: u64,
    bucket: Bucket,
    in_burst: bool,
    random: Random,
}

/// Length of the frame that a frame which overtakes waits for, at most, in bytes.
const LONGEST_FRAME: u64 = FRAME;

impl Link {
    pub fn new(profile: LinkProfile, random: Random) -> Link {
        Link { profile, busy_until: Instant::ZERO, taken_bytes: 0, bucket: Bucket::default(), in_burst: false, random }
    }

    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// When at most `bytes` will be waiting.
    pub fn when_at_most(&self, bytes: u64) -> Instant {
        Instant::from_ns(self.busy_until.as_ns().saturating_sub(self.time_of(bytes)))
    }

    fn time_of(&self, bytes: u64) -> u64 {
        (bytes * 1_000_000_000).div_ceil(self.profile.bytes_per_second)
    }

    fn waiting_bytes(&self, now: Instant) -> u64 {
        let waiting_ns = self.busy_until.saturating_since(now).as_nanos() as u64;
        (u128::from(waiting_ns) * u128::from(self.profile.bytes_per_second) / 1_000_000_000) as u64
    }

    /// What a switch tells of the link now.
    pub fn record(&self, now: Instant) -> LinkRecord {
        let waiting = self.waiting_bytes(now);
        LinkRecord {
            rate_bps: 8 * self.profile.bytes_per_second,
            queue_bytes: u32::try_from(waiting).unwrap_or(u32::MAX),
            time_ns: now.as_ns() as u32,
            sent_bytes: self.taken_bytes.saturating_sub(waiting) as u32,
        }
    }

    /// When a frame of `bytes` arrives that overtakes all that wait: only what is being sent goes before it. It is neither
    /// marked nor lost.
    pub fn pass_first(&mut self, now: Instant, bytes: u64) -> Instant {
        let own = Duration::from_nanos(self.time_of(bytes));
        let before = self.busy_until.saturating_since(now).min(Duration::from_nanos(self.time_of(LONGEST_FRAME)));
        self.busy_until = self.busy_until.max(now) + own;
        self.taken_bytes += bytes;
        now + before + own + self.profile.delay
    }

    /// Decides what happens to a frame of `bytes` that is given to the link now.
    pub fn pass(&mut self, now: Instant, bytes: u64) -> Result<Passage, Lost> {
        let waiting = self.waiting_bytes(now);
        if waiting + bytes > self.profile.queue_bytes.max(bytes) {
            return Err(Lost::QueueFull);
        }
        if let Some(policer) = &self.profile.faults.policer
            && !self.bucket.takes(policer, now, bytes)
        {
            return Err(Lost::Policed);
        }
        let marked = match self.profile.marking.map_or(0.0, |marking| marking.share(waiting)) {
            // Without chance no random number is drawn.
            share if share < 1.0 => self.random.chance(share),
            _ => true,
        };
        self.busy_until = self.busy_until.max(now) + Duration::from_nanos(self.time_of(bytes));
        self.taken_bytes += bytes;
        let faults = &self.profile.faults;
        let random = &mut self.random;
        if faults.blackholes.iter().any(|hole| hole.from <= now && now < hole.until) {
            return Err(Lost::Blackhole);
        }
        if let Some(bursts) = faults.bursts {
            let turn = if self.in_burst { bursts.leave } else { bursts.enter };
            self.in_burst ^= random.chance(turn);
            if self.in_burst && random.chance(bursts.loss) {
                return Err(Lost::Burst);
            }
        }
        if random.chance(faults.loss) {
            return Err(Lost::Chance);
        }
        let mut arrival = self.busy_until + self.profile.delay;
        let duplicate = random.chance(faults.duplicate).then(|| arrival + random.up_to(faults.reorder_by));
        let forgery = random.chance(faults.forge).then(|| arrival + random.up_to(faults.reorder_by));
        if random.chance(faults.reorder) {
            arrival = arrival + random.up_to(faults.reorder_by);
        }
        Ok(Passage { arrival, duplicate, forgery, corrupted: random.chance(faults.corrupt), marked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(queue_bytes: u64, faults: Faults) -> Link {
        let delay = Duration::from_micros(5);
        let profile = LinkProfile {
            bytes_per_second: 1_000_000_000,
            delay,
            queue_bytes,
            marking: Some(Marking::above(2500)),
            faults,
        };
        Link::new(profile, Random::new(1, 0))
    }

    #[test]
    fn frames_wait_for_each_other_then_travel_and_a_full_queue_loses_them() {
        let mut link = link(3000, Faults::NONE);
        let passages: Vec<_> = (0..4).map(|_| link.pass(Instant::ZERO, 1000)).collect();
        let arrivals: Vec<_> = passages.iter().flatten().map(|p| p.arrival.as_ns()).collect();
        assert_eq!(arrivals, [6000, 7000, 8000]);
        assert!(matches!(passages[3], Err(Lost::QueueFull)));
        assert_eq!(link.when_at_most(1000), Instant::from_ns(2000));
        let later = link.pass(Instant::from_ns(2500), 1000).unwrap();
        assert_eq!((later.arrival.as_ns(), later.marked), (9000, false));
    }

    #[test]
    fn a_record_has_what_was_sent_and_what_waits() {
        let mut link = link(u64::MAX, Faults::NONE);
        (0..3).for_each(|_| assert!(link.pass(Instant::ZERO, 1000).is_ok()));
        // 1 ns a byte.
        let of = |at: u64, queue_bytes, sent_bytes| {
            let found = link.record(Instant::from_ns(at));
            assert_eq!(found, LinkRecord { rate_bps: 8_000_000_000, queue_bytes, time_ns: at as u32, sent_bytes });
        };
        of(1000, 2000, 1000);
        of(2500, 500, 2500);
        of((1 << 32) + 7, 0, 3000);
    }

    #[test]
    fn a_frame_that_overtakes_waits_only_for_the_one_that_is_being_sent() {
        let mut link = link(u64::MAX, Faults::NONE);
        (0..3).for_each(|_| assert!(link.pass(Instant::ZERO, FRAME).is_ok()));
        // 1 ns a byte, and 5 µs.
        assert_eq!(link.pass_first(Instant::ZERO, 100).as_ns(), FRAME + 100 + 5000);
        // The others are later by its time.
        assert_eq!(link.pass(Instant::ZERO, FRAME).unwrap().arrival.as_ns(), 4 * FRAME + 100 + 5000);
    }

    #[test]
    fn a_long_queue_marks() {
        let mut link = link(10_000, Faults::NONE);
        let marked: Vec<_> = (0..5).map(|_| link.pass(Instant::ZERO, 1000).unwrap().marked).collect();
        assert_eq!(marked, [false, false, false, true, true]);
    }

    #[test]
    fn a_share_is_marked_between_two_lengths_of_the_queue() {
        let mut link = link(u64::MAX, Faults::NONE);
        link.profile.marking = Some(Marking { none_bytes: 500, all_bytes: 1_000_000_000, share: 1.0 });
        // 200 MB wait on average.
        let marked = (0..400_000).filter(|_| link.pass(Instant::ZERO, 1000).unwrap().marked).count();
        assert!((78_000..82_000).contains(&marked), "{marked} of 400,000");
    }

    #[test]
    fn a_policer_loses_what_exceeds_its_rate() {
        let policer = Some(Policer { bytes_per_second: 500_000_000, burst_bytes: 2000 });
        let mut link = link(u64::MAX, Faults { policer, ..Faults::NONE });
        let passages: Vec<_> = (0..5).map(|_| link.pass(Instant::ZERO, 1000)).collect();
        let arrivals: Vec<_> = passages.iter().flatten().map(|p| p.arrival.as_ns()).collect();
        assert_eq!(arrivals, [6000, 7000]);
        assert!(passages[2..].iter().all(|passage| matches!(passage, Err(Lost::Policed))));
        assert!(link.pass(Instant::from_ns(2000), 1000).is_ok());
    }

    #[test]
    fn bursts_lose_runs_of_frames_and_blackholes_all() {
        let bursts = Some(Bursts { enter: 0.01, leave: 0.1, loss: 1.0 });
        let mut link = link(u64::MAX, Faults { bursts, ..Faults::NONE });
        let lost: Vec<bool> = (0..10_000).map(|_| link.pass(Instant::ZERO, 100).is_err()).collect();
        let share = lost.iter().filter(|lost| **lost).count() as f64 / 10_000.0;
        let runs = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        assert!((0.05..0.15).contains(&share), "{share}");
        assert!((5.0..20.0).contains(&(share * 10_000.0 / runs)), "bursts of ten frames on average");

        let at = Instant::from_ns;
        let blackholes = vec![Blackhole { from: at(100), until: at(200) }];
        let mut link = self::link(u64::MAX, Faults { blackholes, ..Faults::NONE });
        let lost = [99, 100, 199, 200].map(|ns| link.pass(at(ns), 1).is_err());
        assert_eq!(lost, [false, true, true, false]);
    }
}
