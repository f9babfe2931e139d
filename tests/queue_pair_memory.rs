//! What a queue pair takes of memory beside its work queues: a counting allocator watches 10,000 pairs of them.

#[path = "common/many.rs"]
mod many;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use many::{Many, RD_ATOMIC};
use uroce::transport::SendOperation;

struct Counting;

/// Bytes allocated and not freed, by any thread.
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's duty is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's duty is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COUNT: usize = 10_000;

/// What an idle RC queue pair may take beside its work queues.
const BYTES_MAX: usize = 4096;

fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// Ready to send and never used; then after as many READs and atomics at once as may be outstanding, with a WRITE before
/// each, so that an acknowledge is owed between any two answers. What grows when requests are posted is the work queue;
/// the rest counts, of both sides, although each keeps only a part of it.
#[test]
fn an_idle_queue_pair_takes_four_kibibytes_at_the_most() {
    let start = bytes();
    let mut many = Many::new(COUNT);
    let fresh = (bytes() - start) / (2 * COUNT);
    assert!((1..=BYTES_MAX).contains(&fresh), "{fresh} bytes a queue pair that was not used yet");

    let remote = many.remote();
    let (mut work_queues, mut rest) = (0, 0);
    for index in 0..COUNT {
        let before = bytes();
        for number in 0..usize::from(RD_ATOMIC) {
            many.post(index, SendOperation::Write(remote), 64);
            match number % 4 {
                0 => many.post(index, SendOperation::FetchAdd { remote, add: 1 }, 8),
                _ => many.post(index, SendOperation::Read(remote), 3000),
            }
        }
        let posted = bytes();
        many.complete(2 * usize::from(RD_ATOMIC));
        work_queues += posted - before;
        rest += bytes() - posted;
    }
    let (work_queues, used) = (work_queues / COUNT, fresh + rest / COUNT);
    eprintln!("{fresh} bytes a queue pair, {used} when it was busy before, and {work_queues} of work queue");
    assert!(used <= BYTES_MAX, "{used} bytes a queue pair that was busy and is idle again");
}
