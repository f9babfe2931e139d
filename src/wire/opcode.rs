use std::fmt;

/// A BTH opcode: service in the upper three bits, operation in the lower five (IBTA 9.2.1, Table 38).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// The transport service of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportService {
    /// Reliable connection (RC).
    Rc,
    /// Unreliable connection (UC).
    Uc,
    /// Unreliable datagram (UD).
    Ud,
    /// Congestion notification (IBTA Annex A17.9.3).
    Cnp,
    /// A service that this stack does not implement; holds the upper three bits of the opcode.
    Unknown(u8),
}

/// What a packet requests or answers, wherever it stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// A request for an RDMA READ.
    ReadRequest,
    /// A response to an RDMA READ, with data.
    ReadResponse,
    /// Acknowledge, positive or negative (ACK, NAK, RNR NAK).
    Acknowledge,
    /// The answer to an atomic.
    AtomicAcknowledge,
    /// The request for an atomic compare and swap.
    CompareSwap,
    /// The request for an atomic fetch and add.
    FetchAdd,
    /// FLUSH: its answer shows that earlier WRITEs are visible, or persistent.
    Flush,
    /// ATOMIC WRITE: readers see all of its eight bytes or none.
    AtomicWrite,
    /// Congestion notification packet (CNP).
    Cnp,
    /// A reserved operation, or one of a service that this stack does not implement; holds the whole opcode.
    Unknown(u8),
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first packet of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last packet of several.
    Last,
    /// The only packet of its message.
    Only,
}

impl Position {
    /// The position of packet `index` of `count`.
    pub const fn of(index: u32, count: u32) -> Position {
        match (index == 0, index + 1 == count) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        }
    }

    /// Whether a message starts here.
    pub const fn starts(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether a message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// Extended headers by bit, in the order in which they follow the BTH.
pub(super) mod ext {
    pub const DETH: u8 = 1;
    pub const FETH: u8 = 2;
    pub const RETH: u8 = 4;
    pub const ATOMIC: u8 = 8;
    pub const AETH: u8 = 16;
    pub const ATOMIC_ACK: u8 = 32;
    pub const IMMDT: u8 = 64;
    pub const IETH: u8 = 128;

    /// Each with its length in bytes.
    pub const LENGTHS: [(u8, u8); 8] =
        [(DETH, 8), (FETH, 4), (RETH, 16), (ATOMIC, 28), (AETH, 4), (ATOMIC_ACK, 8), (IMMDT, 4), (IETH, 4)];

    /// Length of the headers in `set`, in bytes.
    pub const fn bytes(set: u8) -> u8 {
        let (mut bytes, mut index) = (0, 0);
        while index < LENGTHS.len() {
            let (bit, len) = LENGTHS[index];
            bytes += if set & bit != 0 { len } else { 0 };
            index += 1;
        }
        bytes
    }
}

/// The operations that RC and UC share: name, operation, position, extended headers, payload allowed.
struct Row(&'static str, Operation, Position, u8, bool);

use Operation as Op;
use Position as Pos;

/// By the low five bits of an RC opcode. UC has the first twelve; the last two are of IBTA A19.
static ROWS: [Option<Row>; RC_OPERATIONS] = [
    Some(Row("SEND_FIRST", Op::Send, Pos::First, 0, true)),
    Some(Row("SEND_MIDDLE", Op::Send, Pos::Middle, 0, true)),
    Some(Row("SEND_LAST", Op::Send, Pos::Last, 0, true)),
    Some(Row("SEND_LAST_WITH_IMMEDIATE", Op::Send, Pos::Last, ext::IMMDT, true)),
    Some(Row("SEND_ONLY", Op::Send, Pos::Only, 0, true)),
    Some(Row("SEND_ONLY_WITH_IMMEDIATE", Op::Send, Pos::Only, ext::IMMDT, true)),
    Some(Row("RDMA_WRITE_FIRST", Op::Write, Pos::First, ext::RETH, true)),
    Some(Row("RDMA_WRITE_MIDDLE", Op::Write, Pos::Middle, 0, true)),
    Some(Row("RDMA_WRITE_LAST", Op::Write, Pos::Last, 0, true)),
    Some(Row("RDMA_WRITE_LAST_WITH_IMMEDIATE", Op::Write, Pos::Last, ext::IMMDT, true)),
    Some(Row("RDMA_WRITE_ONLY", Op::Write, Pos::Only, ext::RETH, true)),
    Some(Row("RDMA_WRITE_ONLY_WITH_IMMEDIATE", Op::Write, Pos::Only, ext::RETH | ext::IMMDT, true)),
    Some(Row("RDMA_READ_REQUEST", Op::ReadRequest, Pos::Only, ext::RETH, false)),
    Some(Row("RDMA_READ_RESPONSE_FIRST", Op::ReadResponse, Pos::First, ext::AETH, true)),
    Some(Row("RDMA_READ_RESPONSE_MIDDLE", Op::ReadResponse, Pos::Middle, 0, true)),
    Some(Row("RDMA_READ_RESPONSE_LAST", Op::ReadResponse, Pos::Last, ext::AETH, true)),
    Some(Row("RDMA_READ_RESPONSE_ONLY", Op::ReadResponse, Pos::Only, ext::AETH, true)),
    Some(Row("ACKNOWLEDGE", Op::Acknowledge, Pos::Only, ext::AETH, false)),
    Some(Row("ATOMIC_ACKNOWLEDGE", Op::AtomicAcknowledge, Pos::Only, ext::AETH | ext::ATOMIC_ACK, false)),
    Some(Row("COMPARE_SWAP", Op::CompareSwap, Pos::Only, ext::ATOMIC, false)),
    Some(Row("FETCH_ADD", Op::FetchAdd, Pos::Only, ext::ATOMIC, false)),
    None,
    Some(Row("SEND_LAST_WITH_INVALIDATE", Op::Send, Pos::Last, ext::IETH, true)),
    Some(Row("SEND_ONLY_WITH_INVALIDATE", Op::Send, Pos::Only, ext::IETH, true)),
    None,
    None,
    None,
    None,
    Some(Row("FLUSH", Op::Flush, Pos::Only, ext::FETH | ext::RETH, false)),
    Some(Row("ATOMIC_WRITE", Op::AtomicWrite, Pos::Only, ext::RETH, true)),
];

const RC_OPERATIONS: usize = 30;
const UC_OPERATIONS: usize = 12;
static UD_SEND_ONLY: Row = Row("SEND_ONLY", Op::Send, Pos::Only, ext::DETH, true);
static UD_SEND_ONLY_IMM: Row = Row("SEND_ONLY_WITH_IMMEDIATE", Op::Send, Pos::Only, ext::DETH | ext::IMMDT, true);
/// The CNP's 16 reserved bytes are its payload as far as lengths go (IBTA Annex A17.9.3).
static CNP: Row = Row("CNP", Op::Cnp, Pos::Only, 0, true);

/// What each packet is asked for several times: of every opcode at its place, so that one look answers.
#[derive(Clone, Copy)]
struct Facts {
    service: TransportService,
    operation: Operation,
    position: Position,
    /// Bits of [`ext`], and the length of these headers.
    extensions: u8,
    extension_bytes: u8,
    is_known: bool,
    may_have_payload: bool,
    is_response: bool,
}

static FACTS: [Facts; 256] = {
    let mut facts = [Facts::of(Opcode(0)); 256];
    let mut code = 0;
    while code < facts.len() {
        facts[code] = Facts::of(Opcode(code as u8));
        code += 1;
    }
    facts
};

impl Facts {
    const fn of(opcode: Opcode) -> Facts {
        let (operation, position, extensions, is_known, may_have_payload) = match opcode.row() {
            Some(Row(_, operation, position, extensions, payload)) => {
                (*operation, *position, *extensions, true, *payload)
            }
            None => (Operation::Unknown(opcode.0), Position::Only, 0, false, false),
        };
        let is_response = matches!(operation, Op::ReadResponse | Op::Acknowledge | Op::AtomicAcknowledge);
        let extension_bytes = ext::bytes(extensions);
        let service = opcode.upper_bits();
        Facts { service, operation, position, extensions, extension_bytes, is_known, may_have_payload, is_response }
    }
}

#[allow(missing_docs)] // the names are the documentation: IBTA Table 38
impl Opcode {
    pub const RC_SEND_FIRST: Opcode = Opcode(0x00);
    pub const RC_SEND_MIDDLE: Opcode = Opcode(0x01);
    pub const RC_SEND_LAST: Opcode = Opcode(0x02);
    pub const RC_SEND_LAST_IMM: Opcode = Opcode(0x03);
    pub const RC_SEND_ONLY: Opcode = Opcode(0x04);
    pub const RC_SEND_ONLY_IMM: Opcode = Opcode(0x05);
    pub const RC_WRITE_FIRST: Opcode = Opcode(0x06);
    pub const RC_WRITE_MIDDLE: Opcode = Opcode(0x07);
    pub const RC_WRITE_LAST: Opcode = Opcode(0x08);
    pub const RC_WRITE_LAST_IMM: Opcode = Opcode(0x09);
    pub const RC_WRITE_ONLY: Opcode = Opcode(0x0a);
    pub const RC_WRITE_ONLY_IMM: Opcode = Opcode(0x0b);
    pub const RC_READ_REQUEST: Opcode = Opcode(0x0c);
    pub const RC_READ_RESPONSE_FIRST: Opcode = Opcode(0x0d);
    pub const RC_READ_RESPONSE_MIDDLE: Opcode = Opcode(0x0e);
    pub const RC_READ_RESPONSE_LAST: Opcode = Opcode(0x0f);
    pub const RC_READ_RESPONSE_ONLY: Opcode = Opcode(0x10);
    pub const RC_ACKNOWLEDGE: Opcode = Opcode(0x11);
    pub const RC_ATOMIC_ACKNOWLEDGE: Opcode = Opcode(0x12);
    pub const RC_COMPARE_SWAP: Opcode = Opcode(0x13);
    pub const RC_FETCH_ADD: Opcode = Opcode(0x14);
    pub const RC_SEND_LAST_INV: Opcode = Opcode(0x16);
    pub const RC_SEND_ONLY_INV: Opcode = Opcode(0x17);
    pub const RC_FLUSH: Opcode = Opcode(0x1c);
    pub const RC_ATOMIC_WRITE: Opcode = Opcode(0x1d);
    pub const UD_SEND_ONLY: Opcode = Opcode(0x64);
    pub const UD_SEND_ONLY_IMM: Opcode = Opcode(0x65);
    pub const CNP: Opcode = Opcode(0x81);
}

impl Opcode {
    /// The same operation on another connected service: an RC opcode as UC.
    ///
    /// # Panics
    /// In debug builds, when UC does not have the operation.
    pub fn on_uc(self) -> Opcode {
        debug_assert!((self.0 as usize) < UC_OPERATIONS, "{self} does not exist on UC");
        Opcode(0x20 | self.0)
    }

    /// The transport service, from the upper three bits.
    pub fn service(self) -> TransportService {
        self.facts().service
    }

    const fn upper_bits(self) -> TransportService {
        match self.0 >> 5 {
            0 => TransportService::Rc,
            1 => TransportService::Uc,
            3 => TransportService::Ud,
            4 => TransportService::Cnp,
            other => TransportService::Unknown(other),
        }
    }

    const fn row(self) -> Option<&'static Row> {
        let operation = (self.0 & 0x1f) as usize;
        match (self.upper_bits(), operation) {
            (TransportService::Rc, 0..RC_OPERATIONS) | (TransportService::Uc, 0..UC_OPERATIONS) => {
                ROWS[operation].as_ref()
            }
            (TransportService::Ud, 4) => Some(&UD_SEND_ONLY),
            (TransportService::Ud, 5) => Some(&UD_SEND_ONLY_IMM),
            (TransportService::Cnp, 1) => Some(&CNP),
            _ => None,
        }
    }

    fn facts(self) -> &'static Facts {
        &FACTS[usize::from(self.0)]
    }

    /// Whether this stack implements the opcode.
    pub fn is_known(self) -> bool {
        self.facts().is_known
    }

    /// What the packet requests or answers.
    pub fn operation(self) -> Operation {
        self.facts().operation
    }

    /// Where the packet stands in its message; reserved opcodes count as `Only`.
    pub fn position(self) -> Position {
        self.facts().position
    }

    /// Whether the packet can carry payload (IBTA Table 38).
    pub fn may_have_payload(self) -> bool {
        self.facts().may_have_payload
    }

    /// Whether the packet belongs to a responder's answer: READ response, acknowledge, atomic acknowledge.
    pub fn is_response(self) -> bool {
        self.facts().is_response
    }

    /// Whether an ImmDt header is present.
    pub fn has_immediate(self) -> bool {
        self.extensions() & ext::IMMDT != 0
    }

    /// Whether an IETH header is present.
    pub fn has_invalidate(self) -> bool {
        self.extensions() & ext::IETH != 0
    }

    /// The set of extended headers, bits of [`ext`].
    pub(super) fn extensions(self) -> u8 {
        self.facts().extensions
    }

    /// Length of the extended headers between BTH and payload, in bytes.
    pub fn extension_bytes(self) -> usize {
        self.facts().extension_bytes.into()
    }
}

impl fmt::Display for Opcode {
    /// The kernel's name without `IB_OPCODE_` (include/rdma/ib_pack.h): `RC_RDMA_WRITE_FIRST`; `RESERVED_0x15` where
    /// there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(row) = self.row() else { return write!(f, "RESERVED_{:#04x}", self.0) };
        let service = match self.service() {
            TransportService::Rc => "RC_",
            TransportService::Uc => "UC_",
            TransportService::Ud => "UD_",
            TransportService::Cnp | TransportService::Unknown(_) => "",
        };
        write!(f, "{service}{}", row.0)
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_kernels() {
        assert_eq!(Opcode::RC_WRITE_FIRST.to_string(), "RC_RDMA_WRITE_FIRST");
        assert_eq!(Opcode(0x23).to_string(), "UC_SEND_LAST_WITH_IMMEDIATE");
        assert_eq!(Opcode::UD_SEND_ONLY.to_string(), "UD_SEND_ONLY");
        assert_eq!(Opcode::CNP.to_string(), "CNP");
        assert_eq!(Opcode::RC_FLUSH.to_string(), "RC_FLUSH");
        assert_eq!(Opcode::RC_ATOMIC_WRITE.to_string(), "RC_ATOMIC_WRITE");
        assert_eq!(Opcode(0x15).to_string(), "RESERVED_0x15");
        assert_eq!(Opcode(0x2c).to_string(), "RESERVED_0x2c");
    }

    #[test]
    fn the_known_opcodes_are_25_of_rc_12_of_uc_2_of_ud_and_cnp() {
        let count = |service| (0..=255).map(Opcode).filter(|o| o.is_known() && o.service() == service).count();
        assert_eq!(
            [TransportService::Rc, TransportService::Uc, TransportService::Ud, TransportService::Cnp].map(count),
            [25, 12, 2, 1],
            "IBTA Table 38, A19"
        );
    }

    #[test]
    fn extended_headers_have_the_lengths_of_table_38() {
        assert_eq!(Opcode::RC_SEND_FIRST.extension_bytes(), 0);
        assert_eq!(Opcode::RC_WRITE_ONLY_IMM.extension_bytes(), 20);
        assert_eq!(Opcode::RC_ATOMIC_ACKNOWLEDGE.extension_bytes(), 12);
        assert_eq!(Opcode::RC_COMPARE_SWAP.extension_bytes(), 28);
        assert_eq!(Opcode::UD_SEND_ONLY_IMM.extension_bytes(), 12);
        assert_eq!(Opcode::RC_SEND_ONLY_INV.extension_bytes(), 4);
        assert_eq!(Opcode::RC_FLUSH.extension_bytes(), 20);
        assert_eq!(Opcode::RC_ATOMIC_WRITE.extension_bytes(), 16);
    }
}
