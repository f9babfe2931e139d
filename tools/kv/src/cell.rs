use std::fmt;

use serde_json::{Value, json};

/// The engine that moves the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // just two names
pub enum Program {
    Nixl,
    Mooncake,
}

/// What carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// uroce as it is.
    Uroce,
    /// uroce without selective repeat.
    UroceGoBackN,
    /// The engine's own way over TCP, with a congestion control: of UCX, or Mooncake's with pooled connections.
    Tcp(&'static str),
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The prefill site posts, and writes into the decode site's memory.
    Write,
    /// The decode site posts, and reads from the prefill site's memory.
    Read,
}

/// How UCX is to use the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UcxChoice {
    /// With the variables that `uroce run` sets.
    Ours,
    /// As it chooses itself, when it is told nothing.
    Own,
}

/// What the site that posts does, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// All of the first `blocks` blocks at once.
    Transfer {
        /// What it is called in the outcome.
        name: &'static str,
        /// How many.
        blocks: usize,
    },
    /// Requests of some blocks, one at a time.
    Batches {
        /// The blocks of each.
        batch_blocks: usize,
        /// How many requests.
        count: usize,
    },
    /// Pieces of caches that leave when they are computed, each into the places after those of the piece before; after the last
    /// places the first ones are used again.
    Pieces {
        /// The blocks of each.
        piece_blocks: usize,
        /// When each is there, since the step began; no earlier than the one before.
        at_ms: Vec<f64>,
        /// What ends the step early.
        limit: Option<LateLimit>,
    },
}

/// How many pieces may be late; with one more there is nothing left to find out.
#[derive(Clone, Debug, PartialEq)]
pub struct LateLimit {
    /// When each is to have arrived, since the step began; `None` for pieces that do not count.
    pub due_ms: Vec<Option<f64>>,
    /// How many may be later.
    pub count: usize,
}

/// A conversation of two sites.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The engine.
    pub program: Program,
    /// What carries its blocks.
    pub transport: Transport,
    /// Who posts.
    pub op: Op,
    /// How UCX uses the verbs, if it does.
    pub ucx: UcxChoice,
    /// How many blocks there are at each site. They are scattered at the site that serves.
    pub blocks: usize,
    /// Bytes of each, which is one request of the engine.
    pub block_bytes: usize,
    /// What is done.
    pub steps: Vec<Step>,
    /// When it ends, finished or not.
    pub limit_s: u64,
}

impl Step {
    fn plan(&self) -> Value {
        match self {
            Step::Transfer { name, blocks } => json!({"step": "transfer", "name": name, "blocks": blocks}),
            Step::Batches { batch_blocks, count } => {
                json!({"step": "batches", "batch_blocks": batch_blocks, "count": count})
            }
            Step::Pieces { piece_blocks, at_ms, limit } => {
                let limit = limit.as_ref().map(|LateLimit { due_ms, count }| json!({"due_ms": due_ms, "count": count}));
                json!({"step": "pieces", "piece_blocks": piece_blocks, "at_ms": at_ms, "limit": limit})
            }
        }
    }
}

impl Cell {
    /// What the programs are told.
    pub fn plan(&self) -> Value {
        json!({
            "op": if self.op == Op::Write { "WRITE" } else { "READ" },
            "protocol": if self.is_over_verbs() { "rdma" } else { "tcp" },
            "blocks": self.blocks,
            "block_bytes": self.block_bytes,
            "limit_s": self.limit_s,
            "steps": self.steps.iter().map(Step::plan).collect::<Vec<Value>>(),
        })
    }

    /// Whether the engine is to find uroce's device.
    pub fn is_over_verbs(&self) -> bool {
        !matches!(self.transport, Transport::Tcp(_))
    }

    /// The congestion control that its TCP connections must have.
    pub fn control(&self) -> Option<&'static str> {
        match self.transport {
            Transport::Tcp(control) => Some(control),
            _ => None,
        }
    }

    /// How many bytes NIXL has in flight over verbs at the most, by UCX's own limits: what a round trip carries, whatever the
    /// transport does.
    pub fn window_bytes(&self) -> Option<usize> {
        /// Requests that UCX posts before it waits for a completion (UCX_RC_VERBS_TX_QUEUE_LEN), and the READs that uroce's
        /// device allows of them (max_qp_rd_atom).
        const REQUESTS: usize = 256;
        const READS: usize = 128;
        /// What UCX copies at a time (UCX_RC_VERBS_SEG_SIZE), when it does.
        const COPIED_BYTES: usize = 8256;
        let outstanding = if self.op == Op::Write { REQUESTS } else { READS };
        let bytes = if self.ucx == UcxChoice::Own { self.block_bytes.min(COPIED_BYTES) } else { self.block_bytes };
        (self.program == Program::Nixl && self.is_over_verbs()).then_some(outstanding * bytes)
    }

    /// The transport's name in tables.
    pub fn transport_name(&self) -> String {
        match (self.transport, self.program) {
            (Transport::Uroce, _) => "uroce".to_owned(),
            (Transport::UroceGoBackN, _) => "uroce-go-back-n".to_owned(),
            (Transport::Tcp(control), Program::Nixl) => format!("ucx-tcp-{control}"),
            (Transport::Tcp(control), Program::Mooncake) => format!("tcp-pooled-{control}"),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if *self == Program::Nixl { "nixl" } else { "mooncake" })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if *self == Op::Write { "write" } else { "read" })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {} over {}", self.program, self.op, self.transport_name())?;
        if self.is_over_verbs() && self.program == Program::Nixl && self.ucx == UcxChoice::Own {
            write!(f, " as UCX chooses")?;
        }
        write!(f, ", {} blocks of {} KiB", self.blocks, self.block_bytes >> 10)
    }
}
