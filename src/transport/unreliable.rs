use crate::wire::{NakCode, Packet, Psn};

use super::attributes::QpAttributes;
use super::connection::Connection;
use super::context::{Context, Fatal};
use super::inbound::{Inbound, Refusal, check_length};

/// The responder of an unreliable connection (IBTA 9.8.2), which answers nothing. A message with a missing or invalid
/// packet is dropped as a whole, and the next one starts anew.
#[derive(Debug, Default)]
pub(super) struct UnreliableResponder {
    pub inbound: Inbound,
    expected: Psn,
    /// Whether the rest of a dropped message is still arriving.
    dropping: bool,
}

impl UnreliableResponder {
    pub fn configure(&mut self, attributes: &QpAttributes) {
        self.inbound.access = attributes.access.unwrap_or(self.inbound.access);
        self.expected = attributes.receive_psn.unwrap_or(self.expected);
    }

    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// Takes a packet, executes it or drops its message.
    pub fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let (psn, opcode) = (packet.bth().psn(), packet.bth().opcode());
        let position = opcode.position();
        let in_sequence = psn == self.expected;
        self.expected = psn.plus(1);
        if (!in_sequence && !mutated!("uc-goes-on-after-a-gap")) || self.dropping {
            cx.counters.out_of_seq_request += u64::from(!in_sequence);
            self.inbound.abandon_message(cx);
            self.dropping = !position.starts() || mutated!("uc-drops-the-message-after-a-gap");
            if self.dropping {
                return Ok(());
            }
        }
        let served = self
            .inbound
            .check_sequence(opcode.operation(), position)
            .and_then(|()| check_length(packet, packet.payload().len(), connection.path_mtu.bytes()))
            .and_then(|()| self.inbound.serve(packet, None, connection, cx));
        match served {
            Ok(()) => Ok(()),
            Err(Refusal::Nak(NakCode::RemoteOperationalError, status)) => {
                self.inbound.fail_message(status, connection, cx);
                Err(Fatal)
            }
            Err(Refusal::NotReady | Refusal::Nak(..)) => {
                cx.counters.dropped_message += 1;
                self.inbound.abandon_message(cx);
                self.dropping = !position.ends();
                Ok(())
            }
        }
    }
}
