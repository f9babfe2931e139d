use std::collections::VecDeque;

use uroce::transport::Class;

/// The queues of a link that sends by class: one for each, the higher first. A frame that is being sent is finished.
#[derive(Debug, Default)]
pub(super) struct PriorityQueues {
    /// The frames of each class, by their indices.
    frames: [VecDeque<u32>; Class::ALL.len()],
    /// Whether a frame is being sent.
    pub is_sending: bool,
}

impl PriorityQueues {
    pub fn put(&mut self, class: Class, frame: u32) {
        self.frames[class as usize].push_back(frame);
    }

    /// Takes the frame that is sent next.
    pub fn take(&mut self) -> Option<u32> {
        self.frames.iter_mut().find_map(VecDeque::pop_front)
    }
}
