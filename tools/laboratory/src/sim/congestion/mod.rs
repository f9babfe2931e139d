//! Congestion: several flows over one bottleneck, none of which knows its rate.

mod dumbbell;
mod meter;

use uroce::congestion::CongestionControl;
use uroce::time::{Duration, Instant};
use uroce::transport::{RecoveryMode, RecoverySettings};

use super::goodput::PAYLOAD;
use super::network::{Network, NodeId, Step};
use super::random::Random;
use super::transfer::{Transfer, TransferError, TransferOperation, TransferPlan};

use dumbbell::Dumbbell;
use meter::Meter;

/// One cell of the table of congestion: flows that share a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CongestionCell {
    /// The name of the scenario.
    pub scenario: Scenario,
    /// What decides on the rate of each flow.
    pub control: CongestionControl,
    /// The number of flows, 1 to 100.
    pub flows: usize,
    /// The round trip without queues.
    pub round_trip: Duration,
    /// The rate of the bottleneck, in bits of Ethernet frames a second.
    pub line_bps: u64,
    /// The bottleneck's buffer, in bandwidth-delay products.
    pub buffer_bdp: f64,
    /// The share of frames that are lost by chance in each direction, 0 to 1.
    pub loss: f64,
}

/// The scenarios of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named for what they are
pub enum Scenario {
    Wan,
    WanLoss,
}

impl Scenario {
    /// The name of the scenario in tables.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Wan => "wan",
            Scenario::WanLoss => "wan-loss",
        }
    }
}

/// The result of a cell.
#[derive(Clone, Debug)]
pub struct Congestion {
    /// Goodput of all flows, as a share of what the bottleneck carries × (1 − loss).
    pub utilisation: f64,
    /// The 99th percentile of the delay in the bottleneck's queue, as a share of the round trip.
    pub p99_queue_over_rtt: f64,
    /// The mean of that delay.
    pub mean_queue_over_rtt: f64,
    /// The share of frames that the bottleneck dropped in the measured time, because its queue was full.
    pub queue_drops: f64,
    /// Round trips until the flows together reached 80 % of what the bottleneck carries; `None` when they did not.
    pub start_rtts: Option<f64>,
    /// What the bottleneck dropped until the measured time, in buffers.
    pub start_drops_buffers: f64,
    /// Frames that arrived again, as a share of the others.
    pub spurious_fraction: f64,
    /// Jain's index of the flows' goodput.
    pub jain: f64,
    /// The goodput of each flow, in bits a second.
    pub goodput_bps: Vec<f64>,
    /// The share of the bottleneck that was used, and the delay of its queue as a share of the round trip, by half round
    /// trips from the beginning.
    pub timeline: Vec<(f64, f64)>,
}

/// Round trips before the measured time, and in it.
const WARM_UP_ROUND_TRIPS: u32 = 40;
const MEASURED_ROUND_TRIPS: u32 = 40;

/// The length of messages, in bytes.
const MESSAGE_BYTES: usize = 1 << 16;

impl CongestionCell {
    /// The cells of the wide area: every combination of round trip, buffer, loss and number of flows.
    pub fn wan(control: CongestionControl) -> Vec<CongestionCell> {
        let mut cells = Vec::new();
        for round_trip_ms in [20, 40, 100] {
            for buffer_bdp in [0.1, 1.0] {
                for loss in [0.0, 0.001, 0.01, 0.05] {
                    for flows in [1, 4, 64] {
                        let scenario = if loss == 0.0 { Scenario::Wan } else { Scenario::WanLoss };
                        let round_trip = Duration::from_millis(round_trip_ms);
                        let line_bps = 10_000_000_000;
                        cells.push(CongestionCell { scenario, control, flows, round_trip, line_bps, buffer_bdp, loss });
                    }
                }
            }
        }
        cells
    }

    fn bdp_bytes(&self) -> f64 {
        self.line_bps as f64 / 8.0 * self.round_trip.as_secs_f64()
    }

    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, completions came out of order, or the received bytes differ.
    pub fn run(&self, seed: u64) -> Result<Congestion, TransferError> {
        let mut random = Random::new(seed, 3);
        let mut dumbbell = Dumbbell::new(self, seed);
        let bdp = self.bdp_bytes();
        let recovery = RecoverySettings {
            recovery: RecoveryMode::Auto,
            window: RecoverySettings::MAX_WINDOW,
            congestion: self.control,
            line_rate: Some(Dumbbell::access_rate(self)),
            ..RecoverySettings::default()
        };
        let bytes = (4.0 * bdp / self.flows as f64) as usize + (8 << 20);
        let outstanding = bytes / MESSAGE_BYTES;
        let plan = TransferPlan {
            operation: TransferOperation::Write,
            message_bytes: MESSAGE_BYTES,
            outstanding,
            region_bytes: outstanding * MESSAGE_BYTES,
            recovery: [recovery; 2],
            timeout: 16,
        };
        let mut flows = Vec::new();
        for nodes in dumbbell.pairs.clone() {
            flows.push(Transfer::new(&mut dumbbell.network, nodes, plan, seed));
        }
        let mut run = Run { flows, owner: dumbbell.owners(), meter: Meter::new(&dumbbell, self.flows) };
        for flow in 0..self.flows {
            dumbbell.network.wake_at(Instant::ZERO + random.up_to(self.round_trip), flow as u64);
        }
        let half = self.round_trip / 2;
        let warm = Instant::ZERO + self.round_trip * WARM_UP_ROUND_TRIPS;
        let end = warm + self.round_trip * MEASURED_ROUND_TRIPS;
        let mut steps = Vec::new();
        let (mut before, mut is_measuring) = (0, false);
        while dumbbell.network.now() < end {
            let until = dumbbell.network.now() + half;
            run.until(&mut dumbbell.network, until)?;
            let useful = run.meter.useful();
            let carried = (useful - before) as f64 * PAYLOAD as f64 / half.as_secs_f64();
            steps.push((
                carried * 8.0 / self.ideal_bps(),
                run.meter.take_mean_queue().as_secs_f64() / (2.0 * half.as_secs_f64()),
            ));
            before = useful;
            if dumbbell.network.now() >= warm && !is_measuring {
                is_measuring = true;
                run.meter.begin();
            }
        }
        Ok(self.result(&run.meter, steps))
    }

    /// What the bottleneck carries when it loses its share of frames, in bits of payload a second.
    fn ideal_bps(&self) -> f64 {
        super::goodput::ideal_bps(self.loss) * self.line_bps as f64 / (8.0 * super::goodput::RATE as f64)
    }

    fn result(&self, meter: &Meter, timeline: Vec<(f64, f64)>) -> Congestion {
        let seconds = (self.round_trip * MEASURED_ROUND_TRIPS).as_secs_f64();
        let goodput_bps: Vec<f64> =
            meter.measured_useful().iter().map(|useful| *useful as f64 * PAYLOAD as f64 * 8.0 / seconds).collect();
        let sum: f64 = goodput_bps.iter().sum();
        let squares: f64 = goodput_bps.iter().map(|goodput| goodput * goodput).sum();
        let round_trip = self.round_trip.as_secs_f64();
        let (p99, mean) = meter.queue();
        Congestion {
            utilisation: sum / self.ideal_bps(),
            p99_queue_over_rtt: p99.as_secs_f64() / round_trip,
            mean_queue_over_rtt: mean.as_secs_f64() / round_trip,
            queue_drops: meter.queue_drops(),
            start_rtts: timeline.iter().position(|(used, _)| *used >= 0.8).map(|half| (half + 1) as f64 / 2.0),
            start_drops_buffers: meter.dropped_before as f64 / (self.bdp_bytes() * self.buffer_bdp),
            spurious_fraction: meter.spurious_fraction(),
            jain: sum * sum / (squares * goodput_bps.len() as f64),
            goodput_bps,
            timeline,
        }
    }
}

/// Flows on their way.
struct Run {
    flows: Vec<Transfer>,
    /// The flow of each node.
    owner: Vec<usize>,
    meter: Meter,
}

impl Run {
    fn until(&mut self, network: &mut Network, until: Instant) -> Result<(), TransferError> {
        while network.next().is_some_and(|at| at <= until) {
            match network.step(&mut self.meter) {
                Some(Step::Handled(NodeId(node))) => {
                    let flow = &mut self.flows[self.owner[node]];
                    let before = flow.completed_bytes();
                    flow.poll();
                    if flow.completed_bytes() > before {
                        flow.post(network, &mut self.meter);
                    }
                    if let Some(failure) = flow.failure() {
                        return Err(failure.clone());
                    }
                }
                Some(Step::Woken(flow)) => self.flows[flow as usize].post(network, &mut self.meter),
                _ => {}
            }
            self.meter.look(network);
        }
        network.advance_to(until);
        Ok(())
    }
}
