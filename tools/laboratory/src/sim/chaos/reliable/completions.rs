use uroce::time::Instant;
use uroce::transport::{Completion, CompletionKind, Status};

use crate::sim::chaos::setting::Weather;
use crate::sim::network::NodeId;

use super::flow::{Fault, Flow, Kind, Wr, message_offset};
use super::oracle::{Connection, Oracle, Receive};

/// The oracle's checks of completions, and of the end of queue pairs and regions.
impl Oracle {
    /// Whether the side's queue pair can be in the error state without a fault of the stack.
    ///
    /// The reason is its program, a failed request of its own (which was reported then), or a refused request of the
    /// peer.
    fn may_be_dead(&self, c: usize, side: usize) -> bool {
        let connection = &self.connections[c];
        let (own, peers) = (&connection.flows[side], &connection.flows[1 - side]);
        connection.sides[side].killed || own.failed || peers.bad.is_some() || connection.sides[side].took_away
    }

    /// Checks that the requester of flow `s` used all its retries. Each retry and the last wait take the timeout,
    /// unless the peer reported earlier that a packet was missing.
    fn was_patient(&self, now: Instant, c: usize, s: usize) -> Result<(), String> {
        let connection = &self.connections[c];
        let flow = &connection.flows[s];
        let waits = u32::from(connection.retry_count) + 1;
        let timeouts = if connection.selective[s] { waits } else { waits.saturating_sub(flow.naks) };
        let (took, due) = (now.saturating_since(flow.patient_since), connection.timeout * timeouts);
        // The requester was silent for longer than a timeout with a retry left, although there was room to send.
        let was_silent = now.saturating_since(flow.last_sent_at) > connection.timeout;
        let was_idle = connection.is_patient && waits > 1 && flow.sent_again == 0 && was_silent;
        if took < due || was_idle {
            let Flow { sent_again, naks, .. } = flow;
            return Err(format!(
                "gave up after {took:?} of {due:?}, {sent_again} packets sent again and {naks} NAKs without progress"
            ));
        }
        Ok(())
    }

    /// Takes all completions of a node.
    pub fn poll(&mut self, now: Instant, node: NodeId) {
        for queue in 0..self.queues[node.0].len() {
            while let Some(completion) = self.queues[node.0][queue].poll() {
                self.completed(now, node, completion);
            }
            if self.queues[node.0][queue].has_overflowed() {
                self.violation(now, format!("completion queue {queue} of node {} has overflowed", node.0));
            }
        }
    }

    /// Checks and applies one completion.
    pub fn completed(&mut self, now: Instant, node: NodeId, completion: Completion) {
        let Some(&(c, side)) = self.by_qpn.get(&(node.0, completion.qpn.value())) else {
            return self.violation(now, format!("node {}: {completion:?} of no queue pair", node.0));
        };
        if completion.status != Status::Success {
            self.failed.push(c);
        }
        self.moved.push((c, side));
        let result = match completion.kind {
            CompletionKind::Receive | CompletionKind::ReceiveWriteWithImmediate => {
                self.receive_completed(now, c, side, &completion)
            }
            _ => self.send_completed(now, c, side, &completion),
        };
        if let Err(text) = result {
            self.violation_at(now, c, side, format!("{completion:?}: {text}"));
        }
    }

    fn send_completed(&mut self, now: Instant, c: usize, s: usize, completion: &Completion) -> Result<(), String> {
        let flow = &self.connections[c].flows[s];
        let (completed, posted) = (flow.completed, flow.posted());
        let index = completion.wr_id;
        if index < completed {
            return Err("completed before".into());
        }
        if index >= posted {
            return Err("was never posted".into());
        }
        if let Some(missing) = (completed..index).find(|index| flow.wr(*index).is_none_or(|wr| wr.signaled)) {
            return Err(format!("{missing} is not completed"));
        }
        if flow.failed && (completion.status != Status::WrFlush || index != completed) {
            return Err(format!("after a failure {completed} must be flushed next"));
        }
        let Some(wr) = flow.wr(index) else { return Err("was settled before".into()) };
        if wr.kind.completion() != completion.kind {
            return Err(format!("is a {:?}", wr.kind));
        }
        let success = completion.status == Status::Success;
        if success {
            if !wr.signaled {
                return Err("is not signaled".into());
            }
            if flow.bad.is_some_and(|bad| bad <= index) {
                return Err(format!("{:?} must fail", flow.bad));
            }
            if wr.kind.is_answered() && completion.byte_len != wr.len {
                return Err(format!("has {} bytes", wr.len));
            }
        } else {
            self.check_failure(now, c, s, index, completion.status)?;
        }
        // All requests before it were successful, reported or not.
        let done = if success { index + 1 } else { index };
        if !flow.failed {
            self.execute(now, c, s, done, "completed");
        }
        for index in completed..done {
            self.requester_done(now, c, s, index, true)?;
        }
        if !success {
            self.requester_done(now, c, s, index, false)?;
            self.connections[c].flows[s].failed = true;
        }
        let flow = &mut self.connections[c].flows[s];
        flow.completed = index + 1;
        flow.settle();
        Ok(())
    }

    /// Checks whether request `index` is allowed to fail with `status`.
    fn check_failure(&self, now: Instant, c: usize, s: usize, index: u64, status: Status) -> Result<(), String> {
        let connection = &self.connections[c];
        let flow = &connection.flows[s];
        let Some(wr) = flow.wr(index) else { return Err("unknown".into()) };
        let peer_may_be_gone = connection.sides.iter().any(|side| side.killed || side.took_away)
            || connection.flows[1 - s].bad.is_some()
            || connection.flows[1 - s].failed;
        // A completion that waited to be polled is from an earlier moment, when less had arrived.
        if status == Status::RetryExceeded && self.polls_at_once {
            self.was_patient(now, c, s)?;
        }
        let allowed = match status {
            Status::WrFlush => self.may_be_dead(c, s),
            Status::RetryExceeded => {
                self.weather == Weather::Harsh
                    || peer_may_be_gone
                    // The NAK can be lost, and the peer is silent after it.
                    || (self.weather == Weather::Mild && flow.bad.is_some())
            }
            Status::RnrRetryExceeded => {
                connection.rnr_retry != 7 && flow.most_rnr_naks > u32::from(connection.rnr_retry)
            }
            Status::RemoteAccess if wr.frozen => true,
            Status::MwBind if wr.kind.is_local() && connection.sides[s].took_away => true,
            status => wr.fault.is_some_and(|fault| fault.status() == status),
        };
        if allowed {
            Ok(())
        } else {
            Err(format!("no reason to fail: fault {:?}, weather {:?}", wr.fault, self.weather))
        }
    }

    /// Applies the end of request `index`: its result must be in place. Its buffers belong to the program again, which
    /// reuses them at once.
    fn requester_done(&mut self, now: Instant, c: usize, s: usize, index: u64, success: bool) -> Result<(), String> {
        let connection = &mut self.connections[c];
        let name = connection.name();
        let Some(wr) = connection.flows[s].wr(index).cloned() else { return Err(format!("{index} is unknown")) };
        if wr.kind.is_answered() {
            let mut offset = 0;
            for &(start, len) in &wr.pieces {
                let (start, len) = (start as usize, len as usize);
                let shadow = connection.sides[s].arena.shadow(start, len);
                if success {
                    shadow.copy_from_slice(&wr.expected[offset..][..len]);
                }
                offset += len;
            }
            self.verify_answer(now, c, s, &wr, success);
        }
        if success && wr.kind.is_local() {
            self.window_changed(c, s, &wr);
        }
        let side = &mut self.connections[c].sides[s];
        for &(start, len) in &wr.pieces {
            side.arena.scribble(start as usize, len as usize, name);
        }
        if let Some(slot) = wr.slot {
            let free = if wr.kind.is_answered() { &mut side.free_sinks } else { &mut side.free_sources };
            free.push(slot);
        }
        Ok(())
    }

    fn verify_answer(&mut self, now: Instant, c: usize, s: usize, wr: &Wr, success: bool) {
        for offset in self.connections[c].sides[s].arena.differences_in(&wr.pieces) {
            let connection = &self.connections[c];
            let actual = connection.sides[s].arena.actual(offset);
            if answer_may_be(connection, s, wr, offset, actual) {
                continue;
            }
            let index = wr.message_offset(offset).unwrap_or_default();
            let text = format!(
                "{:?} {} (success: {success}) brought {actual:#04x} as byte {index} of {}, where {:#04x} was due",
                wr.kind, wr.index, wr.len, wr.expected[index],
            );
            return self.violation_at(now, c, s, text);
        }
    }

    fn receive_completed(&mut self, now: Instant, c: usize, r: usize, completion: &Completion) -> Result<(), String> {
        let s = 1 - r;
        let connection = &mut self.connections[c];
        let name = connection.name();
        let Some(receive) = connection.sides[r].receives.pop_front() else { return Err("was never posted".into()) };
        if receive.wr_id != completion.wr_id {
            return Err(format!("{} is the oldest", receive.wr_id));
        }
        let flow = &mut connection.flows[s];
        let consumer = flow.consumer(flow.received + flow.flushed).cloned();
        if completion.status != Status::Success {
            flow.flushed += 1;
            let too_long = consumer.as_ref().is_some_and(|wr| wr.fault == Some(Fault::Invalid));
            let (ours, theirs) = (self.may_be_dead(c, r), self.connections[c].flows[s].bad.is_some());
            match completion.status {
                Status::WrFlush if ours => {}
                Status::LocalLength if too_long => {}
                Status::RemoteInvalidRequest | Status::LocalAccess if theirs => {}
                Status::LocalAccess if consumer.as_ref().is_some_and(|wr| wr.frozen) => {}
                _ => return Err("no reason to fail".into()),
            }
            self.verify_receive(now, c, r, &receive, consumer.as_ref());
        } else {
            let Some(wr) = consumer else { return Err("nothing was sent for it".into()) };
            flow.received += 1;
            if wr.end() > flow.arrived {
                return Err(format!("request {} has not arrived completely", wr.index));
            }
            if wr.fault.is_some() {
                return Err(format!("request {} must fail", wr.index));
            }
            let kind = match wr.kind {
                Kind::WriteImmediate => CompletionKind::ReceiveWriteWithImmediate,
                _ => CompletionKind::Receive,
            };
            let (told, due) = ((completion.immediate, completion.invalidated), (wr.immediate, wr.invalidates));
            if (completion.kind, completion.byte_len, told) != (kind, wr.len, due) {
                return Err(format!("{:?} {} of {} bytes has {due:?}", wr.kind, wr.index, wr.len));
            }
            if wr.kind == Kind::SendInvalidate {
                self.window_changed(c, s, &wr);
            }
            let connection = &mut self.connections[c];
            if wr.kind.is_send() {
                let mut offset = 0;
                for &(start, len) in &receive.pieces {
                    let len = (len as usize).min(wr.len as usize - offset);
                    let arena = &mut connection.sides[r].arena;
                    wr.payload.fill(offset, arena.shadow(start as usize, len));
                    offset += len;
                }
                self.verify_receive(now, c, r, &receive, None);
            }
            let done = if wr.kind.is_send() { wr.index } else { wr.index + 1 };
            self.execute(now, c, s, done, "reported the receipt after");
            self.connections[c].flows[s].settle();
        }
        let side = &mut self.connections[c].sides[r];
        for &(start, len) in &receive.pieces {
            side.arena.scribble(start as usize, len as usize, name);
        }
        side.free_receives.push(receive.slot);
        Ok(())
    }

    fn verify_receive(&mut self, now: Instant, c: usize, r: usize, receive: &Receive, consumer: Option<&Wr>) {
        for offset in self.connections[c].sides[r].arena.differences_in(&receive.pieces) {
            let connection = &self.connections[c];
            let arena = &connection.sides[r].arena;
            let actual = arena.actual(offset);
            let partly =
                consumer.is_some_and(|wr| may_have_received(connection, r, wr, receive, offset) == Some(actual));
            if !partly {
                let expected = arena.expected(offset, 1)[0];
                let text =
                    format!("receive {}: byte {offset} is {actual:#04x} and must be {expected:#04x}", receive.wr_id);
                return self.violation_at(now, c, r, text);
            }
        }
    }

    /// Applies that a window of `side`, or its target region, is taken away: requests in flight cannot write through it
    /// any more.
    pub fn take_away(&mut self, now: Instant, c: usize, side: usize, window: Option<usize>) {
        self.verify_side(now, c, side, "before access is taken away");
        let connection = &mut self.connections[c];
        connection.sides[side].took_away = true;
        connection.sides[side].deregistered |= window.is_none();
        let (start, len) = connection.layout.target();
        connection.sides[side].arena.accept(start, len);
        let flow = &mut connection.flows[1 - side];
        // This includes READs that are being answered.
        let (executed, completed) = (flow.executed, flow.completed);
        for wr in flow.wrs.iter_mut() {
            if (wr.index >= executed || (wr.kind == Kind::Read && wr.index >= completed))
                && wr.kind.is_remote()
                && wr.window == window
                && wr.len > 0
            {
                wr.frozen = true;
                wr.placed_before |= wr.places || wr.is_void;
                (wr.places, wr.is_void) = (false, false);
            }
            // A SEND that invalidates the window finds it gone.
            wr.frozen |=
                wr.kind == Kind::SendInvalidate && wr.index >= executed && window.is_some() && wr.window == window;
        }
        let (_, flag) = connection.layout.words();
        flow.last_flag = connection.sides[side].arena.actual_u64(flag);
    }

    /// Applies that the queue pair of a side goes away with all posted requests.
    pub fn abandon(&mut self, c: usize, side: usize) {
        let connection = &mut self.connections[c];
        let flow = &mut connection.flows[side];
        flow.completed = flow.posted();
        flow.failed = true;
        let side = &mut connection.sides[side];
        side.receives.clear();
        let (local, len) = connection.layout.local();
        side.arena.accept(local, len);
    }

    /// Checks, with both queue pairs in the error state, that every request has a completion.
    pub fn close(&mut self, now: Instant, c: usize) {
        for s in [0, 1] {
            let flow = &self.connections[c].flows[s];
            let (completed, posted) = (flow.completed, flow.posted());
            // Unsignaled requests can have been successful; otherwise they would have been flushed.
            let missing = (completed..posted).find(|index| flow.failed || flow.wr(*index).is_none_or(|wr| wr.signaled));
            if let Some(index) = missing {
                self.violation_at(now, c, s, format!("request {index} was neither completed nor flushed"));
            } else if completed < posted {
                self.execute(now, c, s, posted, "completed in silence");
                for index in completed..posted {
                    if let Err(text) = self.requester_done(now, c, s, index, true) {
                        self.violation_at(now, c, s, text);
                    }
                }
                self.connections[c].flows[s].completed = posted;
            }
            if let Some(receive) = self.connections[c].sides[s].receives.front() {
                let wr_id = receive.wr_id;
                self.violation_at(now, c, s, format!("receive request {wr_id} was neither completed nor flushed"));
            }
            self.verify_side(now, c, s, "after closing");
        }
        for side in &mut self.connections[c].sides {
            let len = side.arena.len();
            side.arena.accept(0, len);
        }
    }
}

/// Whether a READ or atomic can bring `actual` at an offset of the requester's arena: the expected byte, or for a READ
/// one that a later request has written meanwhile.
pub(super) fn answer_may_be(connection: &Connection, s: usize, wr: &Wr, offset: usize, actual: u8) -> bool {
    let Some(index) = wr.message_offset(offset) else { return false };
    if wr.expected.get(index) == Some(&actual) {
        return true;
    }
    let flow = &connection.flows[s];
    wr.kind == Kind::Read
        && flow.wrs.iter().filter(|later| later.index > wr.index).any(|later| {
            later
                .byte_ever_written(wr.target as usize + index, connection.mtu)
                .is_some_and(|(byte, psn)| byte == actual && flow.has_arrived(psn))
        })
}

/// The byte of an arriving SEND at an offset of the arena of the responder, `side`. Out of order it comes only from a
/// peer whose packets state their position.
pub(super) fn may_have_received(
    connection: &Connection,
    side: usize,
    wr: &Wr,
    receive: &Receive,
    offset: usize,
) -> Option<u8> {
    if !wr.kind.is_send() {
        return None;
    }
    let flow = &connection.flows[1 - side];
    let index = message_offset(&receive.pieces, offset)?;
    let psn = wr.first + (index / connection.mtu) as u64;
    let is_here = psn < flow.arrived || (connection.selective[side] && flow.has_arrived(psn));
    (index < wr.len as usize && is_here).then(|| wr.payload.byte(index))
}
