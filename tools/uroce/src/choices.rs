//! What programs with queue pairs of their own let their users choose, and the checks against the device.

use std::time::Duration;

use uroce::quantity;
use uroce::verbs::{Context, PathMtu, QKey};

use crate::Failure;

/// The queue key of ibv_ud_pingpong and perftest.
pub const Q_KEY: QKey = QKey(0x1111_1111);

/// A path MTU, from a command line.
pub fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let mtu = quantity::bytes(text).and_then(|bytes| PathMtu::from_bytes(usize::try_from(bytes).ok()?));
    mtu.ok_or_else(|| format!("{text:?} is not a path MTU: use 256, 512, 1024, 2048 or 4096"))
}

/// The size of a message that has bytes.
pub fn parse_size(text: &str) -> Result<u32, String> {
    size_from(text, 1)
}

/// The size of a message that may be empty.
pub fn parse_size_or_nothing(text: &str) -> Result<u32, String> {
    size_from(text, 0)
}

/// Bytes of the largest message: 1 GiB.
const LARGEST_MESSAGE: u32 = 1 << 30;

fn size_from(text: &str, least: u32) -> Result<u32, String> {
    let bytes = quantity::bytes(text).and_then(|bytes| u32::try_from(bytes).ok());
    bytes
        .filter(|bytes| (least..=LARGEST_MESSAGE).contains(bytes))
        .ok_or_else(|| format!("use {least} to 1G bytes, as in 65536, 64k or 1M (powers of 1024)"))
}

/// The time of a test.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    time_between(text, Duration::from_secs(1), Duration::from_secs(1_000_000))
        .ok_or_else(|| "use 1s to 1000000s, as in 10 (seconds), 90s or 5m".to_owned())
}

/// What of the time of a test does not count.
pub fn parse_margin(text: &str) -> Result<Duration, String> {
    time_between(text, Duration::ZERO, Duration::from_secs(1_000_000))
        .ok_or_else(|| "use a time of less than half of -D, as in 2 (seconds) or 500ms".to_owned())
}

/// How long nothing may happen.
pub fn parse_patience(text: &str) -> Result<Duration, String> {
    time_between(text, Duration::from_millis(100), Duration::from_secs(1_000_000))
        .ok_or_else(|| "use 100ms to 1000000s, as in 60 (seconds), 90s or 2m".to_owned())
}

fn time_between(text: &str, least: Duration, most: Duration) -> Option<Duration> {
    quantity::time_or_seconds(text).filter(|time| (least..=most).contains(time))
}

/// A bound for a result, in the result's unit.
pub fn parse_limit(text: &str) -> Result<f64, String> {
    let limit = text.parse().ok().filter(|limit: &f64| limit.is_finite() && *limit >= 0.0);
    limit.ok_or_else(|| "use a number in the unit of the report, as in 100 or 9.5".to_owned())
}

/// Refuses a path MTU that the device cannot carry.
pub fn check_mtu(context: &Context, wanted: PathMtu) -> Result<(), Failure> {
    let (device, active) = (&context.device().name, context.active_mtu());
    if wanted <= active {
        return Ok(());
    }
    let (active, wanted) = (active.bytes(), wanted.bytes());
    Err(format!(
        "{device} has an active MTU of {active}, less than -m {wanted}: use -m {active}, or raise its MTU with \
         `ip link set {device} mtu {}`",
        wanted + 80
    )
    .into())
}

/// The index of the GID to use: the one given with `flag`, else the device's default.
pub fn choose_gid(context: &Context, flag: &str, given: Option<usize>) -> Result<usize, Failure> {
    let gids = context.gids();
    match given {
        Some(index) if index < gids.len() => Ok(index),
        Some(index) => {
            let (device, count) = (&context.device().name, gids.len());
            Err(format!("{flag} {index}: {device} has {count} GIDs, see `uroce devices`").into())
        }
        None => Ok(context.device().default_gid_index()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_refused_with_the_range() {
        assert_eq!((parse_size("64k"), parse_size("1G")), (Ok(65536), Ok(1 << 30)));
        assert_eq!((parse_size_or_nothing("0"), parse_mtu("1k")), (Ok(0), Ok(PathMtu::Mtu1024)));
        for text in ["0", "2G", "64 k", "many"] {
            assert!(parse_size(text).unwrap_err().contains("1 to 1G"), "{text}");
        }
        assert_eq!(parse_duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("5m"), parse_duration("300"));
        for text in ["0", "500ms", "2000000", "long"] {
            assert!(parse_duration(text).unwrap_err().contains("1s to 1000000s"), "{text}");
        }
        assert!(parse_patience("0").is_err() && parse_margin("0").is_ok());
        assert!(parse_mtu("1500").unwrap_err().contains("256, 512"));
        assert!(parse_limit("nan").is_err() && parse_limit("-1").is_err() && parse_limit("9.5") == Ok(9.5));
    }
}
