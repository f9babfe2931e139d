//! A program that polls leaves its processor to others that need it, and sleeps until a frame arrives.

#![allow(clippy::disallowed_methods, reason = "it takes real time")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uroce::verbs::{Context, LinkKind, OpenOptions};

/// Ties the calling thread, and those that it will start, to the first processor that it may use.
fn use_one_processor() {
    // SAFETY: the sets are plain memory, which lives through the calls.
    unsafe {
        let (mut all, mut one) = (std::mem::zeroed::<libc::cpu_set_t>(), std::mem::zeroed::<libc::cpu_set_t>());
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&all), &raw mut all), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &all)).unwrap();
        libc::CPU_SET(first, &mut one);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &raw const one), 0);
    }
}

fn rested(context: &Context) -> u64 {
    context.counters().iter().find(|(name, _)| *name == "polls_rested").unwrap().1
}

#[test]
fn a_program_that_polls_leaves_its_processor_to_one_that_works() {
    use_one_processor();
    let mut options = OpenOptions::new();
    options.device = Some("127.0.14.1".to_owned());
    options.link = LinkKind::Udp;
    let context = options.open().unwrap();
    let cq = context.create_completion_queue(16);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        // A time slice of some milliseconds is lost to find out.
        let end = Instant::now() + Duration::from_secs(20);
        while rested(&context) < 100 && Instant::now() < end {
            (0..10_000).for_each(|_| assert!(cq.poll().is_none()));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(rested(&context) >= 100, "{} of 100 in 20 s", rested(&context));
}
