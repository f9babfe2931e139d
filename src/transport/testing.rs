//! What the tests of several roles share.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::congestion::Companies;
use crate::frame::Hop;
use crate::memory::{KeySource, MemoryTable, Pd};
use crate::time::Instant;
use crate::wire::{Addresses, Flow, PathMtu, Qpn};

use super::attributes::Path;
use super::completion::CompletionRing;
use super::connection::Connection;
use super::context::Context;
use super::counters::Counters;
use super::event::Event;
use super::extension::Extension;
use super::receive_queue::SharedReceiveQueues;
use super::service::Service;
use super::urgent::Urgent;

/// What the roles of a queue pair need for their work.
pub(super) struct World {
    pub connection: Connection,
    pub memory: MemoryTable,
    shared: SharedReceiveQueues,
    counters: Counters,
    events: VecDeque<Event>,
    identification: u16,
}

impl World {
    pub fn new(path_mtu: PathMtu) -> World {
        let cq = Arc::new(CompletionRing::new(16, || {}));
        let addresses = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).unwrap();
        let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        let connection = Connection {
            qpn: Qpn::new(2),
            service: Service::Rc,
            pd: Pd(1),
            remote: Qpn::new(3),
            path_mtu,
            path: Some(Path { flow, hop: Hop(0) }),
            acknowledge_dscp: None,
            extension: Extension::new(Service::Rc, Default::default()),
            send_cq: cq.clone(),
            receive_cq: cq,
        };
        let memory = MemoryTable::new(KeySource::new([1; 32]));
        let (shared, counters) = (SharedReceiveQueues::default(), Counters::default());
        World { connection, memory, shared, counters, events: VecDeque::new(), identification: 0 }
    }

    pub fn with<T>(&mut self, work: impl FnOnce(&Connection, &mut Context<'_>) -> T) -> T {
        let World { connection, memory, shared, counters, events, identification } = self;
        let mut cx = Context {
            now: Instant::ZERO,
            memory,
            shared,
            counters,
            events,
            identification,
            identification_step: 1,
            multipath: &mut None,
            waiting_elsewhere: 0,
            urgent: &mut Urgent::default(),
            companies: &mut Companies::default(),
            local_addresses: &None,
            has_lost_completion: false,
            is_cold: false,
        };
        work(connection, &mut cx)
    }
}
