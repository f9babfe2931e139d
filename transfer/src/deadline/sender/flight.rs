use std::collections::BTreeMap;

use uroce::time::{Duration, Instant};

use super::super::Run;

/// Datagrams of a request that are on their way, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Flight {
    unacknowledged: BTreeMap<u32, Sent>,
    /// Those that were taken for lost, the newest of them: they may have arrived.
    lost: BTreeMap<u32, Sent>,
    bytes: u64,
    /// The newest number that is known to have arrived.
    newest: Option<u32>,
}

/// A datagram that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub at: Instant,
    /// Length of its Ethernet frame, in bytes.
    pub bytes: u64,
    pub block: u32,
    pub symbol: u32,
}

/// Upper bound on those that are remembered after they were taken for lost.
const LOST_MAX: usize = 4096;

impl Flight {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether anything is known to have arrived.
    pub fn is_proven(&self) -> bool {
        self.newest.is_some()
    }

    pub fn sent(&mut self, number: u32, sent: Sent) {
        self.bytes += sent.bytes;
        self.unacknowledged.insert(number, sent);
    }

    /// When a datagram was sent that is on its way, or was taken for lost.
    pub fn sent_at(&self, number: u32) -> Option<Instant> {
        self.unacknowledged.get(&number).map(|sent| sent.at)
    }

    /// Takes numbers that have arrived. Returns which datagrams of those on their way, and which of those that were taken
    /// for lost.
    pub fn acknowledge(&mut self, arrived: &[Run]) -> [Vec<Sent>; 2] {
        self.newest = self.newest.max(arrived.iter().map(|run| run.first + run.count - 1).max());
        let sets = [&mut self.unacknowledged, &mut self.lost];
        let [known, spurious] = sets.map(|set| {
            let mut found = Vec::new();
            for run in arrived {
                let numbers: Vec<u32> =
                    set.range(run.first..run.first + run.count).map(|(number, _)| *number).collect();
                found.extend(numbers.into_iter().filter_map(|number| set.remove(&number)));
            }
            found
        });
        self.bytes -= known.iter().map(|sent| sent.bytes).sum::<u64>();
        [known, spurious]
    }

    /// Takes for lost what was sent before `overtaken` and before one that arrived, and what was sent before `unreported`.
    /// Returns it with its numbers.
    pub fn lose(&mut self, overtaken: Instant, unreported: Option<Instant>) -> Vec<(u32, Sent)> {
        let mut lost = Vec::new();
        while let Some((number, sent)) = self.unacknowledged.first_key_value() {
            let was_overtaken = self.newest.is_some_and(|newest| *number < newest) && sent.at <= overtaken;
            if !was_overtaken && unreported.is_none_or(|before| sent.at > before) {
                break;
            }
            let (number, sent) = (*number, *sent);
            self.unacknowledged.remove(&number);
            self.bytes -= sent.bytes;
            self.lost.insert(number, sent);
            if self.lost.len() > LOST_MAX {
                self.lost.pop_first();
            }
            lost.push((number, sent));
        }
        lost
    }

    /// When the oldest is lost, if nothing is heard of it: it has been overtaken, and `after` must have passed.
    pub fn lost_at(&self, after: Duration) -> Option<Instant> {
        let (number, sent) = self.unacknowledged.first_key_value()?;
        self.newest.filter(|newest| number < newest).map(|_| sent.at + after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    /// Ten datagrams from number 5 on, one a millisecond.
    fn flight() -> Flight {
        let mut flight = Flight::default();
        (0..10).for_each(|i| flight.sent(5 + i, Sent { at: at(u64::from(i)), bytes: 100, block: i, symbol: 0 }));
        flight
    }

    fn blocks(sent: &[Sent]) -> Vec<u32> {
        sent.iter().map(|sent| sent.block).collect()
    }

    #[test]
    fn what_was_overtaken_is_lost_after_a_while_and_only_that() {
        let mut flight = flight();
        assert_eq!(flight.lost_at(Duration::from_millis(20)), None);
        let [known, spurious] = flight.acknowledge(&[Run { first: 8, count: 2 }, Run { first: 5, count: 1 }]);
        assert_eq!((blocks(&known), blocks(&spurious), flight.bytes()), (vec![3, 4, 0], vec![], 700));
        assert_eq!(flight.lost_at(Duration::from_millis(20)), Some(at(21)));
        let lost = flight.lose(at(1), None);
        assert_eq!(lost.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [6]);
        assert_eq!(flight.lose(at(100), None).len(), 1, "number 7; nothing after 9 arrived");
        // It had arrived.
        let [known, spurious] = flight.acknowledge(&[Run { first: 5, count: 4 }]);
        assert_eq!((blocks(&known), blocks(&spurious), flight.bytes()), (vec![], vec![1, 2], 500));
    }

    #[test]
    fn what_a_late_report_does_not_have_is_lost_without_one_that_overtook_it() {
        let mut flight = flight();
        assert_eq!(flight.lose(at(0), Some(at(7))).len(), 8);
        assert_eq!(flight.bytes(), 200);
    }
}
