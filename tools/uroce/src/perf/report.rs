//! What was measured, and how it is printed: perftest's columns, or JSON.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use uroce::verbs::Context;

use super::distribution::Distribution;
use super::exchange::Agreed;
use super::extent::Extent;
use super::keys::Keys;
use super::settings::{Listing, Settings};
use super::side::Side;
use super::test::Verb;
use crate::{Failure, interrupt};

/// A line across, as perftest draws it.
const LINE: &str = "---------------------------------------------------------------------------------------";

/// Bytes in the MB of perftest's MB/s.
const MEBIBYTE: f64 = (1 << 20) as f64;

/// Bytes in the Gb of `--report_gbits`.
const GIGABIT: f64 = 1.25e8;

/// The largest round trips that perftest leaves out (LAT_MEASURE_TAIL): a machine that is busy otherwise has such.
const TAIL: usize = 2;

/// What a bandwidth test found, as it is exchanged: rates in MB/s (2^20) or, with `--report_gbits`, in Gb/s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bandwidth {
    pub size: u64,
    /// On all queue pairs.
    pub iterations: u64,
    /// 0 when it was not looked for.
    pub peak: f64,
    pub average: f64,
    /// Millions of messages a second.
    pub message_rate: f64,
}

impl Bandwidth {
    /// `iterations` messages in `elapsed`; `peak` is the time of a message at its best.
    pub fn new(size: u64, iterations: u64, elapsed: Duration, peak: Option<Duration>, gigabits: bool) -> Bandwidth {
        let unit = if gigabits { GIGABIT } else { MEBIBYTE };
        let per_second = |count: u64, time: Duration| match time.as_secs_f64() {
            seconds if seconds > 0.0 => count as f64 / seconds,
            _ => 0.0,
        };
        let messages = per_second(iterations, elapsed);
        Bandwidth {
            size,
            iterations,
            peak: peak.map_or(0.0, |time| per_second(size, time) / unit),
            average: messages * size as f64 / unit,
            message_rate: messages / 1e6,
        }
    }

    /// Both directions: ours, and what the peer found of its own.
    pub fn with(self, peer: Bandwidth) -> Bandwidth {
        Bandwidth {
            peak: self.peak + peer.peak,
            average: self.average + peer.average,
            message_rate: self.message_rate + peer.message_rate,
            ..self
        }
    }

    /// The columns' names.
    pub fn heading(gigabits: bool) -> String {
        let unit = if gigabits { "Gb" } else { "MB" };
        let (peak, average) = (format!("BW peak[{unit}/sec]"), format!("BW average[{unit}/sec]"));
        format!(" {:<10} {:<14} {peak:<18} {average:<21} MsgRate[Mpps]", "#bytes", "#iterations")
    }

    /// The columns. Slow rates in Gb/s have more digits.
    pub fn row(&self, gigabits: bool) -> String {
        let Bandwidth { size, iterations, peak, average, message_rate } = self;
        let digits = if gigabits && *average < 0.1 { 6 } else { 2 };
        format!(" {size:<10} {iterations:<14} {peak:<18.digits$} {average:<21.digits$} {message_rate:.6}")
    }

    fn json(&self, gigabits: bool) -> Value {
        let Bandwidth { size, iterations, peak, average, message_rate } = self;
        let bytes = if gigabits { GIGABIT } else { MEBIBYTE };
        json!({
            "size": size, "iterations": iterations, "unit": if gigabits { "Gb/s" } else { "MB/s" },
            "bw_peak": peak, "bw_average": average, "message_rate_mpps": message_rate,
            "bits_per_second": average * bytes * 8.0,
        })
    }
}

/// What a latency test found, in microseconds: of one way for SEND and WRITE, which the peer's program answers; there and
/// back for READ and atomics.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    pub size: u64,
    pub iterations: u64,
    pub average: f64,
    /// None with `-D`, which only counts.
    pub spread: Option<Spread>,
    /// Those of the messages, in their order.
    pub samples: Vec<f64>,
}

/// How single times differ, without the two longest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub min: f64,
    /// The shorter one of the two longest.
    pub max: f64,
    /// The median.
    pub typical: f64,
    pub deviation: f64,
    pub percentile_99: f64,
    pub percentile_999: f64,
}

impl Latency {
    /// From the times between one message and the next.
    pub fn of(verb: Verb, size: u64, iterations: u64, round_trips: Vec<Duration>) -> Latency {
        let ways = ways(verb);
        let samples: Vec<f64> = round_trips.iter().map(|time| time.as_secs_f64() * 1e6 / ways).collect();
        let mut times = samples.clone();
        times.sort_unstable_by(f64::total_cmp);
        let (count, last) = (times.len().saturating_sub(TAIL).max(1), times.len().saturating_sub(1));
        let at = |index: usize| times.get(index.min(last)).copied().unwrap_or_default();
        let kept = &times[..count.min(times.len())];
        let average = kept.iter().sum::<f64>() / count as f64;
        let variance = kept.iter().map(|time| (time - average).powi(2)).sum::<f64>() / count as f64;
        let share = |share: f64| at((count as f64 * share).ceil() as usize);
        let spread = Spread {
            min: at(0),
            max: at(count),
            typical: (at((count - 1) / 2) + at(count / 2)) / 2.0,
            deviation: variance.sqrt(),
            percentile_99: share(0.99),
            percentile_999: share(0.999),
        };
        Latency { size, iterations, average, spread: Some(spread), samples }
    }

    /// From a number of messages in a given time.
    pub fn by_time(verb: Verb, size: u64, iterations: u64, elapsed: Duration) -> Latency {
        let average = elapsed.as_secs_f64() * 1e6 / ways(verb) / (iterations.max(1)) as f64;
        Latency { size, iterations, average, spread: None, samples: Vec::new() }
    }

    /// Single latencies. Sorted ones are without the two longest, as perftest has it.
    fn listed(&self, listing: Listing) -> Vec<f64> {
        let mut samples = self.samples.clone();
        if listing == Listing::Sorted {
            samples.sort_unstable_by(f64::total_cmp);
            samples.truncate(samples.len().saturating_sub(TAIL));
        }
        samples
    }

    /// The columns' names.
    pub fn heading(by_time: bool) -> String {
        if by_time {
            return format!(" {:<10} {:<14} {:<15} tps average", "#bytes", "#iterations", "t_avg[usec]");
        }
        format!(
            " {:<8} {:<12} {:<13} {:<13} {:<16} {:<13} {:<14} {:<20} 99.9% percentile[usec]",
            "#bytes",
            "#iterations",
            "t_min[usec]",
            "t_max[usec]",
            "t_typical[usec]",
            "t_avg[usec]",
            "t_stdev[usec]",
            "99% percentile[usec]"
        )
    }

    /// The columns.
    pub fn row(&self, verb: Verb) -> String {
        let Latency { size, iterations, average, spread, .. } = self;
        let Some(Spread { min, max, typical, deviation, percentile_99, percentile_999 }) = spread else {
            let rate = if *average > 0.0 { 1e6 / ways(verb) / average } else { 0.0 };
            return format!(" {size:<10} {iterations:<14} {average:<15.2} {rate:.2}");
        };
        format!(
            " {size:<8} {iterations:<12} {min:<13.2} {max:<13.2} {typical:<16.2} {average:<13.2} {deviation:<14.2} \
             {percentile_99:<20.2} {percentile_999:.2}"
        )
    }

    fn json(&self) -> Value {
        let Latency { size, iterations, average, spread, .. } = self;
        let mut value = json!({"size": size, "iterations": iterations, "avg_usec": average});
        if let (Some(spread), Some(object)) = (spread, value.as_object_mut()) {
            object.extend([
                ("min_usec".to_owned(), spread.min.into()),
                ("max_usec".to_owned(), spread.max.into()),
                ("typical_usec".to_owned(), spread.typical.into()),
                ("stdev_usec".to_owned(), spread.deviation.into()),
                ("p99_usec".to_owned(), spread.percentile_99.into()),
                ("p999_usec".to_owned(), spread.percentile_999.into()),
            ]);
        }
        value
    }
}

/// How many latencies a round trip has.
fn ways(verb: Verb) -> f64 {
    if verb.is_answered_by_the_program() { 2.0 } else { 1.0 }
}

/// Where results go.
pub struct Printer<'a> {
    settings: &'a Settings,
    context: &'a Context,
    /// Results as JSON, besides.
    file: Option<(PathBuf, File)>,
    /// What is said of a result below a bound.
    below: Option<String>,
}

impl<'a> Printer<'a> {
    /// Says what is tested, as perftest does.
    ///
    /// # Errors
    /// When the file of `--out_json` cannot be made.
    pub fn begin(side: &Side<'a>, agreed: Agreed) -> Result<Printer<'a>, Failure> {
        let (settings, context) = (side.settings, side.context());
        let file = match &settings.out_json {
            Some(path) => Some((path.clone(), File::create(path).map_err(|e| format!("{}: {e}", path.display()))?)),
            None => None,
        };
        let printer = Printer { settings, context, file, below: None };
        if settings.json {
            return Ok(printer);
        }
        let pairs = |name: &str, value: &dyn std::fmt::Display| println!(" {name:<16}: {value}");
        let ways = if settings.bidirectional { ", both directions" } else { "" };
        println!("{LINE}");
        println!("                    {}{ways}", settings.test.name());
        pairs("Device", &context.device().name);
        pairs("Link", &context.link_mode());
        pairs("Number of qps", &settings.queue_pairs);
        pairs("Connection type", &settings.service);
        pairs("TX depth", &settings.send_depth);
        if settings.receives() {
            pairs("RX depth", &settings.receive_depth);
            pairs("Using SRQ", &if settings.use_srq { "ON" } else { "OFF" });
        }
        if !settings.test.is_latency() {
            pairs("CQ Moderation", &settings.moderation);
        }
        pairs("Mtu", &format_args!("{}[B]", agreed.mtu.bytes()));
        if matches!(settings.verb(), Verb::Read | Verb::Atomic) {
            pairs("Outstand reads", &settings.outstanding);
        }
        println!("{LINE}");
        Ok(printer)
    }

    /// The queue pairs of one end.
    pub fn addresses(&self, whose: &str, keys: &[Keys]) {
        if self.settings.json {
            return;
        }
        for keys in keys {
            println!(
                " {whose} address: LID 0000 QPN {:#06x} PSN {:#x} RKey {:#x} VAddr {:#018x}\n GID: {}",
                keys.qpn.value(),
                keys.psn.value(),
                keys.key.0,
                keys.address,
                keys.gid
            );
        }
    }

    /// The columns' names.
    pub fn heading(&self) {
        let settings = self.settings;
        if settings.json {
            return;
        }
        println!("{LINE}");
        match settings.test.is_latency() {
            true => println!("{}", Latency::heading(matches!(settings.extent, Extent::Duration(_)))),
            false => println!("{}", Bandwidth::heading(settings.gigabits)),
        }
    }

    /// A result: of this end, and of the peer's, where that is another.
    pub fn bandwidth(&mut self, own: &Bandwidth, theirs: Option<&Bandwidth>) -> Result<(), Failure> {
        let gigabits = self.settings.gigabits;
        let found = theirs.map_or(*own, |theirs| own.with(*theirs));
        self.look_below(&found);
        if !self.settings.json {
            println!("{}", found.row(gigabits));
        }
        let mut value = found.json(gigabits);
        if let Some(theirs) = theirs.filter(|_| self.settings.report_both) {
            let ends = [("local", " Local results: ", own), ("remote", " Remote results: ", theirs)];
            for (name, title, of) in ends {
                value[name] = of.json(gigabits);
                if !self.settings.json {
                    println!("{LINE}\n{title}\n{LINE}\n{}\n{}", Bandwidth::heading(gigabits), of.row(gigabits));
                }
            }
        }
        self.json(value)
    }

    /// A result.
    pub fn latency(&mut self, found: &Latency) -> Result<(), Failure> {
        let settings = self.settings;
        let mut value = found.json();
        if settings.listing != Listing::Not {
            let samples = found.listed(settings.listing);
            if !settings.json {
                println!("#, usec");
                samples.iter().enumerate().for_each(|(at, sample)| println!("{}, {sample:.3}", at + 1));
                println!("{LINE}\n{}", Latency::heading(false));
            }
            value["samples_usec"] = samples.into();
        }
        if !settings.json {
            println!("{}", found.row(settings.verb()));
        }
        if let Some(distribution) = Distribution::of(&found.samples) {
            if settings.histogram {
                value["histogram"] = distribution.json();
                if !settings.json {
                    print!("{LINE}\n{distribution}");
                }
            }
            if let Some(file) = &settings.svg {
                let title = format!("Latency of {}, {} bytes", settings.test.name(), found.size);
                distribution.draw(file, &title).map_err(|error| format!("{}: {error}", file.display()))?;
            }
        }
        self.json(value)
    }

    /// The end.
    pub fn end(&self) {
        if !self.settings.json {
            println!("{LINE}");
        }
    }

    /// What there is to say of results below a bound (`-w`, `-y`).
    pub fn below(self) -> Option<String> {
        self.below
    }

    fn look_below(&mut self, found: &Bandwidth) {
        let unit = if self.settings.gigabits { "Gb/s" } else { "MB/s" };
        let [bandwidth, message_rate] = self.settings.least;
        let bounds = [("-w", bandwidth, found.average, unit), ("-y", message_rate, found.message_rate, "Mpps")];
        for (flag, least, is, unit) in bounds {
            if let Some(least) = least.filter(|least| is < *least) {
                self.below.get_or_insert(format!("the average is {is:.3} {unit}, less than {flag} {least}"));
            }
        }
    }

    /// The result as an object: on stdout with `--json`, in the file of `--out_json`, or nowhere.
    fn json(&mut self, mut value: Value) -> Result<(), Failure> {
        let settings = self.settings;
        if !settings.json && self.file.is_none() {
            return Ok(());
        }
        if let Some(object) = value.as_object_mut() {
            object.insert("schema".to_owned(), "uroce.perf/1".into());
            object.insert("test".to_owned(), settings.test.name().into());
            object.insert("connection".to_owned(), settings.service.to_string().into());
            object.insert("queue_pairs".to_owned(), settings.queue_pairs.into());
            object.insert("bidirectional".to_owned(), settings.bidirectional.into());
            object.insert("link_mode".to_owned(), self.context.link_mode().into());
            object.insert("partial".to_owned(), interrupt::is_pending().into());
            let counters = self.context.counters();
            let counters = counters.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
            object.insert("counters".to_owned(), Value::Object(counters));
        }
        if settings.json {
            println!("{value}");
        }
        match &mut self.file {
            Some((path, file)) => writeln!(file, "{value}").map_err(|e| format!("{}: {e}", path.display()).into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_in_perftests_units() {
        let found = Bandwidth::new(1 << 20, 10, Duration::from_secs(2), Some(Duration::from_millis(100)), false);
        assert_eq!((found.average, found.peak, found.message_rate), (5.0, 10.0, 5e-6));
        let both = found.with(Bandwidth { peak: 1.0, average: 2.0, message_rate: 3.0, ..found });
        assert_eq!((both.average, both.peak, both.message_rate), (7.0, 11.0, 3.000_005));
        let found = Bandwidth::new(125_000, 1000, Duration::from_secs(1), None, true);
        assert_eq!((found.average, found.peak), (1.0, 0.0));
    }

    #[test]
    fn nothing_in_no_time_is_no_rate() {
        let found = Bandwidth::new(8, 0, Duration::ZERO, None, false);
        assert_eq!((found.average, found.message_rate), (0.0, 0.0));
        assert_eq!(Latency::by_time(Verb::Read, 8, 0, Duration::from_secs(1)).iterations, 0);
    }

    #[test]
    fn latencies_are_half_a_round_trip_and_leave_the_two_longest_out() {
        let round_trips: Vec<Duration> = [20, 900, 40, 60, 80, 500].map(Duration::from_micros).to_vec();
        let found = Latency::of(Verb::Send, 2, 7, round_trips.clone());
        let spread = found.spread.unwrap();
        assert_eq!((found.average, spread.min, spread.max, spread.typical), (25.0, 10.0, 250.0, 25.0));
        assert!((spread.deviation - 125f64.sqrt()).abs() < 1e-9, "{spread:?}");
        assert_eq!((spread.percentile_99, spread.percentile_999), (250.0, 250.0));
        assert_eq!(Latency::of(Verb::Read, 2, 7, round_trips).spread.unwrap().min, 20.0);
    }

    #[test]
    fn few_round_trips_are_no_trouble() {
        for count in 0..4 {
            let found = Latency::of(Verb::Write, 2, count, vec![Duration::from_micros(2); count as usize]);
            assert!(found.average.is_finite(), "{found:?}");
        }
    }
}
