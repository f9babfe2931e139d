use uroce::congestion::{CongestionControl, Rate};
use uroce::path::PathPolicy;
use uroce::transport::{RecoveryMode, RecoverySettings};

use crate::sim::transfer::TransferError;

use super::fat_tree::LINK_BYTES_PER_S;
use super::run::{FlowTimes, Run};
use super::{ConnectionMatrix, FatTree};

/// A connection matrix that is played over a fat tree.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixCell {
    /// The name of the matrix in tables.
    pub name: String,
    /// Who sends what to whom; of as many hosts as the tree has.
    pub matrix: ConnectionMatrix,
    /// The network.
    pub tree: FatTree,
    /// What decides on the rate of each flow.
    pub control: CongestionControl,
    /// How a flow spreads its packets over its paths.
    pub policy: PathPolicy,
    /// The number of its paths, 1 to 256: UDP source ports, of which switches choose links.
    pub paths: u16,
    /// Whether acknowledges overtake data in the network, as in uet-htsim's. Otherwise they wait in the same queues.
    pub acknowledges_first: bool,
}

/// Bytes of each flow, as in uet-htsim's matrices for 16 and 32 hosts.
const FLOW_BYTES: u64 = 2_000_000;

/// The number of paths, as in uet-htsim.
const PATHS: u16 = 64;

impl MatrixCell {
    /// The cells of the table: a permutation of 32 hosts over both trees of as many, and 15 hosts that send to one.
    pub fn table(control: CongestionControl, seed: u64) -> Vec<MatrixCell> {
        let permutation = ConnectionMatrix::permutation(32, FLOW_BYTES, seed);
        let mut cells = MatrixCell::of("permutation", &permutation, control);
        cells.extend(MatrixCell::of("incast", &ConnectionMatrix::incast(16, FLOW_BYTES), control));
        cells
    }

    /// The cells of a matrix: over each tree of as many hosts.
    pub fn of(name: &str, matrix: &ConnectionMatrix, control: CongestionControl) -> Vec<MatrixCell> {
        let trees = FatTree::ALL.into_iter().filter(|tree| tree.host_count() == matrix.hosts);
        let cell = |tree| MatrixCell {
            name: name.to_owned(),
            matrix: matrix.clone(),
            tree,
            control,
            policy: PathPolicy::Recycle,
            paths: PATHS,
            acknowledges_first: true,
        };
        trees.map(cell).collect()
    }

    /// The settings of all hosts.
    pub(super) fn recovery(&self) -> RecoverySettings {
        RecoverySettings {
            recovery: RecoveryMode::Auto,
            line_rate: Some(Rate::from_bits(8 * LINK_BYTES_PER_S)),
            ..RecoverySettings::default().with_congestion(self.control).with_paths(self.paths, self.policy)
        }
    }

    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, flows do not come to an end, or the received bytes differ.
    pub fn run(&self, seed: u64) -> Result<FlowTimes, TransferError> {
        let mut run = Run::new(self, seed);
        run.greet()?;
        run.play()
    }
}

#[cfg(test)]
mod tests {
    use uroce::time::Duration;

    use super::super::MatrixFlow;
    use super::*;

    const SEED: u64 = 1;

    fn run(cell: &MatrixCell) -> FlowTimes {
        cell.run(SEED).unwrap_or_else(|error| panic!("seed {SEED}, {cell:?}: {error}"))
    }

    /// 489 frames at 100 Gb/s and a round trip are 172.0 µs; uet-htsim's flow takes 171.5 µs, with headers that are two bytes shorter.
    #[test]
    fn a_flow_alone_takes_the_time_of_its_bytes_and_a_round_trip() {
        let flow = MatrixFlow { from: 0, to: 31, start: Duration::ZERO, bytes: FLOW_BYTES };
        let matrix = ConnectionMatrix { hosts: 32, flows: vec![flow] };
        for control in [CongestionControl::Nscc, CongestionControl::Steady, CongestionControl::Dcqcn] {
            let result = run(&MatrixCell::of("one", &matrix, control)[0]);
            assert!((171_500..173_000).contains(&result.last.as_nanos()), "seed {SEED}, {control}: {result:?}");
            assert_eq!((result.sent, result.resent, result.dropped), (489, 0, 0), "seed {SEED}, {control}");
        }
    }

    /// The same seed gives the same times, and all of the line to the one that receives is used, after losses too.
    #[test]
    fn fifteen_hosts_send_to_one_and_the_line_is_never_idle_for_long() {
        let matrix = ConnectionMatrix::incast(16, FLOW_BYTES);
        let cell = &MatrixCell::of("incast", &matrix, CongestionControl::Nscc)[0];
        let result = run(cell);
        // 15 times 2,000,000 bytes at 100 Gb/s take 2438 µs with their headers.
        assert!((2_438_000..2_700_000).contains(&result.last.as_nanos()), "seed {SEED}: {result:?}");
        assert_eq!(result, run(cell), "seed {SEED}");
    }
}
