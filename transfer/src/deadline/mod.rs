//! Deadline mode: blocks of a value, of which the receiver has by a deadline what arrived, and exactly what did not.
//!
//! The [`Receiver`] asks for blocks of an object at a version, in the order of their importance, by a deadline. The
//! [`Sender`] at the other end sends them, and repairs first what is more important. A block is whole or missing: it is
//! whole when all its bytes are there and their checksum and version are those that were asked for. What is missing can
//! be recomputed, fetched by another request, or done without.
//!
//! With coding, a block survives as many losses as it has repair symbols, without a round trip.
//!
//! What earlier requests took tells the deadline of the next one, if the program has none of its own ([`History`]).
//!
//! With [`Layers`], the upper halves of all elements of a tensor go first, and the lower ones while time is left.
//!
//! Nothing falls back: a peer that does not answer in this mode is an [error](Failure::NoDeadlineMode).
//! docs/EXTENSIONS.md has every bit on the wire.
//!
//! ```
//! use uroce::time::{Duration, Instant};
//! use uroce_transfer::deadline::{End, Receiver, Request, Run, Sender, Shape, Values};
//!
//! let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
//! let shape = Shape::new(100_000, 16_384, 4032)?;
//! let mut now = Instant::from_ns(1_000_000_000);
//!
//! let mut sender = Sender::new([7; 32]);
//! sender.offer(1, Values::new(42, 16_384, bytes.clone())?);
//! let request = Request::new(1, 42, shape).with_runs(vec![Run { first: 3, count: 4 }, Run { first: 0, count: 3 }]);
//! let mut receiver = Receiver::new(0x1234, request.by(now + Duration::from_millis(500)), now)?;
//!
//! // A path without losses and without delay.
//! let mut datagram = [0; 4096];
//! while receiver.end().is_none() {
//!     while let Some(len) = receiver.poll_transmit(now, &mut datagram) {
//!         sender.handle_datagram(now, &datagram[..len]);
//!     }
//!     while let Some(len) = sender.poll_transmit(now, &mut datagram) {
//!         receiver.handle_datagram(now, &datagram[..len]);
//!     }
//!     now = now + Duration::from_micros(100);
//!     receiver.handle_timeout(now);
//!     sender.handle_timeout(now);
//! }
//! assert_eq!(receiver.end(), Some(End::Complete));
//! assert_eq!(receiver.block(6).unwrap(), &bytes[6 * 16_384..]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrivals;
mod bitmap;
mod coding;
mod history;
mod layers;
mod receiver;
mod request;
mod run;
mod sender;
mod shape;
mod values;
pub mod wire;

pub use bitmap::Bitmap;
pub use history::History;
pub use layers::{Joined, Layers, LayersError};
pub use receiver::{DeadlineError, End, Failure, Receiver, ReceiverCounters};
pub use request::{Request, RequestError};
pub use run::Run;
pub use sender::{Sender, SenderCounters, SenderEnd, SenderEvent};
pub use shape::{Shape, ShapeError};
pub use values::{Source, Values};
