use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What one path does to the frames of one direction. The default does nothing to them.
///
/// As text, what is not the default, in any order: `delay=20ms,jitter=1ms,overtaking,loss=0.01,burst=8,rate=500M,queue=2M,ecn=200k`.
/// Times have a unit (`ns`, `us`, `ms`, `s`); rates and sizes may end in `k`, `M` or `G` (thousands).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions {
    /// How long each frame takes at the least, beside the time that [`rate_bps`](Conditions::rate_bps) costs.
    pub delay: Duration,
    /// Up to how much longer it may take, evenly distributed.
    pub jitter: Duration,
    /// Whether jitter lets frames overtake each other. Without it a frame that was lucky waits for the one before it, as
    /// behind a queue; frames of other paths it overtakes anyway.
    pub overtaking: bool,
    /// Which frames are lost, behind the queue: they cost their share of the rate.
    pub loss: Loss,
    /// Bits a second of Ethernet frames, from the destination address to the payload's end: without preamble, check
    /// sequence and gap. `None` is as much as comes.
    pub rate_bps: Option<u64>,
    /// How many bytes of frames may wait for the rate, that being sent included; what comes on top is dropped. `None`
    /// is [`Conditions::DEFAULT_QUEUE`]. Nothing waits without a rate.
    pub queue_bytes: Option<u64>,
    /// A frame that finds more bytes than this waiting is marked «congestion experienced», when it says that its ends
    /// know about ECN. `None` marks none.
    pub ecn_bytes: Option<u64>,
}

/// Which frames a path loses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// None.
    #[default]
    Nothing,
    /// Each with this probability.
    Uniform(f64),
    /// All while the path is bad, none while it is good (a Gilbert–Elliott channel of two states).
    Bursts {
        /// The share of frames lost in the long run, below 1.
        share: f64,
        /// How many frames a bad time lasts on average: at least 1, and at least share / (1 − share), since a good time
        /// lasts for one frame at the least.
        mean_frames: f64,
    },
    /// All: the path is dark.
    Everything,
}

/// Why a text says no conditions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{item}`, item {position} of the path: {reason}")]
pub struct ConditionsError {
    /// Which item, from 1 on.
    pub position: usize,
    /// The item.
    pub item: String,
    /// What is wrong, and what is wanted.
    pub reason: String,
}

const KEYS: &str = "delay, jitter, overtaking, loss, burst, rate, queue and ecn";

/// The longest delay and jitter: no path on earth is longer, and all frames on their way must be held.
const DELAY_MAX: Duration = Duration::from_secs(10);

impl Conditions {
    /// A queue that nobody chose: what the rate sends in a round trip (twice the delay), and at least 256 KiB, which is
    /// 64 frames of path MTU 4096. One bandwidth-delay product lets a single loss-based connection fill the path.
    pub const DEFAULT_QUEUE: &str = "a round trip at the path's rate, at least 256 KiB";

    const DEFAULT_QUEUE_BYTES_MIN: u64 = 256 << 10;

    /// How many bytes may wait; see [`Conditions::DEFAULT_QUEUE`].
    pub fn queue_bytes(&self) -> u64 {
        let round_trip_bytes = || {
            let bits = u128::from(self.rate_bps.unwrap_or(0)) * 2 * self.delay.as_nanos() / 1_000_000_000;
            u64::try_from(bits / 8).unwrap_or(u64::MAX)
        };
        self.queue_bytes.unwrap_or_else(|| round_trip_bytes().max(Conditions::DEFAULT_QUEUE_BYTES_MIN))
    }
}

impl Loss {
    /// The share of frames lost in the long run.
    pub fn share(&self) -> f64 {
        match *self {
            Loss::Nothing => 0.0,
            Loss::Uniform(share) | Loss::Bursts { share, .. } => share,
            Loss::Everything => 1.0,
        }
    }

    /// Whether there can be such a loss.
    pub(crate) fn is_possible(&self) -> bool {
        match *self {
            Loss::Nothing | Loss::Everything => true,
            Loss::Uniform(share) => (0.0..=1.0).contains(&share),
            Loss::Bursts { share, mean_frames } => {
                (0.0..1.0).contains(&share) && mean_frames >= 1.0 && share / (1.0 - share) <= mean_frames
            }
        }
    }

    /// The loss of `share` in bursts of `mean_frames`.
    pub(crate) fn of(share: f64, mean_frames: Option<f64>) -> Loss {
        match mean_frames {
            _ if share == 0.0 => Loss::Nothing,
            _ if share == 1.0 => Loss::Everything,
            None => Loss::Uniform(share),
            Some(mean_frames) => Loss::Bursts { share, mean_frames },
        }
    }
}

impl FromStr for Conditions {
    type Err = ConditionsError;

    fn from_str(text: &str) -> Result<Conditions, ConditionsError> {
        let mut conditions = Conditions::default();
        let (mut share, mut burst) = (0.0, None);
        let mut seen: Vec<&str> = Vec::new();
        let items = text.split(',').map(str::trim).enumerate().filter(|_| !text.trim().is_empty());
        for (index, item) in items {
            let error = |reason: String| ConditionsError { position: index + 1, item: item.to_owned(), reason };
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            if seen.contains(&key) {
                return Err(error(format!("`{key}` is given twice")));
            }
            seen.push(key);
            match key {
                "delay" => conditions.delay = time(value).map_err(error)?,
                "jitter" => conditions.jitter = time(value).map_err(error)?,
                "overtaking" if item == key => conditions.overtaking = true,
                "overtaking" => return Err(error("it takes no value".into())),
                "loss" => share = self::share(value).map_err(error)?,
                "burst" => burst = Some(mean_frames(value).map_err(error)?),
                "rate" => conditions.rate_bps = Some(number(value, "bits a second").map_err(error)?),
                "queue" => conditions.queue_bytes = Some(number(value, "bytes").map_err(error)?),
                "ecn" => conditions.ecn_bytes = Some(number(value, "bytes").map_err(error)?),
                _ => return Err(error(format!("there is no such key; keys are {KEYS}"))),
            }
        }
        conditions.loss = Loss::of(share, burst);
        if !conditions.loss.is_possible() {
            let position = seen.iter().position(|key| *key == "burst").map_or(0, |index| index + 1);
            let reason = format!("a loss of {share} needs bursts of at least {:.1} frames", share / (1.0 - share));
            return Err(ConditionsError { position, item: "burst".into(), reason });
        }
        Ok(conditions)
    }
}

fn time(value: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let seconds = UNITS.iter().find_map(|(unit, scale)| Some(value.strip_suffix(unit)?.parse::<f64>().ok()? * scale));
    let seconds = seconds.filter(|seconds| (0.0..=DELAY_MAX.as_secs_f64()).contains(seconds));
    let reason = || format!("use a time with its unit (ns, us, ms or s) of up to {DELAY_MAX:?}, such as 20ms");
    seconds.map(Duration::from_secs_f64).ok_or_else(reason)
}

fn share(value: &str) -> Result<f64, String> {
    let (number, whole) = value.strip_suffix('%').map_or((value, 1.0), |percent| (percent, 100.0));
    let share = number.parse::<f64>().ok().map(|share| share / whole).filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "use a share from 0 to 1, as in 0.01 or 1%: one frame in a hundred".to_owned())
}

fn mean_frames(value: &str) -> Result<f64, String> {
    let mean = value.parse().ok().filter(|mean| (1.0..=1e6).contains(mean));
    mean.ok_or_else(|| "use the mean length of a burst in frames, from 1 to 1000000".to_owned())
}

fn number(value: &str, unit: &str) -> Result<u64, String> {
    let (digits, scale) = match value.char_indices().last() {
        Some((at, 'k')) => (&value[..at], 1_000),
        Some((at, 'M')) => (&value[..at], 1_000_000),
        Some((at, 'G')) => (&value[..at], 1_000_000_000),
        _ => (value, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).filter(|number| *number > 0);
    number.ok_or_else(|| format!("use a whole number of {unit} above 0, such as 500M"))
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = vec![format!("delay={:?}", self.delay)];
        if !self.jitter.is_zero() {
            items.push(format!("jitter={:?}", self.jitter));
        }
        if self.overtaking {
            items.push("overtaking".into());
        }
        match self.loss {
            Loss::Nothing => {}
            Loss::Bursts { share, mean_frames } => items.push(format!("loss={share},burst={mean_frames}")),
            loss => items.push(format!("loss={}", loss.share())),
        }
        items.extend(self.rate_bps.map(|rate| format!("rate={},queue={}", short(rate), short(self.queue_bytes()))));
        items.extend(self.ecn_bytes.map(|bytes| format!("ecn={}", short(bytes))));
        f.write_str(&items.join(","))
    }
}

/// The number with the largest unit that leaves it whole.
fn short(number: u64) -> String {
    let units = [("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)];
    let unit = units.iter().find(|(_, scale)| number > 0 && number.is_multiple_of(*scale));
    unit.map_or_else(|| number.to_string(), |(unit, scale)| format!("{}{unit}", number / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_says_what_it_should() {
        let text = "delay=20ms,jitter=1.5ms,overtaking,loss=0.01,burst=8,rate=500M,queue=2M,ecn=200k";
        let conditions: Conditions = text.parse().unwrap();
        let expected = Conditions {
            delay: Duration::from_millis(20),
            jitter: Duration::from_micros(1500),
            overtaking: true,
            loss: Loss::Bursts { share: 0.01, mean_frames: 8.0 },
            rate_bps: Some(500_000_000),
            queue_bytes: Some(2_000_000),
            ecn_bytes: Some(200_000),
        };
        assert_eq!(conditions, expected);
        assert_eq!(conditions.to_string(), text);
        assert_eq!("".parse(), Ok(Conditions::default()));
        assert_eq!("loss=0.25".parse::<Conditions>().unwrap().loss, Loss::Uniform(0.25));
        assert_eq!("loss=1,burst=8".parse::<Conditions>().unwrap().loss, Loss::Everything);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, position, reason) in [
            ("delay=20", 1, "unit"),
            ("delay=20ms,dalay=1ms", 2, "no such key"),
            ("loss=0.1,loss=0.2", 2, "twice"),
            ("loss=1.5", 1, "share"),
            ("burst=0", 1, "mean length"),
            ("loss=0.9,burst=8", 2, "at least 9.0 frames"),
            ("rate=0", 1, "above 0"),
            ("rate=99999999999G", 1, "whole number"),
            ("overtaking=1", 1, "no value"),
            ("delay=11s", 1, "10s"),
            ("delay=-1ms", 1, "unit"),
        ] {
            let error = text.parse::<Conditions>().unwrap_err();
            assert_eq!(error.position, position, "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn the_queue_is_a_round_trip_unless_chosen() {
        let queue = |text: &str| text.parse::<Conditions>().unwrap().queue_bytes();
        assert_eq!(queue("rate=500M,delay=20ms"), 2_500_000);
        assert_eq!(queue("rate=500M,delay=20ms,queue=7"), 7);
        assert_eq!(queue("rate=1M,delay=20ms"), 256 << 10);
        assert_eq!(queue("delay=20ms"), 256 << 10);
    }
}
