//! Storage over RDMA (iSER): a disk of tgt's, and the initiators of libiscsi and QEMU, all unmodified, by `uroce run` at both ends.
//! What QEMU writes is compared with the disk's file, and read back; libiscsi's own tests write, read and compare blocks.
//!
//! These programs are played nowhere else: this test is of `cargo xtask test --full programs`, which installs them.

mod common;

use std::fs;

use common::compared::{OVER_UDP, OVER_XDP, Start};
use common::iscsi::{Disk, Target};
use common::programs::sent_packets;
use rxe_rig::VethPair;
use uroce_laboratory::world::pattern;

/// 16 MiB are 4096 packets at the path MTU of 4096.
const DISK_BYTES: usize = 16 << 20;
const DISK_PACKETS: u64 = (DISK_BYTES / 4096) as u64;

/// The disk for initiators at the other end of the cable.
fn disk_of<'a>(pair: &'a VethPair, link: (Start, &'a str)) -> Disk<'a> {
    Disk { link, namespace: &pair.b, portal: VethPair::A.ipv4.to_string(), lun: 1 }
}

/// QEMU copies a file to the disk and back. Its writes are READs by the target, and its reads WRITEs.
fn copy_there_and_back(target: &Target<'_>, disk: &Disk<'_>) {
    let (from, back) = (target.file("from"), target.file("back"));
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
fn ask_and_test(disk: &Disk<'_>) {
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
    let target = Target::begin(&pair.a, link, "", &vec![0; DISK_BYTES]);
    let disk = disk_of(&pair, link);
    copy_there_and_back(&target, &disk);
    ask_and_test(&disk);
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
