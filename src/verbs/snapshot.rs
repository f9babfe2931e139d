use std::fmt::Write;
use std::time::Duration;

use crate::congestion::FlowStatus;
use crate::path::PathStatus;
use crate::time::Instant;
use crate::transport::{Counters, QueuePairStatus};

use super::Context;

/// What a device does and counted, and how its queue pairs stand, at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken.
    pub now: Instant,
    /// The name of the interface, or of the address, that was opened.
    pub device: String,
    /// The mode of the link, in one word.
    pub link: String,
    /// All counters of the device, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// Its queue pairs, by number.
    pub queue_pairs: Vec<QueuePairStatus>,
}

impl Context {
    /// What the device does and counted, and how its queue pairs stand now. It takes the engine's lock once.
    pub fn snapshot(&self) -> Snapshot {
        self.engine().without_sending(|core, now| Snapshot {
            now,
            device: self.device().name.clone(),
            link: core.link.mode(),
            counters: core.counters(),
            queue_pairs: core.endpoint.queue_pair_status().collect(),
        })
    }
}

impl Snapshot {
    /// As one line of JSON: times in nanoseconds, rates in bits a second, and only counters that are not 0.
    pub fn to_json(&self) -> String {
        object(&[
            ("process", std::process::id().to_string()),
            ("program", quoted(&program())),
            ("device", quoted(&self.device)),
            ("link", quoted(&self.link)),
            ("now_ns", self.now.as_ns().to_string()),
            ("counters", counters(self.counters.iter().copied())),
            ("queue_pairs", list(self.queue_pairs.iter().map(queue_pair))),
        ])
    }
}

/// What the kernel calls this program.
fn program() -> String {
    let name = std::fs::read("/proc/self/comm").unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

fn queue_pair(status: &QueuePairStatus) -> String {
    let QueuePairStatus {
        qpn,
        service,
        state,
        class,
        peer,
        recovery,
        congestion,
        paths,
        flow: of_flow,
        counters: counts,
    } = status;
    let peer = peer
        .map(|(address, qpn)| object(&[("address", quoted(&address.to_string())), ("qpn", qpn.value().to_string())]));
    object(&[
        ("qpn", qpn.value().to_string()),
        ("service", quoted(&service.to_string())),
        ("state", quoted(&state.to_string())),
        ("class", quoted(&class.to_string())),
        ("peer", or_null(peer)),
        ("recovery", or_null(recovery.map(quoted))),
        ("controller", quoted(congestion.name())),
        ("paths", list(paths.iter().map(path))),
        ("flow", or_null(of_flow.as_ref().map(flow))),
        ("counters", counters(Counters::list(counts))),
    ])
}

fn path(status: &PathStatus) -> String {
    let PathStatus { condition, round_trip } = status;
    object(&[("condition", quoted(&condition.to_string())), ("round_trip_ns", or_null(round_trip.map(ns)))])
}

fn flow(status: &FlowStatus) -> String {
    let FlowStatus {
        rate,
        window_bytes,
        in_flight_bytes,
        round_trip,
        shortest,
        delivered_bytes,
        lost_bytes,
        gives_way,
    } = status;
    object(&[
        ("rate_bps", or_null(rate.map(|rate| rate.bytes().saturating_mul(8).to_string()))),
        ("window_bytes", window_bytes.to_string()),
        ("in_flight_bytes", in_flight_bytes.to_string()),
        ("round_trip_ns", or_null(round_trip.map(ns))),
        ("shortest_ns", or_null(shortest.map(ns))),
        ("delivered_bytes", delivered_bytes.to_string()),
        ("lost_bytes", lost_bytes.to_string()),
        ("gives_way", gives_way.to_string()),
    ])
}

fn counters(all: impl Iterator<Item = (&'static str, u64)>) -> String {
    let counted: Vec<_> = all.filter(|(_, count)| *count > 0).map(|(name, count)| (name, count.to_string())).collect();
    object(&counted)
}

fn ns(time: Duration) -> String {
    time.as_nanos().to_string()
}

fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{}:{value}", quoted(name))).collect();
    format!("{{{}}}", fields.join(","))
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

fn or_null(value: Option<String>) -> String {
    value.unwrap_or_else(|| "null".to_owned())
}

/// A string as JSON has it (RFC 8259, 7).
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\0'..' ' => write!(quoted, "\\u{:04x}", u32::from(letter)).expect("a string takes everything"),
            _ => quoted.push(letter),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::CongestionControl;
    use crate::path::PathCondition;
    use crate::transport::{Class, Service, State};
    use crate::wire::Qpn;

    #[test]
    fn a_snapshot_is_one_line_of_json() {
        let flow = FlowStatus {
            rate: Some(crate::congestion::Rate::from_bits(8_000_000)),
            window_bytes: 300_000,
            in_flight_bytes: 4,
            round_trip: Some(Duration::from_micros(21)),
            shortest: None,
            delivered_bytes: 5,
            lost_bytes: 6,
            gives_way: true,
        };
        let status = QueuePairStatus {
            qpn: Qpn::new(17),
            service: Service::Rc,
            state: State::ReadyToSend,
            class: Class::Bulk,
            peer: Some(("fe80::1".parse().unwrap(), Qpn::new(18))),
            recovery: Some("selective"),
            congestion: CongestionControl::Steady,
            paths: vec![PathStatus { condition: PathCondition::Dark, round_trip: Some(Duration::from_nanos(7)) }],
            flow: Some(flow),
            counters: Counters { sent_pkts: 3, ..Counters::default() },
        };
        let snapshot = Snapshot {
            now: Instant::from_ns(9),
            device: "a\"b\\c\n".to_owned(),
            link: "udp".to_owned(),
            counters: vec![("tx_bytes", 0), ("rx_bytes", 1)],
            queue_pairs: vec![status],
        };
        let (_, text) = snapshot.to_json().split_once("\"device\"").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert_eq!(
            text,
            r#":"a\"b\\c\u000a","link":"udp","now_ns":9,"counters":{"rx_bytes":1},"queue_pairs":[{"qpn":17,"#
                .to_owned()
                + r#""service":"RC","state":"RTS","class":"bulk","peer":{"address":"fe80::1","qpn":18},"#
                + r#""recovery":"selective","controller":"steady","#
                + r#""paths":[{"condition":"dark","round_trip_ns":7}],"flow":{"rate_bps":8000000,"#
                + r#""window_bytes":300000,"in_flight_bytes":4,"round_trip_ns":21000,"shortest_ns":null,"#
                + r#""delivered_bytes":5,"lost_bytes":6,"gives_way":true},"counters":{"sent_pkts":3}}]}"#
        );
    }
}
