use std::path::PathBuf;
use std::time::Duration;

use uroce::verbs::{Class, Context, PathMtu, Service};

use super::extent::{Extent, Span};
use super::test::{Test, Verb};
use super::{Arguments, AtomicType, Connection};
use crate::Failure;
use crate::terms::Terms;

/// The largest message of `-a`: 2^23 bytes, as perftest has it.
const LARGEST_OF_ALL: usize = 1 << 23;

/// Messages longer than this are reported one by one unless `-Q` says otherwise, as perftest has it: a completion for a
/// hundred of them would make the peak meaningless.
const MODERATED_BYTES: usize = 8192;

/// READs and atomics outstanding by default: what ConnectX takes. rxe takes 128.
const OUTSTANDING: u8 = 16;

/// What the command line asks for, with perftest's defaults, and what both ends agreed on.
#[derive(Clone, Debug)]
pub struct Settings {
    pub test: Test,
    pub service: Service,
    pub is_client: bool,
    pub bidirectional: bool,
    /// Message sizes in bytes, one after the other.
    pub sizes: Vec<usize>,
    /// `-a`: both ends go through all sizes, with more words between them.
    pub all_sizes: bool,
    pub extent: Extent,
    pub queue_pairs: usize,
    /// Send requests outstanding on a queue pair.
    pub send_depth: usize,
    /// Receive requests posted on a queue pair, or in the shared receive queue.
    pub receive_depth: usize,
    /// Whether one queue has the receive requests of all queue pairs.
    pub use_srq: bool,
    /// A completion is asked for once in so many requests.
    pub moderation: u64,
    /// READs and atomics outstanding on a queue pair, at each end.
    pub outstanding: u8,
    pub atomic: AtomicType,
    pub events: bool,
    pub no_peak: bool,
    pub gigabits: bool,
    /// What each end found, with `-b`.
    pub report_both: bool,
    pub json: bool,
    /// How single latencies are printed.
    pub listing: Listing,
    pub histogram: bool,
    pub svg: Option<PathBuf>,
    /// Where results go as JSON, besides.
    pub out_json: Option<PathBuf>,
    /// The least average, in the unit of the report, and the least rate in millions of messages a second.
    pub least: [Option<f64>; 2],
    pub timeout: u8,
    pub traffic_class: u8,
    pub patience: Duration,
    /// Whether `-s` was given: datagrams that are too long are then refused, not cut.
    size_given: bool,
}

/// How single latencies are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    Not,
    Sorted,
    /// In the order of the messages.
    Unsorted,
}

impl Settings {
    /// Settles what the command line leaves open.
    ///
    /// # Errors
    /// What cannot go together, in words.
    pub fn new(arguments: &Arguments) -> Result<Settings, String> {
        let Arguments { test, all, bidirectional, events, use_srq, .. } = *arguments;
        let (name, verb, is_latency) = (test.name(), test.verb(), test.is_latency());
        let refuse = |bad: bool, text: &str| if bad { Err(format!("{name}: {text}")) } else { Ok(()) };
        let service = match arguments.connection {
            Connection::Rc => Service::Rc,
            Connection::Uc => Service::Uc,
            Connection::Ud => Service::Ud,
        };
        let span = arguments.span().map_err(|text| format!("{name}: {text}"))?;
        refuse(service == Service::Ud && verb != Verb::Send, "datagrams (-c UD) carry SEND only")?;
        refuse(service == Service::Uc && verb == Verb::Read, "READ needs a reliable connection: omit -c UC")?;
        refuse(service == Service::Uc && verb == Verb::Atomic, "atomics need a reliable connection: omit -c UC")?;
        refuse(is_latency && bidirectional, "-b is for bandwidth only")?;
        refuse(is_latency && arguments.queue_pairs > 1, "-q is for bandwidth only")?;
        refuse(is_latency && arguments.moderation.is_some(), "-Q is for bandwidth only")?;
        refuse(verb == Verb::Write && events, "-e: the receiver of a WRITE has no completions to wait for")?;
        refuse(
            verb != Verb::Send && use_srq,
            "--use-srq is only for SEND: other operations do not take receive requests",
        )?;
        refuse(verb == Verb::Atomic && all, "-a: an atomic has 8 bytes")?;
        refuse(verb == Verb::Atomic && arguments.size.is_some_and(|size| size != 8), "-s: an atomic has 8 bytes")?;
        refuse(span.is_some() && arguments.iterations.is_some(), "use either -n or -D")?;
        refuse(span.is_some() && all, "-a cannot be combined with -D")?;
        refuse(span.is_some() && events, "-e cannot be combined with -D")?;

        arguments.refuse_output(span.is_some()).map_err(|text| format!("{name}: {text}"))?;

        let default_size = match (verb, is_latency) {
            (Verb::Atomic, _) => 8,
            (_, true) => 2,
            (_, false) => 65536,
        };
        let sizes = match all {
            true => (1..).map(|power| 1 << power).take_while(|size| *size <= LARGEST_OF_ALL).collect(),
            false => vec![arguments.size.map_or(default_size, |size| size as usize)],
        };
        let default_iterations = if test == Test::WriteBw { 5000 } else { 1000 };
        let iterations = arguments.iterations.unwrap_or(default_iterations);
        let extent = span.map_or(Extent::Iterations(iterations), Extent::Duration);
        let depth = |wanted: u32| usize::try_from(extent.iterations().min(wanted.into())).expect("at most a u32");
        let send_depth = depth(arguments.send_depth.unwrap_or(if is_latency { 1 } else { 128 }));
        // Nobody sends unreliable messages again: there must be a receive request for each.
        let default_receive_depth = if service == Service::Rc { 512 } else { 16000 };
        let receive_depth =
            if verb == Verb::Send { depth(arguments.receive_depth.unwrap_or(default_receive_depth)) } else { 1 };
        let queue_pairs = arguments.queue_pairs as usize;
        refuse(
            use_srq && queue_pairs > receive_depth,
            "--use-srq: -r and -n must be at least the number of queue pairs",
        )?;
        let few = !all && service != Service::Ud && !events && sizes[0] > MODERATED_BYTES;
        let moderation = arguments.moderation.unwrap_or(if few { 1 } else { 100 });
        let reads = matches!(verb, Verb::Read | Verb::Atomic);
        Ok(Settings {
            test,
            service,
            is_client: arguments.host.is_some(),
            bidirectional,
            sizes,
            all_sizes: all,
            extent,
            queue_pairs,
            send_depth,
            receive_depth,
            use_srq,
            moderation: u64::from(moderation).min(send_depth as u64),
            outstanding: if reads { arguments.outstanding.unwrap_or(OUTSTANDING) } else { 1 },
            atomic: arguments.atomic,
            events,
            no_peak: arguments.no_peak,
            gigabits: arguments.gigabits,
            report_both: arguments.report_both,
            json: arguments.json,
            listing: match (arguments.unsorted, arguments.samples) {
                (true, _) => Listing::Unsorted,
                (false, true) => Listing::Sorted,
                (false, false) => Listing::Not,
            },
            histogram: arguments.histogram,
            svg: arguments.svg.clone(),
            out_json: arguments.out_json.then(|| arguments.out_json_file.clone()),
            least: [arguments.least_bandwidth, arguments.least_message_rate],
            timeout: arguments.timeout,
            traffic_class: Class::traffic_class(arguments.traffic_class, arguments.service_level),
            patience: arguments.patience,
            size_given: arguments.size.is_some(),
        })
    }

    /// What a peer that is uroce must be given, too.
    pub fn terms(&self) -> Terms {
        let Settings { test, service, bidirectional, queue_pairs, all_sizes, .. } = self;
        let size = if *all_sizes { "of -a".to_owned() } else { self.largest().to_string() };
        let terms = Terms::new(format_args!("perf {}", test.name())).with("-s", size);
        let terms = match self.extent {
            Extent::Iterations(count) => terms.with("-n", count),
            Extent::Duration(span) => terms.with("-D", span.total.as_secs_f64()),
        };
        let service = format!("{service:?}").to_uppercase();
        let directions = if *bidirectional { "is given" } else { "is not given" };
        terms.with("-q", queue_pairs).with("-c", service).with("-b", directions)
    }

    /// Datagrams fit into one packet: sizes that were not asked for are cut.
    ///
    /// # Errors
    /// When a size was asked for that is too large for the MTU that both ends agreed on.
    pub fn fit_datagrams(&mut self, context: &Context, mtu: PathMtu) -> Result<(), Failure> {
        let limit = mtu.bytes();
        if self.service != Service::Ud || self.largest() <= limit {
            return Ok(());
        }
        if self.size_given && !self.all_sizes {
            let (size, device) = (self.largest(), &context.device().name);
            return Err(format!(
                "a datagram of {size} bytes does not fit into the path MTU of {device} and its peer, {limit}: use -s \
                 {limit} or less"
            )
            .into());
        }
        eprintln!("uroce: datagrams are limited to the path MTU: {limit} bytes");
        match self.all_sizes {
            true => self.sizes.retain(|size| *size <= limit),
            false => self.sizes = vec![limit],
        }
        Ok(())
    }

    /// How long a queue pair waits for an acknowledge (IBTA 9.9.2.1.3); none is waited for with `-u 0`.
    pub fn ack_timeout(&self) -> Duration {
        if self.timeout == 0 { Duration::ZERO } else { Duration::from_nanos(4096 << self.timeout) }
    }

    /// The largest message in bytes.
    pub fn largest(&self) -> usize {
        self.sizes.last().copied().unwrap_or_default()
    }

    /// What a test posts.
    pub fn verb(&self) -> Verb {
        self.test.verb()
    }

    /// Whether we post the requests that are measured: else we only serve them.
    pub fn sends(&self) -> bool {
        self.is_client || self.bidirectional || matches!(self.test, Test::SendLat | Test::WriteLat)
    }

    /// Receive requests that are posted for each queue pair before the test: its part of a shared queue, or all it may have.
    pub fn receives_a_queue_pair(&self) -> usize {
        if self.use_srq { self.receive_depth / self.queue_pairs } else { self.receive_depth }
    }

    /// Whether we post receive requests.
    pub fn receives(&self) -> bool {
        self.verb() == Verb::Send && (!self.is_client || self.bidirectional || self.test.is_latency())
    }
}

impl Arguments {
    /// The time of `-D`, and what of it counts.
    fn span(&self) -> Result<Option<Span>, String> {
        let Some(total) = self.duration else {
            return match (self.margin, self.infinitely) {
                (Some(_), _) => Err("-f is for -D only".to_owned()),
                (None, true) => Err("--run_infinitely prints a result for each -D: give one".to_owned()),
                (None, false) => Ok(None),
            };
        };
        let margin = self.margin.unwrap_or(total / 4);
        if 2 * margin >= total {
            let (margin, total) = (margin.as_secs_f64(), total.as_secs_f64());
            return Err(format!("-f {margin} at each end leaves nothing of -D {total}: use less than half of it"));
        }
        if self.infinitely && self.bidirectional {
            return Err("--run_infinitely is for one direction only: omit -b".to_owned());
        }
        Ok(Some(Span { total, margin, repeats: self.infinitely }))
    }

    /// Refuses what is asked of the report and is not there.
    fn refuse_output(&self, by_time: bool) -> Result<(), String> {
        let (is_latency, asks_for) = (self.test.is_latency(), self.samples || self.unsorted || self.histogram);
        let asks_for_limit = self.least_bandwidth.is_some() || self.least_message_rate.is_some();
        match () {
            () if !is_latency && (asks_for || self.svg.is_some()) => {
                Err("-H, -U, --histogram and --svg are for latency only".to_owned())
            }
            () if by_time && (asks_for || self.svg.is_some()) => {
                Err("-D only counts: use -n with -H, -U, --histogram and --svg".to_owned())
            }
            () if is_latency && (asks_for_limit || self.infinitely) => {
                Err("-w, -y and --run_infinitely are for bandwidth only".to_owned())
            }
            () if self.report_both && !self.bidirectional => Err("--report-both is for -b only".to_owned()),
            () if self.report_both && by_time && self.test == Test::SendBw => {
                Err("--report-both: with -D each end of send-bw counts both directions as one; use -n".to_owned())
            }
            () if self.all && self.svg.is_some() => Err("--svg draws one size: omit -a".to_owned()),
            () => Ok(()),
        }
    }
}
