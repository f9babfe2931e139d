use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uroce_laboratory::sim::batches::Times;
use uroce_laboratory::sim::{Ideal, Random};
use wan::{Conditions, Loss};

/// What a byte on the wire costs: the emulator's rate, in bits a second of frames.
pub const LINE_BPS: u64 = 300_000_000;

/// The line that the emulated one stands for, in bits a second.
pub const STANDS_FOR_BPS: f64 = 25e9;

/// How many times slower compute is than it would be: as many as the line is, so that one hides the other as it would there.
pub const SLOWER: f64 = STANDS_FOR_BPS / LINE_BPS as f64;

/// Which paths are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Two sites of a city.
    Metro,
    /// Two cities.
    Regional,
    /// Two coasts.
    Continental,
    /// A coast to another at three rates of loss, and across an ocean.
    Lossy,
}

/// A path between two sites, the same both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// The round trip without any queue. Each way delays frames by half of it.
    pub rtt: Duration,
    /// The share of frames lost each way, independently of each other.
    pub loss: f64,
}

impl Profile {
    /// All, in the order in which they are played.
    pub const ALL: [Profile; 4] = [Profile::Metro, Profile::Regional, Profile::Continental, Profile::Lossy];

    /// The paths that the name stands for.
    pub fn paths(self) -> Vec<Path> {
        let path = |rtt_ms, loss| Path { rtt: Duration::from_millis(rtt_ms), loss };
        match self {
            Profile::Metro => vec![path(2, 0.0)],
            Profile::Regional => vec![path(10, 1e-4)],
            Profile::Continental => vec![path(40, 5e-4)],
            Profile::Lossy => vec![path(30, 1e-5), path(30, 1e-3), path(30, 1e-2), path(100, 1e-5)],
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Profile::Metro => "metro",
            Profile::Regional => "regional",
            Profile::Continental => "continental",
            Profile::Lossy => "lossy",
        })
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Profile, String> {
        let found = Profile::ALL.into_iter().find(|profile| profile.to_string() == text);
        found.ok_or_else(|| "use metro, regional, continental or lossy".to_owned())
    }
}

impl Path {
    /// What the emulator does to each frame of a way. Its `delay` is one way's: half of the round trip.
    pub fn conditions(&self) -> Conditions {
        let loss = if self.loss == 0.0 { Loss::Nothing } else { Loss::Uniform(self.loss) };
        Conditions { delay: self.rtt / 2, loss, rate_bps: Some(LINE_BPS), ..Conditions::default() }
    }

    /// What an ideal selective repeat takes for a request of so many bytes that is alone on the path.
    pub fn ideal(&self, bytes: u64) -> Times {
        /// How often it is played, and with which randomness.
        const RUNS: usize = 20_000;
        const SEED: u64 = 1;
        Ideal::new(bytes, LINE_BPS, self.rtt, self.loss).times(RUNS, &mut Random::new(SEED, 0))
    }

    /// The round trip in milliseconds.
    pub fn rtt_ms(&self) -> f64 {
        self.rtt.as_secs_f64() * 1e3
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} ms, {} %", self.rtt_ms(), (self.loss * 1e7).round() / 1e5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_two_delays() {
        let path = Profile::Lossy.paths()[2];
        assert_eq!(path.to_string(), "30 ms, 1 %");
        assert_eq!(path.conditions(), "delay=15ms,loss=0.01,rate=300M".parse().unwrap());
        assert_eq!(Profile::Metro.paths()[0].conditions(), "delay=1ms,rate=300M".parse().unwrap());
    }

    #[test]
    fn profiles_are_known_by_their_names() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert!("moon".parse::<Profile>().is_err());
    }
}
