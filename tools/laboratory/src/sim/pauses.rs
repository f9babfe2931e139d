use uroce::time::{Duration, Instant};

use super::random::Random;

/// When a host's processor belongs to other programs: the host then handles nothing, and all at once afterwards.
#[derive(Clone, Debug)]
pub struct Pauses {
    /// The shortest and the longest time between two pauses.
    between: [Duration; 2],
    /// How long each lasts.
    length: Duration,
    /// What decides on the times between.
    random: Random,
    /// The latest pause that was drawn: its beginning and its end.
    latest: [Instant; 2],
}

impl Pauses {
    /// Pauses of this length, with times from the shorter to the longer one between them.
    pub fn new(between: [Duration; 2], length: Duration, random: Random) -> Pauses {
        Pauses { between, length, random, latest: [Instant::ZERO; 2] }
    }

    /// The end of the pause that `now` is in; `None` between two. Times must not go back.
    pub(super) fn end_at(&mut self, now: Instant) -> Option<Instant> {
        let [least, most] = self.between;
        while now >= self.latest[1] {
            let begin = self.latest[1] + least + self.random.up_to(most - least);
            self.latest = [begin, begin + self.length];
        }
        let [begin, end] = self.latest;
        (now >= begin).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_has_its_length_and_begins_in_time_after_the_one_before() {
        let us = Duration::from_micros;
        let mut pauses = Pauses::new([us(200), us(800)], us(300), Random::new(1, 0));
        let mut lengths = Vec::new();
        let (mut asleep, mut changed) = (false, 0);
        for now in 0..1_000_000 {
            let end = pauses.end_at(Instant::from_ns(now * 1000));
            if end.is_some() != asleep {
                lengths.push((asleep, now - changed));
                (asleep, changed) = (end.is_some(), now);
            }
        }
        let fits = |(asleep, length): &(bool, u64)| if *asleep { (299..=301).contains(length) } else { *length <= 801 };
        assert!(lengths.len() > 1000 && lengths[1..].iter().all(fits), "{lengths:?}");
        assert!(lengths[1..].iter().all(|(asleep, length)| *asleep || *length >= 199), "{lengths:?}");
    }
}
