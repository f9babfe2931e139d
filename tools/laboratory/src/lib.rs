//! The laboratory: where uroce's transport is put to the test without a wire.
//!
//! * [`sim`]: networks in virtual time, random programs on them, and oracles that check all they do;
//! * [`replay`]: a capture as the peer of our own state machine;
//! * [`world`]: endpoints in memory that tests, benches and fuzz targets share;
//! * [`dissection`]: what a captured frame says.
//!
//! It is a package of its own, which is not published: whoever uses uroce as a library compiles none of it, and it sees no more
//! of the stack than any other program. Tests, benches, fuzz targets and the command line use it.
//!
//! Reading captures stays in [`uroce::pcap`], beside writing them: the two are one file format, each is tested by the other, and
//! unit tests of `uroce::link` read back what they captured.

pub mod dissection;
pub mod replay;
pub mod sim;
pub mod world;
