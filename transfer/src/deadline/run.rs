/// Blocks one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the first block.
    pub first: u32,
    /// How many blocks, at least 1.
    pub count: u32,
}

impl Run {
    /// The numbers of the blocks.
    pub fn blocks(self) -> impl Iterator<Item = u32> {
        self.first..self.first + self.count
    }

    /// Blocks as runs, in their order.
    pub fn of(blocks: impl IntoIterator<Item = u32>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some(run) if run.first + run.count == block => run.count += 1,
                _ => runs.push(Run { first: block, count: 1 }),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_in_an_order_are_runs_in_that_order() {
        let blocks = [5, 6, 7, 1, 3, 4, 2];
        let runs = Run::of(blocks);
        assert_eq!(runs.iter().map(|run| (run.first, run.count)).collect::<Vec<_>>(), [(5, 3), (1, 1), (3, 2), (2, 1)]);
        assert_eq!(runs.into_iter().flat_map(Run::blocks).collect::<Vec<_>>(), blocks);
    }
}
