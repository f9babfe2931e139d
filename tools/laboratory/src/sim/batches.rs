//! Batches: how long 2 MiB take over a long path that loses packets, one batch after the other.

use uroce::congestion::CongestionControl;
use uroce::time::Duration;
use uroce::transport::RecoverySettings;
use uroce::wire::PathMtu;

use super::goodput::DataMeter;
use super::ideal::Ideal;
use super::line::Line;
use super::network::{Network, Step};
use super::random::Random;
use super::transfer::{Transfer, TransferError, TransferOperation, TransferPlan};

/// One cell of the table: batches of one shape over one path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchCell {
    /// What a batch consists of.
    pub operation: TransferOperation,
    /// The number of messages of a batch, which are posted together.
    pub messages: usize,
    /// The share of frames that the path loses in each direction, 0 to 1.
    pub loss: f64,
    /// The round trip without queues.
    pub round_trip: Duration,
    /// The time between the completion of a batch and the next one.
    pub gap: Duration,
    /// The number of batches that are measured, at least 1.
    pub batches: usize,
    /// What decides on the rate.
    pub congestion: CongestionControl,
}

/// The result of a cell. Times are those from posting a batch until the completion of its last message is polled.
#[derive(Clone, Debug)]
pub struct Batches {
    /// The first batch of the connection, which begins with nothing known of the path.
    pub first: Duration,
    /// The measured batches.
    pub batches: Times,
    /// What an ideal selective repeat takes.
    pub ideal: Times,
    /// Data packets that arrived again, as a share of those that arrived for the first time.
    pub spurious_fraction: f64,
    /// Packets that the path's full queue dropped, as a share of data packets that arrived.
    pub queue_drops: f64,
}

/// What many batches took.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // named for what they are
pub struct Times {
    pub median: Duration,
    pub p99: Duration,
    pub max: Duration,
}

impl Times {
    /// The times of all batches, at least one, in any order.
    pub(super) fn of(mut all: Vec<Duration>) -> Times {
        all.sort_unstable();
        Times { median: all[all.len() / 2], p99: all[all.len() * 99 / 100], max: all[all.len() - 1] }
    }
}

/// The rate of the path, in bits of Ethernet frames a second.
pub const LINE_BPS: u64 = 300_000_000;

/// The rate of the hosts' own links: packets wait in the path's queue, not at the sender.
const HOST_BPS: u64 = 10_000_000_000;

/// Length of a batch, in bytes.
pub const BATCH_BYTES: usize = 2 << 20;

/// Batches before those that are measured: the connection is warm.
const WARM_UP: u64 = 20;

/// The memory of both sides is that of so many batches.
const REGION_BATCHES: usize = 4;

/// Batches of the ideal selective repeat.
const IDEAL_BATCHES: usize = 50_000;

/// A batch that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Losses up to this share are rare: most batches lose nothing.
const RARE: f64 = 0.0001;

impl BatchCell {
    /// The table, each cell with so many batches.
    pub fn table(batches: usize, congestion: CongestionControl) -> Vec<BatchCell> {
        let mut cells = Vec::new();
        for operation in [TransferOperation::Write, TransferOperation::Read] {
            for messages in Self::MESSAGES {
                for gap in Self::GAPS_MS.map(Duration::from_millis) {
                    for round_trip in Self::ROUND_TRIPS_MS.map(Duration::from_millis) {
                        for loss in Self::LOSSES {
                            cells.push(BatchCell { operation, messages, loss, round_trip, gap, batches, congestion });
                        }
                    }
                }
            }
        }
        cells
    }

    /// The losses of the table, as shares of frames.
    pub const LOSSES: [f64; 4] = [0.000_01, 0.000_1, 0.001, 0.01];
    /// The round trips of the table, in milliseconds.
    pub const ROUND_TRIPS_MS: [u64; 4] = [10, 30, 40, 100];
    /// How many messages a batch is in the table: UCX makes messages of 8 KiB, and Mooncake of 128 KiB.
    pub const MESSAGES: [usize; 3] = [1, 16, 256];
    /// The gaps between batches in the table, in milliseconds.
    pub const GAPS_MS: [u64; 3] = [0, 200, 2000];

    /// How long the path takes to send the data of a batch.
    pub fn serialisation() -> Duration {
        let ideal = Ideal::new(BATCH_BYTES as u64, LINE_BPS, Duration::ZERO, 0.0);
        ideal.frame * ideal.packets as u32
    }

    /// What 99 of 100 batches must keep to: two round trips and the serialisation where losses are rare, and three and a half
    /// elsewhere, since a repair can be lost, too.
    pub fn bound(&self) -> Duration {
        let half_round_trips = if self.loss <= RARE { 4 } else { 7 };
        BatchCell::serialisation() + self.round_trip * half_round_trips / 2
    }

    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, a batch did not complete in time, or the received bytes differ.
    pub fn run(&self, seed: u64) -> Result<Batches, TransferError> {
        let line = Line { bps: LINE_BPS, host_bps: HOST_BPS, round_trip: self.round_trip, loss: self.loss };
        let (mut network, nodes) = line.network(seed);
        let mut transfer = Transfer::new(&mut network, nodes, self.plan(), seed);
        let mut meter = DataMeter::default();
        let mut times = Vec::new();
        let seen = |network: &Network, meter: &DataMeter| (meter.delivered(), network.tally().lost_to_full_queues);
        let mut before = seen(&network, &meter);
        for number in 1..=WARM_UP + self.batches as u64 {
            if number == WARM_UP + 1 {
                before = seen(&network, &meter);
            }
            times.push(self.batch(number, &mut transfer, &mut network, &mut meter)?);
        }
        let after = seen(&network, &meter);
        let (delivered, dropped) = (after.0.since(before.0), after.1 - before.1);
        transfer.finish(&mut network, &mut meter)?;
        let ideal = Ideal::new(BATCH_BYTES as u64, LINE_BPS, self.round_trip, self.loss);
        let mut random = Random::new(seed, 9);
        Ok(Batches {
            first: times[0],
            batches: Times::of(times.split_off(WARM_UP as usize)),
            ideal: ideal.times(IDEAL_BATCHES, &mut random),
            spurious_fraction: delivered.spurious_fraction(),
            queue_drops: dropped as f64 / delivered.useful.max(1) as f64,
        })
    }

    /// How long the batch of this number, from 1 on, takes; the gap has passed when it returns.
    fn batch(
        &self,
        number: u64,
        transfer: &mut Transfer,
        network: &mut Network,
        meter: &mut DataMeter,
    ) -> Result<Duration, TransferError> {
        let began = network.now();
        transfer.end_after(number * self.messages as u64);
        transfer.post(network, meter);
        let end = number * BATCH_BYTES as u64;
        while transfer.completed_bytes() < end {
            let step = network.step(meter).filter(|_| network.now() <= began + PATIENCE);
            if step.is_none() {
                return Err(TransferError::Wrong(format!("batch {number} does not complete")));
            }
            transfer.poll();
            if let Some(failure) = transfer.failure() {
                return Err(failure.clone());
            }
        }
        let took = network.now() - began;
        network.wake_at(network.now() + self.gap, number);
        while !matches!(network.step(meter), Some(Step::Woken(_))) {}
        Ok(took)
    }

    fn plan(&self) -> TransferPlan {
        let recovery = RecoverySettings::default().with_congestion(self.congestion);
        TransferPlan {
            path_mtu: PathMtu::Mtu4096,
            operation: self.operation,
            message_bytes: BATCH_BYTES / self.messages,
            outstanding: self.messages,
            region_bytes: REGION_BATCHES * BATCH_BYTES,
            recovery: [recovery; 2],
            timeout: 16,
        }
    }
}
