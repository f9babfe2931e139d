use std::fmt;

use anstyle::{AnsiColor, Style};
use uroce::wire::PKey;

use crate::marks::Mark;
use crate::report::{
    AethReport, AtomicAckReport, AtomicReport, BthReport, DethReport, FethReport, IethReport, MadReport, Report,
    RethReport,
};

/// A line about one packet, for people. What is as it should be is not said: an ICRC that is right, a payload of nothing,
/// the MigReq bit, offers of peers that know each other.
pub(crate) struct PacketLine<'a> {
    pub(crate) report: &'a Report,
    /// PSNs count from the connection's first one in the capture.
    pub(crate) is_relative: bool,
}

/// What deserves attention in red; the worst, a packet that is damaged, in bold.
const DAMAGED: Style = AnsiColor::Red.on_default().bold();
const REFUSED: Style = AnsiColor::Red.on_default();
const AGAIN: Style = AnsiColor::Yellow.on_default();

/// Width of most opcodes, in letters, so that what follows them is in columns.
const OPCODE_WIDTH: usize = 21;

impl PacketLine<'_> {
    /// The colour of the line; `None` for packets that are as most are.
    pub(crate) fn style(&self) -> Option<Style> {
        let report = self.report;
        match report.place.mark {
            _ if report.is_bad() => Some(DAMAGED),
            _ if report.is_nak() => Some(REFUSED),
            Some(Mark::Retransmission { .. } | Mark::Duplicate { .. } | Mark::Gap { .. } | Mark::OutOfOrder) => {
                Some(AGAIN)
            }
            None => None,
        }
    }

    fn psn(&self, psn: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As pingpong, perf and the ibv tools print it, and as tshark does.
        match self.report.place.relative_psn.filter(|_| self.is_relative) {
            Some(relative) => write!(f, "PSN={psn:#08x} (+{relative})"),
            None => write!(f, "PSN={psn:#08x} ({psn})"),
        }
    }
}

impl fmt::Display for PacketLine<'_> {
    /// The line, but for its colour.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report;
        write!(f, "{:>5} {:>12.6} ", report.frame, report.since_start.as_secs_f64())?;
        if let Some(outer) = &report.outer {
            write!(f, "{} → {}", outer.ip_src, outer.ip_dst)?;
            if let Some(vlan) = &outer.vlan {
                write!(f, " vlan={}", vlan.id)?;
            }
        }
        if let (Some(opcode), Some(qpn), Some(psn), Some(bth)) = (&report.opcode, report.qpn, report.psn, &report.bth) {
            write!(f, " {opcode:<OPCODE_WIDTH$} QP={qpn:#08x} ")?;
            self.psn(psn, f)?;
            bth.fmt(f)?;
            // Else the tag shows it.
            if bth.extended && report.tag.is_none() {
                f.write_str(" extended")?;
            }
        }
        if report.outer.as_ref().is_some_and(|outer| outer.ecn == 3) {
            f.write_str(" CE")?;
        }
        headers(report, f)?;
        if let Some(payload) = report.payload_bytes.filter(|payload| *payload > 0) {
            write!(f, " payload={payload}")?;
        }
        let is_cut = report.captured_bytes < report.frame_bytes;
        if is_cut {
            write!(f, " [{} of {} bytes captured]", report.captured_bytes, report.frame_bytes)?;
        }
        if let Some(trailer) = &report.trailer {
            trailer.fmt(f)?;
        }
        if let Some(tag) = report.tag {
            write!(f, " tag={tag:#010x}")?;
        }
        // Of a cut packet it is no news.
        if report.icrc != "ok" && !(is_cut && report.icrc == "absent") {
            write!(f, " ICRC {}", report.icrc)?;
        }
        if let Some(comment) = &report.comment {
            write!(f, " [{comment}]")?;
        }
        if let Some(reason) = &report.malformed_reason {
            write!(f, " MALFORMED: {reason}")?;
        }
        report.place.mark.map_or(Ok(()), |mark| write!(f, " {mark}"))
    }
}

/// The headers behind the BTH.
fn headers(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Some(FethReport { placement, selectivity }) = &report.feth {
        let what = ["nothing", "global", "persistent", "global+persistent"].get(usize::from(*placement));
        let level = ["range", "region"].get(usize::from(*selectivity));
        write!(f, " FETH {} {}", what.unwrap_or(&"reserved"), level.unwrap_or(&"reserved"))?;
    }
    if let Some(RethReport { address, rkey, length }) = &report.reth {
        write!(f, " RETH va={address} rkey={rkey:#010x} len={length}")?;
    }
    if let Some(AethReport { syndrome, meaning, msn }) = &report.aeth {
        write!(f, " AETH {syndrome:#04x} ({meaning}) MSN={msn}")?;
    }
    if let Some(AtomicReport { address, rkey, swap_or_add, compare }) = &report.atomic {
        write!(f, " AtomicETH va={address} rkey={rkey:#010x} swap/add={swap_or_add} compare={compare}")?;
    }
    if let Some(AtomicAckReport { original }) = &report.atomic_ack {
        write!(f, " original={original}")?;
    }
    if let Some(DethReport { q_key, source_qpn }) = &report.deth {
        write!(f, " DETH Q_Key={q_key:#010x} from={source_qpn:#08x}")?;
    }
    if let Some(imm) = report.imm {
        write!(f, " imm={imm:#010x}")?;
    }
    if let Some(IethReport { rkey }) = &report.ieth {
        write!(f, " invalidate={rkey:#010x}")?;
    }
    match &report.mad {
        Some(MadReport { name: Some(name), .. }) => write!(f, " CM {name}")?,
        Some(MadReport { class, method, attribute, .. }) => {
            write!(f, " MAD class={class:#04x} method={method:#04x} attribute={attribute:#06x}")?;
        }
        None => {}
    }
    Ok(())
}

impl fmt::Display for BthReport {
    /// The flags, and what is unusual.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (self.ack_request, " AckReq"),
            (self.solicited, " SE"),
            (self.fecn, " FECN"),
            (self.becn, " BECN"),
            // From then on it is in every packet.
            (self.offers && !self.extended, " offer"),
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
