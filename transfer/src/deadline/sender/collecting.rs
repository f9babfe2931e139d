use std::collections::VecDeque;

use super::super::wire::{Reason, RequestPart};
use super::super::{Run, Shape};

/// Requests of which some parts have not arrived.
#[derive(Debug, Default)]
pub(super) struct Collecting {
    pending: VecDeque<Pending>,
}

#[derive(Debug)]
struct Pending {
    id: u64,
    /// The first part that arrived: all say the same, except which blocks.
    head: RequestPart,
    runs: Vec<Option<Vec<Run>>>,
}

/// A whole request.
#[derive(Debug)]
pub(super) struct Asked {
    pub object: u64,
    pub version: u64,
    pub shape: Shape,
    pub repair_per_mille: u16,
    pub left_us: u32,
    pub runs: Vec<Run>,
}

/// Upper bound on incomplete requests: the oldest are forgotten, and their receivers ask again.
const PENDING_MAX: usize = 16;

impl Collecting {
    /// Takes a part of a request; returns the request when it is whole.
    pub fn take(&mut self, id: u64, part: RequestPart) -> Result<Option<Asked>, Reason> {
        let index = match self.pending.iter().position(|pending| pending.id == id) {
            Some(index) => index,
            None => {
                if self.pending.len() == PENDING_MAX {
                    self.pending.pop_front();
                }
                let runs = vec![None; usize::from(part.parts)];
                self.pending.push_back(Pending { id, head: part.clone(), runs });
                self.pending.len() - 1
            }
        };
        let pending = &mut self.pending[index];
        let says = |part: &RequestPart| (part.object, part.version, part.shape, part.repair_per_mille, part.parts);
        if says(&pending.head) != says(&part) {
            self.pending.remove(index);
            return Err(Reason::Contradiction);
        }
        pending.head.left_us = part.left_us;
        pending.runs[usize::from(part.part)] = Some(part.runs);
        if pending.runs.iter().any(Option::is_none) {
            return Ok(None);
        }
        let Some(Pending { head, runs, .. }) = self.pending.remove(index) else { return Ok(None) };
        Ok(Some(Asked {
            object: head.object,
            version: head.version,
            shape: head.shape,
            repair_per_mille: head.repair_per_mille,
            left_us: head.left_us,
            runs: runs.into_iter().flatten().flatten().collect(),
        }))
    }
}
