//! Thread that frees what peers leave behind, and sorts the files that they sent.
//!
//! The last process that lets go of a memory file frees its pages, and gigabytes take a second. Where a peer
//! is dead, that last process is this one. So what a connection leaves is freed by a thread of its own, and
//! the thread that polls the NIC goes on.
//!
//! A peer may also send a file whose close waits for the peer. So this thread closes only what cannot wait:
//! memory files, and sockets in which no message with a file waits unread. All else goes to the threads of
//! [`super::closing`].
//!
//! The thread runs where a NIC listens. A NIC that only connects frees on its own thread: nobody shares that,
//! and it trusts its receiver.

use super::closing::Closing;
use crate::source::Source;
use crate::unix::shut_down;
use rustix::fs::fcntl_get_seals;
use rustix::net::{Shutdown, shutdown};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Files that may wait before nobody new is let in.
const FILES_MAX: usize = 64;

/// Anything that a peer left.
enum Left {
    /// Memory. Dropping it takes time, and waits for nobody.
    Memory(Box<dyn Send>),
    /// A socket from which the peer's files may not have been taken.
    Socket(Source, OwnedFd),
    /// A file that the peer chose.
    File(Source, OwnedFd),
    /// Nothing. Files wait to be closed, and perhaps no thread could be started for them.
    Nothing,
}

impl Left {
    fn is_file(&self) -> bool {
        matches!(self, Self::Socket(..) | Self::File(..))
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Left>,
    /// Files and sockets among these.
    files: usize,
    ends: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    closing: Closing,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what waits longest, or waits for something. `None` once nothing comes any more.
    fn next(&self) -> Option<Left> {
        let mut queue = self.queue();
        loop {
            match queue.waiting.pop_front() {
                Some(left) => {
                    queue.files -= usize::from(left.is_file());
                    return Some(left);
                }
                None if queue.ends => return None,
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn free(&self, left: Left) {
        match left {
            // Whoever panics has said so, and the next is freed.
            Left::Memory(memory) => drop(catch_unwind(AssertUnwindSafe(|| drop(memory)))),
            Left::Socket(_, socket) if shut_down(socket.as_fd()) => drop(socket),
            // Only memory files have seals.
            Left::File(_, file) if fcntl_get_seals(&file).is_ok() => drop(file),
            Left::Socket(source, file) | Left::File(source, file) => self.closing.close(source, file),
            Left::Nothing => self.closing.start(),
        }
    }
}

/// Frees what peers leave behind. Dropping it waits until all memory is freed, and for no file.
pub(crate) struct Disposal {
    /// Processors that the thread may use: those of the thread that made the NIC. The thread that polls the
    /// NIC may be pinned to one.
    cpus: Option<CpuSet>,
    /// Things in the queue beyond which memory is freed by the caller.
    max: usize,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Disposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disposal").field("runs", &self.thread.is_some()).finish_non_exhaustive()
    }
}

impl Disposal {
    /// Makes a queue for so many things, without a thread.
    pub(crate) fn new(max: usize) -> Self {
        Self { cpus: sched_getaffinity(None).ok(), max, shared: Arc::default(), thread: None }
    }

    /// Starts the thread, if it does not run yet.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        if self.thread.is_some() {
            return Ok(());
        }
        let (shared, cpus) = (Arc::clone(&self.shared), self.cpus);
        let thread = std::thread::Builder::new().name("jet-free".to_owned()).spawn(move || {
            // Where this is refused, the thread shares a processor with the one that polls.
            let _ = cpus.map(|cpus| sched_setaffinity(None, &cpus));
            while let Some(left) = shared.next() {
                shared.free(left);
            }
        })?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Whether so many files wait that no connection may bring more.
    pub(crate) fn is_full(&mut self) -> bool {
        let unsorted = self.shared.queue().files;
        let is_full = unsorted + self.shared.closing.waiting() >= FILES_MAX;
        if is_full {
            self.push(Left::Nothing);
        }
        is_full
    }

    /// Returns how much waits for the thread.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.shared.queue().waiting.len()
    }

    /// Frees memory, on the thread if it runs and not too much waits for it.
    pub(crate) fn free(&mut self, memory: impl Send + 'static) {
        // Who leaves more than can be freed meanwhile makes this thread free it.
        if self.thread.is_none() || self.shared.queue().waiting.len() >= self.max {
            return drop(memory);
        }
        self.push(Left::Memory(Box::new(memory)));
    }

    /// Closes a socket on which a peer may have sent files. The peer hears at once that it is closed.
    pub(crate) fn close_socket(&mut self, source: Source, socket: OwnedFd) {
        let _ = shutdown(&socket, Shutdown::Both);
        self.push(Left::Socket(source, socket));
    }

    /// Closes files that a peer sent. The peer must be about to lose its connection, which bounds them.
    pub(crate) fn close_files(&mut self, source: Source, files: impl IntoIterator<Item = OwnedFd>) {
        files.into_iter().for_each(|file| self.push(Left::File(source, file)));
    }

    fn push(&mut self, left: Left) {
        if self.thread.is_none() {
            return drop(left);
        }
        let mut queue = self.shared.queue();
        queue.files += usize::from(left.is_file());
        queue.waiting.push_back(left);
        drop(queue);
        self.shared.changed.notify_one();
    }
}

impl Drop for Disposal {
    fn drop(&mut self) {
        self.shared.queue().ends = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread catches what panics.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::ThreadId;

    /// Tells which thread dropped it, after it was allowed to.
    struct Thing {
        may: Option<Receiver<()>>,
        tells: Sender<ThreadId>,
    }

    impl Drop for Thing {
        fn drop(&mut self) {
            if let Some(may) = &self.may {
                // A test that failed lets go, too.
                let _ = may.recv();
            }
            let _ = self.tells.send(std::thread::current().id());
        }
    }

    #[test]
    fn the_caller_waits_for_nothing_that_is_freed_and_the_queue_is_bounded() {
        let here = std::thread::current().id();
        let (tells, hears) = channel();
        let (lets, may) = channel();
        let mut disposal = Disposal::new(2);
        // Without a thread, as a NIC that only connects.
        disposal.free(Thing { may: None, tells: tells.clone() });
        assert_eq!(hears.recv().unwrap(), here);
        disposal.start().unwrap();
        disposal.start().unwrap();
        disposal.free(Thing { may: Some(may), tells: tells.clone() });
        // The thread has taken the first, and stands.
        while !disposal.shared.queue().waiting.is_empty() {
            std::thread::yield_now();
        }
        for _ in 0..2 {
            disposal.free(Thing { may: None, tells: tells.clone() });
        }
        assert!(hears.try_recv().is_err(), "all of them wait");
        disposal.free(Thing { may: None, tells: tells.clone() });
        assert_eq!(hears.try_recv(), Ok(here), "there is no more room");
        lets.send(()).unwrap();
        drop(disposal);
        let there: Vec<_> = hears.try_iter().collect();
        assert_eq!(there.len(), 3, "the end waits for the rest");
        assert!(there.iter().all(|thread| *thread != here));
    }
}
