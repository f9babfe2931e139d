use arrayvec::ArrayVec;

use crate::Forked;
use crate::frame::FrameBytes;
use crate::memory::{AccessError, MemoryTable, Pd, Span, WindowBinding};
use crate::wire::{Key, Opcode, Placement, Position, QKey, Qpn, Selectivity};

use super::attributes::Path;
use super::inline::InlineBytes;
use super::service::Service;
use super::state::State;

/// Upper bound on the scatter or gather entries of a work request. Hardware offers 30 or so, rxe 32; perftest and UCX
/// use few.
pub const MAX_SGE: usize = 16;

/// The length of the longest message, in bytes (IBTA 9.7.7).
pub(super) const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// The scatter or gather entries of a work request, at most [`MAX_SGE`].
pub type SgeList = ArrayVec<Sge, MAX_SGE>;

/// A scatter or gather entry: a range of local memory (IBTA 10.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// The address of the first byte.
    pub address: u64,
    /// The length of the range, in bytes.
    pub length: u32,
    /// The L_Key of the region that the range lies in.
    pub lkey: Key,
}

/// Memory of the peer, from an address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address of the first byte, as the peer registered it.
    pub address: u64,
    /// The R_Key of the peer's region or window.
    pub key: Key,
}

/// The operation that a send request asks for (IBTA 10.8.2). Each packet asks several times which it is: that is a byte of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SendOperation {
    /// SEND into a receive request of the peer.
    Send,
    /// SEND with four bytes of immediate data for the peer's completion.
    SendWithImmediate(u32),
    /// SEND with the R_Key that the peer then invalidates.
    SendWithInvalidate(Key),
    /// RDMA WRITE to the peer's memory.
    Write(Remote),
    /// RDMA WRITE that consumes a receive request of the peer, with four bytes of immediate data for its completion.
    WriteWithImmediate(Remote, u32),
    /// RDMA READ from the peer's memory.
    Read(Remote),
    /// Compare and swap: if the eight bytes equal `compare`, they become `swap`. The answer is their original value.
    CompareSwap {
        /// The eight bytes, at a multiple of 8.
        remote: Remote,
        /// The value to compare with.
        compare: u64,
        /// The value to store if they are equal.
        swap: u64,
    },
    /// Fetch and add: adds `add` to the eight bytes, modulo 2^64. The answer is their original value.
    FetchAdd {
        /// The eight bytes, at a multiple of 8.
        remote: Remote,
        /// The value to add.
        add: u64,
    },
    /// ATOMIC WRITE: writes the eight bytes of data in one step, so that no reader sees only some of them (IBTA A19.5).
    AtomicWrite(Remote),
    /// FLUSH: is answered when earlier WRITEs to the range, or to all memory of the key, are visible to all readers
    /// there (IBTA A19.4). It has no data.
    Flush {
        /// The first byte of the range, and the key.
        remote: Remote,
        /// The length of the range, in bytes.
        length: u32,
        /// The placement that is requested: visibility, persistence, or both.
        placement: Placement,
        /// Whether it covers the range, or all memory of the key.
        selectivity: Selectivity,
    },
    /// Binds a type 2 memory window; nothing is sent.
    BindWindow(WindowBinding),
    /// Invalidates a window of our own; nothing is sent.
    LocalInvalidate(Key),
}

impl SendOperation {
    /// Whether the answer carries data that the requester waits for: READ and atomics.
    pub fn is_read_or_atomic(&self) -> bool {
        matches!(self, SendOperation::Read(_)) || self.is_atomic()
    }

    /// Whether it counts against `max_rd_atomic`, and fenced requests wait for it (IBTA A19.4.4, A19.5.4).
    ///
    /// READs and atomics count: they are answered with data. So do FLUSH and ATOMIC WRITE, whose answer is a READ
    /// response without data. These two, like WRITEs, are complete with any later answer, too.
    pub fn counts_as_read(&self) -> bool {
        self.is_read_or_atomic() || matches!(self, SendOperation::AtomicWrite(_) | SendOperation::Flush { .. })
    }

    /// Whether it is an atomic whose answer is the original value.
    pub fn is_atomic(&self) -> bool {
        matches!(self, SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. })
    }

    /// Whether it consumes a receive request of the peer.
    pub(super) fn takes_receive(&self) -> bool {
        use SendOperation as Op;
        match self {
            Op::Send | Op::SendWithImmediate(_) | Op::SendWithInvalidate(_) => true,
            Op::WriteWithImmediate(..) => !mutated!("receive-numbers-without-writes"),
            _ => false,
        }
    }

    /// Whether it is local: nothing goes over the wire.
    pub fn is_local(&self) -> bool {
        matches!(self, SendOperation::BindWindow(_) | SendOperation::LocalInvalidate(_))
    }

    /// The RC opcode of the packet at `position`; `None` for local operations.
    pub(super) fn opcode(&self, position: Position) -> Option<Opcode> {
        use Position::{First, Last, Middle, Only};
        use SendOperation as Op;
        Some(match (self, position) {
            (Op::Send | Op::SendWithImmediate(_) | Op::SendWithInvalidate(_), First) => Opcode::RC_SEND_FIRST,
            (Op::Send | Op::SendWithImmediate(_) | Op::SendWithInvalidate(_), Middle) => Opcode::RC_SEND_MIDDLE,
            (Op::Send, Last) => Opcode::RC_SEND_LAST,
            (Op::Send, Only) => Opcode::RC_SEND_ONLY,
            (Op::SendWithImmediate(_), Last) => Opcode::RC_SEND_LAST_IMM,
            (Op::SendWithImmediate(_), Only) => Opcode::RC_SEND_ONLY_IMM,
            (Op::SendWithInvalidate(_), Last) => Opcode::RC_SEND_LAST_INV,
            (Op::SendWithInvalidate(_), Only) => Opcode::RC_SEND_ONLY_INV,
            (Op::Write(_) | Op::WriteWithImmediate(..), First) => Opcode::RC_WRITE_FIRST,
            (Op::Write(_) | Op::WriteWithImmediate(..), Middle) => Opcode::RC_WRITE_MIDDLE,
            (Op::Write(_), Last) => Opcode::RC_WRITE_LAST,
            (Op::Write(_), Only) => Opcode::RC_WRITE_ONLY,
            (Op::WriteWithImmediate(..), Last) => Opcode::RC_WRITE_LAST_IMM,
            (Op::WriteWithImmediate(..), Only) => Opcode::RC_WRITE_ONLY_IMM,
            (Op::Read(_), _) => Opcode::RC_READ_REQUEST,
            (Op::CompareSwap { .. }, _) => Opcode::RC_COMPARE_SWAP,
            (Op::FetchAdd { .. }, _) => Opcode::RC_FETCH_ADD,
            (Op::AtomicWrite(_), _) => Opcode::RC_ATOMIC_WRITE,
            (Op::Flush { .. }, _) => Opcode::RC_FLUSH,
            (Op::BindWindow(_) | Op::LocalInvalidate(_), _) => return None,
        })
    }
}

/// Where a send request's bytes come from; of READs and atomics, where the answer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Registered memory. It is read when packets are written, not when the request is posted.
    Sges(SgeList),
    /// The bytes themselves, copied into the request: the program's buffer is free again at once.
    Inline(InlineBytes),
}

impl From<Sge> for Data {
    fn from(sge: Sge) -> Data {
        Data::Sges(SgeList::from_iter([sge]))
    }
}

impl Data {
    /// A message without bytes, and without entries.
    pub const EMPTY: Data = Data::Sges(SgeList::new_const());

    /// One range of registered memory: `length` bytes from `address` on.
    pub fn sge(address: u64, length: u32, lkey: Key) -> Data {
        Sge { address, length, lkey }.into()
    }

    /// The length of the message, in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Data::Sges(sges) => total(sges),
            Data::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves it to `place`, whose bytes nobody needs. Of the room for entries only what is used is copied.
    pub(super) fn move_to(&mut self, place: &mut Data) {
        match (self, place) {
            (Data::Sges(sges), Data::Sges(place)) => place.clone_from(sges),
            (data, place) => *place = std::mem::replace(data, Data::EMPTY),
        }
    }

    /// Gives back memory of its own, if it has some: inline data does.
    #[inline]
    pub(super) fn discard_own(&mut self) {
        if matches!(self, Data::Inline(_)) {
            *self = Data::EMPTY;
        }
    }

    /// Copies `out.len()` bytes of the message, from `offset` on, to `out`.
    #[inline]
    pub(super) fn gather(
        &self,
        memory: &MemoryTable,
        pd: Pd,
        offset: u32,
        mut out: &mut [u8],
    ) -> Result<(), AccessError> {
        match self {
            Data::Sges(sges) => {
                for (sge, start, len) in pieces(sges, offset, out.len()) {
                    let (now, later) = out.split_at_mut(len);
                    memory.local(pd, sge.lkey, sge.address.wrapping_add(start), len as u64, false)?.read(now)?;
                    out = later;
                }
            }
            Data::Inline(bytes) => out.copy_from_slice(&bytes[offset as usize..][..out.len()]),
        }
        Ok(())
    }
}

/// A request that is posted to a send queue (IBTA 10.8.2).
///
/// What nearly all requests have comes first in memory: a queue's requests are large, and many.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SendRequest {
    /// The program's own identifier, which the completion returns.
    pub wr_id: u64,
    /// The operation, with its operands.
    pub operation: SendOperation,
    /// Whether success is reported, too; failure always is.
    pub signaled: bool,
    /// Whether the peer's completion counts as solicited.
    pub solicited: bool,
    /// Whether it waits until all earlier READs, atomics, FLUSHes and ATOMIC WRITEs are complete.
    pub fence: bool,
    /// The bytes to send, or the place for the answer.
    pub data: Data,
    /// The destination, of datagrams only.
    pub destination: Option<Destination>,
}

/// The destination of a datagram (IBTA 11.4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The path to the destination: the address handle.
    pub path: Path,
    /// The number of the queue pair there.
    pub qpn: Qpn,
    /// The queue key there. When its top bit is set, the sender's own is used instead (IBTA 10.2.5).
    pub q_key: QKey,
}

impl SendRequest {
    /// A signaled request, not solicited, without fence and destination.
    pub fn new(wr_id: u64, operation: SendOperation, data: Data) -> SendRequest {
        SendRequest { wr_id, operation, data, signaled: true, solicited: false, fence: false, destination: None }
    }
}

/// A receive request: a buffer for a SEND, or a completion for a WRITE with immediate (IBTA 10.8.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// The program's own identifier, which the completion returns.
    pub wr_id: u64,
    /// The memory that the bytes go to.
    pub sges: SgeList,
}

impl ReceiveRequest {
    /// A request whose bytes go to these ranges, one after the other.
    ///
    /// # Panics
    /// When there are more than [`MAX_SGE`] ranges.
    pub fn new(wr_id: u64, sges: impl IntoIterator<Item = Sge>) -> ReceiveRequest {
        ReceiveRequest { wr_id, sges: sges.into_iter().collect() }
    }
}

/// The length of all `sges` together, in bytes.
pub(super) fn total(sges: &SgeList) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Copies `bytes` to the message, from `offset` on. The caller has checked that they fit.
pub(super) fn scatter(
    memory: &MemoryTable,
    pd: Pd,
    sges: &SgeList,
    offset: u32,
    mut bytes: FrameBytes<'_>,
) -> Result<(), AccessError> {
    for (sge, start, len) in pieces(sges, offset, bytes.len()) {
        memory.local(pd, sge.lkey, sge.address.wrapping_add(start), len as u64, true)?.write(bytes.take(len))?;
        bytes = bytes.skip(len);
    }
    debug_assert!(bytes.is_empty(), "the caller checks that a message fits");
    Ok(())
}

/// The memory of `len` bytes of the message, from `offset` on, for writing.
pub(super) fn spans<'a>(
    memory: &'a MemoryTable,
    pd: Pd,
    sges: &SgeList,
    offset: u32,
    len: usize,
) -> Result<ArrayVec<Span<'a>, MAX_SGE>, AccessError> {
    pieces(sges, offset, len)
        .map(|(sge, start, len)| memory.local(pd, sge.lkey, sge.address.wrapping_add(start), len as u64, true))
        .collect()
}

/// The parts of `sges` that hold `len` bytes of the message from `offset` on: entry, offset in it, bytes.
fn pieces(sges: &SgeList, offset: u32, len: usize) -> impl Iterator<Item = (&Sge, u64, usize)> {
    let mut skip = u64::from(offset);
    let mut left = len as u64;
    sges.iter().filter_map(move |sge| {
        let length = u64::from(sge.length);
        let start = skip.min(length.saturating_sub(mutated!("gather-entry-off-by-one").into()));
        skip -= start;
        let piece = (length - start).min(left);
        left -= piece;
        (piece > 0).then_some((sge, start, piece as usize))
    })
}

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full: poll the completion queue.
    #[error("the queue is full with {0} requests")]
    Full(usize),
    /// The queue pair's state does not allow such requests.
    #[error("a queue pair in state {0} does not accept this request")]
    State(State),
    /// The message is longer than 2^31 bytes (IBTA 9.7.7; 2^31 − 256 at path MTU 256). Or the datagram is longer than
    /// the path MTU, or the FLUSH has data.
    #[error("the message has {len} bytes, the maximum is {limit}")]
    TooLong {
        /// The length of the message, in bytes.
        len: u64,
        /// The upper bound on its length, in bytes.
        limit: u64,
    },
    /// The local buffer of the atomic or ATOMIC WRITE is not eight bytes long.
    #[error("the local buffer of an atomic has {0} bytes; it must have 8")]
    AtomicLength(u64),
    /// The READ or atomic has inline data: its answer goes to memory, not to the request.
    #[error("a READ or atomic cannot have inline data")]
    Inline,
    /// `max_rd_atomic` is 0, and the request is a READ, an atomic, a FLUSH or an ATOMIC WRITE.
    #[error("max_rd_atomic is 0: READs, atomics, FLUSHes and ATOMIC WRITEs are not allowed")]
    NoReads,
    /// The service does not have the operation (IBTA 10.8.2, Table 73).
    #[error("{0} queue pairs do not support this operation")]
    Operation(Service),
    /// The datagram has no destination.
    #[error("a datagram needs an address handle")]
    NoDestination,
    /// The queue pair has no receive queue of its own.
    #[error("the queue pair takes its receive requests from a shared receive queue: post them there")]
    HasSrq,
    /// There is no queue pair with this number.
    #[error("there is no queue pair {0}")]
    NoSuchQueuePair(Qpn),
    /// The device was opened by the parent of this process; what a child inherits by fork(2) is dead.
    #[error(transparent)]
    Forked(#[from] Forked),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sges(lengths: &[u32]) -> SgeList {
        lengths.iter().map(|&length| Sge { address: 0, length, lkey: Key(0) }).collect()
    }

    #[test]
    fn pieces_cover_the_message_across_entries() {
        let list = sges(&[3, 0, 5, 2]);
        let all = |offset, len| pieces(&list, offset, len).map(|(s, o, l)| (s.length, o, l)).collect::<Vec<_>>();
        assert_eq!(all(0, 10), [(3, 0, 3), (5, 0, 5), (2, 0, 2)]);
        assert_eq!(all(2, 4), [(3, 2, 1), (5, 0, 3)]);
        assert_eq!(all(8, 1), [(2, 0, 1)]);
        assert_eq!(all(10, 0), []);
    }
}
