//! What docs/EXTENSIONS.md adds to a packet, as text and as JSON.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;
use uroce::wire::{AcknowledgeTrailer, AnswerReport, CarriedAcknowledge, Hello, Opcode, Packet, PathProbe, Tagged};

/// The trailer of a packet; `payload_bytes` counts it too, as stock dissectors do.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum TrailerReport {
    Request {
        index: u32,
        attempt: u8,
        receive_number: u32,
        #[serde(flatten)]
        carried: Option<CarriedReport>,
    },
    Selective {
        trigger: u32,
        attempt: u8,
        delay_us: u16,
        marked: u16,
        /// PSNs that arrived, as ranges: first and last.
        received: Vec<(u32, u32)>,
    },
    Probe {
        path: u8,
        is_answer: bool,
        delay_us: u16,
        token: u32,
    },
    Addresses {
        addresses: Vec<IpAddr>,
        /// The sender knows the receiver's.
        is_known: bool,
    },
    Hello {
        nonce: u32,
        window: u32,
        /// The first of the sender's requests that have tags, once it knows the receiver's nonce.
        tags_from: Option<u32>,
        /// All of them have: it had sent none before.
        tags_all: bool,
    },
    Answers {
        newest: u32,
        delay_us: u16,
        marked: u16,
        arrived: u32,
        is_newest_marked: bool,
        copy: u8,
    },
}

/// An acknowledge that a request carries.
#[derive(Debug, Serialize)]
pub(crate) struct CarriedReport {
    /// The last PSN that is acknowledged.
    acknowledges: u32,
    trigger: u32,
    trigger_attempt: u8,
    delay_us: u16,
    marked: u16,
}

impl From<CarriedAcknowledge> for CarriedReport {
    fn from(carried: CarriedAcknowledge) -> CarriedReport {
        let CarriedAcknowledge { psn, trigger, attempt, delay_us, marked, .. } = carried;
        let (acknowledges, trigger) = (psn.value(), trigger.value());
        CarriedReport { acknowledges, trigger, trigger_attempt: attempt, delay_us, marked }
    }
}

impl From<AnswerReport> for TrailerReport {
    fn from(report: AnswerReport) -> TrailerReport {
        let AnswerReport { newest, delay_us, marked, arrived, is_newest_marked, copy } = report;
        let newest = newest.value();
        TrailerReport::Answers { newest, delay_us, marked, arrived, is_newest_marked, copy }
    }
}

impl TrailerReport {
    /// The trailer that the packet announces; `None` when there is none that can be.
    pub(crate) fn of(packet: &Packet<'_>) -> Option<TrailerReport> {
        let (packet, _) = packet.split_tag()?;
        if packet.bth().opcode() != Opcode::RC_ACKNOWLEDGE {
            let (_, trailer) = packet.split_trailer()?;
            let (index, attempt, receive_number) = (trailer.index, trailer.attempt, trailer.receive_number);
            let carried = trailer.acknowledge.map(CarriedReport::from);
            return Some(TrailerReport::Request { index, attempt, receive_number, carried });
        }
        let sack = match packet.acknowledge_trailer()? {
            AcknowledgeTrailer::Sack(sack) => sack,
            AcknowledgeTrailer::Answers(report) => return Some(report.into()),
            AcknowledgeTrailer::Probe(PathProbe { path, is_answer, delay_us, token }) => {
                return Some(TrailerReport::Probe { path, is_answer, delay_us, token });
            }
            AcknowledgeTrailer::Hello(Hello { nonce, window, tagged, .. }) => {
                let tags_from = match tagged {
                    Tagged::From(psn) => Some(psn.value()),
                    Tagged::None | Tagged::All => None,
                };
                return Some(TrailerReport::Hello { nonce, window, tags_from, tags_all: tagged == Tagged::All });
            }
            AcknowledgeTrailer::Addresses(list) => {
                return Some(TrailerReport::Addresses { addresses: list.addresses.to_vec(), is_known: list.is_known });
            }
        };
        let mut psns: Vec<_> = sack
            .blocks
            .iter()
            .flat_map(|(base, bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| base.plus(bit)))
            .collect();
        // In their order from the acknowledged one on: they may wrap.
        psns.sort_by_key(|psn| psn.since(packet.bth().psn()));
        let mut received: Vec<(u32, u32)> = Vec::new();
        for psn in psns {
            match received.last_mut() {
                Some((_, last)) if psn.minus(1).value() == *last => *last = psn.value(),
                _ => received.push((psn.value(), psn.value())),
            }
        }
        let (trigger, attempt, delay_us, marked) = (sack.trigger.value(), sack.attempt, sack.delay_us, sack.marked);
        Some(TrailerReport::Selective { trigger, attempt, delay_us, marked, received })
    }
}

impl TrailerReport {
    /// Its name, as in JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            TrailerReport::Request { .. } => "request",
            TrailerReport::Selective { .. } => "selective",
            TrailerReport::Probe { .. } => "probe",
            TrailerReport::Addresses { .. } => "addresses",
            TrailerReport::Hello { .. } => "hello",
            TrailerReport::Answers { .. } => "answers",
        }
    }

    /// How often a request was sent before.
    pub(crate) fn attempt(&self) -> Option<u8> {
        match self {
            TrailerReport::Request { attempt, .. } => Some(*attempt),
            _ => None,
        }
    }
}

impl fmt::Display for TrailerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrailerReport::Request { index, attempt, receive_number, carried } => {
                write!(f, " index={index} attempt={attempt} receive={receive_number}")?;
                let Some(carried) = carried else { return Ok(()) };
                let CarriedReport { acknowledges, trigger, trigger_attempt, delay_us, marked } = carried;
                write!(f, " ACK={acknowledges} trigger={trigger} attempt={trigger_attempt} delay={delay_us}us")?;
                write!(f, " marked={marked}")
            }
            TrailerReport::Selective { trigger, attempt, delay_us, marked, received } => {
                write!(f, " SACK trigger={trigger} attempt={attempt} delay={delay_us}us marked={marked} received=")?;
                let mut separator = "";
                for (first, last) in received {
                    write!(f, "{separator}{first}-{last}")?;
                    separator = ",";
                }
                Ok(())
            }
            TrailerReport::Probe { path, is_answer, delay_us, token } => {
                let what = if *is_answer { "answer" } else { "probe" };
                write!(f, " PATH {what} path={path} delay={delay_us}us token={token:#010x}")
            }
            TrailerReport::Hello { nonce, window, tags_from, tags_all } => {
                write!(f, " HELLO nonce={nonce:#010x} window={window}")?;
                if *tags_all {
                    write!(f, " tags=all")?;
                }
                tags_from.map_or(Ok(()), |psn| write!(f, " tags-from={psn}"))
            }
            TrailerReport::Answers { newest, delay_us, marked, arrived, .. } => {
                write!(f, " ANSWERS newest={newest} delay={delay_us}us marked={marked} arrived={arrived}")
            }
            TrailerReport::Addresses { addresses, is_known } => {
                write!(f, " ADDRESSES known={is_known}")?;
                addresses.iter().try_for_each(|address| write!(f, " {address}"))
            }
        }
    }
}
