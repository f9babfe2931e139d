use uroce::time::{Duration, Instant};
use uroce_transfer::stream::{Conditions, Part, WarmUp, rest};

use super::list;

/// `struct uroce_stream_conditions`.
#[repr(C)]
pub struct ConditionsOfC {
    rate_bps: f64,
    round_trip_ns: u64,
    message_ns: u64,
    outstanding: u64,
}

/// `struct uroce_stream_part`.
#[repr(C)]
pub struct PartOfC {
    ready_ns: u64,
    bytes: u64,
}

impl ConditionsOfC {
    fn conditions(&self) -> Conditions {
        Conditions {
            rate_bps: self.rate_bps,
            round_trip: Duration::from_nanos(self.round_trip_ns),
            message: Duration::from_nanos(self.message_ns),
            outstanding: self.outstanding as usize,
        }
    }
}

/// What is left of a caller's parts.
///
/// # Safety
/// `parts` has `count` of them, unless it is NULL.
unsafe fn left(parts: *const PartOfC, count: usize, held: u64) -> Vec<Part> {
    // SAFETY: the caller's duty.
    let parts = unsafe { list(parts, count) }.iter();
    let parts: Vec<Part> =
        parts.map(|part| Part { ready: Duration::from_nanos(part.ready_ns), bytes: part.bytes }).collect();
    rest(&parts, held)
}

/// The length of a chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_choose(
    conditions: &ConditionsOfC,
    parts: *const PartOfC,
    part_count: usize,
    held: u64,
) -> u64 {
    // SAFETY: the header's duties.
    conditions.conditions().choose(&unsafe { left(parts, part_count, held) })
}

/// How long a stream takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_total_ns(
    conditions: &ConditionsOfC,
    parts: *const PartOfC,
    part_count: usize,
    held: u64,
    chunk_bytes: u64,
) -> u64 {
    // SAFETY: the header's duties.
    let parts = unsafe { left(parts, part_count, held) };
    conditions.conditions().total(&parts, chunk_bytes).as_nanos() as u64
}

/// A measurement of a connection.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_warm_up_new(longest_bytes: u64, outstanding: usize) -> *mut WarmUp {
    Box::into_raw(Box::new(WarmUp::new(longest_bytes, outstanding)))
}

/// Frees a measurement, or nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uroce_stream_warm_up_free(warm_up: *mut WarmUp) {
    if !warm_up.is_null() {
        // SAFETY: it came from a box, and is freed once.
        drop(unsafe { Box::from_raw(warm_up) });
    }
}

/// The length of the next message, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_warm_up_poll_post(warm_up: &mut WarmUp, now_ns: u64) -> u64 {
    warm_up.poll_post(Instant::from_ns(now_ns)).unwrap_or(0)
}

/// A message has completed.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_warm_up_handle_completion(warm_up: &mut WarmUp, now_ns: u64) {
    warm_up.handle_completion(Instant::from_ns(now_ns));
}

/// What was measured; returns whether it is known.
#[unsafe(no_mangle)]
pub extern "C" fn uroce_stream_warm_up_conditions(warm_up: &WarmUp, into: &mut ConditionsOfC) -> i32 {
    let Some(conditions) = warm_up.conditions() else { return 0 };
    *into = ConditionsOfC {
        rate_bps: conditions.rate_bps,
        round_trip_ns: conditions.round_trip.as_nanos() as u64,
        message_ns: conditions.message.as_nanos() as u64,
        outstanding: conditions.outstanding as u64,
    };
    1
}
