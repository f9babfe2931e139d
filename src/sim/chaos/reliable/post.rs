use arrayvec::ArrayVec;

use crate::sim::chaos::arena::{Arena, Piece};
use crate::sim::random::Random;
use crate::transport::{
    Data, InlineBytes, MAX_INLINE_BYTES, MAX_SGE, QpAttributes, ReceiveRequest, Remote, SendOperation, SendRequest,
    Sge, State,
};
use crate::wire::Key;

use super::flow::{Fault, Kind, Payload, Wr};
use super::oracle::Receive;
use super::plan::Trouble;
use super::windows::{Window, WindowState};
use super::{Program, World};

/// What is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Anything that is right.
    Any,
    /// What must fail.
    Bad,
    /// A SEND that invalidates this window of the peer.
    Invalidate(usize),
}

/// What programs post, and the trouble that they make.
impl World {
    pub(super) fn post_receives(&mut self, c: usize, s: usize, limit: usize) {
        let now = self.network.now();
        let Program { plan, random, connected, .. } = &mut self.programs[c];
        let connection = &mut self.watch.oracle.connections[c];
        let layout = connection.layout;
        let side = &mut connection.sides[s];
        if !*connected || side.killed {
            return;
        }
        for _ in 0..limit {
            if side.receives.len() >= plan.receive_depth[s] {
                break;
            }
            let Some(slot) = side.free_receives.pop() else { break };
            let pieces = pieces(layout.receive(slot), plan.max_len, plan.max_sge, random);
            let wr_id = 1 << 63 | side.posted_receives;
            let sges = pieces.iter().map(|piece| sge(&side.arena, *piece, side.local_key)).collect();
            let request = ReceiveRequest { wr_id, sges };
            side.receives.push_back(Receive { wr_id, slot, pieces });
            side.posted_receives += 1;
            if let Err(error) = self.network.endpoint(side.node).post_receive(now, side.qpn, request) {
                return self.watch.oracle.violation(now, format!("receive {wr_id:#x} was not posted: {error}"));
            }
        }
    }

    pub(super) fn post_batch(&mut self, c: usize, s: usize) {
        let node = self.watch.oracle.connections[c].sides[s].node;
        let batch = self.programs[c].random.between(1, 12);
        for _ in 0..batch {
            let program = &self.programs[c];
            let connection = &self.watch.oracle.connections[c];
            let outstanding = connection.flows[s].posted() - connection.flows[s].completed;
            let full = outstanding as usize >= program.plan.depth[s];
            if program.ages.is_due(program.posted) {
                self.want_age(c);
                break;
            }
            if full || program.is_silent() || program.posted[s] >= program.plan.quota[s] || connection.sides[s].killed {
                break;
            }
            if program.trouble_at.is_some_and(|at| at <= program.posted[0] + program.posted[1]) {
                self.programs[c].trouble_at = None;
                self.make_trouble(c, s);
                if self.watch.oracle.connections[c].sides[s].killed {
                    break;
                }
                continue;
            }
            if !self.tend_windows(c, s) {
                self.post(c, s, What::Any);
            }
        }
        self.drain_now_and_then(c, s);
        self.network.kick(node, &mut self.watch);
        self.after(node);
        let connection = &self.watch.oracle.connections[c];
        let outstanding = connection.flows[s].posted() - connection.flows[s].completed;
        if (outstanding as usize) < self.programs[c].plan.depth[s] && !connection.sides[s].killed {
            self.want_post(c, s);
        }
    }

    fn make_trouble(&mut self, c: usize, s: usize) {
        let now = self.network.now();
        match self.programs[c].plan.trouble {
            Trouble::None => return,
            Trouble::BadRequest => {
                let is_good =
                    self.watch.oracle.connections[c].flows.iter().all(|flow| flow.bad.is_none() && !flow.void);
                if self.programs[c].window_random.chance(0.1) && is_good && self.post_bad_binding(c, s) {
                    return;
                }
                return self.post(c, s, What::Bad);
            }
            Trouble::Kill => {
                let side = &mut self.watch.oracle.connections[c].sides[s];
                side.killed = true;
                let (node, qpn) = (side.node, side.qpn);
                let error = QpAttributes { state: Some(State::Error), ..QpAttributes::default() };
                self.network.endpoint(node).modify(now, qpn, &error).expect("any queue pair may go to the error state");
            }
            Trouble::Destroy | Trouble::Reset => {
                let node = self.watch.oracle.connections[c].sides[s].node;
                self.watch.oracle.poll(now, node);
                self.watch.oracle.verify_side(now, c, s, "before destruction");
                self.watch.oracle.abandon(c, s);
                match self.programs[c].plan.trouble {
                    Trouble::Reset => self.reset(c, s),
                    _ => self.destroy(c, s),
                }
            }
            Trouble::FreeWindow => {
                let windows = &self.watch.oracle.connections[c].sides[s].windows;
                let Some(number) = super::windows::open(windows, &mut self.programs[c].window_random) else { return };
                self.free_window(c, s, number);
            }
            Trouble::Deregister => {
                let windows = self.watch.oracle.connections[c].sides[s].windows.len();
                (0..windows).for_each(|number| self.free_window(c, s, number));
                self.watch.oracle.take_away(now, c, s, None);
                let side = &self.watch.oracle.connections[c].sides[s];
                let key = side.remote_key;
                let node = side.node;
                self.network.endpoint(node).memory().deregister(key).expect("it was registered");
                self.programs[c].keys[s].retain(|other| *other != key);
            }
        }
        self.want_close(c);
    }

    /// Posts a request of that kind.
    pub(super) fn post(&mut self, c: usize, s: usize, what: What) {
        let now = self.network.now();
        let Program { plan, random, posted, foreign_keys, next_flag, window_random, .. } = &mut self.programs[c];
        let bad = what == What::Bad;
        let connection = &mut self.watch.oracle.connections[c];
        let (layout, name) = (connection.layout, connection.name());
        let (target, target_len) = layout.target();
        let foreign_key = foreign_keys[1 - s];

        let mut kinds = random.below(plan.mix.iter().sum());
        let choice = plan.mix.iter().position(|share| {
            let here = kinds < *share;
            kinds = kinds.saturating_sub(*share);
            here
        });
        let mut is_flag = false;
        let mut kind = match choice.unwrap_or_default() {
            0 => Kind::Send,
            1 => Kind::SendImmediate,
            2 => Kind::Write,
            3 => Kind::WriteImmediate,
            4 => Kind::Read,
            5 => Kind::FetchAdd,
            6 => Kind::CompareSwap,
            _ => {
                is_flag = true;
                Kind::Write
            }
        };
        let mut window = None;
        {
            let responder = &connection.sides[1 - s];
            let is_needed = responder.is_renewing && !bad;
            if let What::Invalidate(number) = what {
                (kind, is_flag, window) = (Kind::SendInvalidate, false, Some(number));
            } else if kind.is_remote() && !bad && (is_needed || window_random.chance(0.5)) {
                window = super::windows::open(&responder.windows, window_random);
                if window.is_none() && is_needed {
                    (kind, is_flag) = (Kind::Send, false);
                }
            }
        }
        let mut len = match random.below(8) {
            _ if kind.is_atomic() || is_flag => 8,
            0 => 0,
            1 => random.between(1, 16) as usize,
            2 => plan.mtu.bytes() - 1,
            3 => plan.mtu.bytes(),
            4 => plan.mtu.bytes() + 1,
            _ => random.between(1, plan.max_len as u64) as usize,
        }
        .min(plan.max_len.max(8));

        let flow = &connection.flows[s];
        // What follows a request that must fail is flushed.
        let void = flow.void || flow.failed;
        let bad = bad && !void && flow.bad.is_none();
        let mut is_void = void;
        let (mut fault, mut places) = (None, !void);
        let (requester, responder) = match &mut connection.sides {
            [a, b] if s == 0 => (a, b),
            [a, b] => (b, a),
        };
        let (target, target_len) = match window {
            Some(_) if kind.is_remote() => Window::range(&layout),
            _ => (target, target_len),
        };
        let area_end = layout.words().0;
        let mut remote_key = window.map_or(responder.remote_key, |number| responder.windows[number].key);
        let mut local_key = requester.local_key;
        // Where it reads or writes.
        let mut at = match kind {
            Kind::Send | Kind::SendImmediate | Kind::SendInvalidate | Kind::Bind | Kind::LocalInvalidate => 0,
            Kind::FetchAdd | Kind::CompareSwap => layout.word(random.below(8)),
            Kind::Read => target + random.below((target_len - len.min(target_len)) as u64 + 1) as usize,
            _ if is_flag => layout.words().1,
            _ => target + random.below((area_end - target - len) as u64 + 1) as usize,
        };
        if bad {
            is_flag = false;
            let which = random.below(9);
            // Keys of windows: one that is none any more, or bytes that are outside.
            let windows = &responder.windows;
            let stale = windows.iter().find_map(|window| window.stale);
            let shown = windows.iter().find(|window| window.state == WindowState::Open).map(|window| window.key);
            match which {
                0..=4 => {
                    if !matches!(kind, Kind::Write | Kind::WriteImmediate | Kind::Read) {
                        kind = random.choose(&[Kind::Write, Kind::WriteImmediate, Kind::Read]);
                    }
                    len = len.max(1);
                    (fault, places) = (Some(Fault::Access), false);
                    at = target + random.below((layout.area - len) as u64 + 1) as usize;
                    match which {
                        0 => remote_key = Key(remote_key.0 ^ random.choose(&[1, 0x80, 0x5500, 0x8000_0000])),
                        1 if window_random.chance(0.5) => remote_key = stale.unwrap_or(foreign_key),
                        1 => remote_key = foreign_key,
                        3 if shown.is_some() && window_random.chance(0.5) => {
                            remote_key = shown.unwrap_or_default();
                            at = Window::range(&layout).0 - 1;
                        }
                        2 => at = target + target_len + 1 - len,
                        3 => at = target - 1,
                        _ => {
                            remote_key = responder.local_key;
                            at = layout.source(0);
                            len = len.min(layout.slot);
                        }
                    }
                }
                5 => {
                    kind = random.choose(&[Kind::FetchAdd, Kind::CompareSwap]);
                    (fault, places, len) = (Some(Fault::Invalid), false, 8);
                    at = layout.word(random.below(7)) + random.between(1, 7) as usize;
                }
                6 => {
                    kind = random.choose(&[Kind::Send, Kind::SendImmediate]);
                    (fault, len) = (Some(Fault::Invalid), plan.max_len + 1);
                }
                _ => {
                    if kind.is_atomic() {
                        kind = Kind::Write;
                    }
                    at = if kind.is_send() { 0 } else { target };
                    len = len.max(1);
                    fault = Some(Fault::Local);
                    local_key = Key(local_key.0 ^ random.choose(&[1, 0x100, 0x4000_0000]));
                }
            }
        } else if responder.deregistered && !kind.is_send() && len > 0 {
            fault = (!void).then_some(Fault::Access);
            (places, is_void) = (false, false);
        }

        let signaled = random.chance(1.0 - plan.unsignaled)
            || posted[s] + 1 >= plan.quota[s]
            || (flow.posted() - flow.completed) as usize + 1 >= plan.depth[s]
            || fault.is_some();
        // What a peer invalidates, nothing may be read by that is still to come.
        let fence = random.chance(plan.fence) || kind == Kind::SendInvalidate;
        let inline = !kind.is_answered() && len <= MAX_INLINE_BYTES && fault.is_none() && random.chance(plan.inline);
        let immediate = matches!(kind, Kind::SendImmediate | Kind::WriteImmediate).then(|| random.u32());

        // What it carries, and what comes of it.
        let (planned_from, _) = layout.target();
        let planned = |at: usize, len: usize| at - planned_from..at - planned_from + len;
        let mut payload = Payload::Pattern(name);
        let mut expected = Vec::new();
        let remote = Remote { address: responder.arena.address(at), key: remote_key };
        let plain = fault.is_none() || fault == Some(Fault::Local);
        let operation = match kind {
            Kind::Send => SendOperation::Send,
            Kind::SendInvalidate => SendOperation::SendWithInvalidate(remote_key),
            Kind::Bind | Kind::LocalInvalidate => unreachable!("they are posted elsewhere"),
            Kind::SendImmediate => SendOperation::SendWithImmediate(immediate.unwrap_or_default()),
            Kind::Write => SendOperation::Write(remote),
            Kind::WriteImmediate => SendOperation::WriteWithImmediate(remote, immediate.unwrap_or_default()),
            Kind::Read => {
                expected = match plain {
                    true => flow.planned[planned(at, len)].to_vec(),
                    false => vec![0; len],
                };
                SendOperation::Read(remote)
            }
            Kind::FetchAdd | Kind::CompareSwap => {
                let word = match plain {
                    true => flow.planned[planned(at, 8)].to_vec(),
                    false => vec![0; 8],
                };
                let old = u64::from_ne_bytes(word.as_slice().try_into().expect("eight bytes"));
                expected = word;
                if kind == Kind::FetchAdd {
                    let add = random.u64() | 1;
                    payload = Payload::Word(old.wrapping_add(add));
                    SendOperation::FetchAdd { remote, add }
                } else {
                    let compare = if random.chance(0.7) { old } else { !old };
                    let swap = random.u64();
                    payload = Payload::Word(if compare == old { swap } else { old });
                    SendOperation::CompareSwap { remote, compare, swap }
                }
            }
        };
        if is_flag {
            *next_flag += 1;
            payload = Payload::Word(name ^ *next_flag << 40);
        }
        let slot = match kind.is_answered() {
            true => requester.free_sinks.pop(),
            false => requester.free_sources.pop(),
        };
        let Some(slot) = slot else {
            return self.watch.oracle.violation(now, format!("connection {c} side {s}: more requests than slots"));
        };
        let start = if kind.is_answered() { layout.sink(slot) } else { layout.source(slot) };
        let pieces = pieces(start, len, plan.max_sge, random);
        if !kind.is_answered() {
            let mut bytes = vec![0; len];
            payload.fill(0, &mut bytes);
            let mut rest = bytes.as_slice();
            for &(start, len) in &pieces {
                let (now, later) = rest.split_at(len as usize);
                requester.arena.write(start as usize, now);
                rest = later;
            }
        }
        let index = connection.flows[s].posted();
        let data = if inline {
            let mut bytes = InlineBytes::new();
            for &(start, len) in &pieces {
                bytes.extend(requester.arena.expected(start as usize, len as usize), None).expect("it was looked at");
                // The buffer is free again at once.
                requester.arena.scribble(start as usize, len as usize, !name);
            }
            Data::Inline(bytes)
        } else {
            let mut sges: crate::transport::SgeList =
                pieces.iter().map(|piece| sge(&requester.arena, *piece, requester.local_key)).collect();
            // Of several entries the last with bytes is the bad one.
            if let Some(last) = sges.iter_mut().rev().find(|sge| sge.length > 0) {
                last.lkey = local_key;
            }
            Data::Sges(sges)
        };
        let request = SendRequest {
            wr_id: index,
            operation,
            data,
            signaled,
            solicited: random.chance(0.3),
            fence,
            destination: None,
        };
        let flow = &mut connection.flows[s];
        let first = flow.posted_psn;
        let packets = if kind.is_atomic() { 1 } else { plan.mtu.packets(len) };
        flow.posted_psn += u64::from(packets);
        let messages = flow.posted_messages;
        flow.posted_messages += 1;
        let receive = flow.posted_receives;
        flow.posted_receives += u64::from(kind.consumes());
        if fault.is_some() {
            flow.bad = flow.bad.or(Some(index));
            flow.void |= !(fault == Some(Fault::Local) && kind == Kind::Read);
        }
        if kind.writes() && places && fault.is_none() {
            payload.fill(0, &mut flow.planned[planned(at, len)]);
        }
        if is_flag
            && places
            && let Payload::Word(value) = payload
        {
            flow.flags.push_back((value, index));
        }
        flow.wrs.push_back(Wr {
            packets,
            len: len as u32,
            signaled,
            fence,
            payload,
            pieces,
            slot: Some(slot),
            target: at as u32,
            expected,
            immediate,
            receive,
            window,
            invalidates: (kind == Kind::SendInvalidate).then_some(remote_key),
            fault,
            places,
            is_void,
            ..Wr::nothing(index, kind, first, messages)
        });
        if kind.is_remote() {
            let responder = &mut connection.sides[1 - s];
            match window {
                Some(number) => responder.windows[number].used = index + 1,
                None => responder.region_used = index + 1,
            }
        }
        let requester = &connection.sides[s];
        posted[s] += 1;
        if let Err(error) = self.network.endpoint(requester.node).post_send(now, requester.qpn, request) {
            self.watch
                .oracle
                .violation(now, format!("connection {c} side {s}: request {index} was not posted: {error}"));
        }
    }
}

fn sge(arena: &Arena, (offset, length): Piece, lkey: Key) -> Sge {
    Sge { address: arena.address(offset as usize), length, lkey }
}

/// Divides `len` bytes from `start` on among up to `max` pieces with gaps between them; some may be empty.
fn pieces(start: usize, len: usize, max: usize, random: &mut Random) -> ArrayVec<Piece, MAX_SGE> {
    let count = random.between(1, max as u64) as usize;
    let mut pieces = ArrayVec::new();
    let (mut at, mut left) = (start, len);
    for i in 0..count {
        let piece = if i + 1 == count { left } else { random.below(left as u64 + 1) as usize };
        pieces.push((at as u32, piece as u32));
        at += piece + random.below(9) as usize;
        left -= piece;
    }
    pieces
}
