//! `cargo xtask wan --beside` in small: a queue pair and a TCP connection send over one bottleneck of real frames at the same
//! time, and a scavenger sends in the pauses of TCP. How well they share is measured on an idle machine, not here.

use wan::beside::{Flow, Row, Yield};
use wan::compare::Options;
use wan::{Bottleneck, Plan};

use crate::common::programs::UROCE;

fn options(seconds: u64) -> Options {
    Options { uroce: UROCE.into(), seconds, rounds: 1, rate_bps: None }
}

fn plan() -> Plan {
    Plan::simple("delay=5ms,rate=20M,queue=25k".parse().unwrap(), 1)
}

#[test]
fn a_queue_pair_and_tcp_share_a_bottleneck() {
    let bottleneck = Bottleneck::of(&plan()).unwrap();
    let played = bottleneck.play(&plan(), &options(4), &[Flow::Uroce, Flow::Tcp("cubic".into())]).unwrap();
    let all: Vec<f64> = played.flows.iter().map(|(_, bps)| *bps.as_ref().unwrap_or_else(|e| panic!("{e}"))).collect();
    // Both send, and not more than the line carries; a message or a read may have begun before it counts.
    let sum: f64 = all.iter().sum();
    assert!(all.len() == 2 && all.iter().all(|bps| *bps > 1e5) && (5e6..23e6).contains(&sum), "{played:?}");
    // They fill the buffer together, which one of them drains.
    assert!(played.waits[1] > played.waits[0] && !played.waits[0].is_zero(), "{played:?}");
    let row = Row::Share(bottleneck, played).to_json();
    assert_eq!((&row["name"], row["flows"][1]["flow"].as_str()), (&"beside".into(), Some("cubic")), "{row}");
}

#[test]
fn a_scavenger_sends_in_the_pauses_of_tcp() {
    let bottleneck = Bottleneck::of(&plan()).unwrap();
    let tcp = Flow::PausingTcp("cubic".into());
    let play = |flows: &[Flow]| bottleneck.play(&plan(), &options(8), flows).unwrap();
    let row = Yield {
        control: "cubic".into(),
        alone: play(std::slice::from_ref(&tcp)),
        beside: play(&[Flow::Scavenger, tcp]),
    };
    // TCP pauses half of the time. Of what it leaves, the scavenger has a part on any machine, and no more than there is.
    let (alone, rest) = (row.alone.flows[0].1.clone().unwrap(), row.of_rest(&bottleneck).unwrap());
    assert!((1e6..13e6).contains(&alone), "{row:?}");
    assert!((0.2..1.1).contains(&rest) && row.kept().unwrap() > 0.2, "{rest}, {row:?}");
}
