//! Which packets of a capture are meant: the options that `decode` and `replay` share.

mod expression;
mod field;
mod token;

use std::fmt::Write as _;
use std::str::FromStr;

use uroce::time::Duration;

use crate::report::Report;

use expression::Expression;

/// Of several options all must hold.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which packets")]
pub(crate) struct Filter {
    /// Only packets to or from this queue pair; several: of any of them.
    ///
    /// Packets of a connection do not name their sender: it is known from the first answer on.
    #[arg(long, value_name = "QPN", value_parser = number)]
    qp: Vec<u32>,
    /// Only NAKs, RNR NAKs included.
    #[arg(long)]
    nak: bool,
    /// Only packets that are malformed, or whose ICRC is wrong.
    #[arg(long)]
    bad: bool,
    /// From this frame on (`100`), or this time after the first frame (`1.5s`).
    #[arg(long, value_name = "FRAME|SECONDS")]
    from: Option<Bound>,
    /// Up to this frame, or this time, inclusive.
    #[arg(long, value_name = "FRAME|SECONDS")]
    to: Option<Bound>,
    /// Only packets of which this is true, as in Wireshark: 'bth.opcode == RC_ACK && psn > 100 && !nak'.
    ///
    /// Comparisons (== != > >= < <=, eq ne gt ge lt le), `contains` for text, && || ! (and or not) and parentheses. A
    /// field by itself means that the packet has it, or that it is true. A comparison with a field that the packet does
    /// not have is false. The fields are listed below.
    #[arg(short = 'Y', long = "filter", value_name = "EXPRESSION", value_parser = Expression::from_str)]
    expression: Option<Expression>,
}

/// An end of the range of packets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    Frame(u64),
    After(Duration),
}

impl Filter {
    /// Whether it leaves anything out.
    pub(crate) fn is_empty(&self) -> bool {
        let Filter { qp, nak, bad, from, to, expression } = self;
        qp.is_empty() && !nak && !bad && from.is_none() && to.is_none() && expression.is_none()
    }

    /// Whether it asks who sends to whom, which is known only after the first answers.
    pub(crate) fn asks_for_queue_pairs(&self) -> bool {
        !self.qp.is_empty() || self.expression.as_ref().is_some_and(|expression| expression.uses("source_qpn"))
    }

    pub(crate) fn matches(&self, report: &Report) -> bool {
        let Filter { qp, nak, bad, from, to, expression } = self;
        let since_start = report.since_start;
        let is_of = |qpn: &u32| report.qpn == Some(*qpn) || report.source() == Some(*qpn);
        (qp.is_empty() || qp.iter().any(is_of))
            && (!nak || report.is_nak())
            && (!bad || report.is_bad())
            && from.is_none_or(|from| match from {
                Bound::Frame(frame) => report.frame >= frame,
                Bound::After(time) => since_start >= time,
            })
            && to.is_none_or(|to| !to.is_over(report.frame, since_start))
            && expression.as_ref().is_none_or(|expression| expression.holds(report))
    }

    /// Whether no later frame can match.
    pub(crate) fn is_over(&self, frame: u64, since_start: Duration) -> bool {
        // Times can go back in a capture.
        matches!(self.to, Some(to @ Bound::Frame(_)) if to.is_over(frame, since_start))
    }
}

impl Bound {
    fn is_over(self, frame: u64, since_start: Duration) -> bool {
        match self {
            Bound::Frame(last) => frame > last,
            Bound::After(time) => since_start > time,
        }
    }
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Bound, String> {
        match text.strip_suffix('s') {
            Some(seconds) => {
                let time = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                time.map(Bound::After)
            }
            None => text.parse().ok().map(Bound::Frame),
        }
        .ok_or_else(|| "the number of a frame, or seconds as in 1.5s".to_owned())
    }
}

fn number(text: &str) -> Result<u32, String> {
    let value = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    value.filter(|value| *value < 1 << 24).ok_or_else(|| "a queue pair number of 24 bits, as 66 or 0x42".to_owned())
}

/// The end of the help texts: the examples of the command, and the fields of expressions.
pub(crate) fn after_help(examples: &str) -> String {
    let mut text =
        format!("Examples:\n{examples}\nFields of -Y, named as in `decode --json`, and as Wireshark names them:\n");
    for field in field::FIELDS {
        let _ = writeln!(text, "  {:<34} {}", field.names.join(", "), field.about);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_frames_or_seconds() {
        assert_eq!("17".parse(), Ok(Bound::Frame(17)));
        assert_eq!("1.5s".parse(), Ok(Bound::After(Duration::from_millis(1500))));
        for wrong in ["", "s", "-1", "-1s", "1e400s", "NaNs", "1ms", "0x10"] {
            assert!(wrong.parse::<Bound>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn queue_pairs_are_numbers_of_24_bits() {
        assert_eq!((number("66"), number("0x42")), (Ok(66), Ok(66)));
        assert!(["", "0x", "0x1000000", "16777216", "-1", "qp"].iter().all(|wrong| number(wrong).is_err()));
    }
}
