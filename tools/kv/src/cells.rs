//! Which cells are played over a path.

use uroce_laboratory::inference::{H100, MODELS, Model, PAGE_TOKENS};

use crate::cell::{Cell, Op, Program, Step, Transport, UcxChoice};
use crate::load::ScaledPrompt;
use crate::profile::SLOWER;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What a bulk transfer moves: 2048 tokens of Llama 8B.
const BULK_BYTES: usize = 256 * MIB;

/// What the first transfer of a connection moves, which is measured apart; of the least a quarter.
const COLD_BYTES: usize = 32 * MIB;

/// A page of 16 tokens of a layer of Llama, which is what NIXL is asked to move.
const PAGE_BYTES: usize = 64 * KIB;

/// What is moved where there are more cells than time: by Mooncake and with CUBIC, and with go-back-N and as UCX chooses.
const LESS_BYTES: usize = 64 * MIB;
const LEAST_BYTES: usize = 32 * MIB;

/// The requests of Mooncake's batches.
const MOONCAKE_REQUESTS: [usize; 2] = [128 * KIB, MIB];

/// A batch that is sent alone, and how many there are.
pub const BATCH_BYTES: usize = 2 * MIB;
const BATCHES: usize = 200;

/// When a cell ends, finished or not.
const LIMIT_S: u64 = 20;

/// The same of a cell of batches, which are 200 round trips and more.
const BATCHES_LIMIT_S: u64 = 40;

/// The congestion controls of TCP that are worth a comparison.
const CONTROLS: [&str; 2] = ["cubic", "bbr"];

/// Requests whose time to first token is measured, one after the other.
const PROMPTS: usize = 3;

/// What a cell shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Shows {
    /// How fast much is moved.
    Bulk,
    /// How long a batch takes.
    Batches,
    /// When the first token is there.
    Prompt {
        /// The model.
        model: Model,
        /// The prompt's length.
        tokens: usize,
    },
}

/// A cell, and what it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct Play {
    /// What it shows.
    pub shows: Shows,
    /// What is done.
    pub cell: Cell,
}

/// All cells of a path. Prompts, and batches over TCP, are played on one path of a profile only: `with_prompts`.
pub fn plays(with_prompts: bool) -> Vec<Play> {
    let tcp = CONTROLS.map(Transport::Tcp);
    let mut plays = Vec::new();
    for op in [Op::Write, Op::Read] {
        for transport in [Transport::Uroce, Transport::Tcp("bbr")] {
            plays.push(bulk(Program::Nixl, transport, op, PAGE_BYTES, BULK_BYTES));
        }
        plays.push(bulk(Program::Nixl, Transport::Tcp("cubic"), op, PAGE_BYTES, LESS_BYTES));
        plays.push(bulk(Program::Nixl, Transport::UroceGoBackN, op, PAGE_BYTES, LEAST_BYTES));
        let mut own = bulk(Program::Nixl, Transport::Uroce, op, PAGE_BYTES, LEAST_BYTES);
        own.cell.ucx = UcxChoice::Own;
        plays.push(own);
    }
    for transport in [Transport::Uroce].into_iter().chain(tcp) {
        for request in MOONCAKE_REQUESTS.into_iter().chain([LESS_BYTES]) {
            plays.push(bulk(Program::Mooncake, transport, Op::Write, request, LESS_BYTES));
        }
        plays.push(bulk(Program::Mooncake, transport, Op::Read, MIB, LESS_BYTES));
    }
    plays.push(batches(Transport::Uroce));
    if !with_prompts {
        return plays;
    }
    plays.push(batches(Transport::Tcp("bbr")));
    for (model, tokens) in prompts() {
        for transport in [Transport::Uroce, Transport::Tcp("bbr")] {
            plays.push(prompt(model, tokens, transport));
        }
    }
    plays
}

/// Whose prompts a second are looked for, and by how much these are shorter, and over what.
pub fn loads() -> impl Iterator<Item = (ScaledPrompt, Transport)> {
    // The first is limited by the line, the second by its compute.
    let prompts = [(MODELS[0], 32.0), (MODELS[2], 8.0)].map(|(model, shorter)| ScaledPrompt::new(model, shorter));
    let transports = [Transport::Uroce, Transport::Tcp("bbr"), Transport::Tcp("cubic"), Transport::UroceGoBackN];
    prompts.into_iter().flat_map(move |prompt| transports.map(|transport| (prompt, transport)))
}

/// A small version of each kind, which takes seconds.
pub fn small_plays() -> Vec<Play> {
    let tcp = Transport::Tcp("bbr");
    let mut plays = Vec::new();
    for (program, transport, op) in [
        (Program::Nixl, Transport::Uroce, Op::Write),
        (Program::Nixl, Transport::Uroce, Op::Read),
        (Program::Nixl, tcp, Op::Write),
        (Program::Mooncake, Transport::Uroce, Op::Read),
        (Program::Mooncake, tcp, Op::Write),
    ] {
        plays.push(bulk(program, transport, op, PAGE_BYTES, COLD_BYTES));
    }
    let mut batches = batches(Transport::Uroce);
    if let Step::Batches { count, .. } = &mut batches.cell.steps[1] {
        *count = 8;
    }
    plays.push(batches);
    let mut prompt = prompt(MODELS[2], 512, Transport::Uroce);
    prompt.cell.steps.truncate(2);
    plays.push(prompt);
    plays
}

/// Prompts that the line carries, and the accelerator computes, in a second or two.
fn prompts() -> [(Model, usize); 4] {
    [(MODELS[0], 256), (MODELS[1], 128), (MODELS[2], 1024), (MODELS[3], 512)]
}

pub(crate) fn cell(program: Program, transport: Transport, op: Op, block_bytes: usize, bytes: usize) -> Cell {
    let (ucx, blocks) = (UcxChoice::Ours, bytes / block_bytes);
    Cell { program, transport, op, ucx, blocks, block_bytes, steps: Vec::new(), limit_s: LIMIT_S }
}

/// The same connection first cold, then warm.
fn bulk(program: Program, transport: Transport, op: Op, request: usize, bytes: usize) -> Play {
    let mut cell = cell(program, transport, op, request, bytes);
    let cold_bytes = if bytes > LEAST_BYTES { COLD_BYTES } else { bytes / 4 };
    // A request of all bytes is its own cold one.
    let cold = (cold_bytes / request).clamp(1, cell.blocks);
    cell.steps =
        vec![Step::Transfer { name: "cold", blocks: cold }, Step::Transfer { name: "warm", blocks: cell.blocks }];
    Play { shows: Shows::Bulk, cell }
}

fn batches(transport: Transport) -> Play {
    let mut cell = cell(Program::Nixl, transport, Op::Write, PAGE_BYTES, COLD_BYTES);
    cell.steps = vec![
        Step::Transfer { name: "cold", blocks: cell.blocks },
        Step::Batches { batch_blocks: BATCH_BYTES / PAGE_BYTES, count: BATCHES },
    ];
    cell.limit_s = BATCHES_LIMIT_S;
    Play { shows: Shows::Batches, cell }
}

/// Layers of a model that leave while the next ones are computed, as much slower as the path is.
fn prompt(model: Model, tokens: usize, transport: Transport) -> Play {
    let layer_blocks = tokens / PAGE_TOKENS;
    let blocks = layer_blocks * model.kv_layers;
    let mut cell = cell(Program::Nixl, transport, Op::Write, model.page_bytes(), blocks * model.page_bytes());
    let compute_ms = 1e3 * SLOWER * model.prefill_s(tokens, &H100) / model.kv_layers as f64;
    let at_ms = (1..=model.kv_layers).map(|layer| layer as f64 * compute_ms).collect();
    let layers = Step::Pieces { piece_blocks: layer_blocks, at_ms, limit: None };
    let cold = (COLD_BYTES / model.page_bytes()).min(blocks);
    cell.steps = vec![Step::Transfer { name: "cold", blocks: cold }];
    cell.steps.extend(std::iter::repeat_n(layers, PROMPTS));
    cell.limit_s = BATCHES_LIMIT_S;
    Play { shows: Shows::Prompt { model, tokens }, cell }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_moves_more_than_there_is() {
        for Play { cell, .. } in plays(true).into_iter().chain(small_plays()) {
            for step in &cell.steps {
                let blocks = match step {
                    Step::Transfer { blocks, .. } => *blocks,
                    Step::Batches { batch_blocks, .. } => *batch_blocks,
                    Step::Pieces { piece_blocks, at_ms, .. } => piece_blocks * at_ms.len(),
                };
                assert!((1..=cell.blocks).contains(&blocks), "{cell}: {step:?}");
            }
        }
    }
}
