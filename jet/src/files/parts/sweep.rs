//! Removing the parts that other receivers left, and never those of one that lives.
//!
//! Every receiver holds a shared lock (`flock`) on its directory, which ends with it and leaves no file. Sweeping takes
//! the exclusive one.

use super::file::beneath;
use super::{OutError, Parts};
use crate::files::path::PART_PREFIX;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// A killed receiver's locks end with the last of its writes, which the kernel lets go of after the process.
pub(super) const ENDING_MAX: Duration = Duration::from_secs(1);
/// Between two looks: no lock that can be waited for has a time limit.
pub(super) const ENDING_LOOK: Duration = Duration::from_millis(10);

/// Parts were not removed, or not all.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Another receiver has the directory: its parts look like those that were left.
    #[error("another receiver uses it; stop that one first, or start without --sweep")]
    InUse,
    /// The file system gives no lock, so nobody can know whether another receiver has the directory.
    #[error(
        "its file system gives no exclusive lock ({0}), so whether another receiver uses it is not known; remove \
         the .jet-part-* in it by hand"
    )]
    NoLock(#[source] io::Error),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Keeps others from sweeping a receiver's directory while its descriptor is open.
pub(super) fn share(root: &OwnedFd, out: &Path) -> Result<(), OutError> {
    match flock(root, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Err(OutError::Swept { path: out.to_owned() }),
        // A file system without shared locks gives no exclusive ones either: nobody can sweep there.
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Parts {
    /// Removes every part below the directory; returns how many there were.
    ///
    /// # Errors
    /// [`SweepError`]. After one the directory is not protected from another's sweep any more: end.
    pub fn sweep(&self) -> Result<u64, SweepError> {
        let deadline = Instant::now() + ENDING_MAX;
        loop {
            match flock(self.directories.last_root(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(ENDING_LOOK),
                Err(Errno::WOULDBLOCK) => return Err(SweepError::InUse),
                Err(errno) => return Err(SweepError::NoLock(errno.into())),
            }
        }
        let swept = self.remove_parts()?;
        // Between the two locks another may sweep; nothing of this receiver is there yet.
        match flock(self.directories.last_root(), FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(swept),
            Err(Errno::WOULDBLOCK) => Err(SweepError::InUse),
            Err(errno) => Err(SweepError::NoLock(errno.into())),
        }
    }

    fn remove_parts(&self) -> io::Result<u64> {
        let mut swept = 0;
        // Depth first by descriptors, so that no link is followed.
        let mut pending = vec![rustix::fs::Dir::read_from(self.directories.last_root())?];
        while let Some(mut directory) = pending.pop() {
            while let Some(entry) = directory.next() {
                let entry = entry?;
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                if name.to_bytes().starts_with(PART_PREFIX) {
                    rustix::fs::unlinkat(directory.fd()?, name, AtFlags::empty())?;
                    swept += 1;
                    continue;
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                match beneath(directory.fd()?, name.to_bytes(), flags, Mode::empty()) {
                    Ok(child) => {
                        let child = rustix::fs::Dir::new(child)?;
                        pending.push(std::mem::replace(&mut directory, child));
                    }
                    Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT | Errno::XDEV) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(swept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::parts::PartsOptions;
    use crate::files::path::RelativePath;

    fn parts(out: &Path) -> Result<Parts, OutError> {
        Parts::new(out, PartsOptions { open_max: 2, direct: false, fsync: false })
    }

    #[test]
    fn a_directory_that_another_receiver_uses_is_not_swept() {
        let out = tempfile::tempdir().unwrap();
        let new = || parts(out.path());
        let (mut living, sweeper) = (new().unwrap(), new().unwrap());
        let name = RelativePath::new(b"file").unwrap();
        living.begin((1, 1), name, 8192, None).unwrap();
        assert!(matches!(sweeper.sweep(), Err(SweepError::InUse)));
        drop(sweeper);
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1, "the part was removed");
        drop(living);
        let sweeper = new().unwrap();
        assert_eq!(sweeper.sweep().unwrap(), 1);
        // Having swept, it is a receiver like others.
        let other = new().unwrap();
        assert!(matches!(other.sweep(), Err(SweepError::InUse)));
    }

    #[test]
    fn a_directory_that_is_being_swept_is_not_used() {
        let out = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(out.path()).unwrap();
        flock(&root, FlockOperation::NonBlockingLockExclusive).unwrap();
        let error = parts(out.path()).unwrap_err();
        assert!(matches!(error, OutError::Swept { .. }), "{error}");
        drop(root);
        parts(out.path()).unwrap();
    }
}
