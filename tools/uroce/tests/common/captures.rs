//! Captures that the tests of the command line write themselves.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use uroce::link::EthernetHeader;
use uroce::pcap::{Direction, Record, Writer};
use uroce::time::Instant;
use uroce::wire::{Addresses, Bth, Extension, Flow, Headers};

use super::programs::UROCE;

/// A file of this name in a folder of this test process.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(std::process::id().to_string());
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

/// A folder of this name and this test process, in which programs of any user can make files.
pub fn folder_for_all(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// The latest packets of a capture, a line each: what was on the wire before something stood still.
pub fn latest(file: &Path) -> String {
    const LINES: usize = 40;
    let decoded = Command::new(UROCE).arg("decode").arg(file).output().unwrap();
    let text = String::from_utf8_lossy(&decoded.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    format!("the latest packets of {}:\n  {}", file.display(), lines[lines.len().saturating_sub(LINES)..].join("\n  "))
}

/// The outer headers of four kinds: IPv4 and IPv6, without and with a VLAN tag.
pub fn outers() -> [(EthernetHeader, Flow); 4] {
    let v4 = Addresses::V4 { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 0, 2) };
    let v6 = Addresses::V6 {
        source: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        destination: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    };
    [(v4, None), (v4, Some((5, 0x8100))), (v6, None), (v6, Some((4094, 0x8100)))].map(|(addresses, tag)| {
        let flow_label = if matches!(addresses, Addresses::V6 { .. }) { 0xabcde } else { 0 };
        let flow = Flow { addresses, source_port: 0xc123, traffic_class: 0x6a, hop_limit: 63, flow_label };
        (EthernetHeader::new([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], tag), flow)
    })
}

/// A frame with a payload that counts up.
pub fn frame(outer: &(EthernetHeader, Flow), bth: Bth, extension: Extension, payload: usize) -> Vec<u8> {
    let (ethernet, flow) = outer;
    let mut bytes = vec![0; 5000];
    let at = ethernet.len();
    let fill = |out: &mut [u8]| {
        out.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        Ok::<_, Infallible>(())
    };
    let len = Headers { bth, extension }.write(&mut bytes[at..], flow, 0x1234, payload, fill).unwrap();
    let version = bytes[at] >> 4;
    ethernet.write(&mut bytes, version);
    bytes.truncate(at + len);
    bytes
}

/// Writes each packet with each kind of outer headers, a millisecond apart; returns the number of frames.
pub fn write_capture(file: &Path, packets: &[(Bth, Extension, usize)]) -> usize {
    let mut writer = Writer::create(file).unwrap();
    let mut count = 0;
    for (bth, extension, payload) in packets {
        for outer in &outers() {
            let time = Instant::from_ns(1_700_000_000_000_000_000 + count as u64 * 1_000_000);
            let bytes = frame(outer, *bth, *extension, *payload);
            writer.write(Record { time, direction: Direction::Sent, parts: &[&bytes], comment: None }).unwrap();
            count += 1;
        }
    }
    count
}
