use uroce::time::{Duration, Instant};

use crate::sim::goodput::FRAME;
use crate::sim::network::{NodeId, Step};
use crate::sim::random::Random;
use crate::sim::transfer::{Transfer, TransferError, TransferPlan};

use super::chain::Chain;
use super::flow_plan::FlowPlan;
use super::meter::Meter;
use super::offered::Offered;
use super::setup::Setup;
use super::{CompletionTime, Congestion, CongestionCell};

/// Flows on their way.
pub(super) struct Run<'a> {
    cell: &'a CongestionCell,
    setup: &'a Setup,
    chain: Chain,
    transfers: Vec<Transfer>,
    /// The flows of each node.
    flows: Vec<Vec<usize>>,
    meter: Meter,
    intervals: Vec<Interval>,
    /// When each flow had sent all that it has to send.
    completed_at: Vec<Option<Instant>>,
    /// Flows that come at random, over the others.
    offered: Option<Offered>,
}

/// What happened in half a round trip.
struct Interval {
    /// What arrived of each flow, in bits of payload a second.
    goodput_bps: Vec<f64>,
    /// The mean delay of the queues.
    queue: Duration,
}

/// The length of messages, in bytes.
pub(super) const MESSAGE_BYTES: usize = 1 << 16;

/// What wakes the background, and when a flow comes; flows are woken by their numbers.
const BACKGROUND: u64 = u64::MAX;
const ARRIVAL: u64 = u64::MAX - 1;

/// The part of the bottleneck that flows load which come at random.
const LOAD: f64 = 0.5;

/// The shortest interval that is looked at.
const INTERVAL_MIN: Duration = Duration::from_micros(50);

/// Intervals over which the share of a flow is looked at: five round trips.
const SHARE_INTERVALS: usize = 10;

/// The part of its share that a flow has to have.
const SHARE: f64 = 0.8;

impl<'a> Run<'a> {
    /// A run from the beginning, with transfers by the `plan` of each controller.
    pub fn new(
        cell: &'a CongestionCell,
        setup: &'a Setup,
        seed: u64,
        plan: impl Fn(&FlowPlan) -> TransferPlan,
    ) -> Run<'a> {
        let mut chain = Chain::new(setup, seed);
        let mut transfers = Vec::new();
        for (flow, nodes) in setup.flows.iter().zip(chain.pairs.clone()) {
            transfers.push(Transfer::of_class(&mut chain.network, nodes, plan(flow), flow.class, seed));
        }
        for (number, flow) in setup.flows.iter().enumerate() {
            flow.greets.into_iter().chain([flow.start]).for_each(|at| chain.network.wake_at(at, number as u64));
        }
        if let Some(background) = &setup.background {
            chain.network.wake_at(background.first(), BACKGROUND);
        }
        let destinations = transfers.iter().map(Transfer::destination);
        let (flows, meter) = (chain.flows(), Meter::new(&chain, destinations, setup.look_every()));
        let completed_at = vec![None; setup.flows.len()];
        let offered = setup.sizes.map(|sizes| {
            let random = &mut Random::new(seed, 4);
            Offered::new(sizes, LOAD * cell.ideal_bps(), setup.warm, setup.flows.len(), random)
        });
        if let Some(first) = offered.as_ref().and_then(Offered::next_at) {
            chain.network.wake_at(first, ARRIVAL);
        }
        Run { cell, setup, chain, transfers, flows, meter, intervals: Vec::new(), completed_at, offered }
    }

    /// Plays until the end of the measured time, or until all flows have sent what they have to send.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed or completions came out of order.
    pub fn play(&mut self) -> Result<(), TransferError> {
        let every = self.every();
        let mut before = self.meter.useful();
        let mut is_measuring = false;
        while self.chain.network.now() < self.setup.end && !self.is_over() {
            if self.chain.network.now() >= self.setup.warm && !is_measuring {
                is_measuring = true;
                self.meter.begin();
            }
            self.until(self.chain.network.now() + every)?;
            let useful = self.meter.useful();
            let arrived = useful.iter().zip(&before).map(|(useful, before)| useful - before);
            let goodput_bps = arrived.map(|arrived| self.bits(arrived) / every.as_secs_f64()).collect();
            self.intervals.push(Interval { goodput_bps, queue: self.meter.take_mean_queue() });
            before = useful;
        }
        Ok(())
    }

    /// Whether all flows have sent what they have to send.
    fn is_over(&self) -> bool {
        match &self.offered {
            Some(offered) => offered.is_over(),
            None => self.completed_at.iter().all(Option::is_some),
        }
    }

    /// The length of an interval: half a round trip.
    fn every(&self) -> Duration {
        (self.cell.round_trip / 2).max(INTERVAL_MIN)
    }

    fn until(&mut self, until: Instant) -> Result<(), TransferError> {
        while self.chain.network.next().is_some_and(|at| at <= until) {
            let step = self.chain.network.step(&mut self.meter);
            let Run { chain: Chain { network, bottlenecks, .. }, meter, offered, .. } = self;
            match step {
                Some(Step::Handled(NodeId(node))) => {
                    for index in 0..self.flows[node].len() {
                        self.poll(self.flows[node][index])?;
                    }
                }
                Some(Step::Woken(BACKGROUND)) => {
                    if let Some(background) = &self.setup.background {
                        let passed = network.occupy(bottlenecks[0], FRAME);
                        meter.background(if passed { FRAME } else { 0 });
                        network.wake_at(background.next(network.now()), BACKGROUND);
                    }
                }
                Some(Step::Woken(ARRIVAL)) => {
                    if let Some(offered) = offered {
                        offered.begin(&mut self.transfers, network, meter);
                        offered.next_at().into_iter().for_each(|at| network.wake_at(at, ARRIVAL));
                    }
                }
                Some(Step::Woken(number)) => {
                    let (plan, flow) = (&self.setup.flows[number as usize], &mut self.transfers[number as usize]);
                    if let Some(bytes) = end_of(plan, network.now()) {
                        flow.end_after(bytes / MESSAGE_BYTES as u64);
                    }
                    if !plan.is_paused(network.now()) {
                        flow.post(network, meter);
                    }
                    if let Some(turn) = plan.pauses {
                        network.wake_at(network.now() + turn, number);
                    }
                }
                _ => {}
            }
            self.meter.look(&self.chain.network);
        }
        self.chain.network.advance_to(until);
        Ok(())
    }

    /// Takes the completions of the flow of that number, and posts again.
    fn poll(&mut self, number: usize) -> Result<(), TransferError> {
        let (plan, flow) = (&self.setup.flows[number], &mut self.transfers[number]);
        let before = flow.completed_bytes();
        flow.poll();
        if let Some(failure) = flow.failure() {
            return Err(failure.clone());
        }
        if flow.completed_bytes() == before {
            return Ok(());
        }
        let now = self.chain.network.now();
        if !plan.is_paused(now) {
            flow.post(&mut self.chain.network, &mut self.meter);
        }
        if let Some(offered) = &mut self.offered {
            offered.completed(number, flow.completed(), now);
        }
        if now >= plan.start && end_of(plan, now) == Some(flow.completed_bytes()) {
            self.completed_at[number] = Some(now);
        }
        Ok(())
    }

    /// What came of it.
    pub fn result(&self) -> Congestion {
        let (cell, setup, meter) = (self.cell, self.setup, &self.meter);
        let seconds = self.chain.network.now().saturating_since(setup.warm).as_secs_f64();
        let sent: Vec<f64> = match &self.offered {
            // Their packets are of all lengths, and connections are not to be equal.
            Some(offered) => vec![offered.done_bytes() as f64 * 8.0 / seconds],
            None => meter.measured_useful().iter().map(|useful| self.bits(*useful) / seconds).collect(),
        };
        let free = 1.0 - meter.measured_background() as f64 * 8.0 / seconds / setup.line_bps as f64;
        let ideal = cell.ideal_bps() * free;
        let lasted = |flow: usize| Some((self.completed_at[flow]? - setup.flows[flow].start).as_secs_f64());
        let of_flow = |(flow, sent): (usize, &f64)| match (setup.flows[flow].bytes, lasted(flow)) {
            (Some(bytes), Some(lasted)) => bytes as f64 * 8.0 / lasted,
            _ => *sent,
        };
        let goodput_bps: Vec<f64> = sent.iter().enumerate().map(of_flow).collect();
        let sum: f64 = goodput_bps.iter().sum();
        let squares: f64 = goodput_bps.iter().map(|goodput| goodput * goodput).sum();
        let round_trip = cell.round_trip.as_secs_f64();
        let [p99, mean] = meter.queue().map(|delay| delay.as_secs_f64());
        let timeline: Vec<(f64, f64)> = self
            .intervals
            .iter()
            .map(|interval| {
                let used = self.carried(&interval.goodput_bps) / cell.ideal_bps();
                (used, interval.queue.as_secs_f64() / round_trip)
            })
            .collect();
        let is_endless = setup.flows.iter().all(|flow| flow.bytes.is_none());
        let start = timeline.iter().position(|(used, _)| is_endless && *used >= 0.8);
        Congestion {
            utilisation: self.carried(&sent) / ideal,
            p99_queue_over_rtt: p99 / round_trip,
            mean_queue_over_rtt: mean / round_trip,
            queue_bytes: [p99, mean].map(|delay| delay * setup.line_bps as f64 / 8.0),
            queue_drops: meter.queue_drops(),
            marked: meter.marked(),
            start_rtts: start.map(|interval| (interval + 1) as f64 * self.every().div_duration_f64(cell.round_trip)),
            start_drops_buffers: meter.dropped_before as f64 / setup.buffer_bytes as f64,
            spurious_fraction: meter.spurious_fraction(),
            resent: meter.resent(),
            jain: sum * sum / (squares * goodput_bps.len() as f64),
            shares: if self.offered.is_some() { Vec::new() } else { self.shares(&goodput_bps, self.fair_bps() * free) },
            convergence_rtts: self.convergence_rtts(),
            completion: self.completion(),
            sizes: self.offered.iter().flat_map(|offered| offered.bins(cell.ideal_bps(), cell.round_trip)).collect(),
            scavenged: None,
            goodput_bps,
            timeline,
        }
    }

    /// The payload of so many data packets, in bits.
    fn bits(&self, packets: u64) -> f64 {
        (packets * self.cell.payload() * 8) as f64
    }

    /// What the bottlenecks carry of these flows, as a mean.
    fn carried(&self, goodput_bps: &[f64]) -> f64 {
        let hops = self.setup.flows.iter().map(|flow| flow.hops.len() as f64);
        hops.zip(goodput_bps).map(|(hops, goodput)| hops * goodput).sum::<f64>() / self.setup.hops as f64
    }

    /// The goodput of each flow when all have the same.
    fn fair_bps(&self) -> f64 {
        let takes_first = self.setup.flows.iter().filter(|flow| flow.hops.start == 0);
        self.cell.ideal_bps() / takes_first.count() as f64
    }

    /// The mean goodput of each group, as a part of what it has when all flows have the same.
    fn shares(&self, goodput_bps: &[f64], fair_bps: f64) -> Vec<f64> {
        let share = |group: usize| {
            let of_group = self.setup.flows.iter().zip(goodput_bps).filter(|(flow, _)| flow.group == group);
            let (sum, count) = of_group.fold((0.0, 0.0), |(sum, count), (_, goodput)| (sum + goodput, count + 1.0));
            sum / count / fair_bps
        };
        (0..self.setup.groups()).map(share).collect()
    }

    /// Round trips from the start of the last flow until each watched flow has its share for good, over five round trips.
    fn convergence_rtts(&self) -> Option<f64> {
        let setup = self.setup;
        if setup.background.is_some() || setup.flows.iter().any(|flow| flow.bytes.is_some()) {
            return None;
        }
        let least = SHARE * self.fair_bps() * SHARE_INTERVALS as f64;
        let has_share = |intervals: &[Interval]| {
            let of_flow = |flow: usize| intervals.iter().map(|interval| interval.goodput_bps[flow]).sum::<f64>();
            setup.watched.clone().all(|flow| of_flow(flow) >= least)
        };
        let windows: Vec<bool> = self.intervals.windows(SHARE_INTERVALS).map(has_share).collect();
        let first = windows.iter().rposition(|has_share| !has_share).map_or(0, |last| last + 1);
        let began = setup.flows.iter().map(|flow| flow.start).max()?;
        let at = (self.every() * first as u32).saturating_sub(began - Instant::ZERO);
        (first < windows.len()).then_some(at.div_duration_f64(self.cell.round_trip))
    }

    /// When the last flow had sent all; `None` when flows have no end, or one did not come to it.
    fn completion(&self) -> Option<CompletionTime> {
        let flows = &self.setup.flows;
        let bytes = flows.iter().map(|flow| flow.bytes).sum::<Option<u64>>()?;
        let ideal = bytes as f64 * 8.0 / self.cell.ideal_bps() + self.cell.round_trip.as_secs_f64();
        let first = flows.iter().map(|flow| flow.start).min()?;
        let completed: Vec<Instant> = self.completed_at.iter().copied().collect::<Option<_>>()?;
        let lasted = completed.iter().zip(flows).map(|(at, flow)| (*at - flow.start).as_secs_f64());
        let last = completed.iter().max().map(|at| *at - first)?;
        Some(CompletionTime {
            last,
            slowdown: last.as_secs_f64() / ideal,
            mean_slowdown: lasted.sum::<f64>() / flows.len() as f64 / ideal,
        })
    }
}

/// The bytes after which a flow stops to send, by now; `None` for never.
fn end_of(flow: &FlowPlan, now: Instant) -> Option<u64> {
    let greeting = if flow.greets.is_some() { MESSAGE_BYTES as u64 } else { 0 };
    flow.bytes.map(|bytes| if now < flow.start { greeting } else { greeting + bytes })
}
