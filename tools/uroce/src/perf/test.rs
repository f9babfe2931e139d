use clap::ValueEnum;
use uroce::verbs::Access;

/// A test of perftest: `send-bw` is what ib_send_bw does, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// Bandwidth of SEND
    SendBw,
    /// Latency of SEND (half a round trip)
    SendLat,
    /// Bandwidth of RDMA WRITE
    WriteBw,
    /// Latency of RDMA WRITE (half a round trip), measured by polling memory
    WriteLat,
    /// Bandwidth of RDMA READ
    ReadBw,
    /// Latency of RDMA READ
    ReadLat,
    /// Rate of atomics of 8 bytes
    AtomicBw,
    /// Latency of atomics
    AtomicLat,
}

/// What a test posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Send,
    Write,
    Read,
    Atomic,
}

impl Test {
    /// What it posts.
    pub fn verb(self) -> Verb {
        match self {
            Test::SendBw | Test::SendLat => Verb::Send,
            Test::WriteBw | Test::WriteLat => Verb::Write,
            Test::ReadBw | Test::ReadLat => Verb::Read,
            Test::AtomicBw | Test::AtomicLat => Verb::Atomic,
        }
    }

    /// Whether it measures latency, not bandwidth.
    pub fn is_latency(self) -> bool {
        matches!(self, Test::SendLat | Test::WriteLat | Test::ReadLat | Test::AtomicLat)
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no test is hidden").get_name().to_owned()
    }
}

impl Verb {
    /// What the peer may do with our memory.
    pub fn remote_access(self) -> Access {
        match self {
            Verb::Send => Access::empty(),
            Verb::Write => Access::REMOTE_WRITE,
            Verb::Read => Access::REMOTE_READ,
            Verb::Atomic => Access::REMOTE_ATOMIC,
        }
    }

    /// Whether one way of a round trip is the latency: the peer's program answers. READs and atomics are answered by its
    /// transport.
    pub fn is_answered_by_the_program(self) -> bool {
        matches!(self, Verb::Send | Verb::Write)
    }
}
