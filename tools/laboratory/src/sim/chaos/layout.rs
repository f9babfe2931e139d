use super::arena::Arena;

/// The division of one side's memory.
///
/// First come buffers to send from, to read into and to receive into, each a row of equal slots. The peer's target has
/// a key of its own: an area, words for atomics, and a flag. Guard bytes between and around them must never be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub slot: usize,
    pub sources: usize,
    pub sinks: usize,
    pub receives: usize,
    pub area: usize,
}

/// Length of the guard bytes between areas.
const GUARD: usize = 64;
const WORDS: usize = 8;

impl Layout {
    pub fn source(&self, index: usize) -> usize {
        GUARD + index * self.slot
    }

    pub fn sink(&self, index: usize) -> usize {
        self.source(self.sources + index)
    }

    pub fn receive(&self, index: usize) -> usize {
        self.sink(self.sinks + index)
    }

    /// The range that only the program itself uses.
    pub fn local(&self) -> (usize, usize) {
        (GUARD, self.receive(self.receives) - GUARD)
    }

    /// The range that the peer can write and read: area, words and flag.
    pub fn target(&self) -> (usize, usize) {
        (self.receive(self.receives) + GUARD, self.area + 8 * WORDS + 8)
    }

    /// The offsets of the first word for atomics, and of the flag.
    pub fn words(&self) -> (usize, usize) {
        let words = self.target().0 + self.area;
        (words, words + 8 * WORDS)
    }

    pub fn word(&self, index: u64) -> usize {
        self.words().0 + 8 * (index as usize % WORDS)
    }

    pub fn len(&self) -> usize {
        let (start, len) = self.target();
        start + len + GUARD
    }

    /// A description of the first byte of an arena with a wrong value; `None` when all are right.
    pub fn damage(&self, arena: &mut Arena) -> Option<String> {
        let offset = *arena.differences(0..arena.len()).first()?;
        Some(format!("byte {offset} ({}) was written", self.describe(offset)))
    }

    /// A description of the place at an offset, for messages.
    pub fn describe(&self, offset: usize) -> String {
        let (target, target_len) = self.target();
        let (words, flag) = self.words();
        match offset {
            at if at < GUARD || at >= target + target_len => "guard".into(),
            at if at < self.sink(0) => format!("source {}", (at - GUARD) / self.slot),
            at if at < self.receive(0) => format!("sink {}", (at - self.sink(0)) / self.slot),
            at if at < self.receive(self.receives) => format!("receive {}", (at - self.receive(0)) / self.slot),
            at if at < target => "guard".into(),
            at if at < words => format!("target {}", at - target),
            at if at < flag => format!("word {}", (at - words) / 8),
            _ => "flag".into(),
        }
    }
}
