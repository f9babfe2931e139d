#![allow(clippy::disallowed_methods)] // this is the clock

use std::time::{Instant as Monotonic, SystemTime, UNIX_EPOCH};

use crate::time::Instant;

/// The Unix time at start, continued by the monotonic clock.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    start: Monotonic,
    start_unix: Instant,
}

impl Clock {
    pub fn new() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { start: Monotonic::now(), start_unix: Instant::ZERO + unix }
    }

    pub fn now(&self) -> Instant {
        self.start_unix + self.start.elapsed()
    }
}
