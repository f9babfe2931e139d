use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::compare::Compared;
use crate::forwarder::WanCounts;
use crate::measure::{Figures, PathFigures, TcpFigures};

/// What was found out, for people and for programs.
#[derive(Clone, Debug, Default)]
pub struct Report {
    paths: Vec<PathFigures>,
    tcp: Vec<TcpFigures>,
    compared: Vec<Compared>,
    /// What was to be reached by those, in bits a second of frames, if that is limited.
    capacity_bps: Option<u64>,
    counts: Option<WanCounts>,
}

impl Report {
    /// What was measured.
    pub fn of_figures(figures: Figures) -> Report {
        Report { paths: figures.paths, tcp: figures.tcp, counts: Some(figures.counts), ..Report::default() }
    }

    /// What programs reached, and what was counted in the middle meanwhile. `capacity_bps` is what the network carries, if
    /// that is limited.
    pub fn of_compared(compared: Vec<Compared>, capacity_bps: Option<u64>, counts: WanCounts) -> Report {
        Report { compared, capacity_bps, counts: Some(counts), ..Report::default() }
    }

    /// Only what was counted in the middle.
    pub fn of_counts(counts: WanCounts) -> Report {
        Report { counts: Some(counts), ..Report::default() }
    }

    /// One object a line: `path`, by path and direction; `tcp`, by rail and congestion control; `compared`, by program and
    /// recovery; `frames`, of all paths together.
    pub fn to_json(&self) -> Vec<Value> {
        let paths = self.paths.iter().map(path_json);
        let tcp = self.tcp.iter().map(|tcp| {
            json!({
                "name": "tcp", "rail": tcp.rail, "congestion": tcp.control, "goodput_bps": tcp.goodput_bps.round(),
                "processor_share": rounded(tcp.usage.share()),
            })
        });
        let compared = self.compared.iter().map(|line| compared_json(line, self.capacity_bps));
        paths.chain(tcp).chain(compared).chain(self.counts.as_ref().map(counts_json)).collect()
    }

    /// [`to_json`](Report::to_json) as text.
    pub fn to_json_lines(&self) -> String {
        self.to_json().iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
    }

    /// Tables.
    pub fn to_text(&self) -> String {
        let mut parts = Vec::new();
        if !self.paths.is_empty() {
            let mut table = new_table(&[
                "rail",
                "way",
                "path",
                "wanted",
                "delay",
                "over: least",
                "median",
                "99 %",
                "loss",
                "burst",
                "rate",
                "marked",
                "processor",
            ]);
            for path in &self.paths {
                table.add_row(path_row(path));
            }
            parts.push(table.to_string());
        }
        for tcp in &self.tcp {
            parts.push(format!(
                "TCP ({}) from A to B on rail {}: {}, {:.0} % of a processor",
                tcp.control,
                tcp.rail,
                bits(tcp.goodput_bps),
                100.0 * tcp.usage.share(),
            ));
        }
        if !self.compared.is_empty() {
            let mut table = new_table(&["program", "losses", "goodput", "of the rate", "rounds"]);
            for line in &self.compared {
                table.add_row(compared_row(line, self.capacity_bps));
            }
            parts.push(table.to_string());
        }
        parts.extend(self.counts.as_ref().map(counts_text));
        parts.join("\n")
    }
}

/// A table with that header.
pub(crate) fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    table
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// To six digits behind the point.
fn rounded(share: f64) -> f64 {
    (share * 1e6).round() / 1e6
}

fn bits(bps: f64) -> String {
    match bps {
        1e9.. => format!("{:.2} Gb/s", bps / 1e9),
        _ => format!("{:.1} Mb/s", bps / 1e6),
    }
}

fn loss_share(path: &PathFigures) -> f64 {
    path.loss.lost as f64 / path.loss.frames.max(1) as f64
}

fn mean_burst(path: &PathFigures) -> Option<f64> {
    (path.loss.bursts > 0).then(|| path.loss.lost as f64 / path.loss.bursts as f64)
}

/// The share of full frames that were marked, and that should be; where any should be.
fn marked(path: &PathFigures) -> Option<(f64, f64)> {
    let [_, arrived] = path.rate.frames;
    path.rate.marked_wanted.map(|wanted| (path.rate.marked as f64 / arrived.max(1) as f64, wanted))
}

fn path_row(path: &PathFigures) -> Vec<String> {
    let time = |time: Duration| format!("{:.1} µs", micros(time));
    let none = || "none arrived".to_owned();
    let delay = path.delay.map_or_else(none, |delay| format!("{:.3} ms", micros(delay.median) / 1000.0));
    let [least, median, most] = path.delay.map_or([const { String::new() }; 3], |delay| delay.over.map(time));
    vec![
        path.rail.to_string(),
        path.direction.name().to_owned(),
        path.path.to_string(),
        path.conditions.to_string().replace(',', "\n"),
        delay,
        least,
        median,
        most,
        format!("{:.4}\nof {}", loss_share(path), path.loss.frames),
        mean_burst(path).map_or_else(String::new, |mean| format!("{mean:.2}")),
        bits(path.rate.bps),
        marked(path).map_or_else(String::new, |(share, wanted)| format!("{share:.3}\nof {wanted:.3}")),
        format!("{:.0} %", 100.0 * path.rate.usage.share()),
    ]
}

fn path_json(path: &PathFigures) -> Value {
    let delay = |value: fn(&crate::measure::DelayFigures) -> Duration| path.delay.as_ref().map(|d| micros(value(d)));
    json!({
        "name": "path",
        "rail": path.rail,
        "direction": path.direction.name(),
        "path": path.path,
        "conditions": path.conditions.to_string(),
        "delay_wanted_us": delay(|delay| delay.wanted),
        "delay_median_us": delay(|delay| delay.median),
        "delay_over_min_us": delay(|delay| delay.over[0]),
        "delay_over_median_us": delay(|delay| delay.over[1]),
        "delay_over_p99_us": delay(|delay| delay.over[2]),
        "delay_frames": path.delay.map_or(0, |delay| delay.frames),
        "loss_wanted": path.conditions.loss.share(),
        "loss": rounded(loss_share(path)),
        "loss_frames": path.loss.frames,
        "loss_burst_frames": mean_burst(path).map(rounded),
        "rate_wanted_bps": path.rate.wanted_bps.map(f64::round),
        "rate_bps": path.rate.bps.round(),
        "rate_frames": path.rate.frames,
        "marked_wanted": marked(path).map(|(_, wanted)| rounded(wanted)),
        "marked": marked(path).map(|(share, _)| rounded(share)),
        "processor_share": rounded(path.rate.usage.share()),
    })
}

fn compared_json(line: &Compared, capacity_bps: Option<u64>) -> Value {
    json!({
        "name": "compared",
        "program": line.program,
        "recovery": line.recovery,
        "goodput_bps": line.median_bps().round(),
        "rounds_bps": line.goodput_bps.iter().map(|bps| bps.map(f64::round)).collect::<Vec<_>>(),
        "capacity_bps": capacity_bps,
        "failure": line.failure,
    })
}

fn compared_row(line: &Compared, capacity_bps: Option<u64>) -> Vec<String> {
    let round = |bps: &Option<f64>| bps.map_or_else(|| "failed".to_owned(), bits);
    let share = |capacity: u64| format!("{:.1} %", 100.0 * line.median_bps() / capacity as f64);
    vec![
        line.program.clone(),
        line.recovery.clone(),
        bits(line.median_bps()),
        capacity_bps.map_or_else(String::new, share),
        line.goodput_bps.iter().map(round).collect::<Vec<_>>().join(", "),
    ]
}

fn counts_json(counts: &WanCounts) -> Value {
    let total = counts.total();
    let sum = |of: fn(&crate::port::PortCounts) -> u64| counts.ports.iter().map(of).sum::<u64>();
    json!({
        "name": "frames",
        "arrived": total.arrived,
        "forwarded": total.forwarded,
        "lost": total.lost,
        "queue_full": total.queue_full,
        "marked": total.marked,
        "overflowed": total.overflowed,
        "refused": total.refused,
        "held": total.held,
        "missed": sum(|port| port.missed),
        "too_long": sum(|port| port.too_long),
        "conserved": counts.paths.iter().flatten().all(crate::path::Counts::is_conserved),
        "late_median_us": micros(counts.lateness.quantile(0.5)),
        "late_p99_us": micros(counts.lateness.quantile(0.99)),
        "late_max_us": micros(counts.lateness.max()),
        "processor_share": rounded(counts.usage.share()),
        "realtime": counts.usage.is_realtime,
    })
}

fn counts_text(counts: &WanCounts) -> String {
    let total = counts.total();
    let missed: u64 = counts.ports.iter().map(|port| port.missed).sum();
    let micros = |time: Duration| micros(time).round();
    format!(
        "frames: {} arrived, {} forwarded, {} lost, {} found the queue full, {} marked, {} on their way\n\
         the forwarder itself dropped: {missed} missed, {} overflowed, {} refused by an interface\n\
         left later than they should have: median {} µs, 99 % {} µs, most {} µs ({} thread)",
        total.arrived,
        total.forwarded,
        total.lost,
        total.queue_full,
        total.marked,
        total.held,
        total.overflowed,
        total.refused,
        micros(counts.lateness.quantile(0.5)),
        micros(counts.lateness.quantile(0.99)),
        micros(counts.lateness.max()),
        if counts.usage.is_realtime { "real-time" } else { "ordinary" },
    )
}
