use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use uroce::wire::Opcode;

use crate::marks::Mark;
use crate::report::Report;

use super::token::ExpressionError;

/// Something that a packet has, by name.
pub(super) struct Field {
    /// As in `uroce decode --json`, then as in Wireshark, or shorter.
    pub names: &'static [&'static str],
    pub kind: Type,
    pub about: &'static str,
    pub of: fn(&Report) -> Option<Value<'_>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Number,
    Decimal,
    Bool,
    Text,
    Address,
    Opcode,
}

/// What a packet has there.
pub(super) enum Value<'a> {
    Number(u64),
    Decimal(f64),
    Bool(bool),
    Text(Cow<'a, str>),
    Address(IpAddr),
    Opcode(&'a str, u8),
}

impl Field {
    pub fn name(&self) -> &'static str {
        self.names[0]
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The field of this name.
pub(super) fn find(name: &str, column: usize) -> Result<&'static Field, ExpressionError> {
    let name = name.strip_prefix("infiniband.").unwrap_or(name);
    if let Some(field) = FIELDS.iter().find(|field| field.names.contains(&name)) {
        return Ok(field);
    }
    let all = FIELDS.iter().flat_map(|field| field.names);
    let near = all.map(|other| (strsim::levenshtein(name, other), other)).min().filter(|(distance, _)| *distance <= 2);
    let tip = near.map_or(String::new(), |(_, other)| format!(" did you mean {other}?"));
    Err(ExpressionError::new(column, format!("there is no field `{name}`;{tip} --help lists them")))
}

/// The opcode of this name, in full: `RC_ACK` and `rc_acknowledge` are `RC_ACKNOWLEDGE`.
pub(super) fn opcode(name: &str) -> Option<String> {
    let upper = name.to_uppercase();
    let name = upper.strip_prefix("IB_OPCODE_").unwrap_or(&upper).replace('-', "_");
    let name = match name.as_str() {
        "RC_ACK" => "RC_ACKNOWLEDGE".to_owned(),
        _ => name,
    };
    (0..=u8::MAX).map(|value| Opcode(value).to_string()).find(|other| *other == name)
}

fn number(value: impl Into<u64>) -> Option<Value<'static>> {
    Some(Value::Number(value.into()))
}

fn text(value: &str) -> Option<Value<'_>> {
    Some(Value::Text(Cow::Borrowed(value)))
}

/// A number that JSON has as text in hexadecimal.
fn hexadecimal(value: &str) -> Option<Value<'static>> {
    u64::from_str_radix(value.strip_prefix("0x")?, 16).ok().map(Value::Number)
}

fn mark(report: &Report, is: fn(Mark) -> bool) -> Option<Value<'static>> {
    Some(Value::Bool(report.place.mark.is_some_and(is)))
}

macro_rules! fields {
    ($($kind:ident $names:tt $about:literal $of:expr;)*) => {
        &[$(Field { names: &$names, kind: Type::$kind, about: $about, of: $of }),*]
    };
}

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = fields! {
    Number ["frame", "frame.number"] "its number in the file" |r| number(r.frame);
    Decimal ["time", "frame.time_relative"] "seconds since the first frame" |r| Some(Value::Decimal(r.since_start.as_secs_f64()));
    Number ["frame_bytes", "frame.len"] "length of the frame" |r| number(r.frame_bytes as u64);
    Number ["captured_bytes", "frame.cap_len"] "how much of it was captured" |r| number(r.captured_bytes as u64);
    Text ["direction"] "sent or received, where the file has it" |r| text(r.direction?);
    Text ["comment", "frame.comment"] "the comment of a pcapng" |r| text(r.comment.as_deref()?);
    Text ["eth_src", "eth.src"] "MAC address" |r| text(&r.outer.as_ref()?.eth_src);
    Text ["eth_dst", "eth.dst"] "MAC address" |r| text(&r.outer.as_ref()?.eth_dst);
    Number ["vlan.id"] "VLAN" |r| number(r.outer.as_ref()?.vlan.as_ref()?.id);
    Number ["vlan.priority"] "its priority" |r| number(r.outer.as_ref()?.vlan.as_ref()?.priority);
    Address ["ip_src", "ip.src", "ipv6.src"] "the sender" |r| Some(Value::Address(r.outer.as_ref()?.ip_src));
    Address ["ip_dst", "ip.dst", "ipv6.dst"] "the receiver" |r| Some(Value::Address(r.outer.as_ref()?.ip_dst));
    Number ["dscp", "ip.dsfield.dscp"] "DSCP" |r| number(r.outer.as_ref()?.dscp);
    Number ["ecn", "ip.dsfield.ecn"] "ECN, 3 is congestion experienced" |r| number(r.outer.as_ref()?.ecn);
    Number ["hop_limit", "ip.ttl", "ipv6.hlim"] "hop limit, TTL" |r| number(r.outer.as_ref()?.hop_limit);
    Number ["ip_id", "ip.id"] "IPv4 identification" |r| number(r.outer.as_ref()?.ip_id?);
    Number ["flow_label", "ipv6.flow"] "IPv6 flow label" |r| number(r.outer.as_ref()?.flow_label?);
    Number ["udp_src", "udp.srcport"] "UDP source port" |r| number(r.outer.as_ref()?.udp_src);
    Number ["udp_checksum", "udp.checksum"] "UDP checksum" |r| number(r.outer.as_ref()?.udp_checksum);
    Opcode ["opcode", "bth.opcode"] "RC_SEND_ONLY, RC_ACK, …, or its number" |r| Some(Value::Opcode(r.opcode.as_deref()?, r.bth.as_ref()?.opcode_value));
    Number ["qpn", "bth.destqp", "qp"] "the receiver's queue pair" |r| number(r.qpn?);
    Number ["source_qpn"] "the sender's, once an answer showed it" |r| number(r.source()?);
    Number ["psn", "bth.psn"] "PSN" |r| number(r.psn?);
    Number ["relative_psn"] "PSN since the connection's first in the file" |r| number(r.place.relative_psn?);
    Bool ["solicited", "bth.se"] "solicited event" |r| Some(Value::Bool(r.bth.as_ref()?.solicited));
    Bool ["ack_request", "bth.a"] "AckReq" |r| Some(Value::Bool(r.bth.as_ref()?.ack_request));
    Bool ["mig_req", "bth.m"] "MigReq" |r| Some(Value::Bool(r.bth.as_ref()?.mig_req));
    Bool ["fecn"] "FECN" |r| Some(Value::Bool(r.bth.as_ref()?.fecn));
    Bool ["becn"] "BECN" |r| Some(Value::Bool(r.bth.as_ref()?.becn));
    Number ["pad", "bth.padcnt"] "bytes of padding" |r| number(r.bth.as_ref()?.pad as u64);
    Number ["tver", "bth.tver"] "transport version" |r| number(r.bth.as_ref()?.tver);
    Number ["p_key", "bth.p_key"] "partition key" |r| number(r.bth.as_ref()?.p_key);
    Bool ["offers", "offer"] "offers docs/EXTENSIONS.md" |r| Some(Value::Bool(r.bth.as_ref()?.offers));
    Bool ["extended"] "has a tag, and perhaps a trailer" |r| Some(Value::Bool(r.bth.as_ref()?.extended));
    Number ["reth.address", "reth.va"] "virtual address of the request" |r| hexadecimal(&r.reth.as_ref()?.address);
    Number ["reth.rkey", "reth.r_key"] "R_Key" |r| number(r.reth.as_ref()?.rkey);
    Number ["reth.length", "reth.dmalen"] "bytes of the request" |r| number(r.reth.as_ref()?.length);
    Number ["aeth.syndrome"] "syndrome" |r| number(r.aeth.as_ref()?.syndrome);
    Text ["aeth.meaning"] "the syndrome in words" |r| text(&r.aeth.as_ref()?.meaning);
    Number ["aeth.msn"] "MSN" |r| number(r.aeth.as_ref()?.msn);
    Number ["atomic.address", "atomiceth.va"] "virtual address" |r| hexadecimal(&r.atomic.as_ref()?.address);
    Number ["atomic.rkey", "atomiceth.r_key"] "R_Key" |r| number(r.atomic.as_ref()?.rkey);
    Number ["atomic.swap_or_add", "atomiceth.swapdt"] "operand" |r| hexadecimal(&r.atomic.as_ref()?.swap_or_add);
    Number ["atomic.compare", "atomiceth.cmpdt"] "operand" |r| hexadecimal(&r.atomic.as_ref()?.compare);
    Number ["atomic_ack.original", "atomicacketh.origremdt"] "the value before" |r| hexadecimal(&r.atomic_ack.as_ref()?.original);
    Number ["deth.q_key"] "queue key of a datagram" |r| number(r.deth.as_ref()?.q_key);
    Number ["deth.source_qpn", "deth.srcqp"] "its sender" |r| number(r.deth.as_ref()?.source_qpn);
    Number ["imm", "immdt"] "immediate data" |r| number(r.imm?);
    Number ["ieth.rkey", "ieth"] "key to invalidate" |r| number(r.ieth.as_ref()?.rkey);
    Text ["mad.name"] "message of the connection manager: ConnectRequest, …" |r| text(r.mad.as_ref()?.name?);
    Text ["trailer.kind"] "request, selective, probe, addresses, hello or answers" |r| text(r.trailer.as_ref()?.kind());
    Number ["trailer.attempt", "attempt"] "how often it was sent before" |r| number(r.trailer.as_ref()?.attempt()?);
    Number ["tag"] "tag of an extended packet" |r| number(r.tag?);
    Number ["payload_bytes"] "bytes of payload" |r| number(r.payload_bytes? as u64);
    Text ["icrc"] "ok, bad or absent" |r| text(&r.icrc);
    Bool ["malformed"] "a header or length cannot be right" |r| Some(Value::Bool(r.malformed));
    Text ["malformed_reason"] "which" |r| text(r.malformed_reason.as_deref()?);
    Bool ["bad"] "malformed, or a wrong ICRC" |r| Some(Value::Bool(r.is_bad()));
    Bool ["nak"] "a NAK or an RNR NAK" |r| Some(Value::Bool(r.is_nak()));
    Bool ["rnr"] "an RNR NAK" |r| Some(Value::Bool(r.is_rnr_nak()));
    Bool ["cnp"] "a congestion notification" |r| Some(Value::Bool(r.opcode.as_deref()? == "CNP"));
    Bool ["retransmission"] "sent again" |r| mark(r, |mark| matches!(mark, Mark::Retransmission { .. }));
    Bool ["duplicate"] "a copy of another frame" |r| mark(r, |mark| matches!(mark, Mark::Duplicate { .. }));
    Bool ["out_of_order"] "late" |r| mark(r, |mark| mark == Mark::OutOfOrder);
    Bool ["gap"] "PSNs are missing before it" |r| mark(r, |mark| matches!(mark, Mark::Gap { .. }));
};

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Number => "a number",
            Type::Decimal => "a number of seconds",
            Type::Bool => "true or false",
            Type::Text => "a text",
            Type::Address => "an IP address",
            Type::Opcode => "an opcode as in RC_SEND_ONLY",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_of_one_field() {
        let mut names: Vec<_> = FIELDS.iter().flat_map(|field| field.names).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(FIELDS.iter().all(|field| field.about.len() < 60));
    }

    #[test]
    fn opcodes_have_short_names_too() {
        for name in ["RC_ACK", "rc_acknowledge", "IB_OPCODE_RC_ACKNOWLEDGE"] {
            assert_eq!(opcode(name).as_deref(), Some("RC_ACKNOWLEDGE"));
        }
        assert_eq!((opcode("RC_SENDONLY"), opcode("CNP").as_deref()), (None, Some("CNP")));
    }
}
