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
//!
//! Over an RC queue pair, the [`Receiver`] invites the [`Sender`] to write into its memory. A [`WarmUp`] finds the conditions
//! by WRITEs to what is not there yet. Then each chunk is a WRITE with immediate data, which has the chunk's number: it comes
//! straight into its place, and the receive that it takes says that it is there. Chunks arrive in order, so that what is
//! whole is always the beginning of the stream. After a failure, a receiver that holds those bytes gets only the others.
//!
//! ```
//! use uroce::time::Instant;
//! use uroce_transfer::stream::{End, Parts, Place, Receiver, Sender, Stream};
//!
//! let now = Instant::from_ns(1_000_000_000);
//! let stream = Stream { name: 7, version: 1, parts: Parts::new(&[1000; 8])? };
//! let (layers, mut memory) = ([42; 8000], [0; 8000]);
//! let place = Place { address: 0x10000, rkey: 0x1234, outstanding: 16 };
//! let mut receiver = Receiver::new(stream.clone(), place, 0, now)?;
//! let mut sender = Sender::new(stream, 128, now);
//!
//! // Over TCP, for example; a warm-up would come before the beginning.
//! sender.handle_message(now, &receiver.poll_message().unwrap());
//! sender.begin(1500, now)?;
//! receiver.handle_message(now, &sender.poll_message().unwrap());
//!
//! for layer in 1..=8 {
//!     // It has been computed.
//!     sender.handle_ready(layer);
//!     while let Some(post) = sender.poll_post(now) {
//!         // The WRITE, its completion at the sender, and the receive's at the receiver.
//!         let range = post.offset as usize..post.offset as usize + post.bytes as usize;
//!         memory[range.clone()].copy_from_slice(&layers[range]);
//!         receiver.handle_notification(now, post.immediate, post.bytes);
//!         sender.handle_completion(now);
//!     }
//!     println!("{} layers are whole", receiver.whole_parts());
//! }
//! assert_eq!((receiver.end(), sender.end()), (Some(End::Complete), Some(End::Complete)));
//! assert_eq!(memory, layers);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod chunk;
mod conditions;
mod cut;
mod end;
mod parts;
mod place;
mod receiver;
mod sender;
mod terms;
mod warm_up;
pub mod wire;

pub use chunk::{Chunk, Part, chunks, rest};
pub use conditions::Conditions;
pub use cut::{Cut, CutError};
pub use end::{End, Failure};
pub use parts::{Parts, PartsError};
pub use place::Place;
pub use receiver::{Receiver, ReceiverError};
pub use sender::{BeginError, Post, Sender};
pub use terms::{Difference, Stream, Terms};
pub use warm_up::WarmUp;

use uroce::time::Duration;

/// An end fails when what it waits for does not come for so long: more than all retries of a queue pair take, and than a part
/// is computed.
const PATIENCE: Duration = Duration::from_secs(10);
