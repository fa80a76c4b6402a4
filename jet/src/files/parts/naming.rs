//! The last steps of a file: whether all of it was received, taking its name, and what has to be synced.

use super::file::{Identity, identity_of, mode_of, open_beneath, part_name};
use super::ledger::Verdict;
use super::synced_names::Unsynced;
use super::{Key, PartError, PartIndex, Parts, RelativePath};
use crate::files::proof::Proof;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

/// Result of searching for a file that is to take its name.
#[derive(Debug)]
pub enum Found {
    /// The part has all of the file and can be named. The part stays in use until [`Parts::leave`].
    Proven(PartIndex),
    /// The part's contents are not known. The part stays in use until [`Parts::leave`].
    Unproven(PartIndex),
    /// Some bytes of the file were not written, or are still being written. The part was removed.
    Incomplete,
    /// The part's bytes are not those that the sender read. The part was removed.
    Different,
    /// The file has no part.
    Gone,
}

impl Parts {
    /// Searches for a file whose pieces were all consumed, by this receiver or by one before it.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn find(&mut self, key: Key, path: RelativePath<'_>, proof: Option<Proof>) -> io::Result<Found> {
        let index = match self.enter(key, path) {
            Ok(index) => index,
            Err(PartError::Gone) => return Ok(Found::Gone),
            Err(PartError::Io(error)) => return Err(error),
        };
        let part = self.part(index);
        // Another message still writes to the part, because it was delivered twice. Nobody knows what the
        // part has in the end.
        let written_to = part.users > 1 && !part.naming;
        let refused = match (self.ledgers.verdict(key, proof), proof) {
            _ if written_to => Found::Incomplete,
            (Verdict::Proven, _) => {
                self.part(index).naming = true;
                return Ok(Found::Proven(index));
            }
            (Verdict::Unproven, Some(_)) => {
                self.part(index).naming = true;
                return Ok(Found::Unproven(index));
            }
            (Verdict::Different, _) => Found::Different,
            (Verdict::Incomplete, _) | (Verdict::Unproven, None) => Found::Incomplete,
        };
        self.discard(index);
        self.leave(index);
        Ok(refused)
    }

    /// Opens the file that has this path already, if there is one and it can be read.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn named_file(&mut self, path: RelativePath<'_>) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match open_beneath(self.directories.root()?, path.as_bytes(), flags, Mode::empty()) {
            Ok(file) => {
                let stat = rustix::fs::fstat(&file)?;
                Ok((FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(file))
            }
            // A file that its owner may not read counts as missing: nobody knows what is in it, and it is
            // sent again.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::ACCESS) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Renames the part to its file's name, unless this was done before. Returns `true` if this call renamed
    /// it.
    ///
    /// # Errors
    /// [`PartError::Gone`] where the part was removed or replaced, or lies on another file system than its
    /// name. [`PartError::Io`] where a system call failed, with EISDIR where the name is a directory's.
    pub fn take_name(&mut self, index: PartIndex) -> Result<bool, PartError> {
        let part = self.part(index);
        if part.named {
            return Ok(false);
        }
        if part.discarded {
            return Err(PartError::Gone);
        }
        let path = part.path.clone();
        let path = RelativePath::new(&path).expect("checked before");
        let (above, name) = path.split();
        // Where its directory was moved away meanwhile, the file goes where its path leads now. So the
        // directory is looked up now: this round may have waited for the disk since its own look-up.
        self.directories.forget();
        let directory = self.directories.make(above)?;
        let part = self.part(index);
        let (key, name, part_name) = (part.key, OsStr::from_bytes(name), part_name(part.key));
        // Another receiver to which the message was delivered, too, may have its own part there, half
        // written.
        let renamed = match rustix::fs::statat(&part.directory, &*part_name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if Identity::of(&stat) != identity_of(&part.buffered)? => Err(Errno::NOENT),
            Ok(_) => rustix::fs::renameat(&part.directory, &*part_name, &directory, name),
            Err(errno) => Err(errno),
        };
        match renamed {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::XDEV) => {
                self.forget(key);
                return Err(PartError::Gone);
            }
            Err(errno) => return Err(errno.into()),
        }
        let part = self.part(index);
        part.named = true;
        part.discarded = true;
        self.by_key.remove(&key);
        self.ledgers.forget(key);
        Ok(true)
    }

    /// Returns the directories to sync so that the names in a directory survive a crash: the directory
    /// itself, and those above it that are new.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn unsynced(&mut self, directory: Option<RelativePath<'_>>) -> io::Result<Vec<Unsynced>> {
        self.directories.unsynced(directory)
    }

    /// Returns the directories to sync like [`Self::unsynced`], for a directory that [`Self::make_directory`]
    /// returned.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn unsynced_made(
        &mut self,
        path: RelativePath<'_>,
        directory: Rc<OwnedFd>,
    ) -> io::Result<Vec<Unsynced>> {
        self.directories.unsynced_open(path, directory)
    }

    /// Opens a directory that [`Self::unsynced`] named for this path. Returns `None` if something was moved
    /// meanwhile: the caller asks [`Self::unsynced`] again.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn open_unsynced(
        &mut self,
        directory: Option<RelativePath<'_>>,
        unsynced: &Unsynced,
    ) -> io::Result<Option<Rc<OwnedFd>>> {
        self.directories.open_unsynced(directory, unsynced)
    }

    /// Notes that a directory which [`Self::open_unsynced`] opened was synced.
    pub fn synced(&mut self, synced: Unsynced) {
        self.directories.synced(synced);
    }

    /// Makes a directory with these permission bits, and returns it open. The bits may forbid opening the
    /// directory again.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn make_directory(&mut self, path: RelativePath<'_>, mode: u16) -> io::Result<Rc<OwnedFd>> {
        let directory = self.directories.make(Some(path))?;
        set_mode(&directory, mode)?;
        Ok(directory)
    }
}

/// Sets the permission bits of a file or directory, within [`MODE_MASK`](crate::files::header::MODE_MASK).
///
/// # Errors
/// The error of the system call that failed.
pub(crate) fn set_mode(file: &OwnedFd, mode: u16) -> io::Result<()> {
    Ok(rustix::fs::fchmod(file, mode_of(mode))?)
}
