//! The sender's walk over files and directories.
//!
//! A directory comes after what lies in it, so that its permission bits, which may forbid writing, are set
//! last. The order is that of the names' bytes, the same in every run. Symbolic links below a path, devices,
//! sockets and pipes are counted and left out; a path that is given is followed.

use super::path::RelativePath;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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

/// An iterator over everything below some paths. Memory: the names of the directories on the way down.
#[derive(Debug)]
pub struct Walk {
    /// Last first.
    pending: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Look { source: PathBuf, path: Vec<u8>, follow: bool },
    Leave { source: PathBuf, path: Vec<u8> },
}

impl Walk {
    /// A walk over paths. Each is called by its last component at the receiver, and what lies in it below
    /// that; `.`, `..` and `/` have none, and their contents are called as they are.
    ///
    /// # Errors
    /// [`RootError`], before anything is sent.
    pub fn new(paths: &[PathBuf]) -> Result<Self, RootError> {
        let mut names = HashSet::new();
        let mut pending = Vec::new();
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
            pending.push(Step::Look { source: path.clone(), path: name, follow: true });
        }
        pending.reverse();
        Ok(Self { pending })
    }

    /// A walk over what lies in a directory.
    pub fn below(directory: &Path) -> Self {
        let step = Step::Look { source: directory.to_owned(), path: Vec::new(), follow: true };
        Self { pending: vec![step] }
    }

    fn look(&mut self, source: PathBuf, path: Vec<u8>, follow: bool) -> Option<Found> {
        let metadata = if follow { fs::metadata(&source) } else { fs::symlink_metadata(&source) };
        let kind = match metadata {
            Ok(metadata) => metadata.file_type(),
            Err(error) => return Some(Found::Failed { source, error: error.into() }),
        };
        if !path.is_empty()
            && let Err(error) = RelativePath::new(&path)
        {
            return Some(Found::Failed { source, error: error.into() });
        }
        if kind.is_file() {
            return Some(Found::File { source, path, follow });
        }
        if !kind.is_dir() {
            let what = if kind.is_symlink() { "symbolic link" } else { "device, socket or pipe" };
            return Some(Found::Skipped { source, what });
        }
        match sorted_names(&source) {
            Ok(names) => {
                let below = |name: &OsString| {
                    let mut below = path.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend_from_slice(name.as_bytes());
                    below
                };
                let steps: Vec<_> = names
                    .iter()
                    .rev()
                    .map(|name| Step::Look { source: source.join(name), path: below(name), follow: false })
                    .collect();
                self.pending.push(Step::Leave { source, path });
                self.pending.extend(steps);
                None
            }
            Err(error) => Some(Found::Failed { source, error: error.into() }),
        }
    }
}

impl Iterator for Walk {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            match self.pending.pop()? {
                Step::Look { source, path, follow } => {
                    if let Some(found) = self.look(source, path, follow) {
                        return Some(found);
                    }
                }
                // The root of the transfer is the receiver's own.
                Step::Leave { path, .. } if path.is_empty() => {}
                Step::Leave { source, path } => return Some(Found::Directory { source, path }),
            }
        }
    }
}

fn sorted_names(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

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
