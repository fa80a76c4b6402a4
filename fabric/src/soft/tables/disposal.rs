//! Thread that frees what peers leave behind.
//!
//! The last process that lets go of a memory file frees its pages, and gigabytes take a second. Where a peer
//! is dead, that last process is this one. So what a connection leaves is freed by a thread of its own, and
//! the thread that polls the NIC goes on.
//!
//! The thread runs where a NIC listens. A NIC that only connects frees on its own thread: nobody shares that.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Anything that is dropped.
type Left = Box<dyn Send>;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Left>,
    ends: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
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
                Some(left) => return Some(left),
                None if queue.ends => return None,
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Frees what peers leave behind. Dropping it waits until all is freed.
pub(crate) struct Disposal {
    /// Processors that the thread may use: those of the thread that made the NIC. The thread that polls the
    /// NIC may be pinned to one.
    cpus: Option<CpuSet>,
    /// Most things that wait to be freed.
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
                drop(left);
            }
        })?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Drops something, on the thread if it runs and not too much waits for it.
    pub(crate) fn dispose(&mut self, left: impl Send + 'static) {
        if self.thread.is_none() {
            return drop(left);
        }
        let mut queue = self.shared.queue();
        if queue.waiting.len() >= self.max {
            // Who leaves more than can be freed meanwhile makes this thread free it.
            drop(queue);
            return drop(left);
        }
        queue.waiting.push_back(Box::new(left));
        drop(queue);
        self.shared.changed.notify_one();
    }
}

impl Drop for Disposal {
    fn drop(&mut self) {
        self.shared.queue().ends = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A destructor that panicked has said so.
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
        disposal.dispose(Thing { may: None, tells: tells.clone() });
        assert_eq!(hears.recv().unwrap(), here);
        disposal.start().unwrap();
        disposal.start().unwrap();
        disposal.dispose(Thing { may: Some(may), tells: tells.clone() });
        // The thread has taken the first, and stands.
        while !disposal.shared.queue().waiting.is_empty() {
            std::thread::yield_now();
        }
        for _ in 0..2 {
            disposal.dispose(Thing { may: None, tells: tells.clone() });
        }
        assert!(hears.try_recv().is_err(), "all of them wait");
        disposal.dispose(Thing { may: None, tells: tells.clone() });
        assert_eq!(hears.try_recv(), Ok(here), "there is no more room");
        lets.send(()).unwrap();
        drop(disposal);
        let there: Vec<_> = hears.try_iter().collect();
        assert_eq!(there.len(), 3, "the end waits for the rest");
        assert!(there.iter().all(|thread| *thread != here));
    }
}
