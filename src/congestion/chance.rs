use super::losses::{LOOK_BYTES, Losses};
use super::{Flight, LongestFrame};

/// Tells packets that are lost by chance from packets that are lost because too many are sent, where no queue tells: a
/// policer drops what exceeds its rate.
#[derive(Debug, Default)]
pub(super) struct Chance {
    /// The share of bytes that is lost by chance.
    share: f64,
    /// The least share that was lost in a look of the start, and the number of these looks.
    start: (f32, u32),
    /// What had been delivered and lost when it was last looked at.
    losses: Losses,
    /// Rounds in a row in which more was lost than by chance.
    rounds: u32,
    /// The share that was lost when less began to be sent to see why, and the looks since.
    trial: Option<(f64, u32)>,
}

/// What is to be done about losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nothing: they are as many as by chance.
    Usual,
    /// To send no more than now.
    Unclear,
    /// To send less by [`Chance::TRIAL`], and to look whether that helps.
    Trial,
    /// To send again as much as before the trial: it did not help.
    Innocent,
    /// To send no more than what arrives: more is sent than the way takes.
    Excess,
    /// To send this part of what was sent before the trial, or what surely arrives: it helped, and so much of that had arrived.
    Policed(f64),
}

/// The share beyond which losses are more than usual, and in standard errors.
const MORE: f64 = 0.01;
const MORE_ERRORS: f64 = 4.0;

/// Rounds in a row in which more is lost, before it counts: others can overrun a queue at any time, and a path that has gone
/// dark is noticed within two.
const LASTS: u32 = 3;

/// Looks of the start that tell what is lost by chance: in fewer, too much may have been sent.
const START_LOOKS: u32 = 3;

impl Chance {
    /// The share by which a trial sends less.
    pub const TRIAL: f64 = 1.0 / 8.0;

    /// The share of bytes that were lost since the last look, and its standard error; `None` while they are too few.
    fn lost(&self, flight: &Flight) -> Option<(f64, f64)> {
        let (delivered, lost) = self.losses.since(flight);
        let all = delivered + lost;
        let share = lost as f64 / all as f64;
        let error = (self.share.max(share / 4.0) * LongestFrame::UNKNOWN / all as f64).sqrt();
        (all > LOOK_BYTES).then_some((share, error))
    }

    /// The share of bytes that is lost by chance.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// The bytes of which so many arrive.
    pub fn sent_for(&self, arriving: f64) -> f64 {
        arriving / (1.0 - self.share)
    }

    /// Learns of the losses of a round trip of the start: what is lost by chance is lost in each, and too much is sent in the last.
    pub fn learn(&mut self, flight: &Flight) {
        let Some((share, _)) = self.lost(flight) else { return };
        self.losses = Losses::until(flight);
        let (least, looks) = self.start;
        self.start = (if looks == 0 { share as f32 } else { least.min(share as f32) }, looks + 1);
        if self.start.1 >= START_LOOKS {
            self.share = self.start.0.into();
        }
    }

    /// Looks at the losses of a round trip, in which a queue that overflows could be seen (`is_full`).
    pub fn look(&mut self, flight: &Flight, is_full: bool) -> Verdict {
        let Some((share, error)) = self.lost(flight) else { return Verdict::Usual };
        self.losses = Losses::until(flight);
        if let Some((before, looks)) = self.trial {
            self.trial = Some((before, looks + 1));
            if looks == 0 {
                // Some of these packets were sent before.
                return Verdict::Unclear;
            }
            // What a policer drops becomes less by all that is sent less.
            let policed = (1.0 - (1.0 - before) / (1.0 - Chance::TRIAL)).max(0.0);
            let is_policed = share < (before + policed) / 2.0;
            self.trial = None;
            if is_policed {
                return Verdict::Policed((1.0 - before) / (1.0 - self.share));
            }
            self.share = share;
            return Verdict::Innocent;
        }
        let excess = share - self.share;
        if excess <= MORE + MORE_ERRORS * error {
            self.share += excess / 8.0;
            self.rounds = 0;
            Verdict::Usual
        } else if is_full {
            Verdict::Excess
        } else {
            self.rounds += 1;
            if self.rounds < LASTS {
                return Verdict::Unclear;
            }
            (self.trial, self.rounds) = (Some((share, 0)), 0);
            Verdict::Trial
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Progress;
    use super::*;
    use crate::time::Instant;

    /// Packets of a round trip.
    const PACKETS: u64 = 1000;

    /// Passes a round trip in which this share of its packets is lost.
    fn pass(flight: &mut Flight, share: f64) {
        let lost = (share * PACKETS as f64) as u64;
        let [delivered_bytes, lost_bytes] = [PACKETS - lost, lost].map(|packets| packets * 4300);
        flight.take(&Progress { delivered_bytes, lost_bytes, ..Progress::default() }, 0, Instant::from_ns(1));
    }

    /// What is said of such a round trip.
    fn look(chance: &mut Chance, flight: &mut Flight, share: f64, is_full: bool) -> Verdict {
        pass(flight, share);
        chance.look(flight, is_full)
    }

    /// What is said of round trips without losses, and then of these.
    fn verdicts(shares: &[f64]) -> Vec<Verdict> {
        let (mut chance, mut flight) = (Chance::default(), Flight::default());
        for _ in 0..5 {
            assert_eq!(look(&mut chance, &mut flight, 0.0, false), Verdict::Usual);
        }
        shares.iter().map(|share| look(&mut chance, &mut flight, *share, false)).collect()
    }

    #[test]
    fn a_policer_drops_less_when_less_is_sent() {
        use Verdict::*;
        // Of an eighth less than what is sent, a policer that dropped 10 % drops nothing.
        assert_eq!(verdicts(&[0.1, 0.1, 0.1, 0.05, 0.0, 0.0]), [Unclear, Unclear, Trial, Unclear, Policed(0.9), Usual]);
        // Of 20 % it still drops 8.6 %.
        assert_eq!(verdicts(&[0.2, 0.2, 0.2, 0.15, 0.086]), [Unclear, Unclear, Trial, Unclear, Policed(0.8)]);
    }

    #[test]
    fn what_is_lost_by_chance_does_not_become_less_and_is_usual_from_then_on() {
        use Verdict::*;
        let found = verdicts(&[0.05, 0.05, 0.05, 0.05, 0.05, 0.055, 0.045]);
        assert_eq!(found, [Unclear, Unclear, Trial, Unclear, Innocent, Usual, Usual]);
    }

    /// Else a flow over a way that loses 5 % sends an eighth less for some time as soon as its start is over.
    #[test]
    fn what_is_lost_in_each_round_trip_of_the_start_is_chance() {
        let (mut chance, mut flight) = (Chance::default(), Flight::default());
        let mut learn = |share: f64| {
            pass(&mut flight, share);
            chance.learn(&flight);
            (chance.share() * 1000.0).round()
        };
        assert_eq!([0.05, 0.06, 0.04, 0.2].map(&mut learn), [0.0, 0.0, 40.0, 40.0]);
        assert_eq!(look(&mut chance, &mut flight, 0.05, false), Verdict::Usual);
    }

    #[test]
    fn losses_of_one_or_two_round_trips_are_of_others() {
        use Verdict::*;
        assert_eq!(verdicts(&[0.1, 0.0, 0.0, 0.1, 0.1, 0.0]), [Unclear, Usual, Usual, Unclear, Unclear, Usual]);
    }

    #[test]
    fn a_queue_that_is_full_needs_no_trial() {
        let (mut chance, mut flight) = (Chance::default(), Flight::default());
        assert_eq!(look(&mut chance, &mut flight, 0.0, true), Verdict::Usual);
        assert_eq!(look(&mut chance, &mut flight, 0.1, true), Verdict::Excess);
    }
}
