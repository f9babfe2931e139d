use std::fmt;
use std::time::Duration;

use crate::congestion::FlowStatus;
use crate::quantity;
use crate::time::Instant;

use super::Context;

/// Looks at a device again and again, and tells what it did since the look before.
#[derive(Debug, Default)]
pub struct Intervals {
    began: Option<Instant>,
    looked: Instant,
    counters: Vec<(&'static str, u64)>,
}

/// What a device did in an interval, and how its queue pairs stand at the end of it. As text it is one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// The time from the first look to the end of the interval.
    pub elapsed: Duration,
    /// The length of the interval.
    pub lasted: Duration,
    /// By how much counters have grown; those that have not are left out.
    pub counters: Vec<(&'static str, u64)>,
    /// The queue pairs that have sent and have a congestion controller.
    pub flows: Vec<FlowStatus>,
}

/// The counters of what was dropped on its way, by links and by the checks of each packet.
pub const DROP_COUNTERS: [&str; 6] =
    ["rx_ring_full", "rx_fill_ring_empty", "rx_dropped_by_kernel", "bad_icrc", "malformed", "tx_errors"];

/// What is told of an interval beside the rates, when it is not zero: a name, and the counters that add up to it.
pub const INTERVAL_REMARKS: [(&str, &[&str]); 4] = [
    ("retransmitted", &["retransmitted"]),
    ("RNR", &["rcvd_rnr_err", "send_rnr_err"]),
    ("marked", &["np_ecn_marked_roce_packets", "rp_cnp_handled"]),
    ("dropped", &DROP_COUNTERS),
];

/// A text that is no interval.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an interval: use 0.1 to 3600 seconds, as in 1, 500ms or 1m")]
pub struct IntervalError(String);

impl Intervals {
    /// The interval that a text names, in seconds or with its unit: 0.1 to 3600 seconds.
    ///
    /// # Errors
    /// [`IntervalError`] for every other text.
    pub fn parse(text: &str) -> Result<Duration, IntervalError> {
        let range = Duration::from_millis(100)..=Duration::from_secs(3600);
        quantity::time_or_seconds(text)
            .filter(|time| range.contains(time))
            .ok_or_else(|| IntervalError(text.to_owned()))
    }

    /// What the device did since the last look; `None` at the first.
    pub fn look(&mut self, context: &Context) -> Option<Interval> {
        let flows = context.flows().into_values().collect();
        self.take(context.now(), context.counters(), flows)
    }

    fn take(&mut self, now: Instant, counters: Vec<(&'static str, u64)>, flows: Vec<FlowStatus>) -> Option<Interval> {
        let lasted = now.saturating_since(std::mem::replace(&mut self.looked, now));
        let before = std::mem::replace(&mut self.counters, counters);
        let began = *self.began.get_or_insert(now);
        let was = |name: &str| before.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count);
        let grown = self.counters.iter().map(|(name, count)| (*name, count.wrapping_sub(was(name))));
        let counters = grown.filter(|(_, by)| *by > 0).collect();
        (now > began).then_some(Interval { elapsed: now - began, lasted, counters, flows })
    }
}

impl Interval {
    /// By how much these counters have grown together.
    fn grown(&self, names: &[&str]) -> u64 {
        self.counters.iter().filter(|(name, _)| names.contains(name)).map(|(_, by)| by).sum()
    }

    /// Bits of frames a second that were sent.
    pub fn sent_bps(&self) -> f64 {
        8.0 * self.grown(&["tx_bytes"]) as f64 / self.lasted.as_secs_f64()
    }

    /// Bits of frames a second that arrived.
    pub fn received_bps(&self) -> f64 {
        8.0 * self.grown(&["rx_bytes"]) as f64 / self.lasted.as_secs_f64()
    }

    /// The windows of all queue pairs, in bytes.
    pub fn window_bytes(&self) -> u64 {
        self.flows.iter().map(|flow| flow.window_bytes).sum()
    }

    /// What all queue pairs have in flight, in bytes.
    pub fn in_flight_bytes(&self) -> u64 {
        self.flows.iter().map(|flow| flow.in_flight_bytes).sum()
    }

    /// The longest of the queue pairs' smoothed round trips, and the longest without queues.
    pub fn round_trip(&self) -> Option<(Duration, Duration)> {
        let longest = |of: fn(&FlowStatus) -> Option<Duration>| self.flows.iter().filter_map(of).max();
        Some((longest(|flow| flow.round_trip)?, longest(|flow| flow.shortest)?))
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [sent, received] = [self.sent_bps(), self.received_bps()].map(|bps| bps / 1e6);
        write!(f, "{:.1} s: out {sent:.1} Mb/s, in {received:.1} Mb/s", self.elapsed.as_secs_f64())?;
        if let Some((round_trip, shortest)) = self.round_trip() {
            let [window, in_flight] = [self.window_bytes(), self.in_flight_bytes()].map(|bytes| bytes as f64 / 1e3);
            let [round_trip, shortest] = [round_trip, shortest].map(|time| time.as_secs_f64() * 1e3);
            write!(f, ", window {window:.0} kB, in flight {in_flight:.0} kB")?;
            write!(f, ", round trip {round_trip:.3} ms, {shortest:.3} ms without queues")?;
        }
        for (name, of) in INTERVAL_REMARKS {
            match self.grown(of) {
                0 => {}
                count => write!(f, ", {name} {count}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(1_000_000_000 + ms * 1_000_000)
    }

    #[test]
    fn intervals_are_seconds_or_have_units() {
        assert_eq!(Intervals::parse("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(Intervals::parse("1"), Ok(Duration::from_secs(1)));
        assert_eq!(Intervals::parse("1m"), Ok(Duration::from_secs(60)));
        for wrong in ["", "0", "-1", "99ms", "nan", "inf", "3601", "0.01"] {
            assert_eq!(Intervals::parse(wrong), Err(IntervalError(wrong.to_owned())));
        }
    }

    #[test]
    fn a_line_says_what_changed_and_how_the_flows_stand() {
        let flow = FlowStatus {
            rate: None,
            window_bytes: 300_000,
            in_flight_bytes: 250_000,
            round_trip: Some(Duration::from_micros(20_500)),
            shortest: Some(Duration::from_millis(20)),
            delivered_bytes: 0,
            lost_bytes: 0,
            gives_way: false,
        };
        let mut intervals = Intervals::default();
        assert_eq!(intervals.take(at(0), vec![("tx_bytes", 100), ("retransmitted", 5)], Vec::new()), None);
        let counters = vec![("tx_bytes", 125_100), ("rx_bytes", 500), ("retransmitted", 5), ("rx_ring_full", 2)];
        let second = intervals.take(at(500), counters.clone(), vec![flow; 2]).unwrap();
        assert_eq!(second.counters, [("tx_bytes", 125_000), ("rx_bytes", 500), ("rx_ring_full", 2)]);
        assert_eq!(
            second.to_string(),
            "0.5 s: out 2.0 Mb/s, in 0.0 Mb/s, window 600 kB, in flight 500 kB, round trip 20.500 ms, 20.000 ms without \
             queues, dropped 2"
        );
        let third = intervals.take(at(1500), counters, Vec::new()).unwrap();
        assert_eq!(third.to_string(), "1.5 s: out 0.0 Mb/s, in 0.0 Mb/s");
        assert_eq!(third.lasted, Duration::from_secs(1));
    }
}
