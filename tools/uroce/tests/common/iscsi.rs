//! Initiators of iSCSI over RDMA (iSER): QEMU's, and the programs of libiscsi, which QEMU uses, too.

use std::path::Path;

use rxe_rig::Netns;

use super::compared::Start;
use super::programs::{Ended, LIMIT, sent_packets};

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
