use std::collections::VecDeque;

use uroce::time::{Duration, Instant};

use super::wire::{Body, MESSAGE_BYTES, Reason};
use super::{Cut, End, Failure, PATIENCE, Place, Stream};

/// The end of a stream that gets it: it says how many parts are whole.
///
/// Its owner exchanges messages of 64 bytes with the sender over any reliable channel, and keeps receives posted on an RC
/// queue pair, each of which a chunk's immediate data takes. Bytes come straight into the owner's memory.
#[derive(Clone, Debug)]
pub struct Receiver {
    stream: Stream,
    held: u64,
    patience: Duration,
    owed: Option<Body>,
    cut: Option<Cut>,
    /// Chunks that have arrived.
    arrived: u64,
    /// Notifications that overtook the sender's message: the immediate data, and bytes.
    early: VecDeque<(u32, u32)>,
    heard_at: Instant,
    end: Option<End>,
}

/// Why a stream cannot be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiverError {
    /// There are more bytes already than the stream has.
    #[error("{held} bytes are held of a stream of {bytes}")]
    Held {
        /// The bytes that are held.
        held: u64,
        /// The stream's bytes.
        bytes: u64,
    },
    /// A field of the place is out of range; holds its name.
    #[error("the field {0} of the place is out of range")]
    Place(&'static str),
}

/// Upper bound on the notifications that wait for the message that the sender has begun: seconds of short chunks.
const EARLY_MAX: usize = 1 << 16;

impl Receiver {
    /// Receives a stream at a place, of which the first `held` bytes are there already.
    ///
    /// # Errors
    /// [`ReceiverError`] when more is held than there is, the place ends beyond the last address, or no receive is posted.
    pub fn new(stream: Stream, place: Place, held: u64, now: Instant) -> Result<Receiver, ReceiverError> {
        let bytes = stream.parts.bytes();
        if held > bytes {
            return Err(ReceiverError::Held { held, bytes });
        }
        place.check(bytes).map_err(ReceiverError::Place)?;
        Ok(Receiver {
            owed: Some(Body::Invitation { held, place }),
            stream,
            held,
            patience: PATIENCE,
            cut: None,
            arrived: 0,
            early: VecDeque::new(),
            heard_at: now,
            end: None,
        })
    }

    /// The same with this upper bound on the time for which nothing comes: 10 s unless it is set. It is longer than a part
    /// takes to be computed, and than the sender takes to begin.
    pub fn with_patience(self, patience: Duration) -> Receiver {
        Receiver { patience, ..self }
    }

    /// How the stream has ended; `None` while it goes on.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The chunks of this connection; `None` before the sender has begun.
    pub fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// Bytes of the stream that are there, from the first on. What comes after them is undefined.
    pub fn whole_bytes(&self) -> u64 {
        self.cut.map_or(self.held, |cut| cut.end(self.arrived))
    }

    /// Parts that are whole, from the first on.
    pub fn whole_parts(&self) -> usize {
        self.stream.parts.whole(self.whole_bytes())
    }

    /// The next message to be sent to the sender.
    pub fn poll_message(&mut self) -> Option<[u8; MESSAGE_BYTES]> {
        self.owed.take().map(|body| self.stream.message(body))
    }

    /// Takes a message of the sender.
    pub fn handle_message(&mut self, now: Instant, bytes: &[u8]) {
        if self.end.is_some() {
            return;
        }
        match self.stream.read(bytes) {
            Ok(Body::Begin { from, chunk_bytes }) if self.cut.is_none() && from == self.held => {
                match Cut::new(from, self.stream.parts.bytes(), chunk_bytes.into()) {
                    Ok(cut) => self.begin(cut, now),
                    Err(error) => self.fail(Failure::Chunks(error), Some(Reason::Chunks)),
                }
            }
            Ok(_) => self.fail(Failure::Unexpected, Some(Reason::Order)),
            Err((failure, refusal)) => self.fail(failure, refusal),
        }
    }

    fn begin(&mut self, cut: Cut, now: Instant) {
        self.cut = Some(cut);
        self.heard_at = now;
        self.complete_if_done(cut);
        while let Some((immediate, bytes)) = self.early.pop_front() {
            self.handle_notification(now, immediate, bytes);
        }
    }

    /// A receive has completed by a WRITE with this immediate data, as a number, and so many bytes: those of its chunk are there,
    /// and all before. One that comes before the message that the sender has begun waits for it.
    pub fn handle_notification(&mut self, now: Instant, immediate: u32, bytes: u32) {
        if self.end.is_some() {
            return;
        }
        let Some(cut) = self.cut else {
            match self.early.len() < EARLY_MAX {
                true => self.early.push_back((immediate, bytes)),
                false => self.fail(Failure::Unexpected, Some(Reason::Order)),
            }
            return;
        };
        let (expected, got) = (self.arrived, u64::from(immediate));
        if expected != got && !uroce::mutated!("stream-any-chunk", by "uroce-transfer --lib stream::receiver") {
            return self.fail(Failure::Chunk { expected, got }, Some(Reason::Order));
        }
        let chunk = cut.chunk(expected);
        let (expected, got) = (chunk.end - chunk.start, u64::from(bytes));
        if expected != got {
            return self.fail(Failure::Length { chunk: self.arrived, expected, got }, Some(Reason::Order));
        }
        self.arrived += 1;
        self.heard_at = now;
        self.complete_if_done(cut);
    }

    fn complete_if_done(&mut self, cut: Cut) {
        if self.arrived == cut.count() {
            self.end = Some(End::Complete);
        }
    }

    /// A receive has failed, or the sender's channel has closed. What has arrived before is to be told first.
    pub fn handle_broken(&mut self) {
        self.fail(Failure::Broken, None);
    }

    fn fail(&mut self, failure: Failure, refusal: Option<Reason>) {
        if self.end.is_none() {
            self.end = Some(End::Failed(failure));
            self.owed = refusal.map(Body::Refusal);
        }
    }

    /// Takes the time. To be called at [`poll_timeout`](Self::poll_timeout); earlier calls do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.fail(Failure::Silent(now - self.heard_at), None);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do, if nothing comes before; `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.end.is_none().then(|| self.heard_at + self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Message;
    use super::super::{CutError, Difference, Parts};
    use super::*;

    const NOW: Instant = Instant::from_ns(5);
    const PLACE: Place = Place { address: 0x1000, rkey: 7, outstanding: 2 };

    fn stream(version: u64) -> Stream {
        Stream { name: 1, version, parts: Parts::new(&[10, 20]).unwrap() }
    }

    fn receiver(held: u64) -> Receiver {
        let mut receiver = Receiver::new(stream(1), PLACE, held, NOW).unwrap();
        receiver.poll_message().unwrap();
        receiver
    }

    fn begin(version: u64, from: u64, chunk_bytes: u32) -> [u8; MESSAGE_BYTES] {
        Message { terms: stream(version).terms(), body: Body::Begin { from, chunk_bytes } }.to_bytes()
    }

    fn refusal(receiver: &mut Receiver) -> Option<Body> {
        receiver.poll_message().map(|bytes| Message::parse(&bytes).unwrap().body)
    }

    #[test]
    fn chunks_make_parts_whole_in_their_order() {
        let mut receiver = receiver(5);
        receiver.handle_message(NOW, &begin(1, 5, 8));
        let mut seen = vec![receiver.whole_parts()];
        for (immediate, bytes) in [(0, 8), (1, 8), (2, 8), (3, 1)] {
            receiver.handle_notification(NOW, immediate, bytes);
            seen.push(receiver.whole_parts());
        }
        assert_eq!((seen, receiver.end()), (vec![0, 1, 1, 1, 2], Some(End::Complete)));
    }

    #[test]
    fn notifications_that_come_before_the_message_count_with_it() {
        let mut receiver = receiver(0);
        receiver.handle_notification(NOW, 0, 16);
        receiver.handle_notification(NOW, 1, 14);
        assert_eq!(receiver.whole_bytes(), 0);
        let mut other = receiver.clone();
        receiver.handle_message(NOW, &begin(1, 0, 16));
        assert_eq!((receiver.whole_bytes(), receiver.end()), (30, Some(End::Complete)));
        // More than anybody waits with.
        (2..EARLY_MAX as u32).for_each(|number| other.handle_notification(NOW, number, 16));
        assert_eq!(other.end(), None);
        other.handle_notification(NOW, 0, 16);
        assert_eq!(other.end(), Some(End::Failed(Failure::Unexpected)));
    }

    #[test]
    fn another_chunk_or_length_than_the_next_is_an_error() {
        for (immediate, bytes, failure) in [
            (1, 16, Failure::Chunk { expected: 0, got: 1 }),
            (0, 15, Failure::Length { chunk: 0, expected: 16, got: 15 }),
        ] {
            let mut receiver = receiver(0);
            receiver.handle_message(NOW, &begin(1, 0, 16));
            receiver.handle_notification(NOW, immediate, bytes);
            assert_eq!(receiver.end(), Some(End::Failed(failure)));
            assert_eq!((receiver.whole_bytes(), refusal(&mut receiver)), (0, Some(Body::Refusal(Reason::Order))));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_reason() {
        let version = Failure::Differs(Difference::Version { here: 1, there: 2 });
        for (message, failure, reason) in [
            (begin(2, 0, 16), version, Reason::Terms),
            (begin(1, 0, 0), Failure::Chunks(CutError::Length(0)), Reason::Chunks),
            (begin(1, 0, (1 << 31) + 1), Failure::Chunks(CutError::Length((1 << 31) + 1)), Reason::Chunks),
            (begin(1, 4, 16), Failure::Unexpected, Reason::Order),
        ] {
            let mut receiver = receiver(0);
            receiver.handle_message(NOW, &message);
            assert_eq!(receiver.end(), Some(End::Failed(failure)));
            assert_eq!(refusal(&mut receiver), Some(Body::Refusal(reason)));
        }
    }

    #[test]
    fn places_that_cannot_be_are_errors() {
        let new = |place: Place, held: u64| Receiver::new(stream(1), place, held, NOW).map(drop);
        assert_eq!(new(PLACE, 31), Err(ReceiverError::Held { held: 31, bytes: 30 }));
        assert_eq!(new(Place { outstanding: 0, ..PLACE }, 0), Err(ReceiverError::Place("outstanding")));
        assert_eq!(new(Place { address: u64::MAX - 29, ..PLACE }, 0), Err(ReceiverError::Place("address")));
    }
}
