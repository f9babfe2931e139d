//! The running programs of this user, and what they did between two looks.

use std::collections::BTreeMap;
use std::io;

use serde_json::{Value, json};
use uroce::verbs::Published;

/// What the devices of running programs said at one moment.
#[derive(Debug, Default)]
pub(crate) struct Look(BTreeMap<Published, Value>);

impl Look {
    /// All devices of this user's programs in this network namespace; of one process alone, if it is given. One that does not answer is
    /// named on stderr.
    ///
    /// # Errors
    /// [`io::Error`] when `/proc` is not there.
    pub(crate) fn now(process: Option<u32>) -> io::Result<Look> {
        let wanted = |one: &Published| process.is_none_or(|process| one.process == process);
        let all = Published::list()?.into_iter().filter(wanted);
        Ok(Look(all.filter_map(|one| Some((one, ask(one)?))).collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The state of each device, by process.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Value> {
        self.0.values()
    }

    /// The queue pairs of all devices, and a row without queue pair for each device that has none. `before` gives the rates: what is
    /// new was at zero then.
    pub(crate) fn rows_since(&self, before: &Look) -> Vec<Value> {
        let of_device = |(one, now): (&Published, &Value)| rows(now, before.0.get(one).unwrap_or(&Value::Null));
        self.0.iter().flat_map(of_device).collect()
    }
}

/// What it answers; `None` when it is gone.
fn ask(one: Published) -> Option<Value> {
    let answer = one.ask();
    if let Err(error) = &answer
        && [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind())
    {
        eprintln!("uroce: process {} does not answer", one.process);
    }
    serde_json::from_str(&answer.ok()?).ok()
}

/// The rows of a device: `uroce stat --json` prints them as they are.
fn rows(now: &Value, before: &Value) -> Vec<Value> {
    let lasted_ns = count(&now["now_ns"]).saturating_sub(count(&before["now_ns"])).max(1);
    let lasted_ns = if before.is_null() { u64::MAX } else { lasted_ns };
    let nothing = Vec::new();
    let earlier = before["queue_pairs"].as_array().unwrap_or(&nothing);
    let pairs = now["queue_pairs"].as_array().unwrap_or(&nothing);
    let rows = pairs.iter().map(|pair| {
        let before = earlier.iter().find(|one| one["qpn"] == pair["qpn"]).unwrap_or(&Value::Null);
        row(now, pair, before, lasted_ns)
    });
    let alone = pairs.is_empty().then(|| row(now, &Value::Null, &Value::Null, lasted_ns));
    rows.chain(alone).collect()
}

/// A queue pair of a device; null for one that has none.
fn row(device: &Value, pair: &Value, before: &Value, lasted_ns: u64) -> Value {
    let counted = |name: &str| count(&pair["counters"][name]);
    let bps = |name: &str| {
        let bytes = counted(name).saturating_sub(count(&before["counters"][name]));
        8e9 * bytes as f64 / lasted_ns as f64
    };
    let (sent_bps, received_bps) = (bps("sent_bytes"), bps("rcvd_bytes"));
    json!({
        "schema": "uroce.stat/1",
        "pid": device["process"],
        "program": device["program"],
        "device": device["device"],
        "link": device["link"],
        "qpn": pair["qpn"],
        "service": pair["service"],
        "state": pair["state"],
        "class": pair["class"],
        "peer": pair["peer"],
        "recovery": pair["recovery"],
        "controller": pair["controller"],
        "rate_bps": sent_bps.max(received_bps),
        "sent_bps": sent_bps,
        "received_bps": received_bps,
        "rtt_ns": pair["flow"]["round_trip_ns"],
        "sent_pkts": counted("sent_pkts"),
        "retransmitted_pkts": counted("retransmitted"),
        "rnr_naks": counted("rcvd_rnr_err") + counted("send_rnr_err"),
        "marked_pkts": counted("np_ecn_marked_roce_packets") + counted("rp_cnp_handled"),
        "paths": pair["paths"],
        "flow": pair["flow"],
        "counters": pair["counters"],
        "device_counters": device["counters"],
    })
}

/// A number that may be missing.
pub(crate) fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A device with one queue pair, which has sent so many bytes.
    fn device(now_ns: u64, sent_bytes: u64) -> Value {
        json!({
            "process": 7, "program": "ib_write_bw", "device": "eth0", "link": "udp", "now_ns": now_ns,
            "counters": { "tx_bytes": sent_bytes + 1_000_000 },
            "queue_pairs": [{
                "qpn": 17, "service": "RC", "state": "RTS", "class": "normal", "recovery": "selective", "controller": "steady",
                "peer": { "address": "10.0.0.2", "qpn": 18 },
                "paths": [{ "condition": "good" }, { "condition": "dark" }, { "condition": "good" }],
                "flow": { "window_bytes": 300_000, "round_trip_ns": 20_500_000, "shortest_ns": null },
                "counters": { "sent_bytes": sent_bytes, "retransmitted": 3, "rcvd_rnr_err": 1, "send_rnr_err": 1 },
            }],
        })
    }

    /// A look at one device with one queue pair.
    pub(crate) fn look_of_one() -> Look {
        look([(0, device(500_000_000, 1_250_000))])
    }

    /// The rows of a device that sends 4 Mb/s.
    pub(crate) fn rows_of_one() -> Vec<Value> {
        look_of_one().rows_since(&look([(0, device(0, 1_000_000))]))
    }

    fn look(devices: impl IntoIterator<Item = (u32, Value)>) -> Look {
        Look(devices.into_iter().map(|(serial, device)| (Published { process: 7, serial }, device)).collect())
    }

    #[test]
    fn rates_are_those_since_the_first_look() {
        let first = look([(0, device(0, 1_000_000))]);
        let second = look_of_one();
        let rows = rows_of_one();
        assert_eq!((&rows[0]["sent_bps"], &rows[0]["received_bps"], rows.len()), (&json!(4e6), &json!(0.0), 1));
        assert_eq!(
            (&rows[0]["rate_bps"], &rows[0]["rtt_ns"], &rows[0]["rnr_naks"]),
            (&json!(4e6), &json!(20_500_000), &json!(2))
        );
        // A queue pair that was not there has sent all of it since; a whole device that was not there has no rate yet.
        let mut empty = device(0, 1_000_000);
        empty["queue_pairs"] = json!([]);
        let rows = second.rows_since(&look([(0, empty.clone())]));
        assert_eq!(rows[0]["sent_bps"], json!(20e6));
        let new = second.rows_since(&Look::default());
        assert!(new[0]["sent_bps"].as_f64().unwrap() < 1.0, "{new:?}");
        // A device without queue pairs is a row.
        let rows = look([(0, empty)]).rows_since(&first);
        assert_eq!((&rows[0]["qpn"], &rows[0]["program"]), (&Value::Null, &json!("ib_write_bw")));
    }
}
