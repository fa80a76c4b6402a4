//! Advice on what to change where the system refuses a call.
//!
//! The same refusal always gives the same words, whatever the call was for.

use rustix::io::Errno;
use std::fmt;
use std::io;

/// Error of the system with advice on what to change.
///
/// Displayed as the error, a semicolon, and the advice. The advice is that of [`advice`], or `otherwise`
/// where that has none.
#[derive(Clone, Copy, Debug)]
pub struct Advised<'a> {
    /// Error that the system returned.
    pub error: &'a io::Error,
    /// Advice for an error that depends on what was asked; may be empty.
    pub otherwise: &'a str,
}

impl fmt::Display for Advised<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        match advice(self.error).unwrap_or(self.otherwise) {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

/// Wraps an error of the system with the advice of [`advice`], if there is any.
pub fn advised(error: &io::Error) -> Advised<'_> {
    Advised { error, otherwise: "" }
}

/// Returns what to change where file descriptors are used up; `None` for every other error.
///
/// The answer does not depend on what the descriptor was wanted for.
pub fn advice(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            Some("the process has no descriptors left: raise its ulimit -n (in a service LimitNOFILE)")
        }
        Errno::NFILE => Some("the host has no descriptors left: raise fs.file-max"),
        _ => None,
    }
}

/// Returns what to change where a Unix socket of the daemon cannot be connected to.
///
/// `absent` is returned where nobody listens on the socket, and for every error without other advice.
pub fn of_socket(error: &io::Error, absent: &'static str) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) => {
            "this user may not use it: the daemon's user and group may (ls -l), and must be let into its \
             directory"
        }
        Some(Errno::AGAIN) => "too many wait already: is jetd stopped?",
        _ => advice(error).unwrap_or(absent),
    }
}

/// Whether a later attempt may succeed: the error is not this process's own limit of file descriptors.
pub fn may_pass(error: &io::Error) -> bool {
    Errno::from_io_error(error) != Some(Errno::MFILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_want_of_descriptors_says_so_whatever_was_asked() {
        let text = |errno: Errno| Advised { error: &errno.into(), otherwise: "look there" }.to_string();
        assert!(text(Errno::MFILE).contains("ulimit -n") && !text(Errno::MFILE).contains("look there"));
        assert!(text(Errno::NOENT).ends_with("; look there"), "{}", text(Errno::NOENT));
        let socket = |errno: Errno| of_socket(&errno.into(), "start it");
        assert_eq!(socket(Errno::CONNREFUSED), "start it");
        assert!(socket(Errno::ACCESS).contains("this user may not"));
        assert!(socket(Errno::MFILE).contains("ulimit -n"));
        assert!(!may_pass(&Errno::MFILE.into()) && may_pass(&Errno::NOENT.into()));
    }
}
