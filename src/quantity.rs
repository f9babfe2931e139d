//! Quantities as people write them on command lines: times, shares and sizes. Rates are
//! [`Rate`](crate::congestion::Rate)'s.

use std::time::Duration;

/// Units of time, in seconds. The longer names come first: `ms` ends in `s`.
const TIMES: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Suffixes of sizes, in powers of 1024, as perftest's neighbours iperf3 and dd take them.
const SIZES: [(&str, u32); 3] = [("k", 1), ("m", 2), ("g", 3)];

/// A time with its unit: `2ms`, `1.5s`, `5m`. `None` for another text, and for less than nothing.
pub fn time(text: &str) -> Option<Duration> {
    let seconds = TIMES.iter().find_map(|(unit, scale)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * scale))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// A time with its unit, or in seconds: `2ms`, `90`.
pub fn time_or_seconds(text: &str) -> Option<Duration> {
    match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => time(text),
    }
}

/// A share from 0 to 1, as such or in percent: `0.01`, `1%`. `None` for every other text.
pub fn share(text: &str) -> Option<f64> {
    let share = match text.strip_suffix('%') {
        // A division: 1% is the number that 0.01 is.
        Some(percent) => percent.trim_end().parse::<f64>().ok()? / 100.0,
        None => text.parse().ok()?,
    };
    (0.0..=1.0).contains(&share).then_some(share)
}

/// A whole number of bytes: `65536`, `64k`, `64KiB`, `1M`, `1G`. Suffixes are powers of 1024. `None` for another text, and for more
/// than 64 bits hold.
pub fn bytes(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let number = lower.strip_suffix("ib").unwrap_or(&lower);
    let found = SIZES.iter().find_map(|(unit, power)| Some((number.strip_suffix(unit)?, *power)));
    let (number, power) = match found {
        Some(found) => found,
        None if number.len() < lower.len() => return None,
        None => (number, 0),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(1024u64.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let times = [("2ms", 2_000_000), ("500us", 500_000), ("7ns", 7), ("1.5s", 1_500_000_000)];
        for (text, ns) in times.into_iter().chain([("2m", 120_000_000_000), ("1h", 3_600_000_000_000)]) {
            assert_eq!(time(text), Some(Duration::from_nanos(ns)), "{text}");
            assert_eq!(time_or_seconds(text), time(text));
        }
        for text in ["", "s", "2", "-1s", "infs", "nans", "2 fortnights", "1e300h"] {
            assert_eq!(time(text), None, "{text}");
        }
        assert_eq!(time_or_seconds("90"), Some(Duration::from_secs(90)));
        for text in ["", "-1", "inf", "nan", "1e300", "ten"] {
            assert_eq!(time_or_seconds(text), None, "{text}");
        }
    }

    #[test]
    fn a_share_may_be_in_percent() {
        for (text, is) in [("0.01", 0.01), ("1%", 0.01), ("0.1%", 0.001), ("100%", 1.0), ("0", 0.0), ("5 %", 0.05)] {
            assert_eq!(share(text), Some(is), "{text}");
        }
        for text in ["", "%", "1.1", "101%", "-1%", "nan", "nan%", "1%%"] {
            assert_eq!(share(text), None, "{text}");
        }
    }

    #[test]
    fn suffixes_of_sizes_are_powers_of_1024() {
        let sizes = [("0", 0), ("65536", 65536), ("64k", 65536), ("64K", 65536), ("64KiB", 65536)];
        for (text, is) in sizes.into_iter().chain([("1M", 1 << 20), ("1MiB", 1 << 20), ("1G", 1 << 30)]) {
            assert_eq!(bytes(text), Some(is), "{text}");
        }
        for text in ["", "k", "-1", "+1", "1.5k", "64kB", "64ib", "1T", "18446744073709551616", "18446744073709551615k"]
        {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
