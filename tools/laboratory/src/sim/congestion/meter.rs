use uroce::time::{Duration, Instant};

use crate::sim::frame_pool::Condition;
use crate::sim::goodput::{DataMeter, Delivered};
use crate::sim::link::Lost;
use crate::sim::network::{LinkId, Network, NodeId, Observer};

use super::dumbbell::Dumbbell;

/// Measures flows that share a bottleneck: what arrives, what is dropped, and how long the queue is.
pub(super) struct Meter {
    /// The meter of each node; only receivers of data count.
    nodes: Vec<DataMeter>,
    bottleneck: LinkId,
    /// When the queue is looked at next.
    look_at: Instant,
    every: Duration,
    queues: Vec<Duration>,
    recent: (Duration, u32),
    is_measuring: bool,
    /// What had arrived when the measured time began.
    from: Vec<Delivered>,
    sent: u64,
    dropped: u64,
    /// Bytes that were dropped before the measured time.
    pub dropped_before: u64,
}

impl Meter {
    pub fn new(dumbbell: &Dumbbell, flows: usize) -> Meter {
        Meter {
            nodes: (0..2 * flows).map(|_| DataMeter::default()).collect(),
            bottleneck: dumbbell.bottleneck,
            look_at: Instant::ZERO,
            every: Duration::from_micros(100),
            queues: Vec::new(),
            recent: (Duration::ZERO, 0),
            is_measuring: false,
            from: Vec::new(),
            sent: 0,
            dropped: 0,
            dropped_before: 0,
        }
    }

    /// Looks at the queue, if it is time.
    pub fn look(&mut self, network: &Network) {
        while self.look_at <= network.now() {
            let queue = network.queue_delay(self.bottleneck);
            self.recent = (self.recent.0 + queue, self.recent.1 + 1);
            if self.is_measuring {
                self.queues.push(queue);
            }
            self.look_at = self.look_at + self.every;
        }
    }

    /// Begins the measured time.
    pub fn begin(&mut self) {
        self.is_measuring = true;
        self.from = self.nodes.iter().map(DataMeter::delivered).collect();
    }

    pub fn take_mean_queue(&mut self) -> Duration {
        let (sum, count) = std::mem::take(&mut self.recent);
        sum / count.max(1)
    }

    /// Data packets that have arrived, each once.
    pub fn useful(&self) -> u64 {
        self.nodes.iter().map(|meter| meter.delivered().useful).sum()
    }

    /// Data packets of each flow that arrived in the measured time, each once.
    pub fn measured_useful(&self) -> Vec<u64> {
        let useful: Vec<u64> =
            self.nodes.iter().zip(&self.from).map(|(meter, from)| meter.delivered().useful - from.useful).collect();
        useful.chunks(2).map(|pair| pair.iter().sum()).collect()
    }

    /// The 99th percentile and the mean of the queue's delay in the measured time.
    pub fn queue(&self) -> (Duration, Duration) {
        let mut queues = self.queues.clone();
        queues.sort_unstable();
        let p99 = queues.get(queues.len() * 99 / 100).copied().unwrap_or_default();
        (p99, queues.iter().sum::<Duration>() / queues.len().max(1) as u32)
    }

    /// Frames that the full queue dropped in the measured time, as a share of those that were sent.
    pub fn queue_drops(&self) -> f64 {
        self.dropped as f64 / self.sent.max(1) as f64
    }

    pub fn spurious_fraction(&self) -> f64 {
        let twice: u64 = self.nodes.iter().map(|meter| meter.delivered().twice).sum();
        twice as f64 / self.useful().max(1) as f64
    }
}

impl Observer for Meter {
    fn sent(&mut self, _now: Instant, node: NodeId, _frame: &[u8], _to: NodeId) {
        self.sent += u64::from(self.is_measuring && node.0.is_multiple_of(2));
    }

    fn lost(&mut self, _now: Instant, _to: NodeId, frame: &[u8], why: Lost) {
        if why != Lost::QueueFull {
            return;
        }
        match self.is_measuring {
            true => self.dropped += 1,
            false => self.dropped_before += frame.len() as u64,
        }
    }

    fn arriving(&mut self, now: Instant, node: NodeId, frame: &[u8], condition: Condition) {
        self.nodes[node.0].arriving(now, node, frame, condition);
    }
}
