use std::collections::VecDeque;

use uroce::time::Duration;

use super::{End, Failure, Receiver};

/// What earlier requests to a peer took, and by it the deadline for the next one.
///
/// A request that missed its deadline says only that it would have taken longer. Such times count as what they are, by the
/// product-limit estimator (Kaplan and Meier, 1958), so that short deadlines do not make the next ones shorter still.
///
#[derive(Clone, Debug)]
pub struct History {
    share: f64,
    requests: VecDeque<Past>,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
struct Past {
    bytes: f64,
    /// Seconds until all was there, or until the deadline.
    took_s: f64,
    is_whole: bool,
}

/// As many requests are remembered: at a share of 0.99, two of them may take longer.
const REMEMBERED: usize = 200;

/// Fewer say nothing.
const LEAST: usize = 8;

/// What a byte costs is known when the largest third of the requests is so many times as long as the smallest.
const SPREAD: f64 = 2.0;

/// How much longer than the longest that is known the next deadline is, when too many missed theirs.
const LONGER: f64 = 2.0;

impl History {
    /// Nothing is known yet. Of requests with the deadlines that it will name, this share is to be whole.
    ///
    /// # Panics
    /// When `share` is not between 0 and 1: none or all of the requests is no aim.
    pub fn new(share: f64) -> History {
        assert!(share > 0.0 && share < 1.0, "a share of {share}: it must be between 0 and 1, such as 0.99");
        History { share, requests: VecDeque::new() }
    }

    /// Takes a request that has ended after so long. One that nobody answered missed its deadline: the path may have become
    /// longer than that. Otherwise what has failed or was cancelled says nothing, and so does one that goes on.
    pub fn record(&mut self, receiver: &Receiver, took: Duration) {
        if let Some(end) = receiver.end() {
            self.remember(receiver.wanted_bytes(), took, end);
        }
    }

    fn remember(&mut self, bytes: u64, took: Duration, end: End) {
        let is_whole = match end {
            End::Complete => true,
            End::Deadline | End::Failed(Failure::NoDeadlineMode { .. }) => false,
            End::Cancelled | End::Failed(_) => return,
        };
        if self.requests.len() == REMEMBERED {
            self.requests.pop_front();
        }
        self.requests.push_back(Past { bytes: bytes as f64, took_s: took.as_secs_f64(), is_whole });
    }

    /// How long the next request may take, if it asks for so many bytes; `None` while fewer than eight are known. It is twice
    /// the longest that is known when more than the rest of the share missed their deadlines.
    pub fn deadline(&self, bytes: u64) -> Option<Duration> {
        if self.requests.len() < LEAST {
            return None;
        }
        let bytes = bytes as f64;
        let seconds = match self.byte_s() {
            Some(byte_s) => self.quantile(|past| past.took_s + byte_s * (bytes - past.bytes)),
            // With one length alone, a longer request takes as much longer at the most, and a shorter one no longer.
            None => self.quantile(|past| past.took_s * (bytes / past.bytes).max(1.0)),
        };
        Some(Duration::from_secs_f64(seconds.max(0.0)))
    }

    /// What a byte costs, in seconds: between the medians of the smallest third of the whole requests and of the largest.
    /// `None` when these are of about one length.
    fn byte_s(&self) -> Option<f64> {
        let mut whole: Vec<Past> = self.requests.iter().copied().filter(|past| past.is_whole).collect();
        whole.sort_by(|one, other| one.bytes.total_cmp(&other.bytes));
        let third = whole.len() / 3;
        let (smallest, largest) = (whole.get(..third)?, whole.get(whole.len() - third..)?);
        let [small, large] = [smallest, largest].map(|some| median(some, |past| past.bytes));
        let [short, long] = [smallest, largest].map(|some| median(some, |past| past.took_s));
        (large? >= SPREAD * small?).then_some(((long? - short?) / (large? - small?)).max(0.0))
    }

    /// The time that the share of requests keeps to, if each takes what `took_s` says.
    fn quantile(&self, took_s: impl Fn(&Past) -> f64) -> f64 {
        let mut times: Vec<(f64, bool)> = self.requests.iter().map(|past| (took_s(past), past.is_whole)).collect();
        // Of the same time, those that were whole came before those that went on.
        times.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
        let mut longer = 1.0;
        for (index, (time, is_whole)) in times.iter().enumerate() {
            let at_least = (times.len() - index) as f64;
            if *is_whole {
                longer *= 1.0 - 1.0 / at_least;
            }
            // A thousandth of a request is the noise of these products.
            if longer <= 1.0 - self.share + 1e-3 / times.len() as f64 {
                return *time;
            }
        }
        times.last().map_or(0.0, |(longest, _)| LONGER * longest)
    }
}

fn median(all: &[Past], value: impl Fn(&Past) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = all.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use uroce_laboratory::sim::Random;

    use super::super::Failure;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn of(share: f64, requests: impl IntoIterator<Item = (u64, u64, End)>) -> History {
        let mut history = History::new(share);
        requests.into_iter().for_each(|(bytes, took, end)| history.remember(bytes, ms(took), end));
        history
    }

    fn near(history: &History, bytes: u64, wanted: Duration) {
        let deadline = history.deadline(bytes).unwrap();
        assert!(deadline.abs_diff(wanted) < Duration::from_micros(1), "{deadline:?}, not {wanted:?}");
    }

    #[test]
    fn without_misses_it_is_the_time_that_the_share_kept_to() {
        let history = |share| of(share, (1..=100).rev().map(|took| (MIB, took, End::Complete)));
        for (share, wanted) in [(0.5, 50), (0.9, 90), (0.99, 99), (0.999, 100)] {
            near(&history(share), MIB, ms(wanted));
        }
    }

    #[test]
    fn little_and_what_was_no_transfer_says_nothing() {
        let mut history = of(0.9, (1..=7).map(|took| (MIB, took, End::Complete)));
        history.remember(MIB, ms(1), End::Cancelled);
        history.remember(MIB, ms(1), End::Failed(Failure::Spoiled(1)));
        assert_eq!(history.deadline(MIB), None);
        history.remember(MIB, ms(8), End::Complete);
        near(&history, MIB, ms(8));
    }

    /// Kaplan and Meier by hand: of ten, two went on after 5 and 7 ms. The whole ones at 1, 2, 3, 4, 5 leave 5 of 10; then four are
    /// left, of which one goes on after 5: at 6 a quarter of the half goes.
    #[test]
    fn a_request_that_missed_its_deadline_counts_as_longer_than_that() {
        let whole = [1, 2, 3, 4, 5, 6, 8, 9].map(|took| (MIB, took, End::Complete));
        let missed = [5, 7].map(|took| (MIB, took, End::Deadline));
        let left = |share| of(share, whole.into_iter().chain(missed));
        // 0.5 after 5, 0.5 × 3/4 after 6, × 1/2 after 8, and nothing after 9.
        for (share, wanted) in [(0.5, 5), (0.51, 6), (0.62, 6), (0.63, 8), (0.81, 8), (0.82, 9), (0.99, 9)] {
            near(&left(share), MIB, ms(wanted));
        }
    }

    /// The same by Efron's rule (1967): all weigh alike, and what one weighs that went on is shared by all that took longer.
    #[test]
    fn its_quantiles_are_those_of_shared_weights() {
        for seed in 0..200 {
            let mut random = Random::new(seed, 1);
            let mut requests: Vec<(u64, bool)> =
                (0..8 + random.below(60)).map(|_| (1 + random.below(30), random.chance(0.7))).collect();
            let share = 0.05 + 0.9 * random.below(1000) as f64 / 1000.0;
            let end = |is_whole| if is_whole { End::Complete } else { End::Deadline };
            let history = of(share, requests.iter().map(|&(took, is_whole)| (MIB, took, end(is_whole))));

            requests.sort_by_key(|&(took, is_whole)| (took, !is_whole));
            let (mut weight, mut below) = (1.0 / requests.len() as f64, 0.0);
            let mut wanted = 2 * requests.last().unwrap().0;
            for (index, &(took, is_whole)) in requests.iter().enumerate() {
                if is_whole {
                    below += weight;
                } else if index + 1 < requests.len() {
                    weight += weight / (requests.len() - index - 1) as f64;
                }
                if below >= share {
                    wanted = took;
                    break;
                }
            }
            let deadline = history.deadline(MIB).unwrap();
            assert!(
                deadline.abs_diff(ms(wanted)) < Duration::from_micros(1),
                "seed {seed}, {share}: {deadline:?}, not {wanted}"
            );
        }
    }

    #[test]
    fn with_too_many_misses_it_grows_until_there_are_fewer() {
        let mut history = of(0.9, (0..200).map(|_| (MIB, 100, End::Complete)));
        // The path is slower now: all take 350 ms.
        let mut deadlines = Vec::new();
        for _ in 0..400 {
            let deadline = history.deadline(MIB).unwrap();
            let end = if deadline >= ms(350) { End::Complete } else { End::Deadline };
            history.remember(MIB, deadline.min(ms(350)), end);
            deadlines.push(deadline);
        }
        let first = deadlines.iter().position(|deadline| *deadline >= ms(350)).unwrap();
        assert!((15..60).contains(&first), "after {first}");
        near(&history, MIB, ms(350));
    }

    #[test]
    fn short_deadlines_do_not_make_shorter_ones() {
        // All take 300 ms, and the program has 50 ms for each second one.
        let requests = (0..100).map(|number| if number % 2 == 0 { (50, End::Deadline) } else { (300, End::Complete) });
        near(&of(0.9, requests.map(|(took, end)| (MIB, took, end))), MIB, ms(300));
    }

    #[test]
    fn lengths_that_differ_tell_what_a_byte_costs() {
        // 20 ms, and 5 ms a MiB.
        let history = of(
            0.9,
            (0..60).map(|number| (number % 8 + 1, End::Complete)).map(|(mib, end)| (mib * MIB, 20 + 5 * mib, end)),
        );
        near(&history, 4 * MIB, ms(40));
        near(&history, 100 * MIB, ms(520));
    }

    #[test]
    fn with_one_length_others_are_no_shorter_and_longer_in_proportion() {
        let history = of(0.5, (0..20).map(|_| (MIB, 40, End::Complete)));
        near(&history, MIB / 4, ms(40));
        near(&history, 3 * MIB, ms(120));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let history = of(
            0.99,
            [(MIB, 9999, End::Complete)].into_iter().cycle().take(300).chain((0..200).map(|_| (MIB, 7, End::Complete))),
        );
        near(&history, MIB, ms(7));
    }

    #[test]
    #[should_panic(expected = "between 0 and 1")]
    fn all_of_the_requests_is_no_aim() {
        History::new(1.0);
    }
}
