//! What docs/EXTENSIONS.md adds to a packet, as text and as JSON.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;
use uroce::wire::{
    AcknowledgeTrailer, AnswerReport, CarriedAcknowledge, Hello, LinkRecord, Opcode, Packet, PathProbe, Psn, Sack,
    Tagged, Telemetry,
};

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
        /// What switches have written; left out without room for that.
        #[serde(skip_serializing_if = "Option::is_none")]
        links: Option<Vec<LinkReport>>,
    },
    Selective {
        trigger: u32,
        attempt: u8,
        delay_us: u16,
        marked: u16,
        /// PSNs that arrived, as ranges: first and last.
        received: Vec<(u32, u32)>,
        /// What switches wrote into the trigger; left out without room for that.
        #[serde(skip_serializing_if = "Option::is_none")]
        links: Option<Vec<LinkReport>>,
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

/// What a switch wrote about the link on which it sent a packet.
#[derive(Debug, Serialize)]
pub(crate) struct LinkReport {
    rate_bps: u64,
    queue_bytes: u32,
    /// By the switch's clock, modulo 2^32.
    time_ns: u32,
    /// Modulo 2^32.
    sent_bytes: u32,
}

impl LinkReport {
    fn of(telemetry: &Telemetry) -> Vec<LinkReport> {
        let report = |link: &LinkRecord| {
            let LinkRecord { rate_bps, queue_bytes, time_ns, sent_bytes } = *link;
            LinkReport { rate_bps, queue_bytes, time_ns, sent_bytes }
        };
        telemetry.links.iter().map(report).collect()
    }
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
        let (mut packet, _) = packet.split_tag()?;
        if packet.bth().opcode() != Opcode::RC_ACKNOWLEDGE {
            let trailer = packet.take_trailer()?;
            let (index, attempt, receive_number) = (trailer.index, trailer.attempt, trailer.receive_number);
            let carried = trailer.acknowledge.map(CarriedReport::from);
            let links = packet.telemetry().as_ref().map(LinkReport::of);
            return Some(TrailerReport::Request { index, attempt, receive_number, carried, links });
        }
        let (sack, links) = match packet.acknowledge_trailer()? {
            AcknowledgeTrailer::Sack(sack) => (sack, None),
            AcknowledgeTrailer::Measured(sack, telemetry) => (sack, Some(LinkReport::of(&telemetry))),
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
        Some(TrailerReport::selective(packet.bth().psn(), &sack, links))
    }

    /// A selective acknowledge of all up to `acknowledged`.
    fn selective(acknowledged: Psn, sack: &Sack, links: Option<Vec<LinkReport>>) -> TrailerReport {
        let mut psns: Vec<_> = sack
            .blocks
            .iter()
            .flat_map(|(base, bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| base.plus(bit)))
            .collect();
        // In their order from the acknowledged one on: they may wrap.
        psns.sort_by_key(|psn| psn.since(acknowledged));
        let mut received: Vec<(u32, u32)> = Vec::new();
        for psn in psns {
            match received.last_mut() {
                Some((_, last)) if psn.minus(1).value() == *last => *last = psn.value(),
                _ => received.push((psn.value(), psn.value())),
            }
        }
        let (trigger, attempt, delay_us, marked) = (sack.trigger.value(), sack.attempt, sack.delay_us, sack.marked);
        TrailerReport::Selective { trigger, attempt, delay_us, marked, received, links }
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
            TrailerReport::Request { index, attempt, receive_number, carried, links } => {
                write!(f, " index={index} attempt={attempt} receive={receive_number}")?;
                write_links(f, links.as_deref())?;
                let Some(carried) = carried else { return Ok(()) };
                let CarriedReport { acknowledges, trigger, trigger_attempt, delay_us, marked } = carried;
                write!(f, " ACK={acknowledges} trigger={trigger} attempt={trigger_attempt} delay={delay_us}us")?;
                write!(f, " marked={marked}")
            }
            TrailerReport::Selective { trigger, attempt, delay_us, marked, received, links } => {
                write!(f, " SACK trigger={trigger} attempt={attempt} delay={delay_us}us marked={marked} received=")?;
                let mut separator = "";
                for (first, last) in received {
                    write!(f, "{separator}{first}-{last}")?;
                    separator = ",";
                }
                write_links(f, links.as_deref())
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

/// Appends what switches wrote about each link: the queue in bytes, and the rate.
fn write_links(f: &mut fmt::Formatter<'_>, links: Option<&[LinkReport]>) -> fmt::Result {
    let Some(links) = links else { return Ok(()) };
    write!(f, " links={}", links.len())?;
    links.iter().try_for_each(|link| write!(f, " {}B@{}M", link.queue_bytes, link.rate_bps / 1_000_000))
}
