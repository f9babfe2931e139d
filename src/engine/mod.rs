//! Drives an endpoint over a link: a run-to-completion loop and the only clock.
//!
//! The transport lives in the program's process. A program thread that polls or posts steps the engine. A background
//! thread steps it when no program has for a while, so that acknowledges, retransmissions and the peer's READs never
//! wait for the program:
//!
//! ```text
//!   program thread:  poll ──► ring of the completion queue, no lock
//!                      └─ nothing there ──► try_lock ──► step: receive ► timers ► transmit ► flush
//!   background:      sleeps while programs step; otherwise steps, and sleeps in poll(2) on the link
//! ```
//!
//! A child made by fork(2) has no background thread, no rings, and perhaps a lock that no thread will ever release:
//! there, an engine is dead. Its callers get an empty endpoint that reports this ([`Endpoint::forked`]), and nothing
//! reaches the parent.

mod clock;
mod contention;
mod doorbell;
mod event_fd;
mod hold;
mod hops;
mod process;
pub(crate) mod thread;
mod time_slice;
mod trust;
mod turns;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use crate::frame::Frame;
use crate::link::{Gone, Link};
use crate::memory::faults;
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Duration, Instant, earliest};
use crate::transport::{Endpoint, Event, Sink, Transmit};
use crate::wire::Qpn;

use clock::Clock;
use contention::{Contention, this_thread, waited, wake_early};
use doorbell::{Doorbell, Due};
use hops::HopQueries;
use trust::PASSIVE;
use turns::{Round, Turns};

pub(crate) use event_fd::{EventFd, poll_any, poll_readable};
pub use process::Process;

/// Upper bound on the frames received, and on the packets sent, in one step.
///
/// One system call should pay for many packets: a batch of 64 costs a third of 64 single ones on veth. A larger batch
/// would keep others from the lock for longer.
const BATCH: usize = 64;

/// Full batches in a row after which timers are checked anyway. Otherwise arrivals are taken first: after a time
/// without a processor, answers in the ring are not late, and their paths not dark.
const TIMERS_WAIT: u32 = 16;

/// How long what has arrived may lie while programs only post. Then a post takes it along.
const LEFT_LYING: Duration = Duration::from_micros(100);

/// How often programs that share an interface tell each other of urgent messages.
const SHARE_EVERY: Duration = Duration::from_millis(1);

/// Upper bound on the background thread's sleep, whatever the timers: lost wake-ups end here.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Upper bound on the batches that the link is given of what a queue pair owes before it goes away: acknowledges, NAKs
/// and results of atomics.
const SETTLE_STEPS: usize = 64;

/// An endpoint on a link, and the thread that drives it.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    core: Mutex<Core>,
    /// The process that started it. In a child, `core` must not be touched.
    process: Process,
    /// The endpoint that a child works with instead.
    forked: OnceLock<Mutex<Core>>,
    turns: Turns,
    /// Readable while the endpoint has events.
    events: EventFd,
    clock: Clock,
    link_fds: Vec<RawFd>,
    on_event: OnceLock<EventHandler>,
}

/// A function that takes asynchronous events.
type EventHandler = Box<dyn Fn(Event) + Send + Sync>;

/// What the engine owns, for the holder of the lock.
pub struct Core {
    /// The endpoint: all state of the device.
    pub endpoint: Endpoint,
    /// The link that the endpoint sends and receives over.
    pub link: Box<dyn Link>,
    clock: Clock,
    frames: Vec<Frame>,
    hops: HopQueries,
    /// When arrivals were last looked for.
    received_at: Instant,
    /// Steps in a row that found a full batch of frames.
    full_batches: u32,
    /// Whether the last step left acknowledges for a later one.
    owes_acknowledges: bool,
    /// Whether the event descriptor is readable.
    events_announced: bool,
    contention: Contention,
    doorbell: Doorbell,
    /// When others were told of urgent messages.
    shared_at: Instant,
}

impl Engine {
    /// Starts an endpoint on `link` and its background thread, which blocks all signals except those that its own
    /// instructions can raise. `seed` decides the keys.
    ///
    /// # Errors
    /// [`io::Error`] when the kernel gives no thread or event descriptor.
    pub fn start(link: Box<dyn Link>, seed: [u8; 32]) -> io::Result<Engine> {
        let link_fds = link.poll_fds();
        let mut endpoint = Endpoint::new(seed);
        if let Some(imposed) = link.imposed() {
            endpoint.impose(imposed.identification, imposed.source_port);
        }
        let clock = Clock::new();
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(endpoint, link, clock)),
            process: Process::current(),
            forked: OnceLock::new(),
            turns: Turns::new()?,
            events: EventFd::new()?,
            clock,
            link_fds,
            on_event: OnceLock::new(),
        });
        let thread = {
            let shared = shared.clone();
            thread::start(Builder::new().name("uroce".to_owned()), move || shared.run_in_background())?
        };
        Ok(Engine { shared, thread: Some(thread) })
    }

    /// The current time of the engine's clock.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Runs `work` with the core, waiting for the lock if necessary, and then sends what has become due.
    pub fn with<T>(&self, work: impl FnOnce(&mut Core, Instant) -> T) -> T {
        self.without_sending(|core, now| {
            let result = work(core, now);
            core.send_what_is_due(now);
            result
        })
    }

    /// The same for `work` that posts send requests to this queue pair. A program that posts drives the engine as one that
    /// polls does: it takes along what has arrived when nobody has looked for 100 µs.
    pub fn post<T>(&self, qpn: Qpn, work: impl FnOnce(&mut Core, Instant) -> T) -> T {
        self.without_sending(|core, now| {
            let result = work(core, now);
            core.contention.used_by(this_thread(), now);
            self.shared.turns.posted(core.step_if_nobody_does(qpn, now));
            result
        })
    }

    /// Runs `work` with the core, waiting for the lock if necessary. For work that makes nothing due: what is owed
    /// anyway goes out with the next request or step.
    pub fn without_sending<T>(&self, work: impl FnOnce(&mut Core, Instant) -> T) -> T {
        let mut core = self.shared.lock();
        let now = self.now();
        let result = work(&mut core, now);
        self.shared.announce_events(&mut core);
        drop(core);
        if self.is_forked() {
            return result;
        }
        self.shared.turns.changed();
        result
    }

    /// Receives, sends and runs timers, unless another thread is doing so. Programs call this when they poll. While others
    /// need the processor, a step that finds nothing sleeps for up to 4 ms, until a frame arrives.
    pub fn step(&self) {
        if self.is_forked() {
            return;
        }
        faults::receive();
        let mut rest = None;
        self.shared.turns.poll(&self.shared.core, |core| {
            let looked_at = core.received_at;
            let (received, sent) = core.step_for_program();
            let worked = received + sent > 0;
            let unseen = core.received_at.saturating_since(looked_at);
            if worked && unseen >= PASSIVE {
                self.shared.turns.frames_had_waited(unseen);
            }
            self.shared.announce_events(core);
            rest = core.rest_after(received > 0, worked);
            worked
        });
        if let Some(rest) = rest {
            wake_early();
            self.shared.turns.rest(|| poll_any(&self.shared.link_fds, rest));
        }
    }

    /// Has the thread that drives the engine pass events to `handler`, with the engine locked. Only the first handler
    /// counts.
    pub fn set_event_handler(&self, handler: EventHandler) {
        let _ = self.shared.on_event.set(handler);
    }

    /// Sends the acknowledges that are owed, and flushes the link. It tries for `patience`: at a program's exit its
    /// other threads can have been stopped anywhere. Returns whether it was done.
    pub fn settle(&self, patience: Duration) -> bool {
        if self.is_forked() {
            return false;
        }
        faults::receive();
        let end = self.now() + patience;
        loop {
            if let Ok(mut core) = self.shared.core.try_lock() {
                let now = self.now();
                core.settle_all(now);
                core.link.settle();
                return true;
            }
            if self.now() >= end {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Announces that the program will sleep until a completion notifies it: the background thread must watch from now
    /// on.
    pub fn will_sleep(&self) {
        if self.is_forked() {
            return;
        }
        self.shared.turns.will_sleep();
    }

    /// Whether this process is a child, by fork(2), of the one that started the engine.
    pub fn is_forked(&self) -> bool {
        self.shared.is_forked()
    }

    /// A descriptor that is readable while the endpoint has events. It must only be polled.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.events.as_fd()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_forked() {
            // The thread is the parent's, and so is what it keeps alive.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.turns.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
        self.shared.lock().settle_all(self.now());
    }
}

impl Core {
    fn new(endpoint: Endpoint, link: Box<dyn Link>, clock: Clock) -> Core {
        let frames = Vec::with_capacity(BATCH);
        Core {
            endpoint,
            link,
            clock,
            frames,
            hops: HopQueries::default(),
            received_at: clock.now(),
            full_batches: 0,
            owes_acknowledges: false,
            events_announced: false,
            contention: Contention::default(),
            doorbell: Doorbell::default(),
            shared_at: Instant::ZERO,
        }
    }

    /// One round. Returns the number of packets received and sent.
    fn step(&mut self) -> (usize, usize) {
        let (received, now) = self.receive();
        (received, self.send(now))
    }

    /// One round for a program that polls.
    ///
    /// When the round brings something, and only acknowledges are owed for it, the program sees it first. A system call
    /// for an acknowledge costs as much as the round, and the program's answer, or its next poll, takes the acknowledge
    /// along. If the program does neither, the background thread does, as for all that arrives from then on. What it has posted
    /// singly can wait, too ([`Doorbell`]). Returns the number of packets received and sent.
    fn step_for_program(&mut self) -> (usize, usize) {
        let (received, now) = self.receive();
        if self.doorbell.waits(now) && !mutated!("polls-do-not-wait", by "uroce --lib what_is_posted_singly") {
            return (received, 0);
        }
        if received > 0 && !self.owes_acknowledges && self.endpoint.owes_only_acknowledges() {
            self.owes_acknowledges = true;
            return (received, 0);
        }
        (received, self.send(now))
    }

    /// How long a program that polls shall sleep after a step, unless a frame arrives, so that others get its processor.
    fn rest_after(&mut self, has_received: bool, worked: bool) -> Option<Duration> {
        let now = self.received_at;
        self.contention.used_by(this_thread(), now);
        if worked {
            self.contention.worked(has_received, now);
            return None;
        }
        let rests = self.contention.shall_rest(now, waited) && !self.doorbell.holds();
        if !rests || mutated!("polls-do-not-rest", by "uroce --test contention a_program_that_polls") {
            return None;
        }
        let idle = self.idle(now);
        self.contention.rest(idle, now)
    }

    /// How long there is nothing to do, unless something arrives.
    fn idle(&mut self, now: Instant) -> Duration {
        let next = earliest([self.endpoint.poll_timeout(), self.link.poll_timeout()]);
        let idle = next.map_or(LONGEST_SLEEP, |at| at.saturating_since(now).min(LONGEST_SLEEP));
        // More to send but no buffer, or a closed window: transmissions complete without waking anybody.
        if self.endpoint.may_transmit() { idle.min(PASSIVE) } else { idle }
    }

    /// What has happened, by name (docs/COUNTERS.md).
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let own = [("polls_rested", self.contention.rests()), ("posts_held", self.doorbell.held())];
        self.endpoint.counters().list().chain(self.link.counters()).chain(own).collect()
    }

    /// Handles frames that have arrived. Returns their number, and the time at which they had.
    fn receive(&mut self) -> (usize, Instant) {
        let mut now = self.clock.now();
        let received = self.link.receive(now, &mut self.frames, BATCH);
        if received > 0 {
            // The thread can have been interrupted: a frame handled before the time at which it came makes its round trip
            // shorter than any is.
            now = self.clock.now();
        }
        for frame in &self.frames {
            match frame.has_right_icrc() {
                true => self.endpoint.handle_checked_frame(now, frame.bytes()),
                false => self.endpoint.handle_frame(now, frame.bytes()),
            }
        }
        // Only now: to give a frame back waits until the processor has stored all that was copied from those before it.
        self.frames.clear();
        self.received_at = now;
        self.full_batches = if received < BATCH { 0 } else { self.full_batches + 1 };
        if self.full_batches.is_multiple_of(TIMERS_WAIT) {
            self.endpoint.handle_timeout(now);
        }
        self.hops.answer(now, &mut self.endpoint, &mut *self.link);
        if now.saturating_since(self.shared_at) >= SHARE_EVERY {
            self.shared_at = now;
            let others = self.link.share_urgency(self.endpoint.urgent_left(now));
            self.endpoint.give_way_for(now, others);
        }
        (received, now)
    }

    /// Sends what a program has posted, perhaps with what it posts next, and takes along what has arrived when nobody has looked
    /// for [`LEFT_LYING`]. Returns whether it did that.
    fn step_if_nobody_does(&mut self, qpn: Qpn, now: Instant) -> bool {
        let steps = now.saturating_since(self.received_at) >= LEFT_LYING;
        let now = if steps { self.receive().1 } else { now };
        let sent = self.transmit_if_due(now);
        let due = self.doorbell.posted(sent, || under_way(&self.endpoint, qpn), now);
        if due == Due::Nothing || !self.doorbell.holds() {
            return steps;
        }
        let kept = match due {
            Due::WholeRuns => self.link.flush_whole_runs(now),
            _ => {
                self.flush(now);
                0
            }
        };
        let now = self.clock.now();
        self.doorbell.keep(kept, now);
        self.doorbell.over(now);
        steps
    }

    /// Sends up to a batch, after a call that can have made it due.
    fn send_what_is_due(&mut self, now: Instant) {
        if self.transmit_if_due(now) > 0 || self.doorbell.holds() {
            self.flush(now);
        }
    }

    /// A closed window is no reason to go to the link.
    fn transmit_if_due(&mut self, now: Instant) -> usize {
        if self.endpoint.may_transmit() { self.transmit(now) } else { 0 }
    }

    fn send(&mut self, now: Instant) -> usize {
        let sent = self.transmit(now);
        self.flush(now);
        sent
    }

    fn flush(&mut self, now: Instant) {
        self.link.flush(now);
        self.doorbell.ring(now);
    }

    /// Sends what a queue pair owes before it goes away, as far as the link accepts it: its peer cannot get it
    /// otherwise. That excludes READ responses, which can be gigabytes, and requests.
    pub fn settle(&mut self, now: Instant, qpn: Qpn) {
        for _ in 0..SETTLE_STEPS {
            let mut sent = 0;
            while sent < BATCH {
                let Some(buffer) = self.link.transmit_buffer() else { break };
                let Some(transmit) = self.endpoint.poll_owed(now, qpn, buffer) else { break };
                self.link.transmit(now, transmit.len, transmit.hop);
                sent += 1;
            }
            if sent == 0 {
                break;
            }
            self.flush(now);
        }
    }

    /// Sends what all queue pairs owe, as [`settle`](Self::settle).
    fn settle_all(&mut self, now: Instant) {
        let ready: Vec<Qpn> = self.endpoint.ready().collect();
        ready.into_iter().for_each(|qpn| self.settle(now, qpn));
        if self.doorbell.holds() {
            self.flush(now);
        }
    }

    /// Writes up to a batch of packets into the link's buffers. Returns their number.
    fn transmit(&mut self, now: Instant) -> usize {
        self.owes_acknowledges = false;
        let mut batch = Batch { link: &mut *self.link, now, packets: 0 };
        self.endpoint.transmit(now, &mut batch);
        batch.packets
    }
}

/// The packets of one step, on their way to the link.
struct Batch<'a> {
    link: &'a mut dyn Link,
    now: Instant,
    packets: usize,
}

impl Sink for Batch<'_> {
    fn place(&mut self) -> Option<&mut [u8]> {
        if self.packets < BATCH { self.link.transmit_buffer() } else { None }
    }

    fn take(&mut self, transmit: Transmit) {
        self.link.transmit(self.now, transmit.len, transmit.hop);
        self.packets += 1;
    }
}

/// The packets of requests of a queue pair that are not acknowledged.
fn under_way(endpoint: &Endpoint, qpn: Qpn) -> usize {
    endpoint.queue_pair(qpn).map_or(0, |qp| {
        let (unacknowledged, upcoming) = qp.send_progress();
        upcoming.after(unacknowledged) as usize
    })
}

impl Shared {
    fn is_forked(&self) -> bool {
        Process::current() != self.process
    }

    /// Passes events to their handler, or makes the event descriptor readable exactly while there are some.
    fn announce_events(&self, core: &mut Core) {
        if let Some(handler) = self.on_event.get() {
            while let Some(event) = core.endpoint.poll_event() {
                handler(event);
            }
        }
        let there = core.endpoint.has_events();
        if there == core.events_announced {
            return;
        }
        core.events_announced = there;
        match there {
            true => self.events.signal(),
            false => _ = self.events.take(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        if self.is_forked() {
            let core =
                self.forked.get_or_init(|| Mutex::new(Core::new(Endpoint::forked(), Box::new(Gone), self.clock)));
            return core.lock().expect("nothing in it panics");
        }
        faults::receive();
        self.turns.lock(&self.core).expect("a thread panicked inside the engine; its state cannot be trusted")
    }

    fn run_in_background(&self) {
        time_slice::shorten();
        self.turns.run_in_background(&self.link_fds, || self.clock.now(), || self.round());
    }

    /// One step of the background thread.
    fn round(&self) -> Round {
        let mut core = self.lock();
        let (received, sent) = core.step();
        let worked = received + sent > 0 || core.hops.has_more();
        self.announce_events(&mut core);
        let sleep = core.idle(self.clock.now());
        Round { received: received > 0, worked, sleep }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.shared.turns)
    }
}

#[cfg(test)]
mod tests;
