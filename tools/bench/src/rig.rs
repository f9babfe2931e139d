//! Where it happens: two namespaces, a veth cable, a core for each side, and the clock that both sides obey.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rxe_rig::netns::{Netns, VethPair};
use serde_json::{Value, json};
use uroce::link::xdp::AttachMode;

use crate::Failure;
use crate::figure::Counts;

/// The MTU of the cable: path MTU 4096 and all headers.
const MTU: u16 = 4500;

/// That of networks with jumbo frames.
pub const JUMBO_MTU: u16 = 9000;

/// Before the clock runs: caches, neighbours and windows fill.
const WARM_UP: Duration = Duration::from_millis(60);

/// Two hosts on a cable.
pub struct Rig {
    pair: VethPair,
    /// The sender's core and the receiver's.
    cores: [usize; 2],
    mode: AttachMode,
    balanced: bool,
    realtime: bool,
    counters: bool,
    crowd: Mutex<Crowd>,
    kernel: String,
    arbiter: PathBuf,
}

/// Who else uses the sides' cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// Nobody: each side has a core of its own.
    Nobody,
    /// Both sides are on one core.
    EachOther,
    /// A thread on each core that never sleeps.
    BusyLoops,
}

/// The other side ended early; it says why.
#[derive(Debug)]
pub struct Abandoned;

impl std::fmt::Display for Abandoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the other side ended early")
    }
}

impl std::error::Error for Abandoned {}

/// Which side: the sender (or who asks first), or the receiver (or who answers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Sender = 0,
    Receiver = 1,
}

impl Rig {
    /// Makes the namespaces and the cable.
    ///
    /// # Errors
    /// Without root or two cores.
    pub fn new(mode: AttachMode, balanced: bool, realtime: bool, counters: bool) -> Result<Rig, Failure> {
        // SAFETY: no arguments, no effect.
        if unsafe { libc::geteuid() } != 0 {
            return Err("network namespaces and AF_XDP need root: run it with sudo".into());
        }
        let &[first, second, ..] = &usable_cores()[..] else {
            return Err("it takes two cores, one for each side; this process may use only one".into());
        };
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        // Built beside this program.
        let arbiter = std::env::current_exe()?.with_file_name("uroce");
        let rig = Rig {
            pair: VethPair::create(MTU)?,
            cores: [first, second],
            mode,
            balanced,
            realtime,
            counters,
            crowd: Mutex::new(Crowd::Nobody),
            kernel,
            arbiter,
        };
        for side in [Side::Sender, Side::Receiver] {
            // As veth comes. The rig switches checksum offload off, which would rob TCP and UDP of segmentation offload;
            // frames over AF_XDP never see it.
            rig.namespace(side).exec("ethtool", &["-K", rig.interface(side), "tx", "on", "rx", "on"])?;
            if balanced {
                rig.steer(side)?;
            }
        }
        Ok(rig)
    }

    /// Has what arrives at `side` handled by its own core.
    fn steer(&self, side: Side) -> Result<(), Failure> {
        let file = format!("/sys/class/net/{}/queues/rx-0/rps_cpus", self.interface(side));
        let mask = format!("{:x}", 1u64 << (self.cores[side as usize] % 64));
        self.namespace(side).run(|| std::fs::write(&file, &mask)).map_err(|e| format!("{file} = {mask}: {e}"))?;
        Ok(())
    }

    fn namespace(&self, side: Side) -> &Netns {
        match side {
            Side::Sender => &self.pair.a,
            Side::Receiver => &self.pair.b,
        }
    }

    /// The end of the cable at `side`.
    pub fn end(side: Side) -> rxe_rig::netns::End {
        match side {
            Side::Sender => VethPair::A,
            Side::Receiver => VethPair::B,
        }
    }

    /// The interface's name at `side`.
    pub fn interface(&self, side: Side) -> &'static str {
        Rig::end(side).interface
    }

    /// Has the cable another MTU while `work` runs.
    ///
    /// # Errors
    /// What `work` says, or why the MTU cannot be changed.
    pub fn with_mtu<T>(&self, mtu: u16, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let set = |mtu: u16| {
            [Side::Sender, Side::Receiver].into_iter().try_for_each(|side| {
                let interface = self.interface(side);
                self.namespace(side).ip(&["link", "set", interface, "mtu", &mtu.to_string()]).map(drop)
            })
        };
        set(mtu)?;
        let result = work();
        set(MTU)?;
        result
    }

    /// Has others use the sides' cores while `work` runs.
    ///
    /// # Errors
    /// What `work` says.
    pub fn beside<T>(&self, crowd: Crowd, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let set = |crowd| *self.crowd.lock().expect("nobody panics with it") = crowd;
        set(crowd);
        let result = work();
        set(Crowd::Nobody);
        result
    }

    /// Whether the stack's counters are to be shown.
    pub fn shows_counters(&self) -> bool {
        self.counters
    }

    /// The program `uroce`, by which programs share an interface.
    pub fn arbiter(&self) -> &Path {
        &self.arbiter
    }

    /// Where XDP programs shall be attached.
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Runs both sides, each on a thread in its namespace and on its core, and returns what was counted on the side that
    /// counts.
    ///
    /// # Errors
    /// What either side says.
    pub fn run<A, B>(&self, seconds: f64, sender: A, receiver: B) -> Result<Counts, Failure>
    where
        A: FnOnce(&Meeting) -> Result<Option<Counts>, Failure> + Send,
        B: FnOnce(&Meeting) -> Result<Option<Counts>, Failure> + Send,
    {
        let meeting = Meeting::default();
        if self.realtime {
            // The conductor sleeps, and must be awake in time.
            take_precedence(2)?;
        }
        let crowd = *self.crowd.lock().expect("nobody panics with it");
        let [sender_core, receiver_core] = if crowd == Crowd::EachOther { [self.cores[0]; 2] } else { self.cores };
        let is_done = &AtomicBool::new(false);
        let (a, b) = std::thread::scope(|scope| {
            if crowd == Crowd::BusyLoops {
                for core in self.cores {
                    scope.spawn(move || spin_on(core, is_done));
                }
            }
            let a = scope.spawn(|| self.pair.a.run(|| meeting.attend(sender_core, self.realtime, sender)));
            let b = scope.spawn(|| self.pair.b.run(|| meeting.attend(receiver_core, self.realtime, receiver)));
            meeting.conduct(Duration::from_secs_f64(seconds));
            let ended = (a.join(), b.join());
            is_done.store(true, Ordering::Relaxed);
            ended
        });
        let unpanicked = |result: std::thread::Result<_>| result.unwrap_or_else(|p| std::panic::resume_unwind(p));
        let (a, b): (Result<_, Failure>, Result<_, Failure>) = (unpanicked(a), unpanicked(b));
        let (a, b) = match (a, b) {
            // Why the other ended tells more.
            (Err(a), Err(b)) if a.is::<Abandoned>() => return Err(b),
            (a, b) => (a?, b?),
        };
        a.or(b).ok_or_else(|| "neither side counted".into())
    }

    /// Lets the calling thread, and those it will start, run on either side's core.
    ///
    /// # Errors
    /// What the system says.
    pub fn use_both_cores(&self) -> Result<(), Failure> {
        pin(&self.cores)
    }

    /// Runs `work` in a side's namespace and on its core. What it starts stays there.
    ///
    /// # Errors
    /// What `work` says.
    pub fn on<T: Send>(&self, side: Side, work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
        let core = self.cores[side as usize];
        let attend = || pin(&[core]).and_then(|()| work());
        let result = std::thread::scope(|scope| scope.spawn(|| self.namespace(side).run(attend)).join());
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The machine in one line.
    pub fn description(&self) -> String {
        format!(
            "Linux {}, {} usable cores; veth with MTU {MTU} between two namespaces, one queue, XDP in {} mode, {}; \
             sender on core {}, receiver on core {}, threads of one process{}, both polling",
            self.kernel,
            usable_cores().len(),
            self.mode.name(),
            if self.balanced { "RPS to the receiver's core" } else { "softirq on the sender's core" },
            self.cores[0],
            self.cores[1],
            if self.realtime { " before all others" } else { "" },
        )
    }

    /// The machine as a line among the figures.
    pub fn to_json(&self) -> Value {
        json!({
            "name": "machine",
            "value": usable_cores().len(),
            "unit": "cores",
            "ratio": null,
            "of": null,
            "kernel": self.kernel,
            "cores": self.cores,
            "mtu": MTU,
            "xdp_mode": self.mode.name(),
            "realtime": self.realtime,
            "softirq": if self.balanced { "receiver" } else { "sender" },
        })
    }
}

/// Where the sides of a run agree on when to begin and end.
#[derive(Default)]
pub struct Meeting {
    phase: AtomicU8,
    ready: AtomicUsize,
    /// Sides that ended, well or not.
    left: AtomicUsize,
    /// The leading side has nothing outstanding any more.
    over: AtomicBool,
    /// Packets that arrived, warm-up and all.
    arrived: AtomicU64,
}

const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const STOPPED: u8 = 2;

impl Meeting {
    fn attend<T>(
        &self,
        core: usize,
        realtime: bool,
        work: impl FnOnce(&Meeting) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        struct Leave<'a>(&'a Meeting);
        impl Drop for Leave<'_> {
            // Also in a panic: nobody waits for who is not there any more.
            fn drop(&mut self) {
                self.0.over.store(true, Ordering::Release);
                self.0.left.fetch_add(1, Ordering::Release);
            }
        }
        let _leave = Leave(self);
        pin(&[core])?;
        if realtime {
            take_precedence(1)?;
        }
        work(self)
    }

    fn conduct(&self, time: Duration) {
        let pause = Duration::from_micros(200);
        while self.ready.load(Ordering::Acquire) < 2 && self.left.load(Ordering::Acquire) == 0 {
            std::thread::sleep(pause);
        }
        for (after, phase) in [(WARM_UP, COUNTING), (time, STOPPED)] {
            let end = Instant::now() + after;
            while self.left.load(Ordering::Acquire) == 0 {
                match end.saturating_duration_since(Instant::now()) {
                    Duration::ZERO => break,
                    left => std::thread::sleep(left.min(Duration::from_millis(20))),
                }
            }
            self.phase.store(phase, Ordering::Release);
        }
    }

    /// Says that this side is set up, and waits for the other.
    ///
    /// # Errors
    /// When the other side failed.
    pub fn begin(&self) -> Result<(), Failure> {
        self.ready.fetch_add(1, Ordering::AcqRel);
        while self.ready.load(Ordering::Acquire) < 2 {
            if self.left.load(Ordering::Acquire) > 0 {
                return Err(Abandoned.into());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Whether time is up.
    pub fn is_stopped(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == STOPPED
    }

    /// Says that the side that leads has nothing outstanding: the other may go.
    pub fn finish(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Whether the other side need not be served any more.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Sleeps until the other side need not be served any more.
    pub fn sleep_until_over(&self) {
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A meter for the side that counts.
    pub fn meter(&self) -> Meter<'_> {
        Meter { meeting: self, counts: Counts::default(), arrived: 0, start: None }
    }

    /// A window of `packets` for the side that sends; the other counts what arrives.
    pub fn window(&self, packets: u64) -> Window<'_> {
        Window { meeting: self, packets, sent: 0, closed_at: None }
    }
}

/// Counts what happens between the warm-up and the end.
pub struct Meter<'a> {
    meeting: &'a Meeting,
    counts: Counts,
    arrived: u64,
    start: Option<Instant>,
}

/// How far a sender without acknowledges of its own may be ahead of the receiver. On a busy machine one of the two is
/// often not running; without a window, most of what the other sends then is lost, and the figure says nothing of the
/// path.
pub struct Window<'a> {
    meeting: &'a Meeting,
    packets: u64,
    sent: u64,
    closed_at: Option<Instant>,
}

/// When nothing has come for so long, what is missing counts as lost.
pub const LOST_AFTER: Duration = Duration::from_millis(20);

impl Window<'_> {
    /// Waits until `packets` more may be sent, or time is up.
    pub fn wait(&mut self, packets: u64) {
        loop {
            let arrived = self.meeting.arrived.load(Ordering::Acquire);
            if (self.sent + packets).saturating_sub(arrived) <= self.packets || self.meeting.is_stopped() {
                self.sent += packets;
                self.closed_at = None;
                return;
            }
            let closed = self.closed_at.get_or_insert_with(Instant::now).elapsed();
            if closed > LOST_AFTER {
                self.sent = arrived;
            }
            if closed > SPIN {
                std::thread::sleep(NAP);
            }
            std::hint::spin_loop();
        }
    }
}

/// How long a side spins for packets before it sleeps instead, as the stack's engine does in its way: on a busy machine,
/// who sleeps runs at once when there is something to do, and who spins does not. While packets flow, the next is never
/// that far.
const SPIN: Duration = Duration::from_micros(50);
const NAP: Duration = Duration::from_micros(50);

/// Spins as long as packets come.
#[derive(Default)]
pub struct Spin {
    idle_since: Option<Instant>,
}

impl Spin {
    /// Takes note whether anything came, and sleeps on `fd` when nothing has for a while.
    pub fn note(&mut self, came: bool, fd: RawFd) {
        if came {
            self.idle_since = None;
        } else if self.idle_since.get_or_insert_with(Instant::now).elapsed() > SPIN {
            let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: `polled` lives until the call returns.
            unsafe { libc::poll(&mut polled, 1, 1) };
        }
    }
}

impl Meter<'_> {
    /// Whether to go on.
    pub fn is_running(&mut self) -> bool {
        match self.meeting.phase.load(Ordering::Relaxed) {
            WARMING => true,
            COUNTING => {
                if self.start.is_none() {
                    self.counts =
                        Counts { round_trips_ns: std::mem::take(&mut self.counts.round_trips_ns), ..Counts::default() };
                    self.counts.round_trips_ns.clear();
                    self.start = Some(Instant::now());
                }
                true
            }
            _ => false,
        }
    }

    /// `packets` with `bytes` of payload arrived.
    pub fn count(&mut self, packets: u64, bytes: u64) {
        self.counts.packets += packets;
        self.counts.bytes += bytes;
        self.arrived += packets;
        self.meeting.arrived.store(self.arrived, Ordering::Release);
    }

    /// Two packets of `bytes` each went there and back in `time`.
    pub fn round_trip(&mut self, time: Duration, bytes: u64) {
        self.count(2, 2 * bytes);
        self.counts.round_trips_ns.push(time.as_nanos().try_into().unwrap_or(u32::MAX));
    }

    /// What was counted.
    pub fn finish(mut self) -> Counts {
        self.counts.seconds = self.start.map_or(0.0, |start| start.elapsed().as_secs_f64());
        self.counts
    }
}

/// The cores that this process may use.
fn usable_cores() -> Vec<usize> {
    // SAFETY: the set is plain memory that the call fills.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(std::process::id() as libc::pid_t, size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    };
    // SAFETY: the numbers are below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Ties the calling thread, and those it will start, to these cores.
fn pin(cores: &[usize]) -> Result<(), Failure> {
    // SAFETY: the set is plain memory, and lives through the call.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    let error = std::io::Error::last_os_error();
    if done == 0 { Ok(()) } else { Err(format!("pinning to cores {cores:?}: {error}").into()) }
}

/// Keeps a core busy.
fn spin_on(core: usize, is_done: &AtomicBool) {
    // It is the crowd: without it the figure would say nothing.
    pin(&[core]).expect("the sides are on this core, too");
    while !is_done.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Lets the calling thread, and those it will start, run before all ordinary ones.
fn take_precedence(priority: libc::c_int) -> Result<(), Failure> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter lives through the call.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameter) };
    if done == 0 { Ok(()) } else { Err(format!("real-time scheduling: {}", std::io::Error::last_os_error()).into()) }
}
