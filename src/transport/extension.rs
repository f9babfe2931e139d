use std::str::FromStr;

use arrayvec::ArrayVec;

use crate::congestion::{CongestionControl, Rate};
use crate::path::{PathPolicy, PathSet};
use crate::recovery::{GoBackN, Recovery, Selective};
use crate::time::{Duration, Instant};
use crate::wire::{Hello, Packet, PathMtu, Psn, RequestTrailer, Sack, Tagged, Telemetry};

use super::acks::{AckPolicy, CumulativeAcks, SelectiveAcks};
use super::service::Service;

/// How queue pairs of reliable connections recover from losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Selective repeat towards peers that have shown that they understand it (docs/EXTENSIONS.md), otherwise
    /// go-back-N.
    #[default]
    Auto,
    /// Selective repeat: the peer is assumed to understand it.
    Selective,
    /// Go-back-N, as all peers speak it. The extension is not offered.
    GoBackN,
}

/// A text that names no recovery mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a recovery mode: use auto, selective or go-back-n")]
pub struct RecoveryModeError(String);

impl FromStr for RecoveryMode {
    type Err = RecoveryModeError;

    fn from_str(text: &str) -> Result<RecoveryMode, RecoveryModeError> {
        match text {
            "auto" => Ok(RecoveryMode::Auto),
            "selective" => Ok(RecoveryMode::Selective),
            "go-back-n" => Ok(RecoveryMode::GoBackN),
            _ => Err(RecoveryModeError(text.to_owned())),
        }
    }
}

impl std::fmt::Display for RecoveryMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RecoveryMode::Auto => "auto",
            RecoveryMode::Selective => "selective",
            RecoveryMode::GoBackN => "go-back-n",
        })
    }
}

/// How packets are retransmitted to peers without selective repeat: [`GoBackN`], unless a program supplies its own
/// recovery.
///
/// The function returns a recovery whose next position is the first argument. The second is the silence of the peer
/// that costs a retry; `None` for no limit.
#[derive(Clone, Copy)]
pub struct PlainRecovery(pub fn(u64, Option<Duration>) -> Box<dyn Recovery>);

impl Default for PlainRecovery {
    fn default() -> PlainRecovery {
        PlainRecovery(|next, timeout| Box::new(GoBackN::new(next, timeout)))
    }
}

impl std::fmt::Debug for PlainRecovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlainRecovery")
    }
}

impl PartialEq for PlainRecovery {
    fn eq(&self, other: &PlainRecovery) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for PlainRecovery {}

/// The settings of an endpoint for loss recovery, and for the extension (docs/EXTENSIONS.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoverySettings {
    /// The recovery mode: which recovery to use towards which peers.
    pub recovery: RecoveryMode,
    /// The recovery towards peers that do not understand the extension.
    pub plain: PlainRecovery,
    /// Upper bound on the PSNs in flight towards peers that understand the extension, 1 to 262,144.
    pub window: u32,
    /// The rate of each queue pair towards peers that understand or offer the extension; `None` for as fast as the
    /// window allows.
    pub rate: Option<Rate>,
    /// The rate of the link, at which controllers can start; `None` when it is not known.
    pub line_rate: Option<Rate>,
    /// What decides on the rate, up to that one.
    pub congestion: CongestionControl,
    /// Upper bound on the bytes of each queue pair's requests that wait for earlier ones.
    pub reorder_bytes: usize,
    /// Upper bound on these bytes over all queue pairs of an endpoint.
    pub endpoint_reorder_bytes: usize,
    /// The longest IP packet that the link accepts, in bytes.
    pub link_mtu: usize,
    /// The initial number of paths to a peer that understands the extension, 1 to [`MAX_PATHS`](Self::MAX_PATHS). Each
    /// has a UDP source port of its own, and is on one of the device's rails in turn.
    pub paths: u16,
    /// Upper bound on the paths that are used because the peer uses as many.
    pub paths_as_peer: u16,
    /// How packets are distributed over the paths.
    pub path_policy: PathPolicy,
}

impl RecoverySettings {
    /// Upper bound on the window, in PSNs.
    pub const MAX_WINDOW: u32 = Selective::MAX_WINDOW;

    /// The window when nothing else limits what is in flight, in PSNs: an eighth of the frames that a link over AF_XDP
    /// has for receiving, at two a packet.
    pub const UNLIMITED_WINDOW: u32 = 512;

    /// Upper bound on the number of paths.
    pub const MAX_PATHS: u16 = PathSet::MAX;

    /// The same settings with this number of paths, 1 to [`MAX_PATHS`](Self::MAX_PATHS), whatever the peer uses. A
    /// number out of range is clamped.
    pub fn with_paths(self, paths: u16, path_policy: PathPolicy) -> RecoverySettings {
        let paths = paths.clamp(1, Self::MAX_PATHS);
        RecoverySettings { paths, paths_as_peer: paths, path_policy, ..self }
    }

    /// The same settings with at least this number of paths, clamped as in [`with_paths`](Self::with_paths), and as
    /// many as the peer uses.
    pub fn with_paths_as_peer(self, paths: u16, path_policy: PathPolicy) -> RecoverySettings {
        RecoverySettings { paths_as_peer: Self::MAX_PATHS, ..self.with_paths(paths, path_policy) }
    }

    /// The same settings for a link that accepts IP packets of `link_mtu` bytes.
    pub fn on_link(self, recovery: RecoveryMode, rate: Option<Rate>, link_mtu: usize) -> RecoverySettings {
        RecoverySettings { recovery, rate, link_mtu, ..self }.with_window()
    }

    /// The same settings on a link of this rate.
    pub fn with_line_rate(self, line_rate: Option<Rate>) -> RecoverySettings {
        RecoverySettings { line_rate, ..self }
    }

    /// The same settings with another congestion controller.
    pub fn with_congestion(self, congestion: CongestionControl) -> RecoverySettings {
        RecoverySettings { congestion, ..self }.with_window()
    }

    /// The same settings with [`MAX_WINDOW`](Self::MAX_WINDOW) if something else limits what is in flight.
    fn with_window(self) -> RecoverySettings {
        let is_limited = self.rate.is_some() || self.congestion != CongestionControl::Fixed;
        let window = if is_limited { Self::MAX_WINDOW } else { Self::UNLIMITED_WINDOW };
        RecoverySettings { window, ..self }
    }
}

impl Default for RecoverySettings {
    fn default() -> RecoverySettings {
        RecoverySettings {
            recovery: RecoveryMode::default(),
            plain: PlainRecovery::default(),
            window: RecoverySettings::MAX_WINDOW,
            rate: None,
            line_rate: None,
            congestion: CongestionControl::default(),
            // A bandwidth-delay product of 10 Gb/s × 100 ms with 5 % of loss needs this, when nothing can be placed
            // early.
            reorder_bytes: 512 << 20,
            // Two such queue pairs at once reach this, which is little beside the memory of such a machine.
            endpoint_reorder_bytes: 1 << 30,
            link_mtu: usize::MAX,
            paths: 1,
            paths_as_peer: RecoverySettings::MAX_PATHS,
            path_policy: PathPolicy::default(),
        }
    }
}

/// What a queue pair of a reliable connection knows of its peer concerning the extension.
///
/// With [`RecoveryMode::Auto`], no peer is trusted to understand before it has brought back a number that only the peer
/// can have seen (docs/EXTENSIONS.md). Each side draws a nonce, sends it in a hello, and from then on expects it in all
/// packets.
#[derive(Clone, Debug)]
pub(super) struct Extension {
    pub settings: RecoverySettings,
    /// Whether it is not used: the settings say so, or its packets do not fit into the link's.
    is_off: bool,
    peer: Peer,
    /// Whether the peer has probed a path, or announced further addresses.
    pub has_named_paths: bool,
    /// The nonce that the peer brings back; 0 until it is needed.
    nonce: u32,
    /// Whether the peer has made the offer.
    has_offered: bool,
    /// The nonce of a sender that has not brought ours back; 0 for none.
    heard: u32,
    /// The tag of the hello that is owed.
    owed: Option<u32>,
    /// The tag of the latest hello, whether we knew the peer then, and until when the same hello is not repeated.
    said: Option<(u32, bool, Instant)>,
    /// How often the hello to a peer that is to bring our nonce back was repeated since nothing answered it.
    repeats: u8,
    /// Which of the peer's answers have tags, and which of its requests, as far as is known. Earlier ones can still be
    /// in flight.
    answers: Tagged,
    requests: Tagged,
}

/// Each packet asks several times which it is: that is a byte of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Peer {
    /// It has answered this many requests that made the offer, without making it.
    Unknown(u8),
    /// It is assumed to understand, and has not brought our nonce back.
    Assumed,
    /// It has brought our nonce back.
    Known(Known),
    Plain,
}

/// A peer that understands the extension, and has proved who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    nonce: u32,
    /// Upper bound on the PSNs that it has in flight.
    window: u32,
    /// Whether requests to it may carry acknowledges, and have room for telemetry.
    takes_carried: bool,
    takes_telemetry: bool,
    /// Which of our requests have tags.
    tagged: Tagged,
}

impl Peer {
    fn understands(self) -> bool {
        matches!(self, Peer::Assumed | Peer::Known(_))
    }
}

/// Whether a packet without a tag can be the peer's; `next` is the first PSN that has not arrived.
fn may_lack(tagged: &mut Tagged, psn: Psn, next: Psn) -> bool {
    if let Tagged::From(first) = *tagged {
        // The change is final: PSNs repeat.
        if !next.is_before(first) {
            *tagged = Tagged::All;
        }
    }
    match *tagged {
        Tagged::None => true,
        Tagged::From(first) => psn.is_before(first),
        Tagged::All => false,
    }
}

/// Takes `heard`, unless something was heard before.
fn learn(tagged: &mut Tagged, heard: Tagged) {
    if *tagged == Tagged::None {
        *tagged = heard;
    }
}

/// What is known of a packet that can be the peer's, beyond what the IBTA knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Admitted {
    /// Whether it brings our nonce back.
    pub has_tag: bool,
    /// Whether it announces a trailer, which the IBTA does not know.
    pub may_have_trailer: bool,
    /// Whether its trailer is trusted: the peer understands.
    pub is_believed: bool,
}

/// Why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It announces a tag, and has none.
    NoTag,
    /// It has no tag although it should, or another one.
    WrongTag,
}

/// Upper bound on the bytes around the payload of an extended packet: IPv6, UDP, BTH, immediate, trailer, tag, ICRC.
const AROUND_PAYLOAD_BYTES: usize = 40 + 8 + 12 + 4 + 24 + Packet::TAG_BYTES + 4;

/// Bytes around the blocks of a selective acknowledge: IPv6, UDP, BTH, AETH, the rest of the trailer, tag, ICRC.
const AROUND_BLOCKS_BYTES: usize = 40 + 8 + 12 + 4 + 12 + Packet::TAG_BYTES + 4;

/// Answers without the offer after which a peer is known not to understand.
const PLAIN_AFTER: u8 = 8;

/// Interval in which the same hello is not repeated.
const HELLO_PAUSE: Duration = Duration::from_millis(1);

/// How often a hello is repeated that is not answered, at most. It is waited for twice as long each time. Then it is left to
/// retransmissions, which make the offer.
const HELLO_REPEATS: u8 = 7;

impl Extension {
    /// What a queue pair of that service knows before it has heard from its peer.
    pub fn new(service: Service, settings: RecoverySettings) -> Extension {
        let peer = match settings.recovery {
            _ if service != Service::Rc => Peer::Plain,
            RecoveryMode::Auto if mutated!("selective-towards-everybody") => Peer::Assumed,
            RecoveryMode::Auto => Peer::Unknown(0),
            RecoveryMode::Selective => Peer::Assumed,
            RecoveryMode::GoBackN => Peer::Plain,
        };
        Extension {
            settings,
            is_off: settings.recovery == RecoveryMode::GoBackN,
            peer,
            has_named_paths: false,
            nonce: 0,
            has_offered: false,
            heard: 0,
            owed: None,
            said: None,
            repeats: 0,
            answers: Tagged::None,
            requests: Tagged::None,
        }
    }

    /// Takes the path MTU. When extended packets do not fit into the link's, there are none.
    pub fn fit(&mut self, path_mtu: PathMtu) {
        if path_mtu.bytes() + AROUND_PAYLOAD_BYTES > self.settings.link_mtu {
            self.peer = Peer::Plain;
            self.is_off = true;
        }
    }

    /// The number of blocks that fit into an acknowledge.
    pub fn max_blocks(&self) -> usize {
        (self.settings.link_mtu.saturating_sub(AROUND_BLOCKS_BYTES) / Sack::BLOCK_BYTES).min(Sack::MAX_BLOCKS)
    }

    /// Whether telemetry fits into an acknowledge of so many blocks.
    pub fn has_room_for_telemetry(&self, blocks: usize) -> bool {
        AROUND_BLOCKS_BYTES + blocks * Sack::BLOCK_BYTES + Telemetry::BYTES <= self.settings.link_mtu
    }

    /// Whether the peer has shown that it understands, or is assumed to.
    pub fn is_on(&self) -> bool {
        self.peer.understands()
    }

    /// The recovery towards this peer, from the position `next` on; `timeout` is the peer's silence that costs a retry.
    pub fn recovery(&self, next: u64, timeout: Option<Duration>) -> Box<dyn Recovery> {
        match self.is_on() {
            true => Box::new(self.selective(next, timeout)),
            false => self.settings.plain.0(next, timeout),
        }
    }

    /// The selective repeat for a peer that understands, with the same arguments as [`recovery`](Self::recovery).
    pub fn selective(&self, next: u64, timeout: Option<Duration>) -> Selective {
        Selective::new(next, self.settings.window, timeout)
    }

    /// How this peer gets acknowledges.
    pub fn acks(&self) -> Box<dyn AckPolicy> {
        match self.is_on() {
            true => Box::new(SelectiveAcks::default()),
            false => Box::new(CumulativeAcks),
        }
    }

    /// Whether the peer understands, or has offered to and is not known yet. Packets to it then keep to the rate:
    /// otherwise READ responses of a round trip would be queued on the first path. Answers to it make the offer.
    pub fn is_on_or_offered(&self) -> bool {
        match self.peer {
            Peer::Assumed | Peer::Known(_) => true,
            Peer::Unknown(_) => self.has_offered,
            Peer::Plain => false,
        }
    }

    /// The length of a packet as a recovery is told it: 0 when nobody asks what becomes of it.
    pub fn measured(&self, bytes: usize) -> usize {
        if self.settings.congestion == CongestionControl::Fixed { 0 } else { bytes }
    }

    /// Whether the peer is asked to report what arrives of answers to READs.
    pub fn wants_reports(&self) -> bool {
        self.peer.understands() && self.settings.congestion != CongestionControl::Fixed
    }

    /// Whether answers to READs are counted as in flight. A peer that has offered will report when it is known; until
    /// then it gets no more than a first window.
    pub fn measures_answers(&self) -> bool {
        self.is_on_or_offered() && self.settings.congestion != CongestionControl::Fixed
    }

    /// Whether the peer learns of congestion marks by CNPs, and we by its CNPs, which have no tag.
    pub fn uses_notifications(&self) -> bool {
        !self.peer.understands()
    }

    /// Whether there must be more than one path to the peer: the settings say so, or the peer uses several.
    pub fn wants_paths(&self) -> bool {
        let understands = self.peer.understands() || mutated!("paths-towards-peers-that-know-none");
        understands && (self.settings.paths > 1 || self.has_named_paths)
    }

    /// Distance in PSNs from the expected one at which requests are no longer kept; 0 to keep none. It is the window
    /// that the peer announced, the maximum if it is assumed to understand, and otherwise that of go-back-N.
    pub fn early_window(&self) -> u32 {
        match self.peer {
            Peer::Known(known) if !mutated!("announced-window-ignored", by "uroce --test strangers what_is_farther_ahead") => {
                known.window
            }
            Peer::Known(_) | Peer::Assumed => RecoverySettings::MAX_WINDOW,
            _ if self.is_off => 0,
            Peer::Unknown(_) | Peer::Plain => GoBackN::WINDOW as u32,
        }
    }

    /// Removes the tag of a packet, and checks whether the packet can be the peer's. `next` says the first PSN that the peer has
    /// not answered, for an answer, and that it has not requested, for a request.
    #[inline]
    pub fn admit(&mut self, packet: &mut Packet<'_>, next: impl FnOnce(bool) -> Psn) -> Result<Admitted, Refused> {
        if self.peer == Peer::Plain {
            return Ok(Admitted::default());
        }
        // The peer can know us before we know it: its trailers are looked for, trusted or not.
        let (is_believed, may_have_trailer) = (self.peer.understands(), packet.bth().extended());
        let tag = if may_have_trailer { packet.take_tag().ok_or(Refused::NoTag)? } else { 0 };
        let admitted = Admitted { has_tag: tag != 0, may_have_trailer, is_believed };
        let psn = packet.bth().psn();
        let is_right = if admitted.has_tag {
            tag == self.nonce || mutated!("any-tag-taken", by "uroce --test strangers what_has_another_tag")
        } else if mutated!("tag-not-needed", by "uroce --test strangers what_has_no_tag") {
            true
        } else {
            let is_answer = packet.bth().opcode().is_response();
            may_lack(if is_answer { &mut self.answers } else { &mut self.requests }, psn, next(is_answer))
        };
        if is_right { Ok(admitted) } else { Err(Refused::WrongTag) }
    }

    /// Whether no packet with our tag has arrived.
    pub fn misses_tag(&self) -> bool {
        self.answers == Tagged::None
    }

    /// Records that a packet with our tag arrived: what answers our requests from now on, which are `from_now`, will
    /// have one.
    pub fn tag_came(&mut self, from_now: Tagged) {
        learn(&mut self.answers, from_now);
    }

    /// Records that the peer sent a new request with a tag: all that follow it have one.
    pub fn new_request_has_tag(&mut self, psn: Psn) {
        learn(&mut self.requests, Tagged::From(psn));
    }

    /// Whether an offer says nothing new: peer and we know each other.
    pub fn is_acquainted(&self) -> bool {
        matches!(self.peer, Peer::Known(_)) && !self.misses_tag()
    }

    /// Takes whether a packet, which can be the peer's by its PSN, makes the offer. `is_asked`: it answers a request
    /// that made the offer. A hello can be owed then, for which `draw` gives a nonce.
    pub fn observe(&mut self, packet: &Packet<'_>, is_asked: bool, now: Instant, draw: impl FnOnce() -> u32) {
        if self.peer == Peer::Plain && !mutated!("offer-taken-although-unwanted") {
            return;
        }
        if packet.bth().offers() {
            self.has_offered = true;
            // A peer that knows us has received our hello; but its own hello, which reports that, can be lost.
            let is_unknown = !matches!(self.peer, Peer::Known(_))
                && !mutated!("lost-hello-not-asked-for", by "uroce --test strangers whoever_lost_the_hello");
            if is_unknown || self.answers == Tagged::None {
                self.owe_hello(now, draw);
            }
        } else if let Peer::Unknown(answers) = &mut self.peer
            && is_asked
        {
            *answers += 1;
            if *answers == PLAIN_AFTER {
                self.peer = Peer::Plain;
            }
        }
    }

    /// Takes a hello. With `brings_back`, its tag is our nonce, so its sender has seen what we send to the peer.
    /// `from_now` are our requests from now on. Returns whether this makes an unknown peer one that understands.
    pub fn take_hello(
        &mut self,
        hello: &Hello,
        brings_back: bool,
        from_now: Tagged,
        now: Instant,
        draw: impl FnOnce() -> u32,
    ) -> bool {
        if self.peer == Peer::Plain {
            return false;
        }
        self.has_offered = true;
        let Hello { nonce, window, takes_carried, takes_telemetry, tagged } = *hello;
        if !brings_back && !mutated!("hello-believed-at-once", by "uroce --test strangers a_hello_that_brings_nothing")
        {
            self.heard = nonce;
            self.owe_hello(now, draw);
            return false;
        }
        let was_unknown = matches!(self.peer, Peer::Unknown(_));
        if was_unknown || self.peer == Peer::Assumed {
            let takes_telemetry = takes_telemetry
                || mutated!("telemetry-asked-of-anybody", by "uroce --test telemetry a_peer_that_does_not_take");
            self.peer = Peer::Known(Known { nonce, window, takes_carried, takes_telemetry, tagged: from_now });
        }
        let is_the_same = matches!(self.peer, Peer::Known(known) if known.nonce == nonce);
        if tagged == Tagged::None || !is_the_same {
            self.owe_hello(now, draw);
            return was_unknown;
        }
        // The peer has learned that we know it, or will by our next packet.
        let is_news = self.answers == Tagged::None;
        self.tag_came(from_now);
        learn(&mut self.requests, tagged);
        if is_news {
            self.owe_hello(now, draw);
        }
        was_unknown
    }

    fn owe_hello(&mut self, now: Instant, draw: impl FnOnce() -> u32) {
        if self.nonce == 0 {
            self.nonce = draw().max(1);
        }
        let (tag, knows) = match self.peer {
            Peer::Known(known) => (known.nonce, true),
            _ => (self.heard, false),
        };
        let is_new = self.said.is_none_or(|(said, knew, until)| {
            let is_news = (said, knew) != (tag, knows)
                && !mutated!("news-wait-like-repetitions", by "uroce --test strangers two_that_offer_at_once");
            is_news || until <= now
        });
        if is_new {
            self.said = Some((tag, knows, now + HELLO_PAUSE));
            self.owed = Some(tag);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called, if requests wait for the peer to be known.
    pub fn deadline(&self) -> Option<Instant> {
        let waits = self.is_getting_acquainted() && self.repeats < HELLO_REPEATS;
        let (_, _, repeatable_at) = self.said.filter(|_| {
            waits && !mutated!("lost-hello-not-repeated", by "uroce --test strangers a_hello_that_is_not_answered")
        })?;
        Some(repeatable_at + HELLO_PAUSE * ((1 << self.repeats) - 1))
    }

    /// Makes a hello owed again that was not answered in time: it, or the answer, can be lost.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.repeats += 1;
            let nonce = self.nonce;
            self.owe_hello(now, || nonce);
        }
    }

    /// Whether the peer has sent its nonce, and is expected to bring ours back in a moment. Retransmissions can wait
    /// until then, since only what is lost is then sent.
    pub fn is_getting_acquainted(&self) -> bool {
        matches!(self.peer, Peer::Unknown(_) | Peer::Assumed) && self.heard != 0
    }

    /// Whether a hello is owed to the peer.
    pub fn owes_hello(&self) -> bool {
        self.owed.is_some()
    }

    /// Takes the hello that is owed, and its tag.
    pub fn poll_hello(&mut self) -> Option<(Hello, u32)> {
        let tag = self.owed.take()?;
        let tagged = match self.peer {
            Peer::Known(known) => known.tagged,
            _ => Tagged::None,
        };
        let (nonce, window) = (self.nonce, self.settings.window);
        Some((Hello { nonce, window, takes_carried: true, takes_telemetry: true, tagged }, tag))
    }

    /// The tag of packets to a peer that understands: its nonce, 0 while that is not known.
    pub fn tag(&self) -> Option<u32> {
        match self.peer {
            Peer::Known(known) => Some(known.nonce),
            Peer::Assumed => Some(0),
            Peer::Unknown(_) | Peer::Plain => None,
        }
    }

    /// Whether requests to the peer may carry acknowledges: it takes them, and knows us, so that it believes them.
    pub fn may_carry(&self) -> bool {
        let is_known = self.requests != Tagged::None
            || mutated!("carried-to-a-peer-that-does-not-know-us", by "uroce --test carried a_peer_that_does_not_know_us");
        is_known && matches!(self.peer, Peer::Known(known) if known.takes_carried)
    }

    /// Whether requests ask for telemetry: it is of use, and packets with room for it fit into the link's.
    #[inline]
    pub fn asks_telemetry(&self, path_mtu: PathMtu) -> bool {
        let most = AROUND_PAYLOAD_BYTES + Telemetry::BYTES;
        self.settings.congestion.needs_telemetry()
            && matches!(self.peer, Peer::Known(known) if known.takes_telemetry)
            && path_mtu.bytes() + most <= self.settings.link_mtu
    }

    /// Appends the trailer of a request; nothing for a peer that does not understand it.
    #[inline]
    pub fn put_trailer<const N: usize>(&self, said: &RequestTrailer, out: &mut ArrayVec<u8, N>) {
        if self.peer.understands() {
            said.put(out);
        }
    }

    /// Whether a request offers the extension, after this many timeouts in a row.
    pub fn offer(&self, timeouts: u32) -> bool {
        match self.peer {
            Peer::Assumed | Peer::Known(_) => true,
            Peer::Unknown(_) => timeouts.is_multiple_of(2),
            Peer::Plain => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_that_is_never_answered_is_repeated_seven_times() {
        let mut extension = Extension::new(Service::Rc, RecoverySettings::default());
        let hello = Hello { nonce: 7, window: 128, takes_carried: true, takes_telemetry: false, tagged: Tagged::None };
        let mut now = Instant::ZERO;
        assert!(!extension.take_hello(&hello, false, Tagged::All, now, || 9));
        let mut after_ms = Vec::new();
        while let Some(at) = extension.deadline() {
            assert_eq!(extension.poll_hello().map(|(hello, tag)| (hello.nonce, tag)), Some((9, 7)));
            extension.handle_timeout(Instant::from_ns(at.as_ns() - 1));
            assert!(!extension.owes_hello(), "not before its time");
            after_ms.push((at - now).as_millis());
            now = at;
            extension.handle_timeout(now);
        }
        assert_eq!(after_ms, [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn a_hello_is_not_repeated_once_the_peer_is_known() {
        let mut extension = Extension::new(Service::Rc, RecoverySettings::default());
        let hello = Hello { nonce: 7, window: 128, takes_carried: true, takes_telemetry: false, tagged: Tagged::None };
        extension.take_hello(&hello, false, Tagged::All, Instant::ZERO, || 9);
        assert!(extension.deadline().is_some());
        assert!(extension.take_hello(&hello, true, Tagged::All, Instant::ZERO, || 9));
        assert_eq!(extension.deadline(), None);
    }
}
