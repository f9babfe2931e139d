use uroce::time::Duration;
use uroce::transport::{QpAttributes, State};

use crate::sim::chaos::header::Header;
use crate::sim::network::NodeId;

use super::{Wake, World};

/// The number of checks whether a queue pair can be reused.
const QUIET_TRIES: u32 = 40;

/// States of queue pairs besides those of connecting: SQD and back, and RESET.
impl World {
    fn state(&mut self, c: usize, s: usize) -> Option<State> {
        let side = &self.watch.observer.connections[c].sides[s];
        self.network.endpoint(side.node).queue_pair(side.qpn).map(|queue_pair| queue_pair.state()).ok()
    }

    fn set_state(&mut self, c: usize, s: usize, attributes: QpAttributes) {
        let now = self.network.now();
        let side = &self.watch.observer.connections[c].sides[s];
        if let Err(error) = self.network.endpoint(side.node).modify(now, side.qpn, &attributes) {
            self.watch.observer.violation_at(now, c, s, format!("{attributes:?}: {error}"));
        }
    }

    /// Drains a send queue now and then: messages in progress are finished, and later ones wait.
    pub(super) fn drain_now_and_then(&mut self, c: usize, s: usize) {
        let program = &mut self.programs[c];
        let connection = &mut self.watch.observer.connections[c];
        let is_well = program.connected && !connection.sides[s].killed && !connection.flows[s].is_draining;
        if !is_well || !program.window_random.chance(program.plan.drain) || self.state(c, s) != Some(State::ReadyToSend)
        {
            return;
        }
        self.watch.observer.connections[c].flows[s].is_draining = true;
        let state = Some(State::SendQueueDrained);
        self.set_state(c, s, QpAttributes { state, notify_drained: Some(true), ..QpAttributes::default() });
        let node = self.watch.observer.connections[c].sides[s].node;
        self.take_events(node);
    }

    /// Takes the events of a node. A program whose send queue is drained resumes it after a while.
    pub(super) fn take_events(&mut self, node: NodeId) {
        let now = self.network.now();
        while let Some(event) = self.network.endpoint(node).poll_event() {
            if let Some((c, s)) = self.watch.observer.event(now, node, event) {
                let program = &mut self.programs[c];
                let at = now + program.window_random.up_to(program.plan.think + Duration::from_micros(30));
                self.wake(at, Wake::Resume { c, s }, c);
            }
        }
    }

    /// Resumes a drained send queue.
    pub(super) fn resume(&mut self, c: usize, s: usize) {
        let flow = &mut self.watch.observer.connections[c].flows[s];
        (flow.is_draining, flow.is_drained) = (false, false);
        if self.state(c, s) == Some(State::SendQueueDrained) {
            self.set_state(c, s, QpAttributes { state: Some(State::ReadyToSend), ..QpAttributes::default() });
            let node = self.watch.observer.connections[c].sides[s].node;
            self.network.kick(node, &mut self.watch);
            self.after(node);
        }
    }

    /// Takes a queue pair to RESET with all posted requests, which then never complete.
    pub(super) fn reset(&mut self, c: usize, s: usize) {
        let side = &mut self.watch.observer.connections[c].sides[s];
        if side.destroyed {
            return;
        }
        let (node, qpn) = (side.node, side.qpn);
        (side.killed, side.destroyed, side.is_reset) = (true, true, true);
        self.set_state(c, s, QpAttributes { state: Some(State::Reset), ..QpAttributes::default() });
        self.watch.observer.by_qpn.remove(&(node.0, qpn.value()));
    }

    /// Connects again. Queue pairs in RESET are reused when no packet of their earlier life is in flight.
    pub(super) fn want_connect(&mut self, c: usize) {
        self.programs[c].quiet_tries = QUIET_TRIES;
        self.connect_when_quiet(c);
    }

    pub(super) fn connect_when_quiet(&mut self, c: usize) {
        let sides = &self.watch.observer.connections[c].sides;
        let qpns = sides.each_ref().map(|side| side.qpn);
        let is_kept = sides.each_ref().map(|side| side.is_reset);
        let is_quiet = !self.network.is_on_its_way(|frame| qpns.contains(&Header::of(frame).qpn));
        if is_quiet || is_kept == [false; 2] {
            return self.connect(c);
        }
        if let Some(left) = self.programs[c].quiet_tries.checked_sub(1) {
            self.programs[c].quiet_tries = left;
            let at = self.network.now() + self.scenario.setting.core.delay * 4 + Duration::from_micros(200);
            return self.wake(at, Wake::Connect { c }, c);
        }
        for s in [0, 1] {
            let side = &mut self.watch.observer.connections[c].sides[s];
            if std::mem::take(&mut side.is_reset) {
                let (node, qpn) = (side.node, side.qpn);
                self.network.endpoint(node).destroy_queue_pair(qpn).expect("it is in RESET");
            }
        }
        self.connect(c);
    }
}
