//! Injected faults: which frames are lost, duplicated, corrupted, delayed or overtaken, decided by a seed alone.
//!
//! [`FaultEngine`] decides, and [`HoldQueue`] keeps frames that come later; neither touches a link or a clock.
//! [`Tapped`](super::Tapped) applies them to a link.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::pcap::Direction;
use crate::time::{Duration, Instant};

/// Upper bound on the time that a reordered frame waits for others to overtake it.
const OVERTAKE_WAIT: Duration = Duration::from_millis(1);

/// Upper bound on the bits that are flipped in a corrupted frame.
///
/// CRC-32 finds every pattern of up to three flipped bits in frames below 11 kB: its Hamming distance is 4 up to 91,607
/// bits. So no corrupted frame passes by chance.
const FLIPPED_BITS_MAX: usize = 3;

/// The longest delay, one minute: a longer one is a mistake of the unit.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// Upper bound on the frames that a reordered one waits for.
const REORDER_BY_MAX: u32 = 1000;

/// Which faults happen, and how often; as text `loss=0.01,dup=0.01,reorder=0.01,delay=2ms,corrupt=0.001,seed=7`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultSpec {
    /// The share of frames that is lost, 0 to 1 (`loss`).
    pub loss: f64,
    /// The share of frames that arrive twice, 0 to 1 (`dup`).
    pub duplicate: f64,
    /// The share of frames that others overtake, 0 to 1 (`reorder`).
    pub reorder: f64,
    /// How many frames overtake a reordered one, 1 to 1000 (`reorder_by`, 3 unless given). It continues after 1 ms if
    /// fewer arrive.
    pub reorder_by: u32,
    /// How long a delayed frame waits, up to a minute (`delay`, with `ns`, `us`, `ms` or `s`).
    pub delay: Duration,
    /// The share of frames that is delayed, 0 to 1 (`delay_share`, 1 unless given).
    pub delay_share: f64,
    /// The share of frames in which one to three bits are flipped, 0 to 1 (`corrupt`).
    ///
    /// Links flip bits from the BTH on, where the ICRC finds them. The kernel would find a flipped bit in the IP
    /// header.
    pub corrupt: f64,
    /// The seed of all random decisions (`seed`, 0 unless given).
    pub seed: u64,
    /// Which frames are affected (`direction`: `tx`, `rx` or `both`; `both` unless given).
    pub direction: FaultDirection,
}

/// The direction of the frames that faults affect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultDirection {
    /// Sent frames only.
    Sent,
    /// Received frames only.
    Received,
    /// Frames of both directions.
    #[default]
    Both,
}

impl FaultDirection {
    /// Whether frames that go `direction` are affected.
    pub fn includes(self, direction: Direction) -> bool {
        match self {
            FaultDirection::Sent => direction == Direction::Sent,
            FaultDirection::Received => direction == Direction::Received,
            FaultDirection::Both => true,
        }
    }
}

impl Default for FaultSpec {
    /// A specification without faults.
    fn default() -> Self {
        FaultSpec {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: 3,
            delay: Duration::ZERO,
            delay_share: 1.0,
            corrupt: 0.0,
            seed: 0,
            direction: FaultDirection::Both,
        }
    }
}

/// The keys of a fault specification, for messages.
const KEYS: &str = "loss, dup, reorder, reorder_by, delay, delay_share, corrupt, seed, direction";

/// What is wrong with a fault specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("faults: item {position}, `{item}`: {reason}")]
pub struct FaultSpecError {
    /// The number of the wrong item, counted from 1.
    pub position: usize,
    /// The text of the item.
    pub item: String,
    /// What is wrong with the item, and what would be right.
    pub reason: String,
}

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    /// Reads items `key=value`, separated by commas; an empty text means no faults.
    fn from_str(text: &str) -> Result<FaultSpec, FaultSpecError> {
        let mut spec = FaultSpec::default();
        let mut seen: Vec<&str> = Vec::new();
        for (index, item) in text.split(',').map(str::trim).enumerate() {
            if text.trim().is_empty() {
                break;
            }
            let error = |reason| FaultSpecError { position: index + 1, item: item.to_owned(), reason };
            let (key, value) = item.split_once('=').ok_or_else(|| error(format!("not key=value; keys are {KEYS}")))?;
            if seen.contains(&key) {
                return Err(error(format!("`{key}` is given twice")));
            }
            seen.push(key);
            match key {
                "loss" => spec.loss = share(value).map_err(error)?,
                "dup" => spec.duplicate = share(value).map_err(error)?,
                "reorder" => spec.reorder = share(value).map_err(error)?,
                "reorder_by" => {
                    let frames = value.parse().ok().filter(|n| (1..=REORDER_BY_MAX).contains(n));
                    let reason = || format!("use a number of frames from 1 to {REORDER_BY_MAX}");
                    spec.reorder_by = frames.ok_or_else(|| error(reason()))?;
                }
                "delay" => spec.delay = delay(value).map_err(error)?,
                "delay_share" => spec.delay_share = share(value).map_err(error)?,
                "corrupt" => spec.corrupt = share(value).map_err(error)?,
                "seed" => {
                    let reason = "use a whole number from 0 to 2^64 - 1";
                    spec.seed = value.parse().map_err(|_| error(reason.to_owned()))?;
                }
                "direction" => {
                    spec.direction = match value {
                        "tx" => FaultDirection::Sent,
                        "rx" => FaultDirection::Received,
                        "both" => FaultDirection::Both,
                        _ => return Err(error("use `tx`, `rx` or `both`".to_owned())),
                    }
                }
                _ => return Err(error(format!("there is no key `{key}`; keys are {KEYS}"))),
            }
        }
        Ok(spec)
    }
}

impl fmt::Display for FaultSpec {
    /// Writes what is not as it is by default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultSpec { loss, duplicate, reorder, reorder_by, delay, delay_share, corrupt, seed, direction } = *self;
        let of = |key: &'static str, value: String, is_given: bool| is_given.then(|| format!("{key}={value}"));
        let (default, to) = (
            FaultSpec::default(),
            match direction {
                FaultDirection::Sent => "tx",
                FaultDirection::Received => "rx",
                FaultDirection::Both => "both",
            },
        );
        let items = [
            of("loss", loss.to_string(), loss != default.loss),
            of("dup", duplicate.to_string(), duplicate != default.duplicate),
            of("reorder", reorder.to_string(), reorder != default.reorder),
            of("reorder_by", reorder_by.to_string(), reorder_by != default.reorder_by),
            of("delay", format!("{}ns", delay.as_nanos()), delay != default.delay),
            of("delay_share", delay_share.to_string(), delay_share != default.delay_share),
            of("corrupt", corrupt.to_string(), corrupt != default.corrupt),
            of("seed", seed.to_string(), seed != default.seed),
            of("direction", to.to_owned(), direction != default.direction),
        ];
        f.write_str(&items.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

fn share(value: &str) -> Result<f64, String> {
    let share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "use a share from 0 to 1: 0.01 is one frame in a hundred".to_owned())
}

fn delay(value: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let seconds = UNITS.iter().find_map(|(unit, scale)| Some(value.strip_suffix(unit)?.parse::<f64>().ok()? * scale));
    let seconds = seconds.filter(|seconds| (0.0..=DELAY_MAX.as_secs_f64()).contains(seconds));
    let reason = "use a time with its unit (ns, us, ms or s) of up to 60s, such as 2ms";
    seconds.map(Duration::from_secs_f64).ok_or_else(|| reason.to_owned())
}

/// What happens to one frame. A lost frame has no other fault; all other faults can come together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Whether the frame is lost.
    pub is_lost: bool,
    /// Whether the frame arrives twice, the copy right behind the frame.
    pub is_duplicated: bool,
    /// The bits of the frame that are flipped; `None` for none.
    pub corruption: Option<Corruption>,
    /// How long the frame is delayed.
    pub delay: Duration,
    /// How many frames overtake the frame.
    pub overtaken_by: u32,
}

impl Fate {
    /// Whether the frame has to wait.
    pub fn is_held(&self) -> bool {
        self.delay > Duration::ZERO || self.overtaken_by > 0
    }

    /// Whether nothing happens to the frame.
    pub fn is_nothing(&self) -> bool {
        *self == Fate::default()
    }
}

impl fmt::Display for Fate {
    /// The text of the remark in captures: `fault: lost`, `fault: corrupted, delayed 2ms`; empty when nothing happens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "fault: ";
        let mut write = |text: fmt::Arguments<'_>| {
            f.write_str(separator)?;
            separator = ", ";
            f.write_fmt(text)
        };
        if self.is_lost {
            return write(format_args!("lost"));
        }
        if self.corruption.is_some() {
            write(format_args!("corrupted"))?;
        }
        if self.is_duplicated {
            write(format_args!("duplicated"))?;
        }
        if self.delay > Duration::ZERO {
            write(format_args!("delayed {:?}", self.delay))?;
        }
        if self.overtaken_by > 0 {
            write(format_args!("overtaken by {}", self.overtaken_by))?;
        }
        Ok(())
    }
}

/// Which bits of a frame are flipped, for frames of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    count: usize,
    draws: [u32; FLIPPED_BITS_MAX],
}

impl Corruption {
    /// Flips one to three different bits of `bytes`; fewer when it has fewer bits.
    pub fn apply(&self, bytes: &mut [u8]) {
        let bits = bytes.len() * 8;
        let mut flipped = [usize::MAX; FLIPPED_BITS_MAX];
        for i in 0..self.count.min(bits) {
            let mut bit = self.draws[i] as usize % bits;
            while flipped.contains(&bit) {
                bit = (bit + 1) % bits;
            }
            flipped[i] = bit;
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
        }
    }
}

/// Decides what happens to each frame.
///
/// The fates of a direction's frames follow from the seed and their order alone, without clock or length. Each kind of
/// fault has random numbers of its own, so that more duplicates do not change which frames are lost.
#[derive(Clone, Debug)]
pub struct FaultEngine {
    spec: FaultSpec,
    sent: Chances,
    received: Chances,
}

#[derive(Clone, Debug)]
struct Chances {
    loss: Random,
    duplicate: Random,
    reorder: Random,
    delay: Random,
    corrupt: Random,
    bits: Random,
}

impl Chances {
    fn new(seed: u64, direction: u64) -> Chances {
        // A generator for the seeds of the generators: neighbouring seeds give unlike streams.
        let mut seeds = Random(seed ^ direction.wrapping_mul(0xd1b5_4a32_d192_ed03));
        let mut next = || Random(seeds.next());
        Chances { loss: next(), duplicate: next(), reorder: next(), delay: next(), corrupt: next(), bits: next() }
    }
}

impl FaultEngine {
    /// An engine before its first frame.
    pub fn new(spec: FaultSpec) -> FaultEngine {
        FaultEngine { spec, sent: Chances::new(spec.seed, 1), received: Chances::new(spec.seed, 2) }
    }

    /// The specification that the engine follows.
    pub fn spec(&self) -> &FaultSpec {
        &self.spec
    }

    /// The fate of the next frame that goes `direction`.
    pub fn decide(&mut self, direction: Direction) -> Fate {
        let spec = &self.spec;
        if !spec.direction.includes(direction) {
            return Fate::default();
        }
        let chances = match direction {
            Direction::Sent => &mut self.sent,
            Direction::Received => &mut self.received,
        };
        // Every chance is taken for every frame, so that the streams stay in step.
        let is_lost = chances.loss.is_below(spec.loss);
        let is_duplicated = chances.duplicate.is_below(spec.duplicate);
        let is_overtaken = chances.reorder.is_below(spec.reorder);
        let is_delayed = chances.delay.is_below(spec.delay_share);
        let corruption = chances.corrupt.is_below(spec.corrupt).then(|| {
            let mut draw = || chances.bits.next() as u32;
            Corruption { count: 1 + draw() as usize % FLIPPED_BITS_MAX, draws: [draw(), draw(), draw()] }
        });
        if is_lost {
            return Fate { is_lost, ..Fate::default() };
        }
        Fate {
            is_lost,
            is_duplicated,
            corruption,
            delay: if is_delayed { spec.delay } else { Duration::ZERO },
            overtaken_by: if is_overtaken { spec.reorder_by } else { 0 },
        }
    }
}

/// SplitMix64: 64 bits of state, passes BigCrush, and every seed is as good as any (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with the given probability: never for 0, always for 1.
    fn is_below(&mut self, probability: f64) -> bool {
        const TWO_TO_THE_53: f64 = (1u64 << 53) as f64;
        ((self.next() >> 11) as f64) < probability * TWO_TO_THE_53
    }
}

/// Frames of one direction that wait: for their time, or for others to overtake them. Bounded.
#[derive(Debug)]
pub struct HoldQueue<T> {
    capacity: usize,
    next: u64,
    /// Delayed frames by the time at which they go, and the order in which they came.
    timed: BTreeMap<(Instant, u64), (u32, T)>,
    /// Frames that let others overtake them: how many still, and until when.
    held_back: Vec<(u32, Instant, T)>,
}

impl<T> HoldQueue<T> {
    /// A queue for at most `capacity` frames.
    pub fn new(capacity: usize) -> HoldQueue<T> {
        HoldQueue { capacity, next: 0, timed: BTreeMap::new(), held_back: Vec::new() }
    }

    /// Keeps `frame` for as long as its fate demands.
    ///
    /// # Errors
    /// Returns the frame when the queue is full.
    pub fn hold(&mut self, now: Instant, fate: &Fate, frame: T) -> Result<(), T> {
        if self.len() >= self.capacity {
            return Err(frame);
        }
        self.timed.insert((now + fate.delay, self.next), (fate.overtaken_by, frame));
        self.next += 1;
        self.settle(now);
        Ok(())
    }

    /// Records that a frame passed that did not wait here.
    pub fn overtake(&mut self) {
        self.held_back.iter_mut().for_each(|(left, ..)| *left = left.saturating_sub(1));
    }

    /// The next frame whose wait is over; `None` when there is none.
    pub fn release(&mut self, now: Instant) -> Option<T> {
        self.settle(now);
        if let Some(at) = self.held_back.iter().position(|(left, until, _)| *left == 0 || *until <= now) {
            return Some(self.held_back.remove(at).2);
        }
        let entry = self.timed.first_entry().filter(|entry| entry.key().0 <= now)?;
        let (_, frame) = entry.remove();
        self.overtake();
        Some(frame)
    }

    /// Moves frames whose delay is over, and that others are to overtake, to those that wait for that.
    fn settle(&mut self, now: Instant) {
        while let Some(entry) = self.timed.first_entry()
            && entry.key().0 <= now
            && entry.get().0 > 0
        {
            let ((due, _), (overtaken_by, frame)) = entry.remove_entry();
            self.held_back.push((overtaken_by, due + OVERTAKE_WAIT, frame));
        }
    }

    /// When [`release`](HoldQueue::release) has a frame the next time; `None` when no frame waits.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timed = self.timed.keys().next().map(|(due, _)| *due);
        let held = self.held_back.iter().map(|(left, until, _)| if *left == 0 { Instant::ZERO } else { *until }).min();
        timed.into_iter().chain(held).min()
    }

    /// The number of frames that wait.
    pub fn len(&self) -> usize {
        self.timed.len() + self.held_back.len()
    }

    /// Whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn the_contracts_example_is_read() {
        let spec: FaultSpec = "loss=0.01,dup=0.01,reorder=0.01,delay=2ms,corrupt=0.001,seed=7".parse().unwrap();
        let expected = FaultSpec {
            loss: 0.01,
            duplicate: 0.01,
            reorder: 0.01,
            delay: Duration::from_millis(2),
            corrupt: 0.001,
            seed: 7,
            ..FaultSpec::default()
        };
        assert_eq!(spec, expected);
        assert_eq!("".parse(), Ok(FaultSpec::default()));
        for text in
            ["loss=0.01,dup=1,reorder=0.125,seed=18446744073709551615", "reorder_by=9,delay=1500ns,direction=rx", ""]
        {
            assert_eq!(text.parse::<FaultSpec>().unwrap().to_string(), text);
        }
        let spec: FaultSpec = "direction=rx, delay=1.5us ,delay_share=0.25,reorder_by=9".parse().unwrap();
        assert_eq!(
            (spec.direction, spec.delay, spec.delay_share),
            (FaultDirection::Received, Duration::from_nanos(1500), 0.25)
        );
        assert_eq!(spec.reorder_by, 9);
    }

    #[test]
    fn errors_say_which_item_is_wrong_and_what_would_be_right() {
        let error = |text: &str| text.parse::<FaultSpec>().unwrap_err().to_string();
        let share = "use a share from 0 to 1: 0.01 is one frame in a hundred";
        assert_eq!(error("seed=1,loss=1%"), format!("faults: item 2, `loss=1%`: {share}"));
        for wrong in ["loss=2", "loss=-0.1", "loss=NaN", "loss="] {
            assert_eq!(error(wrong), format!("faults: item 1, `{wrong}`: {share}"));
        }
        assert_eq!(error("lost=1"), format!("faults: item 1, `lost=1`: there is no key `lost`; keys are {KEYS}"));
        assert_eq!(error("loss=1,,"), format!("faults: item 2, ``: not key=value; keys are {KEYS}"));
        assert_eq!(error("loss=1,loss=0"), "faults: item 2, `loss=0`: `loss` is given twice");
        for wrong in ["delay=2", "delay=ms", "delay=61s", "delay=-1ms", "delay=inf s"] {
            assert!(error(wrong).ends_with("of up to 60s, such as 2ms"), "{wrong}");
        }
        assert!(error("direction=up").ends_with("use `tx`, `rx` or `both`"));
        assert!(error("reorder_by=0").ends_with("from 1 to 1000"));
        assert!(error("seed=-1").ends_with("use a whole number from 0 to 2^64 - 1"));
    }

    fn fates(spec: &str, count: usize) -> Vec<Fate> {
        let mut engine = FaultEngine::new(spec.parse().unwrap());
        (0..count).map(|_| engine.decide(Direction::Sent)).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_fates_and_another_seed_others() {
        let spec = "loss=0.1,dup=0.1,reorder=0.1,corrupt=0.1,delay=1ms,delay_share=0.5,seed=";
        assert_eq!(fates(&format!("{spec}7"), 1000), fates(&format!("{spec}7"), 1000));
        assert_ne!(fates(&format!("{spec}7"), 1000), fates(&format!("{spec}8"), 1000));
    }

    #[test]
    fn one_direction_does_not_disturb_the_other_nor_one_kind_another() {
        let mut engine = FaultEngine::new("loss=0.1,seed=3".parse().unwrap());
        let mixed = (0..1000).map(|_| {
            engine.decide(Direction::Received);
            engine.decide(Direction::Sent).is_lost
        });
        let alone: Vec<_> = fates("loss=0.1,seed=3", 1000).iter().map(|f| f.is_lost).collect();
        assert_eq!(mixed.collect::<Vec<_>>(), alone);
        let more = fates("loss=0.1,seed=3,dup=0.5,corrupt=0.5,reorder=0.5", 1000);
        assert_eq!(more.iter().map(|f| f.is_lost).collect::<Vec<_>>(), alone);
        let mut engine = FaultEngine::new("loss=1,direction=tx".parse().unwrap());
        assert!(engine.decide(Direction::Sent).is_lost && !engine.decide(Direction::Received).is_lost);
    }

    /// 100,000 frames: shares lie within five standard deviations.
    #[test]
    fn faults_are_as_frequent_as_asked() {
        let count = 100_000;
        let fates = fates("dup=0.02,reorder=0.3,corrupt=0.001,delay=1ms,delay_share=0.5,seed=11", count);
        let share = |is: fn(&Fate) -> bool| fates.iter().filter(|f| is(f)).count() as f64 / count as f64;
        for (measured, asked) in [
            (share(|f| f.is_duplicated), 0.02),
            (share(|f| f.overtaken_by == 3), 0.3),
            (share(|f| f.corruption.is_some()), 0.001),
            (share(|f| f.delay > Duration::ZERO), 0.5),
            (share(|f| f.is_lost), 0.0),
        ] {
            let deviation = (asked * (1.0 - asked) / count as f64).sqrt();
            assert!((measured - asked).abs() <= 5.0 * deviation, "{measured} instead of {asked}");
        }
    }

    #[test]
    fn one_to_three_bits_are_flipped() {
        let mut seen = [0; 4];
        for fate in fates("corrupt=1,seed=5", 1000) {
            let mut bytes = [0u8; 40];
            fate.corruption.unwrap().apply(&mut bytes);
            seen[bytes.iter().map(|b| b.count_ones()).sum::<u32>() as usize] += 1;
        }
        assert!(seen[0] == 0 && seen[1..].iter().all(|n| *n > 250), "{seen:?}");
        fates("corrupt=1", 1)[0].corruption.unwrap().apply(&mut []);
    }

    #[test]
    fn delayed_frames_come_in_the_order_of_their_times() {
        let mut queue = HoldQueue::new(10);
        let delayed = |ms| Fate { delay: Duration::from_millis(ms), ..Fate::default() };
        for (name, delay) in [('a', 3), ('b', 1), ('c', 1)] {
            queue.hold(ms(0), &delayed(delay), name).unwrap();
        }
        assert_eq!((queue.release(ms(0)), queue.poll_timeout()), (None, Some(ms(1))));
        assert_eq!([queue.release(ms(1)), queue.release(ms(1)), queue.release(ms(1))], [Some('b'), Some('c'), None]);
        assert_eq!((queue.release(ms(9)), queue.poll_timeout()), (Some('a'), None));
    }

    #[test]
    fn overtaken_frames_let_as_many_go_first_as_they_shall_or_go_on_after_a_while() {
        let mut queue = HoldQueue::new(10);
        let overtaken =
            |overtaken_by, delay| Fate { overtaken_by, delay: Duration::from_millis(delay), ..Fate::default() };
        queue.hold(ms(0), &overtaken(2, 0), 'a').unwrap();
        queue.overtake();
        assert_eq!(queue.release(ms(0)), None);
        queue.overtake();
        assert_eq!(queue.release(ms(0)), Some('a'));
        queue.hold(ms(5), &overtaken(2, 0), 'b').unwrap();
        assert_eq!((queue.release(ms(5)), queue.poll_timeout(), queue.release(ms(6))), (None, Some(ms(6)), Some('b')));
        // With a delay for all: the overtaken one lets two go first that come out of the delay, too.
        for (name, others) in [('c', 2), ('d', 0), ('e', 0), ('f', 0)] {
            queue.hold(ms(10), &overtaken(others, 4), name).unwrap();
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.release(ms(14))).collect();
        assert_eq!(order, ['d', 'e', 'c', 'f']);
    }

    #[test]
    fn a_full_queue_gives_the_frame_back() {
        let mut queue = HoldQueue::new(1);
        let fate = Fate { delay: Duration::from_millis(1), ..Fate::default() };
        assert_eq!(queue.hold(ms(0), &fate, 'a'), Ok(()));
        assert_eq!(queue.hold(ms(0), &fate, 'b'), Err('b'));
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn captures_remark_what_happened() {
        assert_eq!(Fate { is_lost: true, ..Fate::default() }.to_string(), "fault: lost");
        let fate = Fate {
            corruption: Some(Corruption { count: 1, draws: [0; 3] }),
            is_duplicated: true,
            delay: Duration::from_millis(2),
            overtaken_by: 3,
            is_lost: false,
        };
        assert_eq!(fate.to_string(), "fault: corrupted, duplicated, delayed 2ms, overtaken by 3");
        assert_eq!(Fate::default().to_string(), "");
    }
}
