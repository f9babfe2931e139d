//! The typed client of `verbs-agent` (`guest/verbs-agent.c`, whose head comment has the protocol).
//!
//! Handles are newtypes over the agent's numbers and belong to their session. What has no method of its own here goes
//! through [`Agent::command`].
use crate::error::{Result, RigError};
use crate::process;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

mod object;
mod work;

pub use object::{ACCESS_ALL, Ah, Cq, Mr, Mw, Path, Pd, QKEY, Qp, QpOptions, Srq, Transport};
pub use work::{Operation, Remote, Send, Sge, Wc, WcOpcode, WcStatus};

/// Where a region differs from the pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// The first such byte's offset in the region.
    pub at: u64,
    /// The pattern's byte.
    pub want: u8,
    /// The region's byte.
    pub have: u8,
}

/// The agent's `ok` answer: its `NAME=VALUE` words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    command: String,
    text: String,
}

impl Answer {
    /// The value called `name`.
    ///
    /// # Errors
    /// [`RigError::Agent`] when the answer has none.
    pub fn text(&self, name: &str) -> Result<&str> {
        find(&self.text, name).ok_or_else(|| self.wrong())
    }

    /// The number called `name`.
    ///
    /// # Errors
    /// [`RigError::Agent`] when the answer has none.
    pub fn number(&self, name: &str) -> Result<u64> {
        number(self.text(name)?).ok_or_else(|| self.wrong())
    }

    fn word(&self, name: &str) -> Result<u32> {
        u32::try_from(self.number(name)?).map_err(|_| self.wrong())
    }

    fn wrong(&self) -> RigError {
        RigError::Agent { command: self.command.clone(), answer: format!("not understood: {}", self.text) }
    }
}

/// The value of the first word of `text` that is `name=VALUE`.
fn find<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// A number as the agent writes it.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// How long any command but `poll` may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

enum Wire {
    Tcp(TcpStream),
    /// The program, and the descriptor of its output, which the session's reader owns.
    Program(Box<Child>, RawFd),
}

/// A session with a verbs agent. Everything made in it goes when it is dropped.
pub struct Agent {
    reader: Box<dyn BufRead + std::marker::Send>,
    writer: Box<dyn Write + std::marker::Send>,
    wire: Wire,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

impl Agent {
    /// Talks to an agent at the other end of `stream`.
    ///
    /// # Errors
    /// [`RigError::Io`] when the stream is broken, [`RigError::Agent`] when there is no device.
    pub fn new(stream: TcpStream) -> Result<Agent> {
        let what = || RigError::io("the verbs agent's connection");
        stream.set_nodelay(true).map_err(what())?;
        let reader = BufReader::new(stream.try_clone().map_err(what())?);
        let writer = stream.try_clone().map_err(what())?;
        Agent { reader: Box::new(reader), writer: Box::new(writer), wire: Wire::Tcp(stream) }.greeted()
    }

    /// Starts `command`, an agent that serves its standard input and output (`verbs-agent -s`), and talks to it. This is the
    /// way to run it on another libibverbs, or in a namespace. It is killed on `Drop`.
    ///
    /// # Errors
    /// [`RigError::Missing`] when there is no such program; [`RigError::Agent`] when there is no device.
    pub fn launch(mut command: Command) -> Result<Agent> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = Command::new(command.get_program());
        let mut child = process::spawn(command).map_err(|e| process::not_started(&program, e))?;
        let output = child.stdout.take().expect("piped");
        let writer = child.stdin.take().expect("piped");
        let wire = Wire::Program(Box::new(child), output.as_raw_fd());
        Agent { reader: Box::new(BufReader::new(output)), writer: Box::new(writer), wire }.greeted()
    }

    fn greeted(mut self) -> Result<Agent> {
        self.command("hello")?;
        Ok(self)
    }

    /// Sends one command line and returns the `ok` answer.
    ///
    /// # Errors
    /// [`RigError::Agent`] with the answer when it is `err` ([`RigError::errno`] has the verbs call's errno), [`RigError::Io`] when
    /// there is none within two minutes.
    pub fn command(&mut self, line: &str) -> Result<Answer> {
        self.command_within(line, ANSWER_LIMIT)
    }

    fn command_within(&mut self, line: &str, limit: Duration) -> Result<Answer> {
        let what = || RigError::io(format!("verbs agent, `{line}`"));
        if let Wire::Tcp(stream) = &self.wire {
            stream.set_read_timeout(Some(limit)).map_err(what())?;
        }
        self.writer.write_all(format!("{line}\n").as_bytes()).map_err(what())?;
        self.writer.flush().map_err(what())?;
        if let Wire::Program(_, output) = &self.wire
            && !readable(*output, limit)
        {
            return Err(what()(std::io::ErrorKind::TimedOut.into()));
        }
        let mut answer = String::new();
        self.reader.read_line(&mut answer).map_err(what())?;
        match answer.trim_end().strip_prefix("ok") {
            Some(text) => Ok(Answer { command: line.to_string(), text: text.to_string() }),
            None if answer.is_empty() => {
                Err(RigError::Agent { command: line.to_string(), answer: "it has ended".to_string() })
            }
            None => Err(RigError::Agent { command: line.to_string(), answer: answer.trim_end().to_string() }),
        }
    }

    /// The GID at `index`: 0 link-local IPv6, 1 IPv4, 2 global IPv6.
    ///
    /// # Errors
    /// As [`Agent::command`], as all below.
    pub fn gid(&mut self, index: u32) -> Result<[u8; 16]> {
        let answer = self.command(&format!("gid {index}"))?;
        unhex(answer.text("gid")?).and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| answer.wrong())
    }

    /// The port's active MTU in bytes.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn active_mtu(&mut self) -> Result<u32> {
        self.command("port")?.word("active_mtu")
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn pd(&mut self) -> Result<Pd> {
        Ok(Pd(self.command("pd")?.word("pd")?))
    }

    /// `len` bytes of zeroed memory, registered in the session's first protection domain; `access` as in [`ACCESS_ALL`].
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn mr(&mut self, len: u64, access: &str) -> Result<Mr> {
        let answer = self.command(&format!("mr {len} {access}"))?;
        Self::mr_of(&answer, len)
    }

    /// A part of another region's memory, registered once more, in protection domain `pd`.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn mr_of_part(&mut self, of: &Mr, offset: u64, len: u64, access: &str, pd: Pd) -> Result<Mr> {
        let answer = self.command(&format!("mr {len} {access} of={} off={offset} pd={}", of.handle, pd.0))?;
        Self::mr_of(&answer, len)
    }

    fn mr_of(answer: &Answer, len: u64) -> Result<Mr> {
        Ok(Mr {
            handle: answer.word("mr")?,
            addr: answer.number("addr")?,
            len,
            lkey: answer.word("lkey")?,
            rkey: answer.word("rkey")?,
        })
    }

    /// Ends a region's registration; its memory can still be read and checked.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn dereg(&mut self, mr: &Mr) -> Result<()> {
        self.command(&format!("dereg {}", mr.handle)).map(drop)
    }

    /// Puts the pattern ([`crate::pattern`]) into a part of a region.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn fill(&mut self, mr: &Mr, offset: u64, len: u64, seed: u64) -> Result<()> {
        self.command(&format!("fill {} {offset} {len} {seed}", mr.handle)).map(drop)
    }

    /// Where a part of a region differs from the pattern, or `None`.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn check(&mut self, mr: &Mr, offset: u64, len: u64, seed: u64) -> Result<Option<Difference>> {
        let answer = self.command(&format!("check {} {offset} {len} {seed}", mr.handle))?;
        if answer.number("equal")? == 1 {
            return Ok(None);
        }
        let byte = |name| Ok(answer.number(name)? as u8);
        Ok(Some(Difference { at: answer.number("at")?, want: byte("want")?, have: byte("have")? }))
    }

    /// The hash ([`crate::pattern::hash`]) of a part of a region.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn hash(&mut self, mr: &Mr, offset: u64, len: u64) -> Result<u64> {
        let answer = self.command(&format!("hash {} {offset} {len}", mr.handle))?;
        u64::from_str_radix(answer.text("hash")?, 16).map_err(|_| answer.wrong())
    }

    /// Bytes of a region, at most 4096.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn read(&mut self, mr: &Mr, offset: u64, len: u64) -> Result<Vec<u8>> {
        let answer = self.command(&format!("read {} {offset} {len}", mr.handle))?;
        unhex(answer.text("data")?).ok_or_else(|| answer.wrong())
    }

    /// The little-endian number in 8 bytes of a region, as an atomic leaves it.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn read_u64(&mut self, mr: &Mr, offset: u64) -> Result<u64> {
        let bytes = self.read(mr, offset, 8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("8 bytes asked for")))
    }

    /// Puts bytes into a region.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn write(&mut self, mr: &Mr, offset: u64, bytes: &[u8]) -> Result<()> {
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        self.command(&format!("write {} {offset} {hex}", mr.handle)).map(drop)
    }

    /// A new completion queue of at least `entries`.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn cq(&mut self, entries: u32) -> Result<Cq> {
        Ok(Cq(self.command(&format!("cq {entries}"))?.word("cq")?))
    }

    /// As [`Agent::cq`], with a completion channel for [`Agent::arm`] and [`Agent::event`].
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn cq_with_events(&mut self, entries: u32) -> Result<Cq> {
        Ok(Cq(self.command(&format!("cq {entries} events"))?.word("cq")?))
    }

    /// Asks for an event at the next completion, or the next solicited one.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn arm(&mut self, cq: Cq, solicited_only: bool) -> Result<()> {
        let flag = if solicited_only { " solicited" } else { "" };
        self.command(&format!("arm {}{flag}", cq.0)).map(drop)
    }

    /// Whether an event came within `limit`.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn event(&mut self, cq: Cq, limit: Duration) -> Result<bool> {
        let answer = self.command_within(&format!("event {} {}", cq.0, limit.as_millis()), limit + ANSWER_LIMIT)?;
        Ok(answer.number("fired")? == 1)
    }

    /// A new shared receive queue.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn srq(&mut self, max_wr: u32, max_sge: u32) -> Result<Srq> {
        Ok(Srq(self.command(&format!("srq {max_wr} {max_sge}"))?.word("srq")?))
    }

    /// Arms the event that comes once when fewer than `limit` requests are left in a shared receive queue.
    ///
    /// # Errors
    /// As [`Agent::command`]; its errno is that of `ibv_modify_srq`.
    pub fn srq_limit(&mut self, srq: Srq, limit: u32) -> Result<()> {
        self.command(&format!("srq_limit {} {limit}", srq.0)).map(drop)
    }

    /// A new queue pair, in the reset state.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn qp(&mut self, options: &QpOptions) -> Result<Qp> {
        let transport = match options.transport {
            Transport::Rc => "rc",
            Transport::Uc => "uc",
            Transport::Ud => "ud",
        };
        let QpOptions { max_send, max_recv, max_sge, max_inline, .. } = options;
        let mut line = format!("qp {transport} {max_send} {max_recv} {max_sge} {max_inline}");
        line += &format!(" cq={} rcq={}", options.send_cq.0, options.recv_cq.0);
        if options.pd != Pd(0) {
            line += &format!(" pd={}", options.pd.0);
        }
        if let Some(srq) = options.srq {
            line += &format!(" srq={}", srq.0);
        }
        let answer = self.command(&line)?;
        Ok(Qp { handle: answer.word("qp")?, qpn: answer.word("qpn")? })
    }

    /// To the init state. `access` is for a connected queue pair; a datagram one gets [`QKEY`].
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn init(&mut self, qp: Qp, access: &str) -> Result<()> {
        self.command(&format!("init {} access={access}", qp.handle)).map(drop)
    }

    /// From init to ready to receive.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn rtr(&mut self, qp: Qp, path: &Path) -> Result<()> {
        let gid: String = path.gid.iter().map(|b| format!("{b:02x}")).collect();
        let line = format!(
            "rtr {} gid={gid} sgid={} dqpn={} psn={} mtu={} rd_atomic={} rnr_timer={} tclass={}",
            qp.handle,
            path.sgid_index,
            path.dest_qpn,
            path.rq_psn,
            path.mtu,
            path.rd_atomic,
            path.rnr_timer,
            path.traffic_class
        );
        self.command(&line).map(drop)
    }

    /// From ready to receive to ready to send.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn rts(&mut self, qp: Qp, path: &Path) -> Result<()> {
        let line = format!(
            "rts {} psn={} timeout={} retry={} rnr_retry={} rd_atomic={}",
            qp.handle, path.sq_psn, path.timeout, path.retry, path.rnr_retry, path.rd_atomic
        );
        self.command(&line).map(drop)
    }

    /// From reset to ready to send: [`Agent::init`] with all access, [`Agent::rtr`], [`Agent::rts`].
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn connect(&mut self, qp: Qp, path: &Path) -> Result<()> {
        self.init(qp, ACCESS_ALL)?;
        self.rtr(qp, path)?;
        self.rts(qp, path)
    }

    /// A datagram queue pair from reset to ready to send, PSNs from `psn`.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn ready_datagram(&mut self, qp: Qp, psn: u32) -> Result<()> {
        self.command(&format!("init {} qkey={QKEY}", qp.handle))?;
        self.command(&format!("rtr {}", qp.handle))?;
        self.command(&format!("rts {} psn={psn}", qp.handle)).map(drop)
    }

    /// The queue pair's state (`reset`, `init`, `rtr`, `rts`, `sqd`, `sqe`, `err`) and the rest of what it answers about itself.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn qp_state(&mut self, qp: Qp) -> Result<(String, Answer)> {
        let answer = self.command(&format!("qp_state {}", qp.handle))?;
        Ok((answer.text("state")?.to_string(), answer))
    }

    /// A new address handle to `gid` from our GID `sgid_index`.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn ah(&mut self, gid: &[u8; 16], sgid_index: u8) -> Result<Ah> {
        let gid: String = gid.iter().map(|b| format!("{b:02x}")).collect();
        Ok(Ah(self.command(&format!("ah {gid} sgid={sgid_index}"))?.word("ah")?))
    }

    /// Posts a send work request (or `count` of them).
    ///
    /// # Errors
    /// As [`Agent::command`]; its errno is that of `ibv_post_send`.
    pub fn post_send(&mut self, qp: Qp, send: &Send) -> Result<()> {
        let remote = |at: &Remote| format!("addr={:#x} rkey={:#x}", at.addr, at.rkey);
        let operation = match &send.operation {
            Operation::Send => "send".to_string(),
            Operation::SendImm(imm) => format!("send_imm imm={imm:#x}"),
            Operation::SendInv(rkey) => format!("send_inv inv={rkey:#x}"),
            Operation::Write(at) => format!("write {}", remote(at)),
            Operation::WriteImm(at, imm) => format!("write_imm {} imm={imm:#x}", remote(at)),
            Operation::Read(at) => format!("read {}", remote(at)),
            Operation::CompareSwap { at, compare, swap } => {
                format!("cas {} compare={compare:#x} swap={swap:#x}", remote(at))
            }
            Operation::FetchAdd { at, add } => format!("fadd {} add={add:#x}", remote(at)),
            Operation::LocalInv(key) => format!("local_inv inv={key:#x}"),
        };
        let mut line = format!("post_send {} {operation} wr_id={}", qp.handle, send.wr_id);
        line.extend(send.sges.iter().map(Sge::word));
        let flags = [
            (send.signaled, "signaled"),
            (send.solicited, "solicited"),
            (send.fence, "fence"),
            (send.inline, "inline"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            line += &format!(" {name}");
        }
        if let Some((ah, qpn, qkey)) = send.to {
            line += &format!(" ah={} qpn={qpn:#x} qkey={qkey:#x}", ah.0);
        }
        if send.count != 1 {
            line += &format!(" count={} stride={} rstride={}", send.count, send.stride, send.remote_stride);
        }
        self.command(&line).map(drop)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`Agent::command`]; its errno is that of `ibv_post_recv`.
    pub fn post_recv(&mut self, qp: Qp, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let list: String = sges.iter().map(Sge::word).collect();
        self.command(&format!("post_recv {} wr_id={wr_id}{list}", qp.handle)).map(drop)
    }

    /// Posts `count` receives, each with `wr_id` one higher and its memory `stride` bytes further on.
    ///
    /// # Errors
    /// As [`Agent::post_recv`].
    pub fn post_recvs(&mut self, qp: Qp, wr_id: u64, sge: Sge, count: u32, stride: u64) -> Result<()> {
        let line = format!("post_recv {} wr_id={wr_id}{} count={count} stride={stride}", qp.handle, sge.word());
        self.command(&line).map(drop)
    }

    /// Posts a receive to a shared receive queue.
    ///
    /// # Errors
    /// As [`Agent::command`]; its errno is that of `ibv_post_srq_recv`.
    pub fn post_srq_recv(&mut self, srq: Srq, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let list: String = sges.iter().map(Sge::word).collect();
        self.command(&format!("post_srq_recv {} wr_id={wr_id}{list}", srq.0)).map(drop)
    }

    /// Up to `count` completions: returns when it has them, or when `limit` is over with those it has.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn poll(&mut self, cq: Cq, count: u32, limit: Duration) -> Result<Vec<Wc>> {
        let line = format!("poll {} {count} {}", cq.0, limit.as_millis());
        let answer = self.command_within(&line, limit + ANSWER_LIMIT)?;
        let completions = answer.text.split_whitespace().filter_map(|word| word.strip_prefix("wc="));
        completions.map(Wc::parse).collect::<Option<_>>().ok_or_else(|| answer.wrong())
    }

    /// A new memory window of type 1 or 2, not bound.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn mw(&mut self, kind: u8) -> Result<Mw> {
        let answer = self.command(&format!("mw {kind}"))?;
        Ok(Mw { handle: answer.word("mw")?, rkey: answer.word("rkey")? })
    }

    /// Posts the bind of a type-2 window to a part of a region (which needs `mw_bind`) and returns the window's new key. The
    /// bind completes with a completion.
    ///
    /// # Errors
    /// As [`Agent::command`]; its errno is that of `ibv_post_send`.
    pub fn bind_type2(
        &mut self,
        qp: Qp,
        mw: &Mw,
        wr_id: u64,
        (mr, offset, len): (&Mr, u64, u64),
        access: &str,
    ) -> Result<u32> {
        let line = format!(
            "post_send {} bind_mw wr_id={wr_id} signaled mw={} mr={} off={offset} len={len} access={access}",
            qp.handle, mw.handle, mr.handle
        );
        self.command(&line)?.word("rkey")
    }

    /// As [`Agent::bind_type2`] for a type-1 window, by `ibv_bind_mw`.
    ///
    /// # Errors
    /// As [`Agent::command`]; its errno is that of `ibv_bind_mw`.
    pub fn bind_type1(
        &mut self,
        qp: Qp,
        mw: &Mw,
        wr_id: u64,
        (mr, offset, len): (&Mr, u64, u64),
        access: &str,
    ) -> Result<u32> {
        let line = format!(
            "bind {} {} wr_id={wr_id} mr={} off={offset} len={len} access={access}",
            qp.handle, mw.handle, mr.handle
        );
        self.command(&line)?.word("rkey")
    }

    /// The next asynchronous event within `limit`: its `ibv_event_type` and name.
    ///
    /// # Errors
    /// As [`Agent::command`].
    pub fn async_event(&mut self, limit: Duration) -> Result<Option<(u32, String)>> {
        let answer = self.command_within(&format!("async {}", limit.as_millis()), limit + ANSWER_LIMIT)?;
        match answer.text("event")? {
            "none" => Ok(None),
            _ => Ok(Some((answer.word("event")?, answer.text("name")?.to_string()))),
        }
    }

    /// Destroys an object: `kind` is `pd`, `mr`, `cq`, `srq`, `qp`, `ah` or `mw`.
    ///
    /// # Errors
    /// As [`Agent::command`]; EBUSY when something still uses it.
    pub fn destroy(&mut self, kind: &str, handle: u32) -> Result<()> {
        self.command(&format!("destroy {kind} {handle}")).map(drop)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.writer.write_all(b"quit\n").and_then(|()| self.writer.flush());
        if let Wire::Program(child, _) = &mut self.wire {
            // It has things to take down first; 2 s are plenty when it is well.
            let until = Instant::now() + Duration::from_secs(2);
            while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether there is something to read, or the end, within `limit`.
fn readable(descriptor: RawFd, limit: Duration) -> bool {
    let mut wanted = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let limit_ms = limit.as_millis().try_into().unwrap_or(libc::c_int::MAX);
    // SAFETY: one pollfd of ours.
    unsafe { libc::poll(&mut wanted, 1, limit_ms) > 0 }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_completions_are_read() {
        let answer = Answer { command: "poll".into(), text: " n=1 wc=7,0,128,100,0x2,0xab,0x0,0x0,0x11".into() };
        assert_eq!(answer.number("n").unwrap(), 1);
        assert!(answer.number("m").is_err());
        let wc = Wc::parse(answer.text("wc").unwrap()).unwrap();
        assert_eq!((wc.wr_id, wc.opcode, wc.byte_len, wc.extra, wc.qpn), (7, WcOpcode::RECV, 100, 0xab, 0x11));
        assert_eq!(Wc::parse("1,2"), None);
        assert_eq!(unhex("0aff"), Some(vec![10, 255]));
        assert_eq!(unhex("0"), None);
    }

    /// A program that answers as `script` (of sh, with the command in `line`) says.
    fn session(script: &str) -> Result<Agent> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("while read -r line; do {script}; done")]);
        Agent::launch(command)
    }

    #[test]
    fn a_child_is_talked_to_and_its_refusals_and_its_end_are_errors() {
        let mut agent = session(
            "case $line in hello) echo ok;; pd) echo ok pd=3;; quit|gone) exit;; *) echo err no errno=22;; esac",
        )
        .unwrap();
        assert_eq!(agent.pd().unwrap(), Pd(3));
        assert_eq!(agent.cq(1).unwrap_err().errno(), Some(22));
        assert!(agent.command("gone").unwrap_err().to_string().contains("ended"));
        assert!(session("echo what").is_err(), "no answer to hello");
    }

    #[test]
    fn a_silent_child_is_waited_for_no_longer_than_its_limit() {
        let mut agent = session("case $line in hello) echo ok;; quit) exit;; esac").unwrap();
        let error = agent.command_within("anything", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, RigError::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut));
    }
}
