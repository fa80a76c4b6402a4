//! Proof of a file that this process did not write, by reading it again.

use crate::files::disk::Work;
use crate::files::proof::{BLOCK_BYTES, Proof, Sum};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Number of bytes that are read at once. Every message in work may have a file that is being proven, and a
/// buffer of this size.
const READ_BYTES: usize = 128 << 10;

const _: () = assert!(READ_BYTES.is_multiple_of(BLOCK_BYTES));

/// File that is being read to prove it.
pub(super) struct Proving {
    file: Rc<OwnedFd>,
    file_bytes: u64,
    /// Offset up to which the file was read and hashed, in bytes.
    next: u64,
    sum: Sum,
    expected: Proof,
    /// Buffer for the reads. `None` while a read is in flight, and before the first.
    buffer: Option<Box<[u8]>>,
}

/// Next thing that a proof needs.
pub(super) enum Proved {
    /// The file is to be read.
    Read(Work),
    /// The proof has ended. The value says whether the file is what its sender read.
    Ended(bool),
}

impl Proving {
    pub(super) fn new(file: Rc<OwnedFd>, expected: Proof) -> io::Result<Self> {
        let file_bytes = u64::try_from(rustix::fs::fstat(&*file)?.st_size).unwrap_or(0);
        Ok(Self { file, file_bytes, next: 0, sum: Sum::new(expected.hash), expected, buffer: None })
    }

    pub(super) fn file(&self) -> &Rc<OwnedFd> {
        &self.file
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns the next read, or the result of the proof. Holes are not read.
    pub(super) fn next(&mut self) -> io::Result<Proved> {
        let data = match rustix::fs::seek(&*self.file, SeekFrom::Data(self.next)) {
            Ok(data) => data,
            Err(Errno::NXIO) => self.file_bytes,
            // The file system knows of no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => self.next,
            Err(errno) => return Err(errno.into()),
        };
        if data >= self.file_bytes {
            return Ok(Proved::Ended(self.sum.proof(self.file_bytes) == self.expected));
        }
        self.next = self.next.max(data - data % BLOCK_BYTES as u64);
        let buffer = self.buffer.take().unwrap_or_else(|| vec![0; READ_BYTES].into());
        Ok(Proved::Read(Work::Read { buffer, done: 0, offset: self.next }))
    }

    /// Hashes the bytes that were read. If the read was short, returns another one for the rest.
    pub(super) fn read(&mut self, buffer: Box<[u8]>, done: usize, before: usize) -> io::Result<Option<Work>> {
        let left = usize::try_from(self.file_bytes - self.next).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        if done < wanted {
            if done == before {
                // Somebody made the file shorter meanwhile.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            return Ok(Some(Work::Read { buffer, done, offset: self.next }));
        }
        self.sum.add(self.next, &buffer[..wanted]);
        self.next += wanted as u64;
        self.buffer = Some(buffer);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::proof::Hash;
    use std::os::unix::fs::FileExt;

    /// Performs a read as a [`Disk`](crate::files::disk::Disk) does, and gives the result to the proof.
    fn perform(proving: &mut Proving, file: &std::fs::File, work: Work) -> io::Result<Option<Work>> {
        let Work::Read { mut buffer, done: before, offset } = work else { panic!("only reads") };
        let read = file.read_at(&mut buffer[before..], offset + before as u64)?;
        proving.read(buffer, before + read, before)
    }

    #[test]
    fn a_file_that_becomes_shorter_while_it_is_proven_is_told_from_a_failing_disk() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![1; 2 * READ_BYTES], 0).unwrap();
        let owned = Rc::new(OwnedFd::from(file.try_clone().unwrap()));
        let expected = Sum::new(Hash::Fast).proof(2 * READ_BYTES as u64);
        let mut proving = Proving::new(owned, expected).unwrap();
        let Ok(Proved::Read(work)) = proving.next() else { panic!("there is something to read") };
        assert!(perform(&mut proving, &file, work).unwrap().is_none());
        let Ok(Proved::Read(work)) = proving.next() else { panic!("there is more to read") };
        file.set_len(READ_BYTES as u64 + 4096).unwrap();
        let rest = perform(&mut proving, &file, work).unwrap().expect("a short read goes on");
        let error = perform(&mut proving, &file, rest).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
