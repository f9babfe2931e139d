//! A second and a third opinion on captures: [`verify`] compares what `uroce decode` says about every packet with what
//! tshark says, field by field, and its verdict on every ICRC with those of scapy and of a computation from the rules.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The programs that are asked.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The `uroce` program.
    pub uroce: PathBuf,
    /// The `tshark` program.
    pub tshark: PathBuf,
    /// A Python that has scapy.
    pub python: PathBuf,
}

/// What was compared, and where opinions differ.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// RoCE packets, as all three counted them.
    pub packets: usize,
    /// Fields compared with tshark.
    pub fields: usize,
    /// Packets with a right ICRC by all opinions.
    pub icrc_ok: usize,
    /// Packets that tshark calls malformed.
    pub malformed: usize,
    /// One line each, with the number of the frame.
    pub differences: Vec<String>,
}

impl Verdict {
    /// Whether everybody agrees, and finds nothing wrong with any packet.
    pub fn is_clean(&self) -> bool {
        self.differences.is_empty() && self.malformed == 0 && self.icrc_ok == self.packets
    }
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A program is not there, or cannot be started.
    #[error("{program}: {reason}; `cargo xtask setup` installs what is missing")]
    Missing {
        /// Which.
        program: String,
        /// What the system says.
        reason: String,
    },
    /// A program failed.
    #[error("{program} {file}: {message}")]
    Failed {
        /// Which.
        program: String,
        /// On which capture.
        file: PathBuf,
        /// What it said.
        message: String,
    },
}

impl Tools {
    /// `uroce` as given, tshark from the path, and the Python of `$UROCE_PYTHON`, or else the one in the environment
    /// `scapy` in `target`, where `cargo xtask setup` puts it.
    ///
    /// # Errors
    /// [`VerifyError::Missing`] when tshark or scapy is not there.
    pub fn find(uroce: PathBuf, target: &Path) -> Result<Tools, VerifyError> {
        let python = std::env::var_os("UROCE_PYTHON").map_or_else(|| target.join("scapy/bin/python3"), PathBuf::from);
        let tools = Tools { uroce, tshark: "tshark".into(), python };
        run(&tools.tshark, ["--version"])?;
        let import = run(&tools.python, ["-c", "import scapy.contrib.roce"])?;
        if !import.status.success() {
            let reason = String::from_utf8_lossy(&import.stderr).trim().lines().last().unwrap_or("no scapy").to_owned();
            return Err(VerifyError::Missing { program: tools.python.display().to_string(), reason });
        }
        Ok(tools)
    }
}

fn run<S: AsRef<OsStr>>(program: &Path, arguments: impl IntoIterator<Item = S>) -> Result<Output, VerifyError> {
    let missing = |error: std::io::Error| VerifyError::Missing {
        program: program.display().to_string(),
        reason: error.to_string(),
    };
    Command::new(program).args(arguments).output().map_err(missing)
}

/// A field of tshark's, and how ours is called: a path into the object of `uroce decode --json`.
const FIELDS: [(&str, &str); 35] = [
    ("eth.src", "eth_src"),
    ("eth.dst", "eth_dst"),
    ("vlan.id", "vlan.id"),
    ("vlan.priority", "vlan.priority"),
    ("ip.src", "ip_src"),
    ("ip.dst", "ip_dst"),
    ("ipv6.src", "ip_src"),
    ("ipv6.dst", "ip_dst"),
    ("ip.dsfield.dscp", "dscp"),
    ("ip.dsfield.ecn", "ecn"),
    ("ipv6.tclass.dscp", "dscp"),
    ("ipv6.tclass.ecn", "ecn"),
    ("ip.ttl", "hop_limit"),
    ("ipv6.hlim", "hop_limit"),
    ("ip.id", "ip_id"),
    ("ipv6.flow", "flow_label"),
    ("udp.srcport", "udp_src"),
    ("udp.dstport", "udp_dst"),
    ("udp.checksum", "udp_checksum"),
    ("infiniband.bth.opcode", "opcode_value"),
    ("infiniband.bth.se", "solicited"),
    ("infiniband.bth.m", "mig_req"),
    ("infiniband.bth.padcnt", "pad"),
    ("infiniband.bth.tver", "tver"),
    ("infiniband.bth.p_key", "p_key"),
    ("infiniband.bth.destqp", "qpn"),
    ("infiniband.bth.a", "ack_request"),
    ("infiniband.bth.reserved7", "reserved_8"),
    ("infiniband.bth.psn", "psn"),
    ("infiniband.reth.dmalen", "reth.length"),
    ("infiniband.aeth.syndrome", "aeth.syndrome"),
    ("infiniband.aeth.msn", "aeth.msn"),
    ("infiniband.deth.q_key", "deth.q_key"),
    ("infiniband.deth.srcqp", "deth.source_qpn"),
    ("infiniband.invariant.crc", "icrc_value"),
];

/// Fields that tshark has in several headers, under the same name.
const SHARED: [(&str, &[&str]); 2] = [
    ("infiniband.reth.va", &["reth.address", "atomic.address"]),
    ("infiniband.reth.r_key", &["reth.rkey", "atomic.rkey"]),
];

const VALUES: [(&str, &str); 3] = [
    ("infiniband.atomiceth.swapdt", "atomic.swap_or_add"),
    ("infiniband.atomiceth.cmpdt", "atomic.compare"),
    ("infiniband.atomicacketh.origremdt", "atomic_ack.original"),
];

/// Fields whose bytes tshark gives in hexadecimal: immediate data, the invalidated key, the reserved byte 4 of the BTH.
const BYTES: [(&str, &str); 2] = [("infiniband.immdt", "imm"), ("infiniband.ieth", "ieth.rkey")];

/// Compares the three opinions on `capture`, a pcap or pcapng.
///
/// # Errors
/// [`VerifyError`] when a program is missing or cannot read the capture. Different opinions are no error: they are in the
/// [`Verdict`].
pub fn verify(tools: &Tools, capture: &Path) -> Result<Verdict, VerifyError> {
    let ours = decode(tools, capture)?;
    let theirs = dissect(tools, capture)?;
    let icrcs = check_icrcs(tools, capture)?;
    let mut verdict = Verdict { packets: ours.len(), ..Verdict::default() };
    for (program, frames) in [("tshark", theirs.keys().collect::<Vec<_>>()), ("scapy", icrcs.keys().collect())] {
        if !frames.iter().copied().eq(ours.keys()) {
            let others = frames.len();
            verdict
                .differences
                .push(format!("{program} counts {others} RoCE packets, or other ones, not {}", ours.len()));
        }
    }
    for (frame, our) in &ours {
        if let Some(their) = theirs.get(frame) {
            verdict.compare(*frame, our, their);
        }
        let icrc = our["icrc"].as_str().unwrap_or("missing");
        if let Some(other) = icrcs.get(frame) {
            verdict.icrc_ok += usize::from(icrc == "ok" && other == "ok");
            if icrc != other {
                verdict.differences.push(format!("frame {frame}: ICRC {icrc}, by scapy and the rules {other}"));
            }
        }
        if our["malformed"].as_bool() != Some(false) {
            verdict.differences.push(format!("frame {frame}: malformed: {}", our["malformed_reason"]));
        }
    }
    Ok(verdict)
}

impl Verdict {
    fn compare(&mut self, frame: u64, our: &Value, their: &BTreeMap<&'static str, String>) {
        let their = |name: &str| their.get(name).map_or("", String::as_str);
        let mut differ = |name: &str, their: &str, our: Option<&Value>| {
            let our = our.filter(|value| !value.is_null());
            // What tshark does not have says nothing: ours may know more. What it has must be there, and be the same.
            self.fields += usize::from(!their.is_empty());
            if !their.is_empty() && !our.is_some_and(|our| is_same(our, their)) {
                let our = our.map_or("nothing".to_owned(), Value::to_string);
                self.differences.push(format!("frame {frame}: {name}: {our}, tshark has {their}"));
            }
        };
        for (name, path) in FIELDS.iter().chain(&VALUES) {
            differ(name, their(name), field(our, path));
        }
        for (name, paths) in SHARED {
            differ(name, their(name), paths.iter().find_map(|path| field(our, path)));
        }
        for (name, path) in BYTES {
            let value = u64::from_str_radix(&their(name).replace(':', ""), 16).map_or(String::new(), |v| v.to_string());
            differ(name, &value, field(our, path));
        }
        // FECN, BECN and the bits beside them are one byte to tshark.
        let congestion = ["fecn", "becn"].map(|name| our[name].as_bool().unwrap_or(false));
        let byte = u64::from(congestion[0]) << 7 | u64::from(congestion[1]) << 6;
        let byte = Value::from(byte | our["reserved_4"].as_u64().unwrap_or(0));
        let reserved = their("infiniband.reserved").split(',').next().unwrap_or("");
        let reserved = u64::from_str_radix(reserved, 16).map_or(String::new(), |v| v.to_string());
        differ("infiniband.reserved", &reserved, Some(&byte));
        // What is left of the UDP payload when the headers that tshark shows are taken off.
        let ib = their("udp.length").parse::<u64>().ok().map(|bytes| bytes - 8);
        let headers: u64 = HEADERS.iter().filter(|(name, _)| !their(name).is_empty()).map(|(_, bytes)| bytes).sum();
        let pad = our["pad"].as_u64().unwrap_or(0);
        let payload = ib.and_then(|ib| ib.checked_sub(headers + pad + 4)).map_or(String::new(), |v| v.to_string());
        differ("payload length", &payload, our.get("payload_bytes"));
        // Headers that tshark shows are headers that we have, and the other way round.
        for (name, path) in PRESENCE {
            let present = field(our, path).is_some();
            if present == their(name).is_empty() {
                self.differences.push(format!("frame {frame}: {path} is there: {present}; tshark: {}", !present));
            }
        }
        if !their("_ws.malformed").is_empty() {
            self.malformed += 1;
            self.differences.push(format!("frame {frame}: malformed, says tshark"));
        }
    }
}

/// Headers with their lengths in bytes.
const HEADERS: [(&str, u64); 8] = [
    ("infiniband.bth", 12),
    ("infiniband.deth", 8),
    ("infiniband.reth", 16),
    ("infiniband.atomiceth", 28),
    ("infiniband.aeth", 4),
    ("infiniband.atomicacketh", 8),
    ("infiniband.immdt", 4),
    ("infiniband.ieth", 4),
];

/// Headers, by which of our objects stands for them.
const PRESENCE: [(&str, &str); 7] = [
    ("infiniband.deth", "deth"),
    ("infiniband.reth", "reth"),
    ("infiniband.atomiceth", "atomic"),
    ("infiniband.aeth", "aeth"),
    ("infiniband.atomicacketh", "atomic_ack"),
    ("infiniband.immdt", "imm"),
    ("infiniband.ieth", "ieth"),
];

/// The value at a path of names joined by dots.
fn field<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(object, |value, name| value.get(name)).filter(|value| !value.is_null())
}

/// Whether our value is tshark's: as a number where both are, else as text.
fn is_same(our: &Value, their: &str) -> bool {
    let ours = match our {
        Value::Bool(value) => Some(u64::from(*value)),
        Value::Number(value) => value.as_u64(),
        Value::String(text) => number(text),
        _ => None,
    };
    match (ours, number(their)) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => our.as_str() == Some(their),
    }
}

fn number(text: &str) -> Option<u64> {
    match (text, text.strip_prefix("0x")) {
        ("True", _) => Some(1),
        ("False", _) => Some(0),
        (_, Some(hex)) => u64::from_str_radix(hex, 16).ok(),
        (decimal, None) => decimal.parse().ok(),
    }
}

fn failed(program: &Path, file: &Path, output: &Output) -> VerifyError {
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let message = if message.is_empty() { output.status.to_string() } else { message };
    VerifyError::Failed { program: program.display().to_string(), file: file.to_owned(), message }
}

/// Our opinion, by frame.
fn decode(tools: &Tools, capture: &Path) -> Result<BTreeMap<u64, Value>, VerifyError> {
    let output = run(&tools.uroce, ["decode".as_ref(), "--json".as_ref(), capture.as_os_str()])?;
    let wrong = |message: String| VerifyError::Failed {
        program: tools.uroce.display().to_string(),
        file: capture.to_owned(),
        message,
    };
    // 1 can mean that packets are malformed, which is for the verdict; a file that cannot be read leaves a message.
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    if !matches!(output.status.code(), Some(0 | 1)) || !said.contains("RoCE packets") {
        return Err(failed(&tools.uroce, capture, &output));
    }
    text.lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line).map_err(|error| wrong(format!("{error} in {line}")))?;
            let frame = value["frame"].as_u64().ok_or_else(|| wrong(format!("no frame in {line}")))?;
            Ok((frame, value))
        })
        .collect()
}

/// tshark's opinion, by frame.
fn dissect(tools: &Tools, capture: &Path) -> Result<BTreeMap<u64, BTreeMap<&'static str, String>>, VerifyError> {
    let names: Vec<&'static str> = ["frame.number", "udp.length", "infiniband.reserved", "_ws.malformed"]
        .into_iter()
        .chain(FIELDS.iter().chain(&VALUES).map(|(name, _)| *name))
        .chain(SHARED.iter().map(|(name, _)| *name))
        .chain(HEADERS.iter().map(|(name, _)| *name))
        .collect();
    let mut command = Command::new(&tools.tshark);
    command.arg("-r").arg(capture).args(["-n", "-Y", "udp.dstport == 4791", "-T", "fields", "-E", "separator=/t"]);
    // Guesses at what the payload is call correct packets malformed.
    command.args(["--disable-protocol", "rpcordma", "--disable-heuristic", "mellanox_eoib"]);
    command.args(["--disable-heuristic", "eth_over_ib"]);
    names.iter().for_each(|name| {
        command.args(["-e", name]);
    });
    let output = command.output().map_err(|error| VerifyError::Missing {
        program: tools.tshark.display().to_string(),
        reason: error.to_string(),
    })?;
    if !output.status.success() {
        return Err(failed(&tools.tshark, capture, &output));
    }
    let mut frames = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let values: BTreeMap<_, _> = names.iter().copied().zip(line.split('\t').map(str::to_owned)).collect();
        frames.insert(number(&values["frame.number"]).unwrap_or(0), values);
    }
    Ok(frames)
}

/// scapy's opinion, and that of a computation from the rules, by frame: `ok`, `bad`, or how they differ.
fn check_icrcs(tools: &Tools, capture: &Path) -> Result<BTreeMap<u64, String>, VerifyError> {
    let script = include_str!("../icrc_scapy.py");
    let output = run(&tools.python, ["-c".as_ref(), script.as_ref(), capture.as_os_str()])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() && !text.contains("rules") {
        return Err(failed(&tools.python, capture, &output));
    }
    let parse = |line: &str| {
        let (frame, verdict) = line.split_once(' ')?;
        Some((frame.parse().ok()?, verdict.to_owned()))
    };
    Ok(text.lines().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn differences(our: &Value) -> Vec<String> {
        let their = [
            ("infiniband.bth", "06:40:ff:ff"),
            ("infiniband.bth.psn", "7"),
            ("infiniband.bth.destqp", "0x000011"),
            ("infiniband.bth.m", "1"),
            ("infiniband.reserved", "40"),
            ("infiniband.reth", "00"),
            ("infiniband.reth.va", "0x0000000000001000"),
            ("infiniband.invariant.crc", "0x9d18d71a"),
            ("ip.src", "10.0.0.1"),
            ("udp.length", "48"),
        ];
        let mut verdict = Verdict::default();
        verdict.compare(3, our, &their.map(|(name, value)| (name, value.to_owned())).into());
        verdict.differences
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let good = json!({
            "psn": 7, "qpn": 17, "mig_req": true, "becn": true, "fecn": false, "reserved_4": 0,
            "reth": {"address": "0x0000000000001000"}, "icrc_value": "0x9d18d71a", "ip_src": "10.0.0.1", "pad": 1,
            "payload_bytes": 7,
        });
        assert_eq!(differences(&good), Vec::<String>::new());
        for (name, value, expected) in [
            ("psn", json!(8), "infiniband.bth.psn: 8, tshark has 7"),
            ("psn", Value::Null, "infiniband.bth.psn: nothing, tshark has 7"),
            ("qpn", json!(16), "infiniband.bth.destqp: 16, tshark has 0x000011"),
            ("mig_req", json!(false), "infiniband.bth.m: false, tshark has 1"),
            ("becn", json!(false), "infiniband.reserved: 0, tshark has 64"),
            ("icrc_value", json!("0x9d18d71b"), "infiniband.invariant.crc: \"0x9d18d71b\", tshark has 0x9d18d71a"),
            ("ip_src", json!("10.0.0.2"), "ip.src: \"10.0.0.2\", tshark has 10.0.0.1"),
            ("payload_bytes", json!(8), "payload length: 8, tshark has 7"),
            ("aeth", json!({}), "aeth is there: true; tshark: false"),
        ] {
            let mut changed = good.clone();
            changed[name] = value;
            assert_eq!(differences(&changed), [format!("frame 3: {expected}")]);
        }
        let mut changed = good.clone();
        changed["reth"] = Value::Null;
        let expected =
            ["infiniband.reth.va: nothing, tshark has 0x0000000000001000", "reth is there: false; tshark: true"];
        assert_eq!(differences(&changed), expected.map(|text| format!("frame 3: {text}")));
    }
}
