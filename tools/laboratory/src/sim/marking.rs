/// How a link marks frames of ECN-capable transports «congestion experienced», by the bytes that wait before them: none
/// up to a lower bound, then a growing share, and above an upper bound all (random early detection).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// Upper bound on the waiting bytes at which no frame is marked: Kmin.
    pub none_bytes: u64,
    /// The waiting bytes above which each frame is marked: Kmax.
    pub all_bytes: u64,
    /// The share of frames that is marked just below that, 0 to 1: Pmax.
    pub share: f64,
}

impl Marking {
    /// Marks each frame that finds more than this many bytes waiting.
    pub const fn above(bytes: u64) -> Marking {
        Marking { none_bytes: bytes, all_bytes: bytes, share: 1.0 }
    }

    /// The share of frames that is marked while so many bytes wait.
    pub(super) fn share(&self, waiting: u64) -> f64 {
        if waiting <= self.none_bytes {
            0.0
        } else if waiting > self.all_bytes {
            1.0
        } else {
            self.share * (waiting - self.none_bytes) as f64 / (self.all_bytes - self.none_bytes) as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_marked_frames_grows_between_two_bounds() {
        let marking = Marking { none_bytes: 100, all_bytes: 400, share: 0.2 };
        assert_eq!([0, 100, 250, 400, 401].map(|waiting| marking.share(waiting)), [0.0, 0.0, 0.1, 0.2, 1.0]);
        assert_eq!([100, 101].map(|waiting| Marking::above(100).share(waiting)), [0.0, 1.0]);
    }
}
