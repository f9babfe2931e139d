//! What is said about one packet, as text and as JSON.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;
use uroce::pcap::{CapturedFrame, Direction};
use uroce::wire::{Bth, IpHeader, NakCode, Opcode, PKey, Packet, Qpn, RoceFrame, Syndrome, icrc};
use uroce_laboratory::dissection::Dissection;

use crate::trailer_report::TrailerReport;

/// One object of `uroce decode --json`. Numbers of up to 53 bits are numbers; 64-bit values are text, in hexadecimal, since
/// many readers of JSON keep no more than 53 bits. Headers that the packet does not have are left out; what could not be
/// read because the packet is malformed or cut is left out, too, or null where it is always there.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    /// Its number in the file, from 1 on.
    pub(crate) frame: u64,
    time_ns: u64,
    frame_bytes: usize,
    captured_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(flatten)]
    outer: Option<Outer>,
    /// The kernel's name.
    opcode: Option<String>,
    qpn: Option<u32>,
    psn: Option<u32>,
    #[serde(flatten)]
    bth: Option<BthReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feth: Option<FethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reth: Option<RethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aeth: Option<AethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic: Option<AtomicReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic_ack: Option<AtomicAckReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deth: Option<DethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    imm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ieth: Option<IethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mad: Option<MadReport>,
    /// Whether the sender offers docs/EXTENSIONS.md.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    offer: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    trailer: Option<TrailerReport>,
    /// The tag of an extended packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<u32>,
    payload_bytes: Option<usize>,
    icrc: String,
    /// As it stands in the packet, its first byte first.
    #[serde(skip_serializing_if = "Option::is_none")]
    icrc_value: Option<String>,
    malformed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    malformed_reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Outer {
    eth_src: String,
    eth_dst: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<VlanReport>,
    ip_src: IpAddr,
    ip_dst: IpAddr,
    dscp: u8,
    ecn: u8,
    hop_limit: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_id: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow_label: Option<u32>,
    udp_src: u16,
    udp_dst: u16,
    udp_checksum: u16,
}

#[derive(Debug, Serialize)]
struct VlanReport {
    id: u16,
    priority: u8,
    tpid: u16,
}

#[derive(Debug, Serialize)]
struct BthReport {
    opcode_value: u8,
    solicited: bool,
    mig_req: bool,
    pad: usize,
    tver: u8,
    p_key: u16,
    fecn: bool,
    becn: bool,
    reserved_4: u8,
    ack_request: bool,
    reserved_8: u8,
    /// Two of these bits, by docs/EXTENSIONS.md.
    offers: bool,
    extended: bool,
}

/// What a FLUSH asks for: 1 visibility, 2 persistence, 3 both; of 0 a range, 1 a whole region.
#[derive(Debug, Serialize)]
struct FethReport {
    placement: u8,
    selectivity: u8,
}

#[derive(Debug, Serialize)]
struct RethReport {
    address: String,
    rkey: u32,
    length: u32,
}

#[derive(Debug, Serialize)]
struct AethReport {
    syndrome: u8,
    meaning: String,
    msn: u32,
}

#[derive(Debug, Serialize)]
struct AtomicReport {
    address: String,
    rkey: u32,
    swap_or_add: String,
    compare: String,
}

#[derive(Debug, Serialize)]
struct AtomicAckReport {
    original: String,
}

#[derive(Debug, Serialize)]
struct DethReport {
    q_key: u32,
    source_qpn: u32,
}

#[derive(Debug, Serialize)]
struct IethReport {
    rkey: u32,
}

/// A management datagram.
#[derive(Debug, Serialize)]
struct MadReport {
    class: u8,
    method: u8,
    attribute: u16,
    /// The name of a connection management message.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'static str>,
    transaction: String,
}

impl Report {
    pub(crate) fn of(frame: &CapturedFrame, dissection: &Dissection<'_>) -> Report {
        let bth = dissection.bth;
        let packet = dissection.packet.as_ref();
        let is_cut = frame.bytes.len() < frame.original_bytes;
        let stored = dissection.frame.as_ref().filter(|_| !is_cut).and_then(|f| icrc::stored(f.ib));
        let stored = stored.filter(|_| packet.is_some());
        let outer = dissection.frame.as_ref().map(Outer::of);
        Report {
            schema: "uroce.decode/1",
            frame: frame.number,
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
        }
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

impl fmt::Display for Report {
    /// The line of `uroce decode`, but for number and time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(outer) = &self.outer {
            write!(f, "{} → {}", outer.ip_src, outer.ip_dst)?;
            if let Some(vlan) = &outer.vlan {
                write!(f, " vlan={}", vlan.id)?;
            }
        }
        if let (Some(opcode), Some(qpn), Some(psn), Some(bth)) = (&self.opcode, self.qpn, self.psn, &self.bth) {
            write!(f, " {opcode} QP={qpn:#08x} PSN={psn}")?;
            bth.fmt(f)?;
        }
        if let Some(outer) = &self.outer
            && outer.ecn == 3
        {
            f.write_str(" CE")?;
        }
        if let Some(FethReport { placement, selectivity }) = &self.feth {
            let what = ["nothing", "global", "persistent", "global+persistent"].get(usize::from(*placement));
            let level = ["range", "region"].get(usize::from(*selectivity));
            write!(f, " FETH {} {}", what.unwrap_or(&"reserved"), level.unwrap_or(&"reserved"))?;
        }
        if let Some(RethReport { address, rkey, length }) = &self.reth {
            write!(f, " RETH va={address} rkey={rkey:#010x} len={length}")?;
        }
        if let Some(AethReport { syndrome, meaning, msn }) = &self.aeth {
            write!(f, " AETH {syndrome:#04x} ({meaning}) MSN={msn}")?;
        }
        if let Some(AtomicReport { address, rkey, swap_or_add, compare }) = &self.atomic {
            write!(f, " AtomicETH va={address} rkey={rkey:#010x} swap/add={swap_or_add} compare={compare}")?;
        }
        if let Some(AtomicAckReport { original }) = &self.atomic_ack {
            write!(f, " original={original}")?;
        }
        if let Some(DethReport { q_key, source_qpn }) = &self.deth {
            write!(f, " DETH Q_Key={q_key:#010x} from={source_qpn:#08x}")?;
        }
        if let Some(imm) = self.imm {
            write!(f, " imm={imm:#010x}")?;
        }
        if let Some(IethReport { rkey }) = &self.ieth {
            write!(f, " invalidate={rkey:#010x}")?;
        }
        match &self.mad {
            Some(MadReport { name: Some(name), .. }) => write!(f, " CM {name}")?,
            Some(MadReport { class, method, attribute, .. }) => {
                write!(f, " MAD class={class:#04x} method={method:#04x} attribute={attribute:#06x}")?;
            }
            None => {}
        }
        if let Some(payload) = self.payload_bytes {
            write!(f, " payload={payload}")?;
        }
        if self.captured_bytes < self.frame_bytes {
            write!(f, " [{} of {} bytes captured]", self.captured_bytes, self.frame_bytes)?;
        }
        if let Some(trailer) = &self.trailer {
            trailer.fmt(f)?;
        }
        if let Some(tag) = self.tag {
            write!(f, " tag={tag:#010x}")?;
        }
        write!(f, " ICRC {}", self.icrc)?;
        if let Some(comment) = &self.comment {
            write!(f, " [{comment}]")?;
        }
        if let Some(reason) = &self.malformed_reason {
            write!(f, " MALFORMED: {reason}")?;
        }
        Ok(())
    }
}

impl fmt::Display for BthReport {
    /// The flags, and what is unusual.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (self.ack_request, " AckReq"),
            (self.solicited, " SE"),
            (self.mig_req, " MigReq"),
            (self.fecn, " FECN"),
            (self.becn, " BECN"),
            (self.offers, " offer"),
            (self.extended, " extended"),
        ];
        flags.iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, name)| f.write_str(name))?;
        if self.tver != 0 {
            write!(f, " TVer={}", self.tver)?;
        }
        if self.p_key != PKey::DEFAULT.0 {
            write!(f, " P_Key={:#06x}", self.p_key)?;
        }
        let named = u8::from(self.offers) << 6 | u8::from(self.extended) << 5;
        let reserved_8 = self.reserved_8 & !named;
        if (self.reserved_4, reserved_8) != (0, 0) {
            write!(f, " reserved={:#04x},{reserved_8:#04x}", self.reserved_4)?;
        }
        Ok(())
    }
}
