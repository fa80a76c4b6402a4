//! Errors of the sending end as C's codes.

use crate::code::{Code, Failure};
use jet_client::send::{BufferError, SendConnectError, SendError, SubmitError, WaitError};

impl From<SendConnectError> for Failure {
    fn from(error: SendConnectError) -> Self {
        let code = match &error {
            SendConnectError::App(_) | SendConnectError::Option(_) | SendConnectError::WrongFabric { .. } => {
                Code::Argument
            }
            SendConnectError::Refused { .. } => Code::Refused,
            SendConnectError::Welcome { .. } => Code::Broken,
            SendConnectError::Nobody { .. }
            | SendConnectError::Busy(_)
            | SendConnectError::Lost { .. }
            | SendConnectError::Packets { .. }
            | SendConnectError::TimedOut { .. } => Code::Unreachable,
            _ => Code::System,
        };
        Self::new(code, error)
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            // This happens on the path of every message, so no text is made.
            SendError::Submit(SubmitError::WouldBlock) => Code::Full.into(),
            SendError::Submit(SubmitError::Closed) => Code::Closed.into(),
            SendError::ForeignBuffer => Code::Key.into(),
            SendError::NoReplies => Self::fixed(
                Code::NoReply,
                c"the sender takes no replies: set jet_sender_options.replies to 1",
            ),
            error => Self::new(Code::Size, error),
        }
    }
}

impl From<BufferError> for Failure {
    fn from(error: BufferError) -> Self {
        Self::new(Code::System, error)
    }
}

/// Returns what a wait brought. `None`: the time ran out, which is no error in C.
pub(super) fn in_time<T>(waited: Result<T, WaitError>) -> Result<Option<T>, Failure> {
    match waited {
        Ok(found) => Ok(Some(found)),
        Err(WaitError::NotYet) => Ok(None),
        Err(error) => Err(Failure::new(Code::System, error)),
    }
}

/// Returns the failure of a message that is longer than its buffer.
pub(super) fn longer_than(buffer_bytes: usize, length: usize) -> Failure {
    Failure::new(
        Code::Size,
        format_args!("a message of {length} bytes does not fit its buffer of {buffer_bytes}"),
    )
}
