/// One of the counters.
pub(super) type Which = fn(&mut Counters) -> &mut u64;

counters! {
    /// What happened, as numbers, of a queue pair or of a whole device; the names are rxe's where it has one
    /// (`rdma statistic show`, rxe_hw_counters.c).
    pub struct Counters {
        sent_pkts,
        rcvd_pkts,
        duplicate_request,
        out_of_seq_request,
        /// RNR NAKs received.
        rcvd_rnr_err,
        /// RNR NAKs sent.
        send_rnr_err,
        /// NAKs for a sequence error received.
        rcvd_seq_err,
        /// Times that the requester went back to send again, for whatever reason.
        completer_retry,
        retry_exceeded_err,
        retry_rnr_exceeded_err,
        /// Requests whose gather entries could not be read.
        send_err,
        /// Frames that are no RoCE v2 at all, or whose lengths cannot be.
        malformed,
        bad_icrc,
        bad_ip_checksum,
        unknown_qpn,
        bad_tver,
        /// Reserved opcodes, and those of another transport service than the queue pair's.
        bad_opcode,
        bad_p_key,
        bad_q_key,
        /// Unreliable messages that were incomplete, too long, refused, or found no receive request.
        dropped_message,
        /// Packets from or to an address that is not the queue pair's.
        wrong_address,
        /// Packets for a queue pair whose state does not take them.
        wrong_state,
        /// Answers to nothing in flight: late, duplicate, or invented.
        stray_response,
        /// Requests dropped because their answers could not be kept.
        answer_overflow,
        /// Answers to READs asked for again, after they were answered in full, that were dropped because the key is gone.
        refused_duplicate,
        rcvd_cnp,
        /// Packets of requests that were sent again, among them READs that ask for answers again.
        retransmitted,
        /// Of these, the ones that had arrived before, as the peer said.
        spurious_retransmission,
        /// Requests that came before earlier ones, and were kept.
        reordered,
        /// Of these, the ones whose bytes went to their place at once.
        placed_early,
        /// Requests that came before earlier ones, and found no room.
        reorder_overflow,
        /// Packets that announce a trailer and have none that can be.
        bad_trailer,
        /// Packets without the tag that the peer's have, or with another one.
        wrong_tag,
        /// Answers to probes of paths that nobody waits for: late, or invented.
        stray_probe,
        /// Lists of further addresses that cannot be, or are not those of before.
        refused_addresses,
        /// Packets that were written but too long for the link's buffer.
        too_long,
    }
}

impl Counters {
    /// The name of one.
    pub(super) fn name(which: Which) -> &'static str {
        let mut one = Counters::default();
        *which(&mut one) = 1;
        one.list().find(|(_, count)| *count == 1).map_or("", |(name, _)| name)
    }
}
