use serde_json::Value;
use uroce::verbs::INTERVAL_REMARKS;

/// What an interval told of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Look {
    /// Seconds from the program's first look to the end of the interval.
    pub elapsed_s: f64,
    /// Bits of frames a second.
    pub sent_bps: f64,
    pub received_bps: f64,
    /// Bytes that can be in flight, and those that were.
    pub window_bytes: Option<f64>,
    pub in_flight_bytes: Option<f64>,
    /// The smoothed round trip and the shortest one, in seconds.
    pub round_trip_s: Option<f64>,
    pub shortest_s: Option<f64>,
    /// What else happened, by the names of [`INTERVAL_REMARKS`], how often.
    pub remarks: [u64; INTERVAL_REMARKS.len()],
}

/// Why no picture can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LookError {
    /// No line tells of an interval.
    #[error("no line is of an interval: `--interval 0.1` has perf, pingpong and run print them")]
    None,
    /// A line that tells of an interval has something else where a number is expected.
    #[error("line {0} is of an interval, but cannot be read")]
    Line(usize),
    /// The lines are of several programs; holds the first two.
    #[error("the lines are of several programs, {0} and {1}: keep those of one (grep)")]
    Several(String, String),
}

impl Look {
    /// Reads all lines of intervals, as JSON or for people. Intervals begin anew where a program began anew.
    pub fn all(text: &str) -> Result<Vec<Look>, LookError> {
        let mut looks: Vec<Look> = Vec::new();
        let mut program: Option<String> = None;
        for (number, line) in text.lines().enumerate() {
            let (of, look) = match (line.trim_start().starts_with('{'), line.split_once(" s: out ")) {
                (true, _) => match Look::from_json(line) {
                    Some(look) => (String::new(), look),
                    None => continue,
                },
                (false, Some((head, rest))) => match head.rsplit_once(' ') {
                    Some((of, elapsed)) => (of.to_owned(), Look::from_text(elapsed, rest)),
                    None => continue,
                },
                (false, None) => continue,
            };
            let look = look.ok_or(LookError::Line(number + 1))?;
            let before = program.get_or_insert_with(|| of.clone());
            if *before != of {
                return Err(LookError::Several(before.clone(), of));
            }
            looks.push(look);
        }
        if looks.is_empty() { Err(LookError::None) } else { Ok(looks) }
    }

    /// The look of a line of JSON: `None` when it is of something else, `Some(None)` when it lacks something.
    fn from_json(line: &str) -> Option<Option<Look>> {
        let value: Value = serde_json::from_str(line).ok()?;
        (value["interval"] == true).then(|| {
            let number = |name: &str| value[name].as_f64();
            let grown = |names: &[&str]| names.iter().filter_map(|name| value["counters"][name].as_u64()).sum();
            Some(Look {
                elapsed_s: number("elapsed_s")?,
                sent_bps: number("sent_bps")?,
                received_bps: number("received_bps")?,
                window_bytes: number("window_bytes"),
                in_flight_bytes: number("in_flight_bytes"),
                round_trip_s: number("rtt_ns").map(|ns| ns / 1e9),
                shortest_s: number("shortest_rtt_ns").map(|ns| ns / 1e9),
                remarks: INTERVAL_REMARKS.map(|(_, names)| grown(names)),
            })
        })
    }

    /// The look of a line for people: what stands before and after « s: out ».
    fn from_text(elapsed: &str, rest: &str) -> Option<Look> {
        let mut look = Look { elapsed_s: elapsed.parse().ok()?, ..Look::default() };
        for (index, part) in rest.split(", ").enumerate() {
            let words: Vec<&str> = part.split(' ').collect();
            match words[..] {
                [rate, "Mb/s"] if index == 0 => look.sent_bps = 1e6 * rate.parse::<f64>().ok()?,
                ["in", rate, "Mb/s"] => look.received_bps = 1e6 * rate.parse::<f64>().ok()?,
                ["window", bytes, "kB"] => look.window_bytes = Some(1e3 * bytes.parse::<f64>().ok()?),
                ["in", "flight", bytes, "kB"] => look.in_flight_bytes = Some(1e3 * bytes.parse::<f64>().ok()?),
                ["round", "trip", time, "ms"] => look.round_trip_s = Some(1e-3 * time.parse::<f64>().ok()?),
                [time, "ms", "without", "queues"] => look.shortest_s = Some(1e-3 * time.parse::<f64>().ok()?),
                [name, count] => {
                    let of = INTERVAL_REMARKS.iter().position(|(remark, _)| *remark == name)?;
                    look.remarks[of] = count.parse().ok()?;
                }
                _ => return None,
            }
        }
        Some(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_and_without_json() {
        let text = "uroce: eth0, xdp\nuroce: 0.5 s: out 2.0 Mb/s, in 0.1 Mb/s, window 600 kB, in flight 500 kB, round trip \
                    20.500 ms, 20.000 ms without queues, dropped 2\nuroce: 1.0 s: out 3.0 Mb/s, in 0.2 Mb/s\n";
        let json = "{\"schema\":\"uroce.interval/1\",\"interval\":true,\"elapsed_s\":0.5,\"seconds\":0.5,\"sent_bps\":2e6,\
                    \"received_bps\":1e5,\"window_bytes\":600000,\"in_flight_bytes\":500000,\"rtt_ns\":20500000,\
                    \"shortest_rtt_ns\":20000000,\"counters\":{\"rx_ring_full\":2,\"tx_bytes\":7}}\n{\"op\":\"write\"}\n{\n";
        let looks = Look::all(text).unwrap();
        let first = &looks[0];
        assert_eq!((first.elapsed_s, first.sent_bps, first.remarks), (0.5, 2e6, [0, 0, 0, 2]));
        assert_eq!((first.window_bytes, first.in_flight_bytes), (Some(600e3), Some(500e3)));
        assert!((first.round_trip_s.unwrap() - 0.0205).abs() < 1e-9 && (first.shortest_s.unwrap() - 0.02).abs() < 1e-9);
        assert_eq!((looks.len(), looks[1].window_bytes, looks[1].received_bps), (2, None, 2e5));
        let of_json = Look::all(json).unwrap();
        assert_eq!((of_json.len(), of_json[0].remarks, of_json[0].sent_bps), (1, [0, 0, 0, 2], 2e6));
        assert_eq!(of_json[0].in_flight_bytes, first.in_flight_bytes);
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_line() {
        assert_eq!(Look::all("nothing\n{\"op\":1}\n"), Err(LookError::None));
        assert_eq!(Look::all("\nuroce: x s: out 2.0 Mb/s, in 0.1 Mb/s\n"), Err(LookError::Line(2)));
        assert_eq!(Look::all("uroce: 1.0 s: out 2.0 Mb/s, burnt 7\n"), Err(LookError::Line(1)));
        assert_eq!(Look::all("{\"interval\":true}"), Err(LookError::Line(1)));
        let two = "uroce[1]: 1.0 s: out 2.0 Mb/s\nuroce[2]: 1.0 s: out 2.0 Mb/s\n";
        assert_eq!(Look::all(two), Err(LookError::Several("uroce[1]:".into(), "uroce[2]:".into())));
    }
}
