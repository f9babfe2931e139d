use uroce::time::{Duration, Instant};
use uroce::wire::PathMtu;

use crate::sim::network::{Network, NodeId, Step};
use crate::sim::transfer::{Transfer, TransferError, TransferOperation, TransferPlan};

use super::MatrixCell;
use super::flow_counts::FlowCounts;

/// How long the flows of a matrix took, and what that cost.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowTimes {
    /// The time of each flow, from its start until its sender knew that all had arrived, in the order of the matrix.
    pub times: Vec<Duration>,
    /// When the last flow was over, from the start of the first.
    pub last: Duration,
    /// Frames that full queues dropped, acknowledges included.
    pub dropped: u64,
    /// Data packets that were sent.
    pub sent: u64,
    /// Those of them that had been sent before.
    pub resent: u64,
    /// The share of data packets that arrived marked.
    pub marked: f64,
}

impl FlowTimes {
    /// The mean time of a flow.
    pub fn mean(&self) -> Duration {
        self.times.iter().sum::<Duration>() / self.times.len().max(1) as u32
    }

    /// The shortest time of a flow.
    pub fn first(&self) -> Duration {
        self.times.iter().min().copied().unwrap_or_default()
    }
}

/// Flows on their way.
pub(super) struct Run<'a> {
    cell: &'a MatrixCell,
    network: Network,
    transfers: Vec<Transfer>,
    /// The flows that begin or end at each host.
    of_host: Vec<Vec<usize>>,
    counts: FlowCounts,
    /// When each flow was over.
    over_at: Vec<Option<Instant>>,
}

/// Bytes that each flow sends by itself before, so that its ends know all paths and the round trip: a packet on each path.
/// uet-htsim's hosts know both from the beginning.
const GREETING_BYTES: u64 = 64 << 12;

/// How long after each other flows do so, and then the time until the matrix begins.
const GREETING_EVERY: Duration = Duration::from_micros(200);

/// When the first flow greets: by then its paths have answered.
const GREETS_AT: Duration = Duration::from_millis(1);

/// Flows that take longer are given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// The local ACK timeout code: 524 µs. uet-htsim waits for 304 and 443 µs in these networks.
const TIMEOUT: u8 = 7;

impl<'a> Run<'a> {
    /// A run from the beginning.
    pub fn new(cell: &'a MatrixCell, seed: u64) -> Run<'a> {
        let (mut network, hosts) = cell.tree.network(seed);
        if cell.acknowledges_first {
            network.let_acknowledges_overtake();
        }
        let mut of_host = vec![Vec::new(); hosts.len()];
        let mut transfers = Vec::new();
        for (index, flow) in cell.matrix.flows.iter().enumerate() {
            let length = flow.bytes.max(GREETING_BYTES) as usize;
            let plan = TransferPlan {
                path_mtu: PathMtu::Mtu4096,
                operation: TransferOperation::Write,
                message_bytes: length,
                outstanding: 2,
                region_bytes: length,
                recovery: [cell.recovery(); 2],
                timeout: TIMEOUT,
            };
            transfers.push(Transfer::new(&mut network, [hosts[flow.from], hosts[flow.to]], plan, seed));
            [flow.from, flow.to].iter().for_each(|host| of_host[*host].push(index));
        }
        let over_at = vec![None; transfers.len()];
        Run { cell, network, transfers, of_host, counts: FlowCounts::default(), over_at }
    }

    /// Has each flow send a message by itself, one after the other.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed.
    pub fn greet(&mut self) -> Result<(), TransferError> {
        for flow in 0..self.transfers.len() {
            let at = Instant::ZERO + GREETS_AT + GREETING_EVERY * flow as u32;
            self.network.wake_at(at, flow as u64);
        }
        let end = Instant::ZERO + GREETS_AT + GREETING_EVERY * (self.transfers.len() as u32 + 1);
        self.until(end, |_| GREETING_BYTES)
    }

    /// Has all flows send what the matrix says.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, flows do not come to an end, or the received bytes differ.
    pub fn play(mut self) -> Result<FlowTimes, TransferError> {
        let (begin, before) = (self.network.now(), self.network.tally());
        (self.counts, self.over_at) = (FlowCounts::default(), vec![None; self.transfers.len()]);
        let flows = &self.cell.matrix.flows;
        for (index, flow) in flows.iter().enumerate() {
            self.network.wake_at(begin + flow.start, index as u64);
        }
        self.until(begin + PATIENCE, |flow| flows[flow].bytes)?;
        let over: Vec<Instant> = self.over_at.iter().copied().collect::<Option<_>>().ok_or_else(|| {
            let left = self.over_at.iter().filter(|at| at.is_none()).count();
            TransferError::Wrong(format!("{left} flows are not over after {PATIENCE:?}"))
        })?;
        let [first, again] = self.counts.sent();
        let times = over.iter().zip(flows).map(|(at, flow)| *at - (begin + flow.start)).collect();
        let starts = flows.iter().map(|flow| flow.start).min().unwrap_or_default();
        let result = FlowTimes {
            times,
            last: over.iter().max().map_or(Duration::ZERO, |last| *last - (begin + starts)),
            dropped: self.network.tally().lost_to_full_queues - before.lost_to_full_queues,
            sent: first + again,
            resent: again,
            marked: self.counts.marked(),
        };
        for transfer in self.transfers {
            transfer.finish(&mut self.network, &mut self.counts)?;
        }
        Ok(result)
    }

    /// Plays until `end`, or until all flows are over. A flow that is woken sends as many bytes as `bytes` says.
    fn until(&mut self, end: Instant, bytes: impl Fn(usize) -> u64) -> Result<(), TransferError> {
        let Run { network, transfers, of_host, counts, over_at, .. } = self;
        let mut left = transfers.len();
        while left > 0 && network.next().is_some_and(|at| at <= end) {
            match network.step(counts) {
                Some(Step::Woken(flow)) => {
                    transfers[flow as usize].send(network, counts, bytes(flow as usize));
                }
                Some(Step::Handled(NodeId(host))) => {
                    for flow in &of_host[host] {
                        let transfer = &mut transfers[*flow];
                        let before = transfer.completed();
                        transfer.poll();
                        if let Some(failure) = transfer.failure() {
                            return Err(failure.clone());
                        }
                        if transfer.completed() > before {
                            over_at[*flow] = Some(network.now());
                            left -= 1;
                        }
                    }
                }
                _ => {}
            }
        }
        network.advance_to(end);
        Ok(())
    }
}
