//! The wide area in real frames: what uroce and TCP make of a bottleneck of 500 Mb/s, told no rate, over each combination of
//! a round trip, a buffer, and what is lost by chance.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bottleneck::{self, Sight, dropped_between};
use crate::compare::{self, Game, Options, PlayError, Writes};
use crate::conditions::{Conditions, Loss};
use crate::delays::Delays;
use crate::measure::congestion_controls;
use crate::network::{Direction, Plan, Rail, Wan};
use crate::path::Counts;
use crate::report::new_table;

/// Bits a second of Ethernet frames that the bottleneck carries.
const LINE_BPS: u64 = 500_000_000;

/// What is left out at both ends of what counts.
const APART: Duration = Duration::from_millis(200);

/// Which combinations are played, by whom.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Round trips in milliseconds.
    pub round_trips_ms: Vec<u16>,
    /// Bytes of the buffer, in bandwidth-delay products.
    pub buffers_bdp: Vec<f64>,
    /// The shares of packets that are lost by chance, each way.
    pub losses: Vec<f64>,
    /// The queue pairs of `uroce perf write-bw`. perftest has one, and TCP one connection.
    pub flows: Vec<u16>,
}

/// A combination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The round trip without queues.
    pub round_trip: Duration,
    /// The buffer in front of the bottleneck, in bandwidth-delay products.
    pub buffer_bdp: f64,
    /// The share of packets that is lost by chance, each way.
    pub loss: f64,
}

/// What one program made of a combination.
#[derive(Clone, Debug)]
pub struct Row {
    /// Over what.
    pub cell: Cell,
    /// `uroce perf write-bw`, `ib_write_bw`, or `TCP` with its congestion control.
    pub program: String,
    /// Queue pairs or connections.
    pub flows: u16,
    /// Bits of payload a second while it counted, or why there are none.
    pub goodput_bps: Result<f64, String>,
    /// What frames waited in the buffer meanwhile.
    pub waits: Delays,
    /// What became of frames towards the receiver until then, until the end of what counts, and with what was sent after it.
    pub counts: [Counts; 3],
}

impl Grid {
    /// All combinations, in the order in which they are played.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &ms in &self.round_trips_ms {
            for &buffer_bdp in &self.buffers_bdp {
                for &loss in &self.losses {
                    cells.push(Cell { round_trip: Duration::from_millis(ms.into()), buffer_bdp, loss });
                }
            }
        }
        cells
    }

    /// Plays each combination, and tells each row as it is known. Each program has a network of its own.
    ///
    /// # Errors
    /// When `uroce` is not there, or a network cannot be made. A program that fails is in its row.
    pub fn play(&self, options: &Options, plan: &Plan, mut tell: impl FnMut(&Row)) -> Result<Vec<Row>, PlayError> {
        compare::is_built(options)?;
        let controls = congestion_controls(&Wan::start(plan.clone())?);
        let mut rows = Vec::new();
        for cell in self.cells() {
            let plan = Plan { rails: vec![cell.rail()], ..plan.clone() };
            let writes = |flows| Writes::filling(cell.bdp_bytes(), flows);
            let perf = self.flows.iter().map(|&flows| Game::Perf(writes(flows)));
            let tcp = controls.iter().map(|control| Game::Tcp { control: control.clone() });
            for game in perf.chain([Game::Perftest(writes(1))]).chain(tcp) {
                let row = cell.play(&plan, options, &game)?;
                tell(&row);
                rows.push(row);
            }
        }
        Ok(rows)
    }
}

impl Cell {
    fn bdp_bytes(&self) -> u64 {
        bottleneck::bdp_bytes(LINE_BPS, self.round_trip)
    }

    fn buffer_bytes(&self) -> f64 {
        self.bdp_bytes() as f64 * self.buffer_bdp
    }

    fn rail(&self) -> Rail {
        let conditions = Conditions {
            delay: self.round_trip / 2,
            loss: Loss::of(self.loss, None),
            rate_bps: Some(LINE_BPS),
            queue_bytes: Some(self.buffer_bytes() as u64),
            ..Conditions::default()
        };
        Rail { there: vec![conditions], back: vec![conditions] }
    }

    fn play(&self, plan: &Plan, options: &Options, game: &Game) -> Result<Row, PlayError> {
        let mut wan = Wan::start(plan.clone())?;
        // Half of a game's time counts, and none of its start.
        let total = Duration::from_secs(options.seconds);
        let (program, flows, begins) = match game {
            Game::Perf(writes) | Game::Perftest(writes) => (game.program().to_owned(), writes.flows, total / 4),
            Game::Tcp { control } => (format!("{} {control}", game.program()), 1, self.round_trip * 20),
        };
        let is_over = AtomicBool::new(false);
        let (played, [before, after]) = std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                bottleneck::await_sending(&wan, || is_over.load(Ordering::Relaxed));
                std::thread::sleep(begins + APART);
                let before = Sight::now(&wan);
                std::thread::sleep((total / 2).saturating_sub(2 * APART));
                [before, Sight::now(&wan)]
            });
            let played = compare::play(&wan, options, game);
            is_over.store(true, Ordering::Relaxed);
            (played, seen.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        wan.stop()?;
        let counts = [before.counts, after.counts, wan.path_counts(0, Direction::AToB, 0)];
        Ok(Row { cell: *self, program, flows, goodput_bps: played?, waits: after.waits.since(&before.waits), counts })
    }
}

impl Row {
    /// Payload a second over what chance leaves of the line's frames.
    pub fn share(&self) -> f64 {
        self.goodput_bps.as_ref().map_or(0.0, |bps| bps / (LINE_BPS as f64 * (1.0 - self.cell.loss)))
    }

    /// What frames waited, in the mean and 99 of 100 at most, as shares of the round trip.
    fn waits_of_round_trip(&self) -> [f64; 2] {
        [self.waits.mean(), self.waits.quantile(0.99)].map(|wait| wait.div_duration_f64(self.cell.round_trip))
    }

    /// The share of all frames that found the buffer full, with the start.
    fn dropped(&self) -> f64 {
        dropped_between(&Counts::default(), &self.counts[2])
    }

    /// The same while it counted.
    fn queue_drops(&self) -> f64 {
        dropped_between(&self.counts[0], &self.counts[1])
    }

    /// What found the buffer full until then, in buffers.
    fn start_drops_buffers(&self) -> f64 {
        let before = &self.counts[0];
        let dropped_bytes = before.queue_full as f64 * before.arrived_bytes as f64 / before.arrived.max(1) as f64;
        dropped_bytes / self.cell.buffer_bytes()
    }

    /// As an object.
    pub fn to_json(&self) -> Value {
        let [mean, p99] = self.waits_of_round_trip();
        json!({
            "name": "grid",
            "rtt_ms": self.cell.round_trip.as_millis() as u64,
            "buffer_bdp": self.cell.buffer_bdp,
            "loss": self.cell.loss,
            "program": self.program,
            "flows": self.flows,
            "line_bps": LINE_BPS,
            "goodput_bps": self.goodput_bps.as_ref().ok().map(|bps| bps.round()),
            "share": self.share(),
            "queue_mean_over_rtt": mean,
            "queue_p99_over_rtt": p99,
            "dropped": self.dropped(),
            "queue_drops": self.queue_drops(),
            "start_drops_buffers": self.start_drops_buffers(),
            "failure": self.goodput_bps.as_ref().err(),
        })
    }

    /// The cells of a table.
    fn to_cells(&self) -> Vec<String> {
        let [mean, p99] = self.waits_of_round_trip();
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        vec![
            format!("{} ms", self.cell.round_trip.as_millis()),
            format!("{} BDP", self.cell.buffer_bdp),
            format!("{} %", (self.cell.loss * 1e4).round() / 1e2),
            self.program.clone(),
            self.flows.to_string(),
            self.goodput_bps.as_ref().map_or_else(String::clone, |_| percent(self.share())),
            percent(mean),
            percent(p99),
            format!("{:.2} %", self.queue_drops() * 100.0),
            format!("{:.1}", self.start_drops_buffers()),
        ]
    }
}

/// A table of rows.
pub fn table(rows: &[Row]) -> String {
    let mut table = new_table(&[
        "round trip",
        "buffer",
        "loss",
        "program",
        "flows",
        "reached",
        "queue",
        "99 %",
        "dropped",
        "buffers at the start",
    ]);
    rows.iter().for_each(|row| {
        table.add_row(row.to_cells());
    });
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(ms: u64, buffer_bdp: f64, loss: f64) -> Cell {
        Cell { round_trip: Duration::from_millis(ms), buffer_bdp, loss }
    }

    #[test]
    fn all_combinations_are_played_the_last_one_first_to_change() {
        let grid =
            Grid { round_trips_ms: vec![20, 100], buffers_bdp: vec![0.1], losses: vec![0.0, 0.05], flows: vec![1] };
        assert_eq!(grid.cells(), [cell(20, 0.1, 0.0), cell(20, 0.1, 0.05), cell(100, 0.1, 0.0), cell(100, 0.1, 0.05)]);
    }

    #[test]
    fn buffers_and_what_is_outstanding_are_bandwidth_delay_products() {
        // 500 Mb/s × 20 ms are 1.25 MB, and eight of them 152 WRITEs of 64 KiB.
        let of = |cell: Cell| {
            (cell.rail().there[0].queue_bytes, [1, 4, 64].map(|flows| Writes::filling(cell.bdp_bytes(), flows).depth))
        };
        assert_eq!(of(cell(20, 0.1, 0.0)), (Some(125_000), [152, 38, 16]));
        assert_eq!(of(cell(100, 1.0, 0.0)), (Some(6_250_000), [762, 190, 16]));
    }

    #[test]
    fn a_row_is_told_in_shares_of_what_chance_leaves_and_of_the_round_trip() {
        let mut waits = Delays::default();
        waits.note(1_000_000);
        waits.note(3_000_000);
        let counts = [(400, 50), (900, 51), (1000, 60)].map(|(arrived, queue_full)| Counts {
            arrived,
            arrived_bytes: arrived * 4000,
            queue_full,
            ..Counts::default()
        });
        let row = |goodput_bps| Row {
            cell: cell(20, 0.1, 0.05),
            program: "TCP bbr".into(),
            flows: 1,
            goodput_bps,
            waits: waits.clone(),
            counts,
        };
        let reached = row(Ok(380e6));
        assert_eq!(reached.share(), 0.8);
        assert_eq!(reached.to_cells()[5..], ["80.0 %", "10.0 %", "15.0 %", "0.20 %", "1.6"]);
        let of = |key: &str| (reached.to_json()[key].as_f64().unwrap() * 1e3).round();
        let keys =
            ["share", "queue_mean_over_rtt", "queue_p99_over_rtt", "dropped", "queue_drops", "start_drops_buffers"];
        assert_eq!(keys.map(of), [800.0, 100.0, 150.0, 60.0, 2.0, 1600.0]);
        let failed = row(Err("the client failed".into()));
        assert_eq!((failed.share(), failed.to_cells()[5].as_str()), (0.0, "the client failed"));
        assert_eq!(failed.to_json()["failure"], "the client failed");
    }
}
