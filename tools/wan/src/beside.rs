//! uroce beside TCP on one bottleneck, in real frames: what each flow has of a fair share; and what a scavenger takes from TCP
//! that pauses, and what it leaves unused.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bottleneck::{self, Bottleneck, Sight, dropped_between};
use crate::compare::{self, Game, Options, PlayError, Writes};
use crate::measure::{Schedule, congestion_controls, run_tcp};
use crate::network::{Plan, Wan};
use crate::report::new_table;

/// How long TCP sends beside the scavenger, and then pauses.
pub const PAUSES: Duration = Duration::from_secs(2);

/// The traffic class of the scavenger: DSCP 1, lower effort (RFC 8622).
const SCAVENGER: u8 = 1 << 2;

/// A flow on the bottleneck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flow {
    /// A queue pair of `uroce perf write-bw`, which nobody tells a rate.
    Uroce,
    /// The same, in the scavenger class.
    Scavenger,
    /// A TCP connection with this congestion control.
    Tcp(String),
    /// The same, which sends and pauses by turns.
    PausingTcp(String),
}

/// What the flows of one network reached beside each other.
#[derive(Clone, Debug)]
pub struct Played {
    /// Each with its payload a second in bits while it counted, pauses included, or why there is none.
    pub flows: Vec<(Flow, Result<f64, String>)>,
    /// What frames waited in the buffer meanwhile, in the mean and 99 of 100 at most.
    pub waits: [Duration; 2],
    /// The share of frames that found the buffer full meanwhile.
    pub queue_drops: f64,
}

/// A line of the tables.
#[derive(Clone, Debug)]
pub enum Row {
    /// Flows that always send.
    Share(Bottleneck, Played),
    /// TCP that pauses, and the scavenger beside it.
    Yield(Bottleneck, Yield),
}

/// What a scavenger and TCP that pauses make of a bottleneck.
#[derive(Clone, Debug)]
pub struct Yield {
    /// TCP's congestion control.
    pub control: String,
    /// TCP alone.
    pub alone: Played,
    /// Both.
    pub beside: Played,
}

impl Flow {
    /// What the tables call it: `uroce`, or TCP's congestion control.
    pub fn name(&self) -> &str {
        match self {
            Flow::Uroce => "uroce",
            Flow::Scavenger => "scavenger",
            Flow::Tcp(control) | Flow::PausingTcp(control) => control,
        }
    }
}

impl Bottleneck {
    /// Plays flows, of which at most one is uroce's, at the same time over a network of their own. TCP begins when uroce sends.
    /// The middle half of the seconds counts.
    ///
    /// # Errors
    /// When the network cannot be made, or what the system says about TCP's sockets. A program that fails is in the result.
    pub fn play(&self, plan: &Plan, options: &Options, flows: &[Flow]) -> Result<Played, PlayError> {
        let mut wan = Wan::start(plan.clone())?;
        let total = Duration::from_secs(options.seconds);
        let tcp = |control: &String, pauses| {
            let schedule = Schedule { pauses, counts: total / 4..total / 4 * 3, end: total };
            Ok(Ok(run_tcp(&wan, 0, control, &schedule)?))
        };
        let writes = |traffic_class| {
            let writes = Writes { traffic_class, ..Writes::filling(self.bdp_bytes(), 1) };
            compare::play(&wan, options, &Game::Perf(writes))
        };
        let play = |flow: &Flow| match flow {
            Flow::Uroce => writes(0),
            Flow::Scavenger => writes(SCAVENGER),
            Flow::Tcp(control) => tcp(control, None),
            Flow::PausingTcp(control) => tcp(control, Some(PAUSES)),
        };
        let (played, [before, after]) = std::thread::scope(|scope| {
            let start = |flow| {
                let started = scope.spawn(move || play(flow));
                if matches!(flow, Flow::Uroce | Flow::Scavenger) {
                    bottleneck::await_sending(&wan, || started.is_finished());
                }
                started
            };
            let started: Vec<_> = flows.iter().map(start).collect();
            std::thread::sleep(total / 4);
            let before = Sight::now(&wan);
            std::thread::sleep(total / 2);
            let seen = [before, Sight::now(&wan)];
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            (started.into_iter().map(join).collect::<std::io::Result<Vec<_>>>(), seen)
        });
        wan.stop()?;
        let waits = after.waits.since(&before.waits);
        Ok(Played {
            flows: flows.iter().cloned().zip(played?).collect(),
            waits: [waits.mean(), waits.quantile(0.99)],
            queue_drops: dropped_between(&before.counts, &after.counts),
        })
    }
}

/// Plays each flow alone, and each mix of them; then TCP that pauses, alone and beside the scavenger. Tells each row as it is
/// known.
///
/// # Errors
/// When `uroce` is not there, when there is no one bottleneck, or when a network cannot be made. A program that fails is in its
/// row.
pub fn play(options: &Options, plan: &Plan, mut tell: impl FnMut(&Row)) -> Result<Vec<Row>, PlayError> {
    compare::is_built(options)?;
    let bottleneck = Bottleneck::of(plan)?;
    let controls = congestion_controls(&Wan::start(plan.clone())?);
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        tell(&row);
        rows.push(row);
    };
    let all: Vec<Flow> = std::iter::once(Flow::Uroce).chain(controls.iter().cloned().map(Flow::Tcp)).collect();
    for flows in mixes(&all) {
        add(Row::Share(bottleneck, bottleneck.play(plan, options, &flows)?));
    }
    for control in controls {
        let tcp = Flow::PausingTcp(control.clone());
        let alone = bottleneck.play(plan, options, std::slice::from_ref(&tcp))?;
        let beside = bottleneck.play(plan, options, &[Flow::Scavenger, tcp])?;
        add(Row::Yield(bottleneck, Yield { control, alone, beside }));
    }
    Ok(rows)
}

/// Each choice of at least one of them, the smaller ones first.
fn mixes(all: &[Flow]) -> Vec<Vec<Flow>> {
    let choice = |bits: usize| {
        all.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, flow)| flow.clone()).collect()
    };
    let mut mixes: Vec<Vec<Flow>> = (1..1 << all.len()).map(choice).collect();
    mixes.sort_by_key(Vec::len);
    mixes
}

impl Played {
    fn goodput_bps(&self, name: &str) -> Option<f64> {
        self.flows.iter().find(|(flow, _)| flow.name() == name).and_then(|(_, bps)| bps.as_ref().ok().copied())
    }

    fn failure(&self) -> Option<&str> {
        self.flows.iter().find_map(|(_, bps)| bps.as_ref().err()).map(String::as_str)
    }

    /// What frames waited, as shares of the round trip.
    fn waits_of_round_trip(&self, bottleneck: &Bottleneck) -> [f64; 2] {
        // Without a delay there is no round trip to compare with.
        let round_trip = bottleneck.round_trip.max(Duration::from_micros(1));
        self.waits.map(|wait| wait.div_duration_f64(round_trip))
    }
}

impl Yield {
    /// Payload a second of TCP while it does not pause, alone and beside the scavenger.
    fn tcp_bps(&self) -> [Option<f64>; 2] {
        // It sends half of the time.
        [&self.alone, &self.beside].map(|played| played.goodput_bps(&self.control).map(|bps| 2.0 * bps))
    }

    /// What TCP keeps of what it has alone.
    pub fn kept(&self) -> Option<f64> {
        let [alone, beside] = self.tcp_bps();
        Some(beside? / alone?.max(1.0))
    }

    /// Payload a second of the scavenger, over all of the time.
    pub fn scavenger_bps(&self) -> Option<f64> {
        self.beside.goodput_bps(Flow::Scavenger.name())
    }

    /// The same as a share of what TCP leaves of the line's frames, in its pauses and beside it.
    pub fn of_rest(&self, bottleneck: &Bottleneck) -> Option<f64> {
        let tcp_bps = self.beside.goodput_bps(&self.control)?;
        Some(self.scavenger_bps()? / (bottleneck.line_bps as f64 - tcp_bps).max(1.0))
    }

    fn failure(&self) -> Option<&str> {
        self.alone.failure().or(self.beside.failure())
    }
}

impl Row {
    /// Why a program failed, if one did.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Row::Share(_, played) => played.failure(),
            Row::Yield(_, row) => row.failure(),
        }
    }

    /// As an object: `beside` of flows that always send, or `scavenger`.
    pub fn to_json(&self) -> Value {
        let rounded = |bps: Option<f64>| bps.map(f64::round);
        match self {
            Row::Share(bottleneck, played) => {
                let [mean, p99] = played.waits_of_round_trip(bottleneck);
                let flows = played.flows.iter().map(|(flow, bps)| {
                    let bps = bps.as_ref().ok().copied();
                    let share = bps.map(|bps| bottleneck.share(bps, played.flows.len()));
                    json!({ "flow": flow.name(), "goodput_bps": rounded(bps), "fair_share": share })
                });
                json!({
                    "name": "beside",
                    "conditions": bottleneck.conditions.to_string(),
                    "line_bps": bottleneck.line_bps,
                    "flows": flows.collect::<Vec<_>>(),
                    "queue_mean_over_rtt": mean,
                    "queue_p99_over_rtt": p99,
                    "queue_drops": played.queue_drops,
                    "failure": played.failure(),
                })
            }
            Row::Yield(bottleneck, row) => {
                let ([alone, beside], [mean, p99]) = (row.tcp_bps(), row.beside.waits_of_round_trip(bottleneck));
                json!({
                    "name": "scavenger",
                    "conditions": bottleneck.conditions.to_string(),
                    "line_bps": bottleneck.line_bps,
                    "congestion": row.control,
                    "pauses_s": PAUSES.as_secs(),
                    "tcp_alone_bps": rounded(alone),
                    "tcp_beside_bps": rounded(beside),
                    "tcp_kept": row.kept(),
                    "scavenger_bps": rounded(row.scavenger_bps()),
                    "of_rest": row.of_rest(bottleneck),
                    "queue_mean_over_rtt": mean,
                    "queue_p99_over_rtt": p99,
                    "queue_drops": row.beside.queue_drops,
                    "failure": row.failure(),
                })
            }
        }
    }

    /// The cells of its table.
    fn to_cells(&self) -> Vec<String> {
        let bits = |bps: Option<f64>| bps.map_or_else(|| "failed".to_owned(), |bps| format!("{:.1} Mb/s", bps / 1e6));
        let percent = |share: Option<f64>| share.map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share));
        let (bottleneck, played, mut cells) = match self {
            Row::Share(bottleneck, played) => {
                let count = played.flows.len();
                let lines = |of: &dyn Fn(&Flow, Option<f64>) -> String| {
                    let each = played.flows.iter().map(|(flow, bps)| of(flow, bps.as_ref().ok().copied()));
                    each.collect::<Vec<_>>().join("\n")
                };
                let share = |bps: f64| format!("{:.2}", bottleneck.share(bps, count));
                let cells = vec![
                    lines(&|flow, _| flow.name().to_owned()),
                    lines(&|_, bps| bits(bps)),
                    lines(&|_, bps| bps.map_or_else(String::new, share)),
                ];
                (bottleneck, played, cells)
            }
            Row::Yield(bottleneck, row) => {
                let [alone, beside] = row.tcp_bps();
                let uroce = [bits(row.scavenger_bps()), percent(row.of_rest(bottleneck))];
                let cells = [vec![row.control.clone(), bits(alone), bits(beside), percent(row.kept())], uroce.to_vec()];
                (bottleneck, &row.beside, cells.concat())
            }
        };
        cells.extend(played.waits_of_round_trip(bottleneck).map(|share| percent(Some(share))));
        cells.push(format!("{:.2} %", 100.0 * played.queue_drops));
        cells
    }

    /// One line of text.
    pub fn to_line(&self) -> String {
        let kind = match self {
            Row::Share(..) => "shared",
            Row::Yield(..) => "scavenger beside TCP that pauses",
        };
        let text = self.to_cells().join(", ").replace('\n', " | ");
        self.failure().map_or_else(|| format!("{kind}: {text}"), |why| format!("{kind}: {text}: {why}"))
    }
}

/// A table of what is shared, and one of what the scavenger leaves and takes.
pub fn tables(rows: &[Row]) -> String {
    let queue = ["queue", "99 %", "dropped"];
    let mut shares = new_table(&[&["flows", "goodput", "of a fair share"][..], &queue].concat());
    let header = ["TCP that pauses", "alone", "beside the scavenger", "kept", "scavenger", "of the rest"];
    let mut yields = new_table(&[&header[..], &queue].concat());
    for row in rows {
        let table = if matches!(row, Row::Share(..)) { &mut shares } else { &mut yields };
        table.add_row(row.to_cells());
    }
    format!("{shares}\n{yields}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bottleneck() -> Bottleneck {
        Bottleneck::of(&Plan::simple("delay=10ms,rate=100M,queue=250k".parse().unwrap(), 1)).unwrap()
    }

    fn played(flows: &[(Flow, Result<f64, String>)]) -> Played {
        let waits = [5, 20].map(Duration::from_millis);
        Played { flows: flows.to_vec(), waits, queue_drops: 0.01 }
    }

    fn cubic() -> Flow {
        Flow::Tcp("cubic".into())
    }

    #[test]
    fn each_flow_is_alone_and_in_each_mix() {
        let all = [Flow::Uroce, cubic(), Flow::Tcp("bbr".into())];
        let names: Vec<String> =
            mixes(&all).iter().map(|mix| mix.iter().map(Flow::name).collect::<Vec<_>>().join("+")).collect();
        assert_eq!(names, ["uroce", "cubic", "bbr", "uroce+cubic", "uroce+bbr", "cubic+bbr", "uroce+cubic+bbr"]);
    }

    #[test]
    fn a_fair_share_is_the_line_over_the_flows() {
        let row = Row::Share(bottleneck(), played(&[(Flow::Uroce, Ok(25e6)), (cubic(), Err("it ended".into()))]));
        let cells = ["uroce\ncubic", "25.0 Mb/s\nfailed", "0.50\n", "25.0 %", "100.0 %", "1.00 %"];
        assert_eq!(row.to_cells(), cells);
        let object = row.to_json();
        assert_eq!((&object["flows"][0]["fair_share"], &object["flows"][1]["fair_share"]), (&json!(0.5), &Value::Null));
        assert_eq!((object["failure"].as_str(), row.failure()), (Some("it ended"), Some("it ended")));
        assert!(row.to_line().ends_with("it ended"));
    }

    #[test]
    fn the_rest_is_what_tcp_does_not_take_of_the_line() {
        let pausing = |bps| (Flow::PausingTcp("cubic".into()), Ok(bps));
        let row = Yield {
            control: "cubic".into(),
            alone: played(&[pausing(40e6)]),
            beside: played(&[(Flow::Scavenger, Ok(56e6)), pausing(30e6)]),
        };
        assert_eq!((row.tcp_bps(), row.kept()), ([Some(80e6), Some(60e6)], Some(0.75)));
        assert_eq!(row.of_rest(&bottleneck()), Some(0.8));
        let row = Row::Yield(bottleneck(), row);
        assert_eq!(row.to_cells()[..6], ["cubic", "80.0 Mb/s", "60.0 Mb/s", "75.0 %", "56.0 Mb/s", "80.0 %"]);
        assert_eq!((row.to_json()["tcp_kept"].as_f64(), row.to_json()["of_rest"].as_f64()), (Some(0.75), Some(0.8)));
        assert!(tables(&[row]).contains("of the rest"));
    }
}
