//! Source of a file's bytes and holes. Reading fails once the file has changed since it was opened.

use super::state::{Ask, FileState};
use crate::files::proof::{BLOCK_BYTES, Hash, Proof, Sum};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Length of the shortest hole that is sent as a hole, in bytes. Shorter holes are sent as zeros, because a
/// message of their own would cost more.
const HOLE_BYTES_MIN: u64 = 64 << 10;
/// Number of bytes that are read and hashed at once, so that they are hashed while they are in the cache.
const READ_BYTES: usize = 256 << 10;
const BLOCK: u64 = BLOCK_BYTES as u64;

const _: () = assert!(READ_BYTES.is_multiple_of(BLOCK_BYTES));

/// Range of a file that is sent as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub offset: u64,
    pub bytes: u64,
    /// Whether the range is a hole, of which nothing is read.
    pub hole: bool,
}

/// Reason why nothing can be sent of a file.
#[derive(Debug)]
pub(super) enum SourceError {
    /// The file changed since it was opened, and has to be sent from its beginning.
    Changed(String),
    /// The file cannot be read or sent.
    Failed(String),
}

/// Open file, and how much of it was sent.
pub(super) struct Source {
    file: File,
    /// State of the file when it was opened.
    state: FileState,
    /// Whether the file has fewer bytes on the disk than its length.
    sparse: bool,
    piece_bytes: u64,
    next_offset: u64,
    /// Whether a span was taken. An empty file has one span, too.
    begun: bool,
    /// Span that [`Self::peek`] gave last, until it is taken.
    peeked: Option<Span>,
    /// Sum over everything that was taken, if the file is hashed.
    sum: Option<Sum>,
}

impl Source {
    /// Opens a file whose pieces have at most `piece_bytes` bytes, a multiple of 4 KiB. With `follow`, a
    /// symbolic link stands for the file that it leads to.
    pub(super) fn open(
        path: &Path,
        follow: bool,
        piece_bytes: usize,
        hash: Option<Hash>,
    ) -> Result<Self, SourceError> {
        // Something may have taken the file's place since the walk saw it. A pipe is not waited for, and a
        // link is not followed. A link that the user named is resolved first.
        let real = if follow { resolved(path)? } else { path.to_owned() };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP => SourceError::Failed("is a symbolic link now; links are not sent".to_owned()),
            errno => cannot_read(&errno.into()),
        })?;
        let file = File::from(file);
        // Asks the server of a network file system, because the check at the end compares with the server's
        // answer.
        let (state, on_disk) =
            FileState::of(&file, Ask::Server).map_err(|errno| cannot_read(&errno.into()))?;
        if FileType::from_raw_mode(state.mode.into()) != FileType::RegularFile {
            return Err(SourceError::Failed("is no regular file any more".to_owned()));
        }
        state.wait_until_writes_show();
        Ok(Self {
            file,
            state,
            sparse: on_disk < state.bytes,
            piece_bytes: piece_bytes as u64,
            next_offset: 0,
            begun: false,
            peeked: None,
            sum: hash.map(Sum::new),
        })
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.state.bytes
    }

    pub(super) fn mode(&self) -> u32 {
        self.state.mode.into()
    }

    /// Returns whether the file is sent as one message.
    pub(super) fn is_one_message(&mut self) -> Result<bool, SourceError> {
        let bytes = self.file_bytes();
        let whole = Span { offset: 0, bytes, hole: false };
        Ok(bytes <= self.piece_bytes && self.peek()? == Some(whole))
    }

    /// Returns the span to be sent next, until [`Self::take`] takes it. `None` at the end of the file.
    pub(super) fn peek(&mut self) -> Result<Option<Span>, SourceError> {
        let bytes = self.file_bytes();
        if self.peeked.is_none() && !(self.begun && self.next_offset >= bytes) {
            let offset = self.next_offset;
            let limit = bytes.min(offset + self.piece_bytes);
            self.peeked = Some(if self.sparse {
                let span = self.sparse_span(offset, limit).map_err(|errno| cannot_read(&errno.into()))?;
                // A part of the file that was cut off looks like a hole.
                self.check()?;
                span
            } else {
                Span { offset, bytes: limit - offset, hole: false }
            });
        }
        Ok(self.peeked)
    }

    /// Returns the hole that begins at `offset`, or the bytes up to the next one and at most to `limit`.
    /// Short holes count as bytes.
    fn sparse_span(&self, offset: u64, limit: u64) -> Result<Span, Errno> {
        let bytes = self.file_bytes();
        let data = self.seek(SeekFrom::Data(offset))?;
        let data_block = if data == bytes { bytes } else { data - data % BLOCK };
        if data_block >= offset + HOLE_BYTES_MIN {
            return Ok(Span { offset, bytes: data_block - offset, hole: true });
        }
        let mut at = data.max(offset);
        while at < limit {
            let hole = self.seek(SeekFrom::Hole(at))?;
            if hole >= limit {
                break;
            }
            let from = hole.next_multiple_of(BLOCK);
            let data = self.seek(SeekFrom::Data(hole))?;
            let to = if data == bytes { bytes } else { data - data % BLOCK };
            if to >= from + HOLE_BYTES_MIN && from < limit {
                return Ok(Span { offset, bytes: from - offset, hole: false });
            }
            at = data;
        }
        Ok(Span { offset, bytes: limit - offset, hole: false })
    }

    /// Finds the next bytes or the next hole. Returns the end of the file where there are none.
    fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        match (rustix::fs::seek(&self.file, to), to) {
            (Ok(at), _) => Ok(at.min(self.file_bytes())),
            (Err(Errno::NXIO), _) => Ok(self.file_bytes()),
            // The file system knows of no holes.
            (Err(Errno::INVAL | Errno::OPNOTSUPP), SeekFrom::Data(at)) => Ok(at),
            (Err(Errno::INVAL | Errno::OPNOTSUPP), _) => Ok(self.file_bytes()),
            (Err(errno), _) => Err(errno),
        }
    }

    /// Reads a span, hashes it, and checks that the file is still the one that was opened. Of a hole nothing
    /// is read.
    pub(super) fn read(&self, bytes: &mut [u8], span: Span) -> Result<Option<Sum>, SourceError> {
        let mut sum = self.sum.as_ref().map(|sum| Sum::new(sum.hash()));
        let mut offset = span.offset;
        for chunk in bytes.chunks_mut(READ_BYTES) {
            if let Err(error) = self.file.read_exact_at(chunk, offset) {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    return Err(cannot_read(&error));
                }
                self.check_with(Ask::Server)?;
                return Err(self.of_another_length("fewer"));
            }
            if let Some(sum) = &mut sum {
                sum.add(offset, chunk);
            }
            offset += chunk.len() as u64;
        }
        if span.offset + span.bytes == self.file_bytes() {
            self.check_end()?;
        } else {
            self.check()?;
        }
        Ok(sum)
    }

    /// Checks that the file is still the one that was opened. A network file system may answer from a copy on
    /// this host, and so hide a recent change.
    fn check(&self) -> Result<(), SourceError> {
        self.check_with(Ask::Here)
    }

    /// Checks, after everything was read, that the file is still the one that was opened, and that it ends at
    /// the length that the file system states.
    pub(super) fn check_end(&self) -> Result<(), SourceError> {
        let behind = self.file.read_at(&mut [0], self.file_bytes()).map_err(|error| cannot_read(&error))?;
        self.check_with(Ask::Server)?;
        // Files in /proc say that they are empty, and so do some in user space's file systems.
        if behind > 0 { Err(self.of_another_length("more")) } else { Ok(()) }
    }

    fn check_with(&self, ask: Ask) -> Result<(), SourceError> {
        let before = self.state;
        let (state, _) = FileState::of(&self.file, ask).map_err(|errno| cannot_read(&errno.into()))?;
        if state == before {
            return Ok(());
        }
        Err(SourceError::Changed(if state.bytes != before.bytes {
            format!("changed its length from {} to {} bytes while it was sent", before.bytes, state.bytes)
        } else {
            "was written to, replaced or removed while it was sent".to_owned()
        }))
    }

    /// Returns the error for a file that nobody changed and whose length is not what the file system says.
    fn of_another_length(&self, than: &str) -> SourceError {
        SourceError::Failed(format!(
            "has {than} bytes than the {} that its file system says; write what it holds to another file and \
             send that",
            self.file_bytes()
        ))
    }

    /// Takes the span that was sent, and adds its sum to the file's.
    pub(super) fn take(&mut self, span: Span, sum: Option<&Sum>) {
        self.peeked = None;
        self.begun = true;
        self.next_offset = span.offset + span.bytes;
        if let (Some(all), Some(sum)) = (&mut self.sum, sum) {
            all.merge(sum);
        }
    }

    /// Returns the proof of a file of several messages, all of whose spans were taken.
    pub(super) fn proof(&self) -> Option<Proof> {
        self.sum.as_ref().map(|sum| sum.proof(self.file_bytes()))
    }

    /// Returns the proof of a file of one message, from the sum of its bytes.
    pub(super) fn proof_of(&self, sum: Option<&Sum>) -> Option<Proof> {
        sum.map(|sum| sum.proof(self.file_bytes()))
    }
}

fn resolved(source: &Path) -> Result<PathBuf, SourceError> {
    std::fs::canonicalize(source).map_err(|error| cannot_read(&error))
}

pub(super) fn cannot_read(error: &io::Error) -> SourceError {
    SourceError::Failed(match error.kind() {
        // On NFS another client replaced or removed the file.
        io::ErrorKind::StaleNetworkFileHandle => {
            return SourceError::Changed("was replaced or removed while it was sent".to_owned());
        }
        io::ErrorKind::NotFound => "vanished before it was sent".to_owned(),
        io::ErrorKind::PermissionDenied => format!("cannot be read: {error}; let this user read it"),
        _ => format!("cannot be read: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    const PIECE: usize = 8192;

    fn open(path: &Path) -> Source {
        Source::open(path, false, PIECE, Some(Hash::Fast)).unwrap()
    }

    /// Takes all spans of a file, and returns each as (offset, bytes, hole).
    fn spans(source: &mut Source) -> Vec<(u64, u64, bool)> {
        let mut seen = Vec::new();
        while let Some(span) = source.peek().unwrap() {
            assert_eq!(source.peek().unwrap(), Some(span), "looking changes nothing");
            let mut bytes = vec![0; if span.hole { 0 } else { usize::try_from(span.bytes).unwrap() }];
            let sum = source.read(&mut bytes, span).unwrap();
            source.take(span, sum.as_ref());
            seen.push((span.offset, span.bytes, span.hole));
        }
        seen
    }

    fn proof(bytes: &[u8]) -> Option<Proof> {
        let mut sum = Sum::new(Hash::Fast);
        sum.add(0, bytes);
        Some(sum.proof(bytes.len() as u64))
    }

    #[test]
    fn a_file_is_cut_into_pieces_and_an_empty_one_has_one() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        for (bytes, expected) in [
            (0, vec![(0, 0, false)]),
            (1, vec![(0, 1, false)]),
            (8192, vec![(0, 8192, false)]),
            (8193, vec![(0, 8192, false), (8192, 1, false)]),
            (20_000, vec![(0, 8192, false), (8192, 8192, false), (16_384, 3616, false)]),
        ] {
            let content = vec![7; bytes];
            fs::write(&file, &content).unwrap();
            let mut source = open(&file);
            assert_eq!(source.is_one_message().unwrap(), bytes <= PIECE);
            assert_eq!(spans(&mut source), expected);
            assert_eq!(source.proof(), proof(&content));
        }
    }

    #[test]
    fn holes_are_no_bytes_and_short_ones_are_zeros() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let mut content = vec![0; (400 << 10) + 100];
        let file = File::create(&path).unwrap();
        file.set_len(content.len() as u64).unwrap();
        // Bytes, a long hole, bytes, a short hole, bytes, and a hole to the end.
        for (at, length) in [(0, 4096), (100 << 10, 5000), (140 << 10, 10)] {
            content[at..at + length].fill(9);
            file.write_all_at(&content[at..at + length], at as u64).unwrap();
        }
        let mut source = open(&path);
        assert!(!source.is_one_message().unwrap());
        let seen = spans(&mut source);
        assert_eq!(seen.first(), Some(&(0, 4096, false)), "{seen:?}");
        assert_eq!(seen[1], (4096, (100 << 10) - 4096, true), "{seen:?}");
        assert_eq!(seen.last(), Some(&(144 << 10, (256 << 10) + 100, true)), "{seen:?}");
        let holes: Vec<_> = seen.iter().filter(|(.., hole)| *hole).collect();
        assert_eq!(holes.len(), 2, "{seen:?}");
        let joined = seen.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0);
        assert!(joined, "{seen:?}");
        assert_eq!(source.proof(), proof(&content));
        // The whole file is one hole that is shorter than a piece.
        file.set_len(0).unwrap();
        file.set_len(100 << 10).unwrap();
        let mut source = Source::open(&path, false, 1 << 20, None).unwrap();
        assert!(!source.is_one_message().unwrap());
        assert_eq!(spans(&mut source), [(0, 100 << 10, true)]);
    }

    #[test]
    fn a_file_that_changes_meanwhile_is_another() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let before = filetime(1_000_000);
        type Change = fn(&Path);
        let changes: [(&str, Change); 6] = [
            ("from 20000 to 30000", |path| fs::write(path, [1; 30_000]).unwrap()),
            ("from 20000 to 50", |path| fs::write(path, [1; 50]).unwrap()),
            // Only the time of change shows this write.
            ("was written to", |path| {
                File::options().write(true).open(path).unwrap().write_all_at(b"x", 0).unwrap();
                set_modified(path, filetime(1_000_000));
            }),
            ("was written to", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap()),
            ("replaced", |path| {
                let other = path.with_extension("new");
                fs::write(&other, [2; 20_000]).unwrap();
                fs::rename(other, path).unwrap();
            }),
            ("removed", |path| fs::remove_file(path).unwrap()),
        ];
        for (what, change) in changes {
            fs::write(&path, [1; 20_000]).unwrap();
            set_modified(&path, before);
            let mut source = open(&path);
            let first = source.peek().unwrap().unwrap();
            let sum = source.read(&mut [0; PIECE], first).unwrap();
            source.take(first, sum.as_ref());
            change(&path);
            // The second piece is not the file's last one.
            let second = source.peek().unwrap().unwrap();
            is_changed(source.read(&mut [0; PIECE], second), what);
        }
        match Source::open(&path, false, PIECE, None).map(drop) {
            Err(SourceError::Failed(said)) => assert!(said.contains("vanished"), "{said}"),
            other => panic!("{other:?}"),
        }
    }

    fn is_changed<T: std::fmt::Debug>(result: Result<T, SourceError>, what: &str) {
        match result {
            Err(SourceError::Changed(said)) => assert!(said.contains(what), "{what}: {said}"),
            other => panic!("{what}: {other:?}"),
        }
    }

    #[test]
    fn a_hole_that_is_written_to_before_it_is_sent_is_another_files() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let mut source = open(&path);
        assert!(!source.is_one_message().unwrap());
        let hole = Span { offset: 0, bytes: 1 << 20, hole: true };
        assert_eq!(source.peek().unwrap(), Some(hole));
        file.write_all_at(b"not zeros", 4096).unwrap();
        is_changed(source.read(&mut [], hole), "was written to");
        is_changed(source.check_end(), "was written to");
    }

    #[test]
    fn what_is_cut_off_a_sparse_file_is_no_hole() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[1; 2 * PIECE], 0).unwrap();
        file.write_all_at(&[1; PIECE], (1 << 20) - PIECE as u64).unwrap();
        let mut source = open(&path);
        let first = source.peek().unwrap().unwrap();
        let sum = source.read(&mut [0; PIECE], first).unwrap();
        source.take(first, sum.as_ref());
        file.set_len(PIECE as u64).unwrap();
        is_changed(source.peek(), "from 1048576 to 8192");
    }

    #[test]
    fn a_file_that_changes_after_its_last_piece_is_another() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, [1; 20_000]).unwrap();
        let mut source = open(&path);
        spans(&mut source);
        source.check_end().unwrap();
        File::options().append(true).open(&path).unwrap().write_all(b"x").unwrap();
        is_changed(source.check_end(), "from 20000 to 20001");
    }

    #[test]
    fn a_file_whose_length_is_not_what_its_file_system_says_is_refused() {
        // The file system says that the file is empty.
        let mut source = open(Path::new("/proc/self/status"));
        let whole = source.peek().unwrap().unwrap();
        assert_eq!((source.is_one_message().unwrap(), whole.bytes), (true, 0));
        match source.read(&mut [], whole) {
            Err(SourceError::Failed(said)) => assert!(said.contains("has more bytes than the 0"), "{said}"),
            other => panic!("{other:?}"),
        }
        // The file system says that the file has a page.
        let mut source = open(Path::new("/sys/kernel/fscaps"));
        let whole = source.peek().unwrap().unwrap();
        match source.read(&mut vec![0; usize::try_from(whole.bytes).unwrap()], whole) {
            Err(SourceError::Failed(said)) => assert!(said.contains("has fewer bytes than the"), "{said}"),
            other => panic!("{other:?}"),
        }
    }

    fn filetime(seconds: i64) -> rustix::fs::Timespec {
        rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 }
    }

    fn set_modified(path: &Path, time: rustix::fs::Timespec) {
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }

    #[test]
    fn a_pipe_in_a_files_place_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, Mode::RUSR, 0).unwrap();
        match Source::open(&pipe, false, PIECE, None).map(drop) {
            Err(SourceError::Failed(said)) => assert!(said.contains("no regular file"), "{said}"),
            other => panic!("{other:?}"),
        }
    }
}
