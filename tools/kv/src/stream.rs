//! A cache that leaves in chunks while it is computed, over a network: the C program of `transfer/c/examples` at both sites.

use std::path::{Path as File, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use uroce_laboratory::inference::{H100, MODELS, Model};
use wan::{Side, Wan};

use crate::conversation::{Tools, by_uroce};
use crate::profile::SLOWER;
use crate::site::Site;

/// A prompt whose cache is sent, computed in micro-batches, each through all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prompt {
    /// The model.
    pub model: Model,
    /// The prompt's length.
    pub tokens: usize,
}

/// Prompts of half a second and more: of one the transfer takes longer, of the other compute.
pub const PROMPTS: [Prompt; 2] = [Prompt { model: MODELS[0], tokens: 256 }, Prompt { model: MODELS[2], tokens: 1024 }];

/// The same, of a few milliseconds.
pub const SMALL_PROMPT: Prompt = Prompt { model: MODELS[2], tokens: 16 };

/// The parts in which a prompt is computed.
const MICRO_BATCHES: usize = 4;

/// Lengths of chunks, in bytes.
pub const CHUNKS: [u64; 5] = [256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// Chunks on their way at once: few, as 64 are on a line that is 83 times faster.
pub const OUTSTANDING: u32 = 4;

/// How often each length is played; the median counts.
pub const ROUNDS: usize = 3;

/// When a stream fails of which nothing comes.
const PATIENCE: Duration = Duration::from_secs(30);

impl Prompt {
    /// The number of parts: each layer of each micro-batch.
    pub fn parts(&self) -> usize {
        self.model.kv_layers * MICRO_BATCHES
    }

    /// Bytes of a part.
    pub fn part_bytes(&self) -> usize {
        self.tokens * self.model.token_bytes() / self.parts()
    }

    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.parts() * self.part_bytes()
    }

    /// How long a part is computed, as much slower as the line is.
    pub fn part_us(&self) -> u64 {
        (1e6 * SLOWER * self.model.prefill_s(self.tokens, &H100) / self.parts() as f64) as u64
    }
}

/// Makes a program of `transfer/c/examples`, in the folder of the pictures.
///
/// # Errors
/// What the compiler says.
pub fn program(tools: &Tools, name: &str) -> Result<PathBuf, String> {
    let transfer = File::new(env!("CARGO_MANIFEST_DIR")).join("../../transfer/c");
    let folder = tools.environments.join("kv");
    std::fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    compiler.arg("-O2").arg("-o").arg(&program).arg(transfer.join("examples").join(name).with_extension("c"));
    compiler.arg("-I").arg(transfer.join("include"));
    // Where cargo puts the library: beside the program, or with what other crates need.
    let beside = tools.uroce.parent().unwrap_or(File::new("/"));
    for folder in [beside.join("deps"), beside.to_owned()] {
        compiler.arg(format!("-L{0}", folder.display())).arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    let output = compiler.args(["-luroce_transfer_c", "-libverbs"]).output();
    let output = output.map_err(|error| format!("cc (cargo xtask setup): {error}"))?;
    match output.status.success() {
        true => Ok(program),
        false => Err(format!("{name}.c does not compile: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Streams a prompt with chunks of these lengths, one after the other over a connection, 0 for the chosen one; returns what both
/// sites said of each.
///
/// # Errors
/// What went wrong.
pub fn play(
    wan: &Wan,
    tools: &Tools,
    program: &File,
    prompt: &Prompt,
    chunks: &[u64],
) -> Result<Vec<[Value; 2]>, String> {
    let words = |side: Side| {
        let other = wan.host(Side::A, 0);
        let mut command = by_uroce(wan, tools, side, &[]);
        command.arg(program);
        command.arg("-l").arg(prompt.parts().to_string()).arg("-b").arg(prompt.part_bytes().to_string());
        command.arg("-q").arg(OUTSTANDING.to_string()).arg("-t").arg(PATIENCE.as_millis().to_string());
        if side == Side::A {
            let lengths: Vec<String> = chunks.iter().map(u64::to_string).collect();
            command.arg("-x").arg(prompt.part_us().to_string()).arg("-c").arg(lengths.join(",")).arg("send");
        } else {
            command.arg("-n").arg(chunks.len().to_string()).arg("fetch").arg(other.ipv4.to_string());
        }
        command
    };
    let (sends, fetches) = (Site::start(words(Side::A))?, Site::start(words(Side::B))?);
    let mut streams = Vec::new();
    while streams.len() < chunks.len() {
        let end = Instant::now() + PATIENCE * 2;
        let (Some(fetched), Some(sent)) = (fetches.next(end)?, sends.next(end)?) else {
            return Err(format!("a site ended early: {:?}", fetches.finish()));
        };
        if let Some(failed) = [&fetched, &sent].into_iter().find(|line| line["end"] != "complete") {
            return Err(format!("a stream failed: {}", failed["error"]));
        }
        if fetched["contents_equal"] != true {
            return Err("bytes arrived otherwise than they were sent".into());
        }
        streams.push([sent, fetched]);
    }
    fetches.finish().map(|_| streams)
}
