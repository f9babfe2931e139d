//! Goodput by loss and round trip: selective repeat beside go-back-N, and what comes from a plain peer.

use uroce::time::{Duration, Instant};
use uroce::transport::{Endpoint, RecoveryMode, RecoverySettings};

use super::goodput::{self, DataMeter, Goodput, RATE};
use super::link::{Bursts, Faults, LinkProfile};
use super::network::{LinkEnd, Network};
use super::random::Random;
use super::transfer::{Transfer, TransferError, TransferOperation};

/// Who the two ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Two that repeat selectively, as uroce does by default towards one that understands.
    Selective,
    /// The source of the bytes is a plain peer, with rxe's window of 128; their destination is uroce as it is by default.
    Plain,
    /// Both go back, with rxe's window of 128, and keep nothing that comes before its turn.
    GoBackN,
}

impl Ends {
    /// All of them.
    pub const ALL: [Ends; 3] = [Ends::Selective, Ends::Plain, Ends::GoBackN];

    /// As tables call them.
    pub fn name(self) -> &'static str {
        match self {
            Ends::Selective => "selective",
            Ends::Plain => "plain",
            Ends::GoBackN => "go-back-n",
        }
    }

    /// How the source of the bytes recovers, and how their destination.
    fn recovery(self) -> [RecoveryMode; 2] {
        match self {
            Ends::Selective => [RecoveryMode::Auto; 2],
            Ends::Plain => [RecoveryMode::GoBackN, RecoveryMode::Auto],
            Ends::GoBackN => [RecoveryMode::GoBackN; 2],
        }
    }
}

/// One cell of the table of losses and round trips: an operation over a link that loses, between two ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// What is done.
    pub operation: TransferOperation,
    /// Who talks to whom.
    pub ends: Ends,
    /// The share of frames that the link loses, each way.
    pub loss: f64,
    /// In bursts of eight on average, rather than each by itself.
    pub bursts: bool,
    /// The round trip.
    pub round_trip: Duration,
}

/// Until all is in motion, from when the peers know each other: losses of losses of losses are being repaired.
const WARM_UP_ROUND_TRIPS: u32 = 8;
const WARM_UP_AT_LEAST: Duration = Duration::from_millis(50);

/// By when the peers know each other: the first packets may be lost, and then a timeout passes.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// What is measured: twenty round trips, and enough packets that chance evens out.
const MEASURED_ROUND_TRIPS: u32 = 20;
const MEASURED_AT_LEAST: Duration = Duration::from_millis(250);

/// So many times longer where a window of 128 packets is all that a round trip carries.
const MEASURED_OF_GO_BACK_N: u32 = 10;

impl Cell {
    /// The losses and round trips of the table.
    pub const LOSSES: [f64; 4] = [0.0001, 0.001, 0.01, 0.05];
    /// In milliseconds.
    pub const ROUND_TRIPS_MS: [u64; 4] = [1, 10, 40, 100];

    fn faults(&self) -> Faults {
        match self.bursts {
            false => Faults { loss: self.loss, ..Faults::NONE },
            true => {
                let leave = 1.0 / 8.0;
                let enter = leave * self.loss / (1.0 - self.loss);
                Faults { bursts: Some(Bursts { enter, leave, loss: 1.0 }), ..Faults::NONE }
            }
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`TransferError::GaveUp`], as those do who go back where every burst takes all that they send again; anything else is wrong: a
    /// completion out of order, or memory that is not what it must be.
    pub fn run(&self, seed: u64) -> Result<Goodput, TransferError> {
        let mut network = Network::new(seed);
        let nodes = [0, 1].map(|node| {
            let mut random = Random::new(seed, 10 + node);
            network.add_node(Endpoint::new([0; 32].map(|_: u8| random.u32() as u8)))
        });
        let profile = LinkProfile {
            bytes_per_second: RATE,
            delay: self.round_trip / 2,
            queue_bytes: u64::MAX,
            ecn_threshold_bytes: None,
            faults: self.faults(),
        };
        for (from, to) in [(0, 1), (1, 0)] {
            network.add_link(LinkEnd::Node(nodes[from]), LinkEnd::Node(nodes[to]), profile.clone());
        }
        let selective = self.ends == Ends::Selective;
        // 268 ms or 67 ms: go-back-N must not time out before an answer can be there.
        let timeout = if self.round_trip >= Duration::from_millis(40) { 16 } else { 14 };
        let ends = self.ends.recovery().map(|recovery| RecoverySettings { recovery, ..RecoverySettings::default() });
        let plan = goodput::plan(self.operation, ends, selective, timeout);
        let mut transfer = Transfer::new(&mut network, nodes, plan, seed);
        let mut watch = DataMeter::default();
        while selective && !transfer.is_extended(&mut network) {
            if network.now() > Instant::ZERO + KNOWN_WITHIN {
                return Err(TransferError::Wrong("the peers do not find out that both repeat selectively".into()));
            }
            let next = network.now() + Duration::from_millis(1);
            transfer.run(&mut network, next, &mut watch)?;
        }
        let warm_up = (self.round_trip * WARM_UP_ROUND_TRIPS).max(WARM_UP_AT_LEAST);
        let begin = network.now() + warm_up;
        transfer.run(&mut network, begin, &mut watch)?;
        let longer = if selective { 1 } else { MEASURED_OF_GO_BACK_N };
        let measured = (self.round_trip * MEASURED_ROUND_TRIPS).max(MEASURED_AT_LEAST) * longer;
        let result = goodput::measure(&mut transfer, &mut network, &mut watch, measured, self.loss)?;
        transfer.finish(&mut network, &mut watch)?;
        Ok(result)
    }
}
