use uroce::time::{Duration, Instant};
use uroce::wire::{Bth, PathMtu, Qpn};
use zerocopy::FromBytes;

use crate::sim::frame_pool::Condition;
use crate::sim::goodput::{DataMeter, PAYLOAD};
use crate::sim::line::Line;
use crate::sim::network::{Network, NodeId, Observer, Step, bth_offset};
use crate::sim::transfer::{Transfer, TransferError, TransferOperation, TransferPlan};

use super::{KvTransport, Piece};

/// Warm connections over a line, packet by packet. Each piece becomes messages, which are dealt to the connections in turn.
pub(super) struct Pool {
    network: Network,
    connections: Vec<Transfer>,
    arrived: Arrived,
    /// Messages that each connection was asked to carry.
    asked: Vec<u64>,
    depth: Depth,
    /// The messages of a connection that keep it busy.
    busy: u64,
}

/// The messages of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depth {
    /// Length of each, in bytes. Pieces are filled up to whole messages.
    pub message_bytes: u64,
    /// How many of them can be on their way at once.
    pub outstanding: u64,
}

/// Length of a message, in bytes, where nothing else is said.
pub(super) const MESSAGE_BYTES: u64 = 64 << 10;

/// What the memory of each side of a connection is at most, in bytes, if a message fits: messages take turns.
const REGION_BYTES: u64 = 16 << 20;

/// The local ACK timeout codes: 268 ms, and 67 ms where a round trip is at most half of it.
const TIMEOUTS: [u8; 2] = [16, 14];
const SHORT: Duration = Duration::from_millis(30);

/// How long connections send before anything is measured: round trips, and at least so long. Where packets are lost by chance,
/// CUBIC's window is far from its mean for seconds.
const WARM_UP_ROUND_TRIPS: u32 = 32;
const WARM_UP_AT_LEAST: Duration = Duration::from_millis(300);
const WARM_UP_CUBIC: Duration = Duration::from_secs(6);

/// What arrived at the receiver, by connection.
struct Arrived(Vec<(Qpn, DataMeter)>);

/// A piece that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(3600);

impl Depth {
    /// What keeps each connection busy, whatever the length of pieces.
    pub fn ample(line: &Line, transport: KvTransport) -> Depth {
        Depth { message_bytes: MESSAGE_BYTES, outstanding: Depth::in_flight(line, transport) / MESSAGE_BYTES }
    }

    /// The bytes of a connection that keep the line and its queue full.
    fn in_flight(line: &Line, transport: KvTransport) -> u64 {
        2 * line.bdp_bytes() / transport.connections() as u64 + (8 << 20)
    }
}

impl Pool {
    /// The connections of a transport, which have sent without a pause and are idle now.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed.
    pub fn warm(line: Line, transport: KvTransport, depth: Depth, seed: u64) -> Result<Pool, TransferError> {
        let (mut network, nodes) = line.network(seed);
        let count = transport.connections();
        let Depth { message_bytes, outstanding } = depth;
        let busy = Depth::in_flight(&line, transport).div_ceil(message_bytes).min(outstanding);
        let plan = TransferPlan {
            path_mtu: PathMtu::Mtu4096,
            operation: TransferOperation::Write,
            message_bytes: message_bytes as usize,
            outstanding: outstanding as usize,
            region_bytes: ((outstanding * message_bytes).min(REGION_BYTES).max(message_bytes)) as usize,
            recovery: [transport.recovery(); 2],
            timeout: TIMEOUTS[usize::from(line.round_trip <= SHORT)],
        };
        let connections: Vec<Transfer> = (0..count).map(|_| Transfer::new(&mut network, nodes, plan, seed)).collect();
        let arrived =
            Arrived(connections.iter().map(|connection| (connection.qpns()[1], DataMeter::default())).collect());
        let mut pool = Pool { network, connections, arrived, asked: vec![0; count], depth, busy };
        let at_least = if transport.is_slow_to_settle() && line.loss > 0.0 { WARM_UP_CUBIC } else { WARM_UP_AT_LEAST };
        pool.keep_busy((line.round_trip * WARM_UP_ROUND_TRIPS).max(at_least))?;
        Ok(pool)
    }

    /// Sends without a pause for `span`, and returns the payload that arrived in that time for the first time, in bits a
    /// second. Requests may still be on their way.
    ///
    /// # Errors
    /// The first failure of a connection.
    pub fn keep_busy(&mut self, span: Duration) -> Result<f64, TransferError> {
        let (began, before) = (self.network.now(), self.arrived.packets());
        let end = began + span;
        self.refill();
        while self.network.now() < end {
            if self.step()? {
                self.refill();
            }
        }
        let seconds = (self.network.now() - began).as_secs_f64();
        Ok(((self.arrived.packets() - before) * PAYLOAD) as f64 * 8.0 / seconds)
    }

    /// Hands pieces over, each at its time from now on, and returns when each was acknowledged whole. What was on its way
    /// before is waited for first.
    ///
    /// # Errors
    /// The first failure of a connection; a piece that does not arrive within an hour.
    pub fn carry(&mut self, pieces: &[Piece]) -> Result<Vec<Duration>, TransferError> {
        self.drain()?;
        let began = self.network.now();
        for (number, piece) in pieces.iter().enumerate() {
            self.network.wake_at(began + piece.at, number as u64);
        }
        let (mut next, mut ends) = (0, Vec::new());
        let mut goals: Vec<Vec<u64>> = Vec::new();
        while ends.len() < pieces.len() {
            if next < pieces.len() && self.network.now() >= began + pieces[next].at {
                self.ask(pieces[next].bytes.div_ceil(self.depth.message_bytes));
                goals.push(self.asked.clone());
                next += 1;
                continue;
            }
            if self.network.now() > began + pieces[ends.len()].at + PATIENCE {
                return Err(TransferError::Wrong(format!("piece {} does not arrive", ends.len())));
            }
            self.step()?;
            while goals.get(ends.len()).is_some_and(|goal| self.has_completed(goal)) {
                ends.push(self.network.now() - began);
            }
        }
        Ok(ends)
    }

    /// Waits for all that was asked for, and compares the memory of both sides.
    ///
    /// # Errors
    /// The first failure of a connection, or that the memory differs.
    pub fn finish(mut self) -> Result<(), TransferError> {
        self.drain()?;
        for connection in self.connections {
            connection.finish(&mut self.network, &mut self.arrived)?;
        }
        Ok(())
    }

    fn completed_bytes(&self) -> u64 {
        self.connections.iter().map(Transfer::completed_bytes).sum()
    }

    fn has_completed(&self, messages: &[u64]) -> bool {
        let mut all = self.connections.iter().zip(messages);
        all.all(|(connection, messages)| connection.completed_bytes() >= messages * self.depth.message_bytes)
    }

    /// Asks for messages until each connection has as many as keep it busy.
    fn refill(&mut self) {
        for number in 0..self.connections.len() {
            let completed = self.connections[number].completed_bytes() / self.depth.message_bytes;
            self.asked[number] = self.asked[number].max(completed + self.busy);
        }
        self.post();
    }

    /// Asks for so many messages more, of each connection its part.
    fn ask(&mut self, messages: u64) {
        let first = self.asked.iter().sum::<u64>();
        for message in first..first + messages {
            let count = self.asked.len() as u64;
            self.asked[(message % count) as usize] += 1;
        }
        self.post();
    }

    fn post(&mut self) {
        for (connection, asked) in self.connections.iter_mut().zip(&self.asked) {
            connection.end_after(*asked);
            connection.post(&mut self.network, &mut self.arrived);
        }
    }

    fn drain(&mut self) -> Result<(), TransferError> {
        let goal = self.asked.clone();
        let until = self.network.now() + PATIENCE;
        while !self.has_completed(&goal) {
            self.step()?;
            if self.network.now() > until {
                return Err(TransferError::Wrong("what is on its way does not arrive".into()));
            }
        }
        Ok(())
    }

    /// Handles an event. Returns whether something was completed.
    fn step(&mut self) -> Result<bool, TransferError> {
        let step = self.network.step(&mut self.arrived);
        let Some(step) = step else { return Err(TransferError::Wrong("nothing happens any more".into())) };
        if !matches!(step, Step::Handled(_)) {
            return Ok(false);
        }
        let before = self.completed_bytes();
        for connection in &mut self.connections {
            connection.poll();
            if let Some(failure) = connection.failure() {
                return Err(failure.clone());
            }
        }
        let is_more = self.completed_bytes() > before;
        if is_more {
            self.post();
        }
        Ok(is_more)
    }
}

impl Arrived {
    fn packets(&self) -> u64 {
        self.0.iter().map(|(_, meter)| meter.delivered().useful).sum()
    }
}

impl Observer for Arrived {
    fn arriving(&mut self, now: Instant, node: NodeId, frame: &[u8], condition: Condition) {
        let Some(Ok((bth, _))) = frame.get(bth_offset(frame)..).map(Bth::ref_from_prefix) else { return };
        if let Some((_, meter)) = self.0.iter_mut().find(|(qpn, _)| *qpn == bth.destination()) {
            meter.arriving(now, node, frame, condition);
        }
    }
}
