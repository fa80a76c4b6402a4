//! Writes, reads and syncs of files as futures, by io_uring.
//!
//! Whoever wants something done puts it into the ring and shows it to the kernel by itself. The kernel
//! signals an eventfd when something has ended, and one task passes the ends on. The ring keeps the file and
//! the memory of what is in flight, whatever becomes of the future that waits for it.

use crate::protocol::BLOCK_BYTES;
use bytes::Bytes;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// Operations that the kernel is shown at once. Each task has one, so this is more than there are tasks.
const ENTRIES: u32 = 256;

/// A block in memory, where a disk may write it directly.
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_BYTES]);

/// An io_uring, for any number of tasks.
#[derive(Clone)]
pub struct Ring(Arc<Mutex<State>>);

struct State {
    ring: IoUring,
    in_flight: HashMap<u64, InFlight>,
    next_id: u64,
}

/// What the kernel may use until the operation has ended.
struct InFlight {
    file: Arc<File>,
    work: Work,
    answer: oneshot::Sender<(io::Result<usize>, Work)>,
}

enum Work {
    Write { bytes: Bytes, offset: u64 },
    Read { block: Box<Block>, offset: u64 },
    Sync,
}

impl Ring {
    /// Sets up a ring, and begins to pass its ends on, in this runtime.
    ///
    /// # Errors
    /// Those of io_uring and of eventfd. `EPERM` and `ENOSYS`: the kernel or the container allows no
    /// io_uring.
    pub fn new() -> io::Result<Self> {
        let ring = IoUring::builder().dontfork().build(ENTRIES)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        // SAFETY: the registration has the descriptor, which is open until the registration ends.
        let event = unsafe { AsyncFd::register(event) }?;
        let state = State { ring, in_flight: HashMap::new(), next_id: 0 };
        let ring = Self(Arc::new(Mutex::new(state)));
        tokio::spawn(pass_ends_on(event, ring.clone()));
        Ok(ring)
    }

    /// Writes all of these bytes to the file. Gives `bytes` back when the last of them is written.
    ///
    /// # Errors
    /// Those of the file. Some of the bytes may be written.
    pub async fn write(&self, file: &Arc<File>, mut bytes: Bytes, mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let work = Work::Write { bytes: bytes.clone(), offset };
            match self.perform(file, work).await.0? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => {
                    offset += written as u64;
                    bytes = bytes.split_off(written);
                }
            }
        }
        Ok(())
    }

    /// Reads a block of the file.
    ///
    /// # Errors
    /// Those of the file; `UnexpectedEof` where it ends before.
    pub async fn read(&self, file: &Arc<File>, offset: u64) -> io::Result<Box<Block>> {
        let work = Work::Read { block: Box::new(Block([0; BLOCK_BYTES])), offset };
        match self.perform(file, work).await {
            (Ok(BLOCK_BYTES), Work::Read { block, .. }) => Ok(block),
            (Ok(_), _) => Err(io::ErrorKind::UnexpectedEof.into()),
            (Err(error), _) => Err(error),
        }
    }

    /// Puts on the disk what was written to the file, as `fdatasync` does.
    ///
    /// # Errors
    /// Those of the file: then nobody knows what is on the disk.
    pub async fn sync(&self, file: &Arc<File>) -> io::Result<()> {
        self.perform(file, Work::Sync).await.0.map(drop)
    }

    async fn perform(&self, file: &Arc<File>, mut work: Work) -> (io::Result<usize>, Work) {
        loop {
            let (answer, ended) = oneshot::channel();
            self.lock().begin(InFlight { file: Arc::clone(file), work, answer });
            let (result, its_work) = ended.await.expect("each operation has an end");
            match result {
                Err(error) if is_passing(&error) => work = its_work,
                result => return (result, its_work),
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("a panic ends the process")
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// Passes ends on, until the runtime ends.
async fn pass_ends_on(event: AsyncFd<OwnedFd>, ring: Ring) {
    loop {
        let mut ready = event.readable().await.expect("an eventfd can be waited for");
        let mut count = [0; 8];
        // A wake-up for nothing is harmless.
        let _ = rustix::io::read(event.get_ref(), &mut count);
        ready.clear_ready();
        ring.lock().take_ends();
    }
}

impl State {
    /// Shows the kernel an operation.
    fn begin(&mut self, operation: InFlight) {
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight.insert(id, operation);
        let entry = self.in_flight.get_mut(&id).expect("just inserted").entry().user_data(id);
        // SAFETY: file and memory stay in `in_flight` until `take_ends` has seen the operation's end. The
        // memory is on the heap or in the pool, where it stays when the table grows.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.submit(0);
        }
        self.submit(0);
    }

    /// Lets the kernel take what it was shown. Ends the process where it does not: it could take a write
    /// later, when another message's data lies in that place.
    fn submit(&mut self, ends: usize) {
        loop {
            match self.ring.submit_and_wait(ends) {
                Err(error) if is_passing(&error) || error.raw_os_error() == Some(EBUSY) => {
                    // Busy: there are many ends, which are to be taken first.
                    self.take_ends();
                }
                Err(error) => {
                    eprintln!("storage_server: io_uring: {error}; messages that are open come again");
                    std::process::abort();
                }
                Ok(_) => return,
            }
        }
    }

    fn take_ends(&mut self) {
        for end in self.ring.completion() {
            let InFlight { work, answer, .. } =
                self.in_flight.remove(&end.user_data()).expect("each operation ends once");
            let result = usize::try_from(end.result());
            let result = result.map_err(|_| io::Error::from_raw_os_error(-end.result()));
            // Whoever waited may be gone.
            let _ = answer.send((result, work));
        }
    }
}

const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();

impl Drop for State {
    fn drop(&mut self) {
        // The kernel may use the memory until then.
        while !self.in_flight.is_empty() {
            self.submit(1);
            self.take_ends();
        }
    }
}

impl InFlight {
    fn entry(&mut self) -> squeue::Entry {
        let file = types::Fd(self.file.as_raw_fd());
        match &mut self.work {
            Work::Write { bytes, offset } => {
                let length = u32::try_from(bytes.len()).expect("a write is short");
                opcode::Write::new(file, bytes.as_ptr(), length).offset(*offset).build()
            }
            Work::Read { block, offset } => {
                let length = u32::try_from(BLOCK_BYTES).expect("4096");
                opcode::Read::new(file, block.0.as_mut_ptr(), length).offset(*offset).build()
            }
            Work::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }
}
