/// What was done to a frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// As it was sent, but for what routers may change.
    Intact,
    /// Bits that the ICRC covers were flipped.
    Corrupted,
    /// Made up by a stranger from a frame that it saw: right in itself, and to be refused.
    Forged,
}

/// A frame on its way.
#[derive(Debug)]
pub(super) struct FrameInFlight {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    pub to: usize,
    pub condition: Condition,
}

/// Frames on their way; their buffers are used again.
#[derive(Debug, Default)]
pub(super) struct FramePool {
    frames: Vec<FrameInFlight>,
    free: Vec<u32>,
}

impl FramePool {
    /// A frame made of two parts.
    pub fn put(&mut self, parts: [&[u8]; 2], to: usize, condition: Condition) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.frames.push(FrameInFlight { bytes: Vec::new(), to, condition });
            self.frames.len() as u32 - 1
        });
        let frame = &mut self.frames[index as usize];
        (frame.to, frame.condition) = (to, condition);
        frame.bytes.clear();
        parts.iter().for_each(|part| frame.bytes.extend_from_slice(part));
        index
    }

    /// A copy of a frame.
    pub fn duplicate(&mut self, index: u32) -> u32 {
        let bytes = std::mem::take(&mut self.frames[index as usize].bytes);
        let (to, condition) = (self.frames[index as usize].to, self.frames[index as usize].condition);
        let copy = self.put([&bytes, &[]], to, condition);
        self.frames[index as usize].bytes = bytes;
        copy
    }

    pub fn frame(&mut self, index: u32) -> &mut FrameInFlight {
        &mut self.frames[index as usize]
    }

    /// Takes the bytes out; they come back with [`give_back`](Self::give_back).
    pub fn take(&mut self, index: u32) -> Vec<u8> {
        std::mem::take(&mut self.frames[index as usize].bytes)
    }

    pub fn give_back(&mut self, index: u32, bytes: Vec<u8>) {
        self.frames[index as usize].bytes = bytes;
        self.free.push(index);
    }

    pub fn drop_frame(&mut self, index: u32) {
        self.free.push(index);
    }

    /// The bytes of frames that are on their way.
    pub fn on_their_way(&self) -> impl Iterator<Item = &[u8]> {
        let is_free = |index: usize| self.free.contains(&(index as u32));
        self.frames.iter().enumerate().filter(move |(index, _)| !is_free(*index)).map(|(_, frame)| &frame.bytes[..])
    }

    /// Frames that are on their way.
    pub fn in_flight(&self) -> usize {
        self.frames.len() - self.free.len()
    }
}
