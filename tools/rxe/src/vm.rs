//! One emulated machine with the kernel's Soft-RoCE on its network interface.
use crate::error::{Result, RigError};
use crate::image::Image;
use crate::instructions;
use crate::netns::Netns;
use crate::process;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a machine may take to boot. About 8 s on an idle processor; the processors may be shared.
const BOOT_LIMIT: Duration = Duration::from_secs(240);

/// How long the command channel may take beyond a command's own limit.
const CHANNEL_SLACK: Duration = Duration::from_secs(60);

/// The file in a machine's directory that its instructions are counted in.
const INSTRUCTIONS: &str = "instructions";

/// How often files are looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What a command in a machine ended with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; 124 or 137 when its time was up.
    pub status: i32,
    /// What it wrote on both outputs.
    pub text: String,
}

/// A running machine: `rxe0` on `eth0`, with `/host` shared with this host. It is killed on `Drop`, and when this process
/// ends in any way.
#[derive(Debug)]
pub struct Vm {
    name: String,
    index: u8,
    directory: PathBuf,
    process: Child,
    channel: Arc<Channel>,
    boot: Duration,
}

/// How a machine is made; see [`crate::LabOptions`] for the meaning of each.
#[derive(Debug)]
pub(crate) struct VmOptions<'a> {
    pub name: &'a str,
    /// The last number of its addresses.
    pub index: u8,
    pub mtu: u16,
    pub memory_mib: u32,
    pub share: Option<&'a Path>,
    pub rxe: bool,
    /// The plugin that counts its instructions.
    pub counter: Option<&'a Path>,
    /// For its files; the machine makes a directory of its own in it.
    pub directory: &'a Path,
    pub tap: &'a str,
}

impl Vm {
    /// Starts QEMU; [`Vm::await_boot`] is to follow.
    pub(crate) fn start(image: &Image, bridge: &Netns, options: &VmOptions) -> Result<Booting> {
        let directory = options.directory.join(options.name);
        let shared = directory.join("host");
        fs::create_dir_all(&shared).map_err(RigError::io(format!("making {}", shared.display())))?;
        let VmOptions { name, index, mtu, tap, .. } = options;
        let flags = format!("rig.rxe={} rig.share={}", u8::from(options.rxe), u8::from(options.share.is_some()));
        let append = format!(
            "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=unstable random.trust_cpu=on rdinit=/init \
             rig.name={name} rig.ip={}/24 rig.ip6={}/64 rig.mtu={mtu} {flags}",
            ipv4(*index),
            ipv6(*index)
        );
        // A frame must look on the bridge as it would on a wire: no half-made checksums, no segmentation left to others.
        let offloads = "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_ecn=off,\
                        host_tso4=off,host_tso6=off,host_ufo=off,host_ecn=off";
        let log = directory.join("qemu.log");
        let log_file = fs::File::create(&log).map_err(RigError::io(format!("making {}", log.display())))?;
        let mut qemu = bridge.command("qemu-system-x86_64");
        qemu.args(["-nodefaults", "-no-user-config", "-machine", "q35,usb=off,smbus=off,vmport=off"]);
        qemu.args([
            "-accel",
            "tcg,thread=multi,tb-size=256",
            "-cpu",
            "max",
            // One processor, but made as if there could be two: for a single one QEMU 7.2 (all before 8.1) leaves out the
            // guest's memory barriers, and with them, now and then, the news that a virtio ring has something to send: the
            // machine is silent from then on.
            "-smp",
            "1,maxcpus=2",
            "-display",
            "none",
            "-no-reboot",
        ]);
        qemu.args(["-m", &options.memory_mib.to_string()]);
        qemu.arg("-serial").arg(format!("file:{}", directory.join("console.log").display()));
        qemu.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs).args(["-append", &append]);
        qemu.args(["-netdev", &format!("tap,id=n0,ifname={tap},script=no,downscript=no")]);
        qemu.arg("-device")
            .arg(format!("virtio-net-pci,netdev=n0,mac=52:54:00:77:00:{index:02x},romfile=,host_mtu={mtu},{offloads}"));
        qemu.args(["-device", "virtio-serial-pci", "-device", "virtio-rng-pci", "-chardev"]);
        qemu.arg(format!("socket,id=c0,path={},server=on,wait=off", directory.join("channel").display()));
        qemu.args(["-device", "virtserialport,chardev=c0,name=cmd"]);
        let share = |path: &Path, tag: &str, mode: &str| {
            format!("local,path={},mount_tag={tag},security_model=none,multidevs=remap{mode}", path.display())
        };
        qemu.arg("-virtfs").arg(share(&shared, "host", ""));
        if let Some(path) = options.share {
            qemu.arg("-virtfs").arg(share(path, "share", ",readonly=on"));
        }
        if let Some(plugin) = options.counter {
            qemu.arg("-plugin").arg(format!("{},counter={}", plugin.display(), directory.join(INSTRUCTIONS).display()));
        }
        let errors = log_file.try_clone().map_err(RigError::io("duplicating a descriptor"))?;
        qemu.stdin(Stdio::null()).stdout(log_file).stderr(errors);
        let started = Instant::now();
        let process = process::spawn(qemu).map_err(|e| process::not_started(&Command::new("qemu-system-x86_64"), e))?;
        Ok(Booting { name: name.to_string(), index: *index, directory, process: Some(process), started })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its IPv4 address; GID index 1.
    pub fn ipv4(&self) -> Ipv4Addr {
        ipv4(self.index)
    }

    /// Its global IPv6 address; GID index 2. (Index 0 is the link-local one made from the MAC address.)
    pub fn ipv6(&self) -> Ipv6Addr {
        ipv6(self.index)
    }

    /// From QEMU's start to the machine's being ready.
    pub fn boot_time(&self) -> Duration {
        self.boot
    }

    /// The instructions that its processor has executed, of programs and of the kernel.
    ///
    /// # Errors
    /// [`RigError::Io`] when the lab does not count them.
    pub fn instructions(&self) -> Result<u64> {
        instructions::read(&self.directory.join(INSTRUCTIONS))
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Runs a shell command to its end. Emulation is slow: give `limit` ten times what real hardware would need.
    ///
    /// # Errors
    /// [`RigError::Timeout`], with the end of the machine's console, when the machine does not answer. A command that
    /// fails, or is ended at its limit (status 124), is no error.
    pub fn run(&self, command: &str, limit: Duration) -> Result<Output> {
        self.spawn(command, limit)?.join()
    }

    /// As [`Vm::run`], and a status other than 0 is an error; returns the text.
    ///
    /// # Errors
    /// [`RigError::Command`] when the status is not 0; those of [`Vm::run`].
    pub fn check(&self, command: &str, limit: Duration) -> Result<String> {
        let Output { status, text } = self.run(command, limit)?;
        match status {
            0 => Ok(text),
            _ => Err(RigError::Command { command: format!("{}: {command}", self.name), status, output: text }),
        }
    }

    /// Starts a shell command; it is ended when `limit` is over (rounded up to seconds).
    ///
    /// # Errors
    /// [`RigError::Io`] when the machine is gone.
    pub fn spawn(&self, command: &str, limit: Duration) -> Result<Job> {
        Channel::spawn(&self.channel, command, limit)
    }

    /// Copies a file or a directory's files of this host to `target`, an absolute path in the machine, with their mode.
    ///
    /// # Errors
    /// [`RigError::Io`] when it cannot be read; [`RigError::Command`] when the machine cannot write it.
    pub fn put(&self, file: &Path, target: &str) -> Result<()> {
        let name = format!("put-{}", self.channel.next());
        let passing = self.channel.shared.join(&name);
        let copy = || process::run(Command::new("cp").args(["-rL", "--preserve=mode"]).arg(file).arg(&passing));
        copy()?;
        let result = self.check(
            &format!("mkdir -p \"$(dirname {target})\" && cp -r /host/{name} {target} && rm -r /host/{name}"),
            Duration::from_secs(300),
        );
        result.map(drop)
    }

    /// Copies a file of the machine to this host.
    ///
    /// # Errors
    /// [`RigError::Command`] when the machine has no such file; [`RigError::Io`] when `file` cannot be written.
    pub fn get(&self, source: &str, file: &Path) -> Result<()> {
        let name = format!("get-{}", self.channel.next());
        self.check(&format!("cp {source} /host/{name}"), Duration::from_secs(300))?;
        let passing = self.channel.shared.join(&name);
        fs::copy(&passing, file).map_err(RigError::io(format!("copying to {}", file.display())))?;
        let _ = fs::remove_file(passing);
        Ok(())
    }

    /// Copies a program built on this host to `target`, with the libraries that it needs and the machine lacks.
    ///
    /// # Errors
    /// As [`Vm::put`].
    pub fn put_program(&self, program: &Path, target: &str) -> Result<()> {
        let list = process::run(Command::new("ldd").arg(program)).unwrap_or_default();
        for (name, file) in list.lines().filter_map(|line| line.trim().split_once(" => ")) {
            let file = file.split(" (").next().unwrap_or(file);
            let place = format!("/lib/x86_64-linux-gnu/{name}");
            if file.starts_with('/') && self.run(&format!("test -e {place}"), Duration::from_secs(60))?.status != 0 {
                self.put(Path::new(file), &place)?;
            }
        }
        self.put(program, target)?;
        self.check(&format!("chmod 755 {target}"), Duration::from_secs(60)).map(drop)
    }

    /// What the machine's kernel and init printed so far.
    pub fn console(&self) -> String {
        console(&self.directory)
    }

    /// The directory of this host that the machine sees as `/host`.
    pub fn shared_directory(&self) -> &Path {
        &self.channel.shared
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The IPv4 address of the bridge's (1), the machines' (2, 3) and our (100) interface.
pub(crate) fn ipv4(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, index)
}

/// The IPv6 address that goes with [`ipv4`]: the same decimal digits.
pub(crate) fn ipv6(index: u8) -> Ipv6Addr {
    format!("fd77::{index}").parse().expect("an address")
}

fn console(directory: &Path) -> String {
    let bytes = fs::read(directory.join("console.log")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last lines of a log, for an error's text.
fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// A machine between QEMU's start and its being ready.
pub(crate) struct Booting {
    name: String,
    index: u8,
    directory: PathBuf,
    process: Option<Child>,
    started: Instant,
}

impl Booting {
    /// Waits until the machine is ready.
    pub(crate) fn finish(mut self) -> Result<Vm> {
        let failed = |what: &str, directory: &Path| RigError::Timeout {
            what: what.to_string(),
            after: BOOT_LIMIT,
            log: tail(&format!(
                "{}{}",
                console(directory),
                fs::read_to_string(directory.join("qemu.log")).unwrap_or_default()
            )),
        };
        while !console(&self.directory).contains("RIG-READY") {
            let process = self.process.as_mut().expect("taken at the end only");
            if let Ok(Some(status)) = process.try_wait() {
                let output = tail(&format!(
                    "{}{}",
                    fs::read_to_string(self.directory.join("qemu.log")).unwrap_or_default(),
                    console(&self.directory)
                ));
                let command = format!("qemu-system-x86_64 ({})", self.name);
                return Err(RigError::Command { command, status: status.code().unwrap_or(-1), output });
            }
            if self.started.elapsed() > BOOT_LIMIT {
                return Err(failed(&format!("{} booting", self.name), &self.directory));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        let channel = Channel::open(&self.name, &self.directory)?;
        if !channel.ping(BOOT_LIMIT)? {
            return Err(failed(&format!("{}'s command channel", self.name), &self.directory));
        }
        let boot = self.started.elapsed();
        let process = self.process.take().expect("taken here only");
        Ok(Vm { name: self.name.clone(), index: self.index, directory: self.directory.clone(), process, channel, boot })
    }
}

impl Drop for Booting {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The machine's command channel; the protocol is in `guest/runner`.
#[derive(Debug)]
struct Channel {
    machine: String,
    directory: PathBuf,
    shared: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    socket: UnixStream,
    serial: u64,
    done: BTreeMap<u64, i32>,
    pongs: u64,
    closed: bool,
}

impl Channel {
    fn open(machine: &str, directory: &Path) -> Result<Arc<Channel>> {
        let path = directory.join("channel");
        let socket = UnixStream::connect(&path).map_err(RigError::io(format!("connecting to {}", path.display())))?;
        let reader = BufReader::new(socket.try_clone().map_err(RigError::io("duplicating a descriptor"))?);
        let state = State { socket, serial: 0, done: BTreeMap::new(), pongs: 0, closed: false };
        let channel = Arc::new(Channel {
            machine: machine.to_string(),
            directory: directory.to_path_buf(),
            shared: directory.join("host"),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&channel);
        // It ends when QEMU does, which closes the socket.
        std::thread::spawn(move || theirs.listen(reader));
        Ok(channel)
    }

    fn listen(&self, reader: BufReader<UnixStream>) {
        for line in reader.lines().map_while(std::result::Result::ok) {
            let words: Vec<_> = line.split_whitespace().collect();
            let mut state = self.lock();
            match words[..] {
                ["pong"] => state.pongs += 1,
                ["done", id, status] => {
                    if let (Ok(id), Ok(status)) = (id.parse(), status.parse()) {
                        state.done.insert(id, status);
                    }
                }
                _ => {}
            }
            self.changed.notify_all();
        }
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn next(&self) -> u64 {
        let mut state = self.lock();
        state.serial += 1;
        state.serial
    }

    /// Asks until the machine answers, or `limit` is over.
    fn ping(&self, limit: Duration) -> Result<bool> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            self.send("ping\n")?;
            let waited =
                self.changed.wait_timeout_while(self.lock(), Duration::from_secs(1), |s| s.pongs == 0 && !s.closed);
            if waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0.pongs > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn send(&self, line: &str) -> Result<()> {
        let result = self.lock().socket.write_all(line.as_bytes());
        result.map_err(RigError::io(format!("{}'s command channel", self.machine)))
    }

    fn spawn(channel: &Arc<Channel>, command: &str, limit: Duration) -> Result<Job> {
        let id = channel.next();
        let script = channel.shared.join(format!("{id}.sh"));
        fs::write(&script, command).map_err(RigError::io(format!("writing {}", script.display())))?;
        let seconds = limit.as_millis().div_ceil(1000).max(1);
        channel.send(&format!("run {id} {seconds}\n"))?;
        Ok(Job { channel: Arc::clone(channel), id, command: command.to_string(), limit })
    }
}

/// A command that runs in a machine. Dropping it lets it run on, to its limit.
#[derive(Debug)]
pub struct Job {
    channel: Arc<Channel>,
    id: u64,
    command: String,
    limit: Duration,
}

impl Job {
    /// Waits for its end.
    ///
    /// # Errors
    /// [`RigError::Timeout`] when the machine says nothing for a minute past the command's limit.
    pub fn join(self) -> Result<Output> {
        let limit = self.limit + CHANNEL_SLACK;
        let id = self.id;
        let waiting = |state: &mut State| !state.done.contains_key(&id) && !state.closed;
        let waited = self.channel.changed.wait_timeout_while(self.channel.lock(), limit, waiting);
        let status = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0.done.remove(&id);
        let text = self.text();
        let Some(status) = status else {
            let log = format!("{}\n-- printed --\n{}", tail(&console(&self.channel.directory)), tail(&text));
            return Err(RigError::Timeout {
                what: format!("{}: {}", self.channel.machine, self.command),
                after: limit,
                log,
            });
        };
        for suffix in ["sh", "out", "pid"] {
            let _ = fs::remove_file(self.file(suffix));
        }
        Ok(Output { status, text })
    }

    /// What it has printed so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.file("out")).unwrap_or_default()).into_owned()
    }

    /// Waits until it has printed `needle`, at most `limit`.
    ///
    /// # Errors
    /// [`RigError::Timeout`], with what it printed, when it has not by then or has ended without.
    pub fn wait_for(&self, needle: &str, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        loop {
            let ended = self.channel.lock().done.contains_key(&self.id);
            let text = self.text();
            if text.contains(needle) {
                return Ok(());
            }
            if ended || Instant::now() > until {
                let what = format!("{}: {:?} from `{}`", self.channel.machine, needle, self.command);
                return Err(RigError::Timeout { what, after: limit, log: tail(&text) });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Whether it has ended.
    pub fn ended(&self) -> bool {
        self.channel.lock().done.contains_key(&self.id)
    }

    /// Ends it and what it started (SIGTERM); [`Job::join`] then gives its output.
    ///
    /// # Errors
    /// As [`Vm::check`].
    pub fn kill(&self) -> Result<()> {
        let command = format!("kill -TERM $(cat /host/{}.pid)", self.id);
        Channel::spawn(&self.channel, &command, Duration::from_secs(60))?.join().map(drop)
    }

    fn file(&self, suffix: &str) -> PathBuf {
        self.channel.shared.join(format!("{}.{suffix}", self.id))
    }
}
