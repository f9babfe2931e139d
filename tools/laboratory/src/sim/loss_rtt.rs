//! Goodput by loss and round trip: selective repeat, go-back-N, and a plain source with an extended destination.

use uroce::congestion::CongestionControl;
use uroce::time::{Duration, Instant};
use uroce::transport::{RecoveryMode, RecoverySettings};

use super::goodput::{self, DataMeter, Goodput, RATE};
use super::link::{Faults, LinkProfile};
use super::network::{LinkEnd, Network};
use super::transfer::{Transfer, TransferError, TransferOperation};

/// The two ends of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Both ends use selective repeat, as uroce does by default with a peer that understands it.
    Selective,
    /// The source of the bytes is a plain peer, with rxe's window of 128 packets; their destination is uroce with its
    /// defaults.
    Plain,
    /// Both ends use go-back-N, with rxe's window of 128 packets, and keep no packet that is out of order.
    GoBackN,
}

impl Ends {
    /// All kinds of ends, in the order of the table.
    pub const ALL: [Ends; 3] = [Ends::Selective, Ends::Plain, Ends::GoBackN];

    /// The name of the ends in tables.
    pub fn name(self) -> &'static str {
        match self {
            Ends::Selective => "selective",
            Ends::Plain => "plain",
            Ends::GoBackN => "go-back-n",
        }
    }

    /// The recovery of the source of the bytes, and of their destination.
    fn recovery(self) -> [RecoveryMode; 2] {
        match self {
            Ends::Selective => [RecoveryMode::Auto; 2],
            Ends::Plain => [RecoveryMode::GoBackN, RecoveryMode::Auto],
            Ends::GoBackN => [RecoveryMode::GoBackN; 2],
        }
    }
}

/// One cell of the table of losses and round trips: an operation over a link with losses, between two ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The operation of the transfer.
    pub operation: TransferOperation,
    /// The two ends of the transfer.
    pub ends: Ends,
    /// The share of frames that the link loses in each direction, 0 to 1.
    pub loss: f64,
    /// Whether losses come in bursts of eight frames on average, instead of independently.
    pub bursts: bool,
    /// The round-trip time of the link.
    pub round_trip: Duration,
    /// What decides on the rate; a fixed one is that of the link, and none with go-back-N.
    pub congestion: CongestionControl,
}

/// The warm-up, after both ends know of each other: retransmissions of retransmissions are then being repaired.
const WARM_UP_ROUND_TRIPS: u32 = 8;
/// The same with a controller, which has to find the rate.
const WARM_UP_ROUND_TRIPS_CONTROLLED: u32 = 24;
const WARM_UP_AT_LEAST: Duration = Duration::from_millis(50);

/// Upper bound on the time until both ends know of each other: the first packets can be lost, and then a timeout
/// passes.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// The measured time: twenty round trips, and enough packets for a stable mean.
const MEASURED_ROUND_TRIPS: u32 = 20;
const MEASURED_AT_LEAST: Duration = Duration::from_millis(250);

/// The factor by which that is longer where a window of 128 packets is all that a round trip carries.
const MEASURED_OF_GO_BACK_N: u32 = 10;

impl Cell {
    /// The losses of the table, as shares of frames.
    pub const LOSSES: [f64; 4] = [0.0001, 0.001, 0.01, 0.05];
    /// The round trips of the table, in milliseconds.
    pub const ROUND_TRIPS_MS: [u64; 4] = [1, 10, 40, 100];

    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError::GaveUp`] when the requester gave up, as go-back-N does where bursts take all retransmissions;
    /// [`TransferError::Wrong`] when a completion came out of order, the received bytes differ, or the extension stayed
    /// unused.
    pub fn run(&self, seed: u64) -> Result<Goodput, TransferError> {
        let mut network = Network::new(seed);
        let nodes = [0, 1].map(|node| network.add_endpoint(seed, 10 + node));
        let profile = LinkProfile {
            bytes_per_second: RATE,
            delay: self.round_trip / 2,
            queue_bytes: u64::MAX,
            marking: None,
            faults: Faults::losses(self.loss, self.bursts),
        };
        for (from, to) in [(0, 1), (1, 0)] {
            network.add_link(LinkEnd::Node(nodes[from]), LinkEnd::Node(nodes[to]), profile.clone());
        }
        let selective = self.ends == Ends::Selective;
        // The timeout is 268 ms or 67 ms: go-back-N must not time out before an answer can arrive.
        let timeout = if self.round_trip >= Duration::from_millis(40) { 16 } else { 14 };
        let ends = self.ends.recovery().map(|recovery| RecoverySettings {
            recovery,
            ..RecoverySettings::default().with_congestion(self.congestion)
        });
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
        let round_trips = match self.congestion {
            CongestionControl::Fixed => WARM_UP_ROUND_TRIPS,
            _ => WARM_UP_ROUND_TRIPS_CONTROLLED,
        };
        let warm_up = (self.round_trip * round_trips).max(WARM_UP_AT_LEAST);
        let begin = network.now() + warm_up;
        transfer.run(&mut network, begin, &mut watch)?;
        let longer = if selective { 1 } else { MEASURED_OF_GO_BACK_N };
        let measured = (self.round_trip * MEASURED_ROUND_TRIPS).max(MEASURED_AT_LEAST) * longer;
        let result = goodput::measure(&mut transfer, &mut network, &mut watch, measured, self.loss)?;
        transfer.finish(&mut network, &mut watch)?;
        Ok(result)
    }
}
