use std::collections::VecDeque;

use rand_chacha::rand_core::RngCore;
use uroce::transport::{SendOperation, SendRequest, Status};
use uroce::wire::{Placement, Selectivity};

use super::pair::{Pair, Side, pattern};

/// Bytes of memory reserved for each request, on both sides.
const SLOT: usize = 3000;

/// The offset of the word for atomics in B's memory.
const COUNTER: usize = Pair::HALF - 8;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
    AtomicWrite,
    Flush,
}

/// A request that was posted, and its expected result.
struct Posted {
    kind: Kind,
    len: usize,
    /// The sum of the FETCH_ADDs before it.
    sum: u64,
}

impl Pair {
    /// Posts `count` random operations from A to B, all at once, and checks memory, results and order.
    ///
    /// WRITEs and SENDs each have a target of their own, READs read memory that is never written, and atomics add to
    /// one word.
    ///
    /// # Panics
    /// When memory, a result or the order is wrong.
    pub fn run_pipeline(&mut self, count: usize) {
        let source = pattern(self.seed, Self::BYTES);
        self.fill(Side::A, 0, &source[..Self::HALF]);
        self.fill(Side::B, 0, &[0; Self::HALF]);
        self.fill(Side::B, Self::HALF, &source[Self::HALF..]);
        let (mut posted, mut sum, mut receives) = (Vec::new(), 0, VecDeque::new());
        for i in 0..count {
            let len = self.random.next_u32() as usize % (SLOT + 1);
            let kind = match self.random.next_u32() % 7 {
                0 => Kind::Send,
                1 => Kind::Write,
                2 => Kind::WriteImmediate,
                3 => Kind::Read,
                5 => Kind::AtomicWrite,
                6 => Kind::Flush,
                _ => Kind::FetchAdd,
            };
            if matches!(kind, Kind::Send | Kind::WriteImmediate) {
                self.post_receive(Side::B, i as u64, i * SLOT, SLOT as u32);
                receives.push_back((i as u64, len as u32, (kind == Kind::WriteImmediate).then_some(i as u32)));
            }
            let len = self.post_one(i, kind, len);
            posted.push(Posted { kind, len, sum });
            sum += if kind == Kind::FetchAdd { i as u64 } else { 0 };
        }
        for (i, posted) in posted.iter().enumerate() {
            self.check_one(i, posted, &source);
        }
        while let Some((wr_id, byte_len, immediate)) = receives.pop_front() {
            let done = self.completion(Side::B);
            assert_eq!((done.wr_id, done.byte_len, done.immediate), (wr_id, byte_len, immediate), "seed {}", self.seed);
        }
        assert_eq!(self.u64(Side::B, COUNTER), sum);
    }

    /// Posts request `i`, and returns its length in bytes: some kinds have a fixed one.
    fn post_one(&mut self, i: usize, kind: Kind, len: usize) -> usize {
        let there = self.remote(Side::B, i * SLOT);
        let operation = match kind {
            Kind::Send => SendOperation::Send,
            Kind::Write => SendOperation::Write(there),
            Kind::WriteImmediate => SendOperation::WriteWithImmediate(there, i as u32),
            Kind::Read => SendOperation::Read(self.remote(Side::B, Self::HALF + i * SLOT)),
            Kind::FetchAdd => SendOperation::FetchAdd { remote: self.remote(Side::B, COUNTER), add: i as u64 },
            Kind::AtomicWrite => SendOperation::AtomicWrite(there),
            Kind::Flush => SendOperation::Flush {
                remote: self.remote(Side::B, 0),
                length: (i * SLOT) as u32,
                placement: Placement::GLOBAL,
                selectivity: if len.is_multiple_of(2) { Selectivity::Range } else { Selectivity::Region },
            },
        };
        // READs and atomics write into the upper half of A, which is not used otherwise.
        let (from, len) = match kind {
            Kind::Read => (Self::HALF + i * SLOT, len),
            Kind::FetchAdd => (Self::HALF + i * SLOT, 8),
            Kind::AtomicWrite => (i * SLOT, 8),
            Kind::Flush => (i * SLOT, 0),
            _ => (i * SLOT, len),
        };
        self.post(Side::A, SendRequest::new(i as u64, operation, self.data(Side::A, from, len)));
        len
    }

    /// Waits for the completion of request `i`, and checks its result.
    fn check_one(&mut self, i: usize, posted: &Posted, source: &[u8]) {
        let &Posted { kind, len, sum } = posted;
        let (seed, here, there) = (self.seed, Self::HALF + i * SLOT, i * SLOT);
        let done = self.completion(Side::A);
        assert_eq!((done.wr_id, done.status), (i as u64, Status::Success), "seed {seed}");
        match kind {
            Kind::Read => assert_eq!(self.bytes(Side::A, here, len), source[here..][..len], "seed {seed}: READ {i}"),
            Kind::FetchAdd => assert_eq!(self.u64(Side::A, here), sum, "seed {seed}: atomic {i}"),
            _ => assert_eq!(self.bytes(Side::B, there, len), source[there..][..len], "seed {seed}: {kind:?} {i}"),
        }
    }
}
