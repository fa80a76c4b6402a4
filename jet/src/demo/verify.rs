//! Comparison of the files that arrived with those that were sent: the BLAKE3 hash of every file, every name,
//! every permission bit.

use crate::files::path::printable;
use crate::files::walk::{Found, Walk};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Limit of the differences between two trees that are described in words. Further differences are only
/// counted.
const NAMED_MAX: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32 },
    File { mode: u32, bytes: u64, hash: blake3::Hash },
}

/// Contents of a tree: its files with length, hash and permission bits, and its directories with permission
/// bits.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    entries: BTreeMap<Vec<u8>, Entry>,
}

/// Differences between two trees.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// Number of paths that differ.
    pub count: u64,
    /// Descriptions of the first differences, at most [`NAMED_MAX`].
    pub named: Vec<String>,
}

impl Manifest {
    /// Reads the contents that `jet send` would send for these paths. Calls `each` with the length of each
    /// file that was read, in bytes.
    pub(super) fn of(paths: &[PathBuf], each: impl FnMut(u64)) -> io::Result<Self> {
        Self::of_walk(Walk::new(paths).map_err(io::Error::other)?, each)
    }

    /// Reads the contents of a directory. Calls `each` with the length of each file that was read, in bytes.
    pub(super) fn below(directory: &Path, each: impl FnMut(u64)) -> io::Result<Self> {
        Self::of_walk(Walk::below(directory), each)
    }

    fn of_walk(walk: Walk, mut each: impl FnMut(u64)) -> io::Result<Self> {
        let mut manifest = Self::default();
        for found in walk {
            let (path, entry) = match found {
                Found::File { source, path, .. } => {
                    let mut file = File::open(&source)?;
                    let metadata = file.metadata()?;
                    let mut hasher = blake3::Hasher::new();
                    each(io::copy(&mut file, &mut hasher)?);
                    let hash = hasher.finalize();
                    (path, Entry::File { mode: metadata.mode() & 0o777, bytes: metadata.len(), hash })
                }
                Found::Directory { source, path } => {
                    (path, Entry::Directory { mode: std::fs::metadata(source)?.mode() & 0o777 })
                }
                Found::Skipped { .. } => continue,
                Found::Failed { source, error } => {
                    return Err(io::Error::other(format!("{}: {error}", source.display())));
                }
            };
            manifest.entries.insert(path, entry);
        }
        Ok(manifest)
    }

    /// Adds the contents of another manifest.
    pub(super) fn add(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    /// Returns the number of files.
    pub(super) fn files(&self) -> u64 {
        self.entries.values().filter(|entry| matches!(entry, Entry::File { .. })).count() as u64
    }

    /// Compares these contents, which were sent, with those that arrived, and returns the differences.
    pub(super) fn compare(&self, arrived: &Self) -> Differences {
        let mut differences = Differences::default();
        let mut differ = |path: &[u8], what: &str| {
            differences.count += 1;
            if differences.named.len() < NAMED_MAX {
                differences.named.push(format!("{}: {what}", printable(path)));
            }
        };
        for (path, entry) in &self.entries {
            match (entry, arrived.entries.get(path)) {
                (_, None) => differ(path, "did not arrive"),
                (entry, Some(other)) if entry == other => {}
                (Entry::File { hash, .. }, Some(Entry::File { hash: other, .. })) if hash != other => {
                    differ(path, "has other bytes");
                }
                _ => differ(path, "has other permissions, or is another kind of file"),
            }
        }
        for path in arrived.entries.keys().filter(|path| !self.entries.contains_key(*path)) {
            differ(path, "was never sent");
        }
        differences
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_kind_of_difference_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let (sent, arrived) = (root.path().join("sent"), root.path().join("arrived"));
        for side in [&sent, &arrived] {
            fs::create_dir_all(side.join("d")).unwrap();
            for name in ["same", "bytes", "mode", "d/lost"] {
                fs::write(side.join(name), name).unwrap();
            }
        }
        let whole = Manifest::below(&sent, drop).unwrap();
        assert_eq!(whole.compare(&Manifest::below(&arrived, drop).unwrap()), Differences::default());
        fs::write(arrived.join("bytes"), "BYTES").unwrap();
        fs::set_permissions(arrived.join("mode"), fs::Permissions::from_mode(0o711)).unwrap();
        fs::remove_file(arrived.join("d/lost")).unwrap();
        fs::write(arrived.join("extra"), "").unwrap();
        let differences = whole.compare(&Manifest::below(&arrived, drop).unwrap());
        assert_eq!(differences.count, 4, "{differences:?}");
    }

    #[test]
    fn names_are_those_that_a_sender_uses() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("top")).unwrap();
        fs::write(root.path().join("top/file"), "x").unwrap();
        let sent = Manifest::of(&[root.path().join("top")], drop).unwrap();
        assert_eq!(sent.compare(&Manifest::below(root.path(), drop).unwrap()).count, 0);
        assert_eq!(sent.files(), 1);
    }
}
