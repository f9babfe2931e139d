//! What is said about one packet: as JSON here, as text in [`PacketLine`](crate::packet_line::PacketLine).

use std::net::IpAddr;

use serde::Serialize;
use uroce::pcap::{CapturedFrame, Direction};
use uroce::time::{Duration, Instant};
use uroce::wire::{Bth, IpHeader, NakCode, Opcode, Packet, Qpn, RoceFrame, Syndrome, icrc};
use uroce_laboratory::dissection::Dissection;

use crate::marks::{Place, Streams};
use crate::trailer_report::TrailerReport;

/// One object of `uroce decode --json`. Numbers of up to 53 bits are numbers; 64-bit values are text, in hexadecimal, since
/// many readers of JSON keep no more than 53 bits. Headers that the packet does not have are left out; what could not be
/// read because the packet is malformed or cut is left out, too, or null where it is always there.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    /// Its number in the file, from 1 on.
    pub(crate) frame: u64,
    /// The file, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    /// Since the first frame of the file.
    #[serde(skip)]
    pub(crate) since_start: Duration,
    pub(crate) time_ns: u64,
    pub(crate) frame_bytes: usize,
    pub(crate) captured_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) direction: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) comment: Option<String>,
    #[serde(flatten)]
    pub(crate) outer: Option<Outer>,
    /// The kernel's name.
    pub(crate) opcode: Option<String>,
    pub(crate) qpn: Option<u32>,
    pub(crate) psn: Option<u32>,
    #[serde(flatten)]
    pub(crate) bth: Option<BthReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) feth: Option<FethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reth: Option<RethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) aeth: Option<AethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) atomic: Option<AtomicReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) atomic_ack: Option<AtomicAckReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deth: Option<DethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) imm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ieth: Option<IethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mad: Option<MadReport>,
    /// Whether the sender offers docs/EXTENSIONS.md.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) offer: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trailer: Option<TrailerReport>,
    /// The tag of an extended packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<u32>,
    pub(crate) payload_bytes: Option<usize>,
    pub(crate) icrc: String,
    /// As it stands in the packet, its first byte first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) icrc_value: Option<String>,
    pub(crate) malformed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) malformed_reason: Option<String>,
    #[serde(flatten)]
    pub(crate) place: Place,
}

#[derive(Debug, Serialize)]
pub(crate) struct Outer {
    pub(crate) eth_src: String,
    pub(crate) eth_dst: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) vlan: Option<VlanReport>,
    pub(crate) ip_src: IpAddr,
    pub(crate) ip_dst: IpAddr,
    pub(crate) dscp: u8,
    pub(crate) ecn: u8,
    pub(crate) hop_limit: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ip_id: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flow_label: Option<u32>,
    pub(crate) udp_src: u16,
    pub(crate) udp_dst: u16,
    pub(crate) udp_checksum: u16,
}

#[derive(Debug, Serialize)]
pub(crate) struct VlanReport {
    pub(crate) id: u16,
    pub(crate) priority: u8,
    pub(crate) tpid: u16,
}

#[derive(Debug, Serialize)]
pub(crate) struct BthReport {
    pub(crate) opcode_value: u8,
    pub(crate) solicited: bool,
    pub(crate) mig_req: bool,
    pub(crate) pad: usize,
    pub(crate) tver: u8,
    pub(crate) p_key: u16,
    pub(crate) fecn: bool,
    pub(crate) becn: bool,
    pub(crate) reserved_4: u8,
    pub(crate) ack_request: bool,
    pub(crate) reserved_8: u8,
    /// Two of these bits, by docs/EXTENSIONS.md.
    pub(crate) offers: bool,
    pub(crate) extended: bool,
}

/// What a FLUSH asks for: 1 visibility, 2 persistence, 3 both; of 0 a range, 1 a whole region.
#[derive(Debug, Serialize)]
pub(crate) struct FethReport {
    pub(crate) placement: u8,
    pub(crate) selectivity: u8,
}

#[derive(Debug, Serialize)]
pub(crate) struct RethReport {
    pub(crate) address: String,
    pub(crate) rkey: u32,
    pub(crate) length: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct AethReport {
    pub(crate) syndrome: u8,
    pub(crate) meaning: String,
    pub(crate) msn: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct AtomicReport {
    pub(crate) address: String,
    pub(crate) rkey: u32,
    pub(crate) swap_or_add: String,
    pub(crate) compare: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct AtomicAckReport {
    pub(crate) original: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct DethReport {
    pub(crate) q_key: u32,
    pub(crate) source_qpn: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct IethReport {
    pub(crate) rkey: u32,
}

/// A management datagram.
#[derive(Debug, Serialize)]
pub(crate) struct MadReport {
    pub(crate) class: u8,
    pub(crate) method: u8,
    pub(crate) attribute: u16,
    /// The name of a connection management message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<&'static str>,
    pub(crate) transaction: String,
}

impl Report {
    /// The next frame of a capture; `None` for other traffic. `start` is the time of the first one.
    pub(crate) fn next(frame: &CapturedFrame, streams: &mut Streams, start: Instant) -> Option<Report> {
        let whole = frame.padded();
        let dissection = Dissection::of(&whole, frame.bytes.len())?;
        let place = streams.see(frame, &dissection);
        Some(Report::of(frame, &dissection, place, start))
    }

    fn of(frame: &CapturedFrame, dissection: &Dissection<'_>, place: Place, start: Instant) -> Report {
        let bth = dissection.bth;
        let packet = dissection.packet.as_ref();
        let is_cut = frame.bytes.len() < frame.original_bytes;
        let stored = dissection.frame.as_ref().filter(|_| !is_cut).and_then(|f| icrc::stored(f.ib));
        let stored = stored.filter(|_| packet.is_some());
        let outer = dissection.frame.as_ref().map(Outer::of);
        Report {
            schema: "uroce.decode/1",
            frame: frame.number,
            file: None,
            since_start: frame.time.saturating_since(start),
            time_ns: frame.time.as_ns(),
            frame_bytes: frame.original_bytes,
            captured_bytes: frame.bytes.len(),
            direction: frame.direction.map(|direction| match direction {
                Direction::Received => "received",
                Direction::Sent => "sent",
            }),
            comment: frame.comment.clone(),
            outer,
            opcode: bth.map(|b| b.opcode().to_string()),
            qpn: bth.map(|b| b.destination().value()),
            psn: bth.map(|b| b.psn().value()),
            bth: bth.map(BthReport::of),
            feth: packet
                .and_then(Packet::feth)
                .map(|feth| FethReport { placement: feth.placement().bits(), selectivity: feth.selectivity().value() }),
            reth: packet.and_then(Packet::reth).map(|reth| RethReport {
                address: hex(reth.address()),
                rkey: reth.key().0,
                length: reth.length(),
            }),
            aeth: packet.and_then(Packet::aeth).map(|aeth| AethReport {
                syndrome: aeth.syndrome().to_byte(),
                meaning: meaning(aeth.syndrome()),
                msn: aeth.msn().value(),
            }),
            atomic: packet.and_then(Packet::atomic_eth).map(|atomic| AtomicReport {
                address: hex(atomic.address()),
                rkey: atomic.key().0,
                swap_or_add: hex(atomic.swap_or_add()),
                compare: hex(atomic.compare()),
            }),
            atomic_ack: packet
                .and_then(Packet::atomic_ack_eth)
                .map(|atomic| AtomicAckReport { original: hex(atomic.original()) }),
            deth: packet
                .and_then(Packet::deth)
                .map(|deth| DethReport { q_key: deth.q_key().0, source_qpn: deth.source().value() }),
            imm: packet.and_then(Packet::imm_dt).map(|imm| imm.data()),
            ieth: packet.and_then(Packet::ieth).map(|ieth| IethReport { rkey: ieth.key().0 }),
            mad: packet.filter(|_| !is_cut).and_then(MadReport::of),
            offer: bth.is_some_and(Bth::offers),
            trailer: packet.filter(|_| !is_cut).and_then(TrailerReport::of),
            tag: packet.filter(|_| !is_cut).and_then(|packet| packet.split_tag()).map(|(_, tag)| tag),
            payload_bytes: packet.map(|p| p.payload().len()),
            icrc: dissection.icrc.to_string(),
            icrc_value: stored.map(|value| format!("{:#010x}", value.swap_bytes())),
            malformed: dissection.malformed.is_some(),
            malformed_reason: dissection.malformed.map(|reason| reason.to_string()),
            place,
        }
    }

    /// The sender's queue pair, as far as it is known.
    pub(crate) fn source(&self) -> Option<u32> {
        self.place.source_qpn.or(self.deth.as_ref().map(|deth| deth.source_qpn))
    }

    /// Whether it refuses something, RNR NAKs included.
    pub(crate) fn is_nak(&self) -> bool {
        self.is_rnr_nak() || self.syndrome_kind() == Some(0x60)
    }

    pub(crate) fn is_rnr_nak(&self) -> bool {
        self.syndrome_kind() == Some(0x20)
    }

    /// The bits of a syndrome that tell ACK, RNR NAK and NAK apart (IBTA 9.3.5.3).
    fn syndrome_kind(&self) -> Option<u8> {
        self.aeth.as_ref().map(|aeth| aeth.syndrome & 0x60)
    }

    /// Whether it is malformed, or its ICRC wrong.
    pub(crate) fn is_bad(&self) -> bool {
        self.malformed || self.icrc == "bad"
    }
}

impl Outer {
    fn of(frame: &RoceFrame<'_>) -> Outer {
        let flow = frame.flow();
        Outer {
            eth_src: mac(frame.ethernet.source()),
            eth_dst: mac(frame.ethernet.destination()),
            vlan: frame.vlan.as_ref().map(|tag| VlanReport {
                id: tag.vlan_identifier().value(),
                priority: tag.priority_code_point().value(),
                tpid: frame.ethernet.ether_type().0,
            }),
            ip_src: flow.addresses.source(),
            ip_dst: flow.addresses.destination(),
            dscp: flow.traffic_class >> 2,
            ecn: flow.traffic_class & 3,
            hop_limit: flow.hop_limit,
            ip_id: frame.ip.identification(),
            flow_label: matches!(frame.ip, IpHeader::V6(_)).then_some(flow.flow_label),
            udp_src: flow.source_port,
            udp_dst: frame.udp.destination_port(),
            udp_checksum: frame.udp.checksum(),
        }
    }
}

impl BthReport {
    fn of(bth: &Bth) -> BthReport {
        BthReport {
            opcode_value: bth.opcode().0,
            solicited: bth.solicited(),
            mig_req: bth.mig_req(),
            pad: bth.pad(),
            tver: bth.tver(),
            p_key: bth.p_key().0,
            fecn: bth.fecn(),
            becn: bth.becn(),
            reserved_4: bth.reserved_4(),
            ack_request: bth.ack_request(),
            reserved_8: bth.reserved_8(),
            offers: bth.offers(),
            extended: bth.extended(),
        }
    }
}

impl MadReport {
    /// The management datagram in a packet to the general services queue pair (IBTA 13.4.3).
    fn of(packet: &Packet<'_>) -> Option<MadReport> {
        const HEADER_BYTES: usize = 24;
        const CLASS_CM: u8 = 7;
        let is_to_gsi = packet.bth().opcode() == Opcode::UD_SEND_ONLY && packet.bth().destination() == Qpn::GSI;
        let mad = is_to_gsi.then(|| packet.payload().take(HEADER_BYTES).to_vec())?;
        let mad: [u8; HEADER_BYTES] = mad.try_into().ok()?;
        let attribute = u16::from_be_bytes([mad[16], mad[17]]);
        let name = match attribute {
            0x10 => Some("ConnectRequest"),
            0x11 => Some("MsgRcptAck"),
            0x12 => Some("ConnectReject"),
            0x13 => Some("ConnectReply"),
            0x14 => Some("ReadyToUse"),
            0x15 => Some("DisconnectRequest"),
            0x16 => Some("DisconnectReply"),
            0x17 => Some("ServiceIDResReq"),
            0x18 => Some("ServiceIDResResp"),
            0x19 => Some("LoadAlternatePath"),
            0x1a => Some("AlternatePathResponse"),
            _ => None,
        };
        Some(MadReport {
            class: mad[1],
            method: mad[3],
            attribute,
            name: name.filter(|_| mad[1] == CLASS_CM),
            transaction: hex(u64::from_be_bytes(mad[8..16].try_into().ok()?)),
        })
    }
}

/// What a syndrome means, for people.
fn meaning(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack { credits: 31 } => "ACK".to_owned(),
        Syndrome::Ack { credits } => format!("ACK, credits {credits}"),
        Syndrome::RnrNak(timer) => format!("RNR NAK, {:?}", timer.delay()),
        Syndrome::Nak(code) => match code {
            NakCode::PsnSequenceError => "NAK, PSN sequence error".to_owned(),
            NakCode::InvalidRequest => "NAK, invalid request".to_owned(),
            NakCode::RemoteAccessError => "NAK, remote access error".to_owned(),
            NakCode::RemoteOperationalError => "NAK, remote operational error".to_owned(),
            NakCode::InvalidRdRequest => "NAK, invalid RD request".to_owned(),
            NakCode::Unknown(code) => format!("NAK, reserved code {code}"),
        },
        Syndrome::Unknown(byte) => format!("reserved syndrome {byte:#04x}"),
    }
}

fn hex(value: u64) -> String {
    format!("{value:#018x}")
}

fn mac([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}
