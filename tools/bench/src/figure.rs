//! What is measured: the table of figures, what a run of one gives, and how the results are shown.

use serde_json::{Value, json};
use uroce::verbs::UdpOffload;

use crate::program::Manner;
use crate::rig::{Crowd, JUMBO_MTU, Rig};
use crate::{Failure, bare, iperf, perftest, sockets, threads, verbs};

/// One line of the results.
pub struct Figure {
    /// Its name; scripts know it.
    pub name: String,
    unit: Unit,
    /// The figure it is a ratio to.
    pub of: Option<String>,
    /// The bare pipe, where `of` is another.
    pub bare: Option<String>,
    work: Box<dyn Work>,
}

/// What is done on the cable for so many seconds.
trait Work: Fn(&Rig, f64) -> Result<Counts, Failure> + 'static {}

impl<T: Fn(&Rig, f64) -> Result<Counts, Failure> + 'static> Work for T {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Payload bits a second.
    BitsPerSecond,
    /// Median round trip.
    Microseconds,
}

/// What was counted while a figure was taken.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Payload bytes.
    pub bytes: u64,
    /// Packets with payload.
    pub packets: u64,
    /// How long it took.
    pub seconds: f64,
    /// Of round trips, all of them.
    pub round_trips_ns: Vec<u32>,
}

impl Counts {
    /// Together with what another thread counted at the same time.
    pub fn and(self, other: &Counts) -> Counts {
        Counts {
            bytes: self.bytes + other.bytes,
            packets: self.packets + other.packets,
            seconds: self.seconds.max(other.seconds),
            ..self
        }
    }
}

/// One run of a figure.
#[derive(Clone, Debug)]
pub struct Sample {
    /// In the figure's unit.
    pub value: f64,
    bytes: u64,
    packets: u64,
    seconds: f64,
    p99: Option<f64>,
}

/// All runs of a figure, by round; `None` where it could not be taken.
#[derive(Clone, Debug, Default)]
pub struct Series {
    samples: Vec<Option<Sample>>,
}

const PATH_MTUS: [usize; 3] = [1024, 2048, 4096];

/// Lengths of bulk messages.
const MESSAGES: [(&str, usize); 2] = [("64k", verbs::BULK_BYTES), ("1m", 1 << 20)];

/// Runs that leave as one message, copied and with a CRC as the stack does.
const GSO_COPY_CRC: &str = "udp-gso-copy-crc-mtu9000";

const VERBS: [(&str, verbs::Bulk); 3] =
    [("write", verbs::Bulk::Write), ("read", verbs::Bulk::Read), ("send", verbs::Bulk::Send)];

/// Every figure there is, each after those it refers to.
pub fn all() -> Vec<Figure> {
    let mut figures = Vec::new();
    for mtu in PATH_MTUS {
        let [pipe, copy] = [format!("pipe-mtu{mtu}"), format!("pipe-copy-crc-mtu{mtu}")];
        figures.push(Figure::bits(&pipe, move |rig, s| bare::pipe(rig, mtu, false, s)));
        figures.push(Figure::bits(&copy, move |rig, s| bare::pipe(rig, mtu, true, s)).over(&pipe));
        for (length, bytes) in MESSAGES {
            for (verb, bulk) in VERBS {
                let work = move |rig: &Rig, s| verbs::bulk(Manner::exclusive(rig), bulk, bytes, mtu, s);
                let figure = Figure::bits(&format!("{verb}-{length}-mtu{mtu}-xdp"), work);
                figures.push(figure.over(&copy).over_bare(&pipe));
            }
        }
        let work = move |rig: &Rig, s| sockets::udp_bulk(rig, mtu, false, s);
        figures.push(Figure::bits(&format!("udp-mtu{mtu}"), work).over(&pipe));
    }
    let shared = Figure::bits("write-64k-mtu4096-xdp-shared", |rig, s| write(Manner::shared(rig), s));
    figures.push(shared.over("write-64k-mtu4096-xdp"));
    figures.extend(by_sockets());
    figures.extend(by_udp());
    figures.extend(round_trips());
    figures.extend(threaded());
    figures.extend(unmodified());
    figures.extend(crowded());
    figures
}

/// WRITEs of 64 KiB at path MTU 4096.
fn write(manner: Manner<'_>, seconds: f64) -> Result<Counts, Failure> {
    verbs::bulk(manner, verbs::Bulk::Write, verbs::BULK_BYTES, 4096, seconds)
}

/// What the kernel's stack does with long runs of packets.
fn by_sockets() -> [Figure; 6] {
    let iperf_jumbo = |rig: &Rig, s| rig.with_mtu(JUMBO_MTU, || iperf::tcp(rig, s));
    let gso_jumbo = |rig: &Rig, s| rig.with_mtu(JUMBO_MTU, || sockets::udp_copy_crc(rig, 8192, s));
    [
        Figure::bits("udp-gso-mtu1024", |rig, s| sockets::udp_bulk(rig, 1024, true, s)).over("pipe-mtu1024"),
        Figure::bits("tcp-bulk", sockets::tcp_bulk).over("pipe-mtu4096"),
        Figure::bits("iperf3-tcp", iperf::tcp).over("tcp-bulk"),
        Figure::bits("iperf3-tcp-mtu9000", iperf_jumbo).over("tcp-bulk"),
        Figure::bits(GSO_COPY_CRC, gso_jumbo).over("tcp-bulk"),
        Figure::bits("udp-gso-copy-crc-mtu4096", |rig, s| sockets::udp_copy_crc(rig, 4096, s)).over(GSO_COPY_CRC),
    ]
}

/// The stack over UDP sockets, with the kernel's offloads and without.
fn by_udp() -> Vec<Figure> {
    let mut figures = Vec::new();
    for (suffix, is_v6) in [("", true), ("-v4", false)] {
        let runs = format!("write-64k-mtu4096-udp{suffix}");
        for (name, offload, of) in [
            (runs.clone(), UdpOffload::All, GSO_COPY_CRC),
            (format!("{runs}-gso"), UdpOffload::Gso, runs.as_str()),
            (format!("{runs}-gro"), UdpOffload::Gro, runs.as_str()),
            (format!("{runs}-none"), UdpOffload::None, runs.as_str()),
        ] {
            figures.push(Figure::bits(&name, move |rig, s| write(Manner::udp(rig, offload, is_v6), s)).over(of));
        }
    }
    figures
}

/// How long 64 bytes take there and back.
fn round_trips() -> [Figure; 6] {
    let exclusive = |rig: &Rig, s| verbs::write_round_trips(Manner::exclusive(rig), s);
    let shared = |rig: &Rig, s| verbs::write_round_trips(Manner::shared(rig), s);
    [
        Figure::micros("pipe-rtt", bare::round_trips),
        Figure::micros("write-64b-rtt-xdp", exclusive).over("pipe-rtt"),
        Figure::micros("write-64b-rtt-xdp-shared", shared).over("write-64b-rtt-xdp"),
        Figure::micros("send-64b-rtt-xdp", verbs::send_round_trips).over("pipe-rtt"),
        Figure::micros("udp-rtt", sockets::udp_round_trips).over("pipe-rtt"),
        Figure::micros("tcp-rtt", |rig, s| sockets::tcp_round_trips(rig, false, s)).over("pipe-rtt"),
    ]
}

/// Threads of one program, beside one thread alone.
fn threaded() -> Vec<Figure> {
    let figure = |(length, bytes), threads| {
        let name = |threads| format!("write-{length}-{threads}-threads-xdp");
        let figure = Figure::bits(&name(threads), move |rig, s| threads::writes(rig, threads, bytes, s));
        if threads > 1 { figure.over(&name(1)) } else { figure }
    };
    let lengths = [("64b", 64), ("64k", verbs::BULK_BYTES)];
    lengths.into_iter().flat_map(|length| [1, 4, 16, 64].map(|threads| figure(length, threads))).collect()
}

/// Unmodified programs, beside the same without them, and their latency beside the bare pipe's.
fn unmodified() -> Vec<Figure> {
    let bulk = |(verb, _)| {
        let work = move |rig: &Rig, s| perftest::bulk(rig, &format!("ib_{verb}_bw"), verbs::BULK_BYTES, 4096, s);
        let figure = Figure::bits(&format!("ib_{verb}_bw-64k-mtu4096"), work);
        figure.over(&format!("{verb}-64k-mtu4096-xdp")).over_bare("pipe-mtu4096")
    };
    let latency = |program: &'static str| {
        Figure::micros(&format!("{program}-64b"), move |rig, _| perftest::round_trips(rig, program)).over("pipe-rtt")
    };
    VERBS.map(bulk).into_iter().chain(["ib_send_lat", "ib_write_lat"].map(latency)).collect()
}

/// What is left where others use the processors: TCP sleeps in the kernel, the stack polls.
fn crowded() -> [Figure; 6] {
    let tcp = |rig: &Rig, s| sockets::tcp_round_trips(rig, true, s);
    let send = verbs::send_round_trips;
    let write = |rig: &Rig, s| write(Manner::shared(rig), s);
    [
        Figure::micros("tcp-rtt-one-core", beside(Crowd::EachOther, tcp)),
        Figure::micros("send-64b-rtt-xdp-one-core", beside(Crowd::EachOther, send)).over("tcp-rtt-one-core"),
        Figure::micros("tcp-rtt-busy", beside(Crowd::BusyLoops, tcp)),
        Figure::micros("send-64b-rtt-xdp-busy", beside(Crowd::BusyLoops, send)).over("tcp-rtt-busy"),
        Figure::bits("tcp-bulk-busy", beside(Crowd::BusyLoops, sockets::tcp_bulk)),
        Figure::bits("write-64k-mtu4096-xdp-busy", beside(Crowd::BusyLoops, write)).over("tcp-bulk-busy"),
    ]
}

/// The same work in a crowd.
fn beside(crowd: Crowd, work: fn(&Rig, f64) -> Result<Counts, Failure>) -> impl Work {
    move |rig, s| rig.beside(crowd, || work(rig, s))
}

impl Figure {
    fn new(name: &str, unit: Unit, work: Box<dyn Work>) -> Figure {
        Figure { name: name.to_owned(), unit, of: None, bare: None, work }
    }

    fn bits(name: &str, work: impl Work) -> Figure {
        Figure::new(name, Unit::BitsPerSecond, Box::new(work))
    }

    fn micros(name: &str, work: impl Work) -> Figure {
        Figure::new(name, Unit::Microseconds, Box::new(work))
    }

    /// The same as a ratio to that figure.
    fn over(self, name: &str) -> Figure {
        Figure { of: Some(name.to_owned()), ..self }
    }

    /// The same as a ratio to that bare pipe, too.
    fn over_bare(self, name: &str) -> Figure {
        Figure { bare: Some(name.to_owned()), ..self }
    }

    /// Runs it once.
    ///
    /// # Errors
    /// What went wrong on either side.
    pub fn take(&self, rig: &Rig, seconds: f64) -> Result<Sample, Failure> {
        let Counts { bytes, packets, seconds, mut round_trips_ns } = (self.work)(rig, seconds)?;
        if packets == 0 || seconds <= 0.0 {
            return Err("nothing arrived".into());
        }
        let mut percentile = |p: usize| {
            let at = (round_trips_ns.len() * p / 100).min(round_trips_ns.len() - 1);
            f64::from(*round_trips_ns.select_nth_unstable(at).1) / 1e3
        };
        let (value, p99) = match self.unit {
            Unit::BitsPerSecond => (bytes as f64 * 8.0 / seconds, None),
            Unit::Microseconds => (percentile(50), Some(percentile(99))),
        };
        Ok(Sample { value, bytes, packets, seconds, p99 })
    }

    /// A value of it, for people.
    pub fn show(&self, value: f64) -> String {
        match self.unit {
            Unit::BitsPerSecond => format!("{:.2} Gb/s", value / 1e9),
            Unit::Microseconds => format!("{value:.1} µs"),
        }
    }

    fn unit(&self) -> &'static str {
        match self.unit {
            Unit::BitsPerSecond => "bit/s",
            Unit::Microseconds => "us",
        }
    }
}

impl Series {
    /// Adds the next round's.
    pub fn push(&mut self, sample: Option<Sample>) {
        self.samples.push(sample);
    }

    /// Whether it was never taken.
    pub fn is_empty(&self) -> bool {
        self.taken().next().is_none()
    }

    fn taken(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().flatten()
    }

    fn values(&self) -> Vec<f64> {
        self.taken().map(|sample| sample.value).collect()
    }

    /// The median of the ratios within each round: what slows the machine down for a while slows both. `None` when both were
    /// taken in no round.
    fn ratio(&self, to: &Series) -> Option<f64> {
        let rounds = self.samples.iter().zip(&to.samples);
        let ratios: Vec<f64> = rounds.filter_map(|(a, b)| Some(a.as_ref()?.value / b.as_ref()?.value)).collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    /// The median over the rounds of something of each.
    fn of(&self, what: impl Fn(&Sample) -> f64) -> f64 {
        median(self.taken().map(what).collect())
    }
}

/// The middle value; of an even number, the mean of the two middle ones. Zero of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

fn ratio_to(name: Option<&String>, figures: &[Figure], all: &[Series], own: &Series) -> Option<f64> {
    let index = figures.iter().position(|figure| Some(&figure.name) == name)?;
    own.ratio(&all[index])
}

/// The figures that were taken, and their rounds.
fn taken<'a>(figures: &'a [Figure], all: &'a [Series]) -> impl Iterator<Item = (&'a Figure, &'a Series)> {
    figures.iter().zip(all).filter(|(_, series)| !series.is_empty())
}

/// An object a figure that was taken.
pub fn json_lines(figures: &[Figure], all: &[Series]) -> Vec<Value> {
    let line = |(figure, series): (&Figure, &Series)| {
        let packets_per_s = series.of(|s| s.packets as f64 / s.seconds);
        let mut object = json!({
            "name": figure.name,
            "value": series.of(|s| s.value),
            "unit": figure.unit(),
            "ratio": ratio_to(figure.of.as_ref(), figures, all, series),
            "of": figure.of,
            "bytes": series.taken().map(|s| s.bytes).sum::<u64>(),
            "packets_per_s": packets_per_s,
            "ns_per_packet": 1e9 / packets_per_s,
            "runs": series.values(),
        });
        if figure.bare.is_some() {
            object["ratio_bare"] = json!(ratio_to(figure.bare.as_ref(), figures, all, series));
        }
        if figure.unit == Unit::Microseconds {
            object["p99"] = json!(series.of(|s| s.p99.unwrap_or_default()));
        }
        object
    };
    taken(figures, all).map(line).collect()
}

/// The results for people.
pub fn table(figures: &[Figure], all: &[Series]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_header(["figure", "median", "least … most", "packets/s", "ns/packet", "ratio", "of", "to the bare pipe"]);
    for column in [1, 3, 4, 5, 7] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    for (figure, series) in taken(figures, all) {
        let values = series.values();
        let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(l, m), v| (l.min(*v), m.max(*v)));
        let packets_per_s = series.of(|s| s.packets as f64 / s.seconds);
        let ratio = |name: Option<&String>| {
            ratio_to(name, figures, all, series).map_or(String::new(), |ratio| format!("{ratio:.2}"))
        };
        table.add_row([
            figure.name.clone(),
            figure.show(series.of(|s| s.value)),
            format!("{} … {}", figure.show(least), figure.show(most)),
            format!("{packets_per_s:.0}"),
            format!("{:.0}", 1e9 / packets_per_s),
            ratio(figure.of.as_ref()),
            figure.of.clone().unwrap_or_default(),
            ratio(figure.bare.as_ref()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds() {
        let series = |values: &[f64]| Series {
            samples: values
                .iter()
                .map(|&value| Sample { value, bytes: 0, packets: 1, seconds: 1.0, p99: None })
                .map(Some)
                .collect(),
        };
        // The machine was three times slower in the second round.
        assert_eq!(series(&[5.0, 1.0, 6.0]).ratio(&series(&[10.0, 2.0, 10.0])), Some(0.5));
        let mut lacks_one = series(&[5.0]);
        lacks_one.push(None);
        assert_eq!(lacks_one.ratio(&series(&[10.0, 2.0])), Some(0.5));
        let lacks_the_other = Series { samples: lacks_one.samples.iter().rev().cloned().collect() };
        assert_eq!(lacks_one.ratio(&lacks_the_other), None);
        assert!(!lacks_one.is_empty() && Series::default().is_empty());
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }

    #[test]
    fn names_are_unique_and_refer_to_earlier_ones() {
        let figures = all();
        for (index, figure) in figures.iter().enumerate() {
            let earlier = |name: &String| figures[..index].iter().any(|other| other.name == *name);
            assert!(!earlier(&figure.name), "{} twice", figure.name);
            assert!(figure.of.iter().chain(&figure.bare).all(earlier), "{} refers to nothing", figure.name);
        }
    }
}
