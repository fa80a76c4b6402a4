//! A status out of as many frames as it takes.

use super::{ControlConnection, ControlError, ControlRequest, ControlResponse};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Which rows of a status are still to be told: all from these numbers on, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowsFrom {
    /// Sessions.
    pub session: Option<u32>,
    /// Senders.
    pub peer: Option<u32>,
}

impl RowsFrom {
    /// All of them.
    pub const START: Self = Self { session: Some(0), peer: Some(0) };

    /// Whether this is less than what `before` says, and so comes to an end.
    fn is_after(self, before: Self) -> bool {
        let is_after =
            |now: Option<u32>, before: Option<u32>| now.is_none() || (before.is_some() && now > before);
        is_after(self.session, before.session) && is_after(self.peer, before.peer)
    }
}

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// No answer.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A refusal, or an answer to another question.
    #[error("the daemon gives no status: {0}")]
    Refused(String),
}

impl ControlConnection {
    /// The daemon's state and counters: one JSON object with all of its rows, however many frames they take. Rows of
    /// later frames are some milliseconds younger.
    ///
    /// # Errors
    /// [`StatusError`].
    pub fn status(&mut self) -> Result<Value, StatusError> {
        let other = || {
            StatusError::Refused(
                "it answers another question; use the same build of Jet at both ends".to_owned(),
            )
        };
        let mut status = match self.request(&ControlRequest::Status)?.0 {
            ControlResponse::Status { status } => status,
            ControlResponse::Error { message, .. } => return Err(StatusError::Refused(message)),
            _ => return Err(other()),
        };
        let object = status.as_object_mut().ok_or_else(other)?;
        let rest = object.remove("rest").ok_or_else(other)?;
        let mut rest: RowsFrom = serde_json::from_value(rest).map_err(|_| other())?;
        while rest != RowsFrom::default() {
            let (rows, next) = match self.request(&ControlRequest::StatusRows { from: rest })?.0 {
                ControlResponse::StatusRows { sessions, quarantined, peers, rest } => {
                    ([("sessions", sessions), ("quarantined", quarantined), ("peers", peers)], rest)
                }
                ControlResponse::Error { message, .. } => return Err(StatusError::Refused(message)),
                _ => return Err(other()),
            };
            for (name, rows) in rows {
                object.get_mut(name).and_then(Value::as_array_mut).ok_or_else(other)?.extend(rows);
            }
            if !next.is_after(rest) {
                return Err(StatusError::Refused("it tells the same rows again and again".to_owned()));
            }
            rest = next;
        }
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ANSWER_TIMEOUT, FrameDecoder, encode_frame};
    use super::*;
    use jet_fabric::unix::{receive_with_fds, send_with_fds};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// A daemon that gives these answers, whatever it is asked; the status that a client makes of them, and the questions.
    fn status_of(answers: Vec<ControlResponse>) -> (Result<Value, StatusError>, Vec<ControlRequest>) {
        let (near, far) = UnixStream::pair().unwrap();
        let daemon = std::thread::spawn(move || {
            let mut decoder = FrameDecoder::default();
            let mut bytes = [0; 256];
            let mut asked = Vec::new();
            for answer in answers {
                asked.push(loop {
                    if let Some(request) = decoder.next_frame().unwrap() {
                        break request;
                    }
                    let (got, _) = receive_with_fds(far.as_fd(), &mut bytes).unwrap();
                    decoder.push(&bytes[..got]);
                });
                let frame = encode_frame(&answer).unwrap();
                assert_eq!(send_with_fds(far.as_fd(), &frame, &[]).unwrap(), frame.len());
            }
            asked
        });
        let status = ControlConnection::over(near, ANSWER_TIMEOUT).unwrap().status();
        (status, daemon.join().unwrap())
    }

    #[test]
    fn a_status_is_put_together_from_all_its_frames() {
        let rest = |session, peer| RowsFrom { session, peer };
        let first = serde_json::json!({
            "sessions": [1], "quarantined": [20], "peers": [10], "rest": rest(Some(7), Some(8)), "pid": 5,
        });
        let rows = |sessions: &[u64], peers: &[u64], rest| ControlResponse::StatusRows {
            sessions: sessions.iter().map(|&row| row.into()).collect(),
            quarantined: sessions.iter().map(|&row| (row + 19).into()).collect(),
            peers: peers.iter().map(|&row| row.into()).collect(),
            rest,
        };
        let answers = vec![
            ControlResponse::Status { status: first.clone() },
            rows(&[2, 3], &[11], rest(Some(9), None)),
            rows(&[4], &[], rest(None, None)),
        ];
        let (status, asked) = status_of(answers);
        assert_eq!(
            status.unwrap(),
            serde_json::json!({
                "sessions": [1, 2, 3, 4], "quarantined": [20, 21, 22, 23], "peers": [10, 11], "pid": 5,
            })
        );
        let from = |session, peer| ControlRequest::StatusRows { from: rest(session, peer) };
        assert_eq!(asked, [ControlRequest::Status, from(Some(7), Some(8)), from(Some(9), None)]);
        // One that would never come to an end.
        let (status, _) =
            status_of(vec![ControlResponse::Status { status: first }, rows(&[1], &[], rest(Some(7), None))]);
        assert!(matches!(status, Err(StatusError::Refused(_))), "{status:?}");
    }
}
