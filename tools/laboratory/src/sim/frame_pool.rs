/// What was changed in a frame after it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The frame is as it was sent, except for fields that routers can change.
    Intact,
    /// Bits that the ICRC covers were flipped.
    Corrupted,
    /// A third party made the frame from one that it saw: its checksums are right, and the receiver must refuse it.
    Forged,
}

/// A frame in flight.
#[derive(Debug)]
pub(super) struct FrameInFlight {
    /// The bytes of the frame, from the Ethernet header on.
    pub bytes: Vec<u8>,
    pub to: usize,
    pub condition: Condition,
}

/// All frames in flight; their buffers are reused.
#[derive(Debug, Default)]
pub(super) struct FramePool {
    frames: Vec<FrameInFlight>,
    free: Vec<u32>,
}

impl FramePool {
    /// Adds a frame that consists of two parts, and returns its index.
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

    /// Adds a copy of a frame, and returns its index.
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

    /// Takes out the bytes of a frame; [`give_back`](Self::give_back) returns them.
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

    /// The bytes of all frames in flight.
    pub fn on_their_way(&self) -> impl Iterator<Item = &[u8]> {
        let is_free = |index: usize| self.free.contains(&(index as u32));
        self.frames.iter().enumerate().filter(move |(index, _)| !is_free(*index)).map(|(_, frame)| &frame.bytes[..])
    }

    /// The number of frames in flight.
    pub fn in_flight(&self) -> usize {
        self.frames.len() - self.free.len()
    }
}
