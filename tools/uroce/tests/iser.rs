//! Storage over RDMA (iSER): a disk of tgt's, and the initiators of libiscsi and QEMU, all unmodified, by `uroce run` at both ends.
//! What QEMU writes is compared with the disk's file, and read back; libiscsi's own tests write, read and compare blocks.
//!
//! These programs are played nowhere else: this test is of `cargo xtask test --full programs`, which installs them.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::captures::folder_for_all;
use common::compared::{OVER_UDP, OVER_XDP, Start};
use common::iscsi::{Disk, INITIATOR, TARGET};
use common::programs::{AS_NOBODY, Ended, LIMIT, Running, sent_packets, start};
use rxe_rig::VethPair;
use uroce_laboratory::world::pattern;

/// 16 MiB are 4096 packets at the path MTU of 4096.
const DISK_BYTES: usize = 16 << 20;
const DISK_PACKETS: u64 = (DISK_BYTES / 4096) as u64;

/// A folder with the disk, and the target that serves it.
struct Target<'a> {
    pair: &'a VethPair,
    link: (Start, &'a str),
    folder: PathBuf,
    program: Option<Running>,
}

impl<'a> Target<'a> {
    fn begin(pair: &'a VethPair, link: (Start, &'a str)) -> Target<'a> {
        let folder = folder_for_all(&format!("iser-{}", link.1));
        let mut target = Target { pair, link, folder, program: None };
        let disk = target.file("disk");
        fs::write(&disk, vec![0; DISK_BYTES]).unwrap();
        fs::set_permissions(&disk, fs::Permissions::from_mode(0o666)).unwrap();

        let (start, link) = link;
        let line = format!("--link {link} --trace -- env {} tgtd -f --iser pool_sz_mb=64", target.socket());
        let mut program = start(&pair.a, &line);
        program.prints(&["rdma_listen: done"], LIMIT).unwrap();
        target.program = Some(program);
        target.administer(&format!("--lld iser --op new --mode target --tid 1 -T {TARGET}"));
        target.administer(&format!("--lld iser --op new --mode logicalunit --tid 1 --lun 1 -b {}", disk.display()));
        // Over iSER this version wants the initiator's address and its name to be allowed, and not one of them.
        target.administer("--lld iser --op bind --mode target --tid 1 -I ALL");
        target.administer(&format!("--lld iser --op bind --mode target --tid 1 --initiator-name {INITIATOR}"));
        target
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where the target takes its commands, in words of `env`.
    fn socket(&self) -> String {
        format!("TGT_IPC_SOCKET={}", self.file("socket").display())
    }

    /// A command that the target carries out.
    fn administer(&self, line: &str) {
        self.command(line).succeeded();
    }

    /// A command for the target, by the user of the target.
    fn command(&self, line: &str) -> Ended {
        let user: &[&str] = if self.link.1 == OVER_UDP.1 { &AS_NOBODY } else { &[] };
        let (socket, words) = (self.socket(), line.split_whitespace().collect::<Vec<_>>());
        let words = [user, &["env", &socket, "tgtadm"], &words].concat();
        start(self.pair.a.command(words[0]), &words[1..]).end_within(LIMIT).unwrap()
    }

    /// The disk for initiators at the other end of the cable.
    fn disk(&self) -> Disk<'_> {
        Disk { link: self.link, namespace: &self.pair.b, portal: VethPair::A.ipv4.to_string(), lun: 1 }
    }

    fn disk_is(&self, bytes: &[u8]) -> bool {
        fs::read(self.file("disk")).unwrap() == bytes
    }

    /// Ends the target, and counts the packets that it sent.
    fn end(mut self) -> u64 {
        // A session lasts until the connection manager says that its connection's time wait is over.
        let end = Instant::now() + LIMIT;
        while let Err(refused) = self.command("--lld iser --op delete --mode target --tid 1").check() {
            assert!(refused.contains("this target is still active") && Instant::now() < end, "{refused}");
            std::thread::sleep(Duration::from_millis(200));
        }
        self.administer("--op delete --mode system");
        let ended = self.program.take().expect("it was started").end_within(LIMIT).unwrap().succeeded();
        fs::remove_dir_all(&self.folder).unwrap();
        sent_packets(&ended.stderr)
    }
}

/// QEMU copies a file to the disk and back. Its writes are READs by the target, and its reads WRITEs.
fn copy_there_and_back(target: &Target<'_>) {
    let (from, back, disk) = (target.file("from"), target.file("back"), target.disk());
    let bytes = pattern(1, DISK_BYTES);
    fs::write(&from, &bytes).unwrap();

    let packets = disk.take(&from);
    assert!(packets >= DISK_PACKETS, "{packets} packets");
    assert!(target.disk_is(&bytes), "the disk has other bytes");

    disk.initiator(&format!("qemu-img convert --image-opts -O raw {} {}", disk.image(), back.display()));
    assert!(fs::read(&back).unwrap() == bytes, "the file came back with other bytes");

    disk.is_compared(&from);
}

/// libiscsi's programs: what the disk is, reads of 64 KiB for a second, and tests that write blocks and compare them.
fn ask_and_test(target: &Target<'_>) {
    let disk = target.disk();
    let url = disk.url();
    let asked = disk.initiator(&format!("iscsi-inq {url}"));
    assert!(asked.stdout.contains("Product:VIRTUAL-DISK"), "{asked:#?}");
    let asked = disk.initiator(&format!("iscsi-readcapacity16 {url}"));
    assert!(asked.stdout.contains(&format!("Total size:{DISK_BYTES}\n")), "{asked:#?}");
    let read = disk.initiator(&format!("iscsi-perf -b 128 -t 1 {url}"));
    assert!(read.stdout.contains("finished."), "{read:#?}");

    for suite in ["OrWrite", "Verify16", "Write16", "WriteVerify16"] {
        let tested = disk.suite(suite);
        // Columns: all, ran, passed, failed, inactive.
        let row = |name: &str| {
            let row = tested.stdout.lines().map(str::trim_start).find(|line| line.starts_with(name));
            let row = row.unwrap_or_else(|| panic!("no {name}: {tested:#?}")).split_whitespace();
            row.skip(1).map_while(|count| count.parse().ok()).collect::<Vec<u64>>()
        };
        let asserts = row("asserts");
        assert!(asserts.len() == 4 && asserts[0] > 1000 && asserts[2] == asserts[0], "{tested:#?}");
        assert_eq!(row("tests")[3], 0, "{tested:#?}");
        // Each of these assertions is about a command at least.
        assert!(sent_packets(&tested.stderr) > asserts[0], "{tested:#?}");
    }
}

fn play(link: (Start, &str)) {
    let pair = VethPair::create(4500).unwrap();
    let target = Target::begin(&pair, link);
    copy_there_and_back(&target);
    ask_and_test(&target);
    let packets = target.end();
    eprintln!("the target sent {packets} packets");
    // The disk was read twice, beside all else.
    assert!(packets >= 2 * DISK_PACKETS, "{packets} packets");
}

#[test]
fn a_disk_is_written_and_read_over_af_xdp() {
    play(OVER_XDP);
}

#[test]
fn a_disk_is_written_and_read_as_nobody_over_udp_sockets() {
    play(OVER_UDP);
}
