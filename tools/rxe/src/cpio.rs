//! The archive format of an initramfs: `newc` cpio.
use std::collections::BTreeMap;
use std::io::{self, Write};

/// What a path in the archive is.
#[derive(Debug)]
pub(crate) enum Node {
    Directory,
    File { mode: u32, data: Vec<u8> },
    Link(String),
}

/// An initramfs in the making: paths without a leading `/`. Parent directories come by themselves.
#[derive(Debug, Default)]
pub(crate) struct Archive(BTreeMap<String, Node>);

impl Archive {
    pub(crate) fn insert(&mut self, path: &str, node: Node) {
        let path = path.trim_start_matches('/');
        let mut end = 0;
        while let Some(slash) = path[end..].find('/') {
            self.0.entry(path[..end + slash].to_string()).or_insert(Node::Directory);
            end += slash + 1;
        }
        self.0.insert(path.to_string(), node);
    }

    /// A file with mode 0755.
    pub(crate) fn program(&mut self, path: &str, data: impl Into<Vec<u8>>) {
        self.insert(path, Node::File { mode: 0o755, data: data.into() });
    }

    /// A file with mode 0644.
    pub(crate) fn text(&mut self, path: &str, data: impl Into<Vec<u8>>) {
        self.insert(path, Node::File { mode: 0o644, data: data.into() });
    }

    pub(crate) fn contains(&self, path: &str) -> bool {
        self.0.contains_key(path.trim_start_matches('/'))
    }

    /// Writes the archive. The order is that of the paths, so a directory comes before what is in it; the same contents
    /// give the same bytes.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for (number, (path, node)) in (1u32..).zip(&self.0) {
            let (mode, data) = match node {
                Node::Directory => (0o040_755, &[][..]),
                Node::File { mode, data } => (0o100_000 | mode, &data[..]),
                Node::Link(target) => (0o120_777, target.as_bytes()),
            };
            entry(out, number, path, mode, data)?;
        }
        entry(out, 0, "TRAILER!!!", 0, &[])
    }
}

/// One entry: the magic, thirteen 8-digit hex fields, the name with its NUL, the data, name and data each padded to 4.
fn entry(out: &mut impl Write, inode: u32, path: &str, mode: u32, data: &[u8]) -> io::Result<()> {
    let size = u32::try_from(data.len()).map_err(|_| io::Error::other(format!("{path} is 4 GiB or more")))?;
    let name_size = path.len() as u32 + 1;
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    write!(out, "070701")?;
    for field in fields {
        write!(out, "{field:08x}")?;
    }
    let pad = |length: usize| &[0u8; 3][..(4 - length % 4) % 4];
    out.write_all(path.as_bytes())?;
    out.write_all(&[0])?;
    out.write_all(pad(6 + 13 * 8 + path.len() + 1))?;
    out.write_all(data)?;
    out.write_all(pad(data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_their_files_and_entries_are_aligned() {
        let mut archive = Archive::default();
        archive.program("/a/b/c", *b"12345");
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let names = ["a\0", "a/b\0", "a/b/c\0", "TRAILER!!!\0"].map(|name| text.find(name).unwrap());
        assert!(names.is_sorted(), "{names:?}");
        assert_eq!(text.matches("070701").count(), 4);
        assert!(text.contains("000081ed"), "a regular file, mode 0755");
    }
}
