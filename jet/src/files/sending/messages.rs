//! Choice of a file's next message, and handling of each message's end.

use super::file::{Abort, FileJob, PathState, Stage};
use super::source::{Source, Span};
use super::{Event, InFlightKind, PATH_MESSAGES_MAX, SendOutcome, Sending, SendingError};
use crate::files::header::{Kind, SMALL_PATH_MAX, TAG};
use crate::files::proof::BLOCK_BYTES;
use crate::files::reject;
use jet_client::send::{AckStatus, Completion, Envelope, SendError, SubmitError};
use jet_wire::SLAB_BYTES;
use std::collections::HashMap;
use std::num::NonZeroU32;

fn job_of(jobs: &mut HashMap<u64, FileJob>, id: u64) -> &mut FileJob {
    jobs.get_mut(&id).expect("a file with messages in flight is in work")
}

impl Sending<'_> {
    /// Does the next step of a file: sends one message, ends the file, or finds that it must wait.
    pub(super) fn advance(&mut self, id: u64) -> Result<SendOutcome, SendingError> {
        // Where sending stopped for another reason than an interruption, no message reaches the receiver any
        // more.
        let unheard = self.fatal.is_some() && !self.interrupted;
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(SendOutcome::Waits) };
        if job.abort.is_some() {
            if job.in_flight > 0 {
                return Ok(SendOutcome::Waits);
            }
            if job.stage != Stage::Ending && job.may_be_there && !unheard {
                match job.path_state {
                    PathState::InHeader | PathState::Said => {
                        return self.send_without_payload(id, Kind::Abandoned);
                    }
                    PathState::Unsaid if job.path_messages < PATH_MESSAGES_MAX => return self.send_path(id),
                    PathState::Unsaid | PathState::Saying => {}
                }
            }
            self.end(id);
            return Ok(SendOutcome::Waits);
        }
        match job.path_state {
            PathState::Unsaid => return self.send_path(id),
            PathState::Saying => return Ok(SendOutcome::Waits),
            PathState::InHeader | PathState::Said => {}
        }
        match (job.stage, &job.content) {
            (Stage::Beginning | Stage::Ending, _) => return Ok(SendOutcome::Waits),
            (Stage::Unbegun, Some(content)) => {
                let file_bytes = content.file_bytes();
                let hash = self.options.proof;
                return self.send_without_payload(id, Kind::Begin { file_bytes, hash });
            }
            (_, None) => {
                let mode = job.mode;
                return self.send_without_payload(id, Kind::Directory { mode });
            }
            (Stage::Bytes, Some(_)) => {}
        }
        match job.next_span() {
            Ok(Some(span)) if span.hole => return self.send_hole(id, span),
            Ok(Some(span)) => return self.send_span(id, span),
            Ok(None) if job.in_flight > 0 => return Ok(SendOutcome::Waits),
            Ok(None) => {}
            Err(error) => {
                job.abort = Some(error.into());
                return Ok(SendOutcome::Sent);
            }
        }
        if job.pieces_many {
            if let Some(Err(error)) = job.content.as_ref().map(Source::check_end) {
                job.abort = Some(error.into());
                return Ok(SendOutcome::Sent);
            }
            let proof = job.content.as_ref().and_then(|content| content.proof());
            let mode = job.mode;
            return self.send_without_payload(id, Kind::Complete { mode, proof });
        }
        self.end(id);
        Ok(SendOutcome::Waits)
    }

    fn send_path(&mut self, id: u64) -> Result<SendOutcome, SendingError> {
        let job = job_of(&mut self.jobs, id);
        let header = job.header(id, Kind::Path).encode();
        match self.sender.send_small(Envelope::new(TAG).user_header(header.as_ref()), &job.path) {
            Ok(ticket) => {
                job.path_state = PathState::Saying;
                job.path_messages += 1;
                job.in_flight += 1;
                self.in_flight.insert(ticket, (id, InFlightKind::Path));
                Ok(SendOutcome::Sent)
            }
            Err(SendError::Submit(SubmitError::TooLarge { bytes, max })) => {
                // Nor can the sender tell the receiver to remove the file's part.
                job.may_be_there = false;
                job.fail(format!(
                    "the receiver takes messages of at most {max} bytes, and its path needs one of {bytes}; \
                     raise the receiver's read.message_bytes_max"
                ));
                Ok(SendOutcome::Sent)
            }
            Err(error) => self.not_taken(id, error),
        }
    }

    /// Sends a message without a payload.
    fn send_without_payload(&mut self, id: u64, kind: Kind) -> Result<SendOutcome, SendingError> {
        let job = job_of(&mut self.jobs, id);
        let header = job.header(id, kind).encode();
        let ticket = match self.sender.send_small(Envelope::new(TAG).user_header(header.as_ref()), &[]) {
            Ok(ticket) => ticket,
            Err(error) => return self.not_taken(id, error),
        };
        let what = match kind {
            Kind::Begin { .. } => {
                job.stage = Stage::Beginning;
                job.may_be_there = true;
                InFlightKind::Begin
            }
            Kind::Hole { offset, bytes } => {
                let span = Span { offset, bytes, hole: true };
                if job.resend.pop_front().is_none() {
                    job.content.as_mut().expect("directories have no holes").take(span, None);
                }
                InFlightKind::Span { span, large: false }
            }
            Kind::Complete { .. } => InFlightKind::Complete,
            Kind::Directory { .. } => InFlightKind::Directory,
            Kind::Abandoned => InFlightKind::Abandoned,
            Kind::Path | Kind::Whole { .. } | Kind::Piece { .. } => unreachable!("it has bytes"),
        };
        if what.is_last() {
            job.stage = Stage::Ending;
        }
        job.in_flight += 1;
        self.in_flight.insert(ticket, (id, what));
        Ok(SendOutcome::Sent)
    }

    /// Sends a hole, if the file has not changed since the hole was found. The hole may have been found long
    /// ago, if there was no receiver meanwhile.
    fn send_hole(&mut self, id: u64, span: Span) -> Result<SendOutcome, SendingError> {
        let job = job_of(&mut self.jobs, id);
        let content = job.content.as_mut().expect("directories have no holes");
        if let Err(error) = content.read(&mut [], span) {
            job.abort = Some(error.into());
            return Ok(SendOutcome::Sent);
        }
        self.send_without_payload(id, hole_of(span))
    }

    /// Sends a span of bytes.
    fn send_span(&mut self, id: u64, span: Span) -> Result<SendOutcome, SendingError> {
        let job = job_of(&mut self.jobs, id);
        let bytes = usize::try_from(span.bytes).expect("a piece is short");
        let small =
            bytes <= SLAB_BYTES && (job.path.len() <= SMALL_PATH_MAX || job.path_state == PathState::Said);
        if !small && self.large_in_flight >= self.options.in_flight {
            return Ok(SendOutcome::NoRoom);
        }
        let mut copied = [0; SLAB_BYTES];
        let mut buffer = if small { None } else { Some(self.sender.buffer(bytes)?) };
        let into = match &mut buffer {
            Some(buffer) => &mut buffer[..],
            None => &mut copied[..bytes],
        };
        let content = job.content.as_mut().expect("directories have no bytes");
        let sum = match content.read(into, span) {
            Ok(sum) => sum,
            Err(error) => {
                job.abort = Some(error.into());
                return Ok(SendOutcome::Sent);
            }
        };
        let kind = if job.pieces_many {
            Kind::Piece { offset: span.offset }
        } else {
            Kind::Whole { mode: job.mode, proof: content.proof_of(sum.as_ref()) }
        };
        let header = job.header(id, kind).encode();
        let envelope = Envelope::new(TAG).user_header(header.as_ref()).class(self.options.class);
        let ticket = match buffer {
            None => self.sender.send_small(envelope, &copied[..bytes]),
            Some(buffer) => self.sender.send(envelope, buffer).map_err(|not_sent| not_sent.error),
        };
        let ticket = match ticket {
            Ok(ticket) => ticket,
            Err(error) => return self.not_taken(id, error),
        };
        let job = job_of(&mut self.jobs, id);
        // A span that is sent again was counted before.
        if job.resend.pop_front().is_none() {
            job.content.as_mut().expect("as above").take(span, sum.as_ref());
        }
        job.in_flight += 1;
        self.large_in_flight += usize::from(!small);
        let what = if job.pieces_many {
            InFlightKind::Span { span, large: !small }
        } else {
            InFlightKind::Whole { bytes: span.bytes, large: !small }
        };
        self.in_flight.insert(ticket, (id, what));
        Ok(SendOutcome::Sent)
    }

    /// Handles a message that the sender's library did not take. Where it is too large, the file fails or is
    /// sent again in shorter pieces.
    fn not_taken(&mut self, id: u64, error: SendError) -> Result<SendOutcome, SendingError> {
        let SendError::Submit(SubmitError::TooLarge { bytes, max }) = error else {
            return if error.is_would_block() { Ok(SendOutcome::NoRoom) } else { Err(error.into()) };
        };
        let shorter = usize::try_from(max).unwrap_or(usize::MAX) / BLOCK_BYTES * BLOCK_BYTES;
        let job = job_of(&mut self.jobs, id);
        if shorter == 0 || bytes <= BLOCK_BYTES as u64 {
            job.fail(format!(
                "the receiver takes messages of at most {max} bytes, and this needs one of {bytes}; raise \
                 its read.message_bytes_max to {BLOCK_BYTES} or more (--piece-bytes cannot be less)"
            ));
        } else {
            if self.options.piece_bytes > shorter {
                self.options.piece_bytes = shorter;
                (self.tell)(Event::Shorter { max });
            }
            job.abort.get_or_insert(Abort::TooLong);
        }
        Ok(SendOutcome::Sent)
    }

    /// Handles the end of a message.
    pub(super) fn handle(&mut self, completion: Completion) {
        let Completion { ticket, status, latency, .. } = completion;
        let (id, what) = self.in_flight.remove(&ticket).expect("every message in flight is known");
        self.sent.messages += 1;
        self.sent.latency.add(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        self.sent.ends.add(status);
        self.large_in_flight -= usize::from(what.is_large());
        let job = job_of(&mut self.jobs, id);
        job.in_flight -= 1;
        match status {
            AckStatus::Consumed => match what {
                InFlightKind::Path => {
                    if job.path_state == PathState::Saying {
                        job.path_state = PathState::Said;
                    }
                }
                InFlightKind::Begin => job.stage = Stage::Bytes,
                InFlightKind::Span { span: Span { bytes, hole: true, .. }, .. } => {
                    self.sent.hole_bytes += bytes
                }
                InFlightKind::Span { span: Span { bytes, hole: false, .. }, .. } => self.sent.bytes += bytes,
                InFlightKind::Whole { bytes, .. } => {
                    self.sent.bytes += bytes;
                    // The file has its name at the receiver, although it was given up since.
                    job.abort = None;
                    self.end(id);
                    return;
                }
                InFlightKind::Complete | InFlightKind::Directory => {
                    job.abort = None;
                    self.end(id);
                    return;
                }
                InFlightKind::Abandoned => {
                    self.end(id);
                    return;
                }
            },
            AckStatus::Rejected(code)
                if code == reject::PATH_UNKNOWN.get()
                    && !matches!(what, InFlightKind::Path)
                    && job.path_state != PathState::InHeader
                    && job.path_messages < PATH_MESSAGES_MAX
                    && (job.abort.is_none() || what.is_last()) =>
            {
                // The receiver was started again and does not know the path. The path is sent again, and then
                // this message.
                if job.path_state == PathState::Said {
                    job.path_state = PathState::Unsaid;
                }
                match what {
                    InFlightKind::Begin => job.stage = Stage::Unbegun,
                    InFlightKind::Span { span, .. } => job.resend.push_back(span),
                    InFlightKind::Whole { bytes, .. } => {
                        job.resend.push_back(Span { offset: 0, bytes, hole: false });
                    }
                    InFlightKind::Complete | InFlightKind::Directory | InFlightKind::Abandoned => {
                        job.stage = Stage::Bytes
                    }
                    InFlightKind::Path => {}
                }
            }
            status => {
                self.handle_refusal(id, what, status);
                return;
            }
        }
        self.queue(id);
    }

    fn handle_refusal(&mut self, id: u64, what: InFlightKind, status: AckStatus) {
        let text = match status {
            AckStatus::Rejected(code) => reject::explain(code),
            AckStatus::PeerLost => {
                // This end may have given up before anything else was looked at.
                self.check_memory();
                let in_vain = self.watch.was_left_in_vain();
                match &self.not_taken {
                    Some((why, _)) => format!("the connection was lost and not made again in time: {why}"),
                    None if in_vain => "the receiver is there, but no message had an end for long, and it \
                                        named nothing that they wait for; see the daemon's log and `jet \
                                        status` there, and send again"
                        .to_owned(),
                    None => "the connection was lost and not made again in time; start the daemon and send \
                             again"
                        .to_owned(),
                }
            }
            status => status.to_string(),
        };
        let lost = match status {
            AckStatus::Rejected(code) => NonZeroU32::new(code).is_some_and(|code| {
                [reject::PART_GONE, reject::INCOMPLETE, reject::DIFFERENT].contains(&code)
            }),
            // Another receiver has taken its place, and takes shorter messages.
            AckStatus::TooLarge => matches!(what, InFlightKind::Span { .. } | InFlightKind::Whole { .. }),
            _ => false,
        };
        let job = job_of(&mut self.jobs, id);
        // The file is sent again in any case, under another file id.
        let of_no_account = lost || status == AckStatus::Rejected(reject::PATH_UNKNOWN.get());
        match (&job.abort, lost) {
            (Some(Abort::Failed(_)), _) => {}
            (Some(_), _) if of_no_account => {}
            (_, true) => job.abort = Some(Abort::Lost(text.clone())),
            (_, false) => job.abort = Some(Abort::Failed(text.clone())),
        }
        // The receiver has no part that could be removed.
        job.may_be_there &= !lost || status == AckStatus::TooLarge;
        if what.is_last() {
            self.end(id);
        } else {
            self.queue(id);
        }
        if matches!(
            status,
            AckStatus::PeerLost
                | AckStatus::NoApp
                | AckStatus::AppGone
                | AckStatus::Draining
                | AckStatus::Denied
        ) {
            self.give_up(text);
        }
    }
}

fn hole_of(span: Span) -> Kind {
    Kind::Hole { offset: span.offset, bytes: span.bytes }
}
