//! Files that are being received: hidden parts below the receiver's directory, and how a part gets the name
//! of its file.
//!
//! Only a file's `begin` message makes its part. A piece whose part is gone is rejected, and its sender
//! begins the file again. A part therefore never lacks pieces that were written to an earlier part of the
//! same file.
//!
//! No function of this module follows a symbolic link or leaves the receiver's directory. Callers have
//! checked paths for `..`. Directories are opened with `openat2` and `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`.
//! All other files are opened by a single path component, in an open directory.

mod directories;
mod file;
mod ledger;
mod naming;
mod sweep;
mod synced_names;
#[cfg(test)]
mod tests;

pub use naming::Found;
pub(crate) use naming::set_mode;
pub use sweep::{SweepError, Swept};
pub use synced_names::Unsynced;

use super::path::{RelativePath, printable};
use super::proof::{Hash, Sum};
use directories::Directories;
use file::{Identity, create, identity_of, length_of, lock_shared, open_beneath, part_name};
use jet_fabric::advice::Advised;
use jet_wire::SLAB_BYTES;
use ledger::Ledgers;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use slab::Slab;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;
use synced_names::DirectorySync;

/// Key of a file: (the sender's identity, the sender's number for the file).
pub type Key = (u64, u64);

/// Index in the table of open parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartIndex(usize);

/// Error of opening or using a file's part.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// The part does not exist: it was never begun, or was removed or discarded.
    #[error("its part is gone")]
    Gone,
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for PartError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Reason why the receiver's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutError {
    /// The directory cannot be made, opened or written to.
    #[error("cannot use {} as --out: {}", path.display(),
            Advised { error: source, otherwise: "name a directory that this user may write" })]
    Open {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system call that failed.
        source: io::Error,
    },
    /// Another receiver is removing parts in the directory at this moment.
    #[error("another receiver is removing old parts in {} (--sweep); start again in a \
             moment", path.display())]
    Swept {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The kernel has no `openat2`.
    #[error("this kernel has no openat2 (Linux 5.6), without which paths cannot be confined to --out")]
    NoOpenat2,
}

#[derive(Debug)]
struct Part {
    key: Key,
    path: Vec<u8>,
    /// Directory that the part lay in when it was opened.
    directory: Rc<OwnedFd>,
    /// Identity of the part's file. `None` for a file of one message, whose identity is read when it is
    /// opened with `O_DIRECT`.
    identity: Option<Identity>,
    file_bytes: u64,
    buffered: Rc<OwnedFd>,
    direct: Option<Rc<OwnedFd>>,
    /// Whether the part is written without `O_DIRECT`, because of the options or the file system.
    no_direct: bool,
    /// Number of messages that use the part.
    users: u32,
    used_at: u64,
    /// Whether the part is about to be renamed to the file's name. No more bytes are then written to the
    /// part.
    naming: bool,
    /// Whether the part was renamed to the file's name already. If a message is delivered twice, its second
    /// delivery may find the part renamed.
    named: bool,
    /// Whether the part was named, given up or is gone. It is closed when its last user leaves.
    discarded: bool,
}

/// Receiver's directory, with a bounded number of open parts of the files in it.
#[derive(Debug)]
pub struct Parts {
    directories: Directories,
    ledgers: Ledgers,
    parts: Slab<Part>,
    open_max: usize,
    by_key: HashMap<Key, usize>,
    clock: u64,
    began: Instant,
    direct: bool,
    /// First error with which `O_DIRECT` was refused.
    direct_refusal: Option<io::Error>,
}

/// Options for using a receiver's directory.
#[derive(Clone, Copy, Debug)]
pub struct PartsOptions {
    /// Limit of the parts that are open at once.
    pub open_max: usize,
    /// Whether `O_DIRECT` is tried.
    pub direct: bool,
    /// Whether the names of the directory, and of those above it, must survive a crash.
    pub fsync: bool,
}

impl Parts {
    /// Opens the receiver's directory, and makes it if it does not exist. As long as the returned value
    /// lives, no other receiver can sweep the directory.
    ///
    /// # Errors
    /// [`OutError`] says why the directory cannot be used.
    pub fn new(out: &Path, options: PartsOptions) -> Result<Self, OutError> {
        let PartsOptions { open_max, direct, fsync } = options;
        Ok(Self {
            directories: Directories::new(out, fsync.then(DirectorySync::of_system))?,
            ledgers: Ledgers::default(),
            parts: Slab::with_capacity(open_max),
            open_max,
            by_key: HashMap::with_capacity(open_max),
            clock: 0,
            began: Instant::now(),
            direct,
            direct_refusal: None,
        })
    }

    /// Begins a round of work: directories are looked up by their paths again, because others may have moved
    /// them.
    pub fn forget_directories(&mut self) {
        self.directories.forget();
    }

    /// Makes the part of a file of several messages: it has the file's full length and no bytes yet. A
    /// beginning that is delivered twice changes nothing.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn begin(
        &mut self,
        key: Key,
        path: RelativePath<'_>,
        file_bytes: u64,
        hash: Option<Hash>,
    ) -> io::Result<()> {
        let known = self.ledgers.get(key);
        if known.is_some() && known == self.find_file(key, path)? {
            return Ok(());
        }
        self.forget(key);
        let (directory, file) = self.make_part(key, path)?;
        lock_shared(&file);
        let begun =
            rustix::fs::ftruncate(&file, file_bytes).and_then(|()| identity_of(&file)).inspect_err(|_| {
                // If the part cannot be removed either, it stays for --sweep.
                let _ = rustix::fs::unlinkat(&directory, &*part_name(key), AtFlags::empty());
            })?;
        self.ledgers.begin(key, begun, file_bytes, hash);
        Ok(())
    }

    /// Opens the part of a file that has begun, to write bytes to it. Counts the message as the part's user
    /// until [`Self::leave`].
    ///
    /// # Errors
    /// Those of [`Self::enter`]. [`PartError::Gone`] also while the file takes its name: the sender was told
    /// before that all of it was consumed, so this message is an old one.
    ///
    /// # Panics
    /// Panics like [`Self::enter`]: where all places for open parts are in use.
    pub fn enter_to_write(&mut self, key: Key, path: RelativePath<'_>) -> Result<PartIndex, PartError> {
        let index = self.enter(key, path)?;
        if self.part(index).naming {
            self.leave(index);
            return Err(PartError::Gone);
        }
        Ok(index)
    }

    /// Opens the part of a file that has begun, and counts the message as the part's user until
    /// [`Self::leave`].
    ///
    /// # Errors
    /// [`PartError::Gone`] where the part does not exist, or is not the one that was begun or opened before.
    /// [`PartError::Io`] where a system call failed.
    ///
    /// # Panics
    /// Panics where all places for open parts are in use. The caller takes fewer messages at once.
    pub fn enter(&mut self, key: Key, path: RelativePath<'_>) -> Result<PartIndex, PartError> {
        let found = self.find_file(key, path)?;
        let opened = self.by_key.get(&key).map(|&index| {
            let part = &self.parts[index];
            (index, part.identity.map(|identity| (identity, part.file_bytes)))
        });
        // The name leads to another file, or to another length, than was begun or opened here.
        let stale = found.is_none()
            || self.ledgers.get(key).is_some_and(|known| Some(known) != found)
            || opened.is_some_and(|(_, opened)| opened != found);
        if stale {
            let known = self.ledgers.get(key).or(opened.and_then(|(_, opened)| opened));
            if let (Some((known, _)), Some((found, _))) = (known, found)
                && known == found
            {
                // Somebody changed the part's length. Another file in its place would belong to somebody
                // else, and stays.
                let directory = self.directories.make(path.split().0)?;
                let _ = rustix::fs::unlinkat(&directory, &*part_name(key), AtFlags::empty());
            }
            self.forget(key);
            return Err(PartError::Gone);
        }
        if let Some((index, _)) = opened {
            return Ok(self.user_of(index));
        }
        let (directory, name) = (self.directories.make(path.split().0)?, part_name(key));
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match open_beneath(&directory, name.as_bytes(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(PartError::Gone),
            // A receiver that was killed had given the part its final mode, which forbids the owner to write.
            // The file is sent again, which costs time. To change the mode back would be more to get right,
            // and the case is rare: the whole file was there, and only its sync was not over.
            Err(Errno::ACCESS) => {
                self.forget(key);
                return match rustix::fs::unlinkat(&directory, &*name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => Err(PartError::Gone),
                    Err(errno) => Err(errno.into()),
                };
            }
            Err(errno) => return Err(errno.into()),
        };
        let stat = rustix::fs::fstat(&file)?;
        if found != Some((Identity::of(&stat), length_of(&stat))) {
            return Err(PartError::Gone);
        }
        // A killed receiver's writes may still be under way, from memory that is used for other bytes by
        // then.
        if self.ledgers.get(key).is_none() && !self.wait_for_writes(&file) {
            rustix::fs::unlinkat(&directory, &*name, AtFlags::empty())?;
            return Err(PartError::Gone);
        }
        lock_shared(&file);
        Ok(self.insert(key, path, directory, file, Some(Identity::of(&stat)), length_of(&stat)))
    }

    /// Makes the part of a file of one message, and counts the message as the part's user until
    /// [`Self::leave`]. When the same message is delivered again, the second delivery gets a new part, and
    /// the first one's is discarded.
    ///
    /// # Errors
    /// The error of the system call that failed.
    ///
    /// # Panics
    /// Panics like [`Self::enter`]: where all places for open parts are in use.
    pub fn create(&mut self, key: Key, path: RelativePath<'_>, file_bytes: u64) -> io::Result<PartIndex> {
        self.forget(key);
        let (directory, file) = self.make_part(key, path)?;
        if file_bytes > SLAB_BYTES as u64 {
            // The length is set first. Writes within a file's length run beside each other, and writes that
            // extend it run one after the other.
            rustix::fs::ftruncate(&file, file_bytes).inspect_err(|_| {
                let _ = rustix::fs::unlinkat(&directory, &*part_name(key), AtFlags::empty());
            })?;
        }
        Ok(self.insert(key, path, directory, file, None, file_bytes))
    }

    fn make_part(&mut self, key: Key, path: RelativePath<'_>) -> io::Result<(Rc<OwnedFd>, OwnedFd)> {
        let make = |directories: &mut Directories| -> io::Result<(Rc<OwnedFd>, OwnedFd)> {
            let directory = directories.make(path.split().0)?;
            let file = create(&directory, key)?;
            Ok((directory, file))
        };
        match make(&mut self.directories) {
            // A directory was removed since it was looked up.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.directories.forget();
                make(&mut self.directories)
            }
            made => made,
        }
    }

    /// Waits until an earlier receiver's last write to a part has ended. Waits no longer than
    /// [`sweep::ENDING_MAX`] after this receiver's start, because the earlier receiver was killed before this
    /// one started. Returns `false` if the write is still under way then.
    fn wait_for_writes(&self, file: &OwnedFd) -> bool {
        loop {
            if flock(file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK) {
                return true;
            }
            if self.began.elapsed() > sweep::ENDING_MAX {
                return false;
            }
            std::thread::sleep(sweep::ENDING_RETRY);
        }
    }

    fn insert(
        &mut self,
        key: Key,
        path: RelativePath<'_>,
        directory: Rc<OwnedFd>,
        file: OwnedFd,
        identity: Option<Identity>,
        file_bytes: u64,
    ) -> PartIndex {
        self.make_room();
        self.clock += 1;
        let index = self.parts.insert(Part {
            key,
            path: path.as_bytes().to_vec(),
            directory,
            identity,
            file_bytes,
            buffered: Rc::new(file),
            direct: None,
            no_direct: !self.direct,
            users: 1,
            used_at: self.clock,
            naming: false,
            named: false,
            discarded: false,
        });
        self.by_key.insert(key, index);
        PartIndex(index)
    }

    fn user_of(&mut self, index: usize) -> PartIndex {
        self.clock += 1;
        let clock = self.clock;
        let part = self.part(PartIndex(index));
        part.users += 1;
        part.used_at = clock;
        PartIndex(index)
    }

    /// Returns the identity and the length of the file that the part's name leads to now, if there is one.
    fn find_file(&mut self, key: Key, path: RelativePath<'_>) -> io::Result<Option<(Identity, u64)>> {
        let mut name = path.split().0.map_or_else(Vec::new, |directory| directory.as_bytes().to_vec());
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(part_name(key).as_bytes());
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match open_beneath(self.directories.root()?, &name, flags, Mode::empty()) {
            Ok(file) => {
                let stat = rustix::fs::fstat(file)?;
                Ok(Some((Identity::of(&stat), length_of(&stat))))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Forgets a part that was removed or replaced. Messages that use the part get [`PartError::Gone`] from
    /// then on, and the part's ledger is forgotten, too.
    fn forget(&mut self, key: Key) {
        self.ledgers.forget(key);
        if let Some(index) = self.by_key.remove(&key) {
            let part = self.part(PartIndex(index));
            part.discarded = true;
            if part.users == 0 {
                self.parts.remove(index);
            }
        }
    }

    /// Returns the name that the part's file will have, in printable form.
    pub fn name(&self, index: PartIndex) -> String {
        self.parts.get(index.0).map_or_else(String::new, |part| printable(&part.path))
    }

    /// Returns the length of the whole file, in bytes.
    pub fn file_bytes(&mut self, index: PartIndex) -> u64 {
        self.part(index).file_bytes
    }

    /// Returns the kind of hash that pieces of the file are counted with, if any.
    pub fn hash(&mut self, index: PartIndex) -> Option<Hash> {
        let key = self.part(index).key;
        self.ledgers.hash(key)
    }

    /// Ends a message's use of its part.
    pub fn leave(&mut self, index: PartIndex) {
        let part = self.part(index);
        part.users -= 1;
        if part.users == 0 {
            part.naming = false;
            if part.discarded {
                self.parts.remove(index.0);
            }
        }
    }

    /// Returns a descriptor of the part, and whether it has `O_DIRECT`. The descriptor has `O_DIRECT` if the
    /// caller wants it and the file system allows it.
    ///
    /// # Errors
    /// [`PartError::Gone`] where the part's name leads to another file now, or to none. [`PartError::Io`]
    /// where a system call failed.
    pub fn file(&mut self, index: PartIndex, want_direct: bool) -> Result<(Rc<OwnedFd>, bool), PartError> {
        let part = self.part(index);
        if want_direct && !part.no_direct && part.direct.is_none() {
            match part.open_direct() {
                Ok(file) => part.direct = Some(Rc::new(file)),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => self.refuse_direct(index, Errno::INVAL.into()),
                Err(Errno::NOENT) => return Err(PartError::Gone),
                Err(errno) => return Err(errno.into()),
            }
        }
        let part = self.part(index);
        match &part.direct {
            Some(file) if want_direct => Ok((Rc::clone(file), true)),
            _ => Ok((Rc::clone(&part.buffered), false)),
        }
    }

    /// Notes that the file system refused a direct write to the part, with this error. The part is written
    /// through the page cache from now on.
    pub fn refuse_direct(&mut self, index: PartIndex, error: io::Error) {
        let part = self.part(index);
        part.no_direct = true;
        part.direct = None;
        self.direct_refusal.get_or_insert(error);
    }

    /// Returns how often `--out` was found to lead to another directory than before.
    pub fn replaced(&self) -> u64 {
        self.directories.replaced()
    }

    /// Returns the first error with which `O_DIRECT` was refused, if it was.
    pub fn direct_refusal(&self) -> Option<&io::Error> {
        self.direct_refusal.as_ref()
    }

    /// Returns whether [`Self::written`] was called for these bytes of the part. Such bytes must not be
    /// written again: a second delivery's bytes may have been damaged on their way, and would replace good
    /// ones.
    pub fn has(&mut self, index: PartIndex, from: u64, bytes: u64) -> bool {
        let part = self.part(index);
        let (key, discarded) = (part.key, part.discarded);
        !discarded && self.ledgers.has(key, from, from + bytes)
    }

    /// Notes that bytes of the part may have been written without a call of [`Self::written`]. Where they
    /// overlap bytes that were accounted for, the part is not trusted until it was read.
    pub fn doubt(&mut self, index: PartIndex, from: u64, bytes: u64) {
        let part = self.part(index);
        if !part.discarded {
            let key = part.key;
            self.ledgers.doubt(key, from, from + bytes);
        }
    }

    /// Forgets everything that was accounted for in a part. The part is then not trusted until its file was
    /// read again.
    pub fn doubt_all(&mut self, index: PartIndex) {
        let part = self.part(index);
        if !part.discarded {
            let key = part.key;
            self.ledgers.forget(key);
        }
    }

    /// Closes the parts and directories that no message uses, before the receiver sleeps. An open part that
    /// was removed would keep its room on the disk, and an open directory that was moved away would stay in
    /// use. The next message opens its part again with a few system calls.
    pub fn close_unused(&mut self) {
        self.directories.forget();
        self.parts.retain(|_, part| {
            let used = part.users > 0;
            if !used {
                self.by_key.remove(&part.key);
            }
            used
        });
    }

    /// Accounts for bytes of the part that were written, or for a hole, which has no sum of hashes.
    ///
    /// # Errors
    /// [`PartError::Gone`]: the bytes were written to a part that is gone.
    pub fn written(
        &mut self,
        index: PartIndex,
        from: u64,
        bytes: u64,
        sum: Option<&Sum>,
    ) -> Result<(), PartError> {
        let part = self.part(index);
        if part.discarded {
            return Err(PartError::Gone);
        }
        let key = part.key;
        self.ledgers.add(key, from, from + bytes, sum);
        Ok(())
    }

    /// Removes a part and its file, with everything that was written to it.
    pub fn discard(&mut self, index: PartIndex) {
        let part = self.part(index);
        if !part.discarded {
            part.discarded = true;
            let key = part.key;
            // A part that cannot be removed stays for --sweep.
            let _ = rustix::fs::unlinkat(&part.directory, &*part_name(key), AtFlags::empty());
            self.by_key.remove(&key);
            self.ledgers.forget(key);
        }
    }

    /// Removes the part of a file that its sender gave up.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn abandon(&mut self, key: Key, path: RelativePath<'_>) -> io::Result<()> {
        match self.enter(key, path) {
            Ok(index) => {
                self.discard(index);
                self.leave(index);
                Ok(())
            }
            Err(PartError::Gone) => Ok(()),
            Err(PartError::Io(error)) => Err(error),
        }
    }

    /// Closes the unused part that was not used for the longest time, if the table is full.
    fn make_room(&mut self) {
        if self.parts.len() < self.open_max {
            return;
        }
        let unused = self.parts.iter().filter(|(_, part)| part.users == 0);
        let (index, _) =
            unused.min_by_key(|(_, part)| part.used_at).expect("fewer messages than parts are taken at once");
        let part = self.parts.remove(index);
        self.by_key.remove(&part.key);
    }

    fn part(&mut self, index: PartIndex) -> &mut Part {
        self.parts.get_mut(index.0).expect("a part in use exists")
    }
}

impl Part {
    /// Opens the part once more, with `O_DIRECT`. Fails with `NOENT` where the part's name leads to another
    /// file now, or to none.
    fn open_direct(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECT;
        let file = open_beneath(&self.directory, part_name(self.key).as_bytes(), flags, Mode::empty())?;
        let identity = self.identity.map_or_else(|| identity_of(&self.buffered), Ok)?;
        if identity_of(&file)? != identity {
            return Err(Errno::NOENT);
        }
        lock_shared(&file);
        Ok(file)
    }
}
