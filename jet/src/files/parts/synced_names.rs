//! Directories that have to be synced so that a name survives a crash: the one that has the name, and those
//! above it that are new.
//!
//! This module keeps no descriptors of directories, with one exception in [`Unsynced`]. Many files wait for
//! their syncs at once, and each has many directories above it. A directory is therefore opened only when it
//! is about to be synced.

use super::directories::{DIRECTORY, components};
use super::file::{Identity, identity_of, open_beneath};
use super::{Directories, RelativePath};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Limit of the directories that are remembered as synced. Beyond that limit all are forgotten, and each is
/// synced once more when it is next needed.
const SYNCED_NAMES_MAX: usize = 4096;
const WAY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Directory that has to be synced.
#[derive(Clone, Debug)]
pub struct Unsynced {
    /// Length of the path's prefix that leads to the directory, in bytes.
    prefix: usize,
    identity: Identity,
    /// Directory inside this one, with its place. Syncing this directory makes the inner one's name survive a
    /// crash.
    child: Option<(Identity, Place)>,
    /// Descriptor of the directory, where its permission bits may forbid opening it again.
    open: Option<Rc<OwnedFd>>,
}

/// Place that a directory had when its name was synced. The inode number alone says too little: the directory
/// may be moved, or removed and its number given to another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    parent: Identity,
    name: Box<[u8]>,
    born: Born,
}

/// Time at which a directory was made (seconds, nanoseconds), if the file system records it.
type Born = Option<(i64, u32)>;

/// Function that syncs a directory. Tests use a function of their own instead of `fsync`.
pub(super) struct DirectorySync(Box<SyncOne>);

type SyncOne = dyn Fn(&OwnedFd) -> Result<(), Errno>;

impl DirectorySync {
    /// Returns the function that calls `fsync`.
    pub(super) fn of_system() -> Self {
        Self(Box::new(|directory| rustix::fs::fsync(directory)))
    }

    /// Syncs every directory above the given one, up to the root of its file system. An earlier receiver may
    /// have made them and been killed before it synced them. A directory that cannot be opened was not made
    /// by a receiver, and is left out.
    pub(super) fn all_above(&self, directory: &OwnedFd) -> io::Result<()> {
        let up = |at: &OwnedFd| rustix::fs::openat(at, "..", WAY, Mode::empty());
        let mut below = identity_of(directory)?;
        let mut above = up(directory);
        while let Ok(at) = above {
            let identity = identity_of(&at)?;
            if identity == below || identity.device != below.device {
                return Ok(());
            }
            match rustix::fs::openat(&at, ".", DIRECTORY, Mode::empty()) {
                Ok(directory) => (self.0)(&directory)?,
                Err(Errno::ACCESS | Errno::PERM) => {}
                Err(errno) => return Err(errno.into()),
            }
            below = identity;
            above = up(&at);
        }
        match above {
            Err(Errno::ACCESS | Errno::PERM) | Ok(_) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl std::fmt::Debug for DirectorySync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DirectorySync")
    }
}

/// Directories whose names in their parents were synced, with the place of each.
#[derive(Debug, Default)]
pub(super) struct SyncedNames(HashMap<Identity, Place>);

impl SyncedNames {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Forgets a directory that was just made: its inode number may have been another directory's.
    pub(super) fn made(&mut self, directory: Identity) {
        self.0.remove(&directory);
    }

    fn has(&self, directory: Identity, born: Born, parent: Identity, name: &[u8]) -> bool {
        self.0
            .get(&directory)
            .is_some_and(|place| place.parent == parent && place.born == born && *place.name == *name)
    }

    fn insert(&mut self, directory: Identity, place: Place) {
        if self.0.len() >= SYNCED_NAMES_MAX {
            self.0.clear();
        }
        self.0.insert(directory, place);
    }
}

impl Directories {
    /// Returns the directories to sync so that the names in `path`, its own name and those of all directories
    /// above it survive a crash. The deepest directory is last.
    pub(super) fn unsynced(&mut self, path: Option<RelativePath<'_>>) -> io::Result<Vec<Unsynced>> {
        let mut at = self.root()?;
        let mut identity = identity_of(&at)?;
        let mut unsynced = Vec::new();
        let mut prefix = 0;
        for name in path.into_iter().flat_map(components) {
            let below = open_beneath(&at, name, WAY, Mode::empty())?;
            let (child, born) = (identity_of(&below)?, born(&below));
            if !self.synced_names.has(child, born, identity, name) {
                let place = Place { parent: identity, name: name.into(), born };
                unsynced.push(Unsynced { prefix, identity, child: Some((child, place)), open: None });
            }
            // The separator comes before every component but the first.
            prefix += name.len() + usize::from(prefix > 0);
            (at, identity) = (Rc::new(below), child);
        }
        unsynced.push(Unsynced { prefix, identity, child: None, open: None });
        Ok(unsynced)
    }

    /// Returns the directories to sync like [`Self::unsynced`], for a path whose directory is open. That
    /// directory's descriptor is kept for the sync.
    pub(super) fn unsynced_open(
        &mut self,
        path: RelativePath<'_>,
        directory: Rc<OwnedFd>,
    ) -> io::Result<Vec<Unsynced>> {
        let mut unsynced = self.unsynced(Some(path))?;
        if let Some(last) = unsynced.last_mut().filter(|last| identity_of(&directory) == Ok(last.identity)) {
            last.open = Some(directory);
        }
        Ok(unsynced)
    }

    /// Opens a directory that [`Self::unsynced`] named for this path. Returns `None` if another directory, or
    /// nothing, is in its place.
    pub(super) fn open_unsynced(
        &mut self,
        path: Option<RelativePath<'_>>,
        unsynced: &Unsynced,
    ) -> io::Result<Option<Rc<OwnedFd>>> {
        if let Some(open) = &unsynced.open {
            return Ok(Some(Rc::clone(open)));
        }
        let root = self.root()?;
        let directory = match path.map_or(&b""[..], |path| &path.as_bytes()[..unsynced.prefix]) {
            b"" => root,
            path => match open_beneath(&root, path, DIRECTORY, Mode::empty()) {
                Ok(directory) => Rc::new(directory),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            },
        };
        Ok((identity_of(&directory)? == unsynced.identity).then_some(directory))
    }

    /// Notes that a directory was synced.
    pub(super) fn synced(&mut self, synced: Unsynced) {
        if let Some((child, place)) = synced.child {
            self.synced_names.insert(child, place);
        }
    }
}

fn born(directory: &OwnedFd) -> Born {
    let stat = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    known.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::stat;
    use std::cell::RefCell;
    use std::fs;
    use std::path::Path;

    /// Directories that were synced, in their order.
    type Synced = Rc<RefCell<Vec<Identity>>>;

    fn recording(synced: &Synced) -> Option<DirectorySync> {
        let synced = Rc::clone(synced);
        Some(DirectorySync(Box::new(move |directory| {
            synced.borrow_mut().push(identity_of(directory)?);
            Ok(())
        })))
    }

    fn of(path: &Path) -> Identity {
        Identity::of(&stat(path).unwrap())
    }

    fn path(text: &str) -> Option<RelativePath<'_>> {
        Some(RelativePath::new(text.as_bytes()).unwrap())
    }

    /// Syncs all directories that must be synced for the names in the directory `at` to survive a crash.
    /// Returns these directories, the deepest one first.
    fn sync(directories: &mut Directories, at: &str) -> Vec<Identity> {
        let mut unsynced = directories.unsynced(path(at)).unwrap();
        let mut synced = Vec::new();
        while let Some(next) = unsynced.pop() {
            let open = directories.open_unsynced(path(at), &next).unwrap().expect("nothing was moved");
            synced.push(identity_of(&open).unwrap());
            directories.synced(next);
        }
        synced
    }

    #[test]
    fn every_directory_above_is_synced_once() {
        let out = tempfile::tempdir().unwrap();
        let mut directories = Directories::new(out.path(), None).unwrap();
        directories.make(path("a/b/c")).unwrap();
        let of = |path: &str| of(&out.path().join(path));
        assert_eq!(sync(&mut directories, "a/b/c"), [of("a/b/c"), of("a/b"), of("a"), of("")]);
        // The names in the directory itself change with each file. The names of those above were synced
        // before.
        assert_eq!(sync(&mut directories, "a/b/c"), [of("a/b/c")]);
        fs::remove_dir_all(out.path().join("a/b")).unwrap();
        directories.forget();
        directories.make(path("a/b/c")).unwrap();
        assert_eq!(sync(&mut directories, "a/b/c"), [of("a/b/c"), of("a/b"), of("a")]);
    }

    #[test]
    fn a_directory_that_others_moved_is_synced_where_it_is_now() {
        let out = tempfile::tempdir().unwrap();
        let mut directories = Directories::new(out.path(), None).unwrap();
        directories.make(path("a/b")).unwrap();
        directories.make(path("c")).unwrap();
        let of = |path: &str| of(&out.path().join(path));
        let rename = |from: &str, to: &str| fs::rename(out.path().join(from), out.path().join(to)).unwrap();
        sync(&mut directories, "a/b");
        sync(&mut directories, "c");
        for (from, to, above) in
            [("a/b", "a/d", "a"), ("a/d", "c/d", "c"), ("c", "e", ""), ("e/d", "a/b", "a")]
        {
            rename(from, to);
            directories.forget();
            assert_eq!(sync(&mut directories, to), [of(to), of(above)], "{from} to {to}");
        }
    }

    #[test]
    fn a_directory_of_the_same_number_and_name_that_was_made_later_does_not_last() {
        let (parent, child) = (Identity { device: 1, inode: 2 }, Identity { device: 1, inode: 3 });
        let born = Some((1, 0));
        let mut synced_names = SyncedNames::default();
        synced_names.insert(child, Place { parent, name: b"a"[..].into(), born });
        assert!(synced_names.has(child, born, parent, b"a"));
        assert!(!synced_names.has(child, Some((1, 1)), parent, b"a"));
        synced_names.made(child);
        assert!(!synced_names.has(child, born, parent, b"a"));
    }

    #[test]
    fn what_is_moved_before_it_is_synced_is_looked_for_anew() {
        let out = tempfile::tempdir().unwrap();
        let mut directories = Directories::new(out.path(), None).unwrap();
        directories.make(path("a/b")).unwrap();
        let unsynced = directories.unsynced(path("a/b")).unwrap();
        let opened = |directories: &mut Directories| -> Vec<bool> {
            directories.forget();
            let open = |at: &Unsynced| directories.open_unsynced(path("a/b"), at).unwrap().is_some();
            unsynced.iter().map(open).collect()
        };
        assert_eq!(opened(&mut directories), [true, true, true]);
        fs::rename(out.path().join("a/b"), out.path().join("b")).unwrap();
        assert_eq!(opened(&mut directories), [true, true, false]);
        fs::create_dir(out.path().join("a/b")).unwrap();
        assert_eq!(opened(&mut directories), [true, true, false]);
    }

    #[test]
    fn an_out_lasts_with_all_above_it_whoever_made_them() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("a/b/out");
        let synced = Synced::default();
        let above = || ["a/b", "a", ""].map(|above| of(&parent.path().join(above)));
        // The first round makes the directories. The second finds them as a killed receiver left them, and a
        // third one by a link.
        for _ in 0..2 {
            Directories::new(&out, recording(&synced)).unwrap();
            assert_eq!(synced.take()[..3], above());
        }
        std::os::unix::fs::symlink(&out, parent.path().join("link")).unwrap();
        Directories::new(&parent.path().join("link"), recording(&synced)).unwrap();
        assert_eq!(synced.take()[..3], above());
    }

    #[test]
    fn an_out_that_is_made_again_lasts_with_all_above_it() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("a/out");
        let synced = Synced::default();
        let mut directories = Directories::new(&out, recording(&synced)).unwrap();
        for removed in ["a/out", "a"] {
            synced.take();
            directories.root().unwrap();
            assert_eq!(*synced.borrow(), [], "it is as it was");
            fs::remove_dir_all(parent.path().join(removed)).unwrap();
            directories.forget();
            directories.root().unwrap();
            assert_eq!(synced.borrow()[..2], [of(&parent.path().join("a")), of(parent.path())], "{removed}");
        }
        // A directory whose name cannot be synced is not used.
        fs::remove_dir(&out).unwrap();
        directories.forget();
        directories.sync = Some(DirectorySync(Box::new(|_| Err(Errno::IO))));
        for _ in 0..2 {
            assert_eq!(directories.root().unwrap_err().raw_os_error(), Some(libc::EIO));
        }
    }
}
