use crate::time::{Duration, Instant};

/// How answers follow one another: when the newest came, and how long none came although more were to come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    /// When the newest came; `None` while none is to come.
    newest_at: Option<Instant>,
    /// The longest pause in the present period, and in the one before.
    longest: [Duration; 2],
    began: Instant,
}

impl Stream {
    /// Records that an answer came for which nobody asked again. Pauses are forgotten after one to two times `period`.
    pub fn came(&mut self, now: Instant, period: Duration) {
        if now.saturating_since(self.began) > period {
            (self.longest, self.began) = ([Duration::ZERO, self.longest[0]], now);
        }
        let pause = self.newest_at.replace(now).map_or(Duration::ZERO, |newest| now.saturating_since(newest));
        self.longest[0] = self.longest[0].max(pause);
    }

    /// Records that none is to come: what passes until the next is no pause.
    pub fn rest(&mut self) {
        self.newest_at = None;
    }

    /// Until when the next one comes, unless it is late by more than twice the longest pause lately and by `late`; `None`
    /// while none is to come.
    pub fn next_by(&self, late: Duration) -> Option<Instant> {
        Some(self.newest_at? + late + self.longest[0].max(self.longest[1]) * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(1_000_000_000 + ms * 1_000_000)
    }

    const MS: Duration = Duration::from_millis(1);

    /// A stream whose answers came at these times, in milliseconds.
    fn stream(times: &[u64]) -> Stream {
        let mut stream = Stream::default();
        times.iter().for_each(|time| stream.came(at(*time), 100 * MS));
        stream
    }

    #[test]
    fn the_next_one_is_late_after_twice_the_longest_pause() {
        assert_eq!(stream(&[]).next_by(MS), None);
        assert_eq!(stream(&[5]).next_by(4 * MS), Some(at(9)));
        assert_eq!(stream(&[5, 6, 9, 10]).next_by(4 * MS), Some(at(20)));
    }

    #[test]
    fn a_pause_is_forgotten_in_time_and_a_rest_is_none() {
        let mut stream = stream(&[0, 30]);
        stream.rest();
        assert_eq!(stream.next_by(MS), None);
        stream.came(at(90), 100 * MS);
        assert_eq!(stream.next_by(MS), Some(at(90 + 1 + 60)));
        for time in (91..=300).step_by(3) {
            stream.came(at(time), 100 * MS);
        }
        assert_eq!(stream.next_by(MS), Some(at(298 + 1 + 6)));
    }
}
