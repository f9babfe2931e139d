//! What the kernel would do with a program's file.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64, PT_INTERP, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};

/// The name of the notes that Go's linker leaves (`.note.go.buildid`).
const GO_NOTE: &[u8] = b"Go\0\0";

/// The processor that our library is for.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

/// What a file is.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program with the loader that it names.
    Dynamic(PathBuf),
    /// A program without one.
    Static,
    /// The same, made by Go.
    Go,
    /// A program that our library does not fit, and why.
    Foreign(&'static str),
    /// Anything else: a script, say.
    Other,
}

/// Looks at a file's first bytes, and where they point.
///
/// # Errors
/// When it cannot be read, or is cut off.
pub fn kind(file: &Path) -> io::Result<Kind> {
    let cache = ReadCache::new(std::fs::File::open(file)?);
    let bytes = &cache;
    match bytes.read_bytes_at(0, 5) {
        Ok([0x7f, b'E', b'L', b'F', class]) => {
            if *class != 2 {
                return Ok(Kind::Foreign("32 bits"));
            }
        }
        _ => return Ok(Kind::Other),
    }
    let broken = |error: object::read::Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let header = FileHeader64::<Endianness>::parse(bytes).map_err(broken)?;
    let endian = header.endian().map_err(broken)?;
    if header.e_machine(endian) != MACHINE {
        return Ok(Kind::Foreign("another processor"));
    }
    let segments = header.program_headers(endian, bytes).map_err(broken)?;
    let Some(segment) = segments.iter().find(|segment| segment.p_type(endian) == PT_INTERP) else {
        let is_note = |segment: &&<FileHeader64<Endianness> as FileHeader>::ProgramHeader| {
            segment.p_type(endian) == PT_NOTE
                && segment.data(endian, bytes).is_ok_and(|note| note.windows(GO_NOTE.len()).any(|name| name == GO_NOTE))
        };
        return Ok(if segments.iter().any(|segment| is_note(&segment)) { Kind::Go } else { Kind::Static });
    };
    let name = segment.data(endian, bytes).map_err(|()| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let loader = PathBuf::from(OsStr::from_bytes(name));
    let is_musl = loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl"));
    Ok(if is_musl { Kind::Foreign("musl") } else { Kind::Dynamic(loader) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_name_their_loader_and_scripts_are_something_else() {
        let Kind::Dynamic(loader) = kind(&std::env::current_exe().unwrap()).unwrap() else {
            panic!("a test is dynamic")
        };
        assert!(loader.is_file(), "{loader:?}");
        assert_eq!(kind(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).unwrap(), Kind::Other);
    }
}
