use clap::ValueEnum;
use uroce::verbs::Access;

/// A test of perftest: `send-bw` is what ib_send_bw does, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// Bandwidth of SEND
    #[value(aliases = ["send_bw", "ib_send_bw"])]
    SendBw,
    /// Latency of SEND (half a round trip)
    #[value(aliases = ["send_lat", "ib_send_lat"])]
    SendLat,
    /// Bandwidth of RDMA WRITE
    #[value(aliases = ["write_bw", "ib_write_bw"])]
    WriteBw,
    /// Latency of RDMA WRITE (half a round trip), measured by polling memory
    #[value(aliases = ["write_lat", "ib_write_lat"])]
    WriteLat,
    /// Bandwidth of RDMA READ
    #[value(aliases = ["read_bw", "ib_read_bw"])]
    ReadBw,
    /// Latency of RDMA READ
    #[value(aliases = ["read_lat", "ib_read_lat"])]
    ReadLat,
    /// Rate of atomics of 8 bytes
    #[value(aliases = ["atomic_bw", "ib_atomic_bw"])]
    AtomicBw,
    /// Latency of atomics
    #[value(aliases = ["atomic_lat", "ib_atomic_lat"])]
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
