//! Threads that copy. They decide nothing: a job says from where to where, and its end is reported.

use crossbeam_queue::ArrayQueue;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::{JoinHandle, Thread};

/// Looks at an empty queue before a worker sleeps: about as long as waking it takes.
const LOOKS: u32 = 2_000;
/// The most threads: one bit each says which of them sleep.
pub const WORKERS_MAX: usize = 64;

/// A copy to be made.
///
/// Whoever submits it answers for this, until its end is taken: both places are valid for so many bytes and do not
/// overlap, nobody writes the source, and nobody else touches the destination.
#[derive(Debug)]
pub struct CopyJob {
    /// Comes back with the end.
    pub id: u32,
    /// From here.
    pub from: *const u8,
    /// To here.
    pub to: *mut u8,
    /// So many bytes.
    pub bytes: usize,
}

// SAFETY: the places are shared memory that any thread may touch under the terms above.
unsafe impl Send for CopyJob {}

/// There is no room for another job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

struct Shared {
    jobs: ArrayQueue<CopyJob>,
    done: ArrayQueue<u32>,
    /// Bit n: worker n is about to sleep, or sleeps.
    sleeping: AtomicU64,
    closing: AtomicBool,
    /// The bell rang for what is in `done`.
    told: AtomicBool,
    bell: Box<dyn Fn() + Send + Sync>,
}

/// The copying threads; dropping this ends them.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<(Thread, Option<JoinHandle<()>>)>,
}

impl Workers {
    /// Starts so many threads, for at most `capacity` jobs whose ends were not taken. `bell` is rung when there is
    /// something to take.
    ///
    /// # Errors
    /// What the system says about starting threads.
    pub fn start(
        threads: usize,
        capacity: usize,
        bell: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        assert!(threads <= WORKERS_MAX, "{threads} threads, but at most {WORKERS_MAX} can be told apart");
        let capacity = capacity.max(1);
        let shared = Arc::new(Shared {
            jobs: ArrayQueue::new(capacity),
            done: ArrayQueue::new(capacity),
            sleeping: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            told: AtomicBool::new(false),
            bell: Box::new(bell),
        });
        let mut workers = Self { shared, threads: Vec::new() };
        for n in 0..threads {
            let shared = Arc::clone(&workers.shared);
            let thread = std::thread::Builder::new()
                .name(format!("jet-copy-{n}"))
                .spawn(move || shared.work(1 << n))?;
            workers.threads.push((thread.thread().clone(), Some(thread)));
        }
        Ok(workers)
    }

    /// Has a copy made. A system call only where a worker sleeps.
    ///
    /// # Errors
    /// [`QueueFull`]; always where there are no threads.
    pub fn submit(&self, job: CopyJob) -> Result<(), QueueFull> {
        if self.threads.is_empty() {
            return Err(QueueFull);
        }
        self.shared.jobs.push(job).map_err(|_| QueueFull)?;
        // A worker says that it sleeps and then looks for jobs; here a job is put and then looked who sleeps. With a
        // fence between the two on both sides, one of them sees the other.
        fence(Ordering::SeqCst);
        let sleeping = self.shared.sleeping.load(Ordering::Relaxed);
        if sleeping != 0 {
            let first = sleeping.trailing_zeros() as usize;
            self.shared.sleeping.fetch_and(!(1 << first), Ordering::Relaxed);
            self.threads[first].0.unpark();
        }
        Ok(())
    }

    /// A job that is done.
    #[inline]
    pub fn take_done(&self) -> Option<u32> {
        if self.shared.done.is_empty() { None } else { self.take_some() }
    }

    #[cold]
    fn take_some(&self) -> Option<u32> {
        let taken = self.shared.done.pop();
        if self.shared.done.is_empty() {
            // The bell is to ring again; for what came before this was said it does not, but that is seen by the next
            // look, which is taken before the reactor sleeps.
            self.shared.told.store(false, Ordering::SeqCst);
        }
        taken
    }

    /// Whether none is.
    pub fn is_done_empty(&self) -> bool {
        self.shared.done.is_empty()
    }
}

impl Shared {
    fn work(&self, bit: u64) {
        loop {
            let mut looks = 0;
            let job = loop {
                if let Some(job) = self.jobs.pop() {
                    break job;
                }
                if self.closing.load(Ordering::Acquire) {
                    return;
                }
                if looks < LOOKS {
                    looks += 1;
                    std::hint::spin_loop();
                    continue;
                }
                self.sleeping.fetch_or(bit, Ordering::Relaxed);
                fence(Ordering::SeqCst); // see `submit`
                if self.jobs.is_empty() && !self.closing.load(Ordering::Relaxed) {
                    std::thread::park();
                }
                self.sleeping.fetch_and(!bit, Ordering::Relaxed);
                looks = 0;
            };
            // SAFETY: the job's terms.
            unsafe { std::ptr::copy_nonoverlapping(job.from, job.to, job.bytes) };
            let pushed = self.done.push(job.id);
            assert!(pushed.is_ok(), "no more jobs are under way than there is room for");
            if !self.told.swap(true, Ordering::SeqCst) {
                (self.bell)();
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        fence(Ordering::SeqCst); // see `submit`
        for (thread, joins) in &mut self.threads {
            thread.unpark();
            if let Some(joins) = joins.take() {
                // One that panicked has said so.
                let _ = joins.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn job(id: u32, from: &[u8], to: &mut [u8]) -> CopyJob {
        assert_eq!(from.len(), to.len());
        CopyJob { id, from: from.as_ptr(), to: to.as_mut_ptr(), bytes: to.len() }
    }

    #[test]
    fn every_job_is_done_once_and_the_bell_wakes_whoever_waits_for_it() {
        const JOBS: u32 = 5_000;
        for threads in [1, 3] {
            let (ring, bell) = mpsc::channel();
            let workers =
                Workers::start(threads, 16, move || ring.send(()).expect("somebody listens")).unwrap();
            let from = vec![7u8; 4096];
            let mut to = vec![vec![0u8; 4096]; 16];
            let mut free: Vec<u32> = (0..16).collect();
            let (mut submitted, mut done) = (0, 0);
            while done < JOBS {
                while submitted < JOBS
                    && let Some(id) = free.pop()
                {
                    to[id as usize].fill(0);
                    workers.submit(job(id, &from, &mut to[id as usize])).unwrap();
                    submitted += 1;
                    // Now and then they fall asleep in between.
                    if submitted % 512 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                }
                if workers.is_done_empty() {
                    bell.recv().unwrap();
                }
                while let Some(id) = workers.take_done() {
                    assert_eq!(to[id as usize], from);
                    free.push(id);
                    done += 1;
                }
            }
            assert!(workers.is_done_empty());
        }
    }

    #[test]
    fn a_full_queue_is_refused_and_ending_waits_for_what_was_begun() {
        let none = Workers::start(0, 4, || {}).unwrap();
        let (from, mut to) = (vec![1u8; 8], vec![0u8; 8]);
        assert_eq!(none.submit(job(0, &from, &mut to)), Err(QueueFull));
        let (enter, entered) = mpsc::channel();
        let (leave, left) = mpsc::channel::<()>();
        let left = std::sync::Mutex::new(left);
        let workers = Workers::start(1, 2, move || {
            enter.send(()).expect("somebody listens");
            // Held up here until the test lets it go on.
            let _ = left.lock().expect("one worker").recv();
        })
        .unwrap();
        let mut places = vec![vec![0u8; 8]; 4];
        let mut places = places.iter_mut();
        workers.submit(job(0, &from, places.next().unwrap())).unwrap();
        entered.recv().unwrap();
        for id in 1..3 {
            workers.submit(job(id, &from, places.next().unwrap())).unwrap();
        }
        assert_eq!(workers.submit(job(3, &from, places.next().unwrap())), Err(QueueFull));
        assert_eq!(workers.take_done(), Some(0));
        drop(leave);
        drop(workers);
    }
}
