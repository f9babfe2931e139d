#![no_main]
//! Any sequence of frames, posts and timeouts at a connected endpoint: no panic; whatever it sends is sound, and no more
//! than it may owe; memory that the peer may not reach stays as it is; each request completes once at the most.

#[path = "../src/input.rs"]
mod input;

use std::collections::BTreeSet;

use input::Input;
use libfuzzer_sys::fuzz_target;
use uroce::memory::Access;
use uroce::time::Duration;
use uroce::transport::{Data, RecoveryMode, Remote, SendOperation, SendRequest, State};
use uroce::wire::{
    Bth, Flow, ICRC_BYTES, Key, Opcode, Operation, PKey, Placement, Psn, RoceFrame, Selectivity, icrc,
};
use uroce_laboratory::world::crafted::{ALL, Crafted, MTU, RD_ATOMIC};
use zerocopy::IntoBytes;

/// Answers that may be owed: four times what may be outstanding and two, then READs and atomics that are new, and the
/// NAK that ends it.
const OWED_MAX: usize = 5 * RD_ATOMIC as usize + 3;

/// READ responses among them: a READ is of the whole region at the most; and those to FLUSHes.
const RESPONSES_MAX: usize = OWED_MAX * Crafted::BYTES.div_ceil(MTU.bytes()) + 128;

/// Requests of its own in flight.
const REQUESTS_MAX: usize = 128;

struct Run {
    c: Crafted,
    keys: Vec<Key>,
    posted: BTreeSet<u64>,
    next_wr_id: u64,
}

impl Run {
    fn length(&self, input: &mut Input<'_>) -> usize {
        let mtu = MTU.bytes();
        match input.byte() % 10 {
            0 => 0,
            1 => 1,
            2 => mtu - 1,
            3 | 4 => mtu,
            5 => mtu + 1,
            6 => 2 * mtu + 3,
            7 => Crafted::BYTES,
            _ => usize::from(input.byte()),
        }
    }

    fn key(&self, input: &mut Input<'_>) -> Key {
        match input.byte() {
            byte @ 0..200 => self.keys[usize::from(byte) % self.keys.len()],
            byte @ 200..240 => Key(self.keys[usize::from(byte) % self.keys.len()].0 ^ (1 << (input.byte() % 32))),
            _ => Key(input.u32()),
        }
    }

    fn address(&self, input: &mut Input<'_>) -> u64 {
        match input.byte() % 8 {
            0..=3 => self.c.at(usize::from(input.byte()) * 8),
            4 => self.c.at(Crafted::BYTES) - u64::from(input.byte()),
            5 => self.c.at(0).wrapping_sub(u64::from(input.byte())),
            6 => u64::MAX - u64::from(input.byte()),
            _ => input.u64(),
        }
    }

    /// Near what is expected or in flight, or anywhere.
    fn psn(&self, input: &mut Input<'_>, is_response: bool) -> Psn {
        let (next, expected) = self.c.endpoint.queue_pair(self.c.qpn).unwrap().psns();
        let delta = u32::from(input.byte());
        match (delta, is_response) {
            (0..150, false) => expected,
            (150..200, false) => expected.minus(delta - 149),
            (200..240, false) => expected.plus(delta - 200),
            (0..240, true) => next.minus(delta % 32),
            _ => Psn::new(input.u32()),
        }
    }

    /// A packet with the right ICRC whose fields are near valid ones.
    fn packet(&self, input: &mut Input<'_>) -> Vec<u8> {
        let opcode = Opcode(input.byte() & 0x1f);
        let psn = self.psn(input, opcode.is_response());
        let flags = input.byte();
        let mut bth = Bth::new(opcode, self.c.qpn, psn)
            .with_ack_request(flags & 1 != 0)
            .with_solicited(flags & 2 != 0)
            .with_mig_req(flags & 4 != 0);
        if flags & 0xf8 == 0xf8 {
            bth = bth.with_p_key(PKey(input.u32() as u16));
        }
        let payload_bytes = if opcode.may_have_payload() || flags & 0x70 == 0x70 { self.length(input) } else { 0 };
        let payload_bytes = payload_bytes.min(2 * MTU.bytes());
        // The extended headers by their length: RETH 16 and ImmDt 4, AtomicETH 28, AETH 4, ImmDt or IETH 4.
        let mut extension = Vec::new();
        if opcode == Opcode::RC_FLUSH {
            extension.extend([0, 0, 0, if flags & 0x80 == 0 { 1 } else { input.byte() }]);
        }
        match opcode.extension_bytes() - extension.len() {
            bytes @ (16 | 20) => {
                extension.extend(self.address(input).to_be_bytes());
                extension.extend(self.key(input).0.to_be_bytes());
                let length = match input.byte() {
                    0..100 => payload_bytes as u32,
                    100..240 => self.length(input) as u32,
                    _ => input.u32(),
                };
                extension.extend(length.to_be_bytes());
                extension.extend(input.bytes(bytes - 16));
            }
            28 => {
                extension.extend(self.address(input).to_be_bytes());
                extension.extend(self.key(input).0.to_be_bytes());
                extension.extend(input.bytes(16));
            }
            4 if opcode.has_invalidate() => extension.extend(self.key(input).0.to_be_bytes()),
            bytes => extension.extend(input.bytes(bytes)),
        }
        let fill = input.byte();
        self.seal(bth, &[&extension[..], &vec![fill; payload_bytes]].concat())
    }

    /// An Ethernet frame of BTH and what follows it, padded, with the right ICRC.
    fn seal(&self, bth: Bth, body: &[u8]) -> Vec<u8> {
        // A SEND to learn the outer headers from.
        let mut frame = self.c.frame(self.c.bth(Opcode::RC_SEND_MIDDLE, Psn::new(0)), NO_EXTENSION, body);
        let flow: Flow = RoceFrame::parse((&frame[..]).into()).unwrap().flow();
        let ib_start = 14 + flow.header_bytes();
        let pad = body.len().wrapping_neg() & 3;
        frame[ib_start..ib_start + Bth::BYTES].copy_from_slice(bth.with_pad(pad).as_bytes());
        let covered = frame.len() - ICRC_BYTES;
        let right = icrc::compute((&frame[14..covered]).into()).unwrap();
        frame[covered..].copy_from_slice(&right.to_le_bytes());
        frame
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let remote = Remote { address: input.u64(), key: Key(input.u32()) };
        let (offset, length) = (usize::from(input.byte()) * 8, self.length(input) as u32);
        let (wr_id, key) = (self.next_wr_id, self.key(input));
        let kind = input.byte() % 12;
        if kind < 3 {
            if self.posted.len() < 60 {
                self.c.post_receive(wr_id, offset, length);
                self.posted.insert(wr_id);
                self.next_wr_id += 1;
            }
            return;
        }
        let operation = match kind {
            3 => SendOperation::Send,
            4 => SendOperation::SendWithInvalidate(key),
            5 => SendOperation::Write(remote),
            6 | 7 => SendOperation::Read(remote),
            8 => SendOperation::FetchAdd { remote, add: 1 },
            9 => SendOperation::AtomicWrite(remote),
            10 => SendOperation::Flush {
                remote,
                length: length as u32,
                placement: Placement::from_bits_retain(input.byte() & 3),
                selectivity: Selectivity::new(input.byte()),
            },
            _ => SendOperation::LocalInvalidate(key),
        };
        let length = match operation {
            SendOperation::Flush { .. } => 0,
            SendOperation::AtomicWrite(_) => 8,
            _ if operation.is_atomic() => 8,
            _ => length,
        };
        let data = Data::sge(self.c.at(offset), length, self.c.key);
        if self.c.endpoint.post_send(self.c.now, self.c.qpn, SendRequest::new(wr_id, operation, data)).is_ok() {
            self.posted.insert(wr_id);
            self.next_wr_id += 1;
        }
    }

    /// What must hold after everything that happens.
    fn check(&mut self) {
        let answers = self.c.answers();
        let responses = answers.iter().filter(|a| a.opcode.operation() == Operation::ReadResponse).count();
        let others = answers.iter().filter(|a| a.opcode.is_response()).count() - responses;
        let requests = answers.len() - responses - others;
        assert!(
            responses <= RESPONSES_MAX && others <= OWED_MAX && requests <= REQUESTS_MAX,
            "{responses} responses, {others} other answers and {requests} requests at once"
        );
        while let Some(completion) = self.c.completion() {
            assert!(self.posted.remove(&completion.wr_id), "{completion:?} was reported before, or never posted");
        }
        assert!(!self.c.cq.has_overflowed());
        while self.c.event().is_some() {}
    }
}

/// Frames dropped before anything of them was believed.
fn dropped(c: &Crafted) -> u64 {
    let n = c.counters();
    let addressed = n.unknown_qpn + n.bad_p_key + n.wrong_address + n.wrong_state;
    n.malformed + n.bad_icrc + n.bad_tver + n.bad_opcode + n.rcvd_cnp + addressed
}

const NO_EXTENSION: uroce::wire::Extension = uroce::wire::Extension::None;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let access = if input.byte() < 250 { ALL } else { Access::REMOTE_READ };
    let recovery = [RecoveryMode::Auto, RecoveryMode::Auto, RecoveryMode::Selective, RecoveryMode::GoBackN][input.below(4)];
    let mut c = Crafted::with_access(access, recovery);
    let window = c.bind_window(1000, 600, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let keys = vec![c.key, c.key, c.key, window, c.foreign.1, c.private.1];
    let mut run = Run { c, keys, posted: BTreeSet::new(), next_wr_id: 1000 };
    while !input.is_empty() {
        match input.byte() % 16 {
            0..=7 => {
                let frame = run.packet(&mut input);
                run.c.endpoint.handle_frame(run.c.now, (&frame[..]).into());
            }
            // Several before it may answer.
            8 => {
                for _ in 0..input.byte() {
                    let frame = run.packet(&mut input);
                    run.c.endpoint.handle_frame(run.c.now, (&frame[..]).into());
                }
            }
            9 => {
                let count = usize::from(input.byte());
                let frame = input.bytes(count);
                run.c.endpoint.handle_frame(run.c.now, (&frame[..]).into());
            }
            // A flipped bit anywhere from the BTH on.
            10 => {
                let mut frame = run.packet(&mut input);
                let bit = input.u32() as usize % ((frame.len() - 42) * 8);
                let before = dropped(&run.c);
                frame[42 + bit / 8] ^= 1 << (bit % 8);
                run.c.endpoint.handle_frame(run.c.now, (&frame[..]).into());
                // Byte 4 of the BTH is the network's to change.
                assert!(dropped(&run.c) == before + 1 || bit / 8 == 4, "a damaged frame was not dropped");
            }
            11..=13 => run.post(&mut input),
            14 => {
                run.c.now = run.c.now + Duration::from_micros(u64::from(input.u32() as u16));
                run.c.endpoint.handle_timeout(run.c.now);
            }
            _ => {
                let (head, tail) = (run.packet(&mut input), usize::from(input.byte()));
                let (head, tail) = head.split_at(head.len().saturating_sub(tail));
                run.c.endpoint.handle_frame(run.c.now, uroce::frame::FrameBytes { head, tail });
            }
        }
        run.check();
        if run.c.state() == State::Error {
            assert!(run.posted.is_empty(), "the queue pair is in error, and requests are left: {:?}", run.posted);
            break;
        }
    }
    run.c.assert_untouched_but(0..Crafted::BYTES, "at the end");
});
