use uroce::recovery::{Answer, Departure, Expired, Recovery, Said, Wants};
use uroce::time::{Duration, Instant};

/// One request at a time, sent again whenever its time is over: a recovery that nobody here had thought of.
#[derive(Debug)]
pub struct StopAndWait {
    first: u64,
    next: u64,
    answers: bool,
    done: u64,
    is_lost: bool,
    timeout: Option<Duration>,
    lost_at: Option<Instant>,
}

impl StopAndWait {
    pub fn new(next: u64, timeout: Option<Duration>) -> StopAndWait {
        StopAndWait { first: next, next, answers: false, done: next, is_lost: false, timeout, lost_at: None }
    }

    fn wait(&mut self, now: Instant) {
        self.lost_at = self.timeout.map(|timeout| now + timeout);
    }
}

impl Recovery for StopAndWait {
    fn first(&self) -> u64 {
        self.first
    }
    fn next(&self) -> u64 {
        self.next
    }
    fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    fn patience(&self) -> Option<Duration> {
        self.timeout
    }
    fn may_send_new(&self) -> bool {
        self.first == self.next
    }
    fn asks_for_acknowledge(&self, _position: u64, _is_again: bool) -> bool {
        true
    }
    fn sent(&mut self, packet: Departure, now: Instant) {
        (self.next, self.answers) = (self.next + u64::from(packet.count), packet.answers);
        self.wait(now);
    }
    fn wants_anything(&self) -> bool {
        self.is_lost
    }
    fn wants(&mut self) -> Option<Wants> {
        self.is_lost.then_some(Wants::Request(self.first))
    }
    fn sent_again(&mut self, _what: Wants, _path: u8, _bytes: usize, now: Instant) {
        self.is_lost = false;
        self.wait(now);
    }
    fn forgo(&mut self, _what: Wants) {
        self.is_lost = false;
    }
    fn acknowledge(&mut self, said: &Said<'_>, _now: Instant) -> bool {
        self.done = if self.answers { self.done } else { self.done.max(said.before.min(self.next)) };
        false
    }
    fn answer(&self, position: u64) -> Answer {
        match (position.checked_sub(self.done), self.answers) {
            (Some(0), true) => Answer::Expected,
            (Some(ahead), true) => Answer::Early { oldest: self.done, is_next: ahead == 1 },
            _ => Answer::Unexpected,
        }
    }
    fn answered(&mut self, position: u64, now: Instant) {
        self.done = position + 1;
        self.wait(now);
    }
    fn settle(&mut self, _now: Instant) -> u64 {
        self.first = self.done;
        if self.first == self.next {
            (self.lost_at, self.is_lost) = (None, false);
        }
        self.first
    }
    fn is_news_of(&self, position: u64) -> bool {
        position == self.first
    }
    fn receiver_not_ready(&mut self, _position: u64, _now: Instant) {
        (self.is_lost, self.lost_at) = (true, None);
    }
    fn receiver_may_be_ready(&mut self, _now: Instant) {}
    fn deadline(&self) -> Option<Instant> {
        self.lost_at
    }
    fn handle_timeout(&mut self, now: Instant) -> Expired {
        let is_lost = self.lost_at.is_some_and(|at| at <= now);
        if is_lost {
            (self.is_lost, self.lost_at) = (true, None);
        }
        Expired { is_silent: is_lost, asks_again: is_lost }
    }
}
