use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::congestion::Rate;
use crate::transport::{Class, Treatment};

use super::traffic_rule::{Cap, Known, Prefix, Rule};

/// Rules that decide on the class, the DSCP and the rate of queue pairs whose programs do not: a file in TOML
/// (docs/CLASSES.md).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficPolicy {
    /// The upper bound on the scavenger class of a device.
    scavenger_cap: Option<Cap>,
    rules: Vec<Rule>,
}

/// Why a policy was not taken: what is wrong, where, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrafficPolicyError {
    /// The file cannot be read.
    #[error("cannot read the policy {}: {reason}", file.display())]
    Unreadable {
        /// The path of the file.
        file: PathBuf,
        /// The error of the file system.
        reason: String,
    },
    /// The text is no policy.
    #[error("{}:{line}:{column}: {what}", file.display())]
    Wrong {
        /// The path of the file.
        file: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// The column, from 1 on, in characters.
        column: usize,
        /// What is wrong there, and what to write instead.
        what: String,
    },
    /// A cap is a share of a line whose rate nobody knows.
    #[error(
        "the policy has a cap in percent, and {device} reports no rate: write the cap as a rate, as in 500M or 2.5G"
    )]
    NoLineRate {
        /// The name of the device.
        device: String,
    },
}

/// What is wrong, and the bytes that it is about.
struct Wrong {
    at: Range<usize>,
    what: String,
}

const KEYS: &str = "scavenger_cap, or [[rule]] for a rule";
const RULE_KEYS: &str = "program, peer, port, first_message_min_bytes and first_message_max_bytes for what the rule is \
                         about, and class, dscp, cap and acknowledge_dscp for what it decides";

impl TrafficPolicy {
    /// Reads a policy from a file.
    ///
    /// # Errors
    /// [`TrafficPolicyError`] when the file cannot be read or is no policy.
    pub fn read(file: &Path) -> Result<TrafficPolicy, TrafficPolicyError> {
        match std::fs::read_to_string(file) {
            Ok(text) => TrafficPolicy::parse(&text, file),
            Err(error) => Err(TrafficPolicyError::Unreadable { file: file.to_owned(), reason: error.to_string() }),
        }
    }

    /// Reads a policy from a text; errors name it as `file`.
    ///
    /// # Errors
    /// [`TrafficPolicyError::Wrong`] for the first thing that is wrong.
    pub fn parse(text: &str, file: &Path) -> Result<TrafficPolicy, TrafficPolicyError> {
        let located = |Wrong { at, what }: Wrong| {
            let before = text.get(..at.start).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
            TrafficPolicyError::Wrong { file: file.to_owned(), line, column, what }
        };
        let table = DeTable::parse(text).map_err(|error| {
            let what = format!("this is no TOML: {}", error.message());
            located(Wrong { at: error.span().unwrap_or(0..0), what })
        })?;
        policy(table.get_ref()).map_err(located)
    }

    /// Checks that a device of this name and line rate can keep to all caps.
    ///
    /// # Errors
    /// [`TrafficPolicyError::NoLineRate`] when a cap is a share of a rate that is not known.
    pub fn check(&self, device: &str, line: Option<Rate>) -> Result<(), TrafficPolicyError> {
        let caps = self.rules.iter().map(|rule| rule.cap).chain([self.scavenger_cap]);
        match line.is_none() && caps.flatten().any(|cap| matches!(cap, Cap::Percent(_))) {
            true => Err(TrafficPolicyError::NoLineRate { device: device.to_owned() }),
            false => Ok(()),
        }
    }

    /// The upper bound on the scavenger class, on a line of that rate.
    pub(super) fn scavenger_cap(&self, line: Option<Rate>) -> Option<Rate> {
        self.scavenger_cap.and_then(|cap| cap.on(line))
    }

    /// Whether the first message of a queue pair can change what is decided for it.
    pub(super) fn asks_for_messages(&self) -> bool {
        self.rules.iter().any(Rule::asks_for_message)
    }

    /// What the first rule decides that is about such a queue pair; nothing without one.
    pub(super) fn treatment(&self, known: &Known<'_>, line: Option<Rate>) -> Treatment {
        self.rules.iter().find(|rule| rule.is_about(known)).map_or(Treatment::default(), |rule| rule.treatment(line))
    }
}

fn policy(table: &DeTable<'_>) -> Result<TrafficPolicy, Wrong> {
    let mut policy = TrafficPolicy::default();
    for (key, value) in sorted(table) {
        match key.get_ref().as_ref() {
            "scavenger_cap" => policy.scavenger_cap = Some(parsed(value)?),
            "rule" => {
                let DeValue::Array(rules) = value.get_ref() else {
                    return Err(wrong(value, "a rule begins with [[rule]], in double brackets"));
                };
                policy.rules = rules.iter().map(rule).collect::<Result<_, _>>()?;
            }
            other => return Err(wrong(key, format!("`{other}` is no key of a policy: use {KEYS}"))),
        }
    }
    Ok(policy)
}

fn rule(value: &Spanned<DeValue<'_>>) -> Result<Rule, Wrong> {
    let DeValue::Table(table) = value.get_ref() else {
        return Err(wrong(value, "a rule begins with [[rule]], in double brackets"));
    };
    let mut rule = Rule::default();
    for (key, value) in sorted(table) {
        match key.get_ref().as_ref() {
            "program" => rule.program = Some(text(value)?.to_owned()),
            "peer" => rule.peer = Some(parsed::<Prefix>(value)?),
            "port" => rule.port = Some(number(value, 1, u64::from(u16::MAX))? as u16),
            "first_message_min_bytes" => rule.message_min = Some(number(value, 0, 1 << 31)?),
            "first_message_max_bytes" => rule.message_max = Some(number(value, 0, 1 << 31)?),
            "class" => rule.class = Some(parsed::<Class>(value)?),
            "dscp" => rule.dscp = Some(number(value, 0, 63)? as u8),
            "cap" => rule.cap = Some(parsed::<Cap>(value)?),
            "acknowledge_dscp" => rule.acknowledge_dscp = Some(number(value, 0, 63)? as u8),
            other => return Err(wrong(key, format!("`{other}` is no key of a rule: use {RULE_KEYS}"))),
        }
    }
    match rule {
        Rule { class: None, dscp: None, cap: None, acknowledge_dscp: None, .. } => {
            Err(wrong(value, "the rule decides nothing: add class, dscp, cap or acknowledge_dscp"))
        }
        Rule { message_min: Some(min), message_max: Some(max), .. } if min > max => {
            Err(wrong(value, format!("no message has at least {min} and at most {max} bytes: exchange the two")))
        }
        rule => Ok(rule),
    }
}

/// Keys and values in the order of the text, so that the first error is the first one there.
fn sorted<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn wrong<T>(at: &Spanned<T>, what: impl Into<String>) -> Wrong {
    Wrong { at: at.span(), what: what.into() }
}

fn text<'a>(value: &'a Spanned<DeValue<'_>>) -> Result<&'a str, Wrong> {
    value.get_ref().as_str().ok_or_else(|| wrong(value, "write a text in double quotes"))
}

fn parsed<T: FromStr<Err: Display>>(value: &Spanned<DeValue<'_>>) -> Result<T, Wrong> {
    text(value)?.parse().map_err(|error: T::Err| wrong(value, error.to_string()))
}

fn number(value: &Spanned<DeValue<'_>>, min: u64, max: u64) -> Result<u64, Wrong> {
    let found = value.get_ref().as_integer().and_then(|found| {
        let digits = found.as_str();
        u64::from_str_radix(digits, found.radix()).ok()
    });
    let found = found.filter(|found| (min..=max).contains(found));
    found.ok_or_else(|| wrong(value, format!("write a whole number from {min} to {max}")))
}

/// The names of the running program: of its file, and as it was called.
pub(super) fn program_names() -> Vec<String> {
    let file = std::env::current_exe().ok();
    let called = std::env::args_os().next().map(PathBuf::from);
    let name = |path: PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    file.into_iter().chain(called).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TrafficPolicy, TrafficPolicyError> {
        TrafficPolicy::parse(text, Path::new("policy.toml"))
    }

    const NOTHING: Known<'_> = Known { programs: &[], peer: None, port: None, message: None };

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = parse(
            r#"
            scavenger_cap = "20%"
            [[rule]]
            program = "sync"
            class = "scavenger"
            cap = "500M"
            [[rule]]
            peer = "10.7.0.0/16"
            port = 4420
            class = "urgent"
            dscp = 0x1a
            [[rule]]
            first_message_max_bytes = 4_096
            class = "urgent"
            acknowledge_dscp = 48
            [[rule]]
            class = "bulk"
            cap = "50%"
            "#,
        )
        .unwrap();
        let line = Some(Rate::from_bits(10_000_000_000));
        let decides = |known: &Known<'_>| policy.treatment(known, line);
        let bulk =
            Treatment { class: Some(Class::Bulk), cap: Some(Rate::from_bits(5_000_000_000)), ..Treatment::default() };
        assert_eq!(decides(&NOTHING), bulk);
        let programs = ["python3".to_owned(), "sync".to_owned()];
        let sync = Treatment {
            class: Some(Class::Scavenger),
            cap: Some(Rate::from_bits(500_000_000)),
            ..Treatment::default()
        };
        let peer = Some("10.7.9.9".parse().unwrap());
        assert_eq!(decides(&Known { programs: &programs, peer, port: Some(4420), message: Some(1) }), sync);
        let urgent = Treatment { class: Some(Class::Urgent), dscp: Some(26), ..Treatment::default() };
        assert_eq!(decides(&Known { peer, port: Some(4420), ..NOTHING }), urgent);
        assert_eq!(decides(&Known { peer, ..NOTHING }), bulk, "the port is not known");
        let short = Treatment { class: Some(Class::Urgent), acknowledge_dscp: Some(48), ..Treatment::default() };
        assert_eq!(decides(&Known { message: Some(4096), ..NOTHING }), short);
        assert_eq!(decides(&Known { message: Some(4097), ..NOTHING }), bulk);
        assert_eq!(policy.scavenger_cap(line), Some(Rate::from_bits(2_000_000_000)));
        assert!(policy.asks_for_messages());
        assert_eq!(parse("").unwrap().treatment(&NOTHING, line), Treatment::default());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_a_remedy() {
        for (text, says) in [
            ("scavenger_cap = 20%", "policy.toml:1:"),
            ("a", "policy.toml:1:2: this is no TOML"),
            (
                "[[rule]]\nclass = \"high\"",
                "policy.toml:2:9: `high` is not a class: use urgent, normal, bulk or scavenger",
            ),
            ("\n[[rule]]\n  clas = \"bulk\"", "policy.toml:3:3: `clas` is no key of a rule: use program, peer, port,"),
            (
                "[[rules]]\nclass = \"bulk\"",
                "policy.toml:1:3: `rules` is no key of a policy: use scavenger_cap, or [[rule]]",
            ),
            ("[rule]\nclass = \"bulk\"", "policy.toml:1:1: a rule begins with [[rule]], in double brackets"),
            ("[[rule]]\ndscp = 64", "policy.toml:2:8: write a whole number from 0 to 63"),
            ("[[rule]]\ndscp = \"46\"", "policy.toml:2:8: write a whole number from 0 to 63"),
            ("[[rule]]\nport = -1\nclass = 1", "policy.toml:2:8: write a whole number from 1 to 65535"),
            ("[[rule]]\nclass = 1", "policy.toml:2:9: write a text in double quotes"),
            (
                "[[rule]]\ncap = \"0%\"",
                "policy.toml:2:7: `0%` is no cap: write percent of the line, as in 20%, or a rate",
            ),
            (
                "[[rule]]\ncap = \"fast\"",
                "policy.toml:2:7: `fast` is no cap: write percent of the line, as in 20%, or a rate",
            ),
            ("[[rule]]\npeer = \"10.7.0.0/33\"\n", "policy.toml:2:8: `10.7.0.0/33` is no peer: write an address, or"),
            ("[[rule]]\npeer = \"host\"", "policy.toml:2:8: `host` is no peer: write an address, or a prefix"),
            ("[[rule]]\nprogram = \"x\"\n", "policy.toml:1:1: the rule decides nothing: add class, dscp, cap or"),
            (
                "[[rule]]\nclass = \"bulk\"\nfirst_message_min_bytes = 2\nfirst_message_max_bytes = 1",
                "policy.toml:1:1: no message has at least 2 and at most 1 bytes: exchange the two",
            ),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.starts_with(says), "{text:?}: {error}");
        }
        let error = TrafficPolicy::read(Path::new("/nowhere/policy.toml")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the policy /nowhere/policy.toml: No such file"), "{error}");
    }

    #[test]
    fn percent_needs_a_line_of_a_known_rate() {
        let percent = parse("[[rule]]\ncap = \"20%\"").unwrap();
        assert_eq!(
            percent.check("lo", None).unwrap_err().to_string(),
            "the policy has a cap in percent, and lo reports no rate: write the cap as a rate, as in 500M or 2.5G"
        );
        assert_eq!(percent.check("eth0", Some(Rate::from_bits(1 << 30))), Ok(()));
        assert_eq!(parse("scavenger_cap = \"2G\"").unwrap().check("lo", None), Ok(()));
    }
}
