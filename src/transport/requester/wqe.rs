use crate::wire::{CarriedAcknowledge, PathMtu, Reth};

use crate::transport::completion::{CompletionKind, Status};
use crate::transport::work::{Data, SendOperation, SendRequest};

/// A send request in the queue. What each packet asks for lies together, and the room for further entries behind it.
#[derive(Debug)]
#[repr(C)]
pub struct Wqe {
    /// The packet number of its first packet.
    pub first: u64,
    /// The packet numbers that it takes: one for each packet, or expected READ response; 0 for local operations.
    pub packets: u32,
    pub len: u32,
    /// Whether it has executed, if it is a local operation.
    pub is_done: bool,
    /// The status with which it fails as soon as all before it are complete.
    pub failed: Option<Status>,
    /// Messages before it that consume a receive request of the peer, modulo 2^24.
    pub receive_number: u32,
    pub request: SendRequest,
}

impl Wqe {
    pub fn kind(&self) -> CompletionKind {
        match self.request.operation {
            SendOperation::Send | SendOperation::SendWithImmediate(_) | SendOperation::SendWithInvalidate(_) => {
                CompletionKind::Send
            }
            SendOperation::Write(_) | SendOperation::WriteWithImmediate(..) => CompletionKind::Write,
            SendOperation::Read(_) => CompletionKind::Read,
            SendOperation::CompareSwap { .. } => CompletionKind::CompareSwap,
            SendOperation::FetchAdd { .. } => CompletionKind::FetchAdd,
            SendOperation::BindWindow(_) => CompletionKind::BindWindow,
            SendOperation::AtomicWrite(_) => CompletionKind::AtomicWrite,
            SendOperation::Flush { .. } => CompletionKind::Flush,
            SendOperation::LocalInvalidate(_) => CompletionKind::LocalInvalidate,
        }
    }

    /// The packet number after its last packet's.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// The RETH, of a WRITE.
    pub fn reth(&self) -> Option<Reth> {
        match self.request.operation {
            SendOperation::Write(remote) | SendOperation::WriteWithImmediate(remote, _) => {
                Some(Reth::new(remote.address, remote.key, self.len))
            }
            _ => None,
        }
    }

    /// Whether its first packet is its only one, and has room for an acknowledge of the other direction.
    pub fn can_carry(&self, path_mtu: PathMtu) -> bool {
        self.packets == 1 && self.len as usize + CarriedAcknowledge::BYTES <= path_mtu.bytes()
    }

    /// Whether it counts as a READ, but is complete with any later answer, as WRITEs are.
    pub fn is_acknowledged(&self) -> bool {
        self.request.operation.counts_as_read() && !self.request.operation.is_read_or_atomic()
    }

    /// Whether it is complete when everything before packet number `first` is done.
    pub fn is_complete(&self, first: u64) -> bool {
        let early = u64::from(self.packets > 1 && mutated!("completed-before-the-last-ack"));
        if self.packets == 0 { self.is_done } else { self.end() - early <= first }
    }
}

impl Default for Wqe {
    fn default() -> Wqe {
        let request = SendRequest::new(0, SendOperation::Send, Data::EMPTY);
        Wqe { request, first: 0, packets: 0, len: 0, is_done: false, failed: None, receive_number: 0 }
    }
}
