//! `--metrics`: the counters of running programs in OpenMetrics text, over HTTP.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::thread;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::Failure;
use crate::running::{Look, count};

/// What each counter means.
const TEXTS: &str = include_str!("../../../docs/COUNTERS.md");

/// The version of the format in which it is answered.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves `http://ADDRESS/metrics` from a thread until the process ends.
///
/// # Errors
/// When the address cannot be listened on.
pub(crate) fn serve(address: SocketAddr) -> Result<(), Failure> {
    let server = Server::http(address).map_err(|error| format!("cannot serve metrics on {address}: {error}"))?;
    thread::Builder::new().name("uroce-metrics".to_owned()).spawn(move || {
        for request in server.incoming_requests() {
            // Who has gone gets no answer.
            let _ = answer(request);
        }
    })?;
    eprintln!("uroce: metrics at http://{address}/metrics");
    Ok(())
}

fn answer(request: Request) -> std::io::Result<()> {
    let path = request.url().split('?').next().unwrap_or_default();
    match (request.method(), path) {
        (Method::Get | Method::Head, "/" | "/metrics") => {}
        (Method::Get | Method::Head, _) => {
            return request.respond(Response::from_string("metrics are at /metrics\n").with_status_code(404));
        }
        _ => return request.respond(Response::from_string("use GET\n").with_status_code(405)),
    }
    match Look::now(None) {
        Ok(look) => {
            let header = Header::from_bytes("Content-Type", CONTENT_TYPE).expect("letters that a header may have");
            request.respond(Response::from_string(exposition(&look)).with_header(header))
        }
        Err(error) => request.respond(Response::from_string(format!("{error}\n")).with_status_code(500)),
    }
}

/// The text of all counters of all devices.
fn exposition(look: &Look) -> String {
    let mut registry = Registry::with_prefix("uroce");
    registry.register_collector(Box::new(Devices(look.devices().cloned().collect())));
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("a string takes everything");
    out
}

/// The meaning of a counter: the second column of its row in docs/COUNTERS.md, as plain text.
fn meaning(counter: &str) -> Option<String> {
    let sent = counter.replace("fault_rx_", "fault_tx_");
    let name = format!("| `{sent}` |");
    let row = TEXTS.lines().find_map(|line| line.strip_prefix(&name))?;
    Some(row.split('|').next()?.trim().replace('`', ""))
}

/// The devices of running programs.
#[derive(Debug)]
struct Devices(Vec<Value>);

/// A number of a queue pair that goes up and down: its name, its unit, what it is, the field of its flow, and what that is divided by.
const GAUGES: [(&str, Unit, &str, &str, f64); 4] = [
    ("queue_pair_window", Unit::Bytes, "upper bound on the bytes in flight", "window_bytes", 1.0),
    ("queue_pair_in_flight", Unit::Bytes, "bytes in flight", "in_flight_bytes", 1.0),
    ("queue_pair_round_trip", Unit::Seconds, "smoothed round trip", "round_trip_ns", 1e9),
    ("queue_pair_shortest_round_trip", Unit::Seconds, "round trip without queues", "shortest_ns", 1e9),
];

/// The counters of a queue pair that are told apart from its device's.
const OF_QUEUE_PAIRS: [&str; 4] = ["sent_bytes", "rcvd_bytes", "sent_pkts", "retransmitted"];

impl Devices {
    /// The queue pairs of all devices, with their labels.
    fn queue_pairs(&self) -> impl Iterator<Item = ([(&'static str, String); 6], &Value)> {
        self.0.iter().flat_map(|device| {
            let pairs = device["queue_pairs"].as_array().map(Vec::as_slice).unwrap_or_default();
            pairs.iter().map(|pair| {
                let [pid, program, name, link] = labels(device);
                let peer = pair["peer"]["address"].as_str().unwrap_or_default().to_owned();
                ([pid, program, name, link, ("qpn", count(&pair["qpn"]).to_string()), ("peer", peer)], pair)
            })
        })
    }
}

fn labels(device: &Value) -> [(&'static str, String); 4] {
    let text = |name: &str| device[name].as_str().unwrap_or_default().to_owned();
    let pid = count(&device["process"]).to_string();
    [("pid", pid), ("program", text("program")), ("device", text("device")), ("link", text("link"))]
}

impl Collector for Devices {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut counters: BTreeMap<&str, Vec<(&Value, u64)>> = BTreeMap::new();
        for device in &self.0 {
            for (name, value) in device["counters"].as_object().into_iter().flatten() {
                counters.entry(name).or_default().push((device, count(value)));
            }
        }
        for (name, values) in counters {
            let help = meaning(name).unwrap_or_default();
            let mut family = encoder.encode_descriptor(name, &help, None, MetricType::Counter)?;
            for (device, value) in values {
                ConstCounter::new(value).encode(family.encode_family(&labels(device))?)?;
            }
        }
        for name in OF_QUEUE_PAIRS {
            let help = format!("Of one queue pair: {}", meaning(name).unwrap_or_default());
            let own = format!("queue_pair_{name}");
            let mut family = encoder.encode_descriptor(&own, &help, None, MetricType::Counter)?;
            for (labels, pair) in self.queue_pairs() {
                ConstCounter::new(count(&pair["counters"][name])).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, unit, help, field, divisor) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Gauge)?;
            for (labels, pair) in self.queue_pairs() {
                if let Some(value) = pair["flow"][field].as_f64() {
                    family.encode_family(&labels)?.encode_gauge(&(value / divisor))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::tests::look_of_one;

    #[test]
    fn counters_and_flows_are_openmetrics() {
        let text = exposition(&look_of_one());
        for line in [
            "# TYPE uroce_tx_bytes counter",
            r#"uroce_tx_bytes_total{pid="7",program="ib_write_bw",device="eth0",link="udp"} 2250000"#,
            r#"uroce_queue_pair_retransmitted_total{pid="7",program="ib_write_bw",device="eth0",link="udp",qpn="17",peer="10.0.0.2"} 3"#,
            "# UNIT uroce_queue_pair_round_trip_seconds seconds",
            r#"uroce_queue_pair_round_trip_seconds{pid="7",program="ib_write_bw",device="eth0",link="udp",qpn="17",peer="10.0.0.2"} 0.0205"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(!text.contains("shortest_round_trip_seconds{"), "what is not known is left out: {text}");
        assert!(text.contains(&format!("# HELP uroce_tx_bytes {}", meaning("tx_bytes").unwrap())), "{text}");
    }
}
