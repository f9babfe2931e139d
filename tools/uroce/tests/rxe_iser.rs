//! A disk of the Linux kernel's iSER target (LIO, ib_isert) on rxe, and QEMU's initiator by `uroce run`: what `qemu-img` writes
//! is compared with the target's file in the machine, and read and compared by QEMU. And the reverse: a disk of tgt by
//! `uroce run`, and the kernel's initiator (ib_iser) on rxe, to which the disk is one of its own.
//!
//! The programs are played nowhere else: this test is of `cargo xtask test --full programs`, which installs them.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::compared::{OVER_UDP, OVER_XDP, Start};
use common::iscsi::{Disk, INITIATOR, TARGET, Target};
use common::programs::UROCE;
use rxe_rig::lab::PEER;
use rxe_rig::{Lab, LabOptions, Vm};
use uroce_laboratory::world::pattern;

/// 2 MiB are 512 packets at the path MTU of 4096.
const DISK_BYTES: usize = 2 << 20;
const DISK_PACKETS: u64 = (DISK_BYTES / 4096) as u64;

const LIMIT: Duration = Duration::from_secs(240);

/// Makes the disk and its target, which any initiator may use. libiscsi 1.19 announces immediate data over iSER and sends none,
/// so the target wants none.
fn serve(vm: &Vm) {
    let address = vm.ipv4();
    let lines = format!(
        "modprobe ib_isert && modprobe target_core_file
         mount -t configfs configfs /sys/kernel/config
         set -e
         cd /sys/kernel/config/target
         mkdir -p core/fileio_0/disk
         echo fd_dev_name=/tmp/disk,fd_dev_size={DISK_BYTES} > core/fileio_0/disk/control
         echo 1 > core/fileio_0/disk/enable
         mkdir -p iscsi/{TARGET}/tpgt_1
         cd iscsi/{TARGET}/tpgt_1
         mkdir np/{address}:3260 && echo 1 > np/{address}:3260/iser
         mkdir lun/lun_0 && ln -s /sys/kernel/config/target/core/fileio_0/disk lun/lun_0/disk
         echo No > param/ImmediateData
         echo 0 > attrib/authentication
         echo 1 > attrib/generate_node_acls
         echo 0 > attrib/demo_mode_write_protect
         echo 1 > enable"
    );
    vm.check(&lines, LIMIT).unwrap_or_else(|error| panic!("{error}: {}", vm.console()));
}

fn copy_there_and_back(lab: &Lab, link: (Start, &str), seed: u64) {
    let disk = Disk { link, namespace: lab.peer(), portal: lab.vm(0).ipv4().to_string(), lun: 0 };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = |name: &str| folder.join(format!("rxe-iser-{}-{}-{name}", std::process::id(), link.1));
    let (from, theirs) = (file("from"), file("theirs"));
    let bytes = pattern(seed, DISK_BYTES);
    fs::write(&from, &bytes).unwrap();

    let asked = disk.initiator(&format!("iscsi-inq {}", disk.url()));
    assert!(asked.stdout.contains("Vendor:LIO-ORG"), "{asked:#?}");
    let packets = disk.take(&from);
    assert!(packets >= DISK_PACKETS, "{packets} packets");
    lab.vm(0).get("/tmp/disk", &theirs).unwrap();
    assert!(fs::read(&theirs).unwrap() == bytes, "the disk has other bytes");

    disk.is_compared(&from);
    for file in [from, theirs] {
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn a_disk_of_a_kernel_is_written_and_read_over_both_links() {
    let lab = Lab::start(&LabOptions { mtu: 4500, ..LabOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    serve(lab.vm(0));
    for (seed, link) in [OVER_XDP, OVER_UDP].into_iter().enumerate() {
        copy_there_and_back(&lab, link, seed as u64);
    }
}

/// The machine logs in, and its disk is the target's: it reads what is there, and writes other bytes.
fn the_kernel_reads_and_writes(link: (Start, &str)) {
    let lab = Lab::start(&LabOptions { mtu: 4500, ..LabOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    let vm = lab.vm(0);
    let [old, new] = [11, 12].map(|seed| pattern(seed, DISK_BYTES));
    let target = Target::begin(lab.peer(), link, "--capture {}/capture", &old);
    let check = |line: &str| vm.check(line, LIMIT).unwrap_or_else(|error| panic!("{error}: {}", vm.console()));
    let portal = format!("-a {} -p 3260 -P iface.transport_name=iser", PEER.ipv4);
    check(&format!("modprobe ib_iser && modprobe sd_mod && iscsistart -i {INITIATOR} -t {TARGET} -g 1 {portal}"));
    check(
        "for i in 1 2 3 4 5 6 7 8 9; do [ -b /dev/sda ] || sleep 2; done; dd if=/dev/sda of=/tmp/read bs=64k iflag=direct",
    );
    let [there, here] = ["there", "here"].map(|name| target.file(name));
    vm.get("/tmp/read", &there).unwrap();
    assert!(fs::read(&there).unwrap() == old, "the machine reads other bytes");

    fs::write(&here, &new).unwrap();
    vm.put(&here, "/tmp/new").unwrap();
    check("dd if=/tmp/new of=/dev/sda bs=64k oflag=direct");
    assert!(target.disk_is(&new), "the disk has other bytes");

    // What the machine reads is written by the target, and the reverse, except for what comes beside a command.
    let decoded = Command::new(UROCE).arg("decode").arg(target.file("capture")).output().unwrap();
    let decoded = String::from_utf8_lossy(&decoded.stdout).into_owned();
    for (operation, fewest) in [("RDMA_WRITE", DISK_PACKETS), ("RDMA_READ_RESPONSE", DISK_PACKETS * 3 / 4)] {
        let packets = decoded.lines().filter(|line| line.contains(operation)).count() as u64;
        assert!(packets >= fewest, "{packets} packets of {operation}");
    }
    target.leave();
}

#[test]
fn a_kernel_reads_and_writes_a_disk_over_af_xdp() {
    the_kernel_reads_and_writes(OVER_XDP);
}

#[test]
fn a_kernel_reads_and_writes_a_disk_of_nobodys_over_udp_sockets() {
    the_kernel_reads_and_writes(OVER_UDP);
}
