//! A cell over a network: two sites, what they measured, and what carried it.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rxe_rig::Netns;
use serde_json::Value;
use wan::{Side, Wan};

use crate::cell::{Cell, Op, Program, Transport, UcxChoice};
use crate::site::Site;
use crate::sockets::{DataSockets, data_sockets};

/// Where the sites meet.
const PORT: u16 = 18700;

/// How long a program may take to begin, and to say what arrived when its time is over: on a busy machine, on a path that loses.
const PATIENCE: Duration = Duration::from_secs(40);

/// Of all packets, what a queue pair must have sent to be one of data.
const LEAST_SHARE: f64 = 0.01;

/// Lanes of Mooncake's pooled connections to a peer.
const LANES: &str = "8";

/// What UCX is told to leave it to itself: its own default, which `uroce run` then keeps.
const UCX_OWN: (&str, &str) = ("UCX_ZCOPY_THRESH", "auto");

/// What UCX is told over TCP as it is by `uroce run` over verbs: with two processors, threads that spin for each other make batches
/// late whatever carries them.
const UCX_MUTEX: (&str, &str) = ("UCX_USE_MT_MUTEX", "y");

/// The sites' priority over ordinary programs, so that those have less of a say in what is measured. The network has a higher
/// one.
const NICE: [&str; 3] = ["nice", "-n", "-20"];

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The program `uroce`, with its library beside it.
    pub uroce: PathBuf,
    /// The folder with the environments `nixl` and `mooncake`.
    pub environments: PathBuf,
    /// What the names of kept files begin with, if any are kept: each site's frames over verbs, and what it said on stderr.
    pub kept: Option<PathBuf>,
}

impl Tools {
    pub(crate) fn kept(&self, side: Side, suffix: &str) -> Option<PathBuf> {
        let side = if side == Side::A { "posts" } else { "serves" };
        self.kept.as_ref().map(|kept| PathBuf::from(format!("{}-{side}.{suffix}", kept.display())))
    }
}

/// What a cell came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What the site that posts printed at the end of each step.
    pub ends: Vec<Value>,
    /// Of TCP: the connections that carried the data.
    pub sockets: Option<DataSockets>,
    /// Of uroce: the queue pairs that carried the data, as `uroce stat --json` has them.
    pub queue_pairs: Vec<Value>,
    /// Why it is no result.
    pub failure: Option<String>,
}

impl Outcome {
    /// What was printed at the end of a step.
    pub fn end(&self, name: &str) -> Option<&Value> {
        self.ends.iter().find(|end| end["name"] == name)
    }

    /// Of each step that moved all of its pieces these: when each was computed, posted, and done, in milliseconds.
    pub fn pieces(&self) -> Vec<Vec<[f64; 3]>> {
        let whole = self.ends.iter().filter(|end| end["name"] == "pieces" && end["cut"] == false);
        let times = |piece: &Value| Some([piece[0].as_f64()?, piece[1].as_f64()?, piece[2].as_f64()?]);
        whole.filter_map(|end| end["spans_ms"].as_array()?.iter().map(times).collect()).collect()
    }
}

/// Plays a cell. What goes wrong in it is in its outcome.
pub fn play(wan: &Wan, tools: &Tools, cell: &Cell) -> Outcome {
    let mut outcome = Outcome::default();
    if let Err(text) = converse(wan, tools, cell, &mut outcome) {
        outcome.failure = Some(text);
    }
    outcome
}

fn converse(wan: &Wan, tools: &Tools, cell: &Cell, outcome: &mut Outcome) -> Result<(), String> {
    if let Some(control) = cell.control() {
        [Side::A, Side::B].into_iter().try_for_each(|side| use_control(wan, side, control))?;
    }
    // Engines take seconds to begin: both do at once.
    let serves = Site::start(command(wan, tools, cell, Side::B))?;
    let mut posts = Site::start(command(wan, tools, cell, Side::A))?;
    let begin = Instant::now();
    match serves.next(begin + PATIENCE)? {
        Some(event) if event["event"] == "listens" => {}
        other => return Err(format!("the site that serves does not begin: {other:?}, {:?}", serves.finish())),
    }
    let end = Instant::now() + Duration::from_secs(cell.limit_s) + PATIENCE;
    while let Some(event) = posts.next(end)? {
        match event["event"].as_str() {
            Some("end") => outcome.ends.push(event),
            // It waits, and all that it had is still there.
            Some("over") => {
                look(wan, tools, cell, outcome)?;
                posts.let_go();
            }
            _ => {}
        }
    }
    // The one that posts fails when the other one does, and knows less.
    let (posted, served) = (posts.finish(), serves.finish());
    for (side, said) in [(Side::A, &posted), (Side::B, &served)] {
        if let Some(file) = tools.kept(side, "txt") {
            let (Ok(text) | Err(text)) = said;
            std::fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
    }
    served.and(posted)?;
    judge(cell, outcome)
}

/// Whether what was to be measured was measured.
fn judge(cell: &Cell, outcome: &Outcome) -> Result<(), String> {
    if outcome.ends.is_empty() {
        return Err("no step ended".into());
    }
    if let Some(end) = outcome.ends.iter().find(|end| end["contents_equal"] == false) {
        return Err(format!("of {} bytes only {} arrived as they were", end["bytes"], end["arrived_bytes"]));
    }
    if let Some(wanted) = cell.control() {
        let sockets = outcome.sockets.as_ref().ok_or("nobody looked at its sockets")?;
        if sockets.controls != [wanted] {
            return Err(format!("{} data sockets with {:?}, not {wanted}", sockets.count, sockets.controls));
        }
        return Ok(());
    }
    let wanted = if cell.transport == Transport::Uroce { "selective" } else { "go-back-n" };
    match outcome.queue_pairs.iter().find(|queue_pair| queue_pair["recovery"] != wanted) {
        Some(other) => Err(format!("a queue pair had {}, not {wanted}", other["recovery"])),
        None if outcome.queue_pairs.is_empty() => Err("no queue pair of uroce's carried its data".into()),
        None => Ok(()),
    }
}

/// Looks at what carried the data, at the side that sent it.
fn look(wan: &Wan, tools: &Tools, cell: &Cell, outcome: &mut Outcome) -> Result<(), String> {
    let sender = wan.namespace(if cell.op == Op::Write { Side::A } else { Side::B });
    if cell.is_over_verbs() {
        outcome.queue_pairs = queue_pairs(sender, tools)?;
    } else {
        let text = sender.exec("ss", &["-Htin"]).map_err(|error| error.to_string())?;
        outcome.sockets = Some(data_sockets(&text, PORT));
    }
    Ok(())
}

/// The queue pairs in a namespace that have sent data.
fn queue_pairs(namespace: &Netns, tools: &Tools) -> Result<Vec<Value>, String> {
    let mut stat = namespace.command(&tools.uroce);
    let output = stat.args(["stat", "--json"]).output().map_err(|error| format!("uroce stat: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let sent = |row: &Value| row["sent_pkts"].as_f64().unwrap_or(0.0);
    let total: f64 = rows.iter().map(sent).sum();
    Ok(rows.into_iter().filter(|row| sent(row) > LEAST_SHARE * total).collect())
}

/// Has the connections of a host begin with a congestion control. A namespace's own switch refuses those that its host does not
/// allow; a route's does not.
fn use_control(wan: &Wan, side: Side, control: &str) -> Result<(), String> {
    let host = wan.host(side, 0);
    let [a, b, c, _] = host.ipv4.octets();
    let (network, source) = (format!("{a}.{b}.{c}.0/24"), host.ipv4.to_string());
    let route =
        ["route", "replace", &network, "dev", &host.interface, "proto", "kernel", "scope", "link", "src", &source];
    let words = [&route[..], &["congctl", control]].concat();
    wan.namespace(side).ip(&words).map(drop).map_err(|error| error.to_string())
}

fn command(wan: &Wan, tools: &Tools, cell: &Cell, side: Side) -> Command {
    let (host, other) = (wan.host(side, 0), wan.host(Side::B, 0));
    let (environment, script) = match cell.program {
        Program::Nixl => ("nixl", "nixl_site.py"),
        Program::Mooncake => ("mooncake", "mooncake_site.py"),
    };
    let python = tools.environments.join(environment).join("bin/python3");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("programs").join(script);
    let mut command = if cell.is_over_verbs() {
        let recovery = if cell.transport == Transport::Uroce { "auto" } else { "go-back-n" };
        by_uroce(wan, tools, side, &["--recovery", recovery])
    } else {
        before_others(wan, side)
    };
    command.arg(python).arg(script).arg(cell.plan().to_string()).arg(PORT.to_string());
    if cell.program == Program::Mooncake {
        command.arg(&host.interface).arg(host.ipv4.to_string());
    }
    if side == Side::A {
        command.arg(other.ipv4.to_string());
    }
    command.envs(variables(cell, &host.interface)).env("HOME", "/").env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A command of a site, before ordinary programs.
fn before_others(wan: &Wan, side: Side) -> Command {
    let mut command = wan.namespace(side).command(NICE[0]);
    command.args(&NICE[1..]);
    command
}

/// The same by `uroce run` with these options more; the program's words come after.
pub(crate) fn by_uroce(wan: &Wan, tools: &Tools, side: Side, options: &[&str]) -> Command {
    let mut command = before_others(wan, side);
    command.arg(&tools.uroce).args(["run", "--dev", &wan.host(side, 0).interface, "--link", "xdp"]).args(options);
    if let Some(file) = tools.kept(side, "pcapng") {
        command.arg("--capture").arg(file);
    }
    command.arg("--");
    command
}

/// What the engine is told in the environment.
fn variables(cell: &Cell, interface: &str) -> Vec<(&'static str, String)> {
    let mut variables = match (cell.program, cell.is_over_verbs()) {
        (Program::Nixl, true) => {
            vec![("UCX_TLS", "rc_verbs,ud_verbs,self".to_owned()), ("UCX_NET_DEVICES", format!("{interface}:1"))]
        }
        (Program::Nixl, false) => vec![
            ("UCX_TLS", "tcp,self".to_owned()),
            ("UCX_NET_DEVICES", interface.to_owned()),
            (UCX_MUTEX.0, UCX_MUTEX.1.to_owned()),
        ],
        (Program::Mooncake, true) => vec![],
        (Program::Mooncake, false) => {
            vec![("MC_TCP_ENABLE_CONNECTION_POOL", "1".to_owned()), ("MC_TCP_LANES_PER_PEER", LANES.to_owned())]
        }
    };
    if cell.program == Program::Nixl && cell.ucx == UcxChoice::Own {
        variables.push((UCX_OWN.0, UCX_OWN.1.to_owned()));
    }
    variables
}
