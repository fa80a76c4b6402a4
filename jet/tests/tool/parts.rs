//! Parts: files that are being received, which have another name until they are complete.

use jet_test_support::tree::{Entry, snapshot_of};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns whether a path is that of a part.
pub fn is_part(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(jet::files::path::PART_PREFIX))
}

/// Returns the entries below a directory without the parts, which others may remove meanwhile.
pub fn snapshot_named(root: &Path) -> BTreeMap<Vec<u8>, Entry> {
    snapshot_of(root, |path| !is_part(path))
}
