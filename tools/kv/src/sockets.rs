//! What `ss -tin` says of a program's TCP connections.

/// The connections that carry a transfer's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSockets {
    /// How many.
    pub count: usize,
    /// Their congestion controls, each once.
    pub controls: Vec<String>,
}

/// Of all that was sent, what a connection must have carried to be one of data: others only say that requests are done.
const LEAST_SHARE: f64 = 0.01;

/// Reads what `ss -Htin` printed at the side that sends; the connection at `control_port` is the programs' own.
pub fn data_sockets(text: &str, control_port: u16) -> DataSockets {
    let own = format!(":{control_port}");
    let connections: Vec<(u64, String)> = connections(text)
        .filter(|(line, _)| !line.split_whitespace().any(|word| word.ends_with(&own)))
        .map(|(_, about)| sent_and_control(about))
        .collect();
    let total: u64 = connections.iter().map(|(sent, _)| sent).sum();
    let carries = |sent: u64| sent > 0 && sent as f64 >= LEAST_SHARE * total as f64;
    let data: Vec<String> =
        connections.into_iter().filter(|(sent, _)| carries(*sent)).map(|(_, control)| control).collect();
    let mut controls = data.clone();
    controls.sort();
    controls.dedup();
    DataSockets { count: data.len(), controls }
}

/// Each established connection's line, and the indented one after it.
fn connections(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let pairs: Vec<(&str, &str)> = lines.windows(2).map(|pair| (pair[0], pair[1])).collect();
    pairs.into_iter().filter(|(line, about)| line.starts_with("ESTAB") && about.starts_with([' ', '\t']))
}

/// Bytes that were sent, and the congestion control, which ss names first.
fn sent_and_control(about: &str) -> (u64, String) {
    let words = || about.split_whitespace();
    let sent = words().find_map(|word| word.strip_prefix("bytes_sent:")).and_then(|sent| sent.parse().ok());
    // Before it are words of options: `ts sack cubic wscale:7,7`.
    let control = words().take_while(|word| !word.contains(':')).last().unwrap_or("unknown");
    (sent.unwrap_or(0), control.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_told_from_control() {
        let text = "ESTAB 0 0 10.79.0.1:41000 10.79.0.2:18700\n\t ts sack bbr wscale:7,7 rto:204 bytes_sent:90000000\n\
                    ESTAB 0 9 10.79.0.1:41002 10.79.0.2:38000\n\t ts sack cubic wscale:7,7 rto:204 bytes_sent:50000000 bytes_acked:5\n\
                    ESTAB 0 9 10.79.0.1:41004 10.79.0.2:38000\n\t ts sack cubic wscale:7,7 rto:204 bytes_sent:40000000\n\
                    ESTAB 0 0 10.79.0.1:41006 10.79.0.2:38000\n\t ts sack bbr wscale:7,7 rto:204 bytes_sent:300\n\
                    LISTEN 0 9 0.0.0.0:1 0.0.0.0:*\n\t cubic cwnd:10\n";
        assert_eq!(data_sockets(text, 18700), DataSockets { count: 2, controls: vec!["cubic".into()] });
        assert_eq!(data_sockets("", 1), DataSockets { count: 0, controls: vec![] });
    }
}
