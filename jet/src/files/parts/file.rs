//! Parts as files: how a part is named, opened, and told from other files.

use super::Key;
use crate::files::header::MODE_MASK;
use crate::files::path::PART_PREFIX;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// Device and inode, which tell a file from every other of this system while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub device: u64,
    pub inode: u64,
}

impl Identity {
    // The types of a stat's fields differ between architectures.
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, trivial_numeric_casts)]
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
    }
}

pub(super) fn identity_of(file: &OwnedFd) -> Result<Identity, Errno> {
    rustix::fs::fstat(file).map(|stat| Identity::of(&stat))
}

/// Makes an empty part, and removes one of the same name that an earlier receiver left.
pub(super) fn create(directory: &OwnedFd, key: Key) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let name = part_name(key);
    let make = || open_beneath(directory, name.as_bytes(), flags, Mode::RUSR | Mode::WUSR);
    match make() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(directory, &*name, AtFlags::empty())?;
            make()
        }
        made => made,
    }
}

/// Shows other receivers that this file may be written to, until the last write to it has ended. The shared
/// lock belongs to the open file, which a write in flight keeps open.
pub(super) fn lock_shared(file: &OwnedFd) {
    // A file system without locks shows other receivers nothing.
    let _ = flock(file, FlockOperation::NonBlockingLockShared);
}

pub(super) fn part_name((sender, file_id): Key) -> String {
    // PART_PREFIX is ASCII.
    format!("{}{sender:016x}-{file_id:x}", String::from_utf8_lossy(PART_PREFIX))
}

pub(super) fn length_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

pub(super) fn mode_of(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode & MODE_MASK))
}

pub(super) fn open_beneath(
    directory: impl std::os::fd::AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, OsStr::from_bytes(path), flags, mode, resolve)
}
