//! A blind attack on a reliable connection that is in use: how often forged packets come to something, computed and counted.
//!
//! The attacker is not on the path. It knows the addresses, the port and the QPN, and makes packets with the right P_Key and
//! ICRC; it sees nothing, and so guesses PSNs, and keys (docs/SECURITY.md).

mod connection;
mod forgery;
mod poisson;

use std::ops::{Index, IndexMut};

use connection::{Connection, Plan};
use forgery::{Forger, LONG_MESSAGE_PACKETS};
use uroce::time::Duration;
use uroce::transport::RecoveryMode;

use super::random::Random;

pub use forgery::Forgery;

/// What a forged packet can come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttackOutcome {
    /// Its bytes are in registered memory, or in a receive buffer.
    Placed,
    /// A request is reported complete whose bytes are not where they belong.
    FalselyCompleted,
    /// The queue pair is in error, or nothing goes on.
    Broken,
    /// A packet went to an address that is not the peer's.
    Redirected,
    /// The extension is in use towards a peer that has not offered it.
    SwitchedOn,
}

impl AttackOutcome {
    /// All of them.
    pub const ALL: [AttackOutcome; 5] = [
        AttackOutcome::Placed,
        AttackOutcome::FalselyCompleted,
        AttackOutcome::Broken,
        AttackOutcome::Redirected,
        AttackOutcome::SwitchedOn,
    ];

    /// As tables call it.
    pub fn name(self) -> &'static str {
        match self {
            AttackOutcome::Placed => "placed",
            AttackOutcome::FalselyCompleted => "falsely-completed",
            AttackOutcome::Broken => "broken",
            AttackOutcome::Redirected => "redirected",
            AttackOutcome::SwitchedOn => "switched-on",
        }
    }
}

/// How often each outcome was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; AttackOutcome::ALL.len()]);

impl Index<AttackOutcome> for Counts {
    type Output = u64;

    fn index(&self, outcome: AttackOutcome) -> &u64 {
        &self.0[outcome as usize]
    }
}

impl IndexMut<AttackOutcome> for Counts {
    fn index_mut(&mut self, outcome: AttackOutcome) -> &mut u64 {
        &mut self.0[outcome as usize]
    }
}

/// How many of the 2^24 PSNs lead to each outcome, each counted with the odds of all else that must be right: an upper bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Odds([f64; AttackOutcome::ALL.len()]);

impl Index<AttackOutcome> for Odds {
    type Output = f64;

    fn index(&self, outcome: AttackOutcome) -> &f64 {
        &self.0[outcome as usize]
    }
}

impl Odds {
    fn times(self, factor: f64) -> Odds {
        Odds(self.0.map(|odds| odds * factor))
    }
}

/// Who is attacked, and who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// Go-back-N at both ends: what the IBTA describes, and what everything else is measured by.
    Plain,
    /// This stack as it is by default, towards a peer that knows go-back-N only.
    AutoTowardsPlain,
    /// This stack as it is by default, at both ends.
    AutoTowardsAuto,
}

impl Victim {
    /// All of them.
    pub const ALL: [Victim; 3] = [Victim::Plain, Victim::AutoTowardsPlain, Victim::AutoTowardsAuto];

    /// As tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Victim::Plain => "plain",
            Victim::AutoTowardsPlain => "auto-plain",
            Victim::AutoTowardsAuto => "auto-auto",
        }
    }

    /// How the one that is attacked deals with losses, and how its peer.
    fn recovery(self) -> [RecoveryMode; 2] {
        match self {
            Victim::Plain => [RecoveryMode::GoBackN, RecoveryMode::GoBackN],
            Victim::AutoTowardsPlain => [RecoveryMode::Auto, RecoveryMode::GoBackN],
            Victim::AutoTowardsAuto => [RecoveryMode::Auto, RecoveryMode::Auto],
        }
    }
}

/// An attack on a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttackCell {
    /// What is sent.
    pub forgery: Forgery,
    /// To whom.
    pub victim: Victim,
}

/// How much is sent.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Forged packets.
    pub packets: u64,
    /// How many of them a second, at least one.
    pub packets_per_second: u64,
    /// Bits of the PSN that the attacker does not know, 8 to 24: 24 for one that has seen nothing.
    pub psn_bits: u32,
}

/// What an attack came to.
#[derive(Clone, Copy, Debug)]
pub struct AttackResult {
    /// Forged packets that were sent: fewer than asked for when [`ENOUGH`] had happened before.
    pub packets: u64,
    /// Connections that were attacked, one after the other.
    pub connections: u64,
    /// True messages that were completed meanwhile.
    pub completed: u64,
    /// What happened.
    pub counts: Counts,
    /// What is to be expected at the most of each packet; `None` where nothing is promised.
    pub odds: Option<Odds>,
    /// Bits of the PSN that were guessed.
    pub psn_bits: u32,
}

/// Once an outcome was seen so often, its odds are known to 3 %, and an attack ends.
pub const ENOUGH: u64 = 1000;

/// Forged packets that come at one time, when all of the PSN is guessed: nothing is simulated between them, and with 128 PSNs of
/// 2^24 one in 512 of such batches has one that is believed.
const BATCH: u64 = 256;

/// How long a connection is watched after the last forged packet: what waits for its turn has it by then, and who waits in vain has
/// given up.
const AFTERMATH: Duration = Duration::from_secs(2);

/// PSNs of requests in flight towards a peer that knows the IBTA only, at the most.
const WINDOW: f64 = 128.0;

/// R_Keys that a guess may hit: the responder has one region.
const KEYS: f64 = 1.0 / (1u64 << 32) as f64;

impl Forgery {
    /// The odds of a packet towards what the IBTA describes.
    ///
    /// A responder takes the PSN that it expects, one of 2^24; a requester believes acknowledges of all that is in flight, and takes the
    /// READ response that it expects.
    fn plain_odds(self) -> Odds {
        let long = f64::from(LONG_MESSAGE_PACKETS);
        let (placed, falsely, broken) = match self {
            // The right PSN with the wrong key is a remote access error.
            Forgery::WriteGuessedKey => (KEYS, KEYS, 1.0),
            // Where a forged packet is taken, the true one with its PSN is taken for a duplicate, and acknowledged.
            Forgery::WriteKnownKey | Forgery::SendOnly | Forgery::OfferingSend | Forgery::ExtendedSend => {
                (1.0, 1.0, 0.0)
            }
            // In place of the first packet of a message it is out of sequence; in place of the last, the next first one is.
            Forgery::SendMiddle => ((long - 1.0) / long, (long - 2.0) / long, 2.0 / long),
            // The same, but that the last packet's bytes do not fit.
            Forgery::WriteMiddle => ((long - 2.0) / long, (long - 2.0) / long, 2.0 / long),
            // A trailer is payload to who does not know it, and longer than the RETH says.
            Forgery::SendOutOfSequence | Forgery::ExtendedWrite => (0.0, 0.0, 1.0),
            // In place of the last packet it is a bad response.
            Forgery::ReadResponse => ((long - 1.0) / long, (long - 1.0) / long, 1.0 / long),
            // Three of two: both, when the first has the right PSN, or the second alone.
            Forgery::ReadResponsePair => (1.5 * (long - 1.0) / long, 1.5 * (long - 1.0) / long, 1.5 / long),
            Forgery::Acknowledge | Forgery::OfferingAcknowledge | Forgery::Addresses | Forgery::Hello => {
                (0.0, WINDOW, 0.0)
            }
            Forgery::Refusal => (0.0, WINDOW, WINDOW),
            // What is lost after it was acknowledged is never sent again.
            Forgery::SelectiveAcknowledge => (0.0, WINDOW, WINDOW),
        };
        Odds([placed, falsely, broken, 0.0, 0.0])
    }
}

impl AttackCell {
    /// The cells of the table.
    pub fn all() -> Vec<AttackCell> {
        let of = |victim| Forgery::ALL.map(|forgery| AttackCell { forgery, victim });
        Victim::ALL.into_iter().flat_map(of).collect()
    }

    /// What is to be expected of a packet at the most; `None` where nothing is promised.
    pub fn odds(&self) -> Option<Odds> {
        match self.victim {
            Victim::Plain => Some(self.forgery.plain_odds()),
            Victim::AutoTowardsPlain => Some(self.forgery.plain_odds().times(2.0)),
            // The tag is one of 2^32, beside the PSN.
            Victim::AutoTowardsAuto => Some(Odds::default()),
        }
    }

    fn plan(&self) -> Plan {
        let (operation, packets) = self.forgery.traffic();
        let is_responder_attacked = !self.forgery.is_answer();
        let mut recovery = self.victim.recovery();
        if is_responder_attacked {
            recovery.reverse();
        }
        let loss = if self.forgery == Forgery::SelectiveAcknowledge { 0.01 } else { 0.0 };
        let outlives_extension = self.forgery == Forgery::Addresses;
        Plan { operation, packets, recovery, is_responder_attacked, loss, outlives_extension }
    }

    /// Runs it. A connection that something became of is followed by a new one.
    ///
    /// # Errors
    /// A connection is not what it is meant to be before anything was forged.
    pub fn run(&self, effort: Effort, seed: u64) -> Result<AttackResult, String> {
        let mut result = AttackResult {
            packets: 0,
            connections: 0,
            completed: 0,
            counts: Counts::default(),
            odds: self.odds(),
            psn_bits: effort.psn_bits,
        };
        while result.packets < effort.packets && !result.has_enough() {
            let connection_seed = seed.wrapping_add(result.connections);
            let mut connection = Connection::new(self.plan(), connection_seed);
            let is_extended = connection.is_extended();
            if connection.is_over()
                || connection.completed() == 0
                || is_extended != (self.victim == Victim::AutoTowardsAuto)
            {
                return Err(format!(
                    "seed {connection_seed}: the connection is not in use, or not as it is meant to be"
                ));
            }
            let mut forger = Forger::new(self.forgery, connection.known(), Random::new(connection_seed, 5));
            result.connections += 1;
            // What needs no luck shows after the first packet.
            let mut batch = 1;
            let batch_max = (BATCH >> (24 - effort.psn_bits)).max(1);
            while result.packets < effort.packets
                && !connection.is_over()
                && !result.with(&connection.counts).has_enough()
            {
                let packets = batch.min(effort.packets - result.packets);
                batch = batch_max.min(2 * batch);
                let psn = connection.psn_in_use();
                for _ in 0..packets {
                    connection.inject(forger.next(psn, effort.psn_bits));
                }
                result.packets += packets;
                connection.settle();
                connection.run(Duration::from_nanos(packets * 1_000_000_000 / effort.packets_per_second));
            }
            connection.run(AFTERMATH);
            result.completed += connection.completed();
            result = result.with(&connection.finish());
        }
        Ok(result)
    }
}

impl AttackResult {
    fn has_enough(&self) -> bool {
        self.counts.0.iter().any(|count| *count >= ENOUGH)
    }

    /// With what became of one more connection.
    fn with(mut self, counts: &Counts) -> AttackResult {
        AttackOutcome::ALL.iter().for_each(|outcome| self.counts[*outcome] += counts[*outcome]);
        self
    }

    /// How often an outcome is to be expected, of so many packets, at the most; `None` where nothing is promised.
    pub fn expected(&self, outcome: AttackOutcome) -> Option<f64> {
        let per_packet = self.odds?[outcome] / (1u64 << self.psn_bits) as f64;
        Some(per_packet * self.packets as f64)
    }

    /// How often it may have been seen if that is right: more would be a chance of one in ten thousand.
    pub fn bound(&self, outcome: AttackOutcome) -> Option<u64> {
        self.expected(outcome).map(poisson::bound)
    }

    /// The outcomes that were seen more often than they may be.
    pub fn exceeded(&self) -> impl Iterator<Item = AttackOutcome> + '_ {
        let exceeds = |outcome: &AttackOutcome| self.bound(*outcome).is_some_and(|bound| self.counts[*outcome] > bound);
        AttackOutcome::ALL.into_iter().filter(exceeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A verdict is about what was sent, and about the part of the PSN that was guessed.
    #[test]
    fn more_than_the_bound_is_exceeding_it_and_nothing_is_where_nothing_is_promised() {
        let odds = Some(Forgery::SendOnly.plain_odds());
        let mut result = AttackResult {
            packets: 10 << 12,
            connections: 1,
            completed: 1,
            counts: Counts::default(),
            odds,
            psn_bits: 12,
        };
        assert_eq!(result.expected(AttackOutcome::Placed), Some(10.0));
        let bound = result.bound(AttackOutcome::Placed).unwrap();
        result.counts[AttackOutcome::Placed] = bound;
        assert_eq!(result.exceeded().count(), 0);
        result.counts[AttackOutcome::Placed] = bound + 1;
        result.counts[AttackOutcome::SwitchedOn] = 1;
        assert_eq!(Vec::from_iter(result.exceeded()), [AttackOutcome::Placed, AttackOutcome::SwitchedOn]);
        assert_eq!(AttackResult { odds: None, ..result }.exceeded().count(), 0);
    }
}
