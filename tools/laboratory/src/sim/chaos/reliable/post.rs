use arrayvec::ArrayVec;
use uroce::transport::{
    Data, InlineBytes, MAX_INLINE_BYTES, MAX_SGE, QpAttributes, ReceiveRequest, Remote, SendOperation, SendRequest,
    Sge, State,
};
use uroce::wire::Key;

use crate::sim::chaos::arena::{Arena, Piece};
use crate::sim::chaos::layout::Layout;
use crate::sim::random::Random;

use super::flow::{Fault, Kind, Payload, Wr};
use super::oracle::Receive;
use super::plan::{Plan, Trouble};
use super::windows::{Window, WindowState};
use super::{Program, World};

/// The kind of request to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Any request that is valid.
    Any,
    /// A request that must fail.
    Bad,
    /// A SEND that invalidates this window of the peer.
    Invalidate(usize),
}

/// The requests and the trouble of the programs.
impl World {
    pub(super) fn post_receives(&mut self, c: usize, s: usize, limit: usize) {
        let now = self.network.now();
        let Program { plan, random, connected, .. } = &mut self.programs[c];
        let connection = &mut self.watch.observer.connections[c];
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
                return self.watch.observer.violation(now, format!("receive {wr_id:#x} was not posted: {error}"));
            }
        }
    }

    pub(super) fn post_batch(&mut self, c: usize, s: usize) {
        let node = self.watch.observer.connections[c].sides[s].node;
        let batch = self.programs[c].random.between(1, 12);
        for _ in 0..batch {
            let program = &self.programs[c];
            let connection = &self.watch.observer.connections[c];
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
                if self.watch.observer.connections[c].sides[s].killed {
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
        let connection = &self.watch.observer.connections[c];
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
                    self.watch.observer.connections[c].flows.iter().all(|flow| flow.bad.is_none() && !flow.void);
                if self.programs[c].window_random.chance(0.1) && is_good && self.post_bad_binding(c, s) {
                    return;
                }
                return self.post(c, s, What::Bad);
            }
            Trouble::Kill => {
                let side = &mut self.watch.observer.connections[c].sides[s];
                side.killed = true;
                let (node, qpn) = (side.node, side.qpn);
                let error = QpAttributes { state: Some(State::Error), ..QpAttributes::default() };
                self.network.endpoint(node).modify(now, qpn, &error).expect("any queue pair may go to the error state");
            }
            Trouble::Destroy | Trouble::Reset => {
                let node = self.watch.observer.connections[c].sides[s].node;
                self.watch.observer.poll(now, node);
                self.watch.observer.verify_side(now, c, s, "before destruction");
                self.watch.observer.abandon(c, s);
                match self.programs[c].plan.trouble {
                    Trouble::Reset => self.reset(c, s),
                    _ => self.destroy(c, s),
                }
            }
            Trouble::FreeWindow => {
                let windows = &self.watch.observer.connections[c].sides[s].windows;
                let Some(number) = super::windows::open(windows, &mut self.programs[c].window_random) else { return };
                self.free_window(c, s, number);
            }
            Trouble::Deregister => {
                let windows = self.watch.observer.connections[c].sides[s].windows.len();
                (0..windows).for_each(|number| self.free_window(c, s, number));
                self.watch.observer.take_away(now, c, s, None);
                let side = &self.watch.observer.connections[c].sides[s];
                let key = side.remote_key;
                let node = side.node;
                self.network.endpoint(node).memory().deregister(key).expect("it was registered");
                self.programs[c].keys[s].retain(|other| *other != key);
            }
        }
        self.want_close(c);
    }

    /// Posts a request of the given kind.
    pub(super) fn post(&mut self, c: usize, s: usize, what: What) {
        let now = self.network.now();
        let draft = self.draft(c, s, what);
        let Draft { kind, is_flag, window, len, at, remote_key, fault, places, is_void, .. } = draft;
        let manner = self.manner(c, s, &draft);
        let Content { operation, payload, expected } = self.content(c, s, &draft, manner.immediate);
        let side = &mut self.watch.observer.connections[c].sides[s];
        let free = if kind.is_answered() { &mut side.free_sinks } else { &mut side.free_sources };
        let Some(slot) = free.pop() else {
            return self.watch.observer.violation(now, format!("connection {c} side {s}: more requests than slots"));
        };
        let (data, pieces) = self.data(c, s, &draft, (slot, payload, manner.inline));
        let Program { plan, random, posted, .. } = &mut self.programs[c];
        let connection = &mut self.watch.observer.connections[c];
        let flow = &mut connection.flows[s];
        let index = flow.posted();
        let (signaled, fence) = (manner.signaled, manner.fence);
        let solicited = random.chance(0.3);
        let request = SendRequest { wr_id: index, operation, data, signaled, solicited, fence, destination: None };
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
            payload.fill(0, &mut flow.planned[planned(&connection.layout, at, len)]);
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
            immediate: manner.immediate,
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
                .observer
                .violation(now, format!("connection {c} side {s}: request {index} was not posted: {error}"));
        }
    }

    /// Draws the operation, the length and the target of a request.
    fn draft(&mut self, c: usize, s: usize, what: What) -> Draft {
        let name = self.watch.observer.connections[c].name();
        let Program { plan, random, window_random, .. } = &mut self.programs[c];
        let connection = &self.watch.observer.connections[c];
        let (layout, flow) = (&connection.layout, &connection.flows[s]);
        let (requester, responder) = (&connection.sides[s], &connection.sides[1 - s]);
        let (mut kind, mut is_flag) = draw_kind(&plan.mix, random);
        let mut window = None;
        let is_needed = responder.is_renewing && what != What::Bad;
        if let What::Invalidate(number) = what {
            (kind, is_flag, window) = (Kind::SendInvalidate, false, Some(number));
        } else if kind.is_remote() && what != What::Bad && (is_needed || window_random.chance(0.5)) {
            window = super::windows::open(&responder.windows, window_random);
            if window.is_none() && is_needed {
                (kind, is_flag) = (Kind::Send, false);
            }
        }
        let len = draw_len(kind.is_atomic() || is_flag, plan, random);
        let (target, target_len) = match window {
            Some(_) if kind.is_remote() => Window::range(layout),
            _ => layout.target(),
        };
        // The offset in the responder's arena that it reads or writes.
        let at = match kind {
            Kind::Send | Kind::SendImmediate | Kind::SendInvalidate | Kind::Bind | Kind::LocalInvalidate => 0,
            Kind::FetchAdd | Kind::CompareSwap => layout.word(random.below(8)),
            Kind::Read => target + random.below((target_len - len.min(target_len)) as u64 + 1) as usize,
            _ if is_flag => layout.words().1,
            _ => target + random.below((layout.words().0 - target - len) as u64 + 1) as usize,
        };
        // Requests behind one that must fail are flushed.
        let void = flow.void || flow.failed;
        let mut draft = Draft {
            name,
            kind,
            is_flag,
            window,
            len,
            at,
            remote_key: window.map_or(responder.remote_key, |number| responder.windows[number].key),
            local_key: requester.local_key,
            fault: None,
            places: !void,
            is_void: void,
        };
        if what == What::Bad && !void && flow.bad.is_none() {
            self.spoil(c, s, &mut draft);
        } else if responder.deregistered && !kind.is_send() && len > 0 {
            draft.fault = (!void).then_some(Fault::Access);
            (draft.places, draft.is_void) = (false, false);
        }
        draft
    }

    /// Changes a request so that it must fail.
    fn spoil(&mut self, c: usize, s: usize, draft: &mut Draft) {
        let Program { plan, random, foreign_keys, window_random, .. } = &mut self.programs[c];
        let connection = &self.watch.observer.connections[c];
        let (layout, responder) = (&connection.layout, &connection.sides[1 - s]);
        let (target, target_len) = layout.target();
        let foreign_key = foreign_keys[1 - s];
        draft.is_flag = false;
        let which = random.below(9);
        // The key of a window that has ended, or bytes outside of one.
        let windows = &responder.windows;
        let stale = windows.iter().find_map(|window| window.stale);
        let shown = windows.iter().find(|window| window.state == WindowState::Open).map(|window| window.key);
        match which {
            0..=4 => {
                if !matches!(draft.kind, Kind::Write | Kind::WriteImmediate | Kind::Read) {
                    draft.kind = random.choose(&[Kind::Write, Kind::WriteImmediate, Kind::Read]);
                }
                draft.len = draft.len.max(1);
                (draft.fault, draft.places) = (Some(Fault::Access), false);
                draft.at = target + random.below((layout.area - draft.len) as u64 + 1) as usize;
                match which {
                    0 => draft.remote_key.0 ^= random.choose(&[1, 0x80, 0x5500, 0x8000_0000]),
                    1 if window_random.chance(0.5) => draft.remote_key = stale.unwrap_or(foreign_key),
                    1 => draft.remote_key = foreign_key,
                    3 if shown.is_some() && window_random.chance(0.5) => {
                        draft.remote_key = shown.unwrap_or_default();
                        draft.at = Window::range(layout).0 - 1;
                    }
                    2 => draft.at = target + target_len + 1 - draft.len,
                    3 => draft.at = target - 1,
                    _ => {
                        draft.remote_key = responder.local_key;
                        draft.at = layout.source(0);
                        draft.len = draft.len.min(layout.slot);
                    }
                }
            }
            5 => {
                draft.kind = random.choose(&[Kind::FetchAdd, Kind::CompareSwap]);
                (draft.fault, draft.places, draft.len) = (Some(Fault::Invalid), false, 8);
                draft.at = layout.word(random.below(7)) + random.between(1, 7) as usize;
            }
            6 => {
                draft.kind = random.choose(&[Kind::Send, Kind::SendImmediate]);
                (draft.fault, draft.len) = (Some(Fault::Invalid), plan.max_len + 1);
            }
            _ => {
                if draft.kind.is_atomic() {
                    draft.kind = Kind::Write;
                }
                draft.at = if draft.kind.is_send() { 0 } else { target };
                draft.len = draft.len.max(1);
                draft.fault = Some(Fault::Local);
                draft.local_key.0 ^= random.choose(&[1, 0x100, 0x4000_0000]);
            }
        }
    }

    /// Draws the flags of a request.
    fn manner(&mut self, c: usize, s: usize, draft: &Draft) -> Manner {
        let Program { plan, random, posted, .. } = &mut self.programs[c];
        let flow = &self.watch.observer.connections[c].flows[s];
        let &Draft { kind, len, fault, .. } = draft;
        let signaled = random.chance(1.0 - plan.unsignaled)
            || posted[s] + 1 >= plan.quota[s]
            || (flow.posted() - flow.completed) as usize + 1 >= plan.depth[s]
            || fault.is_some();
        // Later requests must not access memory through a window that the peer invalidates.
        let fence = random.chance(plan.fence) || kind == Kind::SendInvalidate;
        let inline = !kind.is_answered() && len <= MAX_INLINE_BYTES && fault.is_none() && random.chance(plan.inline);
        let immediate = matches!(kind, Kind::SendImmediate | Kind::WriteImmediate).then(|| random.u32());
        Manner { signaled, fence, inline, immediate }
    }

    /// Determines the operation, the payload and the expected answer of a request.
    fn content(&mut self, c: usize, s: usize, draft: &Draft, immediate: Option<u32>) -> Content {
        let Program { random, next_flag, .. } = &mut self.programs[c];
        let connection = &self.watch.observer.connections[c];
        let &Draft { name, kind, is_flag, len, at, remote_key, fault, .. } = draft;
        let remote = Remote { address: connection.sides[1 - s].arena.address(at), key: remote_key };
        let is_answered_right = fault.is_none() || fault == Some(Fault::Local);
        let there = |len: usize| match is_answered_right {
            true => connection.flows[s].planned[planned(&connection.layout, at, len)].to_vec(),
            false => vec![0; len],
        };
        let mut payload = Payload::Pattern(name);
        let mut expected = Vec::new();
        let operation = match kind {
            Kind::Send => SendOperation::Send,
            Kind::SendInvalidate => SendOperation::SendWithInvalidate(remote_key),
            Kind::Bind | Kind::LocalInvalidate => unreachable!("they are posted elsewhere"),
            Kind::SendImmediate => SendOperation::SendWithImmediate(immediate.unwrap_or_default()),
            Kind::Write => SendOperation::Write(remote),
            Kind::WriteImmediate => SendOperation::WriteWithImmediate(remote, immediate.unwrap_or_default()),
            Kind::Read => {
                expected = there(len);
                SendOperation::Read(remote)
            }
            Kind::FetchAdd | Kind::CompareSwap => {
                expected = there(8);
                let old = u64::from_ne_bytes(expected.as_slice().try_into().expect("eight bytes"));
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
        Content { operation, payload, expected }
    }

    /// Divides a slot into pieces and writes the payload into them. Returns the pieces as data segments, or their bytes
    /// (`inline`).
    fn data(
        &mut self,
        c: usize,
        s: usize,
        draft: &Draft,
        (slot, payload, inline): (usize, Payload, bool),
    ) -> (Data, ArrayVec<Piece, MAX_SGE>) {
        let Program { plan, random, .. } = &mut self.programs[c];
        let connection = &mut self.watch.observer.connections[c];
        let layout = connection.layout;
        let requester = &mut connection.sides[s];
        let &Draft { name, kind, len, local_key, .. } = draft;
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
        if inline {
            let mut bytes = InlineBytes::new();
            for &(start, len) in &pieces {
                bytes.extend(requester.arena.expected(start as usize, len as usize), None).expect("it was looked at");
                // The buffer of an inline request is free at once.
                requester.arena.scribble(start as usize, len as usize, !name);
            }
            return (Data::Inline(bytes), pieces);
        }
        let mut sges: uroce::transport::SgeList =
            pieces.iter().map(|piece| sge(&requester.arena, *piece, requester.local_key)).collect();
        // Of several entries the last with bytes has the bad key.
        if let Some(last) = sges.iter_mut().rev().find(|sge| sge.length > 0) {
            last.lkey = local_key;
        }
        (Data::Sges(sges), pieces)
    }
}

/// A request before it is posted: its operation, length and target.
#[derive(Clone, Copy, Debug)]
struct Draft {
    /// A name for its pattern, which is unique.
    name: u64,
    kind: Kind,
    /// Whether it writes the flag that the responder's program polls.
    is_flag: bool,
    /// The responder's window that it uses or invalidates.
    window: Option<usize>,
    len: usize,
    /// The offset in the responder's arena.
    at: usize,
    remote_key: Key,
    local_key: Key,
    /// The reason why it must fail.
    fault: Option<Fault>,
    /// Whether it is carried out.
    places: bool,
    /// Whether an earlier request must fail.
    is_void: bool,
}

/// The flags of a request.
#[derive(Clone, Copy, Debug)]
struct Manner {
    signaled: bool,
    fence: bool,
    inline: bool,
    immediate: Option<u32>,
}

/// The operation and payload of a request, and its expected answer.
struct Content {
    operation: SendOperation,
    payload: Payload,
    expected: Vec<u8>,
}

/// Draws a kind by the shares of a plan; also whether it is the WRITE of the flag.
fn draw_kind(mix: &[u64], random: &mut Random) -> (Kind, bool) {
    let mut left = random.below(mix.iter().sum());
    let choice = mix.iter().position(|share| {
        let is_here = left < *share;
        left = left.saturating_sub(*share);
        is_here
    });
    let kind = match choice.unwrap_or_default() {
        0 => Kind::Send,
        1 => Kind::SendImmediate,
        2 => Kind::Write,
        3 => Kind::WriteImmediate,
        4 => Kind::Read,
        5 => Kind::FetchAdd,
        6 => Kind::CompareSwap,
        _ => return (Kind::Write, true),
    };
    (kind, false)
}

/// Draws a length, most often one near the path MTU.
fn draw_len(is_word: bool, plan: &Plan, random: &mut Random) -> usize {
    let len = match random.below(8) {
        _ if is_word => 8,
        0 => 0,
        1 => random.between(1, 16) as usize,
        2 => plan.mtu.bytes() - 1,
        3 => plan.mtu.bytes(),
        4 => plan.mtu.bytes() + 1,
        _ => random.between(1, plan.max_len as u64) as usize,
    };
    len.min(plan.max_len.max(8))
}

/// The range of the planned contents that belongs to bytes of the target.
fn planned(layout: &Layout, at: usize, len: usize) -> std::ops::Range<usize> {
    let (target, _) = layout.target();
    at - target..at - target + len
}

fn sge(arena: &Arena, (offset, length): Piece, lkey: Key) -> Sge {
    Sge { address: arena.address(offset as usize), length, lkey }
}

/// Divides `len` bytes from `start` on among up to `max` pieces with gaps between them; some can be empty.
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
