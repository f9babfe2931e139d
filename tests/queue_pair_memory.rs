//! What a queue pair takes of memory beside its work queues: a counting allocator watches 10,000 pairs of them. It is what
//! docs/ARCHITECTURE.md says.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use uroce::transport::{RecoveryMode, SendOperation};
use uroce_laboratory::world::Many;

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

/// Of these, the ones that have a whole window in flight once.
const BURSTS: usize = 500;

/// What an idle RC queue pair may take beside its work queues: before it was used, after as many READs and atomics at once as may
/// be outstanding, and after a window full of packets.
struct Limits {
    /// What the document calls the recovery.
    name: &'static str,
    window_packets: usize,
    fresh: usize,
    busy: usize,
    burst: usize,
}

const SELECTIVE: Limits =
    Limits { name: "selective repeat", window_packets: 512, fresh: 2 << 10, busy: 8 << 10, burst: 24 << 10 };
const GO_BACK_N: Limits =
    Limits { name: "go-back-N", window_packets: 128, fresh: 2 << 10, busy: 6 << 10, burst: 6 << 10 };

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ARCHITECTURE.md");

fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// Ready to send and never used; then after as many READs and atomics at once as may be outstanding, with a WRITE before
/// each, so that an acknowledge is owed between any two answers; then after a whole window of WRITEs. What grows when requests
/// are posted is the work queue; the rest counts, of both sides, although each keeps only a part of it.
fn watch(recovery: RecoveryMode, limits: &Limits) {
    let start = bytes();
    let mut many = Many::new(COUNT, recovery);
    let fresh = (bytes() - start) / (2 * COUNT);
    assert!((1..=limits.fresh).contains(&fresh), "{fresh} bytes a queue pair that was not used yet");

    let remote = many.remote();
    let (mut work_queues, mut rest) = (0, 0);
    for index in 0..COUNT {
        let before = bytes();
        for number in 0..usize::from(Many::RD_ATOMIC) {
            many.post(index, SendOperation::Write(remote), 64);
            match number % 4 {
                0 => many.post(index, SendOperation::FetchAdd { remote, add: 1 }, 8),
                _ => many.post(index, SendOperation::Read(remote), 3000),
            }
        }
        let posted = bytes();
        many.complete(2 * usize::from(Many::RD_ATOMIC));
        work_queues += posted - before;
        rest += bytes() - posted;
    }
    let (work_queues, busy) = (work_queues / COUNT, fresh + rest / COUNT);
    let before = bytes();
    for index in 0..BURSTS {
        // Twice the window: 128 packets, or 512.
        (0..16).for_each(|_| many.post(index, SendOperation::Write(remote), 1 << 16));
        many.send_all();
        many.complete(16);
    }
    // No more requests than before: the work queues have not grown. Room for packets in flight may have become less.
    let burst = busy + bytes().saturating_sub(before) / BURSTS;
    eprintln!(
        "{recovery:?}: {fresh} bytes a queue pair, {busy} when it was busy before, {burst} when its window was full, and \
         {work_queues} of work queue"
    );
    assert!(busy <= limits.busy, "{busy} bytes a queue pair that was busy and is idle again");
    assert!(burst <= limits.burst, "{burst} bytes a queue pair whose window was full and that is idle again");

    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    for (state, bytes) in [
        ("new".to_owned(), fresh),
        (format!("after {} READs and atomics at once", Many::RD_ATOMIC), busy),
        (format!("after a full window, {} packets", limits.window_packets), burst),
    ] {
        let row = format!("\n| {} | {state} | ", limits.name);
        let (_, rest) = document.split_once(&row).unwrap_or_else(|| panic!("docs/ARCHITECTURE.md has no row {row}"));
        let said: f64 = rest.split_once(" |").and_then(|(said, _)| said.parse().ok()).expect("a number of KiB");
        let is = bytes as f64 / 1024.0;
        assert!((said / is - 1.0).abs() <= 0.05, "docs/ARCHITECTURE.md says {said} KiB in row {row}: {is:.1}");
    }
}

/// One after the other: they share the count.
#[test]
fn an_idle_queue_pair_is_small() {
    watch(RecoveryMode::default(), &SELECTIVE);
    watch(RecoveryMode::GoBackN, &GO_BACK_N);
}
