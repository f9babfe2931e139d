use rustc_hash::FxHashMap;
use uroce::time::{Duration, Instant};
use uroce::wire::{Bth, Qpn};
use zerocopy::FromBytes;

use crate::ethernet::is_marked;
use crate::sim::frame_pool::Condition;
use crate::sim::goodput::{DataMeter, Delivered};
use crate::sim::link::Lost;
use crate::sim::network::{LinkId, Network, NodeId, Observer, bth_offset};

use super::chain::Chain;

/// Measures flows that share bottlenecks: what arrives, what is dropped, what is sent again, and how long the queues are.
pub(super) struct Meter {
    /// The flow of each receiver and queue pair.
    flows: FxHashMap<(NodeId, Qpn), usize>,
    /// What each flow sends, and what arrives of it.
    senders: Vec<DataMeter>,
    receivers: Vec<DataMeter>,
    bottlenecks: Vec<LinkId>,
    /// When the queue is looked at next.
    look_at: Instant,
    every: Duration,
    queues: Vec<Duration>,
    recent: (Duration, u32),
    is_measuring: bool,
    /// What each flow had sent, and what had arrived of it, when the measured time began.
    from: Vec<[Delivered; 2]>,
    sent: u64,
    dropped: u64,
    /// Packets that arrived in the measured time, and those of them that were marked.
    arrived: [u64; 2],
    /// Bytes of the background that the bottleneck carried in the measured time.
    background: u64,
    /// Bytes that were dropped before the measured time.
    pub dropped_before: u64,
}

impl Meter {
    /// A meter of flows to these queue pairs of receivers, which looks at the queues in intervals of `every`.
    pub fn new(chain: &Chain, destinations: impl Iterator<Item = (NodeId, Qpn)>, every: Duration) -> Meter {
        let flows: FxHashMap<_, _> = destinations.zip(0..).collect();
        let meters = || flows.iter().map(|_| DataMeter::default()).collect();
        Meter {
            senders: meters(),
            receivers: meters(),
            flows,
            bottlenecks: chain.bottlenecks.clone(),
            look_at: Instant::ZERO,
            every,
            queues: Vec::new(),
            recent: (Duration::ZERO, 0),
            is_measuring: false,
            from: Vec::new(),
            sent: 0,
            dropped: 0,
            arrived: [0; 2],
            background: 0,
            dropped_before: 0,
        }
    }

    /// Looks at the queues, if it is time.
    pub fn look(&mut self, network: &Network) {
        while self.look_at <= network.now() {
            for bottleneck in &self.bottlenecks {
                let queue = network.queue_delay(*bottleneck);
                self.recent = (self.recent.0 + queue, self.recent.1 + 1);
                if self.is_measuring {
                    self.queues.push(queue);
                }
            }
            self.look_at = self.look_at + self.every;
        }
    }

    /// Begins the measured time.
    pub fn begin(&mut self) {
        self.is_measuring = true;
        let ends = self.senders.iter().zip(&self.receivers);
        self.from = ends.map(|(sender, receiver)| [sender.delivered(), receiver.delivered()]).collect();
    }

    pub fn take_mean_queue(&mut self) -> Duration {
        let (sum, count) = std::mem::take(&mut self.recent);
        sum / count.max(1)
    }

    /// Takes so many bytes of the background that the bottleneck carries.
    pub fn background(&mut self, bytes: u64) {
        self.background += if self.is_measuring { bytes } else { 0 };
    }

    pub fn measured_background(&self) -> u64 {
        self.background
    }

    /// Data packets of each flow that have arrived, each once.
    pub fn useful(&self) -> Vec<u64> {
        self.receivers.iter().map(|receiver| receiver.delivered().useful).collect()
    }

    /// Data packets of each flow that arrived in the measured time, each once.
    pub fn measured_useful(&self) -> Vec<u64> {
        self.useful().iter().zip(&self.from).map(|(useful, [_, from])| useful - from.useful).collect()
    }

    /// Data packets that were sent again in the measured time, as a share of those that arrived for the first time.
    pub fn resent(&self) -> f64 {
        let senders = self.senders.iter().zip(&self.from);
        let again: u64 = senders.map(|(sender, [from, _])| sender.delivered().twice - from.twice).sum();
        again as f64 / self.measured_useful().iter().sum::<u64>().max(1) as f64
    }

    /// The 99th percentile and the mean of the queues' delay in the measured time.
    pub fn queue(&self) -> [Duration; 2] {
        let mut queues = self.queues.clone();
        queues.sort_unstable();
        let p99 = queues.get(queues.len() * 99 / 100).copied().unwrap_or_default();
        [p99, queues.iter().sum::<Duration>() / queues.len().max(1) as u32]
    }

    /// Frames that a full queue or a policer dropped in the measured time, as a share of those that were sent.
    pub fn queue_drops(&self) -> f64 {
        self.dropped as f64 / self.sent.max(1) as f64
    }

    /// Packets that switches marked, of those that arrived in the measured time.
    pub fn marked(&self) -> f64 {
        let [all, marked] = self.arrived;
        marked as f64 / all.max(1) as f64
    }

    pub fn spurious_fraction(&self) -> f64 {
        let twice: u64 = self.receivers.iter().map(|receiver| receiver.delivered().twice).sum();
        twice as f64 / self.useful().iter().sum::<u64>().max(1) as f64
    }
}

impl Observer for Meter {
    fn sent(&mut self, now: Instant, node: NodeId, frame: &[u8], to: NodeId) {
        if let Some(&flow) = self.flows.get(&(to, destination(frame))) {
            self.sent += u64::from(self.is_measuring);
            self.senders[flow].arriving(now, node, frame, Condition::Intact);
        }
    }

    fn lost(&mut self, _now: Instant, _to: NodeId, frame: &[u8], why: Lost) {
        if !matches!(why, Lost::QueueFull | Lost::Policed) {
            return;
        }
        match self.is_measuring {
            true => self.dropped += 1,
            false => self.dropped_before += frame.len() as u64,
        }
    }

    fn arriving(&mut self, now: Instant, node: NodeId, frame: &[u8], condition: Condition) {
        if let Some(&flow) = self.flows.get(&(node, destination(frame))) {
            self.receivers[flow].arriving(now, node, frame, condition);
            if self.is_measuring {
                self.arrived[0] += 1;
                self.arrived[1] += u64::from(is_marked(frame));
            }
        }
    }
}

/// The queue pair that a frame goes to.
fn destination(frame: &[u8]) -> Qpn {
    let bth = frame.get(bth_offset(frame)..).map(Bth::ref_from_prefix);
    bth.and_then(Result::ok).map_or(Qpn::default(), |(bth, _)| bth.destination())
}
