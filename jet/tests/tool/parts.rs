//! Files on their way, which have another name until they are complete.

use jet_test_support::tree::{Entry, snapshot_of};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether a file is one on its way.
pub fn is_part(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(jet::files::path::PART_PREFIX))
}

/// What is below a directory without files on their way, which others may remove meanwhile.
pub fn snapshot_named(root: &Path) -> BTreeMap<Vec<u8>, Entry> {
    snapshot_of(root, |path| !is_part(path))
}
