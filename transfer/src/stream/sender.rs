use uroce::time::{Duration, Instant};

use super::wire::{Body, MESSAGE_BYTES, Reason};
use super::{Cut, CutError, End, Failure, PATIENCE, Place, Stream};

/// The end of a stream that sends it: it says which chunk may be posted now.
///
/// Its owner exchanges messages of 64 bytes with the receiver over any reliable channel, posts WRITEs with immediate data on
/// an RC queue pair, and tells of their completions, until it has [ended](Self::end).
#[derive(Clone, Debug)]
pub struct Sender {
    stream: Stream,
    outstanding: u64,
    patience: Duration,
    phase: Phase,
    owed: Option<Body>,
    /// Bytes that are ready, from the first on.
    ready: u64,
    /// Chunks.
    posted: u64,
    completed: u64,
    heard_at: Instant,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Waiting,
    Invited { held: u64, place: Place },
    Begun { place: Place, cut: Cut },
}

/// A chunk to be posted: a WRITE with immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// Where it begins in the stream, in bytes.
    pub offset: u64,
    /// Its length in bytes, 1 to 2^31.
    pub bytes: u32,
    /// Where it goes.
    pub address: u64,
    /// The key of that memory.
    pub rkey: u32,
    /// The immediate data as a number: the chunk's, from 0 on in each connection.
    pub immediate: u32,
}

/// Why a sender does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// The receiver has not invited it yet, or it has begun already, or ended.
    #[error("the stream has not been invited, or has begun already")]
    NotInvited,
    /// The chunks cannot be.
    #[error(transparent)]
    Chunks(#[from] CutError),
}

impl Sender {
    /// A sender with at most `outstanding` chunks on their way, at least one: what its send queue holds.
    pub fn new(stream: Stream, outstanding: usize, now: Instant) -> Sender {
        Sender {
            stream,
            outstanding: (outstanding as u64).max(1),
            patience: PATIENCE,
            phase: Phase::Waiting,
            owed: None,
            ready: 0,
            posted: 0,
            completed: 0,
            heard_at: now,
            end: None,
        }
    }

    /// The same with this upper bound on the time until the invitation, and until a chunk on its way completes: 10 s unless it
    /// is set.
    pub fn with_patience(self, patience: Duration) -> Sender {
        Sender { patience, ..self }
    }

    /// How the stream has ended; `None` while it goes on.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Where the stream goes, and how many of its bytes the receiver has already; `None` before it is invited. Until the sender
    /// has begun, it may write anything to the rest of that memory: a [warm-up](super::WarmUp) does.
    pub fn invited(&self) -> Option<(Place, u64)> {
        match self.phase {
            Phase::Invited { held, place } if self.end.is_none() => Some((place, held)),
            _ => None,
        }
    }

    /// How many chunks may be on their way at once: the lesser of the send queue and the receives of the receiver.
    pub fn outstanding(&self) -> usize {
        let place = match self.phase {
            Phase::Waiting => None,
            Phase::Invited { place, .. } | Phase::Begun { place, .. } => Some(u64::from(place.outstanding)),
        };
        place.map_or(self.outstanding, |receives| receives.min(self.outstanding)) as usize
    }

    /// The chunks of this connection; `None` before it has begun.
    pub fn cut(&self) -> Option<Cut> {
        match self.phase {
            Phase::Begun { cut, .. } => Some(cut),
            _ => None,
        }
    }

    /// Bytes of the stream that are known to be at the receiver, from the first on.
    pub fn whole_bytes(&self) -> u64 {
        match self.phase {
            Phase::Waiting => 0,
            Phase::Invited { held, .. } => held,
            Phase::Begun { cut, .. } => cut.end(self.completed),
        }
    }

    /// Parts that are known to be whole at the receiver, from the first on.
    pub fn whole_parts(&self) -> usize {
        self.stream.parts.whole(self.whole_bytes())
    }

    /// Takes a message of the receiver.
    pub fn handle_message(&mut self, now: Instant, bytes: &[u8]) {
        if self.end.is_some() {
            return;
        }
        match (self.stream.read(bytes), self.phase) {
            (Ok(Body::Invitation { held, place }), Phase::Waiting) => {
                self.heard_at = now;
                self.phase = Phase::Invited { held, place };
            }
            (Ok(_), _) => self.fail(Failure::Unexpected, Some(Reason::Order)),
            (Err((failure, refusal)), _) => self.fail(failure, refusal),
        }
    }

    /// The next message to be sent to the receiver.
    pub fn poll_message(&mut self) -> Option<[u8; MESSAGE_BYTES]> {
        self.owed.take().map(|body| self.stream.message(body))
    }

    /// Begins with chunks of `chunk_bytes`, 1 to 2^31.
    ///
    /// # Errors
    /// [`BeginError`] when it is not [invited](Self::invited), or such chunks cannot be; it can begin with others.
    pub fn begin(&mut self, chunk_bytes: u64, now: Instant) -> Result<(), BeginError> {
        let (place, from) = self.invited().ok_or(BeginError::NotInvited)?;
        let cut = Cut::new(from, self.stream.parts.bytes(), chunk_bytes)?;
        self.phase = Phase::Begun { place, cut };
        self.owed = Some(Body::Begin { from, chunk_bytes: cut.chunk_bytes() });
        self.heard_at = now;
        self.complete_if_done(cut);
        Ok(())
    }

    /// The first `parts` parts are ready to be sent. They are not written any more until the stream has ended.
    pub fn handle_ready(&mut self, parts: usize) {
        self.ready = self.ready.max(self.stream.parts.end(parts));
    }

    /// The next chunk to be posted now; `None` when its bytes are not ready, or enough are on their way.
    pub fn poll_post(&mut self, now: Instant) -> Option<Post> {
        let Phase::Begun { place, cut } = self.phase else { return None };
        let on_their_way = self.posted - self.completed;
        if self.end.is_some()
            || self.posted == cut.count()
            || (on_their_way >= self.outstanding() as u64
                && !uroce::mutated!("stream-beyond-receives", by "uroce-transfer --test streams every_stream"))
        {
            return None;
        }
        let chunk = cut.chunk(self.posted);
        if chunk.end > self.ready
            && !uroce::mutated!("stream-not-ready", by "uroce-transfer --test streams every_stream")
        {
            return None;
        }
        if on_their_way == 0 {
            self.heard_at = now;
        }
        let post = Post {
            offset: chunk.start,
            bytes: (chunk.end - chunk.start) as u32,
            address: place.address + chunk.start,
            rkey: place.rkey,
            immediate: self.posted as u32,
        };
        self.posted += 1;
        Some(post)
    }

    /// A posted chunk has completed with success; they do so in order.
    pub fn handle_completion(&mut self, now: Instant) {
        let Phase::Begun { cut, .. } = self.phase else { return };
        if self.end.is_none() && self.completed < self.posted {
            self.completed += 1;
            self.heard_at = now;
            self.complete_if_done(cut);
        }
    }

    fn complete_if_done(&mut self, cut: Cut) {
        if self.completed == cut.count() {
            self.end = Some(End::Complete);
        }
    }

    /// A posted chunk has failed, or the receiver's channel has closed: nothing more is posted.
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
        let waits = match self.phase {
            Phase::Waiting => true,
            Phase::Invited { .. } => false,
            Phase::Begun { .. } => self.posted > self.completed,
        };
        (waits && self.end.is_none()).then(|| self.heard_at + self.patience)
    }
}
