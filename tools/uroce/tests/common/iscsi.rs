//! iSCSI over RDMA (iSER): tgt, and initiators: QEMU's, and the programs of libiscsi, which QEMU uses, too.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rxe_rig::Netns;

use super::captures::folder_for_all;
use super::compared::{OVER_UDP, Start};
use super::programs::{AS_NOBODY, Ended, LIMIT, Running, sent_packets, start};

pub const TARGET: &str = "iqn.2026-11.test:disk";
pub const INITIATOR: &str = "iqn.2026-11.test:client";

/// libiscsi 1.19 can move no more in one command.
const LONGEST_TRANSFER_BYTES: usize = 256 << 10;

/// libiscsi 1.19 mixes up the sizes of small buffers that it keeps for later, and expects zeros in memory that it has just
/// allocated: the C library fills that with the complement of this number.
const AROUND_MISTAKES: &str = "env LIBISCSI_CACHE_ALLOCATIONS=0 MALLOC_PERTURB_=255";

/// A disk, and whence it is used.
pub struct Disk<'a> {
    pub link: (Start, &'a str),
    pub namespace: &'a Netns,
    /// The target's address.
    pub portal: String,
    pub lun: u8,
}

impl Disk<'_> {
    /// A program that ends with success.
    pub fn initiator(&self, line: &str) -> Ended {
        self.attempt(line).succeeded()
    }

    /// A suite of libiscsi's tests. It gives up when an answer takes a second, as it can on a loaded machine.
    pub fn suite(&self, name: &str) -> Ended {
        let line = format!("iscsi-test-cu --dataloss --fail --normal -t SCSI.{name} {}", self.url());
        for _ in 0..2 {
            let ended = self.attempt(&line);
            if ended.status.success() || !ended.stdout.contains("revents is not POLLIN") {
                return ended.succeeded();
            }
            eprintln!("SCSI.{name}: an answer took a second");
        }
        self.initiator(&line)
    }

    fn attempt(&self, line: &str) -> Ended {
        let (start, link) = self.link;
        let line = format!("--link {link} --trace -- {AROUND_MISTAKES} {line}");
        let mut ended = start(self.namespace, &line).end_within(LIMIT).unwrap();
        // There are hundreds of regions, each with its line.
        let worth_reading = ended.stderr.lines().filter(|line| !line.starts_with("uroce: ibv_reg_mr: 0x"));
        ended.stderr = worth_reading.map(|line| format!("{line}\n")).collect();
        ended
    }

    /// QEMU copies a file to the disk. Returns how many packets it sent.
    pub fn take(&self, file: &Path) -> u64 {
        let (file, image) = (file.display(), self.image());
        sent_packets(&self.initiator(&format!("qemu-img convert -n -f raw --target-image-opts {file} {image}")).stderr)
    }

    /// QEMU compares the disk with a file of the same bytes.
    pub fn is_compared(&self, file: &Path) {
        let local = format!("driver=raw,file.driver=file,file.filename={}", file.display());
        let same = self.initiator(&format!("qemu-img compare --image-opts {local} {}", self.image()));
        assert!(same.stdout.contains("Images are identical."), "{same:#?}");
    }

    /// The disk as libiscsi's programs name it, with the name of the initiator.
    pub fn url(&self) -> String {
        format!("-i {INITIATOR} iser://{}/{TARGET}/{}", self.portal, self.lun)
    }

    /// The disk as QEMU names it. The layer between cuts requests that are too long.
    pub fn image(&self) -> String {
        format!(
            "driver=raw,file.driver=blkdebug,file.max-transfer={LONGEST_TRANSFER_BYTES},file.image.driver=iscsi,\
             file.image.transport=iser,file.image.portal={},file.image.target={TARGET},file.image.lun={},\
             file.image.initiator-name={INITIATOR}",
            self.portal, self.lun
        )
    }
}

/// A folder with the disk, and the target that serves it.
pub struct Target<'a> {
    host: &'a Netns,
    link: (Start, &'a str),
    folder: PathBuf,
    program: Option<Running>,
}

impl<'a> Target<'a> {
    /// Begins it with these bytes on the disk, and options of `uroce run`, in which `{}` is the folder.
    pub fn begin(host: &'a Netns, link: (Start, &'a str), options: &str, bytes: &[u8]) -> Target<'a> {
        let folder = folder_for_all(&format!("iser-{}", link.1));
        let mut target = Target { host, link, folder, program: None };
        let disk = target.file("disk");
        fs::write(&disk, bytes).unwrap();
        fs::set_permissions(&disk, fs::Permissions::from_mode(0o666)).unwrap();

        let (start, link) = link;
        let options = options.replace("{}", &target.folder.display().to_string());
        let line = format!("--link {link} {options} --trace -- env {} tgtd -f --iser pool_sz_mb=64", target.socket());
        let mut program = start(host, &line);
        program.prints(&["rdma_listen: done"], LIMIT).unwrap();
        target.program = Some(program);
        target.administer(&format!("--lld iser --op new --mode target --tid 1 -T {TARGET}"));
        target.administer(&format!("--lld iser --op new --mode logicalunit --tid 1 --lun 1 -b {}", disk.display()));
        // Over iSER this version wants the initiator's address and its name to be allowed, and not one of them.
        target.administer("--lld iser --op bind --mode target --tid 1 -I ALL");
        target.administer(&format!("--lld iser --op bind --mode target --tid 1 --initiator-name {INITIATOR}"));
        target
    }

    /// A file of the folder.
    pub fn file(&self, name: &str) -> PathBuf {
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
        start(self.host.command(words[0]), &words[1..]).end_within(LIMIT).unwrap()
    }

    /// Whether the disk has these bytes.
    pub fn disk_is(&self, bytes: &[u8]) -> bool {
        fs::read(self.file("disk")).unwrap() == bytes
    }

    /// Ends the target, whose initiator has a session still.
    pub fn leave(mut self) {
        drop(self.program.take());
        fs::remove_dir_all(&self.folder).unwrap();
    }

    /// Ends the target, and counts the packets that it sent.
    pub fn end(mut self) -> u64 {
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
