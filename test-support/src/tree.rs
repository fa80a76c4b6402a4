//! Directory trees that tests send, and the comparison of two trees.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Returns `length` bytes that depend on the seed: each group of 8 differs from the groups at other positions
/// and of other seeds.
pub fn test_bytes(seed: u64, length: usize) -> Vec<u8> {
    let words =
        (0..length.div_ceil(8) as u64).map(|word| (seed << 40 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// Writes a tree of a few MiB with unusual names, sizes, depths and permissions, empty directories and a
/// link.
pub fn odd_tree(root: &Path) {
    let write = |path: PathBuf, bytes: Vec<u8>| {
        fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        fs::write(&path, bytes).expect("a file");
    };
    let sizes = [0, 1, 4095, 4096, 4097, 65_536, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3_000_001];
    for (number, size) in sizes.into_iter().enumerate() {
        write(root.join(format!("sizes/{size}")), test_bytes(number as u64, size));
    }
    for (seed, number) in (100..).zip(0..200) {
        write(root.join(format!("small/{number:03}")), test_bytes(seed, (number * 37) % 4097));
    }
    let names: [&[u8]; 6] = [b"with space", b"new\nline", b"no \xff\xfe text", b"-rf", b"...", b"quote\"s'"];
    for name in names {
        write(root.join("odd").join(OsStr::from_bytes(name)), test_bytes(7, 50));
    }
    // Paths that are too long for a small message's user header, or for any user header. The files at them
    // are empty, of one piece, or of several.
    let long =
        (0..12).fold(root.join("long"), |path, level| path.join(format!("{level:02}-{}", "y".repeat(30))));
    for (name, size) in [("empty", 0), ("one", 10), ("large", 200_000), ("pieces", 2_500_000)] {
        write(long.join(name), test_bytes(9, size));
        write(root.join("x".repeat(100)).join(name), test_bytes(10, size));
    }
    fs::create_dir_all(root.join("empty/of/everything")).expect("a directory");
    fs::create_dir_all(root.join("y".repeat(150)).join("empty")).expect("a directory");
    std::os::unix::fs::symlink("sizes/1", root.join("link")).expect("a link");
    for (name, mode) in [("sizes/0", 0o400), ("sizes/1", 0o755), ("sizes/4096", 0o644), ("odd", 0o750)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).expect("a mode");
    }
}

/// Writes `count` files of `length` bytes each.
pub fn large_tree(root: &Path, count: u64, length: usize) {
    fs::create_dir_all(root).expect("a directory");
    for number in 0..count {
        fs::write(root.join(format!("{number:03}")), test_bytes(1000 + number, length)).expect("a file");
    }
}

/// Permission bits of an entry, and a hash of the content if it is a file.
pub type Entry = (u32, Option<blake3::Hash>);

/// Returns the names, permission bits and contents of all entries below `root`, without symbolic links.
pub fn snapshot(root: &Path) -> BTreeMap<Vec<u8>, Entry> {
    snapshot_of(root, |_| true)
}

/// Returns what [`snapshot`] returns, for those entries that `counts` accepts. Other entries may be removed
/// meanwhile.
pub fn snapshot_of(root: &Path, counts: impl Fn(&Path) -> bool) -> BTreeMap<Vec<u8>, Entry> {
    let mut entries = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if !counts(&path) {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).expect("metadata");
            if metadata.is_symlink() {
                continue;
            }
            let hash = metadata.is_file().then(|| blake3::hash(&fs::read(&path).expect("a file")));
            let name = path.strip_prefix(root).expect("below").as_os_str().as_bytes().to_vec();
            entries.insert(name, (metadata.mode() & 0o777, hash));
            if metadata.is_dir() {
                pending.push(path);
            }
        }
    }
    entries
}

/// Asserts that both trees hold the same entries.
///
/// # Panics
/// If they differ, with the names of the entries that differ.
#[track_caller]
pub fn assert_same(sent: &Path, received: &Path) {
    let (sent, received) = (snapshot(sent), snapshot(received));
    let differ: Vec<_> = sent
        .keys()
        .chain(received.keys())
        .filter(|name| sent.get(*name) != received.get(*name))
        .map(|name| String::from_utf8_lossy(name))
        .collect();
    assert!(differ.is_empty(), "these differ: {differ:?}");
}
