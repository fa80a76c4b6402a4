//! Tree of files that the demo makes and sends. The tree has the same bytes in every run, and is made
//! quickly.
//!
//! The mix is that of a real tree: many small files, a few large ones, deep directories, empty directories,
//! and names that are not UTF-8. Some files are about as long as a slab, a fragment or a piece, since longer
//! ones are sent in another way.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const BLOCK_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// Sizes of some files in bytes. Many lie at or next to a limit: that of a slab, a fragment or a piece.
const EDGES: [u64; 14] = [
    0,
    1,
    63,
    4095,
    4096,
    4097,
    64 << 10,
    (256 << 10) - 1,
    256 << 10,
    (256 << 10) + 1,
    1_000_003,
    3 << 20,
    8 << 20,
    (8 << 20) + 1,
];
/// Number of files of at most one slab each.
const SMALL_FILES: u64 = 300;
/// Sizes in bytes of the files that bring the tree to its full size. The sizes are used in this order, again
/// and again.
const BULK: [u64; 5] = [64 << 10, 256 << 10, (1 << 20) + 17, 4 << 20, 12 << 20];

/// Size of the smallest tree in bytes. The files that are in every tree need no more than this.
pub(super) const TREE_BYTES_MIN: u64 = 32 << 20;
const SEVERAL_PIECES_BYTES: u64 = (9 << 20) + 5;
/// Upper bound of the size of all files with odd names or modes, in bytes.
const ODD_BYTES: u64 = 16 << 10;

const _: () = {
    let mut bytes = SMALL_FILES * PAGE_BYTES as u64 + SEVERAL_PIECES_BYTES + ODD_BYTES;
    let mut edge = 0;
    while edge < EDGES.len() {
        bytes += EDGES[edge];
        edge += 1;
    }
    assert!(bytes <= TREE_BYTES_MIN);
};

/// Makes a tree of about `bytes` bytes. `seed` determines the values of the bytes. If `bytes` is less than
/// [`TREE_BYTES_MIN`], the tree may be larger: some files are in every tree.
pub(super) fn make(root: &Path, seed: u64, bytes: u64) -> io::Result<()> {
    let mut maker = Maker::new(seed);
    for (number, size) in EDGES.iter().enumerate() {
        maker.file(&root.join("edges").join(format!("{number:02}-{size}")), *size)?;
    }
    for number in 0..SMALL_FILES {
        let size = maker.random.u64(..=4096);
        maker.file(&root.join(format!("small/{:02}/{number:04}", number % 16)), size)?;
    }
    let deep = (0..30).fold(root.join("deep"), |path, level| path.join(format!("level-{level:02}")));
    maker.file(&deep.join("one byte at the bottom"), 1)?;
    maker.file(&deep.join("several pieces"), SEVERAL_PIECES_BYTES)?;
    fs::create_dir_all(root.join("empty/of/everything"))?;
    let odd = root.join("odd names");
    for name in
        [&b"with space"[..], b"new\nline", b"\xff\xfe no text", b"-rf", b"...", "\u{fc}ml\u{e4}ut".as_bytes()]
    {
        maker.file(&odd.join(OsStr::from_bytes(name)), 100)?;
    }
    // The name is longer than a small message's header has room for, and the file is empty.
    maker.file(&odd.join("x".repeat(200)), 0)?;
    for (name, mode) in [("read only", 0o444), ("program", 0o755), ("private", 0o600)] {
        let path = root.join("modes").join(name);
        maker.file(&path, 5000)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    let sizes = BULK.iter().cycle();
    for (number, size) in sizes.enumerate() {
        if maker.made >= bytes {
            break;
        }
        maker.file(&root.join(format!("bulk/{:02}/{number:05}", number % 8)), *size)?;
    }
    Ok(())
}

struct Maker {
    block: Vec<u8>,
    random: fastrand::Rng,
    files: u64,
    made: u64,
}

impl Maker {
    fn new(seed: u64) -> Self {
        let (mut random, mut block) = (fastrand::Rng::with_seed(seed), vec![0; BLOCK_BYTES]);
        random.fill(&mut block);
        Self { block, random, files: seed << 32, made: 0 }
    }

    /// Makes a file whose pages all begin with the file's number and the page's number. No two pages are
    /// equal, so the file's hash shows a page in the wrong place.
    fn file(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        self.files += 1;
        self.made += bytes;
        let mut file = File::create_new(path)?;
        let (mut left, mut page) = (bytes, 0u64);
        while left > 0 {
            for at in (0..BLOCK_BYTES).step_by(PAGE_BYTES) {
                self.block[at..at + 8].copy_from_slice(&self.files.to_le_bytes());
                self.block[at + 8..at + 16].copy_from_slice(&page.to_le_bytes());
                page += 1;
            }
            let now = usize::try_from(left).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
            file.write_all(&self.block[..now])?;
            left -= now as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::verify::Manifest;

    #[test]
    fn two_runs_make_the_same_and_two_seeds_do_not() {
        let root = tempfile::tempdir().unwrap();
        let manifests: Vec<_> = [("a", 1), ("b", 1), ("c", 2)]
            .into_iter()
            .map(|(name, seed)| {
                let root = root.path().join(name);
                make(&root, seed, 0).unwrap();
                Manifest::below(&root, drop).unwrap()
            })
            .collect();
        assert_eq!(manifests[0].compare(&manifests[1]).count, 0);
        assert!(manifests[0].files() > 300);
        assert!(manifests[0].compare(&manifests[2]).count > 100);
    }
}
