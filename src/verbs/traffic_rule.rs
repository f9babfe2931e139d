use std::net::IpAddr;
use std::str::FromStr;

use crate::congestion::Rate;
use crate::transport::{Class, Treatment};

/// A rule of a policy: which queue pairs it is about, by all conditions that are given, and what it decides for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rule {
    /// The name of the program.
    pub program: Option<String>,
    /// The addresses of the peer.
    pub peer: Option<Prefix>,
    /// The port of the service that the connection manager connected.
    pub port: Option<u16>,
    /// The least and the greatest length of the first message that is posted, in bytes.
    pub message_min: Option<u64>,
    pub message_max: Option<u64>,
    pub class: Option<Class>,
    pub dscp: Option<u8>,
    pub cap: Option<Cap>,
    pub acknowledge_dscp: Option<u8>,
}

/// What is known of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// The names of the program.
    pub programs: &'a [String],
    pub peer: Option<IpAddr>,
    pub port: Option<u16>,
    /// The length of the first message, once it was posted.
    pub message: Option<u64>,
}

impl Rule {
    /// Whether it depends on the first message.
    pub fn asks_for_message(&self) -> bool {
        self.message_min.is_some() || self.message_max.is_some()
    }

    /// Whether it is about such a queue pair. A condition on what is not known is not met.
    pub fn is_about(&self, known: &Known<'_>) -> bool {
        let fits_program = self.program.as_ref().is_none_or(|program| known.programs.contains(program));
        let fits_peer = self.peer.is_none_or(|prefix| known.peer.is_some_and(|peer| prefix.contains(peer)));
        let fits_port = self.port.is_none_or(|port| known.port == Some(port));
        let is_within =
            |len: u64| self.message_min.is_none_or(|min| min <= len) && self.message_max.is_none_or(|max| len <= max);
        let fits_message = !self.asks_for_message() || known.message.is_some_and(is_within);
        fits_program && fits_peer && fits_port && fits_message
    }

    /// What it decides, on a line of that rate.
    pub fn treatment(&self, line: Option<Rate>) -> Treatment {
        Treatment {
            class: self.class,
            dscp: self.dscp,
            cap: self.cap.and_then(|cap| cap.on(line)),
            acknowledge_dscp: self.acknowledge_dscp,
        }
    }
}

/// An upper bound on a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cap {
    Rate(Rate),
    /// A share of the line.
    Percent(f64),
}

impl Cap {
    /// The rate on such a line; `None` for a share of a line that is not known.
    pub fn on(self, line: Option<Rate>) -> Option<Rate> {
        match self {
            Cap::Rate(rate) => Some(rate),
            Cap::Percent(percent) => {
                line.map(|line| Rate::from_bits((line.bytes() as f64 * 8.0 * percent / 100.0) as u64))
            }
        }
    }
}

/// A text that is no cap.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no cap: write percent of the line, as in 20%, or a rate, as in 500M or 2.5G")]
pub(super) struct CapError(String);

impl FromStr for Cap {
    type Err = CapError;

    fn from_str(text: &str) -> Result<Cap, CapError> {
        let cap = match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().filter(|percent| (0.01..=100.0).contains(percent)).map(Cap::Percent),
            None => text.parse().ok().map(Cap::Rate),
        };
        cap.ok_or_else(|| CapError(text.to_owned()))
    }
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prefix {
    address: IpAddr,
    bits: u32,
}

impl Prefix {
    fn contains(&self, peer: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| (a ^ b).checked_shr(width - self.bits).unwrap_or(0) == 0;
        match (self.address, peer.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(peer)) => same(own.to_bits().into(), peer.to_bits().into(), 32),
            (IpAddr::V6(own), IpAddr::V6(peer)) => same(own.to_bits(), peer.to_bits(), 128),
            _ => false,
        }
    }
}

/// A text that is no prefix.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no peer: write an address, or a prefix, as in 10.7.0.0/16 or fd00::/8")]
pub(super) struct PrefixError(String);

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let parse = || {
            let address: IpAddr = address.parse().ok()?;
            let width = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(width), |bits| bits.parse().ok())?;
            (bits <= width).then_some(Prefix { address, bits })
        };
        parse().ok_or_else(|| PrefixError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_the_addresses_that_begin_as_it_does() {
        let contains =
            |prefix: &str, address: &str| prefix.parse::<Prefix>().unwrap().contains(address.parse().unwrap());
        assert!(contains("10.7.0.0/16", "10.7.255.1") && !contains("10.7.0.0/16", "10.8.0.1"));
        assert!(contains("10.7.0.1", "10.7.0.1") && !contains("10.7.0.1", "10.7.0.2"));
        assert!(contains("10.7.0.1", "::ffff:10.7.0.1"), "as a GID has it");
        assert!(contains("0.0.0.0/0", "10.7.0.2") && !contains("0.0.0.0/0", "fd00::1"));
        assert!(contains("::/0", "fd00::1") && contains("fd00::/8", "fd12::1") && !contains("fd00::/8", "fe80::1"));
    }
}
