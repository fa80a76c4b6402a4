//! The control socket's protocol: how an application registers with the daemon of its host, and how the tool asks it.
//!
//! A Unix stream socket (default [`CONTROL_SOCKET`]). A frame is a little-endian `u32` length, at most
//! [`FRAME_BYTES_MAX`], and so many bytes of JSON; descriptors ride with the frame's first byte. A client sends one
//! [`ControlRequest`] at a time and gets one [`ControlResponse`]. After [`ControlRequest::Register`] the connection
//! stays open for the session's life: its hang-up ends the session at the daemon, and tells the application that the
//! daemon is gone. A [`ControlResponse::Error`] that comes unasked says why the daemon is about to hang up.
//!
//! What this file does *not* do: it decides nothing about sessions.

mod status;

pub use status::{RowsFrom, StatusError};

use jet_fabric::advice::{self, advised};
use jet_fabric::unix::{receive_with_fds, send_with_fds};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the daemon listens unless its configuration (`control_socket`) says otherwise.
pub const CONTROL_SOCKET: &str = "/run/jet/jetd.sock";
/// The version of this protocol, in [`ControlRequest::Register`].
pub const PROTOCOL_VERSION: u32 = 3;
/// The longest frame, in bytes of JSON.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// How long a request waits for its answer by default.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

const LENGTH_BYTES: usize = 4;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
    /// Makes this connection a session.
    Register {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
        /// The name that senders address, see [`jet_wire::message::hello::AppName`].
        app: String,
        /// Admission class of its messages, 0 the most urgent.
        class: u8,
        /// Take memory outside the cache instead of waiting for room in the pool.
        memory_instead_of_waiting: bool,
    },
    /// Asks for the daemon's state and counters, see [`ControlConnection::status`].
    Status,
    /// Asks for further rows of it.
    StatusRows {
        /// Which come next.
        from: RowsFrom,
    },
    /// Asks the daemon to take nothing new, finish what it has, and stop. A drain that is under way goes on.
    Drain {
        /// After so many milliseconds from now on it stops anyway; none: as a drain that is under way has it, or else the
        /// daemon's `shutdown.drain_ms`.
        deadline_ms: Option<u64>,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlResponse {
    /// The connection is a session. Descriptors come along, in this order: the pool (mapped read-only), the session
    /// segment (read-write), the application's end of a [`jet_fabric::unix::Doorbell`], and, where `escape_bytes` is not
    /// 0, escape memory (mapped read-only).
    Registered {
        /// The session's number.
        session: u32,
        /// Bytes of one slab.
        slab_bytes: u32,
        /// Bytes of the pool.
        pool_bytes: u64,
        /// Slabs of the pool.
        pool_slabs: u32,
        /// Bytes of escape memory, where runs may lie or be moved to; 0: there is none.
        escape_bytes: u64,
        /// Bytes of the session segment.
        segment_bytes: u64,
        /// Changes with every start of the daemon.
        incarnation: u64,
    },
    /// The daemon's state and counters.
    Status {
        /// One JSON object, with the first of its rows (`sessions`, `quarantined`, `peers`), as many as fit a frame, and as `rest` a
        /// [`RowsFrom`].
        status: Value,
    },
    /// Further rows of it.
    StatusRows {
        /// Members of `sessions`.
        sessions: Vec<Value>,
        /// Members of `quarantined`.
        #[serde(default)]
        quarantined: Vec<Value>,
        /// Members of `peers`.
        peers: Vec<Value>,
        /// Which come after these.
        rest: RowsFrom,
    },
    /// The daemon drains; it hangs up when it stops.
    Draining {
        /// After so many milliseconds from now on it stops anyway.
        deadline_ms: u64,
        /// It drained already.
        again: bool,
    },
    /// The request was refused, or the session is ended.
    Error {
        /// What for.
        code: ErrorCode,
        /// In words, with what to change.
        message: String,
    },
}

/// Why the daemon refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The frame or a field in it is no good.
    BadRequest,
    /// Another [`PROTOCOL_VERSION`].
    Version,
    /// Another application holds the name.
    NameTaken,
    /// As many sessions as the configuration allows are open.
    TooManySessions,
    /// A session of the same process was ended for a fault, and what it held is not back.
    Quarantined,
    /// The daemon drains and takes nothing new.
    Draining,
    /// The daemon's own failure, or the system's.
    Internal,
}

/// A frame that is none, or too long.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than [`FRAME_BYTES_MAX`].
    #[error("a frame of {bytes} bytes exceeds the {FRAME_BYTES_MAX} that one may have")]
    TooLong {
        /// Its stated length.
        bytes: usize,
    },
    /// Not the JSON that belongs here.
    #[error("a frame cannot be read: {0}; use the same build of Jet at both ends")]
    Json(#[from] serde_json::Error),
}

/// Why a request on the control socket got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens on the socket, or it may not be opened.
    #[error("cannot reach the daemon on {}: {source}; {}", path.display(), advice::of_socket(source, NO_DAEMON))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon hung up first.
    #[error("the daemon closed the control connection before it answered; look at jetd's log")]
    Closed,
    /// No answer in time.
    #[error("the daemon did not answer within {timeout:?}; is it stopped or overloaded?")]
    TimedOut {
        /// How long was waited.
        timeout: Duration,
    },
    /// The frame could not be read or written.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The system refused.
    #[error("the control connection failed: {}", advised(.0))]
    Io(#[from] io::Error),
}

const NO_DAEMON: &str = "is jetd running? start it with `jet daemon`, or name its control_socket";

impl ControlError {
    /// Whether trying again may help: the daemon may start, or go on.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Connect { source, .. } => advice::may_pass(source),
            Self::Closed | Self::TimedOut { .. } => true,
            Self::Frame(_) | Self::Io(_) => false,
        }
    }
}

/// Writes a request or a response as a frame.
///
/// # Errors
/// [`FrameError::TooLong`].
pub fn encode_frame<T: Serialize>(value: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, value)?;
    let bytes = frame.len() - LENGTH_BYTES;
    match u32::try_from(bytes) {
        Ok(length) if bytes <= FRAME_BYTES_MAX => {
            frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
            Ok(frame)
        }
        _ => Err(FrameError::TooLong { bytes }),
    }
}

/// Reads frames out of a stream that arrives in pieces. Holds at most one frame and what came behind it.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    arrived: Vec<u8>,
}

impl FrameDecoder {
    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.arrived.extend_from_slice(bytes);
    }

    /// Reads the next frame, if it is complete.
    ///
    /// # Errors
    /// [`FrameError`], which always blames the other end; the stream cannot be read on.
    pub fn next_frame<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some((length, rest)) = self.arrived.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong { bytes });
        }
        let Some(json) = rest.get(..bytes) else { return Ok(None) };
        let value = serde_json::from_slice(json)?;
        self.arrived.drain(..LENGTH_BYTES + bytes);
        Ok(Some(value))
    }

    /// Whether a frame has begun and not ended: a hang-up now cuts it.
    pub fn is_midway(&self) -> bool {
        !self.arrived.is_empty()
    }
}

/// A client's end of the control socket, blocking.
#[derive(Debug)]
pub struct ControlConnection {
    stream: UnixStream,
    decoder: FrameDecoder,
    timeout: Duration,
}

impl ControlConnection {
    /// Connects; a request waits [`ANSWER_TIMEOUT`] for its answer.
    ///
    /// # Errors
    /// [`ControlError::Connect`].
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(path)
            .map_err(|source| ControlError::Connect { path: path.to_owned(), source })?;
        Ok(Self::over(stream, ANSWER_TIMEOUT)?)
    }

    /// Over a stream that is connected already.
    #[doc(hidden)]
    pub fn over(stream: UnixStream, timeout: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream, decoder: FrameDecoder::default(), timeout })
    }

    /// Sends a request and waits for its answer and the descriptors with it.
    ///
    /// # Errors
    /// [`ControlError`]. A refusal by the daemon is [`ControlResponse::Error`], not an error here.
    pub fn request(
        &mut self,
        request: &ControlRequest,
    ) -> Result<(ControlResponse, Vec<OwnedFd>), ControlError> {
        let frame = encode_frame(request)?;
        let mut left = &frame[..];
        while !left.is_empty() {
            match send_with_fds(self.stream.as_fd(), left, &[]) {
                Ok(taken) => left = &left[taken..],
                Err(error) => self.retry_or(error)?,
            }
        }
        let mut fds = Vec::new();
        loop {
            if let Some(response) = self.decoder.next_frame()? {
                return Ok((response, fds));
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

    /// Looks, without waiting, whether the daemon hung up, and what it said before.
    pub(crate) fn look(&mut self) -> Look {
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
                        // Nothing else comes unasked.
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

/// What a look at the control connection of a session found.
#[derive(Debug)]
pub(crate) enum Look {
    Alive,
    Gone,
    Ended { code: ErrorCode, message: String },
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
    fn frames_are_read_out_of_any_pieces() {
        let request = ControlRequest::Register {
            protocol: PROTOCOL_VERSION,
            app: "store".into(),
            class: 1,
            memory_instead_of_waiting: false,
        };
        let mut stream = encode_frame(&request).unwrap();
        stream.extend(encode_frame(&ControlRequest::Status).unwrap());
        let mut decoder = FrameDecoder::default();
        let mut read = Vec::new();
        for byte in stream {
            decoder.push(&[byte]);
            read.extend(decoder.next_frame::<ControlRequest>().unwrap());
        }
        assert_eq!(read, [request, ControlRequest::Status]);
        assert!(!decoder.is_midway());
    }

    #[test]
    fn a_length_that_lies_and_json_that_is_none_are_errors() {
        let mut decoder = FrameDecoder::default();
        decoder.push(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next_frame::<ControlRequest>(), Err(FrameError::TooLong { .. })));
        let mut decoder = FrameDecoder::default();
        decoder.push(&[2, 0, 0, 0, b'{', b'!']);
        assert!(matches!(decoder.next_frame::<ControlRequest>(), Err(FrameError::Json(_))));
        let long = ControlResponse::Status { status: "x".repeat(FRAME_BYTES_MAX).into() };
        assert!(matches!(encode_frame(&long), Err(FrameError::TooLong { .. })));
    }

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
        let mut connection = ControlConnection::over(near, ANSWER_TIMEOUT).unwrap();
        let (answer, fds) = connection.request(&ControlRequest::Status).unwrap();
        daemon.join().unwrap();
        assert!(matches!(answer, ControlResponse::Draining { deadline_ms: 1, .. }), "{answer:?}");
        assert_eq!(fds.len(), 1);
        drop(fds);
        assert!(matches!(connection.request(&ControlRequest::Status), Err(ControlError::Closed)));
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
