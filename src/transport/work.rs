use arrayvec::ArrayVec;

use crate::frame::FrameBytes;
use crate::memory::{AccessError, MemoryTable, Pd, Span, WindowBinding};
use crate::wire::{Key, Opcode, Placement, Position, QKey, Qpn, Selectivity};

use super::attributes::{Path, Service, State};
use super::inline::InlineBytes;

/// Scatter and gather entries a work request may have. Hardware offers 30 or so, rxe 32; perftest and UCX use few.
pub const MAX_SGE: usize = 16;

/// The longest message (IBTA 9.7.7).
pub(super) const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// The entries of a work request.
pub type SgeList = ArrayVec<Sge, MAX_SGE>;

/// A scatter or gather entry: a range of local memory (IBTA 10.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// The first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The L_Key of the region it lies in.
    pub lkey: Key,
}

/// Remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The first byte, as the peer registered it.
    pub address: u64,
    /// The R_Key of the peer's region.
    pub key: Key,
}

/// What a send request asks for (IBTA 10.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOperation {
    /// SEND into a receive request of the peer.
    Send,
    /// SEND with four bytes for the peer's completion.
    SendWithImmediate(u32),
    /// SEND, and the peer invalidates its key.
    SendWithInvalidate(Key),
    /// RDMA WRITE.
    Write(Remote),
    /// RDMA WRITE that consumes a receive request of the peer, with four bytes for its completion.
    WriteWithImmediate(Remote, u32),
    /// RDMA READ.
    Read(Remote),
    /// If the eight bytes equal `compare`, they become `swap`; the old ones come back.
    CompareSwap {
        /// Where.
        remote: Remote,
        /// What to compare with.
        compare: u64,
        /// What to store.
        swap: u64,
    },
    /// `add` is added to the eight bytes; the old ones come back.
    FetchAdd {
        /// Where.
        remote: Remote,
        /// What to add.
        add: u64,
    },
    /// Writes the eight bytes of data in one step: no reader sees some of them only (IBTA A19.5).
    AtomicWrite(Remote),
    /// Answered when earlier WRITEs to the range, or to all that the key stands for, are visible to all who read there
    /// (IBTA A19.4). It has no data.
    Flush {
        /// Where.
        remote: Remote,
        /// How many bytes, of a range.
        length: u32,
        /// What is asked for.
        placement: Placement,
        /// Whether it is about a range.
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

    /// Whether it counts against `max_rd_atomic`, and fenced requests wait for it (IBTA A19.4.4, A19.5.4): READ and atomics,
    /// which are answered with data; FLUSH and ATOMIC WRITE, whose answer is a READ response without any. Like WRITEs
    /// these two are complete with any later answer, too.
    pub fn counts_as_read(&self) -> bool {
        self.is_read_or_atomic() || matches!(self, SendOperation::AtomicWrite(_) | SendOperation::Flush { .. })
    }

    /// Whether it is an atomic that brings the old value.
    pub fn is_atomic(&self) -> bool {
        matches!(self, SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. })
    }

    /// Whether it takes a receive request of the peer.
    pub(super) fn takes_receive(&self) -> bool {
        use SendOperation as Op;
        match self {
            Op::Send | Op::SendWithImmediate(_) | Op::SendWithInvalidate(_) => true,
            Op::WriteWithImmediate(..) => !mutated!("receive-numbers-without-writes"),
            _ => false,
        }
    }

    /// Whether nothing goes over the wire.
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

/// Where a send request's bytes come from (or go to, for READ and atomics).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Registered memory, read when packets are made.
    Sges(SgeList),
    /// The bytes themselves: the program's buffer is free again at once.
    Inline(InlineBytes),
}

impl From<Sge> for Data {
    fn from(sge: Sge) -> Data {
        Data::Sges(SgeList::from_iter([sge]))
    }
}

impl Data {
    /// No bytes.
    pub const EMPTY: Data = Data::Sges(SgeList::new_const());

    /// One range.
    pub fn sge(address: u64, length: u32, lkey: Key) -> Data {
        Sge { address, length, lkey }.into()
    }

    /// Bytes in all.
    pub fn len(&self) -> u64 {
        match self {
            Data::Sges(sges) => total(sges),
            Data::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes from `offset` of the message on to `out`.
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

/// A request to send (IBTA 10.8.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The program's own name for it, given back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: SendOperation,
    /// The bytes.
    pub data: Data,
    /// Whether success is reported too; failure always is.
    pub signaled: bool,
    /// Whether the peer's completion counts as solicited.
    pub solicited: bool,
    /// Whether it waits until all earlier READs and atomics are complete.
    pub fence: bool,
    /// Where it goes: for datagrams.
    pub destination: Option<Destination>,
}

/// Where a datagram goes (IBTA 11.4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// How to get there: the address handle.
    pub path: Path,
    /// The queue pair there.
    pub qpn: Qpn,
    /// Its queue key. With the top bit set, the sender's own is used instead (IBTA 10.2.5).
    pub q_key: QKey,
}

impl SendRequest {
    /// A signaled request.
    pub fn new(wr_id: u64, operation: SendOperation, data: Data) -> SendRequest {
        SendRequest { wr_id, operation, data, signaled: true, solicited: false, fence: false, destination: None }
    }
}

/// A buffer for a SEND, or a completion for a WRITE with immediate (IBTA 10.8.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// The program's own name for it, given back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: SgeList,
}

impl ReceiveRequest {
    /// A request whose bytes go to these places, one after the other.
    ///
    /// # Panics
    /// When there are more than [`MAX_SGE`].
    pub fn new(wr_id: u64, sges: impl IntoIterator<Item = Sge>) -> ReceiveRequest {
        ReceiveRequest { wr_id, sges: sges.into_iter().collect() }
    }
}

/// Bytes that `sges` hold.
pub(super) fn total(sges: &SgeList) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Copies `bytes` to `offset` of the message on. The caller checked that they fit.
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

/// The memory that holds `len` bytes from `offset` of the message on, to be written.
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

/// The parts of `sges` that hold `len` bytes from `offset` of the message on: entry, offset in it, bytes.
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
    /// The queue pair's state does not take such requests.
    #[error("a queue pair in {0} takes no such request")]
    State(State),
    /// A message longer than 2^31 bytes (IBTA 9.7.7), a datagram longer than the path MTU, or a FLUSH with data.
    #[error("a message of {len} bytes is longer than {limit}")]
    TooLong {
        /// Bytes asked for.
        len: u64,
        /// Bytes possible.
        limit: u64,
    },
    /// The local buffer of an atomic or ATOMIC WRITE must be eight bytes.
    #[error("an atomic's local buffer has {0} bytes, not 8")]
    AtomicLength(u64),
    /// READs and atomics are answered into memory, not into the request.
    #[error("a READ or atomic cannot be inline")]
    Inline,
    /// READs, atomics, FLUSHes or ATOMIC WRITEs on a queue pair that may have none outstanding.
    #[error("max_rd_atomic is 0: no READs or atomics")]
    NoReads,
    /// The service knows no such operation (IBTA 10.8.2, Table 73).
    #[error("{0} queue pairs know no such operation")]
    Operation(Service),
    /// A datagram without a destination.
    #[error("a datagram needs an address handle")]
    NoDestination,
    /// The queue pair has no receive queue of its own.
    #[error("the queue pair takes its receive requests from a shared receive queue: post them there")]
    HasSrq,
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    NoSuchQueuePair(Qpn),
    /// The device was opened by the parent of this process; what a child inherits by fork(2) is dead.
    #[error("the device was opened before fork(2), by the parent of this process: open it anew")]
    Forked,
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
