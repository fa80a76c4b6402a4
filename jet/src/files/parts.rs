//! Files on their way: hidden parts below the receiver's directory, and how they get their names.
//!
//! Only the beginning of a file makes its part. A piece finds it, or hears that it is gone; then its sender
//! begins anew. So no part has holes where pieces were written to another.
//!
//! Nothing here follows a symbolic link or leaves the directory: paths were checked for `..` before they come
//! here, directories are opened with `openat2` and `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, and everything
//! else is one component below an open directory.

mod directories;
mod file;
mod lasting;
mod ledger;
mod naming;
mod sweep;
#[cfg(test)]
mod tests;

pub use lasting::Unsynced;
pub use naming::Found;
pub(crate) use naming::set_mode;
pub use sweep::{SweepError, Swept};

use super::path::{RelativePath, printable};
use super::proof::{Hash, Sum};
use directories::Directories;
use file::{Identity, beneath, create, hold, identity_of, length_of, part_name};
use jet_fabric::advice::Advised;
use jet_wire::SLAB_BYTES;
use lasting::Sync;
use ledger::Ledgers;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

/// A file of a sender: (its identity, its number for the file).
pub type Key = (u64, u64);

/// A place in the table of open parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartIndex(usize);

/// A file cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// Its part is not there: never begun, removed, or discarded.
    #[error("its part is gone")]
    Gone,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for PartError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The receiver's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutError {
    /// Not made, not opened, or not to be written to.
    #[error("cannot use {} as --out: {}", path.display(),
            Advised { error: source, otherwise: "name a directory that this user may write" })]
    Open {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another receiver removes parts in it at this moment.
    #[error("another receiver is removing old parts in {} (--sweep); start again in a \
             moment", path.display())]
    Swept {
        /// The directory.
        path: PathBuf,
    },
    /// No `openat2`.
    #[error("this kernel has no openat2 (Linux 5.6), without which paths cannot be confined to --out")]
    NoOpenat2,
}

#[derive(Debug)]
struct Part {
    key: Key,
    path: Vec<u8>,
    /// The one that it lay in when it was opened.
    directory: Rc<OwnedFd>,
    /// None: the file of one message, whose identity is read when it is opened with `O_DIRECT`.
    identity: Option<Identity>,
    file_bytes: u64,
    buffered: Rc<OwnedFd>,
    direct: Option<Rc<OwnedFd>>,
    /// The file system takes no `O_DIRECT` here.
    no_direct: bool,
    /// Messages that write to it.
    users: u32,
    used_at: u64,
    /// Its file is taking its name: nothing is written to it any more.
    naming: bool,
    /// Has its name: a message that came twice finds it so.
    named: bool,
    /// Named, given up or gone: closed when its last user is gone.
    discarded: bool,
}

/// The directory that files are received into, and at most so many of them open.
#[derive(Debug)]
pub struct Parts {
    directories: Directories,
    ledgers: Ledgers,
    parts: Vec<Option<Part>>,
    by_key: HashMap<Key, usize>,
    clock: u64,
    began: Instant,
    direct: bool,
    /// Why `O_DIRECT` was refused, until somebody asks.
    direct_refusal: Option<io::Error>,
}

/// How a receiver's directory is used.
#[derive(Clone, Copy, Debug)]
pub struct PartsOptions {
    /// Parts that are open at once.
    pub open_max: usize,
    /// `O_DIRECT` is tried.
    pub direct: bool,
    /// The directory's own name, and those above it, are to last.
    pub fsync: bool,
}

impl Parts {
    /// Makes the directory where it is not there. As long as it lives, no other receiver can sweep the
    /// directory.
    ///
    /// # Errors
    /// [`OutError`].
    pub fn new(out: &Path, options: PartsOptions) -> Result<Self, OutError> {
        let PartsOptions { open_max, direct, fsync } = options;
        Ok(Self {
            directories: Directories::new(out, fsync.then(Sync::of_system))?,
            ledgers: Ledgers::default(),
            parts: (0..open_max).map(|_| None).collect(),
            by_key: HashMap::with_capacity(open_max),
            clock: 0,
            began: Instant::now(),
            direct,
            direct_refusal: None,
        })
    }

    /// A round of work begins: directories are looked for anew, because others may have moved them.
    pub fn look_anew(&mut self) {
        self.directories.forget();
    }

    /// A file of several pieces begins: its part is made, empty and of its full length. One that came twice
    /// changes nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin(
        &mut self,
        key: Key,
        path: RelativePath<'_>,
        file_bytes: u64,
        hash: Option<Hash>,
    ) -> io::Result<()> {
        let known = self.ledgers.get(key);
        if known.is_some() && known == self.look(key, path)? {
            return Ok(());
        }
        self.forget(key);
        let (directory, file) = self.make_part(key, path)?;
        hold(&file);
        let begun =
            rustix::fs::ftruncate(&file, file_bytes).and_then(|()| identity_of(&file)).inspect_err(|_| {
                // Not removable either: then it stays for --sweep.
                let _ = rustix::fs::unlinkat(&directory, &*part_name(key), AtFlags::empty());
            })?;
        self.ledgers.begin(key, begun, file_bytes, hash);
        Ok(())
    }

    /// Opens the part of a file that has begun, for bytes of it, and counts the message as its user until
    /// [`Self::leave`].
    ///
    /// # Errors
    /// [`PartError`]; [`PartError::Gone`] also while the file takes its name: its sender heard before that
    /// all of it was consumed, so what comes now is old.
    ///
    /// # Panics
    /// As [`Self::enter`].
    pub fn enter_to_write(&mut self, key: Key, path: RelativePath<'_>) -> Result<PartIndex, PartError> {
        let index = self.enter(key, path)?;
        if self.part(index).naming {
            self.leave(index);
            return Err(PartError::Gone);
        }
        Ok(index)
    }

    /// Opens the part of a file that has begun, and counts the message as its user until [`Self::leave`].
    ///
    /// # Errors
    /// [`PartError`].
    ///
    /// # Panics
    /// Where as many parts as may be open are all in use: the caller takes fewer messages at once.
    pub fn enter(&mut self, key: Key, path: RelativePath<'_>) -> Result<PartIndex, PartError> {
        let found = self.look(key, path)?;
        let opened = self.by_key.get(&key).map(|&index| {
            let part = self.parts[index].as_ref().expect("indexed parts exist");
            (index, part.identity.map(|identity| (identity, part.file_bytes)))
        });
        // Another file, or another length, than what was begun here or was opened before.
        let stale = found.is_none()
            || self.ledgers.get(key).is_some_and(|known| Some(known) != found)
            || opened.is_some_and(|(_, opened)| opened != found);
        if stale {
            let known = self.ledgers.get(key).or(opened.and_then(|(_, opened)| opened));
            if let (Some((known, _)), Some((found, _))) = (known, found)
                && known == found
            {
                // Its length was changed. Another file in its place would be somebody else's.
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
        let file = match beneath(&directory, name.as_bytes(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(PartError::Gone),
            // A receiver that was killed had given it its file's mode, of a file that its owner may not write
            // to. It is sent again, which costs time. To give it another mode would be more to get right, and
            // this is rare: all of it was there, and only its sync was not over.
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
        // A killed receiver's writes may be on their way still, from memory that is used again by then.
        if self.ledgers.get(key).is_none() && !self.wait_for_writes(&file) {
            rustix::fs::unlinkat(&directory, &*name, AtFlags::empty())?;
            return Err(PartError::Gone);
        }
        hold(&file);
        Ok(self.insert(key, path, directory, file, Some(Identity::of(&stat)), length_of(&stat)))
    }

    /// Makes the part of a file of one message, and counts the message as its user until [`Self::leave`]. Of
    /// a message that came twice the second one has the part.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Panics
    /// As [`Self::enter`].
    pub fn create(&mut self, key: Key, path: RelativePath<'_>, file_bytes: u64) -> io::Result<PartIndex> {
        self.forget(key);
        let (directory, file) = self.make_part(key, path)?;
        if file_bytes > SLAB_BYTES as u64 {
            // The length first: writes within it run beside each other, writes that extend it one after the
            // other.
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
            // A directory was removed since it was looked for.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.directories.forget();
                make(&mut self.directories)
            }
            made => made,
        }
    }

    /// Waits until an earlier receiver's last write to a part has ended, as long as it can have been killed
    /// just now. `false`: that write is still on its way.
    fn wait_for_writes(&self, file: &OwnedFd) -> bool {
        loop {
            if flock(file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK) {
                return true;
            }
            if self.began.elapsed() > sweep::ENDING_MAX {
                return false;
            }
            std::thread::sleep(sweep::ENDING_LOOK);
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
        let index = self.vacant();
        self.clock += 1;
        self.parts[index] = Some(Part {
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

    /// Which file the part's name leads to now, and its length.
    fn look(&mut self, key: Key, path: RelativePath<'_>) -> io::Result<Option<(Identity, u64)>> {
        let mut name = path.split().0.map_or_else(Vec::new, |directory| directory.as_bytes().to_vec());
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(part_name(key).as_bytes());
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match beneath(self.directories.root()?, &name, flags, Mode::empty()) {
            Ok(file) => {
                let stat = rustix::fs::fstat(file)?;
                Ok(Some((Identity::of(&stat), length_of(&stat))))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The part is not what it was: who uses it hears so, and nothing is believed of it any more.
    fn forget(&mut self, key: Key) {
        self.ledgers.forget(key);
        if let Some(index) = self.by_key.remove(&key) {
            let part = self.part(PartIndex(index));
            part.discarded = true;
            if part.users == 0 {
                self.parts[index] = None;
            }
        }
    }

    /// How the part's file will be called, printable.
    pub fn name(&self, index: PartIndex) -> String {
        self.parts[index.0].as_ref().map_or_else(String::new, |part| printable(&part.path))
    }

    /// The whole file's bytes.
    pub fn file_bytes(&mut self, index: PartIndex) -> u64 {
        self.part(index).file_bytes
    }

    /// The hash that pieces of the file are counted with, if any.
    pub fn hash(&mut self, index: PartIndex) -> Option<Hash> {
        let key = self.part(index).key;
        self.ledgers.hash(key)
    }

    /// A message is done with its part.
    pub fn leave(&mut self, index: PartIndex) {
        let part = self.part(index);
        part.users -= 1;
        if part.users == 0 {
            part.naming = false;
            if part.discarded {
                self.parts[index.0] = None;
            }
        }
    }

    /// A descriptor of the part: with `O_DIRECT` where that is wanted and possible; the flag says which it
    /// is.
    ///
    /// # Errors
    /// [`PartError`].
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

    /// The file system refused a direct write to this part: it is written through the page cache from now on.
    pub fn refuse_direct(&mut self, index: PartIndex, error: io::Error) {
        let part = self.part(index);
        part.no_direct = true;
        part.direct = None;
        self.direct_refusal.get_or_insert(error);
    }

    /// How often `--out` was found to lead to another directory than before.
    pub fn replaced(&self) -> u64 {
        self.directories.replaced()
    }

    /// Why `O_DIRECT` was refused, if it was.
    pub fn direct_refusal(&self) -> Option<&io::Error> {
        self.direct_refusal.as_ref()
    }

    /// Whether bytes of the part were written before, as [`Self::written`] told. They are not to be written
    /// again: what comes now may have been damaged on its way, and would lie where good bytes are.
    pub fn has(&mut self, index: PartIndex, from: u64, bytes: u64) -> bool {
        let part = self.part(index);
        let (key, discarded) = (part.key, part.discarded);
        !discarded && self.ledgers.has(key, from, from + bytes)
    }

    /// Bytes of the part may have been written that [`Self::written`] will not tell of. Where they lie on
    /// others that it told of, the part is not believed any more before it was read.
    pub fn doubt(&mut self, index: PartIndex, from: u64, bytes: u64) {
        let part = self.part(index);
        if !part.discarded {
            let key = part.key;
            self.ledgers.doubt(key, from, from + bytes);
        }
    }

    /// Nothing is believed of a part before it was read.
    pub fn doubt_all(&mut self, index: PartIndex) {
        let part = self.part(index);
        if !part.discarded {
            let key = part.key;
            self.ledgers.forget(key);
        }
    }

    /// Closes what no message uses, before the receiver sleeps. A part that was removed meanwhile would keep
    /// its room on the disk, and a directory that was moved away would stay in use. What comes next opens a
    /// part again with a few system calls, and a receiver that sleeps has the time.
    pub fn close_unused(&mut self) {
        self.directories.forget();
        for place in &mut self.parts {
            if let Some(part) = place.take_if(|part| part.users == 0) {
                self.by_key.remove(&part.key);
            }
        }
    }

    /// Bytes of the part were written, or are a hole (without a sum).
    ///
    /// # Errors
    /// [`PartError::Gone`]: they were written to a part that is gone.
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

    /// What was written of the part is removed.
    pub fn discard(&mut self, index: PartIndex) {
        let part = self.part(index);
        if !part.discarded {
            part.discarded = true;
            let key = part.key;
            // Not there, or not removable: then it stays for --sweep.
            let _ = rustix::fs::unlinkat(&part.directory, &*part_name(key), AtFlags::empty());
            self.by_key.remove(&key);
            self.ledgers.forget(key);
        }
    }

    /// The sender gave the file up: what was written is removed.
    ///
    /// # Errors
    /// What the system says.
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

    /// A free place, made by closing the part that was not used for the longest time where there is none.
    fn vacant(&mut self) -> usize {
        if let Some(index) = self.parts.iter().position(Option::is_none) {
            return index;
        }
        let (index, _) = self
            .parts
            .iter()
            .enumerate()
            .filter_map(|(index, part)| part.as_ref().map(|part| (index, part)))
            .filter(|(_, part)| part.users == 0)
            .min_by_key(|(_, part)| part.used_at)
            .expect("fewer messages than parts are taken at once");
        if let Some(part) = self.parts[index].take() {
            self.by_key.remove(&part.key);
        }
        index
    }

    fn part(&mut self, index: PartIndex) -> &mut Part {
        self.parts[index.0].as_mut().expect("a part in use exists")
    }
}

impl Part {
    /// The part once more, with `O_DIRECT`; `NOENT` where its name leads elsewhere.
    fn open_direct(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECT;
        let file = beneath(&self.directory, part_name(self.key).as_bytes(), flags, Mode::empty())?;
        let identity = self.identity.map_or_else(|| identity_of(&self.buffered), Ok)?;
        if identity_of(&file)? != identity {
            return Err(Errno::NOENT);
        }
        hold(&file);
        Ok(file)
    }
}
