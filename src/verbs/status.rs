//! What a running program tells of itself: a page of counters that others can read.
//!
//! The page is 8 KiB, in the byte order of the machine:
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 7 | `uroce-01` |
//! | 8 to 11 | the number of the process |
//! | 12 to 15 | the number of entries |
//! | 16 to 23 | when they were written, in nanoseconds of Unix time |
//! | 24 to 63 | zero |
//! | from 64, 48 each | an entry: a counter's name in 40 bytes, filled up with zeros, and its value in 8 |
//!
//! Its writer stores eight bytes at once, so each value is one that the counter had.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};

use crate::engine::thread;
use crate::time::Instant;

use super::Context;

/// Length of the page in bytes.
pub const STATUS_BYTES: usize = 8192;

const MAGIC: &[u8; 8] = b"uroce-01";
const HEADER_BYTES: usize = 64;
const NAME_BYTES: usize = 40;
const ENTRY_BYTES: usize = NAME_BYTES + 8;

/// The page of a process with these counters. Those that find no room are left out.
pub fn status_page(process: u32, now: Instant, counters: &[(&'static str, u64)]) -> Box<[u8; STATUS_BYTES]> {
    let mut page = Box::new([0; STATUS_BYTES]);
    let (header, entries) = page.split_at_mut(HEADER_BYTES);
    let mut count: u32 = 0;
    for (entry, (name, value)) in entries.chunks_exact_mut(ENTRY_BYTES).zip(counters) {
        let len = name.len().min(NAME_BYTES);
        entry[..len].copy_from_slice(&name.as_bytes()[..len]);
        entry[NAME_BYTES..].copy_from_slice(&value.to_ne_bytes());
        count += 1;
    }
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&process.to_ne_bytes());
    header[12..16].copy_from_slice(&count.to_ne_bytes());
    header[16..24].copy_from_slice(&now.as_ns().to_ne_bytes());
    page
}

/// The counters of a page, by name; none when it is not one, or not written yet.
pub fn status_counters(page: &[u8]) -> impl Iterator<Item = (&str, u64)> {
    let (header, entries) = page.split_at(page.len().min(HEADER_BYTES));
    let is_page = header.len() == HEADER_BYTES && header.starts_with(MAGIC);
    let count = if is_page { u32::from_ne_bytes([header[12], header[13], header[14], header[15]]) } else { 0 };
    entries.chunks_exact(ENTRY_BYTES).take(count as usize).filter_map(|entry| {
        let (name, value) = entry.split_at(NAME_BYTES);
        let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
        Some((name, u64::from_ne_bytes(value.try_into().ok()?)))
    })
}

/// A file that kernels have in a port's folder in sysfs, with a number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCounter {
    /// Its folder below the port's: `hw_counters` has rxe's names and mlx5's, `counters` those of all drivers.
    pub folder: &'static str,
    /// The name of the file.
    pub name: &'static str,
    /// The counters of ours that add up to it. None: it is always 0.
    pub of: &'static [&'static str],
    /// What the sum is divided by.
    pub unit: u64,
}

impl PortCounter {
    /// All of them (drivers/infiniband/sw/rxe/rxe_hw_counters.c and core/sysfs.c of Linux 6.1), and those of congestion
    /// notifications, which rxe has not, by mlx5's names (hw/mlx5/counters.c).
    pub const ALL: &'static [PortCounter] = &[
        hardware("sent_pkts", &["sent_pkts"]),
        hardware("rcvd_pkts", &["rcvd_pkts"]),
        hardware("duplicate_request", &["duplicate_request"]),
        hardware("out_of_seq_request", &["out_of_seq_request"]),
        hardware("rcvd_rnr_err", &["rcvd_rnr_err"]),
        hardware("send_rnr_err", &["send_rnr_err"]),
        hardware("rcvd_seq_err", &["rcvd_seq_err"]),
        hardware("ack_deferred", &[]),
        hardware("retry_exceeded_err", &["retry_exceeded_err"]),
        hardware("retry_rnr_exceeded_err", &["retry_rnr_exceeded_err"]),
        hardware("completer_retry_err", &["completer_retry"]),
        hardware("send_err", &["send_err"]),
        hardware("link_downed", &[]),
        hardware("rdma_sends", &["rdma_sends"]),
        hardware("rdma_recvs", &["rdma_recvs"]),
        hardware("np_cnp_sent", &["np_cnp_sent"]),
        hardware("np_ecn_marked_roce_packets", &["np_ecn_marked_roce_packets"]),
        hardware("rp_cnp_handled", &["rp_cnp_handled"]),
        hardware("rp_cnp_ignored", &["rp_cnp_ignored"]),
        port("port_xmit_data", &["tx_bytes"], DATA_UNIT),
        port("port_rcv_data", &["rx_bytes"], DATA_UNIT),
        port("port_xmit_packets", &["sent_pkts"], 1),
        port("port_rcv_packets", &["rcvd_pkts"], 1),
        port("port_rcv_errors", &["malformed", "bad_icrc", "bad_ip_checksum"], 1),
        port("port_xmit_discards", &["tx_errors", "tx_no_neighbour"], 1),
        port("symbol_error", &[], 1),
        port("link_error_recovery", &[], 1),
        port("link_downed", &[], 1),
        port("port_rcv_remote_physical_errors", &[], 1),
        port("port_rcv_switch_relay_errors", &[], 1),
        port("port_xmit_constraint_errors", &[], 1),
        port("port_rcv_constraint_errors", &[], 1),
        port("local_link_integrity_errors", &[], 1),
        port("excessive_buffer_overrun_errors", &[], 1),
        port("VL15_dropped", &[], 1),
        port("port_xmit_wait", &[], 1),
    ];

    /// What a page adds to the sum.
    pub fn of_page(&self, page: &[u8]) -> u64 {
        let own = status_counters(page).filter(|(name, _)| self.of.contains(name));
        own.fold(0, |sum, (_, value)| sum.wrapping_add(value))
    }
}

/// Bytes of a word, in which ports count their data (IBTA 16.1.3.5, PortXmitData).
const DATA_UNIT: u64 = 4;

const fn hardware(name: &'static str, of: &'static [&'static str]) -> PortCounter {
    PortCounter { folder: "hw_counters", name, of, unit: 1 }
}

const fn port(name: &'static str, of: &'static [&'static str], unit: u64) -> PortCounter {
    PortCounter { folder: "counters", name, of, unit }
}

/// Has a function look at a device at intervals, in a thread of its own, until it is dropped.
pub struct CounterWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    context: Context,
    is_over: Mutex<bool>,
    ends: Condvar,
    report: Mutex<Report>,
}

type Report = Box<dyn FnMut(&Context) + Send>;

impl Context {
    /// Calls `report` now, every `interval`, and at the end, which is the drop of the watch. No packet pays for it: a
    /// thread that blocks signals, as the engine's does, takes the engine's lock when `report` asks for something.
    ///
    /// # Errors
    /// [`io::Error`] when the kernel gives no thread.
    pub fn watch_counters(
        &self,
        interval: Duration,
        report: impl FnMut(&Context) + Send + 'static,
    ) -> io::Result<CounterWatch> {
        let shared = Arc::new(Shared {
            context: self.share(),
            is_over: Mutex::new(false),
            ends: Condvar::new(),
            report: Mutex::new(Box::new(report)),
        });
        shared.report();
        let thread = {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name("uroce-counters".to_owned());
            thread::start(builder, move || shared.run(interval))?
        };
        Ok(CounterWatch { shared, thread: Some(thread) })
    }
}

impl CounterWatch {
    /// Reports now.
    pub fn report(&self) {
        self.shared.report();
    }
}

impl Shared {
    fn report(&self) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report(&self.context);
    }

    fn run(&self, interval: Duration) {
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_over {
            let (again, waited) = self.ends.wait_timeout(is_over, interval).unwrap_or_else(PoisonError::into_inner);
            is_over = again;
            if waited.timed_out() && !*is_over {
                drop(is_over);
                self.report();
                is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for CounterWatch {
    fn drop(&mut self) {
        if self.shared.context.engine().is_forked() {
            // The thread is the parent's, and so are the locks.
            std::mem::forget((self.thread.take(), self.shared.clone()));
            return;
        }
        *self.shared.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.ends.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
        self.shared.report();
    }
}

impl fmt::Debug for CounterWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CounterWatch({:?})", self.shared.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_what_was_counted() {
        let page = status_page(7, Instant::ZERO, &[("sent_pkts", 5), ("tx_bytes", u64::MAX)]);
        assert_eq!(status_counters(&page[..]).collect::<Vec<_>>(), [("sent_pkts", 5), ("tx_bytes", u64::MAX)]);
        let sent = PortCounter::ALL.iter().find(|counter| counter.name == "port_xmit_packets").unwrap();
        assert_eq!(sent.of_page(&page[..]), 5);
        // No page, one that is not written yet, and one that is cut off.
        for bytes in [&[][..], &[0; 100], &page[..63]] {
            assert_eq!(status_counters(bytes).count(), 0);
        }
        assert_eq!(status_counters(&page[..64 + 48 + 47]).count(), 1);
    }

    #[test]
    fn more_counters_than_there_is_room_for_are_left_out() {
        let page = status_page(7, Instant::ZERO, &[("a", 1); 500]);
        assert_eq!(status_counters(&page[..]).count(), (STATUS_BYTES - 64) / 48);
    }

    /// What is made of a name that no counter has would always be 0.
    #[test]
    fn ports_count_what_is_counted() {
        let transport = crate::transport::Counters::default();
        let known: Vec<&str> = transport.list().map(|(name, _)| name).collect();
        let of_links = ["tx_bytes", "rx_bytes", "tx_errors", "tx_no_neighbour"];
        for counter in PortCounter::ALL {
            assert!(counter.of.iter().all(|name| known.contains(name) || of_links.contains(name)), "{counter:?}");
        }
    }
}
