//! Writes in flight: io_uring where the kernel has it and allows it, `pwrite` where not.
//!
//! The bytes are written from where the NIC put them: the slices are kept here until their write ended, so that their
//! slabs are not used again under it. No buffers are registered with io_uring: that would need a writable mapping.

use io_uring::{IoUring, opcode, types};
use jet_client::receive::DetachedSlice;
use rustix::event::{EventfdFlags, eventfd};
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
    #[error(
        "cannot set up io_uring: {0}; raise ulimit -l (locked memory) or ulimit -n, or give --no-io-uring"
    )]
    Setup(#[source] io::Error),
    /// The ring failed.
    #[error("io_uring failed: {0}; give --no-io-uring to write without it")]
    Ring(#[source] io::Error),
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
    /// Make what was written last.
    Sync,
}

/// Work that ended.
#[derive(Debug)]
pub struct Finished {
    /// What it was submitted with.
    pub token: usize,
    /// The work; a write's `done` counts what was written now, too.
    pub work: Work,
    /// What the system said, where it failed.
    pub error: Option<io::Error>,
}

struct Operation {
    token: usize,
    file: Rc<OwnedFd>,
    work: Work,
}

enum Backend {
    Uring { ring: Box<IoUring>, event: OwnedFd },
    Plain { ended: VecDeque<(usize, io::Result<usize>)>, event: OwnedFd },
}

/// A bounded number of writes in flight. Dropping it waits for them.
pub struct Disk {
    backend: Backend,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Writes that may be in flight; the rest of the table is for syncs.
    depth: usize,
    writes: usize,
    unsubmitted: bool,
    refusal: Option<io::Error>,
}

impl Disk {
    /// A disk of at most `depth` writes and `syncs` syncs in flight.
    ///
    /// # Errors
    /// [`DiskError::Setup`]. A kernel that has no io_uring, or forbids it, is no error: see [`Self::refusal`].
    pub fn new(depth: usize, syncs: usize, io_uring: bool) -> Result<Self, DiskError> {
        let all = depth + syncs;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| DiskError::Setup(errno.into()))?;
        let mut refusal = None;
        let mut ring = None;
        if io_uring {
            match Self::ring(all, event.as_fd()) {
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
            Some(ring) => Backend::Uring { ring: Box::new(ring), event },
            None => Backend::Plain { ended: VecDeque::with_capacity(all), event },
        };
        Ok(Self {
            backend,
            operations: (0..all).map(|_| None).collect(),
            free: (0..all).rev().collect(),
            depth,
            writes: 0,
            unsubmitted: false,
            refusal,
        })
    }

    fn ring(entries: usize, event: BorrowedFd<'_>) -> io::Result<IoUring> {
        let entries = u32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut ring = IoUring::builder().dontfork().build(entries)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        // Rung only when somebody is about to sleep.
        ring.completion().disable_eventfd();
        Ok(ring)
    }

    /// How writing is done.
    pub fn engine(&self) -> Engine {
        match self.backend {
            Backend::Uring { .. } => Engine::IoUring,
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
    /// The session that gave the slice lives until the work came back; [`Self::wait_all`] is the way to be sure.
    ///
    /// # Errors
    /// [`DiskError::Ring`].
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
            Backend::Plain { ended, .. } => ended.push_back((index, operation.perform())),
            Backend::Uring { ring, .. } => {
                let entry = operation.entry().user_data(index as u64);
                // SAFETY: descriptor and bytes stay in `operations` until the completion, and the session that owns
                // the bytes' mapping outlives it (the caller's promise).
                while unsafe { ring.submission().push(&entry) }.is_err() {
                    // The queue has an entry for every operation; it is full only until the kernel took what is in it.
                    submit(ring)?;
                }
                self.unsubmitted = true;
            }
        }
        Ok(())
    }

    /// Shows the kernel what was begun.
    ///
    /// # Errors
    /// [`DiskError::Ring`].
    pub fn submit(&mut self) -> Result<(), DiskError> {
        if std::mem::take(&mut self.unsubmitted)
            && let Backend::Uring { ring, .. } = &self.backend
        {
            submit(ring)?;
        }
        Ok(())
    }

    /// Work that ended, if any did.
    pub fn finished(&mut self) -> Option<Finished> {
        let (index, result) = match &mut self.backend {
            Backend::Plain { ended, .. } => ended.pop_front()?,
            Backend::Uring { ring, .. } => {
                let entry = ring.completion().next()?;
                let index = usize::try_from(entry.user_data()).expect("an index of ours");
                (
                    index,
                    usize::try_from(entry.result())
                        .map_err(|_| io::Error::from_raw_os_error(-entry.result())),
                )
            }
        };
        let Operation { token, mut work, .. } =
            self.operations[index].take().expect("a completion comes once");
        self.free.push(index);
        if matches!(work, Work::Write { .. }) {
            self.writes -= 1;
        }
        let error = match (result, &mut work) {
            (Err(error), _) => Some(error),
            (Ok(0), Work::Write { slice, done, .. }) if *done < slice.len() => {
                Some(io::Error::from_raw_os_error(libc::EIO))
            }
            (Ok(written), Work::Write { done, .. }) => {
                *done += written;
                None
            }
            (Ok(_), Work::Sync) => None,
        };
        Some(Finished { token, work, error })
    }

    /// Asks to be woken through [`Self::as_fd`]. `false`: something ended meanwhile.
    pub fn prepare_sleep(&mut self) -> bool {
        match &mut self.backend {
            Backend::Plain { ended, .. } => ended.is_empty(),
            Backend::Uring { ring, .. } => {
                let mut completions = ring.completion();
                completions.enable_eventfd();
                // The kernel writes an entry and then reads the flag; this writes the flag and then reads the entries.
                std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
                completions.sync();
                completions.is_empty()
            }
        }
    }

    /// Takes the wish to be woken back.
    pub fn awake(&mut self) {
        if let Backend::Uring { ring, event } = &mut self.backend {
            ring.completion().disable_eventfd();
            let mut count = [0; 8];
            // Nothing to read means that nobody rang.
            let _ = rustix::io::read(&*event, &mut count);
        }
    }

    /// Waits until nothing is in flight, and gives what ended.
    ///
    /// # Errors
    /// [`DiskError::Ring`].
    pub fn wait_all(&mut self, mut ended: impl FnMut(Finished)) -> Result<(), DiskError> {
        loop {
            while let Some(finished) = self.finished() {
                ended(finished);
            }
            if self.is_idle() {
                return Ok(());
            }
            if let Backend::Uring { ring, .. } = &self.backend {
                self.unsubmitted = false;
                match ring.submit_and_wait(1) {
                    Ok(_) => {}
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(DiskError::Ring(error)),
                }
            }
        }
    }
}

impl AsFd for Disk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.backend {
            Backend::Uring { event, .. } | Backend::Plain { event, .. } => event.as_fd(),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The slices' mapping may go next. A ring that fails here is torn down by the kernel with its work.
        let _ = self.wait_all(drop);
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

fn submit(ring: &IoUring) -> Result<(), DiskError> {
    loop {
        match ring.submit() {
            Ok(_) => return Ok(()),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(DiskError::Ring(error)),
        }
    }
}

impl Operation {
    fn entry(&self) -> io_uring::squeue::Entry {
        let file = types::Fd(self.file.as_raw_fd());
        match &self.work {
            Work::Write { slice, done, offset, .. } => {
                let length = u32::try_from(slice.len() - done).expect("a run is at most a fragment long");
                // Stays within the slice: `done` never exceeds its length.
                let bytes = slice.as_ptr().wrapping_add(*done);
                opcode::Write::new(file, bytes, length).offset(offset + *done as u64).build()
            }
            Work::Sync => opcode::Fsync::new(file).build(),
        }
    }

    fn perform(&self) -> io::Result<usize> {
        match &self.work {
            Work::Write { slice, done, offset, .. } => {
                // SAFETY: the session that gave the slice outlives the work (promised to `begin`).
                let bytes = unsafe { slice.bytes() };
                loop {
                    match rustix::io::pwrite(&*self.file, &bytes[*done..], offset + *done as u64) {
                        Err(rustix::io::Errno::INTR) => {}
                        other => return Ok(other?),
                    }
                }
            }
            Work::Sync => Ok(rustix::fs::fsync(&*self.file).map(|()| 0)?),
        }
    }
}
