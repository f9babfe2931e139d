//! A blind attack on a reliable connection in use: how often forged packets succeed, computed and counted.
//!
//! The attacker is not on the path. It knows the addresses, the port and the QPN, and makes packets with the right
//! P_Key and ICRC. It sees no packets, and so must guess PSNs and keys (docs/SECURITY.md).

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

/// An effect of a forged packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttackOutcome {
    /// Forged bytes are in registered memory, or in a receive buffer.
    Placed,
    /// A request is reported complete although its bytes are not in place.
    FalselyCompleted,
    /// The queue pair is in error, or no message completes any more.
    Broken,
    /// A packet went to an address that is not the peer's.
    Redirected,
    /// The extension is in use towards a peer that has not offered it.
    SwitchedOn,
}

impl AttackOutcome {
    /// All outcomes, in the order of the table.
    pub const ALL: [AttackOutcome; 5] = [
        AttackOutcome::Placed,
        AttackOutcome::FalselyCompleted,
        AttackOutcome::Broken,
        AttackOutcome::Redirected,
        AttackOutcome::SwitchedOn,
    ];

    /// The name of the outcome in tables.
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

/// The count of each outcome.
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

/// The number of the 2^24 PSNs that lead to each outcome, weighted by the probability that all other fields are right:
/// an upper bound.
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

/// The recovery of the attacked end and of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// Both ends use go-back-N, as the IBTA describes it: the reference for all others.
    Plain,
    /// The attacked end has this stack's defaults, and its peer supports only go-back-N.
    AutoTowardsPlain,
    /// Both ends have this stack's defaults.
    AutoTowardsAuto,
}

impl Victim {
    /// All victims, in the order of the table.
    pub const ALL: [Victim; 3] = [Victim::Plain, Victim::AutoTowardsPlain, Victim::AutoTowardsAuto];

    /// The name of the victim in tables.
    pub fn name(self) -> &'static str {
        match self {
            Victim::Plain => "plain",
            Victim::AutoTowardsPlain => "auto-plain",
            Victim::AutoTowardsAuto => "auto-auto",
        }
    }

    /// The recovery of the attacked end, and of its peer.
    fn recovery(self) -> [RecoveryMode; 2] {
        match self {
            Victim::Plain => [RecoveryMode::GoBackN, RecoveryMode::GoBackN],
            Victim::AutoTowardsPlain => [RecoveryMode::Auto, RecoveryMode::GoBackN],
            Victim::AutoTowardsAuto => [RecoveryMode::Auto, RecoveryMode::Auto],
        }
    }
}

/// One cell of the table: a forgery and its victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttackCell {
    /// The packet that is forged.
    pub forgery: Forgery,
    /// The connection that is attacked.
    pub victim: Victim,
}

/// The extent of an attack.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The number of forged packets.
    pub packets: u64,
    /// The rate of forged packets a second, at least one.
    pub packets_per_second: u64,
    /// The bits of the PSN that the attacker does not know, 8 to 24; 24 for one that has seen no packet.
    pub psn_bits: u32,
}

/// The result of an attack.
#[derive(Clone, Copy, Debug)]
pub struct AttackResult {
    /// The number of forged packets that were sent: fewer than requested when an outcome was seen [`ENOUGH`] times.
    pub packets: u64,
    /// The number of connections that were attacked, one after the other.
    pub connections: u64,
    /// The number of true messages that completed meanwhile.
    pub completed: u64,
    /// The count of each outcome.
    pub counts: Counts,
    /// The upper bound of the odds of each packet; `None` where none is known.
    pub odds: Option<Odds>,
    /// The number of PSN bits that were guessed.
    pub psn_bits: u32,
    /// The number of forged packets in a second.
    pub packets_per_second: u64,
}

/// The count of an outcome after which an attack ends: its odds are known to 3 % then.
pub const ENOUGH: u64 = 1000;

/// Upper bound on the forged packets at one time, when all bits of the PSN are guessed.
///
/// The network does not run between them. With 128 of 2^24 PSNs in flight, one in 512 of such batches has a packet that
/// is accepted.
const BATCH: u64 = 256;

/// How long a connection is watched after the last forged packet: by then pending work is done, and a requester without
/// answers has given up.
const AFTERMATH: Duration = Duration::from_secs(2);

/// Upper bound on the request PSNs in flight towards a peer without the extension.
const WINDOW: f64 = 128.0;

/// The probability that a guessed R_Key is valid: the responder has one region.
const KEYS: f64 = 1.0 / (1u64 << 32) as f64;

impl Forgery {
    /// The odds of a packet towards a stack as the IBTA describes it.
    ///
    /// A responder accepts the PSN that it expects, one of 2^24. A requester accepts acknowledges of all PSNs in
    /// flight, and the READ response that it expects.
    fn plain_odds(self) -> Odds {
        let long = f64::from(LONG_MESSAGE_PACKETS);
        let (placed, falsely, broken) = match self {
            // The right PSN with the wrong key is a remote access error.
            Forgery::WriteGuessedKey => (KEYS, KEYS, 1.0),
            // Where a forged packet is accepted, the true one with its PSN is taken for a duplicate, and acknowledged.
            Forgery::WriteKnownKey | Forgery::SendOnly | Forgery::OfferingSend | Forgery::ExtendedSend => {
                (1.0, 1.0, 0.0)
            }
            // In place of a message's first packet it is out of sequence; in place of its last one, the next first
            // packet is.
            Forgery::SendMiddle => ((long - 1.0) / long, (long - 2.0) / long, 2.0 / long),
            // As for SEND, but the last packet's bytes do not fit.
            Forgery::WriteMiddle => ((long - 2.0) / long, (long - 2.0) / long, 2.0 / long),
            // A stack without the extension takes the trailer for payload, which is then longer than the RETH states.
            Forgery::SendOutOfSequence | Forgery::ExtendedWrite => (0.0, 0.0, 1.0),
            // In place of the last packet it is a bad response.
            Forgery::ReadResponse => ((long - 1.0) / long, (long - 1.0) / long, 1.0 / long),
            // Three of two: both are accepted when the first has the right PSN, or the second alone.
            Forgery::ReadResponsePair => (1.5 * (long - 1.0) / long, 1.5 * (long - 1.0) / long, 1.5 / long),
            Forgery::Acknowledge | Forgery::OfferingAcknowledge | Forgery::Addresses | Forgery::Hello => {
                (0.0, WINDOW, 0.0)
            }
            Forgery::Refusal => (0.0, WINDOW, WINDOW),
            // A packet that is lost after it was acknowledged is never retransmitted.
            Forgery::SelectiveAcknowledge => (0.0, WINDOW, WINDOW),
        };
        Odds([placed, falsely, broken, 0.0, 0.0])
    }
}

impl AttackCell {
    /// The cells of the table: every forgery for every victim.
    pub fn all() -> Vec<AttackCell> {
        let of = |victim| Forgery::ALL.map(|forgery| AttackCell { forgery, victim });
        Victim::ALL.into_iter().flat_map(of).collect()
    }

    /// The upper bound of the odds of each packet; `None` where none is known.
    pub fn odds(&self) -> Option<Odds> {
        match self.victim {
            Victim::Plain => Some(self.forgery.plain_odds()),
            Victim::AutoTowardsPlain => Some(self.forgery.plain_odds().times(2.0)),
            // The attacker must also guess the tag, one of 2^32, besides the PSN.
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

    /// Runs the attack. A connection on which a forgery succeeded is replaced by a new one.
    ///
    /// # Errors
    /// A description when a connection is not as planned before the first forged packet.
    pub fn run(&self, effort: Effort, seed: u64) -> Result<AttackResult, String> {
        let mut result = AttackResult {
            packets: 0,
            connections: 0,
            completed: 0,
            counts: Counts::default(),
            odds: self.odds(),
            psn_bits: effort.psn_bits,
            packets_per_second: effort.packets_per_second,
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
            // An effect that needs no luck is visible after the first packet.
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

    /// Adds the counts of one more connection.
    fn with(mut self, counts: &Counts) -> AttackResult {
        AttackOutcome::ALL.iter().for_each(|outcome| self.counts[*outcome] += counts[*outcome]);
        self
    }

    /// The expected count of an outcome, at most; `None` where no bound is known.
    pub fn expected(&self, outcome: AttackOutcome) -> Option<f64> {
        let per_packet = self.odds?[outcome] / (1u64 << self.psn_bits) as f64;
        Some(per_packet * self.packets as f64)
    }

    /// The largest plausible count of an outcome; a larger one has a probability of one in ten thousand.
    pub fn bound(&self, outcome: AttackOutcome) -> Option<u64> {
        self.expected(outcome).map(poisson::bound)
    }

    /// The outcomes that were seen more often than is plausible.
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
            packets_per_second: 1_000_000,
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
