//! KV caches between a prefill and a decode site: NIXL and Mooncake, unmodified, over uroce and over TCP, through an emulated wide
//! area network.
#![allow(clippy::disallowed_methods, reason = "it lives on the wall clock")]

mod cell;
mod cells;
mod conversation;
mod demo;
mod demo_picture;
mod load;
mod page;
mod played;
mod profile;
mod site;
mod sockets;
pub mod stream;
mod stream_page;
mod streamed;
mod svg;
mod tables;
mod tokens;

pub use cell::{Cell, LateLimit, Op, Program, Step, Transport, UcxChoice};
pub use cells::{Play, Shows, loads, plays, small_plays};
pub use conversation::{Outcome, Tools, play};
pub use demo::{Demo, DemoPlan, Fetched};
pub use demo_picture::demo_picture;
pub use load::{Load, ScaledPrompt, Served};
pub use page::page;
pub use played::{FirstToken, Played};
pub use profile::{LINE_BPS, Path, Profile, SLOWER};
pub use sockets::DataSockets;
pub use stream_page::{stream_page, stream_summary, stream_tables};
pub use streamed::Streamed;
pub use tables::{demo_table, load_table, summary, tables};
pub use tokens::{Beside, TokenPlan, TokensPlayed, play_tokens};
