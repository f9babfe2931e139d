use crate::time::Instant;
use crate::transport::{Endpoint, NoSuchQueuePair, Skipped};
use crate::wire::Qpn;

/// Moves a connection's idle queue pair on as if `sent` and `received` had gone by, in order, since its last packet. Its peer is
/// to be moved on by the same the other way round, when nothing is on its way between the two.
///
/// PSNs are compared modulo 2^24, so what a queue pair remembers looks later than the present once it is 2^23 packets old. A
/// simulation that sent so many would take minutes for each.
///
/// # Errors
/// [`NoSuchQueuePair`].
pub fn skip(
    endpoint: &mut Endpoint,
    now: Instant,
    qpn: Qpn,
    sent: Skipped,
    received: Skipped,
) -> Result<(), NoSuchQueuePair> {
    endpoint.skip(now, qpn, sent, received)
}
