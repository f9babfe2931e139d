//! From a bzImage to the ELF kernel inside it. QEMU boots the ELF directly; the bzImage would spend its first seconds
//! unpacking itself, which is slow under emulation.
use crate::error::{Result, RigError};
use crate::process;
use std::path::Path;
use std::process::Command;

/// Where the compressed kernel is in a bzImage and which program unpacks it, by the x86 boot protocol's set-up header
/// (`setup_sects` at 0x1f1, `payload_offset` and `payload_length` at 0x248, protocol 2.08).
///
/// The payload ends with four bytes that hold its unpacked size and belong to no compression format but gzip.
fn payload(image: &[u8]) -> Option<(&[u8], &'static str)> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let sectors = match image[0x1f1] {
        0 => 4,
        n => usize::from(n),
    };
    let start = (sectors + 1) * 512 + word(0x248)?;
    let payload = image.get(start..start.checked_add(word(0x24c)?)?)?;
    let body = &payload[..payload.len().checked_sub(4)?];
    match payload {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some((body, "xz")),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some((body, "zstd")),
        [0x02, 0x21, 0x4c, 0x18, ..] => Some((body, "lz4")),
        [0x1f, 0x8b, ..] => Some((payload, "gzip")),
        _ => None,
    }
}

/// Writes the ELF kernel inside the bzImage `from` to `to`. A work file is left beside it.
pub(crate) fn extract(from: &Path, to: &Path) -> Result<()> {
    let image = std::fs::read(from).map_err(RigError::io(format!("reading {}", from.display())))?;
    let (payload, program) = payload(&image)
        .ok_or_else(|| RigError::Missing(format!("{} is no bzImage of a known compression", from.display())))?;
    let packed = to.with_extension("packed");
    std::fs::write(&packed, payload).map_err(RigError::io(format!("writing {}", packed.display())))?;
    let out = std::fs::File::create(to).map_err(RigError::io(format!("making {}", to.display())))?;
    let input = std::fs::File::open(&packed).map_err(RigError::io(format!("reading {}", packed.display())))?;
    let mut command = Command::new(program);
    let status = command.arg("-dc").stdin(input).stdout(out).status().map_err(|e| process::not_started(&command, e))?;
    let mut magic = [0; 4];
    let elf = std::fs::File::open(to)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic))
        .is_ok_and(|()| magic == *b"\x7fELF");
    if !status.success() || !elf {
        return Err(RigError::Missing(format!("{program} found no ELF kernel in {}", from.display())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_found_without_its_size_word() {
        let mut image = vec![0u8; 2048];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&12u32.to_le_bytes());
        image[1040..1052].copy_from_slice(b"\xfd7zXZ\0ab\x01\x02\x03\x04");
        assert_eq!(payload(&image), Some((&b"\xfd7zXZ\0ab"[..], "xz")));
        assert_eq!(payload(&image[..600]), None, "cut off");
        image[0x202] = 0;
        assert_eq!(payload(&image), None, "no header");
    }
}
