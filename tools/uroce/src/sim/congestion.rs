//! `uroce sim congestion`: flows that share bottlenecks, none of which knows its rate.

use std::process::ExitCode;

use serde_json::{Value, json};
use uroce::congestion::{CongestionControl, CongestionControlError};
use uroce_laboratory::sim::TransferError;
use uroce_laboratory::sim::congestion::{CUBIC, Congestion, CongestionCell, PAPER_DCQCN, SizeBin, TCP_BBR, TCP_CUBIC};

use crate::Failure;

use super::cells::{self, Cell, Options};

const EXAMPLES: &str = "\
Examples:
  uroce sim congestion --only scenario=wan,flows=4
  uroce sim congestion --congestion bbr --only 'scenario=policer|rtt-mix'
  uroce sim congestion --json --only scenario=incast | jq .jain";

/// Flows that share a bottleneck, none of which knows its rate: utilisation, queue, losses and fairness.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// Run only matching cells: scenario=wan, controller=steady, rival=dcqcn, default=true, flows=4, rtt_ms=40, buffer_bdp=0.1,
    /// loss=1%, line_bps=100000000; conditions separated by commas, values by |. A key that is not given matches all its values. Scenarios: wan, wan-loss, fair,
    /// newcomer, rtt-mix, parking-lot, on-off, microburst, policer, dc-wan, incast, new-incast,
    /// web-search, fb-hdp, ali-storage, google-rpc, slow-link, small-shares, long-flows, one-peer, busy-hosts, scavenger,
    /// scavengers, versus, beside-tcp.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// What decides on the rate of each flow: steady, dcqcn, swift, timely, nscc, hpcc, bbr, fixed, as TCP: cubic,
    /// tcp-cubic, tcp-bbr, or with the paper's timer: dcqcn-paper. With dcqcn and nscc the bottleneck marks packets; with hpcc all switches write telemetry.
    #[arg(long, value_name = "NAME", help_heading = "Test", default_value_t = CongestionControl::Steady, value_parser = controller)]
    congestion: CongestionControl,
    /// Print what happened in each half round trip.
    #[arg(long, help_heading = "Output")]
    timeline: bool,
}

impl Cell for CongestionCell {
    type Outcome = Result<Congestion, TransferError>;

    const SCHEMA: &'static str = "uroce.sim.congestion/1";

    const KEYS: &'static [&'static str] =
        &["scenario", "controller", "rival", "default", "flows", "rtt_ms", "buffer_bdp", "loss", "line_bps"];

    fn which(&self) -> Value {
        json!({
            "scenario": self.scenario.name(),
            "controller": self.control.name(),
            "rival": self.scenario.rival().map(CongestionControl::name),
            "default": self.control == CongestionControl::Steady,
            "flows": self.flows,
            "rtt_ms": self.round_trip.as_secs_f64() * 1e3,
            "buffer_bdp": self.buffer_bdp,
            "loss": self.loss,
            "line_bps": self.line_bps,
        })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        match outcome {
            Ok(result) => json!({
                "utilisation": result.utilisation,
                "p99_queue_over_rtt": result.p99_queue_over_rtt,
                "mean_queue_over_rtt": result.mean_queue_over_rtt,
                "queue_drops": result.queue_drops,
                "marked": result.marked,
                "start_rtts": result.start_rtts,
                "start_drops_buffers": result.start_drops_buffers,
                "retransmitted": result.spurious_fraction,
                "resent": result.resent,
                "jain": result.jain,
                "shares": result.shares,
                "convergence_rtts": result.convergence_rtts,
                "p99_queue_bytes": result.queue_bytes[0],
                "mean_queue_bytes": result.queue_bytes[1],
                "completion_ms": result.completion.map(|completion| completion.last.as_secs_f64() * 1e3),
                "completion_slowdown": result.completion.map(|completion| completion.slowdown),
                "mean_slowdown": result.completion.map(|completion| completion.mean_slowdown),
                "sizes": result.sizes.iter().map(size_bin).collect::<Vec<_>>(),
                "tcp_kept": result.scavenged.map(|scavenged| scavenged.kept),
                "of_rest": result.scavenged.map(|scavenged| scavenged.of_rest),
                "goodput_bps": result.goodput_bps,
            }),
            Err(error) => json!({ "violation": error.to_string() }),
        }
    }

    fn describe(&self, outcome: &Self::Outcome) -> String {
        let rival = self.scenario.rival().map_or(String::new(), |rival| format!(" {rival}"));
        let what = format!(
            "{:11} {:16} {:2} flows {:5} Mb/s {:4} ms {:4.1} BDP {:3} % lost",
            self.scenario.name(),
            format!("{}{rival}", self.control),
            self.flows,
            self.line_bps / 1_000_000,
            self.round_trip.as_secs_f64() * 1e3,
            self.buffer_bdp,
            self.loss * 100.0
        );
        let result = match outcome {
            Ok(result) => result,
            Err(error) => return format!("{what}  {error}"),
        };
        if !result.sizes.is_empty() {
            let bins = result.sizes.iter().map(|bin| format!("\n    {}", describe_bin(bin)));
            return format!(
                "{what}  {:6.2} % used  queue p99 {:.0} KB mean {:.0} KB  dropped {:.3} %{}",
                result.utilisation * 100.0,
                result.queue_bytes[0] / 1e3,
                result.queue_bytes[1] / 1e3,
                result.queue_drops * 100.0,
                bins.collect::<String>()
            );
        }
        let mut text = format!(
            "{what}  {:6.2} % used  queue p99 {:5.2} % mean {:5.2} %  dropped {:.3} %  start {:4.1} RTT {:4.2} buffers  Jain {:.3}  spurious {:.3} %",
            result.utilisation * 100.0,
            result.p99_queue_over_rtt * 100.0,
            result.mean_queue_over_rtt * 100.0,
            result.queue_drops * 100.0,
            result.start_rtts.unwrap_or(f64::NAN),
            result.start_drops_buffers,
            result.jain,
            result.spurious_fraction * 100.0,
        );
        if result.marked > 0.0 {
            text += &format!("  marked {:.3} %", result.marked * 100.0);
        }
        if let Some(round_trips) = result.convergence_rtts {
            text += &format!("  share after {round_trips:.1} RTT");
        }
        if result.shares.len() > 1 {
            let shares: Vec<String> = result.shares.iter().map(|share| format!("{share:.2}")).collect();
            text += &format!("  shares {}", shares.join(" "));
        }
        if let Some(scavenged) = result.scavenged {
            let [kept, of_rest] = [scavenged.kept, scavenged.of_rest].map(|share| share * 100.0);
            text += &format!("  TCP keeps {kept:.1} %, the scavenger takes {of_rest:.1} % of the rest");
        }
        if let Some(completion) = result.completion {
            let (last, slowdown) = (completion.last.as_secs_f64() * 1e3, completion.slowdown);
            text += &format!("  done in {last:.2} ms, {slowdown:.2} times the least");
        }
        text
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        outcome.is_err()
    }
}

/// How long flows of some sizes took, as a field.
fn size_bin(bin: &SizeBin) -> Value {
    let [p50, p99] = bin.slowdowns;
    json!({ "up_to_bytes": bin.up_to_bytes, "flows": bin.flows, "p50_slowdown": p50, "p99_slowdown": p99 })
}

/// The same for people.
fn describe_bin(bin: &SizeBin) -> String {
    let size = bin.up_to_bytes.map_or("larger".to_owned(), |bytes| format!("up to {bytes} bytes"));
    let [p50, p99] = bin.slowdowns.map(|slowdown| slowdown.unwrap_or(f64::NAN));
    format!("{size:19} {:6} flows  {p50:6.2} times the least in the median, {p99:6.2} in 99 %", bin.flows)
}

/// A controller of this stack, one of TCP's, or the paper's DCQCN.
pub(super) fn controller(name: &str) -> Result<CongestionControl, CongestionControlError> {
    let other = [CUBIC, TCP_CUBIC, TCP_BBR, PAPER_DCQCN].into_iter().find(|control| control.name() == name);
    other.map_or_else(|| name.parse(), Ok)
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = CongestionCell::wan(arguments.congestion);
    cells.extend(CongestionCell::scenarios(arguments.congestion));
    cells::keep(&mut cells, &arguments.only)?;
    let seed = arguments.options.seed;
    let sheet = cells::play(&cells, &arguments.options, |cell: &CongestionCell| cell.run(seed));
    if arguments.timeline {
        for result in sheet.outcomes.iter().flatten() {
            for (half, (used, queue)) in result.timeline.iter().enumerate() {
                eprintln!("{:5.1} {:6.2} % {:6.2} %", half as f64 / 2.0, used * 100.0, queue * 100.0);
            }
        }
    }
    Ok(sheet.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_found_by_its_key() {
        let kept = |control, default: &str| {
            let mut cells = CongestionCell::wan(control);
            let all = cells.len();
            cells::keep(&mut cells, &[format!("default={default}")]).map(|()| (cells.len(), all))
        };
        assert_eq!(kept(CongestionControl::Steady, "true").unwrap(), (72, 72));
        assert_eq!(kept(CongestionControl::Bbr, "false").unwrap(), (72, 72));
        assert!(kept(CongestionControl::Bbr, "true").is_err() && kept(CongestionControl::Steady, "yes").is_err());
    }
}
