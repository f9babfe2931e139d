//! Next hops: which Ethernet header a packet to a destination gets, by the kernel's routes and neighbours.
//!
//! The kernel resolves neighbours (ARP, neighbour discovery), and its answers arrive on a netlink socket. Packets to a
//! neighbour that is not known yet wait here: a bounded number, for a bounded time.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

use rustc_hash::FxHashMap;

use super::hop_table::HopTable;
use super::neighbour::{Need, Neighbour, Released, Step};
use super::netlink::{self, Event, Events, Interface, Mac, Netlink, Route, RouteKind};
use super::{EthernetHeader, Hop, HopError, gid};
use crate::time::{Duration, Instant};
use crate::wire::Addresses;

/// Interval at which the event socket is read while nothing is awaited: a system call costs as much as a packet.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
const LOOK_INTERVAL_WAITING: Duration = Duration::from_micros(50);

/// Routes that are looked up again at one poll after a change. Each costs a system call of some 5 µs, and packets wait
/// meanwhile.
const REFRESH_BATCH: usize = 32;

/// Interval between two such batches.
const REFRESH_INTERVAL: Duration = Duration::from_millis(1);

/// The table of next hops of one interface; `W` is what the link remembers of a packet that waits.
pub(crate) struct NextHops<W> {
    netlink: Netlink,
    events: Events,
    interface: u32,
    /// The interface and the VLAN interfaces on top of it.
    interfaces: Vec<Interface>,
    /// The neighbour of each; `None` while there is no route.
    hops: HopTable<Option<u32>>,
    neighbours: Vec<Neighbour<W>>,
    by_next_hop: FxHashMap<(u32, IpAddr), u32>,
    /// Numbers of `neighbours` that are free.
    free: Vec<u32>,
    /// Packets that wait for all of them.
    waiting: usize,
    /// The neighbours that `poll` must attend to.
    busy: Vec<u32>,
    /// The hop whose route is looked up next, and how many are left after a change.
    refresh_at: usize,
    refresh_left: usize,
    /// Changes after which all routes were looked up.
    route_changes: u64,
    is_refreshing: bool,
    interfaces_changed: bool,
    next_look: Instant,
    counters: Counters,
}

counters! {
    /// Counters of neighbours and routes.
    pub(crate) struct Counters {
        /// Requests for neighbours to the kernel.
        neighbours_asked,
        /// Neighbours that did not answer.
        neighbours_failed,
        /// Times that all routes were looked up again because of a change.
        routes_refreshed,
    }
}

impl<W> NextHops<W> {
    /// Opens the sockets in the calling thread's network namespace.
    pub(crate) fn open(interface: u32) -> io::Result<NextHops<W>> {
        // Events first: what changes while the tables are read is then not missed.
        let events = Events::open()?;
        let mut netlink = Netlink::open()?;
        let interfaces = own_interfaces(&mut netlink, interface)?;
        Ok(NextHops {
            netlink,
            events,
            interface,
            interfaces,
            hops: HopTable::new(),
            neighbours: Vec::new(),
            by_next_hop: FxHashMap::default(),
            free: Vec::new(),
            waiting: 0,
            busy: Vec::new(),
            refresh_at: 0,
            refresh_left: 0,
            route_changes: 0,
            is_refreshing: false,
            interfaces_changed: false,
            next_look: Instant::ZERO,
            counters: Counters::default(),
        })
    }

    /// The hop from `source` to `destination`: the same for the same addresses, until it is replaced.
    pub(crate) fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError> {
        let (source, destination) = (source.to_canonical(), destination.to_canonical());
        let known = self.hops.find(source, destination);
        if let Some(hop) = known.filter(|hop| self.neighbour(*hop).is_some()) {
            return Ok(hop);
        }
        let neighbour = self.resolve(source, destination)?;
        if let Some(hop) = known {
            self.lead(hop, Some(neighbour));
            return Ok(hop);
        }
        self.neighbours[neighbour as usize].hops += 1;
        let (hop, forgotten) = self.hops.insert(source, destination, Some(neighbour));
        forgotten.flatten().into_iter().for_each(|old| self.let_go(old));
        Ok(hop)
    }

    /// The hop for a packet to `hop`: that one, or when it was replaced the one of the packet's addresses.
    pub(crate) fn current(&mut self, hop: Hop, packet: &[u8]) -> Hop {
        if self.hops.use_hop(hop).is_some() {
            return hop;
        }
        let found = Addresses::of_packet(packet).and_then(|of| self.hop(of.source(), of.destination()).ok());
        found.unwrap_or(hop)
    }

    fn neighbour(&self, hop: Hop) -> Option<u32> {
        *self.hops.get(hop)?
    }

    /// Makes a hop lead to another neighbour, or to none.
    fn lead(&mut self, hop: Hop, neighbour: Option<u32>) {
        neighbour.into_iter().for_each(|new| self.neighbours[new as usize].hops += 1);
        let old = self.hops.get_mut(hop).and_then(|of| std::mem::replace(of, neighbour));
        old.into_iter().for_each(|old| self.let_go(old));
    }

    /// Records that a hop leads to this neighbour no longer.
    fn let_go(&mut self, index: u32) {
        self.neighbours[index as usize].hops -= 1;
        self.forget_unneeded(index);
    }

    /// Forgets a neighbour to which no hop leads, when no packet waits for it any more.
    fn forget_unneeded(&mut self, index: u32) {
        let neighbour = &mut self.neighbours[index as usize];
        if neighbour.is_unneeded() {
            neighbour.clear();
            self.by_next_hop.remove(&(neighbour.interface, neighbour.address));
            self.free.push(index);
        }
    }

    /// What to do with a packet to `hop` now. After [`Step::Wait`], [`NextHops::wait`] takes it.
    pub(crate) fn step(&mut self, now: Instant, hop: Hop) -> Step {
        let Some(index) = self.neighbour(hop) else { return Step::Drop };
        let neighbour = &mut self.neighbours[index as usize];
        let step = neighbour.step(now);
        if matches!(step, Step::Send(_)) && neighbour.is_stale() && !neighbour.in_busy {
            neighbour.in_busy = true;
            self.busy.push(index);
        }
        step
    }

    /// The header that packets to `hop` get now.
    pub(crate) fn header(&self, hop: Hop) -> Option<EthernetHeader> {
        self.neighbours[self.neighbour(hop)? as usize].header()
    }

    /// Keeps a packet until its neighbour is resolved; returns it when too many wait already.
    pub(crate) fn wait(&mut self, hop: Hop, packet: W) -> Result<(), W> {
        let Some(index) = self.neighbour(hop) else { return Err(packet) };
        let neighbour = &mut self.neighbours[index as usize];
        neighbour.wait(packet)?;
        self.waiting += 1;
        if !neighbour.in_busy {
            neighbour.in_busy = true;
            self.busy.push(index);
            // Ask at the next poll, not at the next look.
            self.next_look = Instant::ZERO;
        }
        Ok(())
    }

    /// Reads the kernel's events, requests neighbours, and appends the packets whose wait is over to `released`. Cheap
    /// when nothing is awaited and the last call was not long ago.
    pub(crate) fn poll(&mut self, now: Instant, released: &mut Vec<Released<W>>) {
        if now < self.next_look {
            return;
        }
        self.read_events(now, released);
        for at in (0..self.busy.len()).rev() {
            let index = self.busy[at];
            if !self.attend(now, index, released) {
                self.neighbours[index as usize].in_busy = false;
                self.busy.swap_remove(at);
                self.forget_unneeded(index);
            }
        }
        self.next_look = now
            + match (self.waiting, self.refresh_left) {
                (1.., _) => LOOK_INTERVAL_WAITING,
                (0, 1..) => REFRESH_INTERVAL,
                (0, 0) => LOOK_INTERVAL,
            };
    }

    /// When [`NextHops::poll`] has something to do without an event; `None` for never.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = |&index: &u32| self.neighbours[index as usize].answer_due().unwrap_or(self.next_look);
        let refresh = (self.refresh_left > 0).then_some(self.next_look);
        self.busy.iter().map(due).chain(refresh).min()
    }

    /// The number of packets that wait for neighbours.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The counters so far.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// A counter of changes of routes or interfaces, neighbours excepted, that all hops reflect.
    pub(crate) fn route_changes(&self) -> u64 {
        self.route_changes
    }

    /// Whether the interface is still there.
    pub(crate) fn interface_is_present(&self) -> bool {
        self.interfaces.iter().any(|i| i.index == self.interface)
    }

    /// Whether the interface is up, as of its last change.
    pub(crate) fn interface_is_up(&self) -> bool {
        self.interfaces.iter().any(|i| i.index == self.interface && i.up)
    }

    /// The addresses of the interface and of the VLANs on top of it, as its GID table has them; empty when the
    /// interface is gone.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let own = self.interfaces.iter().find(|i| i.index == self.interface);
        own.map_or_else(Vec::new, |own| gid::addresses(own, &self.interfaces))
    }

    /// Whether the interfaces or their addresses have changed since the last call.
    pub(crate) fn take_interface_change(&mut self) -> bool {
        std::mem::take(&mut self.interfaces_changed)
    }

    /// A descriptor that is readable when the kernel reports a change.
    pub(crate) fn event_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    fn read_events(&mut self, now: Instant, released: &mut Vec<Released<W>>) {
        let NextHops { events, by_next_hop, neighbours, interfaces, waiting, counters, .. } = self;
        let (mut interfaces_changed, mut routes_changed, mut lost) = (false, false, false);
        events.read(|event| match event {
            Event::Routes => routes_changed = true,
            Event::Interfaces => interfaces_changed = true,
            Event::Lost => lost = true,
            Event::Neighbour(news) => {
                if let Some(&index) = by_next_hop.get(&(news.interface, news.address)) {
                    let neighbour = &mut neighbours[index as usize];
                    counters.neighbours_failed += u64::from(neighbour.hear(now, &news, interfaces));
                    *waiting -= neighbour.release(released);
                }
            }
        });
        if interfaces_changed || lost {
            self.refresh_interfaces(now, lost, released);
        }
        if interfaces_changed || routes_changed || lost {
            self.counters.routes_refreshed += 1;
            self.refresh_left = self.hops.len();
            self.is_refreshing = true;
        }
        self.refresh_routes();
    }

    /// Requests a neighbour, or requests it again. False when there is nothing more to do for it.
    fn attend(&mut self, now: Instant, index: u32, released: &mut Vec<Released<W>>) -> bool {
        let neighbour = &mut self.neighbours[index as usize];
        let need = neighbour.attend(now);
        match need {
            Need::Nothing => false,
            Need::Patience => true,
            Need::Notice | Need::Request => {
                self.counters.neighbours_asked += 1;
                // If a notice fails the old address goes on being used, as it was until now.
                let _ = self.netlink.use_neighbour(neighbour.interface, neighbour.address);
                need == Need::Request
            }
            Need::Release => {
                self.counters.neighbours_failed += 1;
                self.waiting -= neighbour.release(released);
                false
            }
        }
    }

    /// Reads the interfaces again, and updates what depends on them.
    fn refresh_interfaces(&mut self, now: Instant, neighbours_too: bool, released: &mut Vec<Released<W>>) {
        let mut reload = neighbours_too;
        if let Ok(interfaces) = own_interfaces(&mut self.netlink, self.interface)
            && interfaces != self.interfaces
        {
            self.interfaces = interfaces;
            self.interfaces_changed = true;
            reload = true;
            self.neighbours.iter_mut().for_each(|neighbour| neighbour.renew(&self.interfaces));
        }
        if reload {
            self.load_neighbours(now, released);
        }
    }

    /// Looks up some of the routes that a change can have moved.
    fn refresh_routes(&mut self) {
        for _ in 0..self.refresh_left.min(REFRESH_BATCH) {
            self.refresh_at = (self.refresh_at + 1) % self.hops.len();
            let (hop, source, destination) = self.hops.at(self.refresh_at);
            match self.resolve(source, destination) {
                Ok(neighbour) => self.lead(hop, Some(neighbour)),
                // The kernel was not to be asked, which does not say that there is no way: the one of until now stays.
                Err(HopError::Netlink(..)) => {}
                Err(_) => self.lead(hop, None),
            }
            self.refresh_left -= 1;
        }
        if self.is_refreshing && self.refresh_left == 0 {
            self.is_refreshing = false;
            self.route_changes += 1;
        }
    }

    fn load_neighbours(&mut self, now: Instant, released: &mut Vec<Released<W>>) {
        let Ok(all) = self.netlink.neighbours() else { return };
        for news in all {
            if let Some(&index) = self.by_next_hop.get(&(news.interface, news.address)) {
                let neighbour = &mut self.neighbours[index as usize];
                self.counters.neighbours_failed += u64::from(neighbour.hear(now, &news, &self.interfaces));
                self.waiting -= neighbour.release(released);
            }
        }
    }

    /// The neighbour that a packet goes to first. The caller makes a hop lead to it.
    fn resolve(&mut self, source: IpAddr, destination: IpAddr) -> Result<u32, HopError> {
        let route = self.route(source, destination)?;
        let own = |i: &Interface| i.addresses.contains(&destination);
        if route.kind == RouteKind::Local || self.interfaces.iter().any(own) {
            return Err(HopError::OwnAddress(destination));
        }
        let Some(via) = self.interfaces.iter().find(|i| i.index == route.interface) else {
            return Err(HopError::OtherInterface { destination, interface: self.name_of(route.interface) });
        };
        let fixed_mac = match route.kind {
            RouteKind::Broadcast => Some([0xff; 6]),
            RouteKind::Multicast => Some(netlink::multicast_mac(destination)),
            _ if destination.is_multicast() => Some(netlink::multicast_mac(destination)),
            _ => None,
        };
        // The neighbour of a group is the group itself, also behind a gateway.
        let next_hop = if fixed_mac.is_some() { destination } else { route.next_hop };
        if let Some(&index) = self.by_next_hop.get(&(route.interface, next_hop)) {
            return Ok(index);
        }
        let ipv6_is_off = via.addresses.iter().all(IpAddr::is_ipv4);
        let fixed_mac = fixed_mac.or_else(|| match next_hop {
            IpAddr::V6(ip) if ipv6_is_off => netlink::mac_of_link_local(ip),
            _ => None,
        });
        Ok(self.add_neighbour(route.interface, next_hop, fixed_mac))
    }

    /// Adds a neighbour, with what is known of it. Returns its number.
    fn add_neighbour(&mut self, interface: u32, address: IpAddr, fixed_mac: Option<Mac>) -> u32 {
        let mut neighbour = Neighbour::new(interface, address, fixed_mac);
        neighbour.renew(&self.interfaces);
        if fixed_mac.is_none()
            && let Ok(all) = self.netlink.neighbours()
            && let Some(known) = all.iter().find(|known| (known.interface, known.address) == (interface, address))
        {
            neighbour.look_up(known, &self.interfaces);
        }
        neighbour.reserve();
        let index = match self.free.pop() {
            Some(index) => {
                self.neighbours[index as usize] = neighbour;
                index
            }
            None => {
                self.neighbours.push(neighbour);
                self.neighbours.len() as u32 - 1
            }
        };
        self.by_next_hop.insert((interface, address), index);
        index
    }

    /// The route to a destination.
    fn route(&mut self, source: IpAddr, destination: IpAddr) -> Result<Route, HopError> {
        let interface = self.sending_interface(source, destination);
        let route = self
            .netlink
            .route(source, destination, interface)
            .map_err(|error| HopError::Netlink(destination, error.to_string()))?;
        match route {
            Some(Route { kind: RouteKind::Unreachable, .. }) => Err(HopError::NoRoute(source, destination)),
            Some(route) => Ok(route),
            // Where IPv6 is off there are no routes for it, but link-local addresses are made from MACs anyway.
            None => match destination {
                IpAddr::V6(ip) if ip.is_unicast_link_local() && netlink::mac_of_link_local(ip).is_some() => Ok(Route {
                    kind: RouteKind::Unicast,
                    interface: interface.unwrap_or(self.interface),
                    next_hop: destination,
                }),
                _ => Err(HopError::NoRoute(source, destination)),
            },
        }
    }

    /// The interface for a destination that does not determine it: link-local and multicast addresses are the same on
    /// every interface, so the source address decides.
    fn sending_interface(&self, source: IpAddr, destination: IpAddr) -> Option<u32> {
        let ambiguous = destination.is_multicast()
            || matches!(destination, IpAddr::V6(ip) if ip.is_unicast_link_local())
            || matches!(destination, IpAddr::V4(ip) if ip.is_link_local() || ip.is_broadcast());
        let with_source = || self.interfaces.iter().find(|i| i.addresses.contains(&source)).map(|i| i.index);
        ambiguous.then(|| with_source().unwrap_or(self.interface))
    }

    fn name_of(&mut self, index: u32) -> String {
        let all = self.netlink.interfaces().unwrap_or_default();
        all.into_iter().find(|i| i.index == index).map_or_else(|| format!("interface {index}"), |i| i.name)
    }
}

/// The interface and its VLAN interfaces.
fn own_interfaces(netlink: &mut Netlink, index: u32) -> io::Result<Vec<Interface>> {
    let mut all = netlink.interfaces()?;
    // A VLAN interface's tag goes onto the interface below only; two tags are not carried.
    all.retain(|i| i.index == index || i.vlan.is_some_and(|v| v.lower == index));
    for interface in &mut all {
        if interface.index == index {
            interface.vlan = None;
        }
        // These change by our own doing and do not matter to headers.
        interface.xdp_program = None;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::hop_table::MAX_HOPS;
    use super::super::neighbour::ASK_TRIES;
    use super::*;
    use crate::wire::Flow;

    #[test]
    fn own_loopback_address_and_unknown_hops_are_told_apart() {
        let mut hops = open::<()>();
        let own: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(hops.hop(own, own), Err(HopError::OwnAddress(own)));
        assert_eq!(hops.step(Instant::ZERO, Hop(7)), Step::Drop);
        assert_eq!(hops.wait(Hop(7), ()), Err(()));
        assert_eq!(hops.waiting(), 0);
    }

    const OWN: Ipv4Addr = Ipv4Addr::LOCALHOST;

    /// A group: the loopback leads to all of these, each is its own neighbour, and its MAC follows from it.
    fn group(number: usize) -> IpAddr {
        IpAddr::from((0xef00_0000 + number as u32).to_be_bytes())
    }

    fn mac(number: usize) -> Mac {
        netlink::multicast_mac(group(number))
    }

    /// The beginning of a packet to a group.
    fn packet(number: usize) -> Vec<u8> {
        let IpAddr::V4(destination) = group(number) else { unreachable!("groups are IPv4 ones") };
        let addresses = Addresses::V4 { source: OWN, destination };
        let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        let mut packet = vec![0; flow.header_bytes()];
        flow.write(&mut packet, 0, 0);
        packet
    }

    fn open<W>() -> NextHops<W> {
        let lo = Netlink::open().unwrap().interfaces().unwrap().into_iter().find(|i| i.loopback).unwrap();
        let mut hops = NextHops::open(lo.index).unwrap();
        give_mac(&mut hops);
        hops
    }

    /// The loopback has none that frames could come from.
    fn give_mac<W>(hops: &mut NextHops<W>) {
        hops.interfaces.iter_mut().for_each(|interface| interface.mac = Some([2, 0, 0, 0, 0, 1]));
    }

    fn hop<W>(hops: &mut NextHops<W>, number: usize) -> Hop {
        hops.hop(OWN.into(), group(number)).unwrap()
    }

    /// Where a packet to that group goes whose sender has this hop: as the link asks.
    fn destination<W>(hops: &mut NextHops<W>, hop: Hop, number: usize) -> Mac {
        let current = hops.current(hop, &packet(number));
        let Step::Send(header) = hops.step(Instant::ZERO, current) else { panic!("{hop:?} leads nowhere") };
        assert_eq!(hops.header(current), Some(header));
        let mut bytes = [0; EthernetHeader::BYTES_MAX];
        header.write(&mut bytes, 4);
        bytes[..6].try_into().unwrap()
    }

    /// One more than can be remembered, then half as many again, each new one after the last is given up: all are found, and what
    /// is remembered stays bounded.
    #[test]
    fn destinations_one_after_the_other_are_without_end() {
        let mut hops = open::<()>();
        let given: Vec<Hop> = (0..3 * MAX_HOPS / 2).map(|number| hop(&mut hops, number)).collect();
        assert_eq!((hops.hops.len(), hops.neighbours.len() - hops.free.len()), (MAX_HOPS, MAX_HOPS));
        assert!(hops.neighbours.len() <= MAX_HOPS + 1 && hops.by_next_hop.len() == MAX_HOPS);
        for number in [0, 1, MAX_HOPS / 2 - 1] {
            assert_eq!((hops.step(Instant::ZERO, given[number]), hops.header(given[number])), (Step::Drop, None));
        }
        for number in [0, 1, MAX_HOPS / 2, MAX_HOPS, given.len() - 1] {
            assert_eq!(destination(&mut hops, given[number], number), mac(number), "destination {number}");
        }
    }

    /// One queue pair sends all the time, another one once before and once after twice as many others as can be remembered have
    /// come and gone: what they send goes where it went.
    #[test]
    fn a_hop_that_is_held_leads_where_it_did() {
        let mut hops = open::<()>();
        let (busy, idle) = (hop(&mut hops, 0), hop(&mut hops, 1));
        assert_eq!(destination(&mut hops, idle, 1), mac(1));
        for number in 2..2 * MAX_HOPS + 2 {
            hop(&mut hops, number);
            if number % 1000 == 0 {
                assert_eq!(destination(&mut hops, busy, 0), mac(0));
            }
        }
        assert_eq!((hop(&mut hops, 0), hops.step(Instant::ZERO, idle)), (busy, Step::Drop), "only one is in use");
        for _ in 0..2 {
            assert_eq!(destination(&mut hops, idle, 1), mac(1));
        }
        // Whose packet has no addresses that there is a way between, goes nowhere.
        let current = hops.current(idle, &[0x45; 7]);
        assert_eq!(hops.step(Instant::ZERO, current), Step::Drop);
    }

    /// The hop is forgotten while a packet waits for its neighbour: it goes on waiting, and is given back when nobody answers.
    #[test]
    fn a_packet_that_waits_outlives_its_hop() {
        let mut hops = open();
        let first = hop(&mut hops, 0);
        let mut silent = Neighbour::new(hops.interface, group(0), None);
        silent.hops = 1;
        let mut answer_due = Instant::ZERO;
        for _ in 0..ASK_TRIES {
            assert_eq!(silent.attend(answer_due), Need::Request);
            answer_due = silent.answer_due().unwrap();
        }
        hops.neighbours[0] = silent;
        assert_eq!((hops.step(Instant::ZERO, first), hops.wait(first, "packet")), (Step::Wait, Ok(())));
        for number in 1..=2 * MAX_HOPS {
            hop(&mut hops, number);
        }
        assert_eq!((hops.step(Instant::ZERO, first), hops.waiting()), (Step::Drop, 1));
        let mut released = Vec::new();
        hops.poll(Instant::ZERO, &mut released);
        assert!(released.is_empty());
        hops.poll(answer_due, &mut released);
        assert!(matches!(released[..], [Released { packet: "packet", header: None }]));
        assert_eq!((hops.waiting(), hops.by_next_hop.len()), (0, MAX_HOPS));
        // The neighbour is forgotten, too: a packet to it finds a new one.
        give_mac(&mut hops);
        assert_eq!(destination(&mut hops, first, 0), mac(0));
    }
}
