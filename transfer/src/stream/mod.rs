//! Streams: bytes that leave while the next ones are computed, such as the layers of a KV cache during prefill.
//!
//! What is computed comes in [`Part`]s. It is sent in chunks, one message each, which both ends cut alike
//! ([`chunks`]). Small chunks leave soon, but a connection has a limit of messages on their way, and each costs time.
//! [`Conditions::choose`] weighs that; a program may as well name a size itself.
//!
//! ```
//! use std::time::Duration;
//! use uroce_transfer::stream::{Conditions, Part, chunks};
//!
//! // 32 layers of 4 MiB, a millisecond each, over 10 Gb/s and 30 ms with 64 receives posted ahead.
//! let parts: Vec<Part> =
//!     (1..=32).map(|layer| Part { ready: Duration::from_millis(layer), bytes: 4 << 20 }).collect();
//! let conditions = Conditions {
//!     rate_bps: 9.8e9,
//!     round_trip: Duration::from_millis(30),
//!     message: Duration::from_micros(2),
//!     outstanding: 64,
//! };
//! let chunk_bytes = conditions.choose(&parts);
//! assert!(64 * chunk_bytes >= 36 << 20, "what is on its way in a round trip");
//! assert_eq!(chunks(&parts, chunk_bytes).map(|chunk| chunk.bytes).sum::<u64>(), 128 << 20);
//! ```

mod chunk;
mod conditions;

pub use chunk::{Chunk, Part, chunks};
pub use conditions::Conditions;
