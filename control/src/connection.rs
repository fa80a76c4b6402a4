//! A client's end of the control socket. Its calls block.

mod status;

pub use status::StatusError;

use crate::frame::{FrameDecoder, FrameError, encode_frame};
use crate::protocol::{ControlRequest, ControlResponse, ErrorCode};
use bytes::BytesMut;
use jet_fabric::advice::{self, advised};
use jet_fabric::unix::{receive_with_fds, send_with_fds};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default of the longest time that a request waits for its answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a request on the control socket got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The socket cannot be opened: no daemon listens on it, or this user may not open it.
    #[error("cannot reach the daemon on {}: {source}; \
             {}", path.display(), advice::of_socket(source, NO_DAEMON))]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The daemon closed the connection before it answered.
    #[error("the daemon closed the control connection before it answered; look at jetd's log")]
    Closed,
    /// The daemon did not answer in time.
    #[error("the daemon did not answer within {timeout:?}; is it stopped or overloaded?")]
    TimedOut {
        /// Time that the request waited.
        timeout: Duration,
    },
    /// A frame could not be read or written.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A system call on the connection failed.
    #[error("the control connection failed: {}", advised(.0))]
    Io(#[from] io::Error),
}

const NO_DAEMON: &str = "is jetd running? start it with `jet daemon`, or name its control_socket";

impl ControlError {
    /// Whether trying again may help: the daemon may start, or continue after a stop.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Connect { source, .. } => advice::may_pass(source),
            Self::Closed | Self::TimedOut { .. } => true,
            Self::Frame(_) | Self::Io(_) => false,
        }
    }
}

/// A client's connection to the control socket.
#[derive(Debug)]
pub struct ControlConnection {
    stream: UnixStream,
    decoder: FrameDecoder,
    timeout: Duration,
}

impl ControlConnection {
    /// Connects to the control socket at `path`. A request waits [`ANSWER_TIMEOUT`] for its answer.
    ///
    /// # Errors
    /// [`ControlError::Connect`], and [`ControlError::Io`] where the timeout cannot be set.
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(path)
            .map_err(|source| ControlError::Connect { path: path.to_owned(), source })?;
        Ok(Self::from_stream(stream, ANSWER_TIMEOUT)?)
    }

    /// Makes a connection of a stream that is connected already. A request waits `timeout` for its answer.
    #[doc(hidden)]
    pub fn from_stream(stream: UnixStream, timeout: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream, decoder: FrameDecoder::default(), timeout })
    }

    /// Sends a request, and waits for its answer and the descriptors that come with it.
    ///
    /// # Errors
    /// [`ControlError`]. A refusal by the daemon is [`ControlResponse::Error`], not an error here.
    pub fn request(
        &mut self,
        request: &ControlRequest,
    ) -> Result<(ControlResponse, Vec<OwnedFd>), ControlError> {
        let (json, fds) = self.exchange(request)?;
        let response = serde_json::from_slice(&json).map_err(FrameError::Json)?;
        Ok((response, fds))
    }

    /// Sends a request like [`Self::request`], and returns the JSON text of its answer.
    fn exchange(&mut self, request: &ControlRequest) -> Result<(BytesMut, Vec<OwnedFd>), ControlError> {
        let frame = encode_frame(request)?;
        let mut left = &frame[..];
        while !left.is_empty() {
            match send_with_fds(self.stream.as_fd(), left, &[]) {
                Ok(taken) => left = &left[taken..],
                // A daemon that hung up may have said why.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => self.retry_or(error)?,
            }
        }
        let mut fds = Vec::new();
        loop {
            if let Some(json) = self.decoder.next_json()? {
                return Ok((json, fds));
            }
            let mut bytes = [0; 4096];
            match receive_with_fds(self.stream.as_fd(), &mut bytes) {
                Ok((0, _)) => return Err(ControlError::Closed),
                Ok((got, more)) => {
                    self.decoder.push(&bytes[..got]);
                    fds.extend(more);
                }
                Err(error) => self.retry_or(error)?,
            }
        }
    }

    fn retry_or(&self, error: io::Error) -> Result<(), ControlError> {
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Err(ControlError::TimedOut { timeout: self.timeout })
            }
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Err(ControlError::Closed),
            _ => Err(error.into()),
        }
    }

    /// Checks, without waiting, whether the daemon hung up, and what it sent before.
    pub fn look(&mut self) -> Look {
        use rustix::net::{RecvFlags, recv};
        let mut bytes = [0u8; 4096];
        loop {
            match recv(&self.stream, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Look::Gone,
                Ok((got, _)) => {
                    self.decoder.push(&bytes[..got]);
                    match self.decoder.next_frame() {
                        Ok(Some(ControlResponse::Error { code, message })) => {
                            return Look::Ended { code, message };
                        }
                        // The daemon sends nothing else without a request.
                        Ok(Some(_)) | Err(_) => return Look::Gone,
                        Ok(None) => {}
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Look::Alive,
                Err(_) => return Look::Gone,
            }
        }
    }
}

/// Result of [`ControlConnection::look`] at the control connection of a session.
#[derive(Debug)]
pub enum Look {
    /// The connection is open, and the daemon sent nothing.
    Alive,
    /// The daemon hung up without giving a reason, or the connection cannot be read.
    Gone,
    /// The daemon ended the session.
    Ended {
        /// Reason why the daemon ended the session.
        code: ErrorCode,
        /// Text that describes the reason.
        message: String,
    },
}

impl AsFd for ControlConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_with_its_descriptors_and_a_hang_up_is_told() {
        let (near, far) = UnixStream::pair().unwrap();
        let daemon = std::thread::spawn(move || {
            let mut decoder = FrameDecoder::default();
            let mut bytes = [0; 256];
            let request: ControlRequest = loop {
                let (got, _) = receive_with_fds(far.as_fd(), &mut bytes).unwrap();
                decoder.push(&bytes[..got]);
                if let Some(request) = decoder.next_frame().unwrap() {
                    break request;
                }
            };
            assert_eq!(request, ControlRequest::Status);
            let draining = ControlResponse::Draining { deadline_ms: 1, again: false };
            let answer = encode_frame(&draining).unwrap();
            assert_eq!(send_with_fds(far.as_fd(), &answer, &[far.as_fd()]).unwrap(), answer.len());
        });
        let mut connection = ControlConnection::from_stream(near, ANSWER_TIMEOUT).unwrap();
        let (answer, fds) = connection.request(&ControlRequest::Status).unwrap();
        daemon.join().unwrap();
        assert!(matches!(answer, ControlResponse::Draining { deadline_ms: 1, .. }), "{answer:?}");
        assert_eq!(fds.len(), 1);
        drop(fds);
        assert!(matches!(connection.request(&ControlRequest::Status), Err(ControlError::Closed)));
    }

    #[test]
    fn a_daemon_that_hung_up_before_it_was_asked_may_have_said_why() {
        let (near, far) = UnixStream::pair().unwrap();
        let refusal = ControlResponse::Error { code: ErrorCode::TooManyConnections, message: "full".into() };
        let frame = encode_frame(&refusal).unwrap();
        assert_eq!(send_with_fds(far.as_fd(), &frame, &[]).unwrap(), frame.len());
        drop(far);
        let mut connection = ControlConnection::from_stream(near, ANSWER_TIMEOUT).unwrap();
        assert_eq!(connection.request(&ControlRequest::Status).unwrap().0, refusal);
        assert!(matches!(connection.request(&ControlRequest::Status), Err(ControlError::Closed)));
    }

    /// Lets a daemon answer with these bytes, whatever it is asked, and hang up.
    fn cut_off_after(answer: &[u8]) -> ControlConnection {
        let (near, far) = UnixStream::pair().unwrap();
        assert_eq!(send_with_fds(far.as_fd(), answer, &[]).unwrap(), answer.len());
        drop(far);
        ControlConnection::from_stream(near, ANSWER_TIMEOUT).unwrap()
    }

    #[test]
    fn a_daemon_that_hangs_up_within_its_answer_has_not_answered() {
        let drain = ControlRequest::Drain { deadline_ms: None };
        let draining = ControlResponse::Draining { deadline_ms: 1, again: false };
        let refusal = ControlResponse::Error { code: ErrorCode::Internal, message: "stopping".into() };
        let status = ControlResponse::Status { status: Box::default() };
        for answer in [draining, refusal, status] {
            let whole = encode_frame(&answer).unwrap();
            assert_eq!(cut_off_after(&whole).request(&drain).unwrap().0, answer);
            // Within the length, after it, within the text, and before its last byte.
            for cut in [0, 1, 3, 4, 5, whole.len() / 2, whole.len() - 1] {
                let mut connection = cut_off_after(&whole[..cut]);
                let heard = connection.request(&drain);
                assert!(matches!(heard, Err(ControlError::Closed)), "{cut} of {answer:?}: {heard:?}");
                let heard = cut_off_after(&whole[..cut]).status();
                assert!(matches!(heard, Err(StatusError::Control(ControlError::Closed))), "{cut}: {heard:?}");
                assert!(matches!(cut_off_after(&whole[..cut]).look(), Look::Gone), "{cut} of {answer:?}");
            }
        }
    }

    #[test]
    fn nobody_listening_says_what_to_start() {
        let error = ControlConnection::connect(Path::new("/nonexistent/jetd.sock")).unwrap_err();
        assert!(error.to_string().contains("is jetd running"), "{error}");
        let refused = |errno: rustix::io::Errno| ControlError::Connect {
            path: "/run/jet/jetd.sock".into(),
            source: errno.into(),
        };
        let rights = refused(rustix::io::Errno::ACCESS);
        assert!(rights.to_string().contains("this user may not use it") && rights.is_passing(), "{rights}");
        let used_up = refused(rustix::io::Errno::MFILE);
        assert!(used_up.to_string().contains("ulimit -n") && !used_up.is_passing(), "{used_up}");
        for error in [rights, used_up] {
            assert!(!error.to_string().contains("is jetd running"), "{error}");
        }
    }
}
