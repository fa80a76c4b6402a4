//! Walk over the files and directories that a sender sends.
//!
//! A directory comes after its contents, so that its permission bits, which may forbid writing, are set last.
//! Entries of a directory are ordered by the bytes of their names, so the order is the same in every run.
//! Symbolic links below a given path, devices, sockets and pipes are reported as [`Found::Skipped`]. A given
//! path that is a symbolic link is followed.

use super::path::RelativePath;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::vec;
use walkdir::{DirEntry, WalkDir};

/// Entry that a [`Walk`] found.
#[derive(Debug)]
pub enum Found {
    /// A regular file.
    File {
        /// Path of the file on this host.
        source: PathBuf,
        /// Path of the file at the receiver.
        path: Vec<u8>,
        /// Whether a symbolic link is followed. True only for a path that was given to the walk.
        follow: bool,
    },
    /// A directory, reported after everything in it.
    Directory {
        /// Path of the directory on this host.
        source: PathBuf,
        /// Path of the directory at the receiver.
        path: Vec<u8>,
    },
    /// An entry that is neither a file nor a directory, and is not sent.
    Skipped {
        /// Path of the entry on this host.
        source: PathBuf,
        /// Kind of the entry, in words.
        what: &'static str,
    },
    /// An entry that cannot be read, or whose path is refused.
    Failed {
        /// Path of the entry on this host.
        source: PathBuf,
        /// Reason why the entry is not sent.
        error: WalkError,
    },
}

/// Reason why an entry of a walk cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// The system could not read the entry.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The path at the receiver is refused.
    #[error(transparent)]
    Path(#[from] super::path::PathError),
}

/// Error in a path from which a walk is to begin.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The system cannot read the path's properties, for example because nothing is there.
    #[error("{}: {source}", path.display())]
    Unreachable {
        /// Path that was given.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The path is a device, a socket or a pipe.
    #[error("{} is neither a file nor a directory; write what comes from it to a file and send \
             that", path.display())]
    Neither {
        /// Path that was given.
        path: PathBuf,
    },
    /// Two paths would get the same name at the receiver.
    #[error("{} and another path are both called '{name}' at the receiver; send them one after the other to \
             different directories", path.display())]
    Twice {
        /// Path that was given later than the other.
        path: PathBuf,
        /// Name that both would get.
        name: String,
    },
    /// The path's name at the receiver is refused.
    #[error("{}: {source}", path.display())]
    Name {
        /// Path that was given.
        path: PathBuf,
        /// Reason why the name is refused.
        source: super::path::PathError,
    },
}

/// Iterator over some paths and everything below them. The iterator keeps in memory the names in the
/// directories that lead down to the current entry.
#[derive(Debug)]
pub struct Walk {
    roots: vec::IntoIter<Root>,
    /// Walk of the current root, if that root is a directory.
    inside: Option<RootWalk>,
}

#[derive(Debug)]
struct Root {
    source: PathBuf,
    /// Path at the receiver; empty for the root of the transfer.
    path: Vec<u8>,
}

/// Walk of a root that is a directory.
#[derive(Debug)]
struct RootWalk {
    entries: walkdir::IntoIter,
    /// Directories that lead down to the last entry, the root first.
    entered: Vec<Entered>,
    /// Entry that was read already, and comes after the directory that is left now.
    next: Option<Result<DirEntry, walkdir::Error>>,
}

#[derive(Debug)]
struct Entered {
    source: PathBuf,
    path: Vec<u8>,
    /// Whether all entries of the directory could be read so far. A directory with missing entries is not
    /// sent.
    readable: bool,
}

impl Walk {
    /// Begins a walk over paths. At the receiver, each path is named by its last component, and its contents
    /// lie below that name. The paths `.`, `..` and `/` have no last component: their contents lie directly
    /// in the root of the transfer.
    ///
    /// # Errors
    /// [`RootError`], for the first path from which the walk cannot begin. All paths are checked before the
    /// walk begins.
    pub fn new(paths: &[PathBuf]) -> Result<Self, RootError> {
        let mut names = HashSet::new();
        let mut roots = Vec::new();
        for path in paths {
            let metadata =
                fs::metadata(path).map_err(|source| RootError::Unreachable { path: path.clone(), source })?;
            if !metadata.is_file() && !metadata.is_dir() {
                return Err(RootError::Neither { path: path.clone() });
            }
            let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
            if !name.is_empty() {
                RelativePath::new(&name).map_err(|source| RootError::Name { path: path.clone(), source })?;
            }
            if !names.insert(name.clone()) {
                let name = super::path::printable(&name);
                return Err(RootError::Twice { path: path.clone(), name });
            }
            roots.push(Root { source: path.clone(), path: name });
        }
        Ok(Self { roots: roots.into_iter(), inside: None })
    }

    /// Begins a walk over the contents of a directory.
    pub fn below(directory: &Path) -> Self {
        let root = Root { source: directory.to_owned(), path: Vec::new() };
        Self { roots: vec![root].into_iter(), inside: None }
    }

    /// Enters a root if it is a directory, and returns `None`. Returns any other root as an entry.
    fn enter(&mut self, Root { source, path }: Root) -> Option<Found> {
        match fs::metadata(&source) {
            Ok(metadata) if metadata.is_dir() => {
                let entries = WalkDir::new(&source).min_depth(1).sort_by_file_name().into_iter();
                let entered = vec![Entered { source, path, readable: true }];
                self.inside = Some(RootWalk { entries, entered, next: None });
                None
            }
            Ok(metadata) if metadata.is_file() => Some(Found::File { source, path, follow: true }),
            Ok(_) => Some(Found::Skipped { source, what: DEVICE }),
            Err(error) => Some(Found::Failed { source, error: error.into() }),
        }
    }
}

impl RootWalk {
    /// Returns the next entry, or `None` after the last one.
    fn next(&mut self) -> Option<Found> {
        loop {
            let next = self.next.take().or_else(|| self.entries.next());
            // An entry's depth is the number of entered directories around it: 1 for an entry of the root.
            let depth = match &next {
                None => 0,
                Some(Ok(entry)) => entry.depth(),
                Some(Err(error)) if self.is_about_last_entered(error) => self.entered.len(),
                Some(Err(error)) => error.depth(),
            };
            if self.entered.len() > depth {
                self.next = next;
                let left = self.entered.pop()?;
                // The root of the transfer is the receiver's own directory, and is not sent.
                if left.readable && !left.path.is_empty() {
                    return Some(Found::Directory { source: left.source, path: left.path });
                }
                continue;
            }
            match next? {
                Ok(entry) => {
                    if let Some(found) = self.visit(&entry) {
                        return Some(found);
                    }
                }
                Err(error) => return Some(self.fail(error)),
            }
        }
    }

    /// Enters an entry if it is a directory, and returns `None`. Returns any other entry.
    fn visit(&mut self, entry: &DirEntry) -> Option<Found> {
        let source = entry.path().to_owned();
        let mut path = self.entered.last()?.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(entry.file_name().as_bytes());
        let kind = entry.file_type();
        if let Err(error) = RelativePath::new(&path) {
            if kind.is_dir() {
                self.entries.skip_current_dir();
            }
            return Some(Found::Failed { source, error: error.into() });
        }
        if kind.is_dir() {
            // The kind is that of the time when the directory above was listed. What took the place since may
            // be a link, and reading the directory followed it.
            match fs::symlink_metadata(&source) {
                Ok(now) if now.is_dir() => {}
                now => {
                    self.entries.skip_current_dir();
                    return Some(match now {
                        Ok(_) => Found::Skipped { source, what: "no directory any more" },
                        Err(error) => Found::Failed { source, error: error.into() },
                    });
                }
            }
            self.entered.push(Entered { source, path, readable: true });
            return None;
        }
        Some(match kind {
            kind if kind.is_file() => Found::File { source, path, follow: false },
            kind if kind.is_symlink() => Found::Skipped { source, what: "symbolic link" },
            _ => Found::Skipped { source, what: DEVICE },
        })
    }

    /// Returns whether the error means that the directory which was entered last could not be read.
    fn is_about_last_entered(&self, error: &walkdir::Error) -> bool {
        // An error without a path occurred while the directory's entries were read.
        self.entered.last().is_some_and(|last| error.path().is_none_or(|path| path == last.source))
    }

    /// Turns an error into the entry that could not be read: the directory that was entered last, or an entry
    /// in it.
    fn fail(&mut self, error: walkdir::Error) -> Found {
        let about_last = self.is_about_last_entered(&error);
        let mut source = error.path().map(Path::to_owned).unwrap_or_default();
        if let Some(last) = self.entered.last_mut().filter(|_| about_last) {
            last.readable = false;
            source.clone_from(&last.source);
        }
        // Only a loop of links is no I/O error, and only a walk that follows links can meet a loop.
        let why = error.into_io_error().unwrap_or_else(|| io::Error::from_raw_os_error(libc::ELOOP));
        Found::Failed { source, error: why.into() }
    }
}

impl Iterator for Walk {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            if let Some(inside) = &mut self.inside {
                match inside.next() {
                    Some(found) => return Some(found),
                    None => self.inside = None,
                }
            }
            let root = self.roots.next()?;
            if let Some(found) = self.enter(root) {
                return Some(found);
            }
        }
    }
}

/// Words for an entry that is no file, no directory and no link.
const DEVICE: &str = "device, socket or pipe";

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn files_come_sorted_and_directories_after_what_lies_in_them() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().join("top");
        fs::create_dir_all(top.join("b/empty")).unwrap();
        for name in [&b"b/z"[..], b"a", b"odd\n\xff name"] {
            fs::write(top.join(OsStr::from_bytes(name)), b"x").unwrap();
        }
        std::os::unix::fs::symlink("a", top.join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(top.join("socket")).unwrap();
        let mut seen = Vec::new();
        for found in Walk::new(std::slice::from_ref(&top)).unwrap() {
            seen.push(match found {
                Found::File { path, .. } => path,
                Found::Directory { path, .. } => [&path[..], b"/"].concat(),
                Found::Skipped { what, .. } => what.into(),
                Found::Failed { source, error } => panic!("{}: {error}", source.display()),
            });
        }
        let expected = [
            &b"top/a"[..],
            b"top/b/empty/",
            b"top/b/z",
            b"top/b/",
            b"symbolic link",
            b"top/odd\n\xff name",
            b"device, socket or pipe",
            b"top/",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_link_that_is_given_is_followed() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), b"x").unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        let found = Walk::new(&[link]).unwrap().next().unwrap();
        assert!(matches!(found, Found::File { path, follow: true, .. } if path == b"link"));
        let found = Walk::below(root.path()).next().unwrap();
        assert!(matches!(found, Found::File { path, follow: false, .. } if path == b"file"));
    }

    #[test]
    fn a_directory_that_may_not_be_read_fails_and_is_not_sent() {
        use rustix::process::{geteuid, getuid};
        use rustix::thread::{Uid, set_thread_res_uid};
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(root.path(), 0o755);
        for name in ["closed/below", "z"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        mode(&root.path().join("closed"), 0);
        let found: Vec<_> = std::thread::scope(|scope| {
            let walk = scope.spawn(|| {
                if geteuid().is_root() {
                    let nobody = Uid::from_raw(65534);
                    // This thread alone takes another identity, and it ends after the walk.
                    set_thread_res_uid(nobody, nobody, nobody).unwrap();
                }
                Walk::below(root.path()).collect()
            });
            walk.join().unwrap()
        });
        assert_eq!(getuid(), geteuid(), "the other threads keep their identity");
        mode(&root.path().join("closed"), 0o755);
        let [Found::Failed { source, error: WalkError::Io(error) }, Found::Directory { path, .. }] =
            &found[..]
        else {
            panic!("{found:?}");
        };
        assert_eq!((source, &path[..]), (&root.path().join("closed"), &b"z"[..]));
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_directory_that_is_gone_fails_and_is_not_sent() {
        let root = tempfile::tempdir().unwrap();
        for name in ["gone/below", "z"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        fs::write(root.path().join("a"), b"x").unwrap();
        let mut walk = Walk::below(root.path());
        assert!(matches!(walk.next(), Some(Found::File { path, .. }) if path == b"a"));
        // The walk has read the directory's name already, and finds it gone when its entries are to be read.
        fs::remove_dir_all(root.path().join("gone")).unwrap();
        let found = walk.next().unwrap();
        let gone = root.path().join("gone");
        assert!(
            matches!(&found, Found::Failed { source, error: WalkError::Io(_) } if *source == gone),
            "{found:?}"
        );
        assert!(matches!(walk.next(), Some(Found::Directory { path, .. }) if path == b"z"));
        assert!(walk.next().is_none());
    }

    #[test]
    fn a_link_that_took_a_directorys_place_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (tree, secret) = (root.path().join("tree"), root.path().join("secret"));
        fs::create_dir_all(tree.join("late")).unwrap();
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("key"), b"x").unwrap();
        fs::write(tree.join("first"), b"x").unwrap();
        let mut walk = Walk::below(&tree);
        assert!(matches!(walk.next(), Some(Found::File { path, .. }) if path == b"first"));
        fs::remove_dir(tree.join("late")).unwrap();
        std::os::unix::fs::symlink(&secret, tree.join("late")).unwrap();
        let found = walk.next();
        assert!(matches!(found, Some(Found::Skipped { .. })), "{found:?}");
        let found = walk.next();
        assert!(found.is_none(), "{found:?}");
    }

    #[test]
    fn a_root_that_is_gone_meanwhile_fails_and_the_next_is_walked() {
        let root = tempfile::tempdir().unwrap();
        let (gone, here) = (root.path().join("gone"), root.path().join("here"));
        for path in [&gone, &here] {
            fs::create_dir(path).unwrap();
        }
        let mut walk = Walk::new(&[gone.clone(), here]).unwrap();
        fs::remove_dir(&gone).unwrap();
        assert!(matches!(walk.next(), Some(Found::Failed { source, .. }) if source == gone));
        assert!(matches!(walk.next(), Some(Found::Directory { path, .. }) if path == b"here"));
        assert!(walk.next().is_none());
    }

    #[test]
    fn what_cannot_be_sent_is_said_before_anything_is() {
        let root = tempfile::tempdir().unwrap();
        let missing = Walk::new(&[root.path().join("missing")]).unwrap_err();
        assert!(matches!(missing, RootError::Unreachable { .. }), "{missing}");
        let neither = Walk::new(&[PathBuf::from("/dev/null")]).unwrap_err();
        assert!(neither.to_string().contains("/dev/null is neither"), "{neither}");
        for side in ["l", "r"] {
            fs::create_dir_all(root.path().join(side).join("same")).unwrap();
        }
        let twice = Walk::new(&[root.path().join("l/same"), root.path().join("r/same")]).unwrap_err();
        assert!(matches!(twice, RootError::Twice { .. }), "{twice}");
    }
}
