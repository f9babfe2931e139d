//! What is kept of requests that were served half the PSN space ago, and more. READs of gigabytes make the PSNs pass quickly: each
//! takes those of all its answers at once, and asked for again for its last part, that is all that is sent.

use uroce::memory::{Access, Lent};
use uroce::transport::RecoveryMode;
use uroce::wire::{Extension, Key, Opcode, Reth, Syndrome};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::crafted::{Crafted, MTU, Response, acknowledge, psn};

in_both_modes! {
    a_duplicate_half_the_space_after_a_read_is_acknowledged_up_to_what_has_arrived
    a_read_a_whole_lap_ago_is_not_taken_for_one_of_now
    the_longest_read_can_be_asked_for_again_from_its_first_packet_on
}

const FULL: u32 = MTU.bytes() as u32;

/// Zeroed pages that can be read, and take no memory.
struct Zeros {
    start: *mut u8,
    len: usize,
}

impl Zeros {
    fn new(len: usize) -> Zeros {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping overlaps nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Zeros { start: start.cast(), len }
    }
}

impl Drop for Zeros {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and what is registered of it is an access error from now on.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// The longest READ there is but for one packet.
const LONG: u32 = (1 << 31) - 2 * FULL;
const LONG_PACKETS: u32 = LONG / FULL;

struct Passing {
    us: Crafted,
    zeros: Zeros,
    key: Key,
    /// The number of the next packet.
    next: u32,
}

impl Passing {
    fn new(recovery: RecoveryMode) -> Passing {
        let (mut us, zeros) = (Crafted::new(recovery), Zeros::new(1 << 31));
        let lent = Lent::populate(zeros.start, zeros.len as u64, Access::REMOTE_READ).unwrap();
        let pd = us.pd;
        // SAFETY: nobody writes to it, and nobody else knows of it.
        let key = unsafe { us.endpoint.memory().register_borrowed(pd, lent, 0) };
        Passing { us, zeros, key, next: 0 }
    }

    fn read(&mut self, number: u32, len: u32) -> Vec<Response> {
        assert!(u64::from(len) <= self.zeros.len as u64);
        let reth = Extension::Reth(Reth::new(0, self.key, len));
        self.us.send(self.us.bth(Opcode::RC_READ_REQUEST, psn(number)), reth, &[])
    }

    /// A READ of one packet, with its answer.
    fn serve_read(&mut self) {
        let answers = self.read(self.next, 4);
        assert_eq!(answers.iter().map(|answer| answer.psn).collect::<Vec<_>>(), [psn(self.next)]);
        self.next += 1;
    }

    /// A READ that takes nearly half of all PSNs. Of its answers only the last is sent, since that is all that the peer then says
    /// to be missing.
    fn pass(&mut self) {
        let reth = Extension::Reth(Reth::new(0, self.key, LONG));
        let frame = self.us.frame(self.us.bth(Opcode::RC_READ_REQUEST, psn(self.next)), reth, &[]);
        self.us.endpoint.handle_frame(self.us.now, uroce::frame::FrameBytes::from(&frame[..]));
        self.next += LONG_PACKETS;
        let answers = self.read(self.next - 1, FULL);
        assert_eq!(answers.iter().map(|answer| answer.psn).collect::<Vec<_>>(), [psn(self.next - 1)]);
    }

    fn write(&mut self, number: u32) -> Vec<Response> {
        let reth = Extension::Reth(Reth::new(self.us.at(0), self.us.key, 4));
        let bth = self.us.bth(Opcode::RC_WRITE_ONLY, psn(number)).with_ack_request(true);
        self.us.send(bth, reth, &[7; 4])
    }

    fn serve_writes(&mut self, count: u32) {
        for _ in 0..count {
            assert_eq!(self.write(self.next), [acknowledge(psn(self.next), Syndrome::ACK)]);
            self.next += 1;
        }
    }
}

/// An rxe believes an acknowledge of what it has not sent, and completes what was lost.
fn a_duplicate_half_the_space_after_a_read_is_acknowledged_up_to_what_has_arrived(recovery: RecoveryMode) {
    let mut peer = Passing::new(recovery);
    peer.serve_read();
    peer.pass();
    peer.serve_writes(8);
    assert!(peer.next > 1 << 23, "the READ is more than half the space ago");
    let last = acknowledge(psn(peer.next - 1), Syndrome::ACK);
    for behind in 1..8 {
        assert_eq!(peer.write(peer.next - behind), [last], "{behind} before the expected one");
    }
}

fn a_read_a_whole_lap_ago_is_not_taken_for_one_of_now(recovery: RecoveryMode) {
    let mut peer = Passing::new(recovery);
    peer.serve_read();
    peer.pass();
    peer.pass();
    let lap = 1 << 24;
    assert!(peer.next < lap);
    peer.serve_writes(lap + 8 - peer.next);
    // The PSN of the first READ is that of a WRITE now.
    let last = acknowledge(psn(peer.next - 1), Syndrome::ACK);
    for behind in 1..12 {
        assert_eq!(peer.write(peer.next - behind), [last], "{behind} before the expected one");
    }
    assert_eq!(peer.read(lap, 4), [], "it was no READ");
    assert_eq!(peer.us.counters().stray_response, 1);
}

fn the_longest_read_can_be_asked_for_again_from_its_first_packet_on(recovery: RecoveryMode) {
    let mut peer = Passing::new(recovery);
    let reth = Extension::Reth(Reth::new(0, peer.key, LONG + FULL));
    let frame = peer.us.frame(peer.us.bth(Opcode::RC_READ_REQUEST, psn(0)), reth, &[]);
    peer.us.endpoint.handle_frame(peer.us.now, uroce::frame::FrameBytes::from(&frame[..]));
    peer.next = LONG_PACKETS + 1;
    assert_eq!(peer.next, (1 << 23) - 1, "as many PSNs as may be outstanding");
    assert_eq!(peer.read(peer.next - 1, FULL).len(), 1);
    let first = peer.read(0, FULL);
    assert_eq!(
        first.iter().map(|answer| (answer.psn, answer.opcode)).collect::<Vec<_>>(),
        [(psn(0), Opcode::RC_READ_RESPONSE_ONLY)]
    );
}
