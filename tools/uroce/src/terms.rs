use std::fmt::Display;

use crate::Failure;

/// What both ends of a game must be given alike. Two ends of uroce tell each other, beside the handshake of perftest or
/// of the ibv pingpongs, whose own programs never see it.
///
/// Both begin with [`LID`](Self::LID) as their LID, which RoCE has no use for. Who sees that of the peer, too, sends
/// its terms and awaits the peer's: flags and their values, with semicolons between them, padded with NULs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms(Vec<String>);

impl Terms {
    /// The LID of uroce: "ur".
    pub const LID: u16 = 0x7572;

    /// Bytes of the message.
    pub const BYTES: usize = 128;

    /// Terms of a game of that name.
    pub fn new(game: impl Display) -> Terms {
        Terms(vec![game.to_string()])
    }

    /// One more flag, and its value.
    pub fn with(mut self, flag: &str, value: impl Display) -> Terms {
        self.0.push(format!("{flag} {value}"));
        self
    }

    /// The message.
    pub fn to_bytes(&self) -> [u8; Terms::BYTES] {
        let mut bytes = [0; Terms::BYTES];
        for (to, from) in bytes.iter_mut().zip(self.0.join(";").bytes()) {
            *to = from;
        }
        bytes
    }

    /// Compares them with what the peer `at` an address said.
    ///
    /// # Errors
    /// The differences, in words.
    pub fn agree(&self, theirs: &[u8; Terms::BYTES], at: &str) -> Result<(), Failure> {
        let text: String = theirs.iter().take_while(|byte| **byte != 0).map(|byte| printable(*byte)).collect();
        let theirs: Vec<&str> = text.split(';').collect();
        let mut pairs = Vec::new();
        for at in 0..self.0.len().max(theirs.len()) {
            let ours = self.0.get(at).map_or("nothing", String::as_str);
            let theirs = theirs.get(at).copied().unwrap_or("nothing");
            if ours != theirs {
                pairs.push(format!("{ours} here and {theirs} there"));
            }
        }
        match pairs.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "this end and the peer at {at} differ: {}; use the same test and flags at both ends",
                pairs.join(", ")
            )
            .into()),
        }
    }
}

/// What may be shown of a peer's byte.
fn printable(byte: u8) -> char {
    if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_differences_are_named() {
        let ours = Terms::new("perf send-bw").with("-s", 100).with("-q", 1);
        assert!(ours.agree(&ours.to_bytes(), "10.0.0.1").is_ok());
        let theirs = Terms::new("perf send-bw").with("-s", 200).with("-q", 2);
        let said = ours.agree(&theirs.to_bytes(), "10.0.0.1").unwrap_err().to_string();
        assert!(said.contains("10.0.0.1 differ: -s 100 here and -s 200 there, -q 1 here and -q 2 there;"), "{said}");
        let said = ours.agree(&Terms::new("perf send-bw").to_bytes(), "peer").unwrap_err().to_string();
        assert!(said.contains("-q 1 here and nothing there"), "{said}");
        // Nothing of a peer's bytes reaches a terminal as more than a character.
        let said = ours.agree(&[0x1b; Terms::BYTES], "peer").unwrap_err().to_string();
        assert!(said.contains("and ????") && !said.contains('\u{1b}'), "{said}");
    }
}
