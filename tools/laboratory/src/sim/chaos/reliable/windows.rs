use uroce::memory::{Access, Pd, WindowBinding, WindowKind};
use uroce::transport::{Data, Endpoint, SendOperation, SendRequest};
use uroce::wire::Key;

use crate::sim::chaos::layout::Layout;
use crate::sim::random::Random;

use super::flow::{Fault, Kind, Wr};
use super::oracle::Side;
use super::plan::{ACCESS, TARGET_ACCESS};
use super::post::What;
use super::{Program, World};

/// A memory window to a side's target, and its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub kind: WindowKind,
    /// The current key, or the last one before it was invalidated.
    pub key: Key,
    pub state: WindowState,
    /// The number after the peer's last request that uses it.
    pub used: u64,
    /// An earlier key: requests with it are refused.
    pub stale: Option<Key>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowState {
    /// The window gives no access.
    Shut,
    /// A request that binds it, with this key, is posted.
    Binding(Key),
    /// The peer can use it.
    Open,
    /// The peer uses it in no new request; when the earlier ones are done, it ends this way.
    Closing(End),
    /// A request that invalidates it is posted.
    Ending,
    /// The program freed it.
    Gone,
}

/// How a binding ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A request of its owner invalidates it or binds it anew.
    Own,
    /// The peer's SEND with invalidate ends it.
    Peer,
}

/// The bytes at the beginning of the target that no window includes.
const OUTSIDE: usize = 64;

impl Window {
    /// One window of each type.
    pub fn pair(endpoint: &mut Endpoint, pd: Pd) -> Vec<Window> {
        let window = |kind| {
            let key = endpoint.memory().allocate_window(pd, kind);
            Window { kind, key, state: WindowState::Shut, used: 0, stale: None }
        };
        [WindowKind::One, WindowKind::Two].map(window).into()
    }

    /// The range that windows give access to: offset and length, in bytes.
    pub fn range(layout: &Layout) -> (usize, usize) {
        let (start, len) = layout.target();
        (start + OUTSIDE, len - OUTSIDE)
    }

    /// Whether it is bound to the target, or can be.
    pub fn is_bound(&self) -> bool {
        !matches!(self.state, WindowState::Shut | WindowState::Gone)
    }

    /// Ends the binding: its key is refused from now on.
    pub fn end(&mut self) {
        (self.state, self.stale) = (WindowState::Shut, Some(self.key));
    }

    fn next_key(&self) -> Key {
        Key(self.key.0 & !0xff | (self.key.0.wrapping_add(1) & 0xff))
    }

    fn binding(&self, side: &Side, layout: &Layout) -> WindowBinding {
        let (start, len) = Window::range(layout);
        WindowBinding {
            window: self.key,
            new_key: self.next_key(),
            region: side.remote_key,
            address: side.arena.address(start),
            len: len as u64,
            access: ACCESS.difference(Access::LOCAL_WRITE),
        }
    }
}

/// The next step of a window.
enum Due {
    Post(SendOperation, usize),
    Invalidate(usize),
}

impl World {
    /// Continues the lives of both sides' windows: posts a request that is due on side `s`. Returns whether one was
    /// posted.
    pub(super) fn tend_windows(&mut self, c: usize, s: usize) -> bool {
        let connection = &self.watch.observer.connections[c];
        if connection.flows.iter().any(|flow| flow.void || flow.failed || flow.bad.is_some()) {
            return false;
        }
        self.renew_region(c, s);
        match self.next_about_windows(c, s) {
            None => return false,
            Some(Due::Invalidate(number)) => self.post(c, s, What::Invalidate(number)),
            Some(Due::Post(operation, number)) => self.post_local(c, s, operation, number, None),
        }
        true
    }

    fn next_about_windows(&mut self, c: usize, s: usize) -> Option<Due> {
        let Program { window_random: random, .. } = &mut self.programs[c];
        let connection = &mut self.watch.observer.connections[c];
        let (layout, done) = (connection.layout, connection.flows[1 - s].completed);
        for (number, window) in connection.sides[1 - s].windows.iter_mut().enumerate() {
            if window.state == WindowState::Closing(End::Peer) {
                (window.state, window.stale) = (WindowState::Ending, Some(window.key));
                return Some(Due::Invalidate(number));
            }
        }
        for number in 0..connection.sides[s].windows.len() {
            let window = connection.sides[s].windows[number];
            let is_renewed = connection.sides[s].is_renewing;
            let bind = || SendOperation::BindWindow(window.binding(&connection.sides[s], &layout));
            let (state, due) = match window.state {
                WindowState::Shut if !is_renewed && random.chance(0.2) => {
                    (WindowState::Binding(window.next_key()), Some(bind()))
                }
                WindowState::Open if random.chance(0.1) => {
                    let end = if window.kind == WindowKind::Two && random.chance(0.5) { End::Peer } else { End::Own };
                    (WindowState::Closing(end), None)
                }
                WindowState::Closing(End::Own) if done >= window.used => match window.kind {
                    WindowKind::One => (WindowState::Binding(window.next_key()), Some(bind())),
                    WindowKind::Two => (WindowState::Ending, Some(SendOperation::LocalInvalidate(window.key))),
                },
                _ => continue,
            };
            connection.sides[s].windows[number].state = state;
            if let Some(operation) = due {
                return Some(Due::Post(operation, number));
            }
        }
        None
    }

    /// Registers the target region of side `s` anew while the peer does not use it. That must be refused while windows
    /// are bound to it.
    fn renew_region(&mut self, c: usize, s: usize) {
        let now = self.network.now();
        let Program { window_random: random, keys, plan, .. } = &mut self.programs[c];
        let connection = &mut self.watch.observer.connections[c];
        let (layout, done) = (connection.layout, connection.flows[1 - s].completed);
        let side = &mut connection.sides[s];
        if side.windows.is_empty() || side.deregistered {
            return;
        }
        if !side.is_renewing {
            side.is_renewing = random.chance(0.05);
            return;
        }
        if done < side.region_used {
            return;
        }
        let memory = self.network.endpoint(side.node).memory();
        let is_bound = side.windows.iter().any(Window::is_bound);
        let may_be_bound = |window: &Window| matches!(window.state, WindowState::Binding(_) | WindowState::Ending);
        if side.windows.iter().any(may_be_bound) {
            return;
        }
        let key = side.remote_key;
        let access = TARGET_ACCESS | if plan.relaxed[s] { Access::RELAXED_ORDERING } else { Access::empty() };
        side.is_renewing = false;
        if is_bound {
            let refused = [memory.reregister(key, None, Some(access)).is_err(), memory.deregister(key).is_err()];
            if refused != [true; 2] {
                let text = format!("a region with windows bound to it was changed or taken away: {refused:?}");
                self.watch.observer.violation_at(now, c, s, text);
            }
        } else if random.chance(0.3) {
            memory.reregister(key, None, Some(access)).expect("no window is bound to it");
        } else {
            memory.deregister(key).expect("no window is bound to it");
            side.remote_key = side.arena.register(memory, side.pd, layout.target(), access);
            keys[s].retain(|other| *other != key);
            keys[s].push(side.remote_key);
        }
    }

    /// Posts a request that sends no packet.
    pub(super) fn post_local(
        &mut self,
        c: usize,
        s: usize,
        operation: SendOperation,
        window: usize,
        fault: Option<Fault>,
    ) {
        let now = self.network.now();
        let kind = match operation {
            SendOperation::BindWindow(_) => Kind::Bind,
            _ => Kind::LocalInvalidate,
        };
        let connection = &mut self.watch.observer.connections[c];
        let flow = &mut connection.flows[s];
        let index = flow.posted();
        let fence = self.programs[c].window_random.chance(0.3);
        flow.wrs.push_back(Wr {
            fence,
            fault,
            window: Some(window),
            ..Wr::nothing(index, kind, flow.posted_psn, flow.posted_messages)
        });
        if fault.is_some() {
            flow.bad = flow.bad.or(Some(index));
            flow.void = true;
        }
        let request = SendRequest { fence, ..SendRequest::new(index, operation, Data::EMPTY) };
        self.programs[c].posted[s] += 1;
        let side = &connection.sides[s];
        if let Err(error) = self.network.endpoint(side.node).post_send(now, side.qpn, request) {
            let text = format!("request {index} was not posted: {error}");
            self.watch.observer.violation_at(now, c, s, text);
        }
    }

    /// Posts a binding that must fail, to an unknown region. Returns whether it did.
    pub(super) fn post_bad_binding(&mut self, c: usize, s: usize) -> bool {
        let connection = &self.watch.observer.connections[c];
        let (side, layout) = (&connection.sides[s], &connection.layout);
        let Some((number, window)) = side.windows.iter().enumerate().find(|(_, window)| !window.is_bound()) else {
            return false;
        };
        if window.state == WindowState::Gone {
            return false;
        }
        let binding = window.binding(side, layout);
        let binding = WindowBinding { region: Key(binding.region.0 ^ 0x5500), ..binding };
        self.post_local(c, s, SendOperation::BindWindow(binding), number, Some(Fault::Binding));
        true
    }

    /// Frees a window as the program, while it can be in use.
    pub(super) fn free_window(&mut self, c: usize, s: usize, number: usize) {
        let now = self.network.now();
        let oracle = &mut self.watch.observer;
        oracle.take_away(now, c, s, Some(number));
        let side = &mut oracle.connections[c].sides[s];
        side.windows[number].state = WindowState::Gone;
        let freed = self.network.endpoint(side.node).memory().deallocate_window(side.windows[number].key);
        if let Err(error) = freed {
            oracle.violation_at(now, c, s, format!("window {number} was not freed: {error}"));
        }
    }
}

/// A random window of a side that the peer can use now; `None` when there is none.
pub(super) fn open(windows: &[Window], random: &mut Random) -> Option<usize> {
    let open: Vec<_> = (0..windows.len()).filter(|number| windows[*number].state == WindowState::Open).collect();
    (!open.is_empty()).then(|| open[random.below(open.len() as u64) as usize])
}
