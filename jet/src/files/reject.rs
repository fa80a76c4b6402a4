//! Codes with which a receiver of files rejects messages, and what a sender prints about them.
//!
//! Codes below 4096 are errno values of the receiver's system.

use super::parts::PartError;
use nix::errno::Errno;
use std::num::NonZeroU32;

const BASE: u32 = 0x4a46_0000;

/// Code for a refused path: absolute, with `..`, too long, or reserved.
pub const PATH_REFUSED: NonZeroU32 = code(BASE + 1);
/// Code for a message that refers to a path which this receiver does not know. The sender sends the path
/// again.
pub const PATH_UNKNOWN: NonZeroU32 = code(BASE + 2);
/// Code for a user header that cannot be read, or contradicts the message.
pub const HEADER_REFUSED: NonZeroU32 = code(BASE + 3);
/// Code for a file that is to take its name although not all of it was received. The sender sends the file
/// again.
pub const INCOMPLETE: NonZeroU32 = code(BASE + 4);
/// Code for a part that does not exist: never begun here, removed, or discarded. The sender sends the file
/// again.
pub const PART_GONE: NonZeroU32 = code(BASE + 5);
/// Code for a file that is not what the sender read: their hashes differ. The sender sends the file again.
pub const DIFFERENT: NonZeroU32 = code(BASE + 6);

const fn code(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("not zero")
}

/// Returns the code for a system error: its errno, or EIO if it has none.
pub fn code_of(error: &std::io::Error) -> NonZeroU32 {
    error
        .raw_os_error()
        .and_then(|errno| u32::try_from(errno).ok())
        .and_then(NonZeroU32::new)
        .unwrap_or(code(libc::EIO.unsigned_abs()))
}

/// Returns the code for a part that cannot be used.
pub fn code_of_part(error: &PartError) -> NonZeroU32 {
    match error {
        PartError::Gone => PART_GONE,
        PartError::Io(error) => code_of(error),
    }
}

/// Returns whether a code is an errno, so that the receiver's system refused something.
pub fn is_of_system(code: NonZeroU32) -> bool {
    code.get() < 4096
}

/// Returns what a sender prints about a code: the reason, and what to change.
pub fn explain(code: u32) -> String {
    match NonZeroU32::new(code) {
        Some(PATH_REFUSED) => {
            "the receiver refused the path: only plain paths below its --out directory are taken".to_owned()
        }
        Some(PATH_UNKNOWN) => {
            "the receiver forgot the file's path although it was said again; send the file again".to_owned()
        }
        Some(HEADER_REFUSED) => {
            "the receiver cannot read the file header; use the same version of Jet at both ends".to_owned()
        }
        Some(INCOMPLETE) => {
            "the receiver has not all of what was written of the file (did something change its --out \
             directory meanwhile?); keep others from it and send the file again"
                .to_owned()
        }
        Some(PART_GONE) => {
            "what was written of the file is gone from the receiver (does something remove .jet-part-* from \
             its --out directory?); keep others from it and send the file again"
                .to_owned()
        }
        Some(DIFFERENT) => {
            "what arrived is not what was read: their hashes differ; check the memory and the network of \
             both hosts (jet send --crc tells the network from the rest)"
                .to_owned()
        }
        _ if code == jet_client::receive::REJECT_DROPPED => {
            "the receiving application dropped the message unread; look at its output".to_owned()
        }
        _ => match i32::try_from(code).ok().filter(|errno| (1..4096).contains(errno)) {
            Some(errno) => {
                let system = std::io::Error::from_raw_os_error(errno);
                let what = system.to_string();
                let what = what.split(" (os error").next().unwrap_or_default();
                format!(
                    "cannot be written at the receiver: {} ({what}); {}",
                    errno_name(errno),
                    advice(errno)
                )
            }
            None => format!("the receiver rejected it with code {code}, which is none of jet recv's"),
        },
    }
}

/// Returns the symbolic name of an errno value, or its number if Linux does not have it.
pub fn errno_name(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => format!("errno {errno}"),
        known => format!("{known:?}"),
    }
}

fn advice(errno: i32) -> &'static str {
    match errno {
        libc::ENOSPC | libc::EDQUOT => "free space in its --out directory and send again",
        libc::EFBIG => {
            "raise the receiver's file size limit (ulimit -f), or use a file system that takes larger files"
        }
        libc::EACCES | libc::EPERM | libc::EROFS => {
            "let the receiver write to its --out directory and what lies in it"
        }
        libc::EMFILE | libc::ENFILE => "raise the receiver's limit of open files (ulimit -n)",
        libc::ENAMETOOLONG => "its file system takes no such long name: shorten it",
        libc::ELOOP | libc::EXDEV => {
            "its --out directory has a symbolic link on that path, which is not followed: remove it"
        }
        libc::EBUSY => {
            "another receiver removes old parts from its --out directory at this moment, or something is \
             mounted in the file's place: send again when that is over"
        }
        libc::EISDIR | libc::ENOTDIR | libc::EEXIST | libc::ENOTEMPTY => {
            "its --out directory has a directory where a file is to be, or the reverse: remove it"
        }
        libc::EIO | libc::ESTALE | libc::ENODEV | libc::ENXIO => "look at the receiver's storage (dmesg)",
        _ => "look at the receiver's system log (dmesg)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_values_have_their_names() {
        assert_eq!(
            [libc::ENOSPC, libc::EDQUOT, libc::EUCLEAN].map(errno_name),
            ["ENOSPC", "EDQUOT", "EUCLEAN"]
        );
        assert_eq!(errno_name(4000), "errno 4000");
    }

    #[test]
    fn a_full_disk_is_named_with_what_to_do() {
        let text = explain(libc::ENOSPC.unsigned_abs());
        assert!(text.contains("ENOSPC (No space left on device)") && text.contains("free space"), "{text}");
    }

    #[test]
    fn nobody_is_sent_to_the_output_that_says_so() {
        for errno in 1..200 {
            assert!(!explain(errno).contains("receiver's output"), "{}", explain(errno));
        }
    }

    #[test]
    fn every_code_of_ours_is_explained() {
        for code in [PATH_REFUSED, PATH_UNKNOWN, HEADER_REFUSED, INCOMPLETE, PART_GONE, DIFFERENT] {
            assert!(!explain(code.get()).contains("none of"), "{code}");
        }
        assert!(explain(0x7777_7777).contains("none of"));
        assert_eq!(code_of(&std::io::Error::from_raw_os_error(libc::EFBIG)).get(), 27);
    }
}
