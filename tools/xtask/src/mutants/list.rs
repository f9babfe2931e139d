use super::Mutant;

const REQUESTER: &str = "src/transport/requester.rs";
const COMPLETER: &str = "src/transport/completer.rs";
const RESPONDER: &str = "src/transport/responder.rs";
const INBOUND: &str = "src/transport/inbound.rs";
const ENDPOINT: &str = "src/transport/endpoint.rs";
const WORK: &str = "src/transport/work.rs";
const UNRELIABLE: &str = "src/transport/unreliable.rs";
const DATAGRAM: &str = "src/transport/datagram.rs";
const RECEIVE_QUEUE: &str = "src/transport/receive_queue.rs";
const QUEUE_PAIR: &str = "src/transport/queue_pair.rs";
const ANSWERS: &str = "src/transport/answers.rs";
const EARLY: &str = "src/transport/early.rs";
const REORDER: &str = "src/transport/reorder.rs";
const SELECTIVE: &str = "src/transport/selective.rs";
const SCOREBOARD: &str = "src/recovery/scoreboard.rs";
const EXTENSION: &str = "src/transport/extension.rs";
const TABLE: &str = "src/memory/table.rs";
const PSN: &str = "src/wire/psn.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant { name: "psn-compare-off-by-one", file: PSN, old: "self.since(other) < 0", new: "self.since(other) <= 0" },
    Mutant {
        name: "psn-does-not-wrap",
        file: PSN,
        old: "((self.0.wrapping_sub(other.0) << 8) as i32) >> 8",
        new: "self.0 as i32 - other.0 as i32",
    },
    Mutant {
        name: "ack-before-placement",
        file: INBOUND,
        old: "        if placed.is_none() {\n            span.write(payload)?;",
        new: "        if placed.is_none() && !position.ends() {\n            span.write(payload)?;",
    },
    Mutant {
        name: "ack-beyond-what-arrived",
        file: RESPONDER,
        old: "self.acknowledge(packet.bth().psn(), cx);",
        new: "self.acknowledge(packet.bth().psn().plus(1), cx);",
    },
    Mutant {
        name: "lost-ack-not-repeated",
        file: RESPONDER,
        old: "self.acknowledge(sent_again.unwrap_or(done), cx);",
        new: "let _ = sent_again;",
    },
    Mutant {
        name: "duplicate-write-placed-again",
        file: RESPONDER,
        old: "                let following = self.saved",
        new: "                if let Some(reth) = packet.reth() {
                    let (address, len) = (reth.address(), packet.payload().len() as u64);
                    let span = cx.memory.remote(identity.pd, identity.qpn, reth.key(), address, len, Access::REMOTE_WRITE);
                    let _ = span.map(|span| span.write(packet.payload()));
                }
                let following = self.saved",
    },
    Mutant {
        name: "late-duplicate-send-placed",
        file: RESPONDER,
        old: "                let following = self.saved",
        new: "                if packet.bth().opcode().position() == Position::Only && packet.reth().is_none() {
                    let _ = self.inbound.serve(packet, None, identity, cx);
                }
                let following = self.saved",
    },
    Mutant {
        name: "write-placed-out-of-order",
        file: RESPONDER,
        old: "        if ahead > 0 {\n",
        new: "        if let (true, Some(reth)) = (ahead > 0, packet.reth()) {
            let (address, len) = (reth.address(), packet.payload().len() as u64);
            let span = cx.memory.remote(identity.pd, identity.qpn, reth.key(), address, len, Access::REMOTE_WRITE);
            let _ = span.map(|span| span.write(packet.payload()));
        }
        if ahead > 0 {\n",
    },
    Mutant {
        name: "atomic-executed-twice",
        file: RESPONDER,
        old: "                if self.may_answer(cx) {\n                    self.owe(Answer::Atomic",
        new: "                let _ = self.serve_atomic(packet, identity, cx);
                if self.may_answer(cx) {\n                    self.owe(Answer::Atomic",
    },
    Mutant {
        name: "atomic-result-not-saved",
        file: RESPONDER,
        old: "original: Some(original) });\n        self.owe(",
        new: "original: Some(original.wrapping_add(1)) });\n        self.owe(",
    },
    Mutant {
        name: "too-few-results-saved",
        file: RESPONDER,
        old: "while self.saved.len() >= self.max_dest_rd_atomic.max(1) {",
        new: "while !self.saved.is_empty() {",
    },
    Mutant {
        name: "duplicates-count-as-outstanding",
        file: RESPONDER,
        old: "Answer::Atomic { is_repeat, .. } => !is_repeat,",
        new: "Answer::Atomic { is_repeat, .. } => *is_repeat || true,",
    },
    Mutant {
        name: "msn-counts-beginnings",
        file: RESPONDER,
        old: "        if position.ends() {\n            self.msn",
        new: "        if position.starts() {\n            self.msn",
    },
    Mutant {
        name: "nak-not-cleared",
        file: RESPONDER,
        old: "std::mem::take(&mut self.nak_outstanding) && self.is_selective;",
        new: "self.nak_outstanding && self.is_selective;",
    },
    Mutant {
        name: "every-gap-packet-accepted",
        file: RESPONDER,
        old: "        if ahead > 0 {\n",
        new: "        if ahead > 1 {\n",
    },
    Mutant {
        name: "rnr-consumes-a-receive-request",
        file: INBOUND,
        old: "            let request = self.take(cx).ok_or(Refusal::NotReady)?;\n",
        new: "            let request = self.take(cx).ok_or(Refusal::NotReady)?;
            if self.queue.is_empty(cx.shared) && packet.bth().psn().value() % 5 == 3 {
                return Err(Refusal::NotReady);
            }\n",
    },
    Mutant {
        name: "write-immediate-placed-without-receive",
        file: INBOUND,
        old: "            return Err(Refusal::NotReady);\n        }\n        // Looked up",
        new: "        }\n        // Looked up",
    },
    Mutant {
        name: "immediate-lost",
        file: INBOUND,
        old: "            immediate: packet.imm_dt().map(|imm| imm.data()),\n            invalidated,",
        new: "            immediate: None,\n            invalidated,",
    },
    Mutant {
        name: "receive-length-off-by-one",
        file: INBOUND,
        old: "if after > total(&request.sges) {",
        new: "if after > total(&request.sges) + 1 {",
    },
    Mutant {
        name: "write-length-not-checked",
        file: INBOUND,
        old: "                cx.memory.remote(identity.pd, identity.qpn, key, address, len.into(), Access::REMOTE_WRITE)?;\n",
        new: "",
    },
    Mutant {
        name: "lost-rnr-back-off",
        file: REQUESTER,
        old: "self.rnr_until = Some(cx.now + delay);",
        new: "self.rnr_until = Some(cx.now);",
    },
    Mutant {
        name: "rnr-wait-outlives-progress",
        file: REQUESTER,
        old: "        self.rnr_until = None;\n        if let Some(selective) = &mut self.selective {\n            selective.receiver_may_be_ready();\n            return;",
        new: "        if let Some(selective) = &mut self.selective {\n            selective.receiver_may_be_ready();\n            return;",
    },
    Mutant {
        name: "rnr-without-going-back",
        file: REQUESTER,
        old: "        if self.selective.is_none() {\n            self.go_back();\n        }\n        self.rnr_until",
        new: "        self.rnr_until",
    },
    Mutant {
        name: "go-back-too-far",
        file: REQUESTER,
        old: "    fn go_back_to(&mut self, psn: Psn) {\n",
        new: "    fn go_back_to(&mut self, psn: Psn) {\n        let psn = self.queue.front().map_or(psn, |wqe| wqe.first_psn);\n",
    },
    Mutant {
        name: "go-back-too-short",
        file: REQUESTER,
        old: "    fn go_back_to(&mut self, psn: Psn) {\n",
        new: "    fn go_back_to(&mut self, psn: Psn) {\n        let psn = psn.plus(1);\n",
    },
    Mutant {
        name: "retry-count-not-reset",
        file: REQUESTER,
        old: "(self.retries_left, self.rnr_retries_left) = (self.retry_count, self.rnr_retry);\n        (self.gap_reported",
        new: "self.rnr_retries_left = self.rnr_retry;\n        (self.gap_reported",
    },
    Mutant {
        name: "rnr-retry-count-not-reset",
        file: REQUESTER,
        old: "(self.retries_left, self.rnr_retries_left) = (self.retry_count, self.rnr_retry);\n        (self.gap_reported",
        new: "self.retries_left = self.retry_count;\n        (self.gap_reported",
    },
    Mutant {
        name: "timer-not-armed",
        file: REQUESTER,
        old: "if self.retransmit_at.is_none() && self.selective.is_none() {",
        new: "if self.retransmit_at.is_none() && self.selective.is_none() && self.timeout.is_none() {",
    },
    Mutant {
        name: "timer-not-armed-after-progress",
        file: REQUESTER,
        old: "self.timeout.filter(|_| self.has_unacknowledged()).map(|timeout| now + timeout);\n    }\n\n    /// The PSN",
        new: "None;\n    }\n\n    /// The PSN",
    },
    Mutant {
        name: "window-off",
        file: REQUESTER,
        old: "        let window = if self.selective.is_some() { identity.extension.settings.window as i32 } else { WINDOW_PACKETS };",
        new: "        let window = i32::MAX;",
    },
    Mutant {
        name: "fence-ignored",
        file: REQUESTER,
        old: "let fenced = wqe.request.fence &&",
        new: "let fenced = false &&",
    },
    Mutant {
        name: "max-rd-atomic-ignored",
        file: REQUESTER,
        old: "self.reads_in_flight >= self.max_rd_atomic;",
        new: "self.reads_in_flight > 4 * self.max_rd_atomic;",
    },
    Mutant {
        name: "unsignaled-completion-reported",
        file: REQUESTER,
        old: "if wqe.request.signaled {",
        new: "if wqe.request.signaled || wqe.packets > 2 {",
    },
    Mutant {
        name: "completed-twice",
        file: REQUESTER,
        old: "                identity.complete_send(wqe.request.wr_id, wqe.kind(), Status::Success, byte_len, cx);\n",
        new: "                identity.complete_send(wqe.request.wr_id, wqe.kind(), Status::Success, byte_len, cx);
                if wqe.packets > 3 {
                    identity.complete_send(wqe.request.wr_id, wqe.kind(), Status::Success, byte_len, cx);
                }\n",
    },
    Mutant {
        name: "completed-before-the-last-ack",
        file: REQUESTER,
        old: ">= packets as i32,",
        new: ">= packets as i32 - (packets > 1) as i32,",
    },
    Mutant {
        name: "flushed-in-reverse",
        file: REQUESTER,
        old: "for wqe in std::mem::take(&mut self.queue) {",
        new: "for wqe in std::mem::take(&mut self.queue).into_iter().rev() {",
    },
    Mutant {
        name: "read-complete-before-its-last-answer",
        file: REQUESTER,
        old: "self.request.operation.is_read_or_atomic() && self.received < self.packets",
        new: "self.request.operation.is_read_or_atomic() && self.received + u32::from(self.packets > 1) < self.packets",
    },
    Mutant {
        name: "read-asked-again-from-its-beginning",
        file: REQUESTER,
        old: "remote.address.wrapping_add(offset.into()), remote.key, len);",
        new: "remote.address, remote.key, len);",
    },
    Mutant {
        name: "read-answer-at-wrong-offset",
        file: COMPLETER,
        old: "scatter(cx.memory, identity.pd, sges, offset, packet.payload()).map_err(protection)",
        new: "scatter(cx.memory, identity.pd, sges, offset.saturating_sub(4), packet.payload()).map_err(protection)",
    },
    Mutant {
        name: "acks-for-what-was-never-sent",
        file: COMPLETER,
        old: "psn.is_before(self.unacknowledged) || !psn.is_before(self.sent)",
        new: "psn.is_before(self.unacknowledged)",
    },
    Mutant {
        name: "ack-completes-unanswered-read",
        file: COMPLETER,
        old: "Some(missing) if missing.is_before(psn) => missing,",
        new: "Some(missing) if missing.is_before(psn.minus(1)) => missing,",
    },
    Mutant {
        name: "read-answer-out-of-order-taken",
        file: COMPLETER,
        old: "        if psn != expected {\n",
        new: "        if psn != expected && psn != expected.plus(1) {\n",
    },
    Mutant {
        name: "gather-entry-off-by-one",
        file: WORK,
        old: "let start = skip.min(length);",
        new: "let start = skip.min(length.saturating_sub(1));",
    },
    Mutant {
        name: "key-not-compared",
        file: TABLE,
        old: ".filter(|entry| entry.key == key).ok_or(",
        new: ".ok_or(",
    },
    Mutant {
        name: "region-one-byte-too-long",
        file: TABLE,
        old: "(offset <= self.len && len <= self.len - offset)",
        new: "(offset <= self.len && len <= self.len - offset + 1)",
    },
    Mutant {
        name: "domain-not-compared",
        file: TABLE,
        old: "        if entry.pd != pd {\n            return Err(AccessError::Foreign(key));\n        }\n        let denied",
        new: "        let denied",
    },
    Mutant {
        name: "icrc-not-checked",
        file: ENDPOINT,
        old: "if !roce.icrc_ok() {",
        new: "if false {",
    },
    Mutant {
        name: "address-not-checked",
        file: ENDPOINT,
        old: "Some(addresses) if addresses != roce.ip.addresses() =>",
        new: "Some(addresses) if false && addresses != roce.ip.addresses() =>",
    },
    Mutant {
        name: "partition-not-checked",
        file: ENDPOINT,
        old: "if !PKey::DEFAULT.matches(bth.p_key()) {",
        new: "if false {",
    },
    Mutant {
        name: "uc-goes-on-after-a-gap",
        file: UNRELIABLE,
        old: "if !in_sequence || self.dropping {",
        new: "if self.dropping {",
    },
    Mutant {
        name: "uc-drops-the-message-after-a-gap",
        file: UNRELIABLE,
        old: "self.dropping = !position.starts();",
        new: "self.dropping = true;",
    },
    Mutant {
        name: "uc-request-lost-with-its-message",
        file: INBOUND,
        old: "        if let Some(Incoming::Send { request, .. }) = self.message.take() {\n            self.put_back(request);\n        }",
        new: "        self.message = None;",
    },
    Mutant {
        name: "uc-acknowledged-like-rc",
        file: REQUESTER,
        old: "        if self.service != Service::Rc {\n                        self.progress",
        new: "        if self.service == Service::Ud {\n                        self.progress",
    },
    Mutant {
        name: "ud-key-not-checked",
        file: DATAGRAM,
        old: "if deth.q_key() != self.q_key {",
        new: "if false {",
    },
    Mutant {
        name: "ud-privileged-key-sent-as-it-is",
        file: REQUESTER,
        old: "if destination.q_key.0 >> 31 == 1 {",
        new: "if false {",
    },
    Mutant {
        name: "ud-without-routing-header",
        file: DATAGRAM,
        old: "IpHeader::V4(ip) => header[20..].copy_from_slice(&ip.slice()[..20]),",
        new: "IpHeader::V4(ip) => header[..20].copy_from_slice(&ip.slice()[..20]),",
    },
    Mutant {
        name: "ud-header-not-counted",
        file: DATAGRAM,
        old: "Completion::receive(request.wr_id, identity.qpn, len)",
        new: "Completion::receive(request.wr_id, identity.qpn, len - GRH_BYTES)",
    },
    Mutant {
        name: "ud-request-lost-with-a-long-datagram",
        file: DATAGRAM,
        old: "            self.inbound.put_back(request);\n",
        new: "",
    },
    Mutant {
        name: "ud-immediate-lost",
        file: DATAGRAM,
        old: "immediate: packet.imm_dt().map(|imm| imm.data()),",
        new: "immediate: None,",
    },
    Mutant {
        name: "srq-limit-comes-again",
        file: RECEIVE_QUEUE,
        old: "            queue.limit = 0;\n",
        new: "",
    },
    Mutant {
        name: "srq-limit-off-by-one",
        file: RECEIVE_QUEUE,
        old: "queue.requests.len() < queue.limit;",
        new: "queue.requests.len() <= queue.limit;",
    },
    Mutant {
        name: "srq-used-from-the-end",
        file: RECEIVE_QUEUE,
        old: "let request = queue.requests.pop_front();",
        new: "let request = queue.requests.pop_back();",
    },
    Mutant {
        name: "srq-empty-too-early",
        file: RECEIVE_QUEUE,
        old: "let request = queue.requests.pop_front();",
        new: "if queue.requests.len() == 1 {\n            return (None, None);\n        }\n        let request = queue.requests.pop_front();",
    },
    Mutant {
        name: "srq-without-last-event",
        file: QUEUE_PAIR,
        old: "            cx.push_event(Event::LastWqeReached(self.identity.qpn, srq));\n",
        new: "            let _ = srq;\n",
    },
    Mutant {
        name: "sack-bit-off-by-one",
        file: REORDER,
        old: ".wrapping_sub(self.expected) as u32);",
        new: ".wrapping_sub(self.expected) as u32 + 1);",
    },
    Mutant {
        name: "sack-acknowledges-what-waits",
        file: RESPONDER,
        old: "Bth::new(Opcode::RC_ACKNOWLEDGE, identity.remote, self.expected.minus(1))",
        new: "Bth::new(Opcode::RC_ACKNOWLEDGE, identity.remote, self.expected)",
    },
    Mutant {
        name: "completed-before-the-gap-is-filled",
        file: SELECTIVE,
        old: "Some(position) => self.board().arrived(position, now),",
        new: "Some(position) => self.board().carried_out_before(position + 1, now),",
    },
    Mutant {
        name: "early-request-carried-out-at-once",
        file: RESPONDER,
        old: "        let receive_pd = self.inbound.pd(identity, cx);\n",
        new: "        if packet.bth().opcode().position() == Position::Only
            && packet.bth().opcode().operation() == Operation::Write
        {
            let _ = self.inbound.serve(packet, None, identity, cx);
        }
        let receive_pd = self.inbound.pd(identity, cx);\n",
    },
    Mutant {
        name: "early-request-leaked",
        file: REORDER,
        old: "        let waiting = self.waiting.remove(&self.expected)?;
        self.waiting_bytes -= charge(&waiting);
",
        new: "        let waiting = self.waiting.remove(&self.expected)?;
",
    },
    Mutant {
        name: "early-send-completed-at-once",
        file: RESPONDER,
        old: "        let receive_pd = self.inbound.pd(identity, cx);\n",
        new: "        if packet.bth().opcode().position() == Position::Only
            && packet.bth().opcode().operation() == Operation::Send
            && self.is_selective
        {
            let _ = self.inbound.serve(packet, None, identity, cx);
        }
        let receive_pd = self.inbound.pd(identity, cx);\n",
    },
    Mutant {
        name: "early-send-into-another-receive-request",
        file: EARLY,
        old: "                let Some(request) = arrival.inbound.request(number) else { return false };\n",
        new: "                let Some(request) = arrival.inbound.request(number + 1) else { return false };\n",
    },
    Mutant {
        name: "early-write-over-an-earlier-one",
        file: EARLY,
        old: "            first >= start || self.known.get(&first)",
        new: "            true || first >= start || self.known.get(&first)",
    },
    Mutant {
        name: "early-write-although-a-gap-is-unknown",
        file: EARLY,
        old: "        if !fits || !self.covers(expected, spot.start) {",
        new: "        if !fits {",
    },
    Mutant {
        name: "early-write-to-ordinary-memory",
        file: EARLY,
        old: "        if !is_relaxed || !is_same {",
        new: "        if !is_same {",
    },
    Mutant {
        name: "last-bytes-not-last",
        file: EARLY,
        old: "            && (!is_last || others == u64::from(message.placed));",
        new: "            && (!is_last || others < u64::MAX);",
    },
    Mutant {
        name: "early-message-never-forgotten",
        file: EARLY,
        old: "filter(|entry| *entry.key() < before) {",
        new: "filter(|entry| *entry.key() + 2 < before) {",
    },
    Mutant {
        name: "early-request-placed-again",
        file: REORDER,
        old: "        if self.has(position) {\n",
        new: "        if self.waiting.contains_key(&position) {\n",
    },
    Mutant {
        name: "immediate-of-what-came-early-lost",
        file: EARLY,
        old: "            (false, true, _) => Extension::ImmDt(ImmDt::new(self.word)),",
        new: "            (false, true, _) => Extension::ImmDt(ImmDt::new(0)),",
    },
    Mutant {
        name: "endpoint-bound-off",
        file: RESPONDER,
        old: "settings.reorder_bytes.min(settings.endpoint_reorder_bytes.saturating_sub(cx.waiting_elsewhere));",
        new: "settings.reorder_bytes;",
    },
    Mutant {
        name: "receive-numbers-without-writes",
        file: WORK,
        old: "Op::SendWithInvalidate(_) | Op::WriteWithImmediate(..))",
        new: "Op::SendWithInvalidate(_))",
    },
    Mutant {
        name: "early-answer-of-a-plain-peer-placed-as-the-next",
        file: ANSWERS,
        old: "let at = psn.since(first_psn) as u32;",
        new: "let at = self.queue[index].received;",
    },
    Mutant {
        name: "early-answer-of-a-plain-peer-counted-twice",
        file: ANSWERS,
        old: "            answers.early.insert(psn.value());\n",
        new: "            answers.early.insert(psn.value());\n            wqe.received += 1;\n",
    },
    Mutant {
        name: "missing-answer-taken-for-one-that-came",
        file: ANSWERS,
        old: "            if wqe.awaits_answer() {\n                break;",
        new: "            if wqe.awaits_answer() && wqe.received == 0 {\n                break;",
    },
    Mutant {
        name: "early-request-of-a-plain-peer-acknowledged",
        file: RESPONDER,
        old: "if !self.nak_outstanding && self.may_answer(cx) {\n                self.nak_outstanding = true;",
        new: "if self.reorder.is_some() {\n                self.answer(packet.bth().psn(), Syndrome::ACK);
            }
            if !self.nak_outstanding && self.may_answer(cx) {\n                self.nak_outstanding = true;",
    },
    Mutant {
        name: "early-answer-placed-as-the-next",
        file: SELECTIVE,
        old: "let at = psn.since(self.queue[index].first_psn) as u32;",
        new: "let at = self.queue[index].received;",
    },
    Mutant {
        name: "reads-in-flight-forgotten-too-early",
        file: SELECTIVE,
        old: "        self.queue[index].received += 1;\n",
        new: "        self.queue[index].received += 1;\n        self.reads_in_flight = 0;\n",
    },
    Mutant {
        name: "offer-taken-although-unwanted",
        file: EXTENSION,
        old: "bth.offers() && self.settings.recovery != Recovery::GoBackN",
        new: "bth.offers()",
    },
    Mutant {
        name: "selective-towards-everybody",
        file: EXTENSION,
        old: "            Recovery::Auto => Peer::Unknown(0),",
        new: "            Recovery::Auto => Peer::Understands,",
    },
    Mutant {
        name: "selective-window-off",
        file: REQUESTER,
        old: "identity.extension.settings.window as i32 }",
        new: "i32::MAX }",
    },
    Mutant {
        name: "paths-towards-peers-that-know-none",
        file: QUEUE_PAIR,
        old: "self.is_extended() && self.identity.path.is_some() &&",
        new: "self.identity.path.is_some() &&",
    },
    Mutant {
        name: "probes-count-as-signs-of-life",
        file: SCOREBOARD,
        old: "std::mem::take(&mut self.is_news) || !self.is_probed ||",
        new: "true ||",
    },
    Mutant {
        name: "path-lost-with-its-packets",
        file: SCOREBOARD,
        old: "            self.slot(position).flags |= QUEUED;\n            self.lost.push_back(position);\n            if self.is_multipath {",
        new: "            self.slot(position).flags |= QUEUED;\n            if overtaken_by.is_some() {\n                self.lost.push_back(position);\n            }\n            if self.is_multipath {",
    },
    Mutant {
        name: "copy-says-too-much",
        file: REORDER,
        old: "            self.is_copy_owed = false;\n        } else {",
        new: "            self.is_copy_owed = false;\n            self.words.iter_mut().for_each(|word| *word |= 1);\n        } else {",
    },
];
