//! Files and directories that are being sent.

use super::source::{Source, SourceError, Span, cannot_read};
use crate::files::header::{FileHeader, Kind, LARGE_PATH_MAX, MODE_MASK, PathField, SMALL_PATH_MAX};
use crate::files::path::RelativePath;
use crate::files::proof::Hash;
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathState {
    /// The path is in every header of the file.
    InHeader,
    /// The path is not sent yet, and has to be sent in a message of its own before other messages refer to
    /// it.
    Unsaid,
    /// The path message is in flight.
    Saying,
    /// The receiver knows the path.
    Said,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The beginning has to be sent. Only files of several messages have one.
    Unbegun,
    /// The beginning is in flight.
    Beginning,
    /// Bytes and holes are sent. Also the first stage of files of one message and of directories.
    Bytes,
    /// The last message is in flight.
    Ending,
}

/// Reason why sending a file ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Abort {
    /// The file is not sent.
    Failed(String),
    /// The file is sent again from its beginning, because it changed.
    Changed(String),
    /// The file is sent again from its beginning, because the receiver lost some of it.
    Lost(String),
    /// The file is sent again from its beginning in shorter pieces.
    TooLong,
}

impl From<SourceError> for Abort {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Changed(why) => Self::Changed(why),
            SourceError::Failed(why) => Self::Failed(why),
        }
    }
}

/// Counts of how often a file was sent from its beginning again, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempts {
    pub changes: u32,
    pub losses: u32,
}

pub(super) struct FileJob {
    pub source: PathBuf,
    /// Whether a source that is a symbolic link stands for the file that the link leads to.
    pub follow: bool,
    pub path: Vec<u8>,
    pub path_state: PathState,
    /// Number of messages that told the receiver the path of this file, which no header had room for.
    pub path_messages: u32,
    pub mode: u16,
    pub stage: Stage,
    pub in_flight: u32,
    /// Whether the receiver may have made a part for the file.
    pub may_be_there: bool,
    /// Spans of the file that have to be sent again.
    pub resend: VecDeque<Span>,
    pub abort: Option<Abort>,
    /// Whether the job is in the queue of those that may have something to do.
    pub queued: bool,
    pub attempts: Attempts,
    /// Source of the bytes; `None` for a directory.
    pub content: Option<Source>,
    /// Whether the file takes several messages: a beginning before them, and `complete` after them.
    pub pieces_many: bool,
}

impl FileJob {
    /// Opens a file to be sent.
    pub(super) fn open(
        source: &Path,
        path: Vec<u8>,
        follow: bool,
        piece_bytes: usize,
        hash: Option<Hash>,
        attempts: Attempts,
    ) -> Result<Self, Abort> {
        let mut content = Source::open(source, follow, piece_bytes, hash)?;
        let pieces_many = !content.is_one_message()?;
        let in_header = path.len() <= SMALL_PATH_MAX
            || (path.len() <= LARGE_PATH_MAX && content.file_bytes() > 0 && !pieces_many);
        Ok(Self {
            source: source.to_owned(),
            follow,
            path,
            path_state: if in_header { PathState::InHeader } else { PathState::Unsaid },
            path_messages: 0,
            mode: mode_of(content.mode()),
            stage: if pieces_many { Stage::Unbegun } else { Stage::Bytes },
            in_flight: 0,
            may_be_there: false,
            resend: VecDeque::new(),
            abort: None,
            queued: false,
            attempts,
            content: Some(content),
            pieces_many,
        })
    }

    pub(super) fn directory(source: &Path, path: Vec<u8>) -> Result<Self, Abort> {
        let metadata = std::fs::metadata(source).map_err(|error| cannot_read(&error))?;
        let in_header = path.len() <= SMALL_PATH_MAX;
        Ok(Self {
            source: source.to_owned(),
            follow: true,
            path,
            path_state: if in_header { PathState::InHeader } else { PathState::Unsaid },
            path_messages: 0,
            mode: mode_of(metadata.mode()),
            stage: Stage::Bytes,
            in_flight: 0,
            may_be_there: false,
            resend: VecDeque::new(),
            abort: None,
            queued: false,
            attempts: Attempts::default(),
            content: None,
            pieces_many: false,
        })
    }

    /// Ends the sending of the file with an error. After several calls, the first error is the one that is
    /// reported.
    pub(super) fn fail(&mut self, why: String) {
        if !matches!(self.abort, Some(Abort::Failed(_))) {
            self.abort = Some(Abort::Failed(why));
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.content.is_none()
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.content.as_ref().map_or(0, Source::file_bytes)
    }

    /// Returns the span to be sent next, if any is left.
    pub(super) fn next_span(&mut self) -> Result<Option<Span>, SourceError> {
        match (self.resend.front(), &mut self.content) {
            (Some(&span), _) => Ok(Some(span)),
            (None, Some(content)) => content.peek(),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn header(&self, id: u64, kind: Kind) -> FileHeader<'_> {
        let path = match self.path_state {
            PathState::InHeader => {
                PathField::Here(RelativePath::new(&self.path).expect("checked by the walk"))
            }
            _ => PathField::Elsewhere,
        };
        FileHeader { kind, file_id: id, path }
    }
}

fn mode_of(mode: u32) -> u16 {
    u16::try_from(mode & u32::from(MODE_MASK)).expect("masked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_paths_that_fit_every_header_of_the_file_ride_in_it() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        for (path_bytes, file_bytes, state) in [
            (64, 0, PathState::InHeader),
            (65, 0, PathState::Unsaid),
            (65, 1, PathState::InHeader),
            (224, 8192, PathState::InHeader),
            (225, 8192, PathState::Unsaid),
            (65, 8193, PathState::Unsaid),
            (64, 8193, PathState::InHeader),
        ] {
            fs::write(&file, vec![0; file_bytes]).unwrap();
            let job =
                FileJob::open(&file, vec![b'p'; path_bytes], false, 8192, None, Attempts::default()).unwrap();
            assert_eq!(job.path_state, state, "{path_bytes} {file_bytes}");
            assert_eq!(job.stage == Stage::Unbegun, file_bytes > 8192);
        }
    }
}
