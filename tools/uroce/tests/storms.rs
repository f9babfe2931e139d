//! Programs on one device are started and killed at random moments, and a long conversation beside them goes on: no
//! completion fails, and every byte is compared. Afterwards nothing is left of the killed ones. Ordinarily 20 are killed in
//! each test, with UROCE_FULL=1 1,000. `UROCE_SEED` repeats a run's choices, though not what the kernel does meanwhile.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rxe_rig::{Netns, VethPair};
use uroce_laboratory::sim::Random;

use crate::common::compiled::program;
use crate::common::plays_all;
use crate::common::processes::{
    begun_by, memory_kib, processes, program_of, reports, signal, wait_until, wait_until_nothing_is_left,
};
use crate::common::programs::{AS_NOBODY, Running, UROCE, start};

const LIMIT: Duration = Duration::from_secs(60);

/// Who plays beside each other.
const PLAYERS: u16 = 3;

/// KiB that the conversation's programs and the arbiter can have more after the storm.
const GROWTH_KIB: i64 = 2048;

/// What one storm has.
struct Storm {
    pair: VethPair,
    link: &'static str,
    /// Where `uroce run` makes its folders.
    folder: PathBuf,
    seed: u64,
    count: usize,
    /// What the namespaces had before.
    interfaces: [BTreeSet<String>; 2],
    killed: AtomicUsize,
    /// XDP programs that were on the interface of the servers.
    xdp_programs: Mutex<BTreeSet<u32>>,
}

/// The programs that are killed: a server's line, to which a client adds its address, and how its port is given.
const LINES: [&str; 4] = [
    "ibv_rc_pingpong -g 1 -n 1000000 -e -p",
    "ib_write_bw -F -D 60 -s 65536 -p",
    "ib_send_lat -F -D 60 -p",
    "rping -C 1000000 -p",
];

impl Storm {
    fn new(link: &'static str, name: &str) -> Storm {
        let folder = std::env::temp_dir().join(format!("uroce-storm-{}-{name}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
        let seed = std::env::var("UROCE_SEED").map_or(1, |seed| seed.parse().unwrap());
        eprintln!("{name}: UROCE_SEED={seed}");
        let pair = VethPair::create(4500).unwrap();
        Storm {
            interfaces: [&pair.a, &pair.b].map(interfaces),
            pair,
            link,
            folder,
            seed,
            count: if plays_all() { 1000 } else { 20 },
            killed: AtomicUsize::new(0),
            xdp_programs: Mutex::default(),
        }
    }

    /// Starts a program with `uroce run`, over UDP sockets as nobody.
    fn run(&self, place: &Netns, options: &str, line: &str) -> Running {
        let folder = format!("TMPDIR={}", self.folder.display());
        let user = if self.link == "udp" { &AS_NOBODY[..] } else { &[] };
        let run = [UROCE, "run", "--link", self.link];
        let options: Vec<&str> = options.split_whitespace().collect();
        let line: Vec<&str> = line.split_whitespace().collect();
        start(place.command("env"), &[&[&folder[..]], user, &run, &options, &["--"], &line].concat())
    }

    /// Server and client of a conversation that goes on until the client gets SIGTERM.
    fn converse(&self) -> [Running; 2] {
        let line = format!("{} {}", program("steady").display(), VethPair::A.ipv4);
        let mut server = self.run(&self.pair.a, "", &format!("{line} serve"));
        server.prints(&["listens"], LIMIT).unwrap();
        let mut client = self.run(&self.pair.b, "", &line);
        client.prints(&["converses"], LIMIT).unwrap();
        [server, client]
    }

    /// Starts and kills programs, a pair at a time, until enough were killed.
    fn play(&self, player: u16) {
        let mut random = Random::new(self.seed, player.into());
        for game in 0.. {
            if self.killed.load(Ordering::Relaxed) >= self.count {
                return;
            }
            assert!(game < 10 * self.count, "most end by themselves");
            self.play_one(&mut random, player);
        }
    }

    /// One game: a server and, mostly, its client, whose moment can come before either has begun.
    fn play_one(&self, random: &mut Random, player: u16) {
        let at = random.below(LINES.len() as u64);
        let line = format!("{} {}", LINES[at as usize], 18700 + 10 * u64::from(player) + at);
        let is_rping = line.starts_with("rping");
        let server = format!("{line}{}", if is_rping { " -s" } else { "" });
        let mut server = self.run(&self.pair.a, "--trace", &server);
        if random.below(4) == 0 {
            return self.end(random, server, 150);
        }
        let listens = match is_rping {
            true => server.prints(&["rdma_listen: done"], LIMIT),
            false => server.listens(&self.pair.a, line.rsplit(' ').next().unwrap().parse().unwrap(), LIMIT),
        };
        listens.unwrap_or_else(|reason| panic!("a newcomer: {reason}"));
        let place = if random.below(3) == 0 { &self.pair.a } else { &self.pair.b };
        let host = VethPair::A.ipv4;
        let client =
            self.run(place, "", &if is_rping { format!("{line} -c -a {host}") } else { format!("{line} {host}") });
        let mut both = [server, client];
        if random.below(2) == 0 {
            both.swap(0, 1);
        }
        let [first, second] = both;
        self.end(random, first, 300);
        self.end(random, second, 50);
    }

    /// Kills a program, or in one of four cases `uroce run`, within so many milliseconds of its beginning.
    fn end(&self, random: &mut Random, run: Running, within_ms: u64) {
        let patience = Instant::now() + LIMIT;
        while begun_by(&run).is_none() && !has_ended(run.id()) {
            assert!(Instant::now() < patience, "it does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(1000 * within_ms)));
        self.look_at_the_interface();
        let is_run = random.below(4) == 0;
        while !has_ended(run.id()) {
            assert!(Instant::now() < patience, "it does not end");
            let victim = if is_run { Some(run.id()) } else { begun_by(&run) };
            if let Some(victim) = victim.and_then(|victim| rustix::process::Pid::from_raw(victim as i32)) {
                // It can have ended by itself: its peer was killed.
                let _ = rustix::process::kill_process(victim, Signal::KILL);
            }
            // It can have been what `uroce run` tries before it begins.
            std::thread::sleep(Duration::from_millis(2));
        }
        let ended = run.end_within(LIMIT).unwrap();
        let is_killed = ended.status.code() == Some(137) || ended.status.signal() == Some(9);
        self.killed.fetch_add(is_killed.into(), Ordering::Relaxed);
    }

    /// Remembers the XDP program that is there now.
    fn look_at_the_interface(&self) {
        if self.link == "xdp" {
            let shown = self.pair.a.ip(&["-d", "link", "show", VethPair::A.interface]).unwrap();
            let (_, number) = shown.split_once("prog/xdp id ").unwrap_or_default();
            let number: Option<u32> = number.split(' ').next().and_then(|number| number.parse().ok());
            self.xdp_programs.lock().unwrap().extend(number);
        }
    }

    /// The storm, beside a conversation that has begun.
    fn rage(&self, conversation: [Running; 2]) {
        let arbiters: Vec<u32> =
            [&self.pair.a, &self.pair.b].iter().flat_map(|place| processes(place, "uroce-arbiter")).collect();
        assert_eq!(arbiters.len(), 2);
        let before: Vec<_> = arbiters.iter().map(|arbiter| belongings(*arbiter)).collect();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for player in 0..PLAYERS {
                scope.spawn(move || self.play(player));
            }
        });
        eprintln!("{}: {} killed in {:?}", self.link, self.killed.load(Ordering::Relaxed), began.elapsed());
        self.newcomers_meet("");
        for (arbiter, [kib, descriptors]) in arbiters.into_iter().zip(before) {
            wait_until(
                || "the arbiter has more than it had".to_owned(),
                LIMIT,
                || belongings(arbiter)[1] == descriptors,
            );
            let now = belongings(arbiter);
            eprintln!("{}: arbiter [{kib}, {descriptors}], then {now:?}", self.link);
            assert!(now[0] - kib < GROWTH_KIB, "{now:?}");
        }
        signal(program_of(&conversation[1]), Signal::TERM);
        for ended in conversation.map(|program| program.end_within(LIMIT).unwrap().succeeded()) {
            let [early, late] = reports(&ended);
            eprintln!("{}: {early:?}, then {late:?}, {}", self.link, ended.stderr.lines().last().unwrap_or_default());
            assert_eq!(early[1..], late[1..], "descriptors and threads: {ended:#?}");
            assert!(late[0] - early[0] < GROWTH_KIB, "{early:?}, then {late:?} KiB");
        }
    }

    /// A server and a client that come now do their work.
    fn newcomers_meet(&self, options: &str) {
        let line = "ibv_rc_pingpong -g 1 -n 100 -c -p 18690";
        let mut server = self.run(&self.pair.a, options, line);
        server.listens(&self.pair.a, 18690, LIMIT).unwrap();
        self.run(&self.pair.b, options, &format!("{line} {}", VethPair::A.ipv4)).end().succeeded();
        server.end().succeeded();
    }

    /// Nothing is left, and whoever comes can have the device alone.
    fn nothing_is_left(self) {
        for namespace in [&self.pair.a, &self.pair.b] {
            wait_until_nothing_is_left(namespace, LIMIT);
        }
        self.newcomers_meet("--exclusive");
        let programs = self.xdp_programs.lock().unwrap();
        eprintln!("{}: {} XDP programs were seen", self.link, programs.len());
        for program in &*programs {
            wait_until(|| "its XDP program is there".to_owned(), LIMIT, || !has_bpf_program(*program));
        }
        for namespace in [&self.pair.a, &self.pair.b] {
            assert_eq!(processes(namespace, "uroce"), [0; 0], "no process");
        }
        assert_eq!([&self.pair.a, &self.pair.b].map(interfaces), self.interfaces, "no interface");
        assert_eq!(files(&self.folder), BTreeSet::new(), "no folder of `uroce run`");
        for place in ["/dev/shm", "/run"] {
            let ours: Vec<String> = files(Path::new(place)).into_iter().filter(|name| name.contains("uroce")).collect();
            assert!(ours.is_empty(), "{place}: {ours:?}");
        }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Whether a child has ended, though nobody has waited for it.
fn has_ended(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('Z'))
}

/// KiB of memory and descriptors of a process.
fn belongings(process: u32) -> [i64; 2] {
    [memory_kib(process), fs::read_dir(format!("/proc/{process}/fd")).unwrap().count() as i64]
}

fn interfaces(namespace: &Netns) -> BTreeSet<String> {
    let shown = namespace.ip(&["-o", "link", "show"]).unwrap();
    shown.lines().filter_map(|line| Some(line.split(": ").nth(1)?.to_owned())).collect()
}

fn files(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Whether the kernel has a BPF program of that number.
fn has_bpf_program(number: u32) -> bool {
    /// From linux/bpf.h.
    const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
    let attributes = [number, 0, 0, 0];
    // SAFETY: the kernel reads the array, whose size it is told; the new descriptor is nobody else's.
    unsafe {
        let descriptor =
            libc::syscall(libc::SYS_bpf, BPF_PROG_GET_FD_BY_ID, attributes.as_ptr(), size_of_val(&attributes));
        if descriptor >= 0 {
            libc::close(descriptor as libc::c_int);
        }
        descriptor >= 0 || *libc::__errno_location() != libc::ENOENT
    }
}

#[test]
fn programs_are_killed_beside_a_conversation_over_udp_sockets() {
    let storm = Storm::new("udp", "udp");
    storm.rage(storm.converse());
    storm.nothing_is_left();
}

#[test]
fn programs_are_killed_beside_a_conversation_over_af_xdp() {
    let storm = Storm::new("xdp", "xdp");
    storm.rage(storm.converse());
    storm.nothing_is_left();
}

/// The conversation has UDP sockets, and the killed programs take AF_XDP from each other.
#[test]
fn programs_over_af_xdp_are_killed_beside_a_conversation_over_udp_sockets() {
    let storm = Storm::new("xdp", "both");
    let first = [&storm.pair.a, &storm.pair.b].map(|place| {
        let mut first = storm.run(place, "", "ibv_rc_pingpong -g 1 -p 18691");
        first.listens(place, 18691, LIMIT).unwrap();
        first
    });
    let conversation = storm.converse();
    for program in first {
        signal(program_of(&program), Signal::KILL);
        assert_eq!(program.end().status.code(), Some(137));
    }
    storm.rage(conversation);
    assert!(storm.xdp_programs.lock().unwrap().len() > 1, "several had AF_XDP");
    storm.nothing_is_left();
}
