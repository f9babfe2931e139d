use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rxe_rig::netns::{Netns, ipv6_on_this_host};

use crate::conditions::Conditions;
use crate::delays::Delays;
use crate::forwarder::{Forwarder, Shared, Usage, WanCounts, lock};
use crate::frame::Flow;
use crate::path::{Counts, Path};
use crate::port::{Pool, Port, PortCounts};
use crate::stop::Stop;

/// Ethernet header and one VLAN tag: what a frame has beside the MTU.
const HEADER_BYTES: usize = 18;

/// Rails have one number in a MAC address and an IPv4 address.
const RAILS_MAX: usize = 16;

/// As many as a path has entropies at the most.
const PATHS_MAX: usize = 256;

/// What TCP may keep in flight at a connection, as sysctl wants it: 64 MiB, for 5 Gb/s and a round trip of 100 ms. Linux's
/// own bound of 6 MB holds a connection to 600 Mb/s at 40 ms.
const TCP_MEMORY: &str = "4096 131072 67108864";

/// What a network shall be like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The hosts' MTU in bytes. 4200 carries path MTU 4096 with everything around it.
    pub mtu: u16,
    /// The interfaces of each host, 1 to 16: the first of A's is cabled to the first of B's, and so on.
    pub rails: Vec<Rail>,
    /// What decides all chance, and how flows spread over paths.
    pub seed: u64,
    /// Whether the forwarding thread runs before all ordinary ones (SCHED_RR), where the machine lets it: on a busy one,
    /// an ordinary thread is late by milliseconds every now and then.
    pub realtime: bool,
}

/// What lies between an interface of A and one of B: each direction's parallel paths, 1 to 256. A frame's flow decides
/// which one it takes.
#[derive(Clone, Debug)]
pub struct Rail {
    /// From A to B.
    pub there: Vec<Conditions>,
    /// From B to A.
    pub back: Vec<Conditions>,
}

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // just two names
pub enum Side {
    A,
    B,
}

/// A way through the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named for its ends
pub enum Direction {
    AToB,
    BToA,
}

/// An interface of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name in the host's namespace.
    pub interface: String,
    /// Its MAC address, colon-separated.
    pub mac: String,
    /// Its IPv4 address, in a /24 of the rail's.
    pub ipv4: Ipv4Addr,
    /// Its global IPv6 address, in a /64 of the rail's. Not there when this machine has no IPv6.
    pub ipv6: Ipv6Addr,
}

/// Why there is no network, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum WanError {
    /// The plan asks for what cannot be.
    #[error("the network cannot be like this: {0}")]
    Plan(String),
    /// A namespace or an interface could not be made.
    #[error(transparent)]
    Rig(#[from] rxe_rig::RigError),
    /// A socket or a thread could not be made, or forwarding failed.
    #[error("{what}: {source}")]
    Forwarding {
        /// What was being done.
        what: String,
        /// What the system says.
        source: io::Error,
    },
}

impl Rail {
    /// The same paths both ways.
    pub fn symmetric(paths: &[Conditions]) -> Rail {
        Rail { there: paths.to_vec(), back: paths.to_vec() }
    }

    /// The paths of a direction, as planned.
    pub fn paths(&self, direction: Direction) -> &[Conditions] {
        match direction {
            Direction::AToB => &self.there,
            Direction::BToA => &self.back,
        }
    }
}

impl Plan {
    /// One rail with one path, the same both ways; MTU 4200.
    pub fn simple(conditions: Conditions, seed: u64) -> Plan {
        Plan { mtu: 4200, rails: vec![Rail::symmetric(&[conditions])], seed, realtime: true }
    }

    fn check(&self) -> Result<(), WanError> {
        let wrong = |text: String| Err(WanError::Plan(text));
        if !(1..=RAILS_MAX).contains(&self.rails.len()) {
            return wrong(format!("{} pairs of interfaces: use 1 to {RAILS_MAX}", self.rails.len()));
        }
        // IPv6 demands 1280 (RFC 8200, section 5); Linux has no longer ones on veth than 65535.
        if self.mtu < 1280 {
            return wrong(format!("an MTU of {}, which is less than 1280", self.mtu));
        }
        for rail in &self.rails {
            for paths in [&rail.there, &rail.back] {
                if !(1..=PATHS_MAX).contains(&paths.len()) {
                    return wrong(format!("{} paths: use 1 to {PATHS_MAX}", paths.len()));
                }
                if let Some(path) = paths.iter().find(|path| !path.loss.is_possible()) {
                    return wrong(format!("there is no {:?}", path.loss));
                }
                let frame_bytes = (usize::from(self.mtu) + HEADER_BYTES) as u64;
                if let Some(path) =
                    paths.iter().find(|path| path.rate_bps.is_some() && path.queue_bytes() < frame_bytes)
                {
                    return wrong(format!("a queue of {} bytes never holds a full frame", path.queue_bytes()));
                }
            }
        }
        Ok(())
    }
}

impl Host {
    fn new(side: Side, rail: usize) -> Host {
        let (letter, number) = match side {
            Side::A => ('a', 1),
            Side::B => ('b', 2),
        };
        Host {
            interface: format!("{letter}{rail}"),
            mac: format!("02:79:00:{rail:02x}:00:{number:02x}"),
            ipv4: Ipv4Addr::new(10, 79, rail as u8, number as u8),
            ipv6: Ipv6Addr::new(0xfd79, 0, 0, rail as u16, 0, 0, 0, number),
        }
    }

    /// The IPv6 address that the kernel makes from the MAC address (RFC 4291, appendix A).
    fn link_local(&self) -> Ipv6Addr {
        let [_, _, rail, number] = self.ipv4.octets().map(u16::from);
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0079, 0x00ff, 0xfe00 | rail, number)
    }
}

impl Direction {
    /// `a-b` or `b-a`.
    pub fn name(self) -> &'static str {
        match self {
            Direction::AToB => "a-b",
            Direction::BToA => "b-a",
        }
    }

    /// Where frames begin, and where they end.
    pub fn sides(self) -> (Side, Side) {
        match self {
            Direction::AToB => (Side::A, Side::B),
            Direction::BToA => (Side::B, Side::A),
        }
    }

    /// The port by which a rail's frames come into the middle.
    fn port(self, rail: usize) -> usize {
        2 * rail + usize::from(self == Direction::BToA)
    }
}

/// Two hosts in namespaces of their own, and the network between them, which forwards until it is dropped.
///
/// Neighbours are known beforehand, for good: no frame of ARP or neighbour discovery can be lost.
pub struct Wan {
    forwarder: Option<JoinHandle<io::Result<()>>>,
    stop: Stop,
    shared: Arc<Mutex<Shared>>,
    plan: Plan,
    a: Netns,
    b: Netns,
    middle: Netns,
}

impl Wan {
    /// Makes the namespaces and begins to forward.
    ///
    /// # Errors
    /// [`WanError`]; without root, iproute2 or ethtool, too.
    pub fn start(plan: Plan) -> Result<Wan, WanError> {
        plan.check()?;
        let (a, b, middle) = (Netns::create("wana")?, Netns::create("wanb")?, Netns::create("wan")?);
        if ipv6_on_this_host() {
            // It would say things of its own.
            middle.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
        }
        for host in [&a, &b] {
            prepare(host)?;
        }
        for rail in 0..plan.rails.len() {
            for (side, namespace) in [(Side::A, &a), (Side::B, &b)] {
                cable(namespace, &Host::new(side, rail), &middle, plan.mtu)?;
            }
        }
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| WanError::Forwarding { what, source }
        };
        let open = || {
            let names = (0..plan.rails.len()).flat_map(|rail| [Side::A, Side::B].map(|side| Host::new(side, rail)));
            names.map(|host| Port::open(&middle_end(&host))).collect::<io::Result<Vec<Port>>>()
        };
        let ports = middle.run(open).map_err(failed("opening packet sockets"))?;
        let mut stream = 0;
        let mut paths_of = |conditions: &[Conditions]| {
            let paths = conditions.iter().map(|conditions| {
                stream += 1;
                Path::new(*conditions, plan.seed, stream)
            });
            paths.collect::<Vec<Path>>()
        };
        let shared = Arc::new(Mutex::new(Shared {
            paths: plan.rails.iter().flat_map(|rail| [paths_of(&rail.there), paths_of(&rail.back)]).collect(),
            ports: vec![PortCounts::default(); ports.len()],
            lateness: Delays::default(),
            usage: Usage::default(),
        }));
        let stop = Stop::new().map_err(failed("making an event"))?;
        let theirs = stop.try_clone().map_err(failed("making an event"))?;
        let pool = Pool::new(usize::from(plan.mtu) + HEADER_BYTES);
        let forwarder = Forwarder::new(ports, pool, Arc::clone(&shared), plan.seed, theirs);
        let realtime = plan.realtime;
        let run = move || {
            let is_realtime = be_punctual(realtime)?;
            forwarder.run(is_realtime)
        };
        let thread = std::thread::Builder::new().name("wan".into()).spawn(run).map_err(failed("starting a thread"))?;
        let wan = Wan { forwarder: Some(thread), stop, shared, plan, a, b, middle };
        // Only now: what the hosts' kernels say first goes through the network, too, and reaches who is there.
        for step in [Wan::bring_up, Wan::introduce] {
            for rail in 0..wan.plan.rails.len() {
                for side in [Side::A, Side::B] {
                    step(&wan, side, rail)?;
                }
            }
        }
        Ok(wan)
    }

    fn bring_up(&self, side: Side, rail: usize) -> Result<(), WanError> {
        self.namespace(side).ip(&["link", "set", &self.host(side, rail).interface, "up"])?;
        Ok(())
    }

    /// Gives a host's interface its addresses, and tells it its neighbour's.
    fn introduce(&self, side: Side, rail: usize) -> Result<(), WanError> {
        let other = Host::new(if side == Side::A { Side::B } else { Side::A }, rail);
        let (host, namespace) = (self.host(side, rail), self.namespace(side));
        let interface = host.interface.as_str();
        namespace.ip(&["address", "add", &format!("{}/24", host.ipv4), "dev", interface])?;
        let mut neighbours = vec![other.ipv4.to_string()];
        if ipv6_on_this_host() {
            for scope in [interface, "default"] {
                namespace.sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "0")?;
            }
            namespace.ip(&["address", "add", &format!("{}/64", host.ipv6), "dev", interface, "nodad"])?;
            neighbours.extend([other.ipv6.to_string(), other.link_local().to_string()]);
        }
        for address in neighbours {
            let entry = ["neigh", "replace", &address, "lladdr", &other.mac, "dev", interface, "nud", "permanent"];
            namespace.ip(&entry)?;
        }
        Ok(())
    }

    /// What it was made by.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The namespace of a host.
    pub fn namespace(&self, side: Side) -> &Netns {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    /// The namespace that is forwarded in, with an interface `to-a0` to host A's `a0`, and so on.
    pub fn middle(&self) -> &Netns {
        &self.middle
    }

    /// A host's interface on a rail.
    ///
    /// # Panics
    /// When there is no such rail.
    pub fn host(&self, side: Side, rail: usize) -> Host {
        assert!(rail < self.plan.rails.len(), "there are {} rails", self.plan.rails.len());
        Host::new(side, rail)
    }

    /// Which path of a rail and direction a flow takes.
    pub fn path_of(&self, flow: &Flow, rail: usize, direction: Direction) -> usize {
        flow.path(lock(&self.shared).paths[direction.port(rail)].len(), self.plan.seed)
    }

    /// What a path does to frames at present.
    pub fn conditions(&self, rail: usize, direction: Direction, path: usize) -> Conditions {
        *lock(&self.shared).paths[direction.port(rail)][path].conditions()
    }

    /// Changes what a path does to the frames that are still to come.
    ///
    /// # Panics
    /// When there is no such path.
    pub fn set_conditions(&self, rail: usize, direction: Direction, path: usize, conditions: Conditions) {
        lock(&self.shared).paths[direction.port(rail)][path].set_conditions(conditions);
    }

    /// What was counted until now.
    pub fn counts(&self) -> WanCounts {
        let shared = lock(&self.shared);
        WanCounts {
            paths: shared.paths.iter().map(|paths| paths.iter().map(|path| *path.counts()).collect()).collect(),
            ports: shared.ports.clone(),
            lateness: shared.lateness.clone(),
            usage: shared.usage,
        }
    }

    /// What became of a path's frames until now.
    ///
    /// # Panics
    /// When there is no such path.
    pub fn path_counts(&self, rail: usize, direction: Direction, path: usize) -> Counts {
        *lock(&self.shared).paths[direction.port(rail)][path].counts()
    }

    /// What frames waited for the rate until now, of those that the queue of a path took.
    ///
    /// # Panics
    /// When there is no such path.
    pub fn waits(&self, rail: usize, direction: Direction, path: usize) -> Delays {
        lock(&self.shared).paths[direction.port(rail)][path].waits().clone()
    }

    /// Stops forwarding, and tells what was counted; the namespaces stay until it is dropped.
    ///
    /// # Errors
    /// When forwarding had failed.
    pub fn stop(&mut self) -> Result<WanCounts, WanError> {
        if let Some(ended) = self.halt() {
            let forwarded = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            forwarded.map_err(|source| WanError::Forwarding { what: "forwarding".into(), source })?;
        }
        Ok(self.counts())
    }

    /// Ends the forwarding thread, and tells how it ended; `None` when it was ended before.
    fn halt(&mut self) -> Option<std::thread::Result<io::Result<()>>> {
        self.stop.set();
        self.forwarder.take().map(JoinHandle::join)
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        // Who wants to know how it ended calls `stop`.
        let _ = self.halt();
    }
}

/// The middle's end of the cable to a host's interface.
fn middle_end(host: &Host) -> String {
    format!("to-{}", host.interface)
}

/// Settings of a host that its interfaces inherit.
fn prepare(host: &Netns) -> Result<(), WanError> {
    for memory in ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"] {
        host.sysctl(memory, TCP_MEMORY)?;
    }
    if ipv6_on_this_host() {
        // There are no routers to ask for.
        host.sysctl("net/ipv6/conf/default/router_solicitations", "0")?;
        // Until all interfaces are up.
        host.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    }
    Ok(())
}

/// Makes the cable from a host to the middle. The middle's end is up, the host's still down.
fn cable(namespace: &Netns, host: &Host, middle: &Netns, mtu: u16) -> Result<(), WanError> {
    let (here, there, mtu) = (host.interface.as_str(), middle_end(host), mtu.to_string());
    namespace.ip(&["link", "add", here, "type", "veth", "peer", "name", &there, "netns", middle.name()])?;
    for (namespace, name) in [(namespace, here), (middle, there.as_str())] {
        // Frames as on a cable: none longer than the MTU, checksums made.
        let off = ["tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off"];
        namespace.exec("ethtool", &[&["-K", name], &off[..]].concat())?;
        namespace.ip(&["link", "set", name, "mtu", &mtu])?;
    }
    namespace.ip(&["link", "set", here, "address", &host.mac])?;
    middle.ip(&["link", "set", &there, "up"])?;
    Ok(())
}

/// Has the calling thread woken when it asked to be; with `realtime`, before all ordinary threads, if it may. Whether it
/// may.
fn be_punctual(realtime: bool) -> io::Result<bool> {
    // Linux lets sleepers sleep 50 µs longer otherwise.
    const SLACK_NS: libc::c_ulong = 1;
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: plain numbers; the parameter lives through the call.
    unsafe {
        if libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(realtime && libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameter) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::Loss;

    #[test]
    fn plans_that_cannot_be_are_refused() {
        let good = Plan::simple(Conditions::default(), 1);
        assert!(good.check().is_ok());
        let rails = |rails| Plan { rails, ..good.clone() };
        let path = |text: &str| Rail::symmetric(&[text.parse().unwrap()]);
        for (plan, word) in [
            (rails(vec![]), "1 to 16"),
            (rails(vec![path(""); 17]), "17 pairs"),
            (rails(vec![Rail { there: vec![], back: vec![Conditions::default()] }]), "0 paths"),
            (rails(vec![path("rate=1M,queue=4000")]), "full frame"),
            (Plan::simple(Conditions { loss: Loss::Uniform(1.5), ..Conditions::default() }, 1), "Uniform(1.5)"),
            (Plan { mtu: 1000, ..good.clone() }, "1280"),
        ] {
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn hosts_have_addresses_of_their_own() {
        let host = Host::new(Side::B, 3);
        assert_eq!((host.interface.as_str(), host.mac.as_str()), ("b3", "02:79:00:03:00:02"));
        assert_eq!(host.link_local(), "fe80::79:ff:fe03:2".parse::<Ipv6Addr>().unwrap());
        assert_ne!(host.ipv6, Host::new(Side::A, 3).ipv6);
    }
}
