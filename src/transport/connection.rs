use std::sync::Arc;

use crate::memory::{MemoryTable, Pd, Scope};
use crate::recovery::GoBackN;
use crate::wire::{Opcode, PathMtu, Qpn};

use super::attributes::Path;
use super::completion::{Completion, CompletionKind, CompletionRing, Overrun, Status};
use super::context::Context;
use super::event::Event;
use super::extension::Extension;
use super::outgoing::Outgoing;
use super::service::Service;
use super::transmit::Transmit;

/// Upper bound on the PSNs in flight between peers that do not use selective repeat.
pub(super) const WINDOW_PACKETS: i32 = GoBackN::WINDOW as i32;

/// What all roles of a queue pair need to know of its connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub qpn: Qpn,
    pub service: Service,
    pub pd: Pd,
    pub remote: Qpn,
    pub path_mtu: PathMtu,
    pub path: Option<Path>,
    /// The DSCP of ACKs and NAKs; `None` for that of the path.
    pub acknowledge_dscp: Option<u8>,
    /// What is known of the peer beyond the IBTA.
    pub extension: Extension,
    pub send_cq: Arc<CompletionRing>,
    pub receive_cq: Arc<CompletionRing>,
}

impl Connection {
    /// What the memory table knows it by.
    pub fn scope(&self) -> Scope {
        Scope { pd: self.pd, queue_pair: self.qpn }
    }

    /// Writes one packet to the connected peer over `path`, with a tag when the peer understands the extension.
    /// `Ok(None)` when it cannot be written; one that is too long for `out` is counted.
    ///
    /// # Errors
    /// The error of `fill`, which writes the payload.
    pub fn write<E>(
        &self,
        path: u8,
        out: &mut [u8],
        mut packet: Outgoing<'_>,
        cx: &mut Context<'_>,
        fill: impl FnOnce(&MemoryTable, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Transmit>, E> {
        let Some(base) = &self.path else { return Ok(None) };
        let (number, mut path) = (path, *base);
        if let Some(multipath) = cx.multipath {
            multipath.set.touch(cx.now);
            if !multipath.turn(&mut path, number) {
                return Ok(None);
            }
        }
        if self.is_ecn_capable(&packet) {
            path.flow.set_ecn_capable();
        } else if let Some(dscp) = self.acknowledge_dscp
            && packet.headers.bth.opcode() == Opcode::RC_ACKNOWLEDGE
        {
            path.flow = path.flow.with_dscp(dscp);
        }
        packet.set_tag(self.extension.tag());
        packet.write(&path, out, cx, fill)
    }

    /// Whether switches can mark the packet instead of dropping it: a request, or a READ response with data, of a
    /// reliable connection whose rate a controller decides on.
    fn is_ecn_capable(&self, packet: &Outgoing<'_>) -> bool {
        packet.is_data() && self.service == Service::Rc && self.extension.settings.congestion.reacts_to_marks()
    }

    /// Completes a send request.
    pub fn complete_send(&self, wr_id: u64, kind: CompletionKind, status: Status, byte_len: u32, cx: &mut Context<'_>) {
        self.complete(&self.send_cq, Completion::send(wr_id, self.qpn, kind, status, byte_len), false, cx);
    }

    /// Completes a send request that failed, with its cause.
    pub fn fail_send(&self, completion: Completion, cx: &mut Context<'_>) {
        self.complete(&self.send_cq, completion, false, cx);
    }

    /// Completes a receive request.
    pub fn complete_receive(&self, completion: Completion, solicited: bool, cx: &mut Context<'_>) {
        cx.counters.rdma_recvs += u64::from(completion.status == Status::Success);
        self.complete(&self.receive_cq, completion, solicited, cx);
    }

    #[inline]
    fn complete(&self, cq: &CompletionRing, mut completion: Completion, solicited: bool, cx: &mut Context<'_>) {
        completion.time = cx.now;
        if let Err(Overrun { is_first }) = cq.push(completion, solicited) {
            cx.has_lost_completion = true;
            if is_first {
                cx.push_event(Event::CompletionQueueOverflow(self.qpn));
            }
        }
    }
}
