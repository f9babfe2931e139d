//! A blind attack in virtual time (docs/SECURITY.md): what is computed for plain reliable connections is what is counted, and peers
//! that know each other take nothing.
//!
//! Of the PSN only some bits are guessed here, so that few packets are enough for many to be believed.

use uroce_laboratory::sim::attack::{AttackCell, AttackOutcome, AttackResult, Effort, Forgery, Victim};

const SEED: u64 = 7;

fn run(forgery: Forgery, packets: u64, packets_per_second: u64, psn_bits: u32) -> AttackResult {
    let cell = AttackCell { forgery, victim: Victim::Plain };
    let result = cell.run(Effort { packets, packets_per_second, psn_bits }, SEED).unwrap();
    assert!(result.completed > 100, "{forgery:?}: the connection is in use: {result:?}");
    assert_eq!(Vec::from_iter(result.exceeded()), [], "{forgery:?}, seed {SEED}: {result:?}");
    result
}

/// Neither more nor fewer than computed, by four standard deviations.
fn assert_as_computed(result: &AttackResult, forgery: Forgery, outcome: AttackOutcome) {
    let (counted, expected) = (result.counts[outcome] as f64, result.expected(outcome).unwrap());
    let least = expected - 4.0 * expected.sqrt();
    assert!(least > 1.0, "too few packets to tell");
    assert!(counted >= least, "{forgery:?}, seed {SEED}: {outcome:?} {counted} times instead of {expected}");
}

#[test]
fn a_responder_takes_one_psn_and_what_a_stranger_places_is_taken_for_the_true_packet() {
    use Forgery as F;
    for (forgery, outcomes) in [
        (F::WriteKnownKey, &[AttackOutcome::Placed, AttackOutcome::FalselyCompleted][..]),
        (F::SendOnly, &[AttackOutcome::Placed, AttackOutcome::FalselyCompleted]),
        (F::OfferingSend, &[AttackOutcome::Placed, AttackOutcome::FalselyCompleted]),
        (F::ExtendedSend, &[AttackOutcome::Placed, AttackOutcome::FalselyCompleted]),
        (F::WriteGuessedKey, &[AttackOutcome::Broken]),
        (F::SendOutOfSequence, &[AttackOutcome::Broken]),
        (F::ExtendedWrite, &[AttackOutcome::Broken]),
        (F::SendMiddle, &[AttackOutcome::Placed]),
        (F::WriteMiddle, &[AttackOutcome::Placed]),
        (F::ReadResponse, &[AttackOutcome::Placed]),
        (F::ReadResponsePair, &[AttackOutcome::Placed]),
    ] {
        let result = run(forgery, 30_000, 50_000, 9);
        outcomes.iter().for_each(|outcome| assert_as_computed(&result, forgery, *outcome));
    }
}

/// A requester believes what is said of all that is in flight. Half of the time this is here already, and is complete early, but
/// not falsely.
#[test]
fn a_requester_believes_acknowledges_of_its_window() {
    for forgery in [Forgery::Acknowledge, Forgery::OfferingAcknowledge, Forgery::Addresses] {
        let result = run(forgery, 6_000, 2_000, 14);
        let share = result.counts[AttackOutcome::FalselyCompleted] as f64
            / result.expected(AttackOutcome::FalselyCompleted).unwrap();
        assert!((0.25..1.0).contains(&share), "{forgery:?}, seed {SEED}: {share} of what is in flight");
    }
    let result = run(Forgery::Refusal, 6_000, 2_000, 14);
    assert_as_computed(&result, Forgery::Refusal, AttackOutcome::Broken);
}

/// What is lost after it was acknowledged never comes, and the requester gives up.
#[test]
fn a_false_acknowledge_of_what_is_lost_breaks_a_connection() {
    let result = run(Forgery::SelectiveAcknowledge, 6_000, 2_000, 14);
    assert!(result.counts[AttackOutcome::Broken] > 0, "seed {SEED}: {result:?}");
}

/// All 24 bits, a few packets of each kind: nothing is seen that is not computed, and nothing at all of the extension.
#[test]
fn a_plain_connection_is_neither_redirected_nor_extended() {
    for forgery in Forgery::ALL {
        let result = run(forgery, 20_000, 1_000_000, 24);
        assert_eq!((result.packets, result.connections), (20_000, 1), "{forgery:?}, seed {SEED}: {result:?}");
    }
}

/// Nine bits of the PSN are guessed, and the tag.
#[test]
fn peers_that_know_each_other_take_nothing_of_a_stranger() {
    for forgery in Forgery::ALL {
        let cell = AttackCell { forgery, victim: Victim::AutoTowardsAuto };
        let result = cell.run(Effort { packets: 4_000, packets_per_second: 20_000, psn_bits: 9 }, SEED).unwrap();
        assert!(result.completed > 100, "{forgery:?}: the connection is in use: {result:?}");
        assert_eq!(
            (Vec::from_iter(result.exceeded()), result.connections),
            (vec![], 1),
            "{forgery:?}, seed {SEED}: {result:?}"
        );
    }
}

/// What is kept of what came early gives way to what the peer sends. (Guessing fewer bits, a stranger would hit one PSN several
/// times in a round trip, as no stranger does who has all of them to guess.)
#[test]
fn a_plain_peer_is_believed_in_no_more_than_twice_as_much_as_by_plain_responders() {
    for forgery in Forgery::ALL {
        let cell = AttackCell { forgery, victim: Victim::AutoTowardsPlain };
        let effort = Effort { packets: 500_000, packets_per_second: 1_000_000, psn_bits: 18 };
        let result = cell.run(effort, SEED).unwrap();
        assert!(result.completed > 100, "{forgery:?}: the connection is in use: {result:?}");
        assert_eq!(Vec::from_iter(result.exceeded()), [], "{forgery:?}, seed {SEED}: {result:?}");
    }
}

/// Nobody who sees nothing makes a peer that understands of a plain one, or has anything sent elsewhere.
#[test]
fn nobody_switches_the_extension_on_towards_a_plain_peer() {
    for forgery in [Forgery::OfferingAcknowledge, Forgery::OfferingSend, Forgery::Addresses, Forgery::Hello] {
        let cell = AttackCell { forgery, victim: Victim::AutoTowardsPlain };
        let result = cell.run(Effort { packets: 4_000, packets_per_second: 20_000, psn_bits: 9 }, SEED).unwrap();
        let counts = (result.counts[AttackOutcome::SwitchedOn], result.counts[AttackOutcome::Redirected]);
        assert_eq!(counts, (0, 0), "{forgery:?}, seed {SEED}: {result:?}");
    }
}
