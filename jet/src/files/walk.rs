//! The sender's walk over files and directories.
//!
//! A directory comes after what lies in it, so that its permission bits, which may forbid writing, are set
//! last. The order is that of the names' bytes, the same in every run. Symbolic links below a path, devices,
//! sockets and pipes are counted and left out; a path that is given is followed.

use super::path::RelativePath;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::vec;
use walkdir::{DirEntry, WalkDir};

/// What the walk found.
#[derive(Debug)]
pub enum Found {
    /// A regular file.
    File {
        /// Where it is.
        source: PathBuf,
        /// How it is called at the receiver.
        path: Vec<u8>,
        /// The path was given: where it is a link, what it leads to is meant.
        follow: bool,
    },
    /// A directory, after everything in it.
    Directory {
        /// Where it is.
        source: PathBuf,
        /// How it is called at the receiver.
        path: Vec<u8>,
    },
    /// What is neither: left out.
    Skipped {
        /// Where it is.
        source: PathBuf,
        /// In words.
        what: &'static str,
    },
    /// What could not be looked at.
    Failed {
        /// Where it is.
        source: PathBuf,
        /// What went wrong.
        error: WalkError,
    },
}

/// Why an entry could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// The system refused.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The name cannot travel.
    #[error(transparent)]
    Path(#[from] super::path::PathError),
}

/// A path that cannot be walked from.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// It is not there.
    #[error("{}: {source}", path.display())]
    Unreachable {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a device, a socket or a pipe.
    #[error("{} is neither a file nor a directory; write what comes from it to a file and send \
             that", path.display())]
    Neither {
        /// The path.
        path: PathBuf,
    },
    /// Two paths would get the same name at the receiver.
    #[error("{} and another path are both called '{name}' at the receiver; send them one after the other to \
             different directories", path.display())]
    Twice {
        /// The second of them.
        path: PathBuf,
        /// Their name.
        name: String,
    },
    /// A path whose name cannot travel.
    #[error("{}: {source}", path.display())]
    Name {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: super::path::PathError,
    },
}

/// An iterator over everything below some paths. Memory: the names in the directories on the way down.
#[derive(Debug)]
pub struct Walk {
    roots: vec::IntoIter<Root>,
    /// The root that is a directory, from its first entry to its last.
    inside: Option<Inside>,
}

#[derive(Debug)]
struct Root {
    source: PathBuf,
    /// How it is called at the receiver.
    path: Vec<u8>,
}

/// A directory and everything below it.
#[derive(Debug)]
struct Inside {
    entries: walkdir::IntoIter,
    /// The directories on the way down to the last entry, the root first.
    entered: Vec<Entered>,
    /// What was found behind the directory that is left now.
    next: Option<Result<DirEntry, walkdir::Error>>,
}

#[derive(Debug)]
struct Entered {
    source: PathBuf,
    path: Vec<u8>,
    /// All its entries were read so far. One of which some are missing is not sent.
    readable: bool,
}

impl Walk {
    /// Begins a walk over paths. The receiver calls each by its last component, and what lies in it below
    /// that. The paths `.`, `..` and `/` have no last component: their contents are called as they are.
    ///
    /// # Errors
    /// [`RootError`], before anything is sent.
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

    /// Begins a walk over what lies in a directory.
    pub fn below(directory: &Path) -> Self {
        let root = Root { source: directory.to_owned(), path: Vec::new() };
        Self { roots: vec![root].into_iter(), inside: None }
    }

    /// Enters a root that is a directory; returns what a root is otherwise.
    fn enter(&mut self, Root { source, path }: Root) -> Option<Found> {
        match fs::metadata(&source) {
            Ok(metadata) if metadata.is_dir() => {
                let entries = WalkDir::new(&source).min_depth(1).sort_by_file_name().into_iter();
                let entered = vec![Entered { source, path, readable: true }];
                self.inside = Some(Inside { entries, entered, next: None });
                None
            }
            Ok(metadata) if metadata.is_file() => Some(Found::File { source, path, follow: true }),
            Ok(_) => Some(Found::Skipped { source, what: DEVICE }),
            Err(error) => Some(Found::Failed { source, error: error.into() }),
        }
    }
}

impl Inside {
    /// Returns what is found next; `None` behind the last.
    fn next(&mut self) -> Option<Found> {
        loop {
            let next = self.next.take().or_else(|| self.entries.next());
            // An entry of depth 1 lies in the root: one directory has been entered.
            let depth = match &next {
                None => 0,
                Some(Ok(entry)) => entry.depth(),
                Some(Err(error)) if self.is_of_last(error) => self.entered.len(),
                Some(Err(error)) => error.depth(),
            };
            if self.entered.len() > depth {
                self.next = next;
                let left = self.entered.pop()?;
                // The root of the transfer is the receiver's own.
                if left.readable && !left.path.is_empty() {
                    return Some(Found::Directory { source: left.source, path: left.path });
                }
                continue;
            }
            match next? {
                Ok(entry) => {
                    if let Some(found) = self.look(&entry) {
                        return Some(found);
                    }
                }
                Err(error) => return Some(self.fail(error)),
            }
        }
    }

    /// Enters a directory; returns what an entry is otherwise.
    fn look(&mut self, entry: &DirEntry) -> Option<Found> {
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
            self.entered.push(Entered { source, path, readable: true });
            return None;
        }
        Some(match kind {
            kind if kind.is_file() => Found::File { source, path, follow: false },
            kind if kind.is_symlink() => Found::Skipped { source, what: "symbolic link" },
            _ => Found::Skipped { source, what: DEVICE },
        })
    }

    /// Whether the directory that was entered last could not be read.
    fn is_of_last(&self, error: &walkdir::Error) -> bool {
        // An error without a path came up between two entries.
        self.entered.last().is_some_and(|last| error.path().is_none_or(|path| path == last.source))
    }

    /// Returns what could not be read: the directory that was entered last, or an entry in it.
    fn fail(&mut self, error: walkdir::Error) -> Found {
        let of_last = self.is_of_last(&error);
        let mut source = error.path().map(Path::to_owned).unwrap_or_default();
        if let Some(last) = self.entered.last_mut().filter(|_| of_last) {
            last.readable = false;
            source.clone_from(&last.source);
        }
        // Only where links are followed can there be a loop.
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

/// What is no file, no directory and no link.
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
    fn a_directory_that_cannot_be_read_fails_and_is_not_sent() {
        let root = tempfile::tempdir().unwrap();
        for name in ["gone/below", "z"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        fs::write(root.path().join("a"), b"x").unwrap();
        let mut walk = Walk::below(root.path());
        assert!(matches!(walk.next(), Some(Found::File { path, .. }) if path == b"a"));
        // Its entry was read with those beside it, and it is not there when its own are to be read.
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
