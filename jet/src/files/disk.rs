//! Writes in flight, and reads and syncs beside them: io_uring where the kernel has it and allows it, plain
//! system calls where not.
//!
//! The bytes are written from where the NIC put them: the slices are kept here until their write ended, so
//! that their slabs are not used again under it. No buffers are registered with io_uring: that would need a
//! writable mapping.
//!
//! A ring that fails is not used again. Whoever hears of that failure hears it only when nothing is in flight
//! any more: the mapping that the bytes lie in may be gone a moment later.

use io_uring::{IoUring, opcode, types};
use jet_client::receive::DetachedSlice;
use jet_fabric::advice::Advised;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// How writing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// io_uring.
    IoUring,
    /// One `pwrite` after the other.
    Pwrite,
}

impl Engine {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Pwrite => "pwrite",
        }
    }
}

/// The disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// No ring, for another reason than that there is none.
    #[error("cannot set up io_uring: {}", io_uring_advised(.0))]
    Setup(#[source] io::Error),
    /// The ring failed.
    #[error("io_uring failed: {0}; give --no-io-uring to write without it")]
    Ring(#[source] io::Error),
}

fn io_uring_advised(error: &io::Error) -> Advised<'_> {
    Advised { error, otherwise: "raise ulimit -l (locked memory), or give --no-io-uring" }
}

/// What is to be done with a file.
#[derive(Debug)]
pub enum Work {
    /// Write a slice from its byte `done` on.
    Write {
        /// The bytes.
        slice: DetachedSlice,
        /// How many of them are written already.
        done: usize,
        /// Where the slice begins in the file.
        offset: u64,
        /// Whether the descriptor has `O_DIRECT`.
        direct: bool,
    },
    /// Read into a buffer from its byte `done` on, to its end or the file's.
    Read {
        /// Where the bytes go.
        buffer: Box<[u8]>,
        /// How many of them were read already.
        done: usize,
        /// Where the buffer begins in the file.
        offset: u64,
    },
    /// Make what was written last.
    Sync,
}

/// Work that ended.
#[derive(Debug)]
pub struct Finished {
    /// What it was submitted with.
    pub token: usize,
    /// The work; `done` counts what was written or read now, too.
    pub work: Work,
    /// What `done` was before.
    pub before: usize,
    /// What the system said, where it failed.
    pub error: Option<io::Error>,
}

struct Operation {
    token: usize,
    file: Rc<OwnedFd>,
    work: Work,
}

/// An operation's place, and what became of it.
type Ended = (usize, io::Result<usize>);

enum Backend {
    Uring(Box<Uring>),
    Plain { ended: VecDeque<Ended>, event: OwnedFd },
}

/// A ring, and what it has of the operations.
struct Uring {
    ring: IoUring,
    event: OwnedFd,
    /// Pushed, and not taken by the kernel, in their order.
    untaken: VecDeque<usize>,
    /// Taken by the kernel, and not ended.
    taken: usize,
    /// Why the ring is not used any more, as an errno.
    failure: Option<i32>,
    /// What ended while the ring was given up.
    ended: VecDeque<Ended>,
}

/// A bounded number of writes in flight, and of reads and syncs beside them. Dropping it waits for them.
pub struct Disk {
    backend: Backend,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Writes that may be in flight; the rest of the table is for reads and syncs.
    depth: usize,
    writes: usize,
    refusal: Option<io::Error>,
}

impl Disk {
    /// A disk of at most `depth` writes in flight, and `others` reads and syncs.
    ///
    /// # Errors
    /// [`DiskError::Setup`]. A kernel that has no io_uring, or forbids it, is no error: see
    /// [`Self::refusal`].
    pub fn new(depth: usize, others: usize, io_uring: bool) -> Result<Self, DiskError> {
        let all = depth + others;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| DiskError::Setup(errno.into()))?;
        let mut refusal = None;
        let mut ring = None;
        if io_uring {
            match Uring::set_up(all, event.as_fd()) {
                Ok(made) => ring = Some(made),
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EOPNOTSUPP)
                    ) =>
                {
                    refusal = Some(error);
                }
                Err(error) => return Err(DiskError::Setup(error)),
            }
        }
        let backend = match ring {
            Some(ring) => Backend::Uring(Box::new(Uring::new(ring, event, all))),
            None => Backend::Plain { ended: VecDeque::with_capacity(all), event },
        };
        Ok(Self {
            backend,
            operations: (0..all).map(|_| None).collect(),
            free: (0..all).rev().collect(),
            depth,
            writes: 0,
            refusal,
        })
    }

    /// How writing is done.
    pub fn engine(&self) -> Engine {
        match self.backend {
            Backend::Uring(_) => Engine::IoUring,
            Backend::Plain { .. } => Engine::Pwrite,
        }
    }

    /// Why the kernel gave no io_uring, where it was asked.
    pub fn refusal(&self) -> Option<&io::Error> {
        self.refusal.as_ref()
    }

    /// Writes that can be submitted now.
    pub fn room(&self) -> usize {
        self.depth - self.writes
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.operations.len()
    }

    /// Begins work on a file. [`Self::submit`] shows it to the kernel.
    ///
    /// # Safety
    /// The session that gave the slice lives until the work came back; [`Self::wait_all`] is the way to be
    /// sure.
    ///
    /// # Errors
    /// [`DiskError::Ring`]: this was not begun, and nothing is in flight any more.
    ///
    /// # Panics
    /// Where there is no room: the caller looks before.
    pub unsafe fn begin(&mut self, token: usize, file: &Rc<OwnedFd>, work: Work) -> Result<(), DiskError> {
        let index = self.free.pop().expect("the caller looks for room before");
        if matches!(work, Work::Write { .. }) {
            assert!(self.writes < self.depth, "{} writes are in flight", self.writes);
            self.writes += 1;
        }
        let operation = self.operations[index].insert(Operation { token, file: Rc::clone(file), work });
        match &mut self.backend {
            Backend::Plain { ended, .. } => {
                let result = operation.perform();
                ended.push_back((index, result));
            }
            Backend::Uring(uring) => {
                // SAFETY: descriptor, slice and buffer stay in `operations` until the completion, and the
                // session that owns a slice's mapping outlives it (the caller's promise). A buffer's bytes
                // lie on the heap, where they stay when the operation moves.
                if let Err(error) = unsafe { uring.push(index, operation.entry()) } {
                    self.forget(index);
                    return Err(DiskError::Ring(error));
                }
            }
        }
        Ok(())
    }

    /// Begins an operation once more where it is. `false`: the ring takes nothing any more.
    fn begin_again(&mut self, index: usize) -> bool {
        let operation = self.operations[index].as_mut().expect("what ended has its place until it is taken");
        match &mut self.backend {
            Backend::Plain { ended, .. } => {
                let result = operation.perform();
                ended.push_back((index, result));
                true
            }
            // SAFETY: as in `begin`, whose caller's promise is for the work, however often it is begun.
            Backend::Uring(uring) => unsafe { uring.push(index, operation.entry()) }.is_ok(),
        }
    }

    /// The operation's place is free.
    fn forget(&mut self, index: usize) -> Operation {
        let operation = self.operations[index].take().expect("a completion comes once");
        self.free.push(index);
        self.writes -= usize::from(matches!(operation.work, Work::Write { .. }));
        operation
    }

    /// Shows the kernel what was begun.
    ///
    /// # Errors
    /// [`DiskError::Ring`]: nothing is in flight any more. What was has ended, as [`Self::finished`] tells.
    pub fn submit(&mut self) -> Result<(), DiskError> {
        match &mut self.backend {
            Backend::Uring(uring) => uring.submit(0).map_err(DiskError::Ring),
            Backend::Plain { .. } => Ok(()),
        }
    }

    /// Work that ended, if any did. What was interrupted before it did anything is begun again;
    /// [`Self::submit`] shows it to the kernel.
    pub fn finished(&mut self) -> Option<Finished> {
        let (index, result) = loop {
            let (index, result) = match &mut self.backend {
                Backend::Plain { ended, .. } => ended.pop_front()?,
                Backend::Uring(uring) => uring.next_ended()?,
            };
            // Interrupted before anything was done.
            let again = matches!(&result, Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)));
            if !(again && self.begin_again(index)) {
                break (index, result);
            }
        };
        let Operation { token, mut work, .. } = self.forget(index);
        let before = match work {
            Work::Write { done, .. } | Work::Read { done, .. } => done,
            Work::Sync => 0,
        };
        let error = match (result, &mut work) {
            (Err(error), _) => Some(error),
            (Ok(0), Work::Write { slice, done, .. }) if *done < slice.len() => {
                Some(io::Error::from_raw_os_error(libc::EIO))
            }
            (Ok(passed), Work::Write { done, .. } | Work::Read { done, .. }) => {
                *done += passed;
                None
            }
            (Ok(_), Work::Sync) => None,
        };
        Some(Finished { token, work, before, error })
    }

    /// How much has ended by now, and waits for [`Self::finished`].
    pub fn ended(&mut self) -> usize {
        match &mut self.backend {
            Backend::Plain { ended, .. } => ended.len(),
            Backend::Uring(uring) => uring.ended.len() + uring.ring.completion().len(),
        }
    }

    /// Asks to be woken through [`Self::as_fd`]. `false`: something ended meanwhile.
    pub fn prepare_sleep(&mut self) -> bool {
        match &mut self.backend {
            Backend::Plain { ended, .. } => ended.is_empty(),
            Backend::Uring(uring) => uring.prepare_sleep(),
        }
    }

    /// Takes the wish to be woken back.
    pub fn awake(&mut self) {
        if let Backend::Uring(uring) = &mut self.backend {
            uring.awake();
        }
    }

    /// Waits until nothing is in flight, and gives what ended.
    ///
    /// # Errors
    /// [`DiskError::Ring`]: nothing is in flight all the same, and what ended was given.
    pub fn wait_all(&mut self, mut ended: impl FnMut(Finished)) -> Result<(), DiskError> {
        let mut failed = Ok(());
        loop {
            while let Some(finished) = self.finished() {
                ended(finished);
            }
            if self.is_idle() {
                return failed;
            }
            if let Backend::Uring(uring) = &mut self.backend
                && let Err(error) = uring.submit(1)
            {
                failed = Err(DiskError::Ring(error));
            }
        }
    }
}

impl AsFd for Disk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.backend {
            Backend::Uring(uring) => uring.event.as_fd(),
            Backend::Plain { event, .. } => event.as_fd(),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The slices' mapping may go next. Nothing is in flight when this returns, whatever it says.
        let _ = self.wait_all(drop);
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

impl Uring {
    fn set_up(entries: usize, event: BorrowedFd<'_>) -> io::Result<IoUring> {
        let entries = u32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut ring = IoUring::builder().dontfork().build(entries)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        // Rung only when somebody is about to sleep.
        ring.completion().disable_eventfd();
        Ok(ring)
    }

    fn new(ring: IoUring, event: OwnedFd, operations: usize) -> Self {
        let queue = || VecDeque::with_capacity(operations);
        Self {
            ring,
            event,
            untaken: queue(),
            taken: 0,
            failure: None,
            ended: VecDeque::with_capacity(operations),
        }
    }

    /// Queues an operation for the kernel.
    ///
    /// # Safety
    /// What the entry names is valid until the operation ended.
    ///
    /// # Errors
    /// The ring failed: this is not queued.
    unsafe fn push(&mut self, index: usize, entry: io_uring::squeue::Entry) -> io::Result<()> {
        if let Some(errno) = self.failure {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let entry = entry.user_data(index as u64);
        // SAFETY: the caller's promise.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // The queue has an entry for every operation; it is full only until the kernel took what is in
            // it.
            self.submit(0)?;
        }
        self.untaken.push_back(index);
        Ok(())
    }

    /// Shows the kernel what is queued, and waits for so many ends.
    ///
    /// # Errors
    /// The ring failed; nothing is in flight any more.
    fn submit(&mut self, ends: usize) -> io::Result<()> {
        if let Some(errno) = self.failure {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if self.untaken.is_empty() && ends == 0 {
            return Ok(());
        }
        loop {
            let error = match self.ring.submit_and_wait(ends) {
                Ok(count) => {
                    self.taken += self.untaken.drain(..count).count();
                    return Ok(());
                }
                Err(error) => error,
            };
            if !is_passing(&error) {
                self.give_up(&error);
                return Err(error);
            }
            // Some of it may wait for what ended to be taken.
            if ends > 0 {
                return Ok(());
            }
        }
    }

    /// The ring is not used any more. What the kernel never took ends here; what it took ends by itself.
    fn give_up(&mut self, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        self.failure = Some(errno);
        while self.taken > 0 {
            match self.next_completion() {
                Some(ended) => self.ended.push_back(ended),
                None if self.prepare_sleep() => self.sleep(),
                None => {}
            }
        }
        let untaken = self.untaken.drain(..);
        self.ended.extend(untaken.map(|index| (index, Err(io::Error::from_raw_os_error(errno)))));
    }

    /// Until the kernel rings for a completion.
    fn sleep(&mut self) {
        // A signal, or an error of the wait itself, is one look too many.
        let _ = rustix::event::poll(&mut [PollFd::new(&self.event, PollFlags::IN)], None);
        self.awake();
    }

    fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front().or_else(|| self.next_completion())
    }

    fn next_completion(&mut self) -> Option<Ended> {
        let entry = self.ring.completion().next()?;
        self.taken -= 1;
        let index = usize::try_from(entry.user_data()).expect("an index of ours");
        let result = usize::try_from(entry.result());
        Some((index, result.map_err(|_| io::Error::from_raw_os_error(-entry.result()))))
    }

    fn prepare_sleep(&mut self) -> bool {
        let mut completions = self.ring.completion();
        completions.enable_eventfd();
        // The kernel writes an entry and then reads the flag; this writes the flag and then reads the
        // entries.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        completions.sync();
        completions.is_empty() && self.ended.is_empty()
    }

    fn awake(&mut self) {
        self.ring.completion().disable_eventfd();
        let mut count = [0; 8];
        // Nothing to read means that nobody rang.
        let _ = rustix::io::read(&self.event, &mut count);
    }
}

impl Operation {
    fn entry(&mut self) -> io_uring::squeue::Entry {
        let file = types::Fd(self.file.as_raw_fd());
        match &mut self.work {
            Work::Write { slice, done, offset, .. } => {
                let length = u32::try_from(slice.len() - *done).expect("a run is at most a fragment long");
                // Stays within the slice: `done` never exceeds its length.
                let bytes = slice.as_ptr().wrapping_add(*done);
                opcode::Write::new(file, bytes, length).offset(*offset + *done as u64).build()
            }
            Work::Read { buffer, done, offset } => {
                let rest = &mut buffer[*done..];
                let length = u32::try_from(rest.len()).expect("a buffer is short");
                opcode::Read::new(file, rest.as_mut_ptr(), length).offset(*offset + *done as u64).build()
            }
            Work::Sync => opcode::Fsync::new(file).build(),
        }
    }

    fn perform(&mut self) -> io::Result<usize> {
        match &mut self.work {
            Work::Write { slice, done, offset, .. } => {
                // SAFETY: the session that gave the slice outlives the work (promised to `begin`).
                let bytes = unsafe { slice.bytes() };
                Ok(rustix::io::pwrite(&*self.file, &bytes[*done..], *offset + *done as u64)?)
            }
            Work::Read { buffer, done, offset } => {
                Ok(rustix::io::pread(&*self.file, &mut buffer[*done..], *offset + *done as u64)?)
            }
            Work::Sync => Ok(rustix::fs::fsync(&*self.file).map(|()| 0)?),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
