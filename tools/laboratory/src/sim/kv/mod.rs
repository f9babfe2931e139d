//! KV caches between a prefill and a decode site: prompts arrive at random, the site computes one after the other, and a line
//! moves their caches. Lines are played packet by packet ([`Fluid::measure`], [`Check`]), or as fluids that were measured so.
//! [`StreamCell`] sends one cache in chunks.

mod check;
mod fluid;
mod piece;
mod pool;
mod stream;
mod transport;
mod workload;

pub use check::{Check, Compared};
pub use fluid::{Fluid, Fluids, share};
pub use piece::Piece;
pub use stream::{Conditions, MESSAGE, OUTSTANDING, StreamCell, Streamed};
pub use transport::{KvTransport, POOL};
pub use workload::{Computed, OBJECTIVE_SHARE, Sending, Workload, bisected, most_that_keeps};
