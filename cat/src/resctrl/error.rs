//! Errors of using the resctrl file system.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Reason why resctrl cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel or the processor does not support resctrl.
    #[error(
        "no resctrl: the processor has nothing to share out, or the kernel was built without it \
         (CONFIG_X86_CPU_RESCTRL); Skylake-SP and Cascade Lake want rdt=l3cat on the kernel's command line"
    )]
    Unsupported,
    /// The kernel supports resctrl, but it is not mounted.
    #[error("resctrl is not mounted; as root: mount -t resctrl resctrl /sys/fs/resctrl")]
    NotMounted,
    /// The file system at the mount point is not resctrl.
    #[error("{} is no resctrl file system", path.display())]
    Other {
        /// Mount point.
        path: PathBuf,
    },
    /// The list of mounts cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Mounts {
        /// File with the list of mounts.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Kind of access to resctrl that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reading a file or a folder.
    Read,
    /// Writing a file.
    Write,
    /// Making a group.
    Make,
    /// Removing a group.
    Remove,
    /// Locking the file system against other tools.
    Lock,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Make => "make",
            Self::Remove => "remove",
            Self::Lock => "lock",
        })
    }
}

/// Error of one access to the mounted resctrl file system.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kernel refused the access.
    #[error("cannot {action} {}{}: \
             {source}{}",
        path.display(), written(.text.as_deref()), reason(*.action, .source, .status.as_deref()))]
    Refused {
        /// Kind of access.
        action: Action,
        /// File or folder.
        path: PathBuf,
        /// Text that was to be written.
        text: Option<String>,
        /// Contents of the kernel's `last_cmd_status` just after the failure.
        status: Option<String>,
        /// Error of the system call.
        source: io::Error,
    },
    /// A file has contents that this version cannot parse.
    #[error("{} holds '{text}', which this version cannot read: {problem}", path.display())]
    Format {
        /// File that was read.
        path: PathBuf,
        /// Text of the file.
        text: String,
        /// Description of what is wrong with the text.
        problem: String,
    },
    /// Another process held the lock on resctrl for 2 s.
    #[error(
        "another process has held the lock on {} for 2 s (its pid is in /proc/locks); end it, or wait",
        path.display()
    )]
    Locked {
        /// Mount point of resctrl.
        path: PathBuf,
    },
    /// resctrl was unmounted, and the kernel thereby undid everything that was set in it.
    #[error("resctrl is no longer mounted at {}; whoever unmounted it has undone everything that was \
             set", path.display())]
    Unmounted {
        /// Former mount point.
        path: PathBuf,
    },
}

impl AccessError {
    pub(super) fn refused(action: Action, path: &Path, text: Option<&str>, source: io::Error) -> Self {
        let text = text.map(|text| text.trim_end().to_owned());
        Self::Refused { action, path: path.to_owned(), text, status: None, source }
    }

    pub(super) fn format(path: &Path, text: &str, problem: impl fmt::Display) -> Self {
        Self::Format { path: path.to_owned(), text: text.trim_end().to_owned(), problem: problem.to_string() }
    }

    /// Returns the error number where the kernel refused an access.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Returns whether the kernel refused the access for lack of permission, or since the file system is
    /// read-only.
    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(libc::EACCES | libc::EPERM | libc::EROFS))
    }

    /// Returns whether the access failed because the file or folder does not exist.
    pub fn is_missing(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }

    /// Returns whether making a group failed for a temporary reason, so that a retry in a second may succeed.
    /// The kernel reuses a monitoring id only after the lines counted for it have left the cache.
    pub fn is_draining(&self) -> bool {
        matches!(
            self,
            Self::Refused { action: Action::Make, source, .. } if source.raw_os_error() == Some(libc::EBUSY)
        )
    }
}

fn written(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(" ('{}')", text.replace('\n', "\\n")))
}

/// Returns the kernel's own explanation and a hint for the error number, as far as there are any, as the end
/// of an error text.
fn reason(action: Action, source: &io::Error, status: Option<&str>) -> String {
    let number = source.raw_os_error();
    let hint = match number {
        Some(libc::EACCES | libc::EPERM) => "run as root, with CAP_DAC_OVERRIDE",
        Some(libc::EROFS) => {
            "the file system is mounted read-only; as root: mount -o remount,rw /sys/fs/resctrl \
             (in a container: mount it from the host)"
        }
        Some(libc::EBUSY) if action == Action::Make => {
            "ids of monitoring are still draining; try again in a second"
        }
        Some(libc::EINVAL) if status.is_none() => {
            "the kernel gives no reason; it gives none for a domain that does not exist"
        }
        _ => "",
    };
    let words: Vec<&str> = status.into_iter().chain((!hint.is_empty()).then_some(hint)).collect();
    if words.is_empty() { String::new() } else { format!(": {}", words.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(action: Action, errno: i32, status: Option<&str>) -> String {
        let source = io::Error::from_raw_os_error(errno);
        let (path, text) = (PathBuf::from("/r/g/schemata"), Some("L3:0=5".to_owned()));
        let status = status.map(str::to_owned);
        AccessError::Refused { action, path, text, status, source }.to_string()
    }

    #[test]
    fn a_refusal_tells_what_was_written_and_what_the_kernel_said() {
        let said = refused(Action::Write, libc::EINVAL, Some("The mask 5 has non-consecutive 1-bits"));
        assert!(said.starts_with("cannot write /r/g/schemata ('L3:0=5'): Invalid argument"), "{said}");
        assert!(said.ends_with(": The mask 5 has non-consecutive 1-bits"), "{said}");
        assert!(refused(Action::Write, libc::EINVAL, None).contains("a domain that does not exist"));
        assert!(refused(Action::Write, libc::EACCES, None).contains("run as root"));
        assert!(refused(Action::Write, libc::EROFS, None).contains("remount,rw"));
        assert!(
            refused(Action::Make, libc::EBUSY, Some("Out of RMIDs"))
                .contains("Out of RMIDs; ids of monitoring")
        );
    }
}
