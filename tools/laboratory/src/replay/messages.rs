use std::sync::Arc;

use uroce::memory::{HostMemory, MapError};
use uroce::transport::{Data, Remote, SendOperation, SendRequest};
use uroce::wire::{Key, Operation, PathMtu, Psn};

use super::conversation::Observed;
use super::stand_in::{ALL_ACCESS, StandIn};
use super::{MAX_MEMORY_BYTES, ReplayError};

/// A message, assembled from its packets: it was posted as one work request.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The index of the request that is its first packet.
    pub first: usize,
    pub first_psn: Psn,
    /// The number of PSNs that it takes.
    pub packets: u32,
    pub operation: SendOperation,
    pub len: u32,
    pub payload: Vec<u8>,
    pub solicited: bool,
    /// Whether its last packet is in the capture.
    pub is_whole: bool,
}

/// The messages of one side, in order.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub list: Vec<Message>,
    /// The index of the first request that does not fit: a packet before it is missing in the capture.
    pub end: usize,
    /// For each request, whether its PSN appears for the first time.
    pub is_new: Vec<bool>,
}

impl Message {
    /// The last PSN of the message.
    pub fn last_psn(&self) -> Psn {
        self.first_psn.plus(self.packets - 1)
    }

    /// Whether its answers carry data.
    pub fn is_read_or_atomic(&self) -> bool {
        self.operation.is_read_or_atomic()
    }
}

impl Messages {
    /// Assembles messages from request `start` on, up to the first packet that is missing in the capture.
    pub fn of(requests: &[Observed], start: usize, mtu: PathMtu) -> Messages {
        let mut messages = Messages { list: Vec::new(), end: requests.len(), is_new: vec![false; requests.len()] };
        let Some(mut next) = requests.get(start).map(Observed::psn) else { return messages };
        for (index, request) in requests.iter().enumerate().skip(start) {
            let psn = request.psn();
            if psn.is_before(next) {
                continue;
            }
            if psn != next || !messages.add(index, request, mtu) {
                messages.end = index;
                break;
            }
            messages.is_new[index] = true;
            next = psn.plus(request.psns(mtu));
        }
        if let Some(last) = messages.list.last_mut().filter(|last| !last.is_whole) {
            // The message continues beyond the capture, with unknown bytes.
            last.len = last.len.max(last.payload.len() as u32 + 1);
            last.packets = mtu.packets(last.len as usize);
        }
        messages
    }

    /// Adds a packet. Returns `false` when it does not continue the packets before it.
    fn add(&mut self, index: usize, request: &Observed, mtu: PathMtu) -> bool {
        let packet = request.packet();
        let (operation, position) = (request.operation(), request.position());
        let payload = packet.payload().to_vec();
        let open = self.list.last_mut().filter(|last| !last.is_whole);
        if position.starts() {
            if open.is_some() {
                return false;
            }
            let remote = |key, address| Remote { key, address };
            let (work, len) = match (operation, packet.reth(), packet.atomic_eth()) {
                (Operation::Send, ..) => (SendOperation::Send, payload.len() as u32),
                (Operation::Write, Some(reth), _) => {
                    (SendOperation::Write(remote(reth.key(), reth.address())), reth.length())
                }
                (Operation::ReadRequest, Some(reth), _) => {
                    (SendOperation::Read(remote(reth.key(), reth.address())), reth.length())
                }
                (Operation::CompareSwap, _, Some(eth)) => {
                    let remote = remote(eth.key(), eth.address());
                    (SendOperation::CompareSwap { remote, compare: eth.compare(), swap: eth.swap_or_add() }, 8)
                }
                (Operation::FetchAdd, _, Some(eth)) => {
                    (SendOperation::FetchAdd { remote: remote(eth.key(), eth.address()), add: eth.swap_or_add() }, 8)
                }
                (Operation::AtomicWrite, Some(reth), _) => {
                    (SendOperation::AtomicWrite(remote(reth.key(), reth.address())), reth.length())
                }
                (Operation::Flush, Some(reth), _) => {
                    let Some(feth) = packet.feth() else { return false };
                    let (placement, selectivity) = (feth.placement(), feth.selectivity());
                    let (remote, length) = (remote(reth.key(), reth.address()), reth.length());
                    (SendOperation::Flush { remote, length, placement, selectivity }, 0)
                }
                _ => return false,
            };
            self.list.push(Message {
                first: index,
                first_psn: request.psn(),
                packets: 0,
                operation: work,
                len,
                payload,
                solicited: false,
                is_whole: false,
            });
        } else {
            let Some(open) = open else { return false };
            open.payload.extend(payload);
            if matches!(open.operation, SendOperation::Send) {
                open.len = open.payload.len() as u32;
            }
        }
        let message = self.list.last_mut().expect("one was just there");
        message.packets = match operation {
            Operation::ReadRequest => mtu.packets(message.len as usize),
            _ => message.packets + 1,
        };
        if position.ends() {
            message.is_whole = true;
            message.solicited = packet.bth().solicited();
            let immediate = packet.imm_dt().map(|imm| imm.data());
            message.operation = match (message.operation, immediate, packet.ieth()) {
                (SendOperation::Send, Some(data), _) => SendOperation::SendWithImmediate(data),
                (SendOperation::Send, _, Some(ieth)) => SendOperation::SendWithInvalidate(ieth.key()),
                (SendOperation::Write(remote), Some(data), _) => SendOperation::WriteWithImmediate(remote, data),
                (other, ..) => other,
            };
        }
        true
    }
}

/// Local memory for messages: a place for each one's bytes, and one place for the results of all READs and atomics.
pub(super) struct Source {
    memory: Arc<HostMemory>,
    key: Key,
    results: u64,
    used: usize,
}

impl Source {
    /// Allocates memory for all of `messages`.
    pub fn new(messages: &[Message], peer: &mut StandIn) -> Result<Source, ReplayError> {
        let is_sent = |message: &&Message| !message.is_read_or_atomic();
        let sent: u64 = messages.iter().filter(is_sent).map(|message| u64::from(message.len)).sum();
        let results = messages.iter().filter(|message| message.is_read_or_atomic()).map(|message| message.len).max();
        let bytes = sent + u64::from(results.unwrap_or(0));
        if bytes > MAX_MEMORY_BYTES {
            return Err(ReplayError::TooMuchMemory { bytes });
        }
        let memory: Result<HostMemory, MapError> = HostMemory::new(bytes as usize);
        let memory = Arc::new(memory?);
        let key = peer.endpoint.memory().register(peer.pd, memory.clone(), ALL_ACCESS);
        Ok(Source { results: memory.address() + sent, memory, key, used: 0 })
    }

    /// The work request for a message, whose bytes it writes into the memory.
    pub fn request(&mut self, wr_id: u64, message: &Message) -> SendRequest {
        let address = if message.is_read_or_atomic() {
            self.results
        } else {
            let offset = self.used;
            let bytes = &message.payload[..message.payload.len().min(message.len as usize)];
            self.memory.write(offset, bytes);
            self.used += message.len as usize;
            self.memory.address() + offset as u64
        };
        let data = Data::sge(address, message.len, self.key);
        SendRequest { solicited: message.solicited, ..SendRequest::new(wr_id, message.operation, data) }
    }
}
