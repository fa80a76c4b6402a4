//! Writes, reads and syncs of files: many in flight at once, by io_uring, where the kernel has it and allows
//! it, and one after the other, by plain system calls, elsewhere.
//!
//! The bytes of messages are written to files from the memory where the NIC put them. A [`Disk`] keeps each
//! slice until its write has ended, so that the daemon cannot reuse the slice's slabs before that. No buffers
//! are registered with io_uring, because that would need a writable mapping.
//!
//! An io_uring ring that fails is not used again. The caller gets the error only when no operation is in
//! flight any more, and may then unmap the memory of the bytes at once.

use io_uring::{IoUring, opcode, types};
use jet_client::receive::DetachedSlice;
use jet_fabric::advice::{Advised, advised};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// Means by which files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Asynchronous writes through io_uring.
    IoUring,
    /// One `pwrite` system call after the other.
    Pwrite,
}

impl Engine {
    /// Returns the engine's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Pwrite => "pwrite",
        }
    }
}

/// Error that makes a [`Disk`] unusable.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The eventfd, by which both engines report that work ended, could not be made.
    #[error("cannot make an eventfd: {}", advised(.0))]
    Event(#[source] io::Error),
    /// The io_uring ring could not be set up, although the kernel has io_uring and allows it.
    #[error("cannot set up io_uring: {}", io_uring_advised(.0))]
    Setup(#[source] io::Error),
    /// The io_uring ring failed after it was set up.
    #[error("io_uring failed: {0}; give --no-io-uring to write without it")]
    Ring(#[source] io::Error),
}

fn io_uring_advised(error: &io::Error) -> Advised<'_> {
    Advised { error, otherwise: "raise ulimit -l (locked memory), or give --no-io-uring" }
}

/// Operation on a file: a write, a read or a sync.
#[derive(Debug)]
pub enum Work {
    /// Writes a slice from its byte `done` on.
    Write {
        /// Bytes that are written to the file.
        slice: DetachedSlice,
        /// Bytes of the slice that are written already.
        done: usize,
        /// Offset in the file at which the slice begins, in bytes.
        offset: u64,
        /// Whether the file's descriptor has `O_DIRECT`.
        direct: bool,
    },
    /// Reads into a buffer from its byte `done` on, to the end of the buffer or of the file.
    Read {
        /// Memory that the bytes are read into.
        buffer: Box<[u8]>,
        /// Bytes that were read into the buffer already.
        done: usize,
        /// Offset in the file at which the buffer begins, in bytes.
        offset: u64,
    },
    /// Syncs the file to the disk, as `fsync` does.
    Sync,
}

/// Work that ended, with its outcome.
#[derive(Debug)]
pub struct Finished {
    /// Token that the caller gave to [`Disk::begin`].
    pub token: usize,
    /// The work as it is now: its `done` includes the bytes of this operation.
    pub work: Work,
    /// Value of `done` before this operation.
    pub before: usize,
    /// Error of the system where the operation failed.
    pub error: Option<io::Error>,
}

struct Operation {
    token: usize,
    file: Rc<OwnedFd>,
    work: Work,
}

/// An operation's index in the table, and its result: the bytes that were written or read.
type Ended = (usize, io::Result<usize>);

enum Backend {
    Uring(Box<Uring>),
    Plain { ended: VecDeque<Ended>, event: OwnedFd },
}

/// An io_uring ring, and which operations the kernel has taken and ended.
struct Uring {
    ring: IoUring,
    event: OwnedFd,
    /// Indices of operations that were pushed and not yet taken by the kernel, in their order.
    untaken: VecDeque<usize>,
    /// Number of operations that the kernel took and that have not ended.
    taken: usize,
    /// Errno with which the ring failed. A ring that failed is not used any more.
    failure: Option<i32>,
    /// Operations that ended after the ring had failed: the kernel's last ones, and those that it never took.
    ended: VecDeque<Ended>,
}

/// Executor of a bounded number of writes in flight, and of reads and syncs beside them. Dropping a disk
/// waits until all of them have ended.
pub struct Disk {
    backend: Backend,
    operations: Slab<Operation>,
    operations_max: usize,
    /// Limit of writes in flight. The other places in the table of operations are for reads and syncs.
    depth: usize,
    writes: usize,
    refusal: Option<io::Error>,
}

impl Disk {
    /// Sets up a disk for at most `depth` writes in flight, and `others` reads and syncs beside them.
    ///
    /// # Errors
    /// [`DiskError::Event`], [`DiskError::Setup`]. A kernel that has no io_uring, or forbids it, is no error:
    /// [`Self::refusal`] then says why plain system calls are used.
    pub fn new(depth: usize, others: usize, io_uring: bool) -> Result<Self, DiskError> {
        let all = depth + others;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| DiskError::Event(errno.into()))?;
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
            operations: Slab::with_capacity(all),
            operations_max: all,
            depth,
            writes: 0,
            refusal,
        })
    }

    /// Returns the means by which files are written.
    pub fn engine(&self) -> Engine {
        match self.backend {
            Backend::Uring(_) => Engine::IoUring,
            Backend::Plain { .. } => Engine::Pwrite,
        }
    }

    /// Returns the kernel's reason for giving no io_uring, if the caller asked for io_uring in vain.
    pub fn refusal(&self) -> Option<&io::Error> {
        self.refusal.as_ref()
    }

    /// Returns how many writes can be begun now.
    pub fn room(&self) -> usize {
        self.depth - self.writes
    }

    /// Returns whether no write, read or sync is in flight.
    pub fn is_idle(&self) -> bool {
        self.operations.is_empty()
    }

    /// Begins work on a file. The kernel sees it when [`Self::submit`] is called.
    ///
    /// # Safety
    /// The session that gave the slice must live until [`Self::finished`] or [`Self::wait_all`] gave the work
    /// back. [`Self::wait_all`] is the way to be sure of that.
    ///
    /// # Errors
    /// [`DiskError::Ring`]: this work was not begun, and nothing is in flight any more.
    ///
    /// # Panics
    /// Panics where there is no room. The caller asks [`Self::room`] before.
    pub unsafe fn begin(&mut self, token: usize, file: &Rc<OwnedFd>, work: Work) -> Result<(), DiskError> {
        assert!(self.operations.len() < self.operations_max, "the caller looks for room before");
        let place = self.operations.vacant_entry();
        let index = place.key();
        if matches!(work, Work::Write { .. }) {
            assert!(self.writes < self.depth, "{} writes are in flight", self.writes);
            self.writes += 1;
        }
        let operation = place.insert(Operation { token, file: Rc::clone(file), work });
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

    /// Begins an operation once more, under its old index in the table. Returns `false` if the ring has
    /// failed and takes no operation any more.
    fn begin_again(&mut self, index: usize) -> bool {
        let operation = &mut self.operations[index];
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

    /// Takes an operation out of the table and frees its place.
    fn forget(&mut self, index: usize) -> Operation {
        let operation = self.operations.remove(index);
        self.writes -= usize::from(matches!(operation.work, Work::Write { .. }));
        operation
    }

    /// Shows the kernel all work that was begun.
    ///
    /// # Errors
    /// [`DiskError::Ring`]: nothing is in flight any more. All work that was has ended, and
    /// [`Self::finished`] gives it.
    pub fn submit(&mut self) -> Result<(), DiskError> {
        match &mut self.backend {
            Backend::Uring(uring) => uring.submit(0).map_err(DiskError::Ring),
            Backend::Plain { .. } => Ok(()),
        }
    }

    /// Takes one piece of work that ended, if there is one. Work that was interrupted before it did anything
    /// is begun again, and [`Self::submit`] shows it to the kernel.
    pub fn finished(&mut self) -> Option<Finished> {
        let (index, result) = loop {
            let (index, result) = match &mut self.backend {
                Backend::Plain { ended, .. } => ended.pop_front()?,
                Backend::Uring(uring) => uring.next_ended()?,
            };
            let again = matches!(
                &result,
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
            );
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

    /// Returns how many operations have ended and wait for [`Self::finished`].
    pub fn ended(&mut self) -> usize {
        match &mut self.backend {
            Backend::Plain { ended, .. } => ended.len(),
            Backend::Uring(uring) => uring.ended.len() + uring.ring.completion().len(),
        }
    }

    /// Asks the kernel to signal [`Self::as_fd`] when an operation ends. Returns `false` if one has ended
    /// already: the caller must not sleep then.
    pub fn prepare_sleep(&mut self) -> bool {
        match &mut self.backend {
            Backend::Plain { ended, .. } => ended.is_empty(),
            Backend::Uring(uring) => uring.prepare_sleep(),
        }
    }

    /// Ends what [`Self::prepare_sleep`] began: the kernel signals no more ends.
    pub fn awake(&mut self) {
        if let Backend::Uring(uring) = &mut self.backend {
            uring.awake();
        }
    }

    /// Waits until nothing is in flight, and passes all work that ended to `ended`.
    ///
    /// # Errors
    /// [`DiskError::Ring`]: nothing is in flight even so, and `ended` got all work that ended.
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
        // The slices' mapping may be dropped next. Nothing is in flight when `wait_all` returns, with or
        // without an error.
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
        // The kernel signals the eventfd only while this thread is about to sleep.
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
    /// The descriptor and the memory that the entry names must stay valid until the operation ended.
    ///
    /// # Errors
    /// The ring failed: the operation is not queued.
    unsafe fn push(&mut self, index: usize, entry: io_uring::squeue::Entry) -> io::Result<()> {
        if let Some(errno) = self.failure {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let entry = entry.user_data(index as u64);
        // SAFETY: the caller's promise.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // The queue has an entry for every operation, so it is full only until the kernel takes what is
            // in it.
            self.submit(0)?;
        }
        self.untaken.push_back(index);
        Ok(())
    }

    /// Shows the kernel all queued operations, and waits for `ends` of them to end. May return early where
    /// the call is interrupted or the kernel is busy.
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
            // The kernel may take more only when the caller has taken the operations that ended.
            if ends > 0 {
                return Ok(());
            }
        }
    }

    /// Stops using the ring, and waits until every operation that the kernel took has ended. Operations that
    /// it never took end here, with this error.
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

    /// Sleeps until the kernel signals a completion.
    fn sleep(&mut self) {
        // A signal, or an error of the wait itself, only makes the caller look once more.
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
        // The kernel writes an entry and then reads the flag. This thread writes the flag and then reads the
        // entries. The fence keeps both from missing the other's write.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        completions.sync();
        completions.is_empty() && self.ended.is_empty()
    }

    fn awake(&mut self) {
        self.ring.completion().disable_eventfd();
        let mut count = [0; 8];
        // Where there is nothing to read, the kernel did not signal.
        let _ = rustix::io::read(&self.event, &mut count);
    }
}

impl Operation {
    fn entry(&mut self) -> io_uring::squeue::Entry {
        let file = types::Fd(self.file.as_raw_fd());
        match &mut self.work {
            Work::Write { slice, done, offset, .. } => {
                let length = u32::try_from(slice.len() - *done).expect("a run is at most a fragment long");
                // The pointer stays within the slice: `done` never exceeds its length.
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
