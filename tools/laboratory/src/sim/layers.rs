//! Quality against time: what a tensor of a KV cache is worth at a deadline, when its upper halves go first and when its
//! elements go whole.

use half::{bf16, f16};
use uroce::time::Duration;
use uroce_transfer::deadline::{Layers, Receiver, Request, Shape, Values};

use super::deadline_path::{DeadlinePath, LINE_BPS, SYMBOL_BYTES};
use super::random::Random;

/// One cell of the table: a tensor by a deadline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayersCell {
    /// The type of the elements.
    pub element: Element,
    /// Whether the upper halves of all elements go first.
    pub layered: bool,
    /// The deadline, from the request on.
    pub deadline: Duration,
}

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named for what they are
pub enum Element {
    Float16,
    Bfloat16,
    Float32,
}

/// What there is at the deadline.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Share of elements that are as they were.
    pub exact: f64,
    /// Share of elements of which the upper half alone is there.
    pub coarse: f64,
    /// The L2 norm of the error over that of the tensor; a missing element is 0.
    pub relative_l2: f64,
    /// The largest error over the largest element.
    pub relative_max: f64,
}

/// Values of a token in the KV cache of Llama 3 8B: 32 layers, keys and values, 8 heads (GQA) of 128.
pub const TOKEN_VALUES: usize = 32 * 2 * 8 * 128;

/// The tokens of the tensor. In 16 bits they are 4 MiB.
pub const TOKENS: usize = 32;

/// The path: long, and it loses.
pub const ROUND_TRIP: Duration = Duration::from_millis(100);
/// The share of frames that it loses each way.
pub const LOSS: f64 = 0.01;

/// Repair symbols for a thousand.
const REPAIR_PER_MILLE: u16 = 120;

/// Length of a block, in bytes: upper or lower halves of a token, or half of its elements.
const BLOCK_BYTES: u32 = 64 << 10;

const OBJECT: u64 = 1;
const VERSION: u64 = 1;

impl Element {
    /// All types, in the order of the table.
    pub const ALL: [Element; 3] = [Element::Float16, Element::Bfloat16, Element::Float32];

    /// The name of the type in tables.
    pub fn name(self) -> &'static str {
        match self {
            Element::Float16 => "float16",
            Element::Bfloat16 => "bfloat16",
            Element::Float32 => "float32",
        }
    }

    fn bytes(self) -> usize {
        if self == Element::Float32 { 4 } else { 2 }
    }

    fn write(self, value: f32) -> Vec<u8> {
        match self {
            Element::Float16 => f16::from_f32(value).to_le_bytes().to_vec(),
            Element::Bfloat16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            Element::Float32 => value.to_le_bytes().to_vec(),
        }
    }

    fn read(self, bytes: &[u8]) -> f64 {
        match (self, bytes) {
            (Element::Float16, [a, b]) => f16::from_le_bytes([*a, *b]).to_f64(),
            (Element::Bfloat16, [a, b]) => bf16::from_le_bytes([*a, *b]).to_f64(),
            (_, [a, b, c, d]) => f64::from(f32::from_le_bytes([*a, *b, *c, *d])),
            _ => unreachable!("an element is as long as its type"),
        }
    }
}

impl LayersCell {
    /// The deadlines of the table, in milliseconds.
    pub const DEADLINES_MS: [u64; 8] = [120, 140, 160, 180, 200, 240, 300, 400];

    /// The whole table.
    pub fn table() -> Vec<LayersCell> {
        let mut cells = Vec::new();
        for element in Element::ALL {
            for deadline in Self::DEADLINES_MS.map(Duration::from_millis) {
                for layered in [true, false] {
                    cells.push(LayersCell { element, layered, deadline });
                }
            }
        }
        cells
    }

    /// Length of the tensor, in bytes.
    pub fn bytes(&self) -> usize {
        TOKENS * TOKEN_VALUES * self.element.bytes()
    }

    /// How long the path takes to carry the tensor's bytes alone.
    pub fn serialisation(&self) -> Duration {
        Duration::from_nanos(self.bytes() as u64 * 8_000_000_000 / LINE_BPS)
    }

    /// Runs the cell with all randomness from `seed`.
    pub fn run(&self, seed: u64) -> Quality {
        let tensor = self.tensor(seed);
        let layers = Layers::new(self.element.bytes(), TOKENS * TOKEN_VALUES, BLOCK_BYTES).expect("whole blocks");
        let object = if self.layered { layers.split(&tensor) } else { tensor.clone() };
        let mut path = DeadlinePath::new(ROUND_TRIP, (LOSS, false), seed);
        path.sender.offer(OBJECT, Values::new(VERSION, BLOCK_BYTES, object).expect("it can be cut"));
        path.find_rate();
        let shape = Shape::new(tensor.len() as u64, BLOCK_BYTES, SYMBOL_BYTES).expect("it can be cut");
        let request = Request::new(OBJECT, VERSION, shape).with_repair(REPAIR_PER_MILLE).by(path.now + self.deadline);
        let receiver = path.transfer(request).expect("the request is possible");
        let (found, exact, coarse) = self.found(&receiver, &layers);
        let elements = (TOKENS * TOKEN_VALUES) as f64;
        let (relative_l2, relative_max) = self.errors(&tensor, &found);
        Quality { exact: exact as f64 / elements, coarse: coarse as f64 / elements, relative_l2, relative_max }
    }

    /// The tensor as it is at the deadline, with the numbers of exact and of coarse elements.
    fn found(&self, receiver: &Receiver, layers: &Layers) -> (Vec<u8>, usize, usize) {
        if self.layered {
            let joined = layers.join(|block| receiver.block(block));
            return (joined.bytes, joined.exact, joined.coarse);
        }
        let none = [0; BLOCK_BYTES as usize];
        let blocks = 0..receiver.whole().len();
        let bytes = blocks.flat_map(|block| receiver.block(block).unwrap_or(&none)).copied().collect();
        let exact = receiver.whole().count() as usize * BLOCK_BYTES as usize / self.element.bytes();
        (bytes, exact, 0)
    }

    /// The L2 norm and the maximum of the error, each over that of the tensor.
    fn errors(&self, tensor: &[u8], found: &[u8]) -> (f64, f64) {
        let values = |bytes: &[u8]| -> Vec<f64> {
            bytes.chunks_exact(self.element.bytes()).map(|bytes| self.element.read(bytes)).collect()
        };
        let (exact, found) = (values(tensor), values(found));
        let norm = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((0.0, 0.0), |(sum, max): (f64, f64), value| (sum + value * value, max.max(value.abs())))
        };
        let error = norm(&mut exact.iter().zip(&found).map(|(exact, found)| exact - found));
        let whole = norm(&mut exact.iter().copied());
        ((error.0 / whole.0).sqrt(), error.1 / whole.1)
    }

    /// Values around zero, with a scale for each of the 128 channels of a head: keys have channels that are much larger than
    /// others.
    fn tensor(&self, seed: u64) -> Vec<u8> {
        let mut random = Random::new(seed, 7);
        let scales: Vec<f64> = (0..128).map(|_| normal(&mut random).exp()).collect();
        let values = (0..TOKENS * TOKEN_VALUES).map(|number| normal(&mut random) * scales[number % 128]);
        values.flat_map(|value| self.element.write(value as f32)).collect()
    }
}

/// A number of the normal distribution: the sum of twelve even ones (Irwin–Hall).
fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| f64::from(random.u32()) / f64::from(u32::MAX)).sum::<f64>() - 6.0
}
