//! Removal of the parts that receivers which have ended left behind. The parts of a running receiver are
//! kept.
//!
//! Every receiver holds a shared lock (`flock`) on its directory. The lock ends with the receiver and leaves
//! no file. A sweep takes the exclusive lock of the swept directory and of each directory below it. Where a
//! lock is refused, a receiver is running, and everything below that directory is left as it is.
//!
//! A receiver whose directory lies above the swept one has no lock on it, only on each part that it has open.
//! A part that this receiver closed meanwhile is removed. The next message of the part's sender is then
//! rejected, and the sender sends the file again.

use super::file::open_beneath;
use super::{OutError, Parts};
use crate::files::path::{PART_PREFIX, printable};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time to wait for a killed receiver's locks. The locks end with the receiver's last write, and the
/// kernel may finish that write after the process has ended.
pub(super) const ENDING_MAX: Duration = Duration::from_secs(1);
/// Span between two tries to take a lock: `flock` cannot wait with a time limit.
pub(super) const ENDING_RETRY: Duration = Duration::from_millis(10);

/// Reason why a sweep removed no parts, or not all.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Another receiver uses the directory: its parts look like those that were left behind.
    #[error("another receiver uses it; stop that one first, or start without --sweep")]
    InUse,
    /// The file system gives no lock, so nobody can know whether another receiver uses the directory.
    #[error(
        "its file system gives no exclusive lock ({0}), so whether another receiver uses it is not known; \
         remove the .jet-part-* in it by hand"
    )]
    NoLock(#[source] io::Error),
    /// The directory cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of parts that were removed.
    pub parts: u64,
    /// Parts and directories that were left as they are, each with the reason; at most 8 of them.
    pub left: Vec<String>,
    /// Number of parts and directories that were also left as they are, and are not named in [`Swept::left`].
    pub left_out: u64,
}

/// Limit of the entries of [`Swept::left`]. Further parts and directories are only counted.
const LEFT_MAX: usize = 8;

impl Swept {
    fn leave(&mut self, at: &[u8], name: &CStr, why: impl fmt::Display) {
        if self.left.len() < LEFT_MAX {
            self.left.push(format!("{}{}: {why}", printable(at), printable(name.to_bytes())));
        } else {
            self.left_out += 1;
        }
    }
}

/// Reason why a lock was not taken.
enum NotLocked {
    /// Another process has a lock on the same file that excludes this lock.
    InUse,
    NoLock(Errno),
}

impl fmt::Display for NotLocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("another receiver uses it"),
            Self::NoLock(errno) => write!(f, "its file system gives no exclusive lock ({errno})"),
        }
    }
}

/// Takes a lock, and waits for it until the deadline.
fn lock_until(file: &OwnedFd, how: FlockOperation, deadline: Instant) -> Result<(), Errno> {
    loop {
        match flock(file, how) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(ENDING_RETRY),
            result => return result,
        }
    }
}

/// Takes the exclusive lock, and waits for it until the deadline.
fn lock(file: &OwnedFd, deadline: Instant) -> Result<(), NotLocked> {
    lock_until(file, FlockOperation::NonBlockingLockExclusive, deadline).map_err(|errno| match errno {
        Errno::WOULDBLOCK => NotLocked::InUse,
        errno => NotLocked::NoLock(errno),
    })
}

/// Keeps others from sweeping a receiver's directory while its descriptor is open. Waits until the deadline
/// for a sweep that is under way: the sweeping process may have been killed and be about to end.
pub(super) fn share(root: &OwnedFd, out: &Path, deadline: Instant) -> Result<(), OutError> {
    match lock_until(root, FlockOperation::NonBlockingLockShared, deadline) {
        Err(Errno::WOULDBLOCK) => Err(OutError::Swept { path: out.to_owned() }),
        // A file system without shared locks gives no exclusive ones either, so nobody can sweep there.
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Parts {
    /// Removes every part below the directory that no living receiver has open. Parts and directories that
    /// cannot be opened or removed are left, and named in the result.
    ///
    /// # Errors
    /// [`SweepError`]. After an error the directory is not protected from another receiver's sweep any more,
    /// so the caller must not receive into it.
    pub fn sweep(&self) -> Result<Swept, SweepError> {
        let deadline = Instant::now() + ENDING_MAX;
        lock(self.directories.last_root(), deadline).map_err(|error| match error {
            NotLocked::InUse => SweepError::InUse,
            NotLocked::NoLock(errno) => SweepError::NoLock(errno.into()),
        })?;
        let swept = self.remove_parts(deadline)?;
        // Another receiver may sweep between the two locks. This one has no parts yet.
        match flock(self.directories.last_root(), FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(swept),
            Err(Errno::WOULDBLOCK) => Err(SweepError::InUse),
            Err(errno) => Err(SweepError::NoLock(errno.into())),
        }
    }

    fn remove_parts(&self, deadline: Instant) -> io::Result<Swept> {
        let mut swept = Swept::default();
        // Depth first by descriptors, so that no link is followed. Each directory comes with the length of
        // its path.
        let mut pending = vec![(Dir::read_from(self.directories.last_root())?, 0)];
        let mut path = Vec::new();
        while let Some((mut directory, length)) = pending.pop() {
            path.truncate(length);
            while let Some(entry) = directory.next() {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(errno) => {
                        swept.leave(&path, c"", errno);
                        break;
                    }
                };
                let (name, at) = (entry.file_name(), directory.fd()?);
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                if name.to_bytes().starts_with(PART_PREFIX) {
                    match remove_part(at, name, deadline) {
                        Ok(removed) => swept.parts += u64::from(removed),
                        Err(why) => swept.leave(&path, name, why),
                    }
                    continue;
                }
                match open_below(at, name, deadline) {
                    Ok(Some(child)) => {
                        pending.push((std::mem::replace(&mut directory, child), path.len()));
                        path.extend_from_slice(name.to_bytes());
                        path.push(b'/');
                    }
                    Ok(None) => {}
                    Err(why) => swept.leave(&path, name, why),
                }
            }
        }
        Ok(swept)
    }
}

/// Removes a part, unless a receiver has it open. Returns `false` if somebody else removed it.
fn remove_part(directory: BorrowedFd<'_>, name: &CStr, deadline: Instant) -> Result<bool, Why> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // A part that cannot be opened is removed: nobody can know whether a receiver has it open.
    if let Ok(part) = open_beneath(directory, name.to_bytes(), flags, Mode::empty())
        && let Err(error @ NotLocked::InUse) = lock(&part, deadline)
    {
        return Err(error.into());
    }
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a directory that no receiver uses, and keeps receivers from using that directory until it is closed.
/// Returns `None` if the name is not a directory's, or is gone.
fn open_below(directory: BorrowedFd<'_>, name: &CStr, deadline: Instant) -> Result<Option<Dir>, Why> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match open_beneath(directory, name.to_bytes(), flags, Mode::empty()) {
        Ok(child) => {
            lock(&child, deadline)?;
            Ok(Some(Dir::new(child)?))
        }
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT | Errno::XDEV) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Reason why a part or directory was left as it is.
enum Why {
    NotLocked(NotLocked),
    System(Errno),
}

impl From<NotLocked> for Why {
    fn from(error: NotLocked) -> Self {
        Self::NotLocked(error)
    }
}

impl From<Errno> for Why {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLocked(error) => error.fmt(f),
            Self::System(errno) => errno.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::parts::PartsOptions;
    use crate::files::parts::tests::Unprivileged;
    use crate::files::path::RelativePath;
    use std::os::fd::AsFd;

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
        assert_eq!(sweeper.sweep().unwrap(), Swept { parts: 1, ..Swept::default() });
        // After its sweep it is a receiver like others.
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

    /// Starts a receiver while its directory is being swept, and ends the sweep once the receiver waits for
    /// it. Returns the result of the start, and how long it took.
    fn start_beside_a_sweep(out: &Path) -> (Result<(), OutError>, Duration) {
        let root = std::fs::File::open(out).unwrap();
        flock(&root, FlockOperation::NonBlockingLockExclusive).unwrap();
        let (out, (say, hear)) = (out.to_owned(), std::sync::mpsc::channel());
        let began = Instant::now();
        let starting = std::thread::spawn(move || {
            say.send(rustix::thread::gettid()).unwrap();
            parts(&out).map(drop)
        });
        let stat = format!("/proc/self/task/{}/stat", hear.recv().unwrap());
        // The starting thread sleeps between two checks, and nowhere else.
        let sleeps = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
        while !starting.is_finished() && !sleeps() {
            std::thread::yield_now();
        }
        drop(root);
        (starting.join().unwrap(), began.elapsed())
    }

    #[test]
    fn who_was_killed_while_it_swept_is_waited_for() {
        let out = tempfile::tempdir().unwrap();
        // Where the machine stood still for longer than a sweep is waited for, the try says nothing and is
        // repeated.
        while let (Err(error), took) = start_beside_a_sweep(out.path()) {
            assert!(took >= ENDING_MAX, "after {took:?}: {error}");
        }
    }

    /// Returns the paths of everything that a sweep left, without the reasons.
    fn left(swept: &Swept) -> Vec<&str> {
        swept.left.iter().map(|left| left.split(": ").next().unwrap()).collect()
    }

    fn leave_part(directory: &Path, number: u64) {
        let mut parts = parts(directory).unwrap();
        parts.begin((2, number), RelativePath::new(b"left").unwrap(), 8192, None).unwrap();
    }

    #[test]
    fn receivers_of_nested_directories_do_not_sweep_each_others_parts() {
        let out = tempfile::tempdir().unwrap();
        let nested = out.path().join("a");
        let name = RelativePath::new(b"file").unwrap();
        let mut living = parts(&nested).unwrap();
        leave_part(&nested, 1);
        leave_part(&out.path().join("b"), 2);
        living.begin((1, 1), name, 8192, None).unwrap();
        let swept = parts(out.path()).unwrap().sweep().unwrap();
        assert_eq!((swept.parts, left(&swept)), (1, vec!["a"]), "{swept:?}");
        assert!(swept.left[0].contains("another receiver uses it"), "{swept:?}");
        let part = living.enter((1, 1), name).expect("its part was removed");
        living.leave(part);
        drop(living);
        // The reverse: the receiver of the outer directory keeps the parts that it has open.
        let mut above = parts(out.path()).unwrap();
        let name = RelativePath::new(b"a/file").unwrap();
        above.begin((3, 1), name, 8192, None).unwrap();
        let part = above.enter((3, 1), name).unwrap();
        let swept = parts(&nested).unwrap().sweep().unwrap();
        assert_eq!((swept.parts, swept.left.len()), (2, 1), "{swept:?}");
        above.leave(part);
        assert!(above.enter((3, 1), name).is_ok(), "its part was removed");
    }

    #[test]
    fn what_cannot_be_opened_or_removed_is_left_and_named() {
        let out = tempfile::tempdir().unwrap();
        let _user = Unprivileged::in_directory(out.path());
        for (number, directory) in ["before", "lost+found", "read only", "z"].iter().enumerate() {
            leave_part(&out.path().join(directory), number as u64);
        }
        std::fs::create_dir(out.path().join(".jet-part-directory")).unwrap();
        let set_mode = |name: &str, mode| {
            use std::os::unix::fs::PermissionsExt;
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(out.path().join(name), permissions).unwrap();
        };
        set_mode("lost+found", 0o300);
        set_mode("read only", 0o500);
        let swept = parts(out.path()).unwrap().sweep().unwrap();
        let mut left = left(&swept);
        left.sort_unstable();
        assert_eq!(
            (swept.parts, left),
            (2, vec![".jet-part-directory", "lost+found", "read only/.jet-part-0000000000000002-2"]),
            "{swept:?}"
        );
        set_mode("lost+found", 0o700);
        set_mode("read only", 0o700);
        assert_eq!(parts(out.path()).unwrap().sweep().unwrap().parts, 2);
    }

    #[test]
    fn a_part_that_somebody_else_removes_is_no_failure() {
        let out = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(out.path()).unwrap();
        // The part is gone as if it was removed between a look at the directory and the removal.
        let removed = remove_part(root.as_fd(), c".jet-part-gone", Instant::now());
        assert!(matches!(removed, Ok(false)));
    }

    #[test]
    fn of_many_things_that_are_left_only_some_are_named() {
        let out = tempfile::tempdir().unwrap();
        for number in 0..LEFT_MAX + 3 {
            std::fs::create_dir(out.path().join(format!(".jet-part-{number}"))).unwrap();
        }
        let swept = parts(out.path()).unwrap().sweep().unwrap();
        assert_eq!((swept.parts, swept.left.len(), swept.left_out), (0, LEFT_MAX, 3));
    }
}
