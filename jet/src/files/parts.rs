//! Files on their way: hidden parts below the receiver's directory, and how they get their names.
//!
//! Nothing here follows a symbolic link or leaves the directory: paths were checked for `..` before they come here,
//! directories are opened with `openat2` and `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, and everything else is one
//! component below an open directory.

use super::header::MODE_MASK;
mod sweep;

pub use sweep::SweepError;

use super::path::{PART_PREFIX, RelativePath, printable};
use jet_wire::SLAB_BYTES;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Directories that are kept open.
const DIRECTORIES_MAX: usize = 64;

/// A file of a sender: (its identity, its number for the file).
pub type Key = (u64, u64);

/// A place in the table of open parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartIndex(usize);

/// A file has its name.
#[derive(Debug)]
pub struct Named {
    /// Its directory, to be synced.
    pub directory: Rc<OwnedFd>,
    /// It got it just now, and not from the same message before.
    pub first: bool,
}

/// The receiver's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutError {
    /// Not made, or not opened.
    #[error("cannot use {} as --out: {source}; name a directory that this user may write", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another receiver removes parts in it at this moment.
    #[error("another receiver sweeps {}; start again when it has registered", path.display())]
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
    directory: Rc<OwnedFd>,
    directory_path: Vec<u8>,
    name: Vec<u8>,
    file_bytes: u64,
    buffered: Option<Rc<OwnedFd>>,
    direct: Option<Rc<OwnedFd>>,
    /// The file system takes no `O_DIRECT` here.
    no_direct: bool,
    /// Messages that write to it.
    users: u32,
    used_at: u64,
    /// Has its name: a message that came twice finds it so.
    named: bool,
    /// Named or given up: closed when its last user is gone.
    discarded: bool,
}

/// The directory that files are received into, and at most so many of them open.
#[derive(Debug)]
pub struct Parts {
    root: Rc<OwnedFd>,
    parts: Vec<Option<Part>>,
    by_key: HashMap<Key, usize>,
    directories: HashMap<Vec<u8>, (Rc<OwnedFd>, u64)>,
    clock: u64,
    direct: bool,
    /// Why `O_DIRECT` was refused, until somebody asks.
    direct_refusal: Option<io::Error>,
}

impl Parts {
    /// Makes the directory where it is not there. At most `open_max` parts are open at once. With `direct`, `O_DIRECT`
    /// is tried. As long as it lives, no other receiver can sweep the directory.
    ///
    /// # Errors
    /// [`OutError`].
    pub fn new(out: &Path, open_max: usize, direct: bool) -> Result<Self, OutError> {
        let failed = |source: io::Error| OutError::Open { path: out.to_owned(), source };
        std::fs::create_dir_all(out).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(out, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        match beneath(&root, b".", flags, Mode::empty()) {
            Ok(_) => {}
            Err(Errno::NOSYS) => return Err(OutError::NoOpenat2),
            Err(errno) => return Err(failed(errno.into())),
        }
        sweep::share(&root, out)?;
        Ok(Self {
            root: Rc::new(root),
            parts: (0..open_max).map(|_| None).collect(),
            by_key: HashMap::with_capacity(open_max),
            directories: HashMap::with_capacity(DIRECTORIES_MAX),
            clock: 0,
            direct,
            direct_refusal: None,
        })
    }

    /// Opens the part of a file for a message, and counts the message as its user until [`Self::leave`].
    ///
    /// # Errors
    /// What the system says; `InvalidInput` where the file's length is another than before.
    ///
    /// # Panics
    /// Where as many parts as may be open are all in use: the caller takes fewer messages at once.
    pub fn enter(&mut self, key: Key, path: RelativePath<'_>, file_bytes: u64) -> io::Result<PartIndex> {
        self.clock += 1;
        if let Some(&index) = self.by_key.get(&key) {
            let part = self.parts[index].as_mut().expect("indexed parts exist");
            if part.file_bytes != file_bytes {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            part.users += 1;
            part.used_at = self.clock;
            return Ok(PartIndex(index));
        }
        let (directory_path, name) = path.split();
        let directory = self.directory(directory_path)?;
        let directory_path = directory_path.map_or(&[][..], RelativePath::as_bytes).to_vec();
        let index = self.vacant();
        self.parts[index] = Some(Part {
            key,
            directory,
            directory_path,
            name: name.to_vec(),
            file_bytes,
            buffered: None,
            direct: None,
            no_direct: !self.direct,
            users: 1,
            used_at: self.clock,
            named: false,
            discarded: false,
        });
        self.by_key.insert(key, index);
        if let Err(error) = self.file(PartIndex(index), false) {
            self.discard(PartIndex(index));
            self.leave(PartIndex(index));
            return Err(error);
        }
        Ok(PartIndex(index))
    }

    /// How the part's file will be called, printable.
    pub fn name(&self, index: PartIndex) -> String {
        self.parts[index.0].as_ref().map_or_else(String::new, |part| printable(&part.name))
    }

    /// A message is done with its part.
    pub fn leave(&mut self, index: PartIndex) {
        let part = self.part(index);
        part.users -= 1;
        if part.users == 0 && part.discarded {
            self.parts[index.0] = None;
        }
    }

    /// A descriptor of the part: with `O_DIRECT` where that is wanted and possible; the flag says which it is.
    ///
    /// # Errors
    /// What the system says.
    pub fn file(&mut self, index: PartIndex, want_direct: bool) -> io::Result<(Rc<OwnedFd>, bool)> {
        let part = self.parts[index.0].as_mut().expect("a part in use exists");
        if want_direct && !part.no_direct {
            if part.direct.is_none() {
                match part.open(OFlags::DIRECT) {
                    Ok(file) => part.direct = Some(Rc::new(file)),
                    Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                        self.refuse_direct(index, Errno::INVAL.into());
                        return self.file(index, false);
                    }
                    Err(errno) => return Err(errno.into()),
                }
            }
            if let Some(file) = &part.direct {
                return Ok((Rc::clone(file), true));
            }
        }
        if part.buffered.is_none() {
            let opened = match part.open(OFlags::empty()) {
                // Somebody removed the directory that was kept open: make it again.
                Err(Errno::NOENT) => {
                    let path = part.directory_path.clone();
                    self.directories.remove(&path);
                    let path = RelativePath::new(&path).ok();
                    let directory = self.directory(path)?;
                    let part = self.part(index);
                    part.directory = directory;
                    part.open(OFlags::empty())
                }
                opened => opened,
            };
            self.part(index).buffered = Some(Rc::new(opened?));
        }
        let file = self.part(index).buffered.as_ref().expect("opened above");
        Ok((Rc::clone(file), false))
    }

    /// The file system refused a direct write to this part: it is written through the page cache from now on.
    pub fn refuse_direct(&mut self, index: PartIndex, error: io::Error) {
        let part = self.part(index);
        part.no_direct = true;
        part.direct = None;
        self.direct_refusal.get_or_insert(error);
    }

    /// Why `O_DIRECT` was refused, if it was.
    pub fn direct_refusal(&self) -> Option<&io::Error> {
        self.direct_refusal.as_ref()
    }

    /// The part takes its name and permission bits, unless it did already.
    ///
    /// # Errors
    /// What the system says, EISDIR where the name is a directory's.
    pub fn complete(&mut self, index: PartIndex, mode: u16) -> io::Result<Named> {
        let part = self.part(index);
        if part.named {
            return Ok(Named { directory: Rc::clone(&part.directory), first: false });
        }
        let (file, _) = self.file(index, false)?;
        rustix::fs::fchmod(&*file, mode_of(mode))?;
        let part = self.part(index);
        let (name, part_name) = (OsStr::from_bytes(&part.name), part_name(part.key));
        rustix::fs::renameat(&part.directory, &*part_name, &part.directory, name)?;
        part.named = true;
        part.discarded = true;
        let (key, directory) = (part.key, Rc::clone(&part.directory));
        self.by_key.remove(&key);
        Ok(Named { directory, first: true })
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
        }
    }

    /// A file of several pieces is whole: see [`Self::complete`].
    ///
    /// `again` says that the message was sent before: then the file may have its name already.
    ///
    /// # Errors
    /// What the system says; `NotFound` where there is no part, or one of another length.
    pub fn complete_file(
        &mut self,
        key: Key,
        path: RelativePath<'_>,
        file_bytes: u64,
        mode: u16,
        again: bool,
    ) -> io::Result<Named> {
        let (directory_path, name) = path.split();
        let directory = self.directory(directory_path)?;
        let length_of = |name: &OsStr| {
            rustix::fs::statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW)
                .map(|stat| u64::try_from(stat.st_size).unwrap_or(0))
        };
        match length_of(OsStr::new(&part_name(key))) {
            Ok(length) if length == file_bytes => {}
            Ok(_) => return Err(io::ErrorKind::NotFound.into()),
            Err(Errno::NOENT) => {
                return if again && length_of(OsStr::from_bytes(name)) == Ok(file_bytes) {
                    Ok(Named { directory, first: false })
                } else {
                    Err(io::ErrorKind::NotFound.into())
                };
            }
            Err(errno) => return Err(errno.into()),
        }
        let index = self.enter(key, path, file_bytes)?;
        let completed = self.complete(index, mode);
        self.leave(index);
        completed
    }

    /// The sender gave the file up: what was written is removed.
    ///
    /// # Errors
    /// What the system says.
    pub fn abandon_file(&mut self, key: Key, path: RelativePath<'_>) -> io::Result<()> {
        if let Some(&index) = self.by_key.get(&key) {
            self.discard(PartIndex(index));
            if self.part(PartIndex(index)).users == 0 {
                self.parts[index] = None;
            }
            return Ok(());
        }
        let directory = self.directory(path.split().0)?;
        match rustix::fs::unlinkat(&*directory, &*part_name(key), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a directory with these permission bits. Returns it, to be synced.
    ///
    /// # Errors
    /// What the system says.
    pub fn make_directory(&mut self, path: RelativePath<'_>, mode: u16) -> io::Result<Rc<OwnedFd>> {
        let directory = self.directory(Some(path))?;
        rustix::fs::fchmod(&*directory, mode_of(mode))?;
        Ok(directory)
    }

    /// Opens a directory, and makes it where it is not there. `None`: the receiver's own.
    fn directory(&mut self, path: Option<RelativePath<'_>>) -> io::Result<Rc<OwnedFd>> {
        let Some(path) = path else { return Ok(Rc::clone(&self.root)) };
        self.clock += 1;
        let clock = self.clock;
        if let Some((directory, used_at)) = self.directories.get_mut(path.as_bytes()) {
            *used_at = clock;
            return Ok(Rc::clone(directory));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match beneath(&self.root, path.as_bytes(), flags, Mode::empty()) {
            Ok(directory) => Rc::new(directory),
            Err(Errno::NOENT) => {
                let mut at = Rc::clone(&self.root);
                for component in path.as_bytes().split(|&byte| byte == b'/') {
                    match rustix::fs::mkdirat(&*at, OsStr::from_bytes(component), Mode::from_raw_mode(0o777))
                    {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                    at = Rc::new(beneath(&at, component, flags, Mode::empty())?);
                }
                at
            }
            Err(errno) => return Err(errno.into()),
        };
        if self.directories.len() >= DIRECTORIES_MAX {
            let oldest = self.directories.iter().min_by_key(|(_, (_, used_at))| *used_at);
            if let Some(oldest) = oldest.map(|(path, _)| path.clone()) {
                self.directories.remove(&oldest);
            }
        }
        self.directories.insert(path.as_bytes().to_vec(), (Rc::clone(&directory), clock));
        Ok(directory)
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
        self.forget(index);
        index
    }

    fn forget(&mut self, index: usize) {
        if let Some(part) = self.parts[index].take() {
            self.by_key.remove(&part.key);
        }
    }

    fn part(&mut self, index: PartIndex) -> &mut Part {
        self.parts[index.0].as_mut().expect("a part in use exists")
    }
}

impl Part {
    fn open(&self, more: OFlags) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | more;
        let name = part_name(self.key);
        let file = beneath(&self.directory, name.as_bytes(), flags, Mode::RUSR | Mode::WUSR)?;
        if self.file_bytes > SLAB_BYTES as u64 {
            // The length first: writes within it run beside each other, writes that extend it one after the other.
            rustix::fs::ftruncate(&file, self.file_bytes)?;
        }
        Ok(file)
    }
}

fn part_name((sender, file_id): Key) -> String {
    // PART_PREFIX is ASCII.
    format!("{}{sender:016x}-{file_id:x}", String::from_utf8_lossy(PART_PREFIX))
}

fn mode_of(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode & MODE_MASK))
}

fn beneath(
    directory: impl std::os::fd::AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, OsStr::from_bytes(path), flags, mode, resolve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn path(text: &str) -> RelativePath<'_> {
        RelativePath::new(text.as_bytes()).unwrap()
    }

    fn write(parts: &mut Parts, index: PartIndex, bytes: &[u8], offset: u64) {
        let (file, direct) = parts.file(index, false).unwrap();
        assert!(!direct);
        assert_eq!(rustix::io::pwrite(&*file, bytes, offset).unwrap(), bytes.len());
    }

    #[test]
    fn a_part_takes_its_name_when_it_is_complete_and_not_before() {
        let out = tempfile::tempdir().unwrap();
        let mut parts = Parts::new(out.path(), 2, false).unwrap();
        let name = path("a/b/file");
        let index = parts.enter((1, 1), name, 3).unwrap();
        write(&mut parts, index, b"abc", 0);
        assert!(!out.path().join("a/b/file").exists());
        parts.complete(index, 0o640).unwrap();
        parts.leave(index);
        let file = out.path().join("a/b/file");
        assert_eq!(fs::read(&file).unwrap(), b"abc");
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(out.path().join("a/b")).unwrap().count(), 1);
    }

    #[test]
    fn a_message_that_came_twice_completes_its_file_once() {
        let out = tempfile::tempdir().unwrap();
        let mut parts = Parts::new(out.path(), 2, false).unwrap();
        let first = parts.enter((1, 1), path("file"), 1).unwrap();
        let second = parts.enter((1, 1), path("file"), 1).unwrap();
        assert_eq!(first, second);
        write(&mut parts, first, b"x", 0);
        for (index, is_first) in [(first, true), (second, false)] {
            assert_eq!(parts.complete(index, 0o600).unwrap().first, is_first);
            parts.leave(index);
        }
        assert_eq!(fs::read(out.path().join("file")).unwrap(), b"x");
    }

    #[test]
    fn another_receiver_goes_on_with_a_part() {
        let out = tempfile::tempdir().unwrap();
        let (key, name) = ((7, 1), path("file"));
        for (at, bytes) in [(0, b"ab"), (2, b"cd")] {
            let mut parts = Parts::new(out.path(), 1, false).unwrap();
            let index = parts.enter(key, name, 4).unwrap();
            write(&mut parts, index, bytes, at);
            parts.leave(index);
        }
        let mut parts = Parts::new(out.path(), 1, false).unwrap();
        parts.complete_file(key, name, 4, 0o600, false).unwrap();
        assert_eq!(fs::read(out.path().join("file")).unwrap(), b"abcd");
        // Said twice: the same; said for what never was: an error.
        parts.complete_file(key, name, 4, 0o600, true).unwrap();
        assert!(parts.complete_file((7, 2), path("other"), 4, 0o600, true).is_err());
    }

    #[test]
    fn more_parts_than_may_be_open_are_closed_and_opened_again() {
        let out = tempfile::tempdir().unwrap();
        let mut parts = Parts::new(out.path(), 2, false).unwrap();
        let names = ["d/0", "d/1", "d/2", "e/3"];
        for (round, bytes) in [b"ab", b"cd"].into_iter().enumerate() {
            for (number, name) in names.iter().enumerate() {
                let index = parts.enter((1, number as u64), path(name), 4).unwrap();
                write(&mut parts, index, bytes, 2 * round as u64);
                parts.leave(index);
            }
        }
        for (number, name) in names.iter().enumerate() {
            parts.complete_file((1, number as u64), path(name), 4, 0o600, false).unwrap();
            assert_eq!(fs::read(out.path().join(name)).unwrap(), b"abcd");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let (out, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(elsewhere.path(), out.path().join("link")).unwrap();
        let mut parts = Parts::new(out.path(), 2, false).unwrap();
        for name in ["link/file", "link/deep/file"] {
            let error = parts.enter((1, 1), path(name), 1).unwrap_err();
            assert!(matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)), "{error}");
        }
        assert!(parts.make_directory(path("link"), 0o700).is_err());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        // A link in the file's own place is replaced, not followed.
        std::os::unix::fs::symlink(elsewhere.path().join("target"), out.path().join("file")).unwrap();
        let index = parts.enter((1, 2), path("file"), 1).unwrap();
        write(&mut parts, index, b"x", 0);
        parts.complete(index, 0o600).unwrap();
        parts.leave(index);
        assert!(!elsewhere.path().join("target").exists());
        assert_eq!(fs::read(out.path().join("file")).unwrap(), b"x");
    }

    #[test]
    fn what_is_given_up_is_removed_and_what_was_left_is_swept() {
        let out = tempfile::tempdir().unwrap();
        let mut parts = Parts::new(out.path(), 4, false).unwrap();
        let index = parts.enter((1, 1), path("a/file"), 1).unwrap();
        parts.leave(index);
        parts.abandon_file((1, 1), path("a/file")).unwrap();
        parts.abandon_file((1, 1), path("a/file")).unwrap();
        assert_eq!(fs::read_dir(out.path().join("a")).unwrap().count(), 0);
        for (number, name) in ["x", "a/y", "a/b/z"].into_iter().enumerate() {
            let index = parts.enter((2, number as u64), path(name), 1).unwrap();
            parts.leave(index);
        }
        assert_eq!(parts.sweep().unwrap(), 3);
        assert_eq!(parts.sweep().unwrap(), 0);
    }

    #[test]
    fn a_length_that_changes_is_refused() {
        let out = tempfile::tempdir().unwrap();
        let mut parts = Parts::new(out.path(), 2, false).unwrap();
        let index = parts.enter((1, 1), path("file"), 10).unwrap();
        parts.leave(index);
        assert_eq!(parts.enter((1, 1), path("file"), 11).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
