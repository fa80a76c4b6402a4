//! Reading the daemon's status, which may take several frames.

use super::{ControlConnection, ControlError};
use crate::frame::FrameError;
use crate::protocol::{ControlRequest, ControlResponse, PROTOCOL_VERSION, version_mismatch};
use crate::status::{Rows, Status};
use serde::Deserialize;

/// Reason why a client got no status.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// The daemon did not answer.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The daemon refused the request, or its answer is not a status. The text says which.
    #[error("the daemon gives no status: {0}")]
    Refused(String),
    /// The daemon speaks another version of the control protocol.
    #[error("{}", version_mismatch(PROTOCOL_VERSION, *.daemon))]
    Version {
        /// Version that the daemon named. Daemons before version 5 name none.
        daemon: Option<u32>,
    },
}

/// Part of a [`ControlResponse`] that can be read whatever version of the protocol the daemon speaks.
#[derive(Deserialize)]
struct AnyVersion {
    status: Option<StatusOfAnyVersion>,
}

#[derive(Deserialize)]
struct StatusOfAnyVersion {
    status: NamedVersion,
}

#[derive(Deserialize)]
struct NamedVersion {
    protocol: Option<u32>,
}

/// Reads the answer to a request for the status.
fn read_status(json: &[u8]) -> Result<Status, StatusError> {
    // Check the version first. A status of another version may be unreadable, and where it can be read, its
    // fields may mean something else.
    if let Ok(AnyVersion { status: Some(StatusOfAnyVersion { status: NamedVersion { protocol } }) }) =
        serde_json::from_slice(json)
        && protocol != Some(PROTOCOL_VERSION)
    {
        return Err(StatusError::Version { daemon: protocol });
    }
    match serde_json::from_slice(json).map_err(|error| ControlError::from(FrameError::from(error)))? {
        ControlResponse::Status { status } => Ok(*status),
        ControlResponse::Error { message, .. } => Err(StatusError::Refused(message)),
        _ => Err(StatusError::other_answer()),
    }
}

impl StatusError {
    fn other_answer() -> Self {
        Self::Refused("its answer has another type; use the same build of Jet at both ends".to_owned())
    }
}

impl ControlConnection {
    /// Asks for the daemon's state and counters, with the first page of rows: one frame. `rows.rest` names
    /// the rows that are missing.
    ///
    /// # Errors
    /// [`StatusError`].
    pub fn first_page(&mut self) -> Result<Status, StatusError> {
        read_status(&self.exchange(&ControlRequest::Status)?.0)
    }

    /// Asks for the daemon's state and counters with all rows, in as many frames as they take. Rows of later
    /// frames are some milliseconds younger.
    ///
    /// # Errors
    /// [`StatusError`].
    pub fn status(&mut self) -> Result<Status, StatusError> {
        let mut status = self.first_page()?;
        while let Some(from) = status.rows.rest.take().filter(|rest| !rest.is_nothing()) {
            let more = match self.request(&ControlRequest::StatusRows { from })?.0 {
                ControlResponse::StatusRows(rows) => rows,
                ControlResponse::Error { message, .. } => return Err(StatusError::Refused(message)),
                _ => return Err(StatusError::other_answer()),
            };
            if more.rest.is_some_and(|rest| !rest.is_after(from)) {
                return Err(StatusError::Refused("its pages of rows do not advance".to_owned()));
            }
            status.rows.append(more);
        }
        Ok(status)
    }
}

impl Rows {
    fn append(&mut self, mut more: Self) {
        self.sessions.append(&mut more.sessions);
        self.quarantined.append(&mut more.quarantined);
        self.peers.append(&mut more.peers);
        self.rest = more.rest;
    }
}

#[cfg(test)]
mod tests {
    use super::super::ANSWER_TIMEOUT;
    use super::*;
    use crate::frame::{FrameDecoder, encode_frame};
    use crate::status::{PeerStatus, QuarantineStatus, RowsFrom, SessionStatus};
    use jet_fabric::unix::{receive_with_fds, send_with_fds};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// Runs a daemon that gives these answers, whatever it is asked. Returns the status that a client reads
    /// from it, and the requests that the client sent.
    fn status_of(answers: Vec<ControlResponse>) -> (Result<Status, StatusError>, Vec<ControlRequest>) {
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
        let status = ControlConnection::from_stream(near, ANSWER_TIMEOUT).unwrap().status();
        (status, daemon.join().unwrap())
    }

    fn rows(sessions: &[u32], peers: &[u32], rest: Option<RowsFrom>) -> Rows {
        Rows {
            sessions: sessions
                .iter()
                .map(|&session| SessionStatus { session, ..Default::default() })
                .collect(),
            quarantined: sessions
                .iter()
                .map(|&session| QuarantineStatus { session: session + 19, ..Default::default() })
                .collect(),
            peers: peers.iter().map(|&peer| PeerStatus { peer, ..Default::default() }).collect(),
            rest,
        }
    }

    #[test]
    fn a_status_is_put_together_from_all_its_frames() {
        let rest = |session, peer| Some(RowsFrom { session, peer });
        let empty = Status { protocol: PROTOCOL_VERSION, pid: 5, ..Default::default() };
        let first = Status { rows: rows(&[1], &[10], rest(Some(7), Some(8))), ..empty.clone() };
        let first = ControlResponse::Status { status: Box::new(first) };
        let answers = vec![
            first.clone(),
            ControlResponse::StatusRows(rows(&[2, 3], &[11], rest(Some(9), None))),
            ControlResponse::StatusRows(rows(&[4], &[], rest(None, None))),
        ];
        let (status, asked) = status_of(answers);
        let all = rows(&[1, 2, 3, 4], &[10, 11], None);
        assert_eq!(status.unwrap(), Status { rows: all, ..empty });
        let from = |session, peer| ControlRequest::StatusRows { from: RowsFrom { session, peer } };
        assert_eq!(asked, [ControlRequest::Status, from(Some(7), Some(8)), from(Some(9), None)]);
        // The daemon names the same rows again: the client must not ask for ever.
        let again = ControlResponse::StatusRows(rows(&[1], &[], rest(Some(7), None)));
        let (status, _) = status_of(vec![first, again]);
        assert!(matches!(status, Err(StatusError::Refused(_))), "{status:?}");
    }

    #[test]
    fn a_status_of_another_version_is_refused_with_both_versions_and_the_end_to_update() {
        // The fields that a newer version has are not those that this build reads.
        let of = |status: serde_json::Value| serde_json::json!({"status": {"status": status}}).to_string();
        let newer = of(serde_json::json!({"protocol": PROTOCOL_VERSION + 1, "slabs": [1]}));
        let older = of(serde_json::json!({"version": "0.1.0", "pid": 7}));
        let same = of(serde_json::json!({"protocol": PROTOCOL_VERSION, "pid": 7}));
        let text = |json: &str| read_status(json.as_bytes()).unwrap_err().to_string();
        let both = format!(
            "the daemon speaks version {} of the control protocol, and the program that asked version {}",
            PROTOCOL_VERSION + 1,
            PROTOCOL_VERSION
        );
        let update = |end: &str| format!("update {end}, so that");
        assert!(text(&newer).contains(&both) && text(&newer).contains(&update("the program that asked")));
        let before = format!(
            "one before 5 of the control protocol, and the program that asked version {PROTOCOL_VERSION}"
        );
        assert!(
            text(&older).contains(&before) && text(&older).contains(&update("the daemon")),
            "{}",
            text(&older)
        );
        assert!(text(&same).contains("missing field"), "{}", text(&same));
        // A whole status of another version may mean something else, so it is not read either.
        let whole = Status { protocol: PROTOCOL_VERSION - 1, ..Default::default() };
        let whole = serde_json::to_value(whole).unwrap();
        assert!(matches!(read_status(of(whole).as_bytes()), Err(StatusError::Version { daemon: Some(_) })));
    }
}
