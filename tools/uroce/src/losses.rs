use uroce::verbs::{Context, DROP_COUNTERS};

/// What a test lost and sent again, by the device's counters from its beginning on.
pub struct Losses(Vec<(&'static str, u64)>);

/// What the line says beside the retransmitted packets, when it is not zero: a name, and the counters that add up to it.
const MORE: [(&str, &[&str]); 3] = [
    ("duplicates", &["duplicate_request"]),
    ("RNR NAKs", &["rcvd_rnr_err", "send_rnr_err"]),
    ("dropped", &DROP_COUNTERS),
];

impl Losses {
    /// Begins to count.
    pub fn begin(context: &Context) -> Losses {
        Losses(context.counters())
    }

    /// Says on stderr what was lost and retransmitted since, if anything was.
    pub fn tell(&self, context: &Context) {
        if let Some(line) = describe(&self.0, &context.counters()) {
            eprintln!("uroce: {line}");
        }
    }
}

/// `retransmitted 24 of 5208 packets (0.5 %), duplicates 3, RNR NAKs 2`; `None` when all of it is zero.
fn describe(before: &[(&'static str, u64)], now: &[(&'static str, u64)]) -> Option<String> {
    let of = |counters: &[(&str, u64)], name: &str| counters.iter().find(|(is, _)| *is == name).map_or(0, |(_, n)| *n);
    let grown = |name: &str| of(now, name).saturating_sub(of(before, name));
    let (retransmitted, sent) = (grown("retransmitted"), grown("sent_pkts"));
    let mut words = Vec::new();
    if retransmitted > 0 {
        let percent = 100.0 * retransmitted as f64 / sent.max(1) as f64;
        words.push(format!("retransmitted {retransmitted} of {sent} packets ({} %)", digits(percent)));
    }
    for (name, counters) in MORE {
        let sum: u64 = counters.iter().map(|name| grown(name)).sum();
        if sum > 0 {
            words.push(format!("{name} {sum}"));
        }
    }
    (!words.is_empty()).then(|| words.join(", "))
}

/// A percentage with as many digits as tell it from zero.
fn digits(percent: f64) -> String {
    match percent {
        ..0.01 => format!("{percent:.4}"),
        0.01..0.1 => format!("{percent:.2}"),
        _ => format!("{percent:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_lost_meanwhile_is_told() {
        let before = [("sent_pkts", 100), ("retransmitted", 1), ("duplicate_request", 0), ("rcvd_rnr_err", 0)];
        assert_eq!(describe(&before, &before), None);
        let mut now = before;
        now[0].1 = 5308;
        assert_eq!(describe(&before, &now), None);
        (now[1].1, now[2].1, now[3].1) = (25, 3, 2);
        let line = describe(&before, &now).unwrap();
        assert_eq!(line, "retransmitted 24 of 5208 packets (0.5 %), duplicates 3, RNR NAKs 2");
        (now[0].1, now[1].1, now[2].1, now[3].1) = (1_000_100, 2, 0, 0);
        assert_eq!(describe(&before, &now).unwrap(), "retransmitted 1 of 1000000 packets (0.0001 %)");
    }
}
