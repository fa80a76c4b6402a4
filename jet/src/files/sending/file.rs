//! A file or directory on its way out.

use super::source::{Source, SourceError, Span, cannot_read};
use crate::files::header::{FileHeader, Kind, LARGE_PATH_MAX, MODE_MASK, PathField, SMALL_PATH_MAX};
use crate::files::path::RelativePath;
use crate::files::proof::Hash;
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathState {
    /// In every header.
    InHeader,
    /// Has to be said before anything refers to it.
    Unsaid,
    /// On its way.
    Saying,
    /// The receiver knows it.
    Said,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its beginning has to be sent; only of files of several messages.
    Unbegun,
    /// Its beginning is on its way.
    Beginning,
    /// Its bytes, or nothing yet.
    Bytes,
    /// Its last message is on its way.
    Ending,
}

/// Why a file's sending ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Abort {
    /// It is not sent.
    Failed(String),
    /// It is sent again from its beginning: it changed.
    Changed(String),
    /// It is sent again from its beginning: the receiver has not what it was sent.
    Lost(String),
    /// It is sent again from its beginning in shorter pieces.
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

/// How often a file was sent from its beginning, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempts {
    pub changes: u32,
    pub losses: u32,
}

pub(super) struct FileJob {
    pub source: PathBuf,
    /// Where the source is a link, what it leads to is meant.
    pub follow: bool,
    pub path: Vec<u8>,
    pub path_state: PathState,
    /// How often its path was sent in a message of its own.
    pub path_messages: u32,
    pub mode: u16,
    pub stage: Stage,
    pub in_flight: u32,
    /// The receiver may have a part of it.
    pub may_be_there: bool,
    /// Spans to be sent again.
    pub resend: VecDeque<Span>,
    pub abort: Option<Abort>,
    /// It is among those that may have something to do.
    pub queued: bool,
    pub attempts: Attempts,
    /// None: a directory.
    pub content: Option<Source>,
    /// More than one message: a beginning comes before them, and `complete` after them.
    pub pieces_many: bool,
}

impl FileJob {
    /// Opens a file.
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

    /// It is not sent. Of several reasons the first counts.
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

    /// What is to be sent next.
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
