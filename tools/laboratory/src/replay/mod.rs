//! A capture as the peer of our own state machine: the frames of one side drive it, and its packets are compared, by
//! meaning, with those of the other side.
//!
//! A capture does not show regions, keys, receive requests, memory, and which frames the peer never received. These are
//! inferred from the other side's frames. Only what no such hypothesis explains counts as different, and the hypotheses
//! are listed.

mod comparison;
mod conversation;
mod hypothesis;
mod messages;
mod regions;
mod requester;
mod responder;
mod selective;
mod stand_in;
mod unanswered;

use conversation::Conversations;
use uroce::memory::MapError;
use uroce::pcap::CapturedFrame;
use uroce::wire::TransportService;

pub use comparison::{Finding, Report};

/// The roles that our state machine plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roles {
    /// It answers the requests in the capture.
    Responder,
    /// It sends the requests in the capture.
    Requester,
    /// It plays both roles, one after the other.
    Both,
}

/// Upper bound on the memory that a replay registers for one conversation, in bytes. It is as much as the peers
/// accessed, and a capture of a hostile peer can claim any amount.
pub(crate) const MAX_MEMORY_BYTES: u64 = 1 << 30;

/// Why a capture was not replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The capture has no frame that can be replayed.
    #[error(
        "no RoCE v2 frame of RC, UC or UD with a right ICRC is in the capture that can be replayed ({unsound} malformed, cut or with a wrong ICRC)"
    )]
    Empty {
        /// The number of RoCE frames that are malformed, cut or have a wrong ICRC.
        unsound: u64,
    },
    /// The requests access too much memory.
    #[error(
        "the requests reach over {bytes} bytes of memory, more than the {MAX_MEMORY_BYTES} that a replay registers"
    )]
    TooMuchMemory {
        /// The number of bytes that they access.
        bytes: u64,
    },
    /// The kernel gives no memory for the regions.
    #[error(transparent)]
    Memory(#[from] MapError),
}

/// Replays all conversations of a capture.
///
/// # Errors
/// [`ReplayError`] when no frame can be replayed, or the regions need too much memory.
pub fn replay(frames: &[CapturedFrame], roles: Roles) -> Result<Report, ReplayError> {
    let conversations = Conversations::of(frames);
    if conversations.list.is_empty() {
        return Err(ReplayError::Empty { unsound: conversations.unsound });
    }
    let mut report = Report::default();
    for (what, count) in [
        (
            "RoCE frames that are malformed, cut or have a wrong ICRC were left out, as a device drops them",
            conversations.unsound,
        ),
        ("RoCE frames of other services or with reserved opcodes were left out", conversations.foreign),
    ] {
        if count > 0 {
            report.assumed.push(format!("{count} {what}"));
        }
    }
    for conversation in &conversations.list {
        report.conversations += 1;
        if conversation.is_selective {
            selective::replay(conversation, roles, &mut report)?;
            continue;
        }
        if roles != Roles::Requester {
            match conversation.service {
                TransportService::Rc => responder::replay(conversation, &mut report)?,
                TransportService::Uc => unanswered::replay_uc(conversation, &mut report)?,
                _ => unanswered::replay_ud(conversation, &mut report)?,
            }
        }
        if roles != Roles::Responder {
            match conversation.service {
                TransportService::Rc | TransportService::Uc => requester::replay(conversation, &mut report)?,
                _ => unanswered::replay_ud_requests(conversation, &mut report)?,
            }
        }
    }
    report.different.sort_by_key(|finding| finding.frame);
    report.explained.sort_by_key(|finding| finding.frame);
    Ok(report)
}
