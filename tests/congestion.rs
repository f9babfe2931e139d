//! Nobody types a rate, in virtual time: what cells of `uroce sim congestion` and `uroce sim loss-rtt` reach. The tables have
//! all of them; here are some that take a second each.

use uroce::congestion::CongestionControl;
use uroce::time::Duration;
use uroce::transport::{RecoveryMode, SendOperation};
use uroce_laboratory::sim::TransferOperation;
use uroce_laboratory::sim::congestion::{Congestion, CongestionCell, PAPER_DCQCN, Scenario};
use uroce_laboratory::sim::loss_rtt::{Cell, Ends};
use uroce_laboratory::world::Many;

const SEED: u64 = 1;

/// Flows over 10 Gb/s and 20 ms, with a buffer of a tenth of what is on the way.
fn over_a_shallow_buffer(flows: usize, loss: f64) -> Congestion {
    run(&CongestionCell {
        scenario: if loss == 0.0 { Scenario::Wan } else { Scenario::WanLoss },
        control: CongestionControl::default(),
        flows,
        round_trip: Duration::from_millis(20),
        line_bps: 10_000_000_000,
        buffer_bdp: 0.1,
        loss,
    })
}

fn run(cell: &CongestionCell) -> Congestion {
    run_with(SEED, cell)
}

fn run_with(seed: u64, cell: &CongestionCell) -> Congestion {
    cell.run(seed).unwrap_or_else(|error| panic!("seed {seed}, {cell:?}: {error}"))
}

/// It reaches 80 % within `start` round trips, and keeps to what is asked of it from then on.
fn assert_steady(reached: &Congestion, start: f64) {
    let Congestion { utilisation, p99_queue_over_rtt, queue_drops, start_rtts, .. } = reached;
    assert!(*utilisation >= 0.95, "seed {SEED}: {reached:?}");
    assert!(*p99_queue_over_rtt <= 0.05, "seed {SEED}: {reached:?}");
    assert!(*queue_drops <= 0.001, "seed {SEED}: {reached:?}");
    assert!(start_rtts.is_some_and(|rtts| rtts <= start), "seed {SEED}: {reached:?}");
}

#[test]
fn a_flow_finds_the_rate_and_keeps_the_queue_short() {
    let reached = over_a_shallow_buffer(1, 0.0);
    assert_steady(&reached, 12.0);
    assert!(reached.start_drops_buffers <= 1.0, "seed {SEED}: {reached:?}");
}

/// Of what is on the way over 300 Mb/s, the thirteen packets that the peer reports together are a twentieth.
#[test]
fn a_flow_alone_uses_a_slow_line_as_well() {
    for buffer_bdp in [0.1, 1.0] {
        let reached = run(&CongestionCell {
            scenario: Scenario::Wan,
            control: CongestionControl::default(),
            flows: 1,
            round_trip: Duration::from_millis(30),
            line_bps: 300_000_000,
            buffer_bdp,
            loss: 0.0,
        });
        assert!(reached.utilisation >= 0.99, "seed {SEED}, {buffer_bdp} BDP: {reached:?}");
    }
}

/// BBR v3 takes more than 2 % of loss for congestion, CUBIC any.
#[test]
fn what_is_lost_by_chance_is_not_taken_for_congestion() {
    // At 5 %, whole trains of the start are lost.
    for (loss, start) in [(0.001, 12.0), (0.01, 12.0), (0.05, 14.0)] {
        assert_steady(&over_a_shallow_buffer(1, loss), start);
    }
}

#[test]
fn four_flows_share_a_bottleneck_without_loss() {
    assert_steady(&over_a_shallow_buffer(4, 0.0), 12.0);
}

/// Else none of them ever sees the round trip without a queue, and half of what they send is dropped for good.
#[test]
fn many_flows_of_a_few_packets_find_the_round_trip_that_none_has_seen() {
    let cells: Vec<_> = played(CongestionControl::default(), Scenario::SmallShares).collect();
    assert_eq!(cells.len(), 6);
    for (cell, reached) in cells {
        let Congestion { utilisation, mean_queue_over_rtt, queue_drops, .. } = &reached;
        assert!(*utilisation >= 0.95, "seed {SEED}, {cell:?}: {reached:?}");
        assert!(*queue_drops <= 0.03, "seed {SEED}, {cell:?}: {reached:?}");
        assert!(*mean_queue_over_rtt <= 0.25, "seed {SEED}, {cell:?}: {reached:?}");
    }
}

/// Else each sends a first window, and from then on none sees enough of a round trip: they dropped 313 buffers at the start, and
/// 0.5 % for good.
#[test]
fn many_queue_pairs_to_one_peer_are_as_one_flow() {
    let cells = CongestionCell::scenarios(CongestionControl::default()).into_iter();
    let cells = cells.filter(|cell| cell.scenario == Scenario::OnePeer && cell.line_bps == 500_000_000);
    let reached: Vec<_> = cells.map(|cell| (cell, run(&cell))).collect();
    assert_eq!(reached.len(), 8);
    for (cell, reached) in reached {
        let Congestion { utilisation, p99_queue_over_rtt, queue_drops, start_drops_buffers, jain, .. } = reached;
        // With this seed losses at the start have it take the line for a slower one.
        let (least, most) = if cell.loss == 0.0 { (0.97, 0.1) } else { (0.9, 0.25) };
        assert!(utilisation >= least && jain >= 0.99, "seed {SEED}, {cell:?}: {reached:?}");
        assert!(p99_queue_over_rtt <= most && queue_drops <= 0.01, "seed {SEED}, {cell:?}: {reached:?}");
        assert!(start_drops_buffers <= 10.0, "seed {SEED}, {cell:?}: {reached:?}");
    }
}

/// Its own delays look like a queue of many once its start has overrun the buffer. It used 57 to 59 % of the line then.
#[test]
fn a_late_host_alone_is_not_taken_for_one_of_many() {
    for seed in 1..=3 {
        let cell = CongestionCell {
            scenario: Scenario::BusyHosts,
            control: CongestionControl::default(),
            flows: 1,
            round_trip: Duration::from_millis(2),
            line_bps: 300_000_000,
            buffer_bdp: 1.0,
            loss: 0.0,
        };
        let reached = run_with(seed, &cell);
        assert!(reached.utilisation >= 0.65, "seed {seed}, {cell:?}: {reached:?}");
    }
}

/// Their sender learns only from the requester's reports what became of READ responses, and at 5 % of loss many of the first
/// ones are asked for again.
#[test]
fn reads_find_the_rate_whatever_is_lost_at_the_start() {
    for round_trip_ms in [10, 40] {
        let cell = Cell {
            operation: TransferOperation::Read,
            ends: Ends::Selective,
            loss: 0.05,
            bursts: false,
            round_trip: Duration::from_millis(round_trip_ms),
            congestion: CongestionControl::default(),
        };
        let reached = cell.run(SEED).unwrap_or_else(|error| panic!("seed {SEED}, {cell:?}: {error}"));
        assert!(reached.goodput_bps >= 0.95 * reached.ideal_bps, "seed {SEED}, {cell:?}: {reached:?}");
    }
}

/// The cells of a scenario, one after the other.
fn played(control: CongestionControl, scenario: Scenario) -> impl Iterator<Item = (CongestionCell, Congestion)> {
    let cells = CongestionCell::scenarios(control);
    let of_scenario = cells.into_iter().filter(move |cell| cell.scenario == scenario);
    of_scenario.map(|cell| {
        let reached = run(&cell);
        (cell, reached)
    })
}

/// Those with the least work: queue pairs that keep 512 packets in flight, whatever happens.
fn with_fixed_windows(scenario: Scenario) -> impl Iterator<Item = (CongestionCell, Congestion)> {
    played(CongestionControl::Fixed, scenario)
}

/// What arrives in a round trip is the window, and so the goodput of each flow is known beforehand.
const WINDOW_BITS: f64 = 512.0 * 4096.0 * 8.0;

#[track_caller]
fn assert_near(found: f64, expected: f64, what: &Congestion) {
    assert!((found / expected - 1.0).abs() < 0.02, "{found} instead of {expected}, seed {SEED}: {what:?}");
}

#[test]
fn a_flow_over_three_bottlenecks_shares_each_with_another() {
    for (cell, reached) in with_fixed_windows(Scenario::ParkingLot) {
        let expected = WINDOW_BITS / cell.round_trip.as_secs_f64();
        assert_eq!(reached.goodput_bps.len(), 4);
        reached.goodput_bps.iter().for_each(|goodput| assert_near(*goodput, expected, &reached));
        // 10 Gb/s carry 9.86 Gb/s of payload, half of which is each flow's share.
        assert_near(reached.utilisation, 2.0 * expected / 9.861e9, &reached);
        reached.shares.iter().for_each(|share| assert_near(*share, expected / 4.931e9, &reached));
        assert_eq!((reached.shares.len(), reached.convergence_rtts), (2, None), "{reached:?}");
    }
}

#[test]
fn flows_of_a_tenth_of_the_round_trip_have_ten_times_the_goodput() {
    let cells = CongestionCell::scenarios(CongestionControl::Fixed);
    let mix = cells.into_iter().find(|cell| cell.scenario == Scenario::RttMix);
    let cell = CongestionCell { flows: 2, ..mix.expect("a cell of it") };
    let reached = run(&cell);
    let expected = WINDOW_BITS / cell.round_trip.as_secs_f64();
    assert_near(reached.goodput_bps[0], 10.0 * expected, &reached);
    assert_near(reached.goodput_bps[1], expected, &reached);
}

/// The background takes half of the line in half of the time, and slows down for nobody.
#[test]
fn what_the_background_leaves_is_what_can_be_used() {
    for (cell, reached) in with_fixed_windows(Scenario::OnOff) {
        let expected = WINDOW_BITS / cell.round_trip.as_secs_f64();
        assert_near(reached.utilisation, expected / (0.75 * 9.861e9), &reached);
    }
    for (_, reached) in with_fixed_windows(Scenario::Microburst) {
        // In a twentieth of a round trip, 3.75 MB more come than go: 15 % of what is on the way.
        let longest = reached.timeline.iter().map(|(_, queue)| *queue).fold(0.0, f64::max);
        assert!((0.005..0.15).contains(&longest) && reached.queue_drops == 0.0, "seed {SEED}: {reached:?}");
    }
}

/// Sixteen megabytes over 25 Gb/s, of flows that have sent a message before. All begin at once, and what the buffer of 1 MB cannot hold is lost and sent again.
#[test]
fn flows_that_begin_together_overrun_the_buffer_and_all_complete() {
    for (_, reached) in with_fixed_windows(Scenario::Incast) {
        let completion = reached.completion.unwrap_or_else(|| panic!("seed {SEED}: {reached:?}"));
        let least = 16.0 * 1_048_576.0 * 8.0 / (25e9 * 4096.0 / 4154.0);
        assert_near(completion.last.as_secs_f64() / completion.slowdown, least, &reached);
        assert!(completion.slowdown > 1.0 && completion.mean_slowdown <= completion.slowdown, "{reached:?}");
        assert!(reached.queue_drops > 0.1 && reached.resent > 0.1, "seed {SEED}: {reached:?}");
        let [p99, mean] = reached.queue_bytes;
        assert!(p99 > mean && (0.5e6..1e6).contains(&p99), "seed {SEED}: {reached:?}");
    }
}

#[test]
fn what_exceeds_a_policed_rate_is_lost_without_a_queue() {
    for (_, reached) in with_fixed_windows(Scenario::Policer) {
        // A window comes at 40 Gb/s: a burst of 64 KiB passes, and a quarter of the rest.
        assert!((0.3..0.75).contains(&reached.queue_drops), "seed {SEED}: {reached:?}");
        // A frame on the link itself is all that ever waits.
        assert!(reached.p99_queue_over_rtt < 1e-4, "seed {SEED}: {reached:?}");
    }
}

/// The cell of a scenario with so many flows, of a controller.
fn reached(control: CongestionControl, scenario: Scenario, flows: usize) -> Congestion {
    let mut cells = CongestionCell::scenarios(control).into_iter();
    let cell = cells.find(|cell| cell.scenario == scenario && cell.flows == flows).expect("a cell of it");
    run(&cell)
}

/// Its delay shows a queue long before the buffer is full: of what fixed windows lose, a twentieth is lost.
#[test]
fn swift_loses_little_of_an_incast() {
    let [swift, fixed] =
        [CongestionControl::Swift, CongestionControl::Fixed].map(|control| reached(control, Scenario::Incast, 16));
    assert!(swift.completion.is_some_and(|completion| completion.slowdown < 2.0), "seed {SEED}: {swift:?}");
    assert!(swift.queue_drops < 0.05 * fixed.queue_drops, "seed {SEED}: {swift:?}");
}

/// The controller cuts the window below what is in flight, of which no packet had asked for an acknowledge: with this seed a
/// flow stood still until the ACK timeout, 12 times the least time.
#[test]
fn a_window_that_is_cut_below_what_is_in_flight_goes_on() {
    let mut cells = CongestionCell::scenarios(CongestionControl::Swift).into_iter();
    let cell = cells.find(|cell| cell.scenario == Scenario::NewIncast).expect("a cell of it");
    for seed in [1, 4] {
        let reached = run_with(seed, &cell);
        assert!(reached.completion.is_some_and(|done| done.slowdown < 1.1), "seed {seed}: {reached:?}");
        assert_eq!(reached.resent, 0.0, "nothing was lost, seed {seed}: {reached:?}");
    }
}

/// A policer shows no queue: only losses tell that the rate is too high.
#[test]
fn bbr_keeps_to_its_loss_ceiling_at_a_policer() {
    let reached = reached(CongestionControl::Bbr, Scenario::Policer, 1);
    assert!(reached.queue_drops <= 0.02 && reached.utilisation >= 0.8, "seed {SEED}: {reached:?}");
}

/// The second flow of `versus` has the other controller: DCQCN, which starts at the link's rate, takes more than the window.
#[test]
fn a_rival_has_its_own_controller() {
    for (cell, reached) in with_fixed_windows(Scenario::Versus(CongestionControl::Dcqcn)).take(1) {
        assert_near(reached.goodput_bps[0], WINDOW_BITS / cell.round_trip.as_secs_f64(), &reached);
        assert!(reached.goodput_bps[1] > 2.0 * reached.goodput_bps[0], "seed {SEED}: {reached:?}");
        assert_eq!(reached.convergence_rtts, None);
    }
}

/// The line has room for two windows: the newcomer has its share as soon as it begins, in round trip 40.
#[test]
fn a_newcomer_is_measured_from_its_start() {
    let cell = CongestionCell {
        scenario: Scenario::Newcomer,
        control: CongestionControl::Fixed,
        flows: 2,
        round_trip: Duration::from_millis(20),
        line_bps: 1_700_000_000,
        buffer_bdp: 1.0,
        loss: 0.0,
    };
    let reached = run(&cell);
    assert!(reached.convergence_rtts.is_some_and(|rtts| rtts <= 3.0), "seed {SEED}: {reached:?}");
    reached.shares.iter().for_each(|share| assert_near(*share, 1.0, &reached));
}

/// A slow link behind a short way, whose queue 512 packets of path MTU 4096 overrun: in it they would stand for 84 ms.
#[test]
fn a_slow_link_behind_a_short_way_is_not_overrun() {
    for (cell, reached) in by_default(Scenario::SlowLink) {
        assert!(reached.resent <= 0.03 && reached.utilisation >= 0.95, "seed {SEED}, {cell:?}: {reached:?}");
    }
}

/// Those of the default.
fn by_default(scenario: Scenario) -> impl Iterator<Item = (CongestionCell, Congestion)> {
    played(CongestionControl::default(), scenario)
}

#[test]
fn eight_flows_become_equal_and_keep_the_queue_short() {
    for (cell, reached) in by_default(Scenario::Fair) {
        let Congestion { utilisation, p99_queue_over_rtt, queue_drops, jain, .. } = reached;
        let most = if cell.buffer_bdp < 1.0 { 0.05 } else { 0.1 };
        assert!(jain >= 0.95 && utilisation >= 0.95, "seed {SEED}, {cell:?}: {reached:?}");
        assert!(p99_queue_over_rtt <= most && queue_drops <= 0.001, "seed {SEED}, {cell:?}: {reached:?}");
    }
}

#[test]
fn a_newcomer_gets_its_share() {
    for (cell, reached) in by_default(Scenario::Newcomer) {
        let [_, newcomer] = reached.shares[..] else { panic!("seed {SEED}, {cell:?}: {reached:?}") };
        assert!(newcomer >= 0.8 && reached.utilisation >= 0.95, "seed {SEED}, {cell:?}: {reached:?}");
    }
}

#[test]
fn a_policed_rate_is_used_and_little_is_sent_in_vain() {
    let (alone, _) = by_default(Scenario::Policer).find(|(cell, _)| cell.flows == 1).expect("a cell of it");
    for seed in SEED..SEED + 3 {
        let reached = run_with(seed, &alone);
        assert!(reached.utilisation >= 0.9 && reached.queue_drops <= 0.05, "seed {seed}: {reached:?}");
    }
}

#[test]
fn a_side_that_only_acknowledges_needs_no_controller() {
    let mut many = Many::new(3, RecoveryMode::default());
    let remote = many.remote();
    assert_eq!(many.controllers(), [0, 0], "nothing was sent");
    for index in [0, 1, 0] {
        many.post(index, SendOperation::Write(remote), 64);
        many.complete(1);
    }
    assert_eq!(many.controllers(), [2, 0]);
    // Its answers have data.
    many.post(1, SendOperation::Read(remote), 64);
    many.complete(1);
    assert_eq!(many.controllers(), [2, 1]);
}

/// The share of marked packets at which nothing changes in the fluid model of DCQCN, for so many flows over 40 Gb/s with packets of
/// 1082 bytes, and a timer of increases of `timer` seconds (Zhu et al., ECN or Delay, CoNEXT 2016, section 3). Rates are in packets.
fn fixed_point(flows: f64, timer: f64) -> f64 {
    const PACKET_BITS: f64 = 1082.0 * 8.0;
    let (rate, added, bytes) = (40e9 / PACKET_BITS / flows, 40e6 / PACKET_BITS, 10e6 * 8.0 / PACKET_BITS);
    let change = |p: f64| {
        let kept = |packets: f64| (1.0 - p).powf(packets);
        let [cut, alpha] = [50e-6, 55e-6].map(|interval| 1.0 - kept(rate * interval));
        let [by_bytes, by_time] = [bytes, timer * rate].map(|packets| p / (1.0 / kept(packets) - 1.0));
        // Five increases do not raise the target.
        let target = added * (by_bytes * kept(5.0 * bytes) + by_time * kept(5.0 * timer * rate)) * rate * 50e-6 / cut;
        alpha * cut * rate / 50e-6 - target * (by_bytes + by_time) * rate
    };
    let (mut low, mut high) = (1e-7_f64, 0.5_f64);
    while high / low > 1.0 + 1e-9 {
        let middle = (low * high).sqrt();
        if change(middle) < 0.0 { low = middle } else { high = middle }
    }
    low
}

/// Packets are marked by chance, and the model has only means: it is met within a quarter with the timer of ConnectX. With the
/// paper's rates change more: two flows meet it within a half, and more have queues at which all packets are marked, at times.
#[test]
fn dcqcn_comes_to_the_fixed_point_of_its_published_model() {
    let model = [
        (CongestionControl::Dcqcn, 300e-6, 2, 1.25),
        (CongestionControl::Dcqcn, 300e-6, 8, 1.25),
        (PAPER_DCQCN, 55e-6, 2, 1.5),
    ];
    for (control, timer, flows, factor) in model {
        let mut cells = CongestionCell::scenarios(control).into_iter();
        let cell =
            cells.find(|cell| cell.scenario == Scenario::LongFlows && cell.flows == flows).expect("a cell of it");
        let reached = run(&cell);
        let marked = fixed_point(flows as f64, timer);
        let queue = 5_000.0 + marked / 0.01 * 195_000.0;
        for ratio in [reached.marked / marked, reached.queue_bytes[1] / queue] {
            assert!((1.0 / factor..factor).contains(&ratio), "seed {SEED}, {cell:?}, {marked}, {queue}: {reached:?}");
        }
        assert!(reached.jain > 0.98 && reached.queue_drops == 0.0, "seed {SEED}, {cell:?}: {reached:?}");
    }
}
