//! Receiver's directory and those below it, looked up by their paths in each round of work.
//!
//! A descriptor still leads to its directory after that directory was moved away and another took its place.
//! A descriptor is therefore kept only for one round of work, in which many messages may go to the same
//! directory. After [`Directories::forget`] each path is walked again, and so is the path to `--out` itself.
//! An open part keeps a descriptor of its own directory, because the part is renamed from there.

use super::file::{Identity, identity_of, open_beneath};
use super::sweep;
use super::synced_names::{DirectorySync, SyncedNames};
use super::{OutError, RelativePath};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

pub(super) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

#[derive(Debug)]
pub(super) struct Directories {
    out: PathBuf,
    root: Rc<OwnedFd>,
    identity: Identity,
    replaced: u64,
    /// Whether the receiver's directory was looked up in this round of work.
    root_opened: bool,
    /// Path and descriptor of the directory that was asked for last in this round of work.
    last: Option<(Vec<u8>, Rc<OwnedFd>)>,
    /// Directories whose names in their parents were synced.
    pub(super) synced_names: SyncedNames,
    /// Function that syncs the directories above the receiver's own, if their names must survive a crash.
    pub(super) sync: Option<DirectorySync>,
}

impl Directories {
    /// Opens the receiver's directory, and makes it if it does not exist. With `sync`, the names of the
    /// directory and of those above it survive a crash when this function returns. When `--out` later leads
    /// to another directory, the directories above that one are synced, too.
    pub(super) fn new(out: &Path, sync: Option<DirectorySync>) -> Result<Self, OutError> {
        let failed = |source: io::Error| OutError::Open { path: out.to_owned(), source };
        // A later change of the working directory must not change what a relative path means.
        let out = std::path::absolute(out).map_err(failed)?;
        std::fs::create_dir_all(&out).map_err(failed)?;
        let (root, identity) = open_root(&out, Instant::now() + sweep::ENDING_MAX)?;
        match open_beneath(&root, b".", DIRECTORY, Mode::empty()) {
            Ok(_) => {}
            Err(Errno::NOSYS) => return Err(OutError::NoOpenat2),
            Err(errno) => return Err(failed(errno.into())),
        }
        if let Some(sync) = &sync {
            sync.all_above(&root).map_err(failed)?;
        }
        Ok(Self {
            out,
            root: Rc::new(root),
            identity,
            replaced: 0,
            root_opened: false,
            last: None,
            synced_names: SyncedNames::default(),
            sync,
        })
    }

    /// Returns how often `--out` was found to lead to another directory than before.
    pub(super) fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Returns the directory that `--out` led to when it was looked up last.
    pub(super) fn last_root(&self) -> &OwnedFd {
        &self.root
    }

    /// Ends a round: every directory is looked up again.
    pub(super) fn forget(&mut self) {
        self.root_opened = false;
        self.last = None;
    }

    /// Returns the directory that `--out` leads to in this round. Makes it if it does not exist.
    pub(super) fn root(&mut self) -> io::Result<Rc<OwnedFd>> {
        if self.root_opened {
            return Ok(Rc::clone(&self.root));
        }
        self.last = None;
        match rustix::fs::stat(&self.out) {
            Ok(stat) if Identity::of(&stat) == self.identity => {
                self.root_opened = true;
                return Ok(Rc::clone(&self.root));
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        std::fs::create_dir_all(&self.out)?;
        let (root, identity) = open_root(&self.out, Instant::now()).map_err(|error| match error {
            OutError::Open { source, .. } => source,
            OutError::Swept { .. } | OutError::NoOpenat2 => Errno::BUSY.into(),
        })?;
        if let Some(sync) = &self.sync {
            sync.all_above(&root)?;
        }
        (self.root, self.identity) = (Rc::new(root), identity);
        self.synced_names.clear();
        self.replaced += 1;
        self.root_opened = true;
        Ok(Rc::clone(&self.root))
    }

    /// Opens a directory below the receiver's own, and makes it if it does not exist. `None` stands for the
    /// receiver's own directory.
    pub(super) fn make(&mut self, path: Option<RelativePath<'_>>) -> io::Result<Rc<OwnedFd>> {
        let root = self.root()?;
        let Some(path) = path else { return Ok(root) };
        if let Some((_, directory)) = self.last.as_ref().filter(|(last, _)| last == path.as_bytes()) {
            return Ok(Rc::clone(directory));
        }
        let directory = match open_beneath(&root, path.as_bytes(), DIRECTORY, Mode::empty()) {
            Ok(directory) => Rc::new(directory),
            Err(Errno::NOENT) => self.make_all(root, path)?,
            Err(errno) => return Err(errno.into()),
        };
        self.last = Some((path.as_bytes().to_vec(), Rc::clone(&directory)));
        Ok(directory)
    }

    fn make_all(&mut self, root: Rc<OwnedFd>, path: RelativePath<'_>) -> io::Result<Rc<OwnedFd>> {
        let mut at = root;
        for component in components(path) {
            let made =
                match rustix::fs::mkdirat(&*at, OsStr::from_bytes(component), Mode::from_raw_mode(0o777)) {
                    Ok(()) => true,
                    Err(Errno::EXIST) => false,
                    Err(errno) => return Err(errno.into()),
                };
            at = Rc::new(open_beneath(&at, component, DIRECTORY, Mode::empty())?);
            if made {
                self.synced_names.made(identity_of(&at)?);
            }
        }
        Ok(at)
    }
}

pub(super) fn components(path: RelativePath<'_>) -> impl Iterator<Item = &[u8]> {
    path.as_bytes().split(|&byte| byte == b'/')
}

/// Opens a receiver's directory, and checks that it can be written to. From then on no other receiver can
/// sweep the directory. Waits until the deadline for another receiver's sweep to end.
fn open_root(out: &Path, deadline: Instant) -> Result<(OwnedFd, Identity), OutError> {
    let failed = |errno: Errno| OutError::Open { path: out.to_owned(), source: errno.into() };
    let root = rustix::fs::open(out, DIRECTORY, Mode::empty()).map_err(failed)?;
    rustix::fs::accessat(CWD, out, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(failed)?;
    sweep::share(&root, out, deadline)?;
    let identity = identity_of(&root).map_err(failed)?;
    Ok((root, identity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn path(text: &str) -> Option<RelativePath<'_>> {
        Some(RelativePath::new(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_directory_that_was_moved_away_is_made_anew_in_its_place() {
        let (out, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut directories = Directories::new(out.path(), None).unwrap();
        let before = identity_of(&directories.make(path("a/b")).unwrap()).unwrap();
        fs::rename(out.path().join("a"), archive.path().join("a")).unwrap();
        directories.forget();
        let after = identity_of(&directories.make(path("a/b")).unwrap()).unwrap();
        assert_ne!(before, after);
        assert!(out.path().join("a/b").is_dir());
    }

    #[test]
    fn an_out_that_was_removed_or_moved_away_is_made_anew() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("out");
        let mut directories = Directories::new(&out, None).unwrap();
        for away in ["first", "second"] {
            directories.make(path("a")).unwrap();
            assert!(out.join("a").is_dir());
            fs::rename(&out, parent.path().join(away)).unwrap();
            directories.forget();
        }
        directories.make(path("a")).unwrap();
        fs::remove_dir_all(&out).unwrap();
        directories.forget();
        directories.make(path("b")).unwrap();
        assert!(out.join("b").is_dir());
        assert!(!parent.path().join("second/b").exists());
    }
}
