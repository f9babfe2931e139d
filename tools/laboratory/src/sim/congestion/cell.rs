use uroce::congestion::{CongestionControl, Rate};
use uroce::time::Duration;
use uroce::transport::{RecoveryMode, RecoverySettings};
use uroce::wire::PathMtu;

use crate::sim::goodput;
use crate::sim::random::Random;
use crate::sim::transfer::{TransferError, TransferOperation, TransferPlan};

use super::flow_plan::FlowPlan;
use super::run::{MESSAGE_BYTES, Run};
use super::setup::Setup;
use super::{CUBIC, Congestion, FlowSizes, Scenario, TCP_BBR, TCP_CUBIC};

/// One cell of the table of congestion: flows that share a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CongestionCell {
    /// The scenario.
    pub scenario: Scenario,
    /// What decides on the rate of each flow, of the first one where the scenario names a rival.
    pub control: CongestionControl,
    /// The number of flows, 1 to 100.
    pub flows: usize,
    /// The round trip without queues, of the flows with the longest.
    pub round_trip: Duration,
    /// The rate of the bottleneck, in bits of Ethernet frames a second.
    pub line_bps: u64,
    /// The bottleneck's buffer, in bandwidth-delay products.
    pub buffer_bdp: f64,
    /// The share of frames that are lost by chance in each direction, 0 to 1.
    pub loss: f64,
}

const WAN_BPS: u64 = 10_000_000_000;
const WAN_ROUND_TRIP: Duration = Duration::from_millis(20);

/// A data centre: its bottleneck has a buffer of 1 MB.
const DATA_CENTRE_BPS: u64 = 25_000_000_000;
const DATA_CENTRE_BUFFER: f64 = 1e6;

/// A line of 200 Mb/s on a short way, with a buffer of 50 KB and of 500 KB: 2 and 20 ms of it.
const SLOW_BPS: u64 = 200_000_000;
const SLOW_ROUND_TRIP: Duration = Duration::from_micros(100);
const SLOW_BUFFERS: [f64; 2] = [20.0, 200.0];

/// A line of 500 Mb/s, of which each of 64 flows has five packets in a round trip.
const SMALL_SHARES_BPS: u64 = 500_000_000;

/// A port of 40 Gb/s of a switch with a buffer of 12 MB, as in the published analysis of DCQCN; and numbers
/// of flows for which that finds a queue below the length from which on all packets are marked.
const LONG_FLOWS_BPS: u64 = 40_000_000_000;
const LONG_FLOWS_ROUND_TRIP: Duration = Duration::from_micros(4);
const LONG_FLOWS_BUFFER: f64 = 600.0;
const LONG_FLOWS: [usize; 3] = [2, 4, 8];

/// A line of 300 Mb/s between two hosts that are busy, as in the comparison of NIXL over uroce and over TCP.
const BUSY_BPS: u64 = 300_000_000;
const BUSY_ROUND_TRIP: Duration = Duration::from_millis(30);

/// Lines that flows share with one of TCP, and those of scavengers: `cargo xtask wan --beside` has the same of real frames.
const BESIDE_TCP_BPS: [u64; 2] = [100_000_000, 300_000_000];

/// Connections over which flows of a data centre come at random, the messages that one may have posted then, which are some of the
/// largest flows, and the memory of each of its sides.
const CONNECTIONS: usize = 32;
const OFFERED_MESSAGES: usize = 4096;
const OFFERED_REGION_BYTES: usize = 1 << 20;

/// A flow that pauses has so many bandwidth-delay products posted: what is in flight, and in a buffer of one.
const PAUSING_BDP: f64 = 2.2;

/// Upper bound on the memory of each side of a flow, in bytes: its messages take turns.
const REGION_BYTES: usize = 16 << 20;

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
                        let line_bps = WAN_BPS;
                        cells.push(CongestionCell { scenario, control, flows, round_trip, line_bps, buffer_bdp, loss });
                    }
                }
            }
        }
        cells
    }

    /// The cells of all other scenarios; few have random loss, too.
    pub fn scenarios(control: CongestionControl) -> Vec<CongestionCell> {
        let wan = |scenario, flows, buffer_bdp| CongestionCell::over_wan(scenario, control, flows, buffer_bdp);
        let data_centre = |scenario, flows, round_trip: Duration| CongestionCell {
            round_trip,
            line_bps: DATA_CENTRE_BPS,
            buffer_bdp: DATA_CENTRE_BUFFER / (DATA_CENTRE_BPS as f64 / 8.0 * round_trip.as_secs_f64()),
            ..wan(scenario, flows, 0.0)
        };
        let mut cells = Vec::new();
        for buffer_bdp in [0.1, 1.0] {
            cells.push(wan(Scenario::Fair, 8, buffer_bdp));
            cells.push(wan(Scenario::Newcomer, 5, buffer_bdp));
            let round_trip = Duration::from_millis(100);
            cells.push(CongestionCell { round_trip, ..wan(Scenario::RttMix, 8, buffer_bdp) });
            cells.push(wan(Scenario::ParkingLot, 4, buffer_bdp));
            cells.push(wan(Scenario::OnOff, 1, buffer_bdp));
            cells.push(wan(Scenario::Microburst, 1, buffer_bdp));
        }
        for flows in [1, 4] {
            // It has no buffer; its burst is what counts.
            cells.push(wan(Scenario::Policer, flows, 0.0));
        }
        cells.push(data_centre(Scenario::DcWan, 16, Duration::from_millis(10)));
        cells.push(data_centre(Scenario::Incast, 16, Duration::from_micros(10)));
        cells.push(data_centre(Scenario::NewIncast, 16, Duration::from_micros(10)));
        for sizes in FlowSizes::ALL {
            cells.push(data_centre(Scenario::Flows(sizes), CONNECTIONS, Duration::from_micros(10)));
        }
        for buffer_bdp in SLOW_BUFFERS {
            let slow = wan(Scenario::SlowLink, 1, buffer_bdp);
            cells.push(CongestionCell { round_trip: SLOW_ROUND_TRIP, line_bps: SLOW_BPS, ..slow });
        }
        for buffer_bdp in [0.1, 1.0] {
            for loss in [0.0, 0.01, 0.05] {
                let small = wan(Scenario::SmallShares, 64, buffer_bdp);
                cells.push(CongestionCell { line_bps: SMALL_SHARES_BPS, loss, ..small });
            }
        }
        for flows in LONG_FLOWS {
            let long = wan(Scenario::LongFlows, flows, LONG_FLOWS_BUFFER);
            cells.push(CongestionCell { round_trip: LONG_FLOWS_ROUND_TRIP, line_bps: LONG_FLOWS_BPS, ..long });
        }
        for line_bps in [SMALL_SHARES_BPS, WAN_BPS] {
            for buffer_bdp in [0.1, 1.0] {
                for loss in [0.0, 0.01] {
                    for flows in [1, 64] {
                        cells.push(CongestionCell { line_bps, loss, ..wan(Scenario::OnePeer, flows, buffer_bdp) });
                    }
                }
            }
        }
        for buffer_bdp in [0.1, 1.0] {
            for loss in [0.0, 0.01] {
                let busy = wan(Scenario::BusyHosts, 1, buffer_bdp);
                cells.push(CongestionCell { round_trip: BUSY_ROUND_TRIP, line_bps: BUSY_BPS, loss, ..busy });
            }
        }
        for line_bps in BESIDE_TCP_BPS {
            for buffer_bdp in [0.1, 1.0] {
                cells.push(CongestionCell { line_bps, ..wan(Scenario::Scavenger, 2, buffer_bdp) });
                for flows in [1, 2, 4] {
                    for loss in [0.0, 0.001, 0.01] {
                        cells.push(CongestionCell { line_bps, loss, ..wan(Scenario::Scavengers, flows, buffer_bdp) });
                    }
                }
            }
        }
        cells.extend(CongestionCell::rivals(control));
        cells
    }

    /// The cells in which flows are beside those of another controller, or of TCP.
    fn rivals(control: CongestionControl) -> Vec<CongestionCell> {
        let wan = |scenario, flows, buffer_bdp| CongestionCell::over_wan(scenario, control, flows, buffer_bdp);
        let mut cells = Vec::new();
        for rival in CongestionControl::ALL.into_iter().chain([CUBIC]).filter(|rival| *rival != control) {
            for buffer_bdp in [0.1, 1.0] {
                cells.push(wan(Scenario::Versus(rival), 2, buffer_bdp));
            }
        }
        for rival in [TCP_CUBIC, TCP_BBR].into_iter().filter(|rival| *rival != control) {
            for line_bps in BESIDE_TCP_BPS {
                for (flows, buffer_bdp) in [(2, 0.1), (2, 0.5), (2, 1.0), (8, 1.0), (2, 3.0)] {
                    cells.push(CongestionCell { line_bps, ..wan(Scenario::BesideTcp(rival), flows, buffer_bdp) });
                }
            }
        }
        cells
    }

    /// Flows over the usual line of a wide area.
    fn over_wan(scenario: Scenario, control: CongestionControl, flows: usize, buffer_bdp: f64) -> CongestionCell {
        let (round_trip, line_bps) = (WAN_ROUND_TRIP, WAN_BPS);
        CongestionCell { scenario, control, flows, round_trip, line_bps, buffer_bdp, loss: 0.0 }
    }

    pub(super) fn bdp_bytes(&self) -> f64 {
        self.line_bps as f64 / 8.0 * self.round_trip.as_secs_f64()
    }

    fn path_mtu(&self) -> PathMtu {
        if self.scenario == Scenario::LongFlows { PathMtu::Mtu1024 } else { PathMtu::Mtu4096 }
    }

    /// The payload of data packets, in bytes.
    pub(super) fn payload(&self) -> u64 {
        self.path_mtu().bytes() as u64
    }

    /// What the bottleneck carries when it loses its share of frames, in bits of payload a second.
    pub(super) fn ideal_bps(&self) -> f64 {
        goodput::ideal_bps_of(self.payload(), self.loss) * self.line_bps as f64 / (8.0 * goodput::RATE as f64)
    }

    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, completions came out of order, or the received bytes differ.
    pub fn run(&self, seed: u64) -> Result<Congestion, TransferError> {
        let setup = Setup::of(self, &mut Random::new(seed, 3));
        // Losses in a row hold back completions for round trips; and a flow can have more than its share.
        let share = (4.0 / self.flows as f64).min(1.0);
        let bytes = (8.0 * self.bdp_bytes() * share) as usize + (8 << 20);
        let (outstanding, region) = match setup.sizes {
            Some(_) => (OFFERED_MESSAGES, OFFERED_REGION_BYTES),
            None => (bytes / MESSAGE_BYTES, REGION_BYTES),
        };
        let plan = |flow: &FlowPlan| {
            // What is posted at the beginning of a pause is still sent.
            let outstanding = match flow.pauses {
                Some(_) => ((PAUSING_BDP * self.bdp_bytes()) as usize).div_ceil(MESSAGE_BYTES),
                None => outstanding,
            };
            let recovery = RecoverySettings {
                recovery: RecoveryMode::Auto,
                line_rate: Some(Rate::from_bits(setup.access_bps)),
                ..RecoverySettings::default().with_congestion(flow.control)
            };
            TransferPlan {
                path_mtu: self.path_mtu(),
                operation: TransferOperation::Write,
                message_bytes: MESSAGE_BYTES,
                outstanding,
                region_bytes: (outstanding * MESSAGE_BYTES).min(region),
                recovery: [recovery; 2],
                timeout: setup.timeout,
            }
        };
        let play = |setup: &Setup| {
            let mut run = Run::new(self, setup, seed, plan);
            run.play()?;
            Ok(run.result())
        };
        let mut result = play(&setup)?;
        if self.scenario == Scenario::Scavenger {
            let alone = play(&Setup::of(self, &mut Random::new(seed, 3)).without_scavengers())?;
            result.beside_alone(alone.goodput_bps[0], self.ideal_bps());
        }
        Ok(result)
    }
}
