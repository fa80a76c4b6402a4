//! A file on its way out.

use crate::files::header::{LARGE_PATH_MAX, MODE_MASK, SMALL_PATH_MAX};
use rustix::fs::{Mode, OFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
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
    /// Its pieces, or nothing yet.
    Pieces,
    /// Its last message is on its way.
    Ending,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub offset: u64,
    pub bytes: usize,
    pub large: bool,
}

pub(super) struct FileJob {
    pub source: PathBuf,
    pub path: Vec<u8>,
    pub path_state: PathState,
    pub says: u32,
    pub is_directory: bool,
    pub mode: u16,
    pub file_bytes: u64,
    pub stage: Stage,
    pub in_flight: u32,
    /// More than one piece: `complete` follows them.
    pub pieces_many: bool,
    /// The receiver may have a part of it.
    pub may_be_there: bool,
    /// Pieces to be sent again.
    pub again: VecDeque<Piece>,
    pub failed: Option<String>,
    file: Option<File>,
    modified: (i64, i64),
    piece_bytes: usize,
    next_offset: u64,
    /// An empty file has one piece, too.
    begun: bool,
}

impl FileJob {
    /// Opens a file.
    pub(super) fn open(source: &Path, path: Vec<u8>, piece_bytes: usize) -> Result<Self, String> {
        // Whatever took the file's place since the walk saw it: neither wait for a pipe nor follow a link of it. A link
        // that was given is resolved first.
        let real = if path.contains(&b'/') { source.to_owned() } else { resolved(source)? };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file =
            rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| cannot_read(errno.into()))?;
        let file = File::from(file);
        let metadata = file.metadata().map_err(cannot_read)?;
        if !metadata.is_file() {
            return Err("is no regular file any more".to_owned());
        }
        let file_bytes = metadata.len();
        let pieces_many = file_bytes > piece_bytes as u64;
        let in_header =
            path.len() <= SMALL_PATH_MAX || (path.len() <= LARGE_PATH_MAX && file_bytes > 0 && !pieces_many);
        Ok(Self {
            source: source.to_owned(),
            path,
            path_state: if in_header { PathState::InHeader } else { PathState::Unsaid },
            says: 0,
            is_directory: false,
            mode: mode_of(metadata.mode()),
            file_bytes,
            stage: Stage::Pieces,
            in_flight: 0,
            pieces_many,
            may_be_there: false,
            again: VecDeque::new(),
            failed: None,
            file: Some(file),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            piece_bytes,
            next_offset: 0,
            begun: false,
        })
    }

    pub(super) fn directory(source: &Path, path: Vec<u8>) -> Result<Self, String> {
        let metadata = std::fs::metadata(source).map_err(cannot_read)?;
        let in_header = path.len() <= SMALL_PATH_MAX;
        Ok(Self {
            source: source.to_owned(),
            path,
            path_state: if in_header { PathState::InHeader } else { PathState::Unsaid },
            says: 0,
            is_directory: true,
            mode: mode_of(metadata.mode()),
            file_bytes: 0,
            stage: Stage::Pieces,
            in_flight: 0,
            pieces_many: false,
            may_be_there: false,
            again: VecDeque::new(),
            failed: None,
            file: None,
            modified: (0, 0),
            piece_bytes: 0,
            next_offset: 0,
            begun: true,
        })
    }

    /// What is to be sent next.
    pub(super) fn next_piece(&self) -> Option<Piece> {
        if let Some(&piece) = self.again.front() {
            return Some(piece);
        }
        if self.begun && self.next_offset >= self.file_bytes {
            return None;
        }
        let left = usize::try_from(self.file_bytes - self.next_offset).unwrap_or(usize::MAX);
        Some(Piece { offset: self.next_offset, bytes: left.min(self.piece_bytes), large: false })
    }

    /// The piece was sent.
    pub(super) fn took(&mut self, piece: Piece) {
        if self.again.pop_front().is_none() {
            self.begun = true;
            self.next_offset = piece.offset + piece.bytes as u64;
        }
    }

    /// Reads a piece; with the last one, looks whether the file is still the one that was opened.
    pub(super) fn read(&self, bytes: &mut [u8], piece: Piece) -> Result<(), String> {
        let file = self.file.as_ref().expect("directories have no pieces");
        let bytes = &mut bytes[..piece.bytes];
        file.read_exact_at(bytes, piece.offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "became shorter while it was sent; send it again".to_owned(),
            _ => cannot_read(error),
        })?;
        if piece.offset + piece.bytes as u64 == self.file_bytes {
            let metadata = file.metadata().map_err(cannot_read)?;
            if metadata.len() != self.file_bytes {
                return Err(format!(
                    "changed its length from {} to {} bytes while it was sent; send it again",
                    self.file_bytes,
                    metadata.len()
                ));
            }
            if (metadata.mtime(), metadata.mtime_nsec()) != self.modified {
                return Err("was written to while it was sent; send it again".to_owned());
            }
        }
        Ok(())
    }
}

fn resolved(source: &Path) -> Result<PathBuf, String> {
    std::fs::canonicalize(source).map_err(cannot_read)
}

fn cannot_read(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "vanished before it was sent".to_owned(),
        io::ErrorKind::PermissionDenied => format!("cannot be read: {error}; let this user read it"),
        _ => format!("cannot be read: {error}"),
    }
}

fn mode_of(mode: u32) -> u16 {
    u16::try_from(mode & u32::from(MODE_MASK)).expect("masked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FileType;
    use std::fs;

    fn pieces(job: &mut FileJob) -> Vec<(u64, usize)> {
        let mut seen = Vec::new();
        while let Some(piece) = job.next_piece() {
            job.took(piece);
            seen.push((piece.offset, piece.bytes));
        }
        seen
    }

    #[test]
    fn a_file_is_cut_into_pieces_and_an_empty_one_has_one() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        for (bytes, expected) in [
            (0, vec![(0, 0)]),
            (1, vec![(0, 1)]),
            (8192, vec![(0, 8192)]),
            (8193, vec![(0, 8192), (8192, 1)]),
            (20_000, vec![(0, 8192), (8192, 8192), (16_384, 3616)]),
        ] {
            fs::write(&file, vec![7; bytes]).unwrap();
            let mut job = FileJob::open(&file, b"file".to_vec(), 8192).unwrap();
            assert_eq!(job.pieces_many, bytes > 8192);
            assert_eq!(pieces(&mut job), expected);
        }
    }

    #[test]
    fn a_file_that_changes_meanwhile_is_an_error_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, [1; 100]).unwrap();
        let mut bytes = [0; 100];
        let job = FileJob::open(&file, b"file".to_vec(), 8192).unwrap();
        let piece = job.next_piece().unwrap();
        job.read(&mut bytes, piece).unwrap();
        fs::write(&file, [1; 150]).unwrap();
        assert!(job.read(&mut bytes, piece).unwrap_err().contains("from 100 to 150"));
        fs::write(&file, [1; 50]).unwrap();
        assert!(job.read(&mut bytes, piece).unwrap_err().contains("shorter"));
        fs::remove_file(&file).unwrap();
        let error = FileJob::open(&file, b"file".to_vec(), 8192).map(drop).unwrap_err();
        assert!(error.contains("vanished"), "{error}");
    }

    #[test]
    fn a_pipe_in_a_files_place_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let error = FileJob::open(&pipe, b"d/pipe".to_vec(), 8192).map(drop).unwrap_err();
        assert!(error.contains("no regular file"), "{error}");
    }

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
            let job = FileJob::open(&file, vec![b'p'; path_bytes], 8192).unwrap();
            assert_eq!(job.path_state, state, "{path_bytes} {file_bytes}");
        }
    }
}
