use std::fmt::Display;
use std::num::ParseIntError;

use uroce::time::Duration;

use crate::sim::random::Random;

/// Which host of a network sends how many bytes to which, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionMatrix {
    /// The number of hosts.
    pub hosts: usize,
    /// The flows, in any order.
    pub flows: Vec<MatrixFlow>,
}

/// A flow of a connection matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixFlow {
    /// The host that sends, from 0 on.
    pub from: usize,
    /// The host that receives, another one.
    pub to: usize,
    /// When it begins.
    pub start: Duration,
    /// How many bytes it has, at least 1.
    pub bytes: u64,
}

/// A text that is no connection matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct MatrixError {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// Upper bounds, for the memory of a run: hosts, and bytes of all flows together.
const HOSTS_MAX: usize = 250;
const BYTES_MAX: u64 = 1 << 30;

impl ConnectionMatrix {
    /// Each host sends `bytes` to another one, and none receives from two: a permutation that the seed decides.
    pub fn permutation(hosts: usize, bytes: u64, seed: u64) -> ConnectionMatrix {
        let mut random = Random::new(seed, 5);
        let mut to: Vec<usize> = (0..hosts).collect();
        // One cycle over all hosts, so that none sends to itself (Sattolo).
        for last in (1..hosts).rev() {
            to.swap(last, random.below(last as u64) as usize);
        }
        let flow = |(from, to)| MatrixFlow { from, to, start: Duration::ZERO, bytes };
        ConnectionMatrix { hosts, flows: to.into_iter().enumerate().map(flow).collect() }
    }

    /// All other hosts send `bytes` to the last one.
    pub fn incast(hosts: usize, bytes: u64) -> ConnectionMatrix {
        let flow = |from| MatrixFlow { from, to: hosts - 1, start: Duration::ZERO, bytes };
        ConnectionMatrix { hosts, flows: (0..hosts - 1).map(flow).collect() }
    }

    /// Reads the form of uet-htsim: `Nodes N`, `Connections N`, and for each flow `FROM->TO start µS size BYTES`. Triggers and
    /// failures are refused; identifiers and priorities have no effect.
    ///
    /// # Errors
    /// [`MatrixError`] for the first line of another form, and for hosts that are not there.
    pub fn read(text: &str) -> Result<ConnectionMatrix, MatrixError> {
        let mut matrix = ConnectionMatrix { hosts: 0, flows: Vec::new() };
        let mut announced = None;
        for (number, line) in text.lines().enumerate() {
            let wrong = |what: String| MatrixError { line: number + 1, what };
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                [] => {}
                ["Nodes", hosts] => matrix.hosts = whole(hosts).map_err(wrong)?,
                ["Connections", flows] => announced = Some(whole::<usize>(flows).map_err(wrong)?),
                [pair, fields @ ..] => {
                    let flow = flow(pair, fields).map_err(wrong)?;
                    if flow.from == flow.to || flow.from.max(flow.to) >= matrix.hosts {
                        return Err(wrong(format!("{pair} is no flow between two of {} hosts", matrix.hosts)));
                    }
                    matrix.flows.push(flow);
                }
            }
        }
        let bytes = matrix.flows.iter().fold(0, |sum: u64, flow| sum.saturating_add(flow.bytes));
        let end = |what| Err(MatrixError { line: text.lines().count(), what });
        match matrix.flows.len() {
            0 => end("there are no flows".to_owned()),
            found if announced.is_some_and(|announced| announced != found) => {
                end(format!("{found} flows instead of {}", announced.unwrap_or_default()))
            }
            _ if matrix.hosts > HOSTS_MAX => end(format!("{} hosts; at most {HOSTS_MAX} are played", matrix.hosts)),
            _ if bytes > BYTES_MAX => end(format!("{bytes} bytes; at most {BYTES_MAX} are played")),
            _ => Ok(matrix),
        }
    }

    /// The bytes of all flows.
    pub fn bytes(&self) -> u64 {
        self.flows.iter().map(|flow| flow.bytes).sum()
    }
}

/// A flow from `FROM->TO` and what follows.
fn flow(pair: &str, fields: &[&str]) -> Result<MatrixFlow, String> {
    let (from, to) = pair.split_once("->").ok_or_else(|| format!("`{pair}` instead of FROM->TO"))?;
    let mut flow = MatrixFlow { from: whole(from)?, to: whole(to)?, start: Duration::ZERO, bytes: 0 };
    for field in fields.chunks(2) {
        match field {
            ["start", us] => flow.start = Duration::from_micros(whole(us)?),
            ["size", bytes] => flow.bytes = whole(bytes)?,
            ["id" | "prio", _] => {}
            other => return Err(format!("`{}` is not played", other.join(" "))),
        }
    }
    if flow.bytes == 0 { Err("the flow has no size".to_owned()) } else { Ok(flow) }
}

fn whole<T: std::str::FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| quoted(text, &error))
}

fn quoted(text: &str, error: &impl Display) -> String {
    format!("`{text}`: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_who_sends_what_to_whom() {
        let text = "Nodes 4\nConnections 2\n0->3 id 1 start 0 size 2000000\n\n2->1 start 5 size 17 prio 2\n";
        let flow = |from, to, us, bytes| MatrixFlow { from, to, start: Duration::from_micros(us), bytes };
        let flows = vec![flow(0, 3, 0, 2_000_000), flow(2, 1, 5, 17)];
        assert_eq!(ConnectionMatrix::read(text), Ok(ConnectionMatrix { hosts: 4, flows }));
    }

    #[test]
    fn what_is_not_played_is_refused_with_its_line() {
        let error = |text: &str| ConnectionMatrix::read(text).unwrap_err().to_string();
        assert_eq!(error("Nodes 4\n0->3 trigger 1 size 2"), "line 2: `trigger 1` is not played");
        assert_eq!(error("Nodes 4\n0->4 size 2"), "line 2: 0->4 is no flow between two of 4 hosts");
        assert_eq!(error("Nodes 4\nConnections 2\n0->3 size 2"), "line 3: 1 flows instead of 2");
        assert_eq!(error("Nodes 4\n0->3 start 0"), "line 2: the flow has no size");
        assert_eq!(error("Nodes four"), "line 1: `four`: invalid digit found in string");
        assert_eq!(error(""), "line 0: there are no flows");
    }

    #[test]
    fn a_permutation_is_one_of_all_hosts_and_the_seeds_alone() {
        let of = |seed| ConnectionMatrix::permutation(32, 7, seed);
        let mut to: Vec<usize> = of(1).flows.iter().map(|flow| flow.to).collect();
        assert!(of(1).flows.iter().enumerate().all(|(host, flow)| flow.from == host && flow.to != host));
        to.sort_unstable();
        assert_eq!(to, (0..32).collect::<Vec<_>>());
        assert!(of(1) == of(1) && of(1) != of(2));
    }
}
