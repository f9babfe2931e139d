//! Connection matrices: flows between the hosts of a fat tree, all given beforehand, and how long each takes.

mod cell;
mod connection_matrix;
mod fat_tree;
mod flow_counts;
mod run;

pub use cell::MatrixCell;
pub use connection_matrix::{ConnectionMatrix, MatrixError, MatrixFlow};
pub use fat_tree::FatTree;
pub use run::FlowTimes;
