use crate::congestion::Progress;
use crate::time::{Duration, Instant, earliest};

use super::{Answer, Departure, Expired, PathReport, Recovery, Said, Scoreboard, Trigger, Wants};

/// Selective repeat, towards a peer that reports what arrived (docs/EXTENSIONS.md): only lost packets are
/// retransmitted.
#[derive(Debug)]
pub struct Selective {
    board: Scoreboard,
    window: u64,
    timeout: Option<Duration>,
    /// When the peer's silence has lasted one more timeout, unless there is progress until then. Each costs a retry, as
    /// with go-back-N; a long stop of this host costs one.
    silent_at: Option<Instant>,
    /// The request for which the peer was not ready.
    not_ready: Option<u64>,
}

/// Every packet whose position is a multiple of this asks for an acknowledge: the peer reports with each what it knows.
/// It is no multiple of a usual number of paths: all of them are measured in turn.
const ACK_REQUEST_EVERY: u64 = 13;

/// Retransmission timeout before the first round-trip sample, when the queue pair has no timeout.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);

impl Selective {
    /// The largest window, in positions: 6 bandwidth-delay products of 10 Gb/s × 100 ms at path MTU 4096, and a power of two.
    pub const MAX_WINDOW: u32 = 1 << 18;

    /// A recovery with nothing in flight; the next position is `start`. At most `window` positions will be in flight.
    pub fn new(start: u64, window: u32, timeout: Option<Duration>) -> Selective {
        let board = Scoreboard::new(start, timeout.unwrap_or(FIRST_PATIENCE));
        Selective { board, window: window.into(), timeout, silent_at: None, not_ready: None }
    }

    /// As [`sent`](Recovery::sent), at some time before the peer had shown that it understands.
    pub fn take_over(&mut self, count: u32, answers: bool, now: Instant) {
        self.board.taken_over(count, answers, now);
        self.start_timer(now);
    }

    fn start_timer(&mut self, now: Instant) {
        if self.silent_at.is_none() {
            self.rearm(now);
        }
    }

    /// Starts the next timeout.
    fn rearm(&mut self, now: Instant) {
        let in_flight = self.board.first() < self.board.next();
        // A timeout may be shorter than a round trip; a peer is not gone before three of them.
        let least = self.board.patience() * 3;
        self.silent_at = self.timeout.filter(|_| in_flight).map(|timeout| now + timeout.max(least));
    }
}

impl Recovery for Selective {
    fn name(&self) -> &'static str {
        "selective"
    }

    fn first(&self) -> u64 {
        self.board.first()
    }

    fn next(&self) -> u64 {
        self.board.next()
    }

    fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.board.patience())
    }

    fn may_send_new(&self) -> bool {
        let window = if mutated!("selective-window-off") { u64::MAX } else { self.window };
        self.board.next() - self.board.first() < window
    }

    fn asks_for_acknowledge(&self, position: u64, is_again: bool) -> bool {
        is_again || position % ACK_REQUEST_EVERY == ACK_REQUEST_EVERY - 1
    }

    fn sent(&mut self, packet: Departure, now: Instant) {
        self.board.sent(self.board.next(), packet, now);
        self.start_timer(now);
    }

    fn wants_anything(&self) -> bool {
        self.board.wants_anything()
    }

    fn wants(&mut self) -> Option<Wants> {
        self.board.wants()
    }

    fn sent_again(&mut self, what: Wants, path: u8, bytes: usize, now: Instant) {
        match what {
            Wants::Request(position) => {
                self.board.sent(position, Departure { count: 1, answers: false, path, bytes, asks: true }, now);
            }
            Wants::Answers(position, count) => self.board.asked(position, count, now),
        }
    }

    fn forgo(&mut self, what: Wants) {
        self.board.forgo(what.position());
    }

    fn attempts(&self, position: u64) -> u8 {
        self.board.attempts(position)
    }

    fn reach(&self) -> u64 {
        Self::MAX_WINDOW.into()
    }

    fn acknowledge(&mut self, said: &Said<'_>, now: Instant) -> bool {
        let board = &mut self.board;
        board.listen(said.is_detour);
        let in_vain = said.trigger.is_some_and(|trigger| {
            let Trigger { position, attempt, delay, is_marked } = trigger;
            board.measured(position, attempt, delay, is_marked, now)
        });
        for (base, bits) in said.arrived {
            let mut bits = *bits;
            while bits != 0 {
                let position = base + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                // What was not sent cannot have arrived, whatever the peer says.
                match (board.first()..board.next()).contains(&position) {
                    true if mutated!("completed-before-the-gap-is-filled") => {
                        board.carried_out_before(position + 1, now)
                    }
                    true => board.arrived(position, now),
                    false => {}
                }
            }
        }
        board.carried_out_before(said.before, now);
        board.listen(false);
        in_vain
    }

    fn answer(&self, position: u64) -> Answer {
        if self.board.awaits_answer(position) { Answer::Expected } else { Answer::Unexpected }
    }

    fn answered(&mut self, position: u64, now: Instant) {
        self.board.answered(position, now);
    }

    fn asks_for_some_answers(&self) -> bool {
        true
    }

    fn settle(&mut self, now: Instant) -> u64 {
        let before = self.board.first();
        let first = self.board.settle(now);
        if first > before {
            self.receiver_may_be_ready(now);
            self.rearm(now);
        }
        first
    }

    fn is_news_of(&self, position: u64) -> bool {
        !self.board.is_carried_out(position)
    }

    fn receiver_not_ready(&mut self, position: u64, now: Instant) {
        self.rearm(now);
        self.not_ready = Some(position);
    }

    fn receiver_may_be_ready(&mut self, _now: Instant) {
        // An answer to what is before it may be all that is missing.
        if let Some(position) = self.not_ready.take().filter(|position| !self.board.is_carried_out(*position)) {
            self.board.lose(position);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        earliest([self.board.deadline(), self.silent_at])
    }

    fn handle_timeout(&mut self, now: Instant) -> Expired {
        let is_silent = self.silent_at.is_some_and(|at| at <= now);
        if is_silent {
            self.rearm(now);
            if !mutated!("silence-without-retransmission", by "uroce --test selective each_retry_that") {
                self.board.probe_at_once(now);
            }
        }
        Expired { is_silent, asks_again: self.board.handle_timeout(now) }
    }

    fn has_not_asked(&mut self, now: Instant) -> bool {
        self.board.put_off_probe(now)
    }

    fn in_flight_bytes(&self) -> u64 {
        self.board.in_flight_bytes()
    }

    fn progress(&mut self) -> Progress {
        self.board.progress()
    }

    fn memory_bytes(&self) -> usize {
        self.board.memory_bytes()
    }

    fn use_paths(&mut self, spread: Option<Duration>) {
        self.board.ignore_idle_acknowledges();
        if let Some(spread) = spread {
            self.board.spread_over_paths(spread);
        }
    }

    fn path_answered(&mut self, path: u8, round_trip: Duration, is_back: bool) {
        self.board.path_answered(path, round_trip, is_back);
    }

    fn prefetch_parts(&self) {
        self.board.prefetch();
    }

    fn reports(&self) -> &[PathReport] {
        self.board.reports()
    }

    fn forget_reports(&mut self) {
        self.board.forget_reports();
    }
}
