use super::{Malformed, put};

/// Why the receiver wants no more: after the header, reason:8 and zero:24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// All blocks are whole.
    Complete,
    /// The program does not want them any more.
    Cancelled,
    /// The deadline has passed.
    Deadline,
    /// What the sender sends cannot be right.
    Failed,
}

impl EndReason {
    const ALL: [(u8, EndReason); 4] =
        [(1, EndReason::Complete), (2, EndReason::Cancelled), (3, EndReason::Deadline), (4, EndReason::Failed)];

    pub(super) fn parse(bytes: &[u8]) -> Result<EndReason, Malformed> {
        match *bytes {
            [code, 0, 0, 0] => {
                let found = EndReason::ALL.iter().find(|(known, _)| *known == code);
                found.map(|(_, reason)| *reason).ok_or(Malformed::Field("reason"))
            }
            [_, _, _, _] => Err(Malformed::Zero),
            [_, _, _, _, ..] => Err(Malformed::Long { need: 4, have: bytes.len() }),
            _ => Err(Malformed::Short { need: 4, have: bytes.len() }),
        }
    }

    pub(super) fn write(self, into: &mut [u8]) -> Option<usize> {
        let (code, _) = EndReason::ALL.into_iter().find(|(_, reason)| *reason == self)?;
        put(into, &[&[code, 0, 0, 0]])
    }
}
