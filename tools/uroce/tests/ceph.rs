//! Ceph over verbs (`ms_type = async+rdma`), unmodified, by `uroce run` as nobody over UDP sockets: a monitor, two daemons with
//! objects and their clients are programs of one host on one device. Every object is in both daemons, and is read back.
//!
//! Ceph has 100 MB of packages: this test is of `cargo xtask test --full programs`, which installs it.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::captures::folder_for_all;
use common::programs::{AS_NOBODY, Ended, LIMIT, Running, UROCE, run_as_nobody, sent_packets, start};
use rxe_rig::{Netns, VethPair};
use uroce_laboratory::world::pattern;

const CLUSTER: &str = "8b7e4f3c-5a0e-4f83-9f2a-1a2b3c4d5e6f";

/// An object is 16 packets at the path MTU of 4096, and goes out to one daemon.
const OBJECT_BYTES: usize = 64 << 10;
const PACKETS_AN_OBJECT: u64 = (OBJECT_BYTES / 4096) as u64;

/// A cluster's folder, and its host.
struct Cluster<'a> {
    host: &'a Netns,
    folder: PathBuf,
}

/// The daemons that were started; each leaves what it says in a file.
struct Daemon {
    running: Running,
    says: PathBuf,
}

impl Cluster<'_> {
    fn begin(host: &Netns) -> Cluster<'_> {
        let folder = folder_for_all("ceph");
        let cluster = Cluster { host, folder };
        fs::write(cluster.file("conf"), cluster.configuration()).unwrap();
        fs::write(cluster.file("keyring"), "").unwrap();
        cluster
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Receive queues and buffers are small: by default each program has 4 GB of them.
    fn configuration(&self) -> String {
        let (folder, address, interface) = (self.folder.display(), VethPair::A.ipv4, VethPair::A.interface);
        format!(
            "[global]\nfsid = {CLUSTER}\nmon_host = {address}\npublic_addr = {address}\nms_type = async+rdma\n\
             ms_async_rdma_device_name = {interface}\nms_async_rdma_receive_buffers = 4096\n\
             ms_async_rdma_receive_queue_len = 512\nms_async_rdma_send_buffers = 512\nauth_cluster_required = none\n\
             auth_service_required = none\nauth_client_required = none\nosd_pool_default_size = 2\n\
             osd_pool_default_min_size = 2\nosd_crush_chooseleaf_type = 0\nosd_class_update_on_start = false\nosd_crush_update_on_start = false\nosd_fast_shutdown = false\n\
             osd_objectstore = memstore\nmemstore_device_bytes = 1073741824\nmon_data = {folder}/mon\n\
             osd_data = {folder}/osd$id\nrun_dir = {folder}\nadmin_socket = {folder}/$name.asok\n\
             log_file = {folder}/$name.log\nkeyring = {folder}/keyring\npid_file =\n"
        )
    }

    /// A program with its words, without uroce: it prepares files.
    fn prepare(&self, line: &str) {
        let [program, user @ ..] = AS_NOBODY;
        let configuration = self.file("conf").display().to_string();
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with("monmaptool") {
            words.extend(["-c", &configuration]);
        }
        start(self.host.command(program), &[&user[..], &words].concat()).end_within(LIMIT).unwrap().succeeded();
    }

    /// A client by `uroce run`. A client that commands a monitor before it has the monitor's map is refused (EPERM, «wrong
    /// fsid»): authentication does not wait for the map, and some of a hundred clients are so fast.
    fn client(&self, line: &str) -> Ended {
        let (program, words) = line.split_once(' ').expect("a program and its words");
        let line = format!("--link udp --trace -- {program} -c {} {words}", self.file("conf").display());
        for _ in 0..4 {
            let ended = run_as_nobody(self.host, &line).end_within(LIMIT).unwrap();
            if ended.status.success() || !ended.stderr.contains("Error EPERM") {
                return ended.succeeded();
            }
        }
        panic!("{line} is refused each time");
    }

    /// A daemon by `uroce run`. It says more than a pipe holds that nobody reads.
    fn daemon(&self, program: &str, id: &str) -> Daemon {
        let says = self.file(&format!("{program}.{id}.says"));
        let (user, configuration) = (AS_NOBODY.join(" "), self.file("conf").display().to_string());
        let line = format!(
            "exec {user} {UROCE} run --link udp --trace -- {program} -c {configuration} -f -i {id} > {} 2>&1",
            says.display()
        );
        Daemon { running: start(self.host.command("sh"), &["-c", &line]), says }
    }

    /// Waits until `ceph osd stat` says so.
    fn wait_for(&self, words: &str) {
        let end = Instant::now() + LIMIT;
        loop {
            let said = self.client("ceph osd stat").stdout;
            if said.contains(words) {
                return;
            }
            assert!(Instant::now() < end, "not {words}: {said}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// A monitor, and two daemons with objects, one after the other: of two that begin at once Ceph ends one at times, over
    /// TCP too.
    fn start_all(&self) -> [Daemon; 3] {
        let map = self.file("monmap").display().to_string();
        self.prepare(&format!("monmaptool --create --fsid {CLUSTER} --add a {}:6789 {map}", VethPair::A.ipv4));
        self.prepare(&format!("ceph-mon --mkfs -i a --monmap {map}"));
        let monitor = self.daemon("ceph-mon", "a");
        let objects = ["0", "1"].map(|id| {
            let name = format!("0000000{id}-0000-4000-8000-000000000000");
            assert_eq!(self.client(&format!("ceph osd new {name}")).stdout.trim(), id);
            self.client(&format!("ceph osd crush add osd.{id} 1.0 root=default host=here"));
            fs::create_dir_all(self.file(&format!("osd{id}"))).unwrap();
            fs::set_permissions(self.file(&format!("osd{id}")), fs::Permissions::from_mode(0o777)).unwrap();
            self.prepare(&format!("ceph-osd --ms_type async+posix --no-mon-config --mkfs -i {id} --osd-uuid {name}"));
            let daemon = self.daemon("ceph-osd", id);
            self.wait_for(["1 osds: 1 up", "2 osds: 2 up"][usize::from(id == "1")]);
            daemon
        });
        let [first, second] = objects;
        [first, second, monitor]
    }
}

impl Daemon {
    /// Ends it, and counts the packets that it sent.
    fn end(self) -> u64 {
        let id = self.running.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.running.end_within(LIMIT).unwrap_or_else(|text| panic!("{text}: {}", self.says.display()));
        sent_packets(&fs::read_to_string(&self.says).unwrap())
    }
}

/// The number after `words` in what `rados bench` says.
fn number_after(said: &str, words: &str) -> u64 {
    let (_, rest) = said.split_once(words).unwrap_or_else(|| panic!("no «{words}»: {said}"));
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn objects_are_written_twice_and_read_back() {
    let pair = VethPair::create(4500).unwrap();
    let cluster = Cluster::begin(&pair.a);
    let [first, second, monitor] = cluster.start_all();
    cluster.client("ceph osd pool create pool 8 8");

    let written = cluster.client(&format!("rados -p pool bench 3 write -b {OBJECT_BYTES} -t 4 --no-cleanup"));
    let objects = number_after(&written.stdout, "Total writes made:");
    assert!(objects >= 50, "{written:#?}");
    let packets = sent_packets(&written.stderr);
    assert!(packets >= objects * PACKETS_AN_OBJECT, "{packets} packets of {objects} objects: {written:#?}");
    // It compares what it reads with what it has written, and fails where that differs.
    let read = cluster.client("rados -p pool bench 60 seq -t 4");
    assert_eq!(number_after(&read.stdout, "Total reads made:"), objects, "{read:#?}");

    // And a file of our own, of more than one message.
    let bytes = pattern(1, 3_000_001);
    let (from, to) = (cluster.file("from"), cluster.file("to"));
    fs::write(&from, &bytes).unwrap();
    cluster.client(&format!("rados -p pool put file {}", from.display()));
    cluster.client(&format!("rados -p pool get file {}", to.display()));
    assert!(fs::read(&to).unwrap() == bytes, "the file came back with other bytes");

    // Each daemon answers reads of half the objects, and sends copies of as many to the other one.
    for daemon in [first, second] {
        let packets = daemon.end();
        eprintln!("a daemon sent {packets} packets of {objects} objects");
        assert!(packets >= objects / 4 * PACKETS_AN_OBJECT, "{packets} packets of {objects} objects");
    }
    monitor.end();
    fs::remove_dir_all(&cluster.folder).unwrap();
}
