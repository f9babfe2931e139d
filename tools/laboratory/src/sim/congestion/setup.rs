use std::ops::Range;

use uroce::congestion::CongestionControl;
use uroce::time::{Duration, Instant};
use uroce::transport::Class;

use crate::sim::marking::Marking;
use crate::sim::policer::Policer;
use crate::sim::random::Random;

use super::background::Background;
use super::flow_plan::FlowPlan;
use super::{CongestionCell, FlowSizes, Scenario, TCP_CUBIC};

/// What a cell comes to: a row of bottlenecks, flows over them, and how long it is looked at.
pub(super) struct Setup {
    /// The number of bottlenecks in a row.
    pub hops: usize,
    /// The rate of each, in bits of Ethernet frames a second, and that of all other links.
    pub line_bps: u64,
    pub access_bps: u64,
    /// The buffer of each, in bytes.
    pub buffer_bytes: u64,
    pub marking: Option<Marking>,
    /// What polices the rate, instead of a queue.
    pub policer: Option<Policer>,
    /// The share of frames that are lost by chance in each direction, 0 to 1.
    pub loss: f64,
    /// How long a host has its processor, from the shorter to the longer time, and for how long it then has not.
    pub pauses: Option<([Duration; 2], Duration)>,
    pub flows: Vec<FlowPlan>,
    /// Whether all flows are between the same two hosts: the first one's path is that of all.
    pub have_one_pair: bool,
    /// The flows whose convergence is looked at.
    pub watched: Range<usize>,
    pub background: Option<Background>,
    /// The sizes of the flows that come at random, over those above as connections.
    pub sizes: Option<FlowSizes>,
    /// The local ACK timeout code: 4.096 µs × 2^code.
    pub timeout: u8,
    /// When the measured time begins, and when it ends.
    pub warm: Instant,
    pub end: Instant,
}

/// How much faster the links of the nodes are than the bottleneck.
const ACCESS_FACTOR: u64 = 4;

/// Where the flows need marks, the bottleneck of a wide area marks above what it carries in 32 µs: 100 KB at 25 Gb/s, as
/// in HPCC's simulations of DCQCN.
const MARKED_SHARE: u64 = 31_250;

/// In a data centre it marks as those simulations do: from 100 KB on at 25 Gb/s, a fifth just below 400 KB, and all above.
const DATA_CENTRE_MARKED: f64 = 0.2;

/// So it does for long flows: Kmin 5 KB, Kmax 200 KB, Pmax 1 % (Zhu et al., ECN or Delay: Lessons Learnt from Analysis of DCQCN and
/// TIMELY, CoNEXT 2016).
const LONG_FLOWS_MARKING: Marking = Marking { none_bytes: 5_000, all_bytes: 200_000, share: 0.01 };

/// How long these flows have to become steady, and how long they are measured then.
const LONG_FLOWS_TIMES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(200)];

/// The local ACK timeout codes: 268 ms, which is more than twice the longest round trip, and 67 ms, which is the default of
/// ibv_rc_pingpong and perftest.
const WAN_TIMEOUT: u8 = 16;
const DATA_CENTRE_TIMEOUT: u8 = 14;

/// The burst of a policer, in bytes: 64 KiB, as much as a host sends in one piece.
const POLICER_BURST: u64 = 64 << 10;

/// Length of what each flow of an incast sends, in bytes.
const INCAST_BYTES: u64 = 1 << 20;

/// How long busy hosts have their processor, and for how long they then have not: a time slice of Linux, which two programs that
/// never sleep take in turn.
const BUSY: ([Duration; 2], Duration) =
    ([Duration::from_millis(3), Duration::from_millis(9)], Duration::from_millis(3));

/// How long after each other the flows of an incast send their first message: each has the bottleneck for itself.
const GREETING_EVERY: Duration = Duration::from_micros(500);

/// An incast that takes this many times as long as it must is given up.
const INCAST_PATIENCE: u32 = 200;

/// Flows that come at random are given up after this time.
const FLOWS_PATIENCE: Duration = Duration::from_secs(10);

/// Round trips before the measured time, and in it.
const WARM_UP: u32 = 40;
const MEASURED: u32 = 40;

/// Round trips in which flows have the time to become equal, where that is what is looked at.
const CONVERGING: u32 = 160;

/// How long a flow is beside one of TCP before the measured time, and in it.
const BESIDE_TCP: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(20)];

/// How long TCP sends beside a scavenger, and then pauses: as in `uroce-wan --beside`.
const TURN: Duration = Duration::from_secs(2);

/// Whether a controller needs the marks of switches, and does not only take them.
fn needs_marks(control: CongestionControl) -> bool {
    control.reacts_to_marks() && control != CongestionControl::Steady
}

impl Setup {
    /// What a cell comes to, with flows that begin at random within a round trip.
    pub fn of(cell: &CongestionCell, random: &mut Random) -> Setup {
        let flow = |_| FlowPlan {
            control: cell.control,
            class: Class::default(),
            pauses: None,
            round_trip: cell.round_trip,
            hops: 0..1,
            greets: None,
            start: Instant::ZERO + random.up_to(cell.round_trip),
            bytes: None,
            group: 0,
        };
        let flows: Vec<FlowPlan> = (0..cell.flows).map(flow).collect();
        let line = cell.line_bps / 8;
        let rival = cell.scenario.rival();
        let marking = if cell.scenario == Scenario::LongFlows {
            Some(LONG_FLOWS_MARKING)
        } else if cell.scenario.is_data_centre() {
            Some(Marking { none_bytes: line / 31_250, all_bytes: 4 * line / 31_250, share: DATA_CENTRE_MARKED })
        } else {
            let is_needed = needs_marks(cell.control) || rival.is_some_and(needs_marks);
            is_needed.then_some(Marking::above(line / MARKED_SHARE))
        };
        let mut setup = Setup {
            hops: 1,
            line_bps: cell.line_bps,
            access_bps: ACCESS_FACTOR * cell.line_bps,
            buffer_bytes: (cell.bdp_bytes() * cell.buffer_bdp) as u64,
            marking,
            policer: None,
            loss: cell.loss,
            pauses: None,
            watched: 0..flows.len(),
            flows,
            have_one_pair: cell.scenario == Scenario::OnePeer,
            background: None,
            sizes: None,
            timeout: if cell.scenario.is_data_centre() { DATA_CENTRE_TIMEOUT } else { WAN_TIMEOUT },
            warm: Instant::ZERO,
            end: Instant::ZERO,
        };
        let [warm, measured] = setup.adjust(cell);
        setup.warm = Instant::ZERO + warm;
        setup.end = setup.warm + measured;
        setup
    }

    /// Makes it what the scenario says. Returns the time before the measured time, and the measured time.
    fn adjust(&mut self, cell: &CongestionCell) -> [Duration; 2] {
        let round_trips = |warm: u32, measured: u32| [warm, measured].map(|count| cell.round_trip * count);
        if let Some(rival) = cell.scenario.rival() {
            self.rivals(rival);
        }
        match cell.scenario {
            Scenario::Wan | Scenario::WanLoss => round_trips(WARM_UP, MEASURED),
            Scenario::Fair | Scenario::SmallShares | Scenario::OnePeer => round_trips(CONVERGING, MEASURED),
            Scenario::Newcomer => {
                if let Some(newcomer) = self.flows.last_mut() {
                    newcomer.start = newcomer.start + cell.round_trip * WARM_UP;
                    newcomer.group = 1;
                }
                self.watched = cell.flows - 1..cell.flows;
                round_trips(WARM_UP + CONVERGING, MEASURED)
            }
            Scenario::RttMix | Scenario::DcWan => {
                self.flows.iter_mut().skip(cell.flows / 2).for_each(|flow| flow.group = 1);
                let shorter = if cell.scenario == Scenario::DcWan { 1000 } else { 10 };
                let short = self.flows.iter_mut().filter(|flow| flow.group == 0);
                short.for_each(|flow| flow.round_trip /= shorter);
                round_trips(WARM_UP, MEASURED)
            }
            Scenario::Incast | Scenario::NewIncast => {
                let begins = self.acquaint(cell, cell.scenario == Scenario::Incast, INCAST_BYTES);
                let all = Duration::from_secs_f64((INCAST_BYTES * cell.flows as u64 * 8) as f64 / cell.line_bps as f64);
                [begins, (all + cell.round_trip) * INCAST_PATIENCE]
            }
            Scenario::Flows(sizes) => {
                self.sizes = Some(sizes);
                let begins = self.acquaint(cell, true, 0);
                [begins + cell.round_trip, FLOWS_PATIENCE]
            }
            Scenario::ParkingLot => {
                self.hops = cell.flows - 1;
                for (index, flow) in self.flows.iter_mut().enumerate() {
                    (flow.hops, flow.group) = if index == 0 { (0..cell.flows - 1, 0) } else { (index - 1..index, 1) };
                }
                round_trips(2 * WARM_UP, MEASURED)
            }
            Scenario::OnOff => {
                let turn = cell.round_trip * 10;
                self.background = Some(Background { bps: cell.line_bps / 2, off: turn, on: turn });
                round_trips(WARM_UP, 2 * MEASURED)
            }
            Scenario::Microburst => {
                // Three quarters of a burst wait: more than a buffer of a tenth of what is on the way.
                let on = cell.round_trip / 20;
                let off = cell.round_trip * 10 - on;
                self.background = Some(Background { bps: ACCESS_FACTOR * cell.line_bps, off, on });
                round_trips(WARM_UP, 2 * MEASURED)
            }
            Scenario::Policer => {
                let burst_bytes = POLICER_BURST;
                self.policer = Some(Policer { bytes_per_second: cell.line_bps / 8, burst_bytes });
                self.buffer_bytes = burst_bytes;
                round_trips(WARM_UP, MEASURED)
            }
            Scenario::LongFlows => {
                self.access_bps = cell.line_bps;
                LONG_FLOWS_TIMES
            }
            Scenario::SlowLink => [Duration::from_millis(500); 2],
            Scenario::BusyHosts => {
                self.pauses = Some(BUSY);
                round_trips(2 * WARM_UP, 4 * MEASURED)
            }
            Scenario::Scavenger => {
                self.flows[0].class = Class::Scavenger;
                self.rivals(TCP_CUBIC).iter_mut().for_each(|rival| rival.pauses = Some(TURN));
                [TURN * 2, TURN * 8]
            }
            Scenario::Scavengers => {
                self.flows.iter_mut().for_each(|flow| flow.class = Class::Scavenger);
                round_trips(2 * CONVERGING, 2 * CONVERGING)
            }
            Scenario::Versus(_) => round_trips(2 * WARM_UP, 2 * MEASURED),
            Scenario::BesideTcp(_) => BESIDE_TCP,
        }
    }

    /// The second half of the flows, which has this controller from now on, and is a group of its own.
    fn rivals(&mut self, control: CongestionControl) -> &mut [FlowPlan] {
        let half = self.flows.len() / 2;
        let rivals = &mut self.flows[half..];
        rivals.iter_mut().for_each(|rival| (rival.control, rival.group) = (control, 1));
        rivals
    }

    /// Makes all links as fast as the bottleneck, and all flows begin together with `bytes` to send; if they greet, each has sent a
    /// message by itself before. Returns when they begin.
    fn acquaint(&mut self, cell: &CongestionCell, greets: bool, bytes: u64) -> Duration {
        self.access_bps = cell.line_bps;
        let begins = GREETING_EVERY * (cell.flows as u32 + 1);
        for (index, flow) in self.flows.iter_mut().enumerate() {
            flow.greets = greets.then(|| Instant::ZERO + GREETING_EVERY * index as u32);
            (flow.start, flow.bytes) = (flow.start + begins, Some(bytes));
        }
        begins
    }

    /// The same without flows of class scavenger.
    pub fn without_scavengers(mut self) -> Setup {
        self.flows.retain(|flow| flow.class != Class::Scavenger);
        self.watched = 0..self.flows.len();
        self
    }

    /// How many groups of flows there are.
    pub fn groups(&self) -> usize {
        self.flows.iter().map(|flow| flow.group + 1).max().unwrap_or_default()
    }

    /// How often the queues are looked at: 200 times in a round trip, at most each 100 µs.
    pub fn look_every(&self) -> Duration {
        let longest = self.flows.iter().map(|flow| flow.round_trip).max().unwrap_or_default();
        (longest / 200).clamp(Duration::from_micros(1), Duration::from_micros(100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three of TCP's segments are one packet here: a window of packets grows three times as fast beside the scavenger.
    #[test]
    fn a_scavenger_is_beside_a_flow_that_counts_the_segments_of_tcp() {
        let cells = CongestionCell::scenarios(CongestionControl::Steady);
        let mut lines = 0;
        for cell in cells.iter().filter(|cell| cell.scenario == Scenario::Scavenger) {
            let [scavenger, rival] = &Setup::of(cell, &mut Random::new(0, 3)).flows[..] else { panic!("two flows") };
            assert_eq!((scavenger.class, rival.control.name()), (Class::Scavenger, TCP_CUBIC.name()));
            lines += 1;
        }
        assert_eq!(lines, 4);
    }
}
