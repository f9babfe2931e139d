/// Selects one of the counters.
pub(super) type Which = fn(&mut Counters) -> &mut u64;

counters! {
    /// The numbers of events of a queue pair or of a whole device. The names are rxe's where it has one (`rdma
    /// statistic show`, rxe_hw_counters.c).
    pub struct Counters {
        sent_pkts,
        rcvd_pkts,
        /// Bytes of the IP packets that queue pairs sent.
        sent_bytes,
        /// Bytes of the IP packets that queue pairs were given, after the checks of headers and ICRC.
        rcvd_bytes,
        duplicate_request,
        out_of_seq_request,
        /// RNR NAKs that were received.
        rcvd_rnr_err,
        /// RNR NAKs that were sent.
        send_rnr_err,
        /// NAKs for a sequence error that were received.
        rcvd_seq_err,
        /// Times that the requester went back to retransmit, for whatever reason.
        completer_retry,
        retry_exceeded_err,
        retry_rnr_exceeded_err,
        /// Requests whose gather entries could not be read.
        send_err,
        /// SENDs that are complete.
        rdma_sends,
        /// Receive requests that were completed with success.
        rdma_recvs,
        /// Frames that are not RoCE v2, or whose lengths are impossible.
        malformed,
        bad_icrc,
        bad_ip_checksum,
        unknown_qpn,
        bad_tver,
        /// Reserved opcodes, and those of another transport service than the queue pair's.
        bad_opcode,
        bad_p_key,
        bad_q_key,
        /// Unreliable messages that were incomplete, too long or refused, or found no receive request.
        dropped_message,
        /// Packets from or to an address that is not the queue pair's.
        wrong_address,
        /// Packets for a queue pair whose state does not take them.
        wrong_state,
        /// Answers to nothing in flight: late, duplicate or invented.
        stray_response,
        /// Requests dropped because their answers did not fit into the queue.
        answer_overflow,
        /// READs requested again that got no answer, since their key is gone: they had been answered before.
        refused_duplicate,
        /// CNPs for a queue pair, after all checks.
        rcvd_cnp,
        /// CNPs that were sent. This name and those below are mlx5's.
        np_cnp_sent,
        /// Packets of reliable connections that arrived with «congestion experienced».
        np_ecn_marked_roce_packets,
        /// CNPs that were passed to the queue pair's congestion controller.
        rp_cnp_handled,
        /// CNPs that were ignored: the peer is known, and sends none, or nothing decides on the rate.
        rp_cnp_ignored,
        /// Request packets that were retransmitted; READs that request answers again count, too.
        retransmitted,
        /// Retransmissions of packets that had arrived before, as the peer reported: they were spurious.
        spurious_retransmission,
        /// Requests that arrived before earlier ones, and were kept.
        reordered,
        /// Requests among these whose bytes were placed at once.
        placed_early,
        /// Requests that arrived before earlier ones, and found no room.
        reorder_overflow,
        /// Packets that announce a trailer and have none, or one that is invalid or contradicts others.
        bad_trailer,
        /// Packets without the tag that the peer's have, or with another one.
        wrong_tag,
        /// Answers to path probes that are not in flight: late or invented.
        stray_probe,
        /// Lists of further addresses that are invalid, or differ from those before.
        refused_addresses,
        /// Packets that were written but too long for the link's buffer.
        too_long,
    }
}

impl Counters {
    /// The name of the counter that `which` selects.
    pub(super) fn name(which: Which) -> &'static str {
        let mut one = Counters::default();
        *which(&mut one) = 1;
        one.list().find(|(_, count)| *count == 1).map_or("", |(name, _)| name)
    }
}
