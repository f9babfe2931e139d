use std::fmt;
use std::str::FromStr;

use crate::pcap::Direction;
use crate::quantity;
use crate::time::Duration;

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
pub(super) const KEYS: &str = "loss, dup, reorder, reorder_by, delay, delay_share, corrupt, seed, direction";

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
    quantity::share(value).ok_or_else(|| "use a share from 0 to 1, as in 0.01 or 1%: one frame in a hundred".to_owned())
}

fn delay(value: &str) -> Result<Duration, String> {
    let delay = quantity::time(value).filter(|delay| *delay <= DELAY_MAX);
    delay.ok_or_else(|| "use a time with its unit (ns, us, ms or s) of up to 60s, such as 2ms".to_owned())
}
