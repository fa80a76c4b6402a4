//! What to change where the system refuses: the same words for the same refusal, whatever was asked of it.

use rustix::io::Errno;
use std::fmt;
use std::io;

/// An error of the system, and what to change if that does not depend on what was asked.
///
/// Displayed as the error, a semicolon and the advice; where there is none, with `otherwise` in its place.
#[derive(Clone, Copy, Debug)]
pub struct Advised<'a> {
    /// What the system said.
    pub error: &'a io::Error,
    /// The advice where the error is about nothing but what was asked.
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

/// An error of the system with the advice that there is.
pub fn advised(error: &io::Error) -> Advised<'_> {
    Advised { error, otherwise: "" }
}

/// What to change where something is used up, whatever it was wanted for.
pub fn advice(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            Some("the process has no descriptors left: raise its ulimit -n (in a service LimitNOFILE)")
        }
        Errno::NFILE => Some("the host has no descriptors left: raise fs.file-max"),
        _ => None,
    }
}

/// What to change where a Unix socket of the daemon's cannot be connected to; `absent` where nobody listens
/// on it.
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

/// Whether an attempt may be made again: something else than this process's own limits is in the way.
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
