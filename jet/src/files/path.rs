//! Paths as they are sent: relative, of plain components, raw bytes.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Prefix of a part file's name. No received file may have a name with this prefix.
pub const PART_PREFIX: &[u8] = b".jet-part-";
/// Length of the longest component that file systems take, in bytes.
const COMPONENT_MAX: usize = 255;

/// Path that was checked. It is relative, and at most 4096 bytes long. Its components have 1 to 255 bytes,
/// none of them zero. No component is `.` or `..`, or named like a part file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RelativePath<'a>(&'a [u8]);

/// Reason why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path is empty.
    #[error("the path is empty")]
    Empty,
    /// The path begins with a slash.
    #[error("the path is absolute; only paths below the receiver's --out directory are taken")]
    Absolute,
    /// A component of the path is empty, `.` or `..`, as in `a//b` or `a/`.
    #[error(
        "the path has an empty component, '.' or '..'; only paths below the receiver's --out directory are \
         taken"
    )]
    Component,
    /// The path has a zero byte.
    #[error("the path has a zero byte")]
    Zero,
    /// The path, or a component of it, is longer than file systems take.
    #[error("the path is too long: a component has at most 255 bytes, all together at most 4096")]
    TooLong,
    /// A component begins with [`PART_PREFIX`].
    #[error("names that begin with .jet-part- are the receiver's own; rename the file")]
    Reserved,
}

impl<'a> RelativePath<'a> {
    /// Checks a path that somebody else chose.
    ///
    /// # Errors
    /// [`PathError`] says why the path is refused.
    pub fn new(bytes: &'a [u8]) -> Result<Self, PathError> {
        if bytes.is_empty() {
            return Err(PathError::Empty);
        }
        if bytes[0] == b'/' {
            return Err(PathError::Absolute);
        }
        if bytes.len() > super::header::PATH_MAX {
            return Err(PathError::TooLong);
        }
        if bytes.contains(&0) {
            return Err(PathError::Zero);
        }
        for component in bytes.split(|&byte| byte == b'/') {
            if matches!(component, b"" | b"." | b"..") {
                return Err(PathError::Component);
            }
            if component.len() > COMPONENT_MAX {
                return Err(PathError::TooLong);
            }
            if component.starts_with(PART_PREFIX) {
                return Err(PathError::Reserved);
            }
        }
        Ok(Self(bytes))
    }

    /// Returns the path's bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the path in the form that the standard library's file functions take.
    pub fn as_path(self) -> &'a Path {
        Path::new(OsStr::from_bytes(self.0))
    }

    /// Splits the path into its directory (`None`: the root of the transfer) and its last component.
    pub fn split(self) -> (Option<Self>, &'a [u8]) {
        match self.0.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (Some(Self(&self.0[..slash])), &self.0[slash + 1..]),
            None => (None, self.0),
        }
    }

    /// Returns the path's ancestors and the path itself, the shortest first. Directories can be made in this
    /// order.
    pub fn prefixes(self) -> impl Iterator<Item = Self> {
        let bytes = self.0;
        (0..=bytes.len())
            .filter(move |&at| at == bytes.len() || bytes[at] == b'/')
            .map(move |at| Self(&bytes[..at]))
    }
}

impl fmt::Display for RelativePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(self.0))
    }
}

impl fmt::Debug for RelativePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelativePath({self})")
    }
}

/// Returns a path as text for a terminal or for JSON. Bytes that are not UTF-8, and control characters,
/// become escapes.
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_are_taken() {
        for good in [&b"a"[..], b"a/b/c", b"a b\nc/\xff\xfe", b"...", b"..a/.b"] {
            assert_eq!(RelativePath::new(good).unwrap().as_bytes(), good);
        }
        for (bad, error) in [
            (&b""[..], PathError::Empty),
            (b"/etc/passwd", PathError::Absolute),
            (b"..", PathError::Component),
            (b"a/../b", PathError::Component),
            (b"./a", PathError::Component),
            (b"a//b", PathError::Component),
            (b"a/", PathError::Component),
            (b"a\0b", PathError::Zero),
            (b"d/.jet-part-1", PathError::Reserved),
        ] {
            assert_eq!(RelativePath::new(bad), Err(error), "{bad:?}");
        }
        assert_eq!(RelativePath::new(&[b'a'; 256]), Err(PathError::TooLong));
        assert_eq!(RelativePath::new("a/".repeat(3000).as_bytes()), Err(PathError::TooLong));
    }

    #[test]
    fn a_path_splits_into_its_directory_and_name() {
        let path = RelativePath::new(b"a/b/c").unwrap();
        let (directory, name) = path.split();
        assert_eq!((directory.unwrap().as_bytes(), name), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(RelativePath::new(b"c").unwrap().split(), (None, &b"c"[..]));
        let prefixes: Vec<_> = path.prefixes().map(RelativePath::as_bytes).collect();
        assert_eq!(prefixes, [&b"a"[..], b"a/b", b"a/b/c"]);
    }

    #[test]
    fn odd_names_are_printed_on_one_line() {
        assert_eq!(printable(b"a b\n\xff\xc3\xa4"), "a b\\n\\xff\u{e4}");
    }
}
