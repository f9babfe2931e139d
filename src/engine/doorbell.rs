use super::hold::{Hold, HoldLengths};
use crate::time::{Duration, Instant};

/// How many packets wait at most, and how many of the same queue pair must be under way meanwhile. In a call of the kernel that
/// sends sixteen, each costs a third of one alone.
const MOST: usize = 16;

/// How long they wait while the program polls.
const PATIENCE: Duration = Duration::from_micros(10);

/// The longest time between two posts of a program that posts one after the other. One that takes its time would have half of its
/// packets wait for it.
const QUICK: Duration = Duration::from_micros(50);

/// When they are late: the program has neither posted nor polled. None wait for a while then ([`HoldLengths::DOUBT`]).
const LATE: Duration = Duration::from_micros(400);

/// What goes to the kernel after a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing: it waits for the next post.
    Nothing,
    /// What the next packets could not join ([`flush_whole_runs`](crate::link::Link::flush_whole_runs)).
    WholeRuns,
    All,
}

/// Whether what a program posts goes to the kernel at once, or with what it posts next.
///
/// A program that posts messages one by one makes a system call for each of them, which costs more than all else. While many
/// are under way, the next ones can wait for each other: the program will post or poll again, at the latest when it has the
/// completions of these. Where it does not, the background thread finds what waits, up to 4 ms later.
#[derive(Debug, Default)]
pub(super) struct Doorbell {
    /// Packets that wait, and since when.
    waiting: usize,
    since: Instant,
    /// Packets of the last post.
    last: usize,
    /// When the last post was over.
    posted_at: Instant,
    doubt: Hold,
    /// Posts whose packets waited.
    held: u64,
}

impl Doorbell {
    /// Notes a post which gave the link so many packets, of a queue pair that has `under_way` with them. Returns what goes to
    /// the kernel.
    pub fn posted(&mut self, packets: usize, under_way: impl FnOnce() -> usize, now: Instant) -> Due {
        if self.waiting == 0 {
            self.since = now;
        }
        self.waiting += packets;
        self.last = packets;
        let goes_on = packets > 0
            && self.waits(now)
            && now.saturating_since(self.posted_at) < QUICK
            && !self.doubt.lasts(now)
            && under_way() >= self.waiting + MOST;
        self.posted_at = now;
        let due = match (goes_on, self.waiting < MOST) {
            (false, _) => Due::All,
            (true, false) if mutated!("the-rest-of-a-run-leaves-at-once", by "uroce --lib what_does_not_fill_a_run") => {
                Due::All
            }
            (true, false) => Due::WholeRuns,
            (true, true) => Due::Nothing,
        };
        self.held += u64::from(due == Due::Nothing);
        due
    }

    /// Notes that the kernel was called for whole runs, and so many packets wait on: from now on, if they are of the last post.
    pub fn keep(&mut self, packets: usize, now: Instant) {
        if packets <= self.last || mutated!("what-waited-waits-anew", by "uroce --lib what_does_not_fill_a_run") {
            self.since = now;
        }
        self.waiting = packets;
    }

    /// Notes that a post that called the kernel is over.
    pub fn over(&mut self, now: Instant) {
        self.posted_at = now;
    }

    /// Whether packets wait.
    pub fn holds(&self) -> bool {
        self.waiting > 0
    }

    /// Whether packets wait that go on waiting while a program polls.
    pub fn waits(&self, now: Instant) -> bool {
        self.waiting > 0 && now.saturating_since(self.since) < PATIENCE
    }

    /// Notes that the kernel is called.
    pub fn ring(&mut self, now: Instant) {
        if self.waiting > 0 && now.saturating_since(self.since) >= LATE {
            self.doubt.begin(&HoldLengths::DOUBT, now);
        }
        self.waiting = 0;
    }

    /// Posts whose packets waited for the next call.
    pub fn held(&self) -> u64 {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// How long a call of the kernel takes.
    const CALL: Duration = Duration::from_micros(30);

    fn start() -> Instant {
        Instant::ZERO + Duration::from_millis(1000)
    }

    /// How many of so many posts of `packets` each, a microsecond apart, call the kernel. `before` packets are under way when
    /// they begin.
    fn calls(posts: usize, packets: usize, before: usize, apart: Duration) -> usize {
        let (mut doorbell, mut now) = (Doorbell::default(), start());
        let mut calls = 0;
        for post in 1..=posts {
            if doorbell.posted(packets, || before + post * packets, now) != Due::Nothing {
                doorbell.ring(now);
                calls += 1;
                now = now + CALL;
                doorbell.over(now);
            }
            now = now + apart;
        }
        calls
    }

    #[test]
    fn messages_wait_for_each_other_while_many_are_under_way() {
        let short = US / 2;
        assert_eq!(calls(16, 1, 0, short), 16, "nothing else is");
        // Nobody has posted before the first.
        assert_eq!(calls(161, 1, 16, short), 1 + 10);
        assert_eq!(calls(161, 3, 16, short), 1 + 160 / 6, "the sixth has the sixteenth packet");
        assert_eq!(calls(160, 16, 160, short), 160, "a call pays for itself");
        assert_eq!(calls(161, 1, 16, US * 5), 1 + 160 / 3, "for ten microseconds");
        assert_eq!(calls(160, 1, 16, QUICK), 160, "one that takes its time");
    }

    #[test]
    fn they_wait_for_ten_microseconds_while_a_program_polls() {
        let (mut doorbell, now) = (Doorbell::default(), start());
        assert!(!doorbell.waits(now), "nothing waits");
        doorbell.over(now);
        assert_eq!(doorbell.posted(1, || 40, now), Due::Nothing);
        assert_eq!(doorbell.posted(1, || 41, now + US * 8), Due::Nothing);
        assert!(doorbell.waits(now + US * 9) && !doorbell.waits(now + PATIENCE));
        assert_eq!(doorbell.posted(0, || 41, now + US * 9), Due::All, "the window is closed: only answers open it");
        doorbell.ring(now + US * 9);
        assert!(!doorbell.waits(now + US * 9) && !doorbell.holds());
        assert_eq!(doorbell.held(), 2);
    }

    /// Else one that posts, and then computes for long, is late each time.
    #[test]
    fn after_a_program_was_late_none_wait_for_a_while() {
        let (mut doorbell, mut now, mut late) = (Doorbell::default(), start(), 0);
        let end = now + Duration::from_millis(10_000);
        while now < end {
            doorbell.over(now);
            let waits = doorbell.posted(1, || 40, now) == Due::Nothing;
            now = if waits { now + LATE } else { now };
            late += u32::from(waits);
            doorbell.ring(now);
            now = now + US * 100;
        }
        assert!((9..=14).contains(&late), "{late}: after 10, 40, 160, 640 ms, and then each second");
        doorbell.posted(1, || 40, end + HoldLengths::DOUBT.most);
        doorbell.ring(end + (HoldLengths::DOUBT.most + LATE - US));
        doorbell.over(end + (HoldLengths::DOUBT.most + LATE));
        let due = doorbell.posted(1, || 40, end + (HoldLengths::DOUBT.most + LATE));
        assert_eq!(due, Due::Nothing, "that was in time");
    }

    /// Messages of sixteen packets, of which fifteen make a run.
    #[test]
    fn what_does_not_fill_a_run_waits_for_the_next_post_and_for_ten_microseconds() {
        let (mut doorbell, now) = (Doorbell::default(), start());
        doorbell.over(now);
        assert_eq!(doorbell.posted(16, || 31, now), Due::All, "too few are under way beside them");
        doorbell.ring(now);
        doorbell.over(now);
        assert_eq!(doorbell.posted(16, || 32, now), Due::WholeRuns);
        doorbell.ring(now);
        doorbell.keep(1, now + CALL);
        doorbell.over(now + CALL);
        assert!(doorbell.waits(now + (CALL + US * 9)) && !doorbell.waits(now + (CALL + PATIENCE)));
        assert_eq!(doorbell.posted(16, || 48, now + (CALL + US)), Due::WholeRuns);
        doorbell.ring(now + (CALL + US));
        // A call that sent nothing: they have waited from the first on.
        doorbell.keep(17, now + (CALL + US * 9));
        doorbell.over(now + (CALL + US * 9));
        assert!(!doorbell.waits(now + (CALL + PATIENCE)));
        assert_eq!(doorbell.posted(16, || 64, now + (CALL + PATIENCE)), Due::All);
        assert_eq!(doorbell.held(), 0);
    }
}
