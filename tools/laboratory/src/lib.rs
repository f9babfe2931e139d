//! The laboratory: tests of uroce's transport without a wire.
//!
//! * [`sim`]: networks in virtual time, random programs on them, and oracles that check all they do;
//! * [`replay`]: a capture as the peer of our own state machine;
//! * [`world`]: endpoints in memory that tests, benches and fuzz targets share;
//! * [`dissection`]: the headers, lengths and checksums of a captured frame;
//! * [`inference`]: the KV caches of models, and how long they are computed.
//!
//! It is a package of its own, which is not published. Users of the library do not compile it, and it has access to no
//! more of the stack than any other program. Tests, benches, fuzz targets and the command line use it.
//!
//! The reader of captures stays in [`uroce::pcap`], beside the writer. The two share one file format, each is tested by
//! the other, and unit tests of `uroce::link` read back what they captured.

pub mod dissection;
mod ethernet;
pub mod inference;
pub mod replay;
pub mod sim;
pub mod world;
