use crate::memory::Access;
use crate::wire::{Msn, Operation, Packet, Placement, Selectivity};

use super::owed::{Owed, OwedReply, ReadAnswer};
use super::saved::{Saved, SavedResults};
use crate::transport::connection::Connection;
use crate::transport::context::Context;
use crate::transport::inbound::{Inbound, Refusal, check_length, check_message_length};

/// Executes requests in their turn, and owes their answers.
#[derive(Debug, Default)]
pub struct Server {
    pub inbound: Inbound,
    pub msn: Msn,
    pub owed: Owed,
    /// READs and atomics that the peer can request again.
    pub saved: SavedResults,
}

impl Server {
    /// Checks the opcode's place in the sequence, and the length of the payload.
    pub fn check(&self, packet: &Packet<'_>, payload_bytes: usize, connection: &Connection) -> Result<(), Refusal> {
        let opcode = packet.bth().opcode();
        self.inbound.check_sequence(opcode.operation(), opcode.position())?;
        check_length(packet, payload_bytes, connection.path_mtu.bytes())
    }

    /// Makes the other checks, and executes the request. With `placed_bytes`, that many of its bytes are placed
    /// already. Returns the PSNs that it takes.
    #[inline(always)]
    pub fn serve(
        &mut self,
        packet: &Packet<'_>,
        placed_bytes: Option<u32>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let opcode = packet.bth().opcode();
        let position = opcode.position();
        match opcode.operation() {
            Operation::ReadRequest => return self.serve_read(packet, connection, cx),
            Operation::CompareSwap | Operation::FetchAdd => return self.serve_atomic(packet, connection, cx),
            Operation::AtomicWrite => return self.serve_atomic_write(packet, connection, cx),
            Operation::Flush => return self.serve_flush(packet, connection, cx),
            _ => self.inbound.serve(packet, placed_bytes, connection, cx)?,
        }
        if if mutated!("msn-counts-beginnings") { position.starts() } else { position.ends() } {
            self.msn = self.msn.next();
        }
        Ok(1)
    }

    fn serve_read(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth().ok_or(Refusal::INVALID)?;
        check_message_length(reth)?;
        self.inbound.check_access(Access::REMOTE_READ)?;
        self.owed.check_outstanding()?;
        let (key, address, len) = (reth.key(), reth.address(), reth.length());
        cx.memory.remote(connection.scope(), key, address, len.into(), Access::REMOTE_READ)?;
        self.msn = self.msn.next();
        let packets = connection.path_mtu.packets(len as usize);
        let psn = packet.bth().psn();
        self.save(Saved { first_psn: psn, packets, original: None });
        let (request, msn) = (psn, self.msn);
        let answer =
            ReadAnswer { request, msn, key, psn, address, rest: len, index: 0, count: packets, is_repeat: false };
        self.owed.push(OwedReply::Read(answer));
        Ok(packets)
    }

    pub fn serve_atomic(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let eth = packet.atomic_eth().ok_or(Refusal::INVALID)?;
        if !eth.address().is_multiple_of(8) {
            return Err(Refusal::INVALID); // IBTA 9.7.4.1.3
        }
        self.inbound.check_access(Access::REMOTE_ATOMIC)?;
        self.owed.check_outstanding()?;
        let span = cx.memory.remote(connection.scope(), eth.key(), eth.address(), 8, Access::REMOTE_ATOMIC)?;
        let original = match packet.bth().opcode().operation() {
            Operation::CompareSwap => span.update_u64(|old| if old == eth.compare() { eth.swap_or_add() } else { old }),
            _ => span.update_u64(|old| old.wrapping_add(eth.swap_or_add())),
        }?;
        self.msn = self.msn.next();
        let (psn, msn) = (packet.bth().psn(), self.msn);
        self.save(Saved {
            first_psn: psn,
            packets: 1,
            original: Some(original ^ u64::from(mutated!("atomic-result-not-saved"))),
        });
        self.owed.push(OwedReply::Atomic { psn, msn, original, is_repeat: false });
        Ok(1)
    }

    pub fn serve_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth().ok_or(Refusal::INVALID)?;
        let payload = packet.payload();
        let mut value = [0; 8];
        if payload.len() != value.len() || reth.length() as usize != value.len() || !reth.address().is_multiple_of(8) {
            return Err(Refusal::INVALID); // IBTA A19.5.2
        }
        payload.copy_to_slice(&mut value);
        self.inbound.check_access(Access::REMOTE_WRITE)?;
        self.owed.check_outstanding()?;
        let span = cx.memory.remote(connection.scope(), reth.key(), reth.address(), 8, Access::REMOTE_WRITE)?;
        span.update_u64(|_| u64::from_ne_bytes(value))?;
        self.msn = self.msn.next();
        self.owed.push(OwedReply::Empty { psn: packet.bth().psn(), msn: self.msn, is_outstanding: true });
        Ok(1)
    }

    /// Earlier WRITEs are visible since they executed: stores become visible in order, and before the answer leaves. So
    /// there are only checks to make, and an answer to send.
    fn serve_flush(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let (feth, reth) = packet.feth().zip(packet.reth()).ok_or(Refusal::INVALID)?;
        let wanted = match feth.placement() {
            Placement::GLOBAL => Access::FLUSH_GLOBAL,
            Placement::PERSISTENT => Access::FLUSH_PERSISTENT,
            both if both == Placement::all() => Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
            _ => return Err(Refusal::INVALID),
        };
        check_message_length(reth)?;
        self.inbound.check_access(wanted)?;
        if !self.owed.has_room_for_flush() {
            return Err(Refusal::INVALID);
        }
        if !mutated!("flush-needs-no-right", by "uroce --test flush a_flush_needs_what") {
            cx.memory.check_remote(connection.scope(), reth.key(), wanted)?;
        }
        match feth.selectivity() {
            Selectivity::Range => {
                let (address, len) = (reth.address(), reth.length().into());
                cx.memory.remote(connection.scope(), reth.key(), address, len, wanted)?;
            }
            Selectivity::Region => {}
            Selectivity::Unknown(_) => return Err(Refusal::INVALID),
        }
        self.msn = self.msn.next();
        let is_outstanding = mutated!("flush-counts-as-outstanding", by "uroce --test flush as_many_flushes");
        self.owed.push(OwedReply::Empty { psn: packet.bth().psn(), msn: self.msn, is_outstanding });
        Ok(1)
    }

    fn save(&mut self, saved: Saved) {
        // The limit can have been lowered: then more than one result is discarded.
        let room = if mutated!("too-few-results-saved") { 1 } else { self.owed.outstanding_max().max(1) };
        self.saved.save(saved, room);
    }
}
