//! Threads that copy (Jet §4.3) and make checksums (Jet §4.2.2). They decide nothing: a job says what to do
//! with which bytes, and its end is reported. Memory that the hardware lost ends the job, not the process.

use crate::poison::{self, Piece, Poisoned};
use crossbeam_queue::ArrayQueue;
use jet_wire::sleep::{Sleeper, Sleepers};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};

/// Number of polls of an empty queue before a worker sleeps. They take about as long as waking a worker.
const POLLS: u32 = 800;
/// The most threads: more sleeping threads could not be told apart.
pub const WORKERS_MAX: usize = Sleepers::MAX;

/// A copy to be made. [`Workers::submit`] says what must hold of its memory.
#[derive(Debug)]
pub struct CopyJob {
    /// Id of the job, reported with its end.
    pub id: u32,
    /// First byte of the source.
    pub from: *const u8,
    /// First byte of the destination.
    pub to: *mut u8,
    /// Number of bytes to copy.
    pub bytes: usize,
}

/// A CRC32C to be made. [`Workers::submit`] says what must hold of its memory.
#[derive(Debug)]
pub struct CheckJob {
    /// Id of the job, reported with its end.
    pub id: u32,
    /// First of the pieces to be checked, in their order.
    pub pieces: *const Piece,
    /// Number of pieces.
    pub count: usize,
}

/// Work for a worker.
#[derive(Debug)]
pub enum Job {
    /// Copy bytes.
    Copy(CopyJob),
    /// Make a checksum.
    Check(CheckJob),
}

/// End of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The copy was made.
    Copy {
        /// Id of the job.
        id: u32,
    },
    /// The checksum was made.
    Check {
        /// Id of the job.
        id: u32,
        /// CRC32C of all pieces.
        crc: u32,
    },
    /// The copy was not made.
    CopyFailed {
        /// Id of the job.
        id: u32,
        /// Memory that cannot be read or written.
        poisoned: Poisoned,
    },
    /// The checksum was not made.
    CheckFailed {
        /// Id of the job.
        id: u32,
        /// Memory that cannot be read.
        poisoned: Poisoned,
    },
}

// SAFETY: the pointers lead to shared memory that any thread may touch under the terms of `Workers::submit`.
unsafe impl Send for CopyJob {}
// SAFETY: as above, and the list of pieces is only read.
unsafe impl Send for CheckJob {}

impl Job {
    fn carry_out(self) -> Done {
        match self {
            Self::Copy(CopyJob { id, from, to, bytes }) => {
                let touched = [Piece { start: from, bytes }, Piece { start: to, bytes }];
                // SAFETY: the terms of `Workers::submit`; a copy that is half made is thrown away.
                let made =
                    unsafe { poison::guarded(&touched, || std::ptr::copy_nonoverlapping(from, to, bytes)) };
                match made {
                    Ok(()) => Done::Copy { id },
                    Err(poisoned) => Done::CopyFailed { id, poisoned },
                }
            }
            Self::Check(CheckJob { id, pieces, count }) => {
                // SAFETY: the terms of `Workers::submit`.
                let pieces = unsafe { std::slice::from_raw_parts(pieces, count) };
                let check = || {
                    pieces.iter().fold(0, |crc, piece| {
                        // SAFETY: the terms of `Workers::submit`.
                        let bytes = unsafe { std::slice::from_raw_parts(piece.start, piece.bytes) };
                        crc32c::crc32c_append(crc, bytes)
                    })
                };
                // SAFETY: the work only reads.
                match unsafe { poison::guarded(pieces, check) } {
                    Ok(crc) => Done::Check { id, crc },
                    Err(poisoned) => Done::CheckFailed { id, poisoned },
                }
            }
        }
    }
}

/// Error of [`Workers::submit`]: there is no room for another job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

struct Shared {
    /// Copies that no worker has taken. They go before checks: a copy frees room under pressure, a check only
    /// holds up a message.
    copies: ArrayQueue<CopyJob>,
    checks: ArrayQueue<CheckJob>,
    done: ArrayQueue<Done>,
    /// Workers that sleep because there is no job.
    sleepers: Sleepers,
    closing: AtomicBool,
    /// Sleeper word of the thread that takes the ends of jobs. The thread counts as asleep from arming the
    /// bell until the bell rings.
    taker: Sleeper,
    bell: Box<dyn Fn() + Send + Sync>,
}

/// A set of worker threads. Dropping it waits until they carried out every job that was submitted, and ends
/// them.
pub struct Workers {
    shared: Arc<Shared>,
    /// Jobs that were submitted, and whose ends were not taken.
    under_way: usize,
    capacity: usize,
    threads: Vec<(Thread, Option<JoinHandle<()>>)>,
    /// Whether jobs are carried out by [`Self::step`].
    is_stepped: bool,
}

impl Workers {
    /// Starts `threads` worker threads, at most [`WORKERS_MAX`]. They have room for `capacity` jobs whose
    /// ends were not taken. `bell` is called when there is an end to take, at most once after each
    /// [`Self::arm`].
    ///
    /// # Errors
    /// The system's error where the handler of SIGBUS or a thread cannot be set up.
    pub fn start(
        threads: usize,
        capacity: usize,
        bell: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        assert!(threads <= WORKERS_MAX, "{threads} threads, but at most {WORKERS_MAX} can be told apart");
        poison::install()?;
        let capacity = capacity.max(1);
        let shared = Arc::new(Shared {
            copies: ArrayQueue::new(capacity),
            checks: ArrayQueue::new(capacity),
            done: ArrayQueue::new(capacity),
            sleepers: Sleepers::awake(),
            closing: AtomicBool::new(false),
            taker: Sleeper::asleep(),
            bell: Box::new(bell),
        });
        let threads_made = Vec::with_capacity(threads);
        let mut workers = Self { shared, under_way: 0, capacity, threads: threads_made, is_stepped: false };
        for n in 0..threads {
            let shared = Arc::clone(&workers.shared);
            let thread =
                std::thread::Builder::new().name(format!("jet-worker-{n}")).spawn(move || shared.work(n))?;
            workers.threads.push((thread.thread().clone(), Some(thread)));
        }
        Ok(workers)
    }

    /// Makes workers without threads: their jobs wait until the caller carries them out with [`Self::step`].
    /// A simulator does so, which decides how long a job takes. They have room for `capacity` jobs whose ends
    /// were not taken. `bell` is called as those of [`Self::start`] call theirs.
    ///
    /// # Errors
    /// The system's error where the handler of SIGBUS cannot be set up.
    pub fn stepped(capacity: usize, bell: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        let mut workers = Self::start(0, capacity, bell)?;
        workers.is_stepped = true;
        Ok(workers)
    }

    /// Carries out one job of workers that were made by [`Self::stepped`]. Returns `false` if there is none.
    pub fn step(&mut self) -> bool {
        let job = if self.is_stepped { self.shared.next_job() } else { None };
        let any = job.is_some();
        if let Some(job) = job {
            self.shared.put_done(job.carry_out());
            self.shared.ring();
        }
        any
    }

    /// Submits a job. Makes a system call only where a worker sleeps.
    ///
    /// # Safety
    /// Until the job's end is taken, or these workers are dropped:
    ///
    /// * of a copy: both places are valid for `bytes` bytes and do not overlap, nobody writes the source, and
    ///   nobody else touches the destination;
    /// * of a check: there are `count` pieces, each is valid for its bytes, and nobody writes any of them,
    ///   the list included.
    ///
    /// # Errors
    /// [`QueueFull`]: as many jobs are under way as there is room for. Always where nobody carries jobs out.
    pub unsafe fn submit(&mut self, job: Job) -> Result<(), QueueFull> {
        let nobody_works = self.threads.is_empty() && !self.is_stepped;
        if nobody_works || self.under_way == self.capacity {
            return Err(QueueFull);
        }
        let pushed = match job {
            Job::Copy(copy) => self.shared.copies.push(copy).is_ok(),
            Job::Check(check) => self.shared.checks.push(check).is_ok(),
        };
        assert!(pushed, "each job under way has a place in its queue");
        self.under_way += 1;
        if let Some(worker) = self.shared.sleepers.to_wake() {
            self.threads[worker].0.unpark();
        }
        Ok(())
    }

    /// Takes the end of a job that is done.
    #[inline]
    pub fn take_done(&mut self) -> Option<Done> {
        if self.under_way == 0 { None } else { self.take_some() }
    }

    #[cold]
    fn take_some(&mut self) -> Option<Done> {
        let done = self.shared.done.pop()?;
        self.under_way -= 1;
        Some(done)
    }

    /// Returns whether the end of a job can be taken.
    pub fn any_done(&self) -> bool {
        self.under_way > 0 && !self.shared.done.is_empty()
    }

    /// Arms the bell: it rings for the next job that is done. To be called as the last thing before sleeping
    /// until the bell rings. Returns `false` where an end can be taken already: do not sleep then.
    pub fn arm(&self) -> bool {
        if self.under_way == 0 {
            return true;
        }
        // The bell is armed each time, not only when the queue runs empty. A slow worker may ring for a job
        // whose end was taken already; then no worker would ring for the next one.
        self.shared.taker.sleeps();
        self.shared.done.is_empty()
    }
}

impl Shared {
    fn next_job(&self) -> Option<Job> {
        self.copies.pop().map(Job::Copy).or_else(|| self.checks.pop().map(Job::Check))
    }

    fn work(&self, n: usize) {
        loop {
            let mut polls = 0;
            let job = loop {
                if let Some(job) = self.next_job() {
                    break job;
                }
                if self.closing.load(Ordering::Acquire) {
                    return;
                }
                if polls < POLLS {
                    polls += 1;
                    std::hint::spin_loop();
                    continue;
                }
                self.sleepers.sleeps(n);
                // The thread that closes the workers unparks them afterwards: then parking returns at once.
                if self.copies.is_empty() && self.checks.is_empty() && !self.closing.load(Ordering::Relaxed) {
                    std::thread::park();
                }
                self.sleepers.is_up(n);
                polls = 0;
            };
            self.put_done(job.carry_out());
            self.ring();
        }
    }

    fn put_done(&self, done: Done) {
        let pushed = self.done.push(done);
        assert!(pushed.is_ok(), "no more jobs are under way than there is room for");
    }

    /// Rings the bell, unless it rang since it was armed; see [`Workers::arm`].
    fn ring(&self) {
        if self.taker.must_be_woken() {
            (self.bell)();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        for (thread, _) in &self.threads {
            thread.unpark();
        }
        for (_, joins) in &mut self.threads {
            if let Some(joins) = joins.take() {
                // The log has the panic of a thread that panicked.
                let _ = joins.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    fn job(id: u32, from: &[u8], to: &mut [u8]) -> Job {
        assert_eq!(from.len(), to.len());
        Job::Copy(CopyJob { id, from: from.as_ptr(), to: to.as_mut_ptr(), bytes: to.len() })
    }

    /// Submits a job of a test. The places of tests outlive their workers, and one job at a time uses each.
    fn submit(workers: &mut Workers, job: Job) -> Result<(), QueueFull> {
        // SAFETY: as said above.
        unsafe { workers.submit(job) }
    }

    fn copied(id: u32) -> Option<Done> {
        Some(Done::Copy { id })
    }

    #[test]
    fn a_checksum_goes_over_all_pieces_in_their_order() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let piece = |range: std::ops::Range<usize>| Piece {
            start: bytes[range.clone()].as_ptr(),
            bytes: range.len(),
        };
        let pieces = [piece(0..4096), piece(4096..70_000), piece(70_000..70_000), piece(70_000..100_000)];
        let (ring, bell) = mpsc::channel();
        let mut workers = Workers::start(1, 4, move || ring.send(()).expect("somebody listens")).unwrap();
        for count in [0, 1, 2, 4] {
            let id = u32::try_from(count).unwrap();
            submit(&mut workers, Job::Check(CheckJob { id, pieces: pieces.as_ptr(), count })).unwrap();
            let done = loop {
                if let Some(done) = workers.take_done() {
                    break done;
                }
                // The bell may ring for an end that was taken already.
                if workers.arm() {
                    bell.recv_timeout(Duration::from_secs(60)).expect("the bell rings");
                }
            };
            let checked = pieces[..count].iter().map(|piece| piece.bytes).sum();
            let crc = crc32c::crc32c(&bytes[..checked]);
            assert_eq!(done, Done::Check { id, crc });
        }
    }

    #[test]
    fn a_job_over_lost_memory_fails_and_the_next_is_done() {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        const PAGE: usize = 4096;
        let file = rustix::fs::memfd_create("jet-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // SAFETY: a new mapping, wherever there is room.
        let lost = unsafe {
            mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        // The file has no such page, so touching it raises SIGBUS as a machine check does.
        let lost = lost.unwrap().cast::<u8>();
        let (good, mut target) = (vec![7u8; PAGE], vec![0u8; PAGE]);
        let (ring, bell) = mpsc::channel();
        let mut workers = Workers::start(2, 8, move || ring.send(()).expect("somebody listens")).unwrap();
        let piece = |start| Piece { start, bytes: PAGE };
        let pieces = [piece(good.as_ptr()), piece(lost)];
        let check = |id, count| Job::Check(CheckJob { id, pieces: pieces.as_ptr(), count });
        let to = target.as_mut_ptr();
        let copy = |id, from: *const u8, to| Job::Copy(CopyJob { id, from, to, bytes: PAGE });
        let poisoned = Poisoned { start: lost as usize, bytes: PAGE };
        let crc = crc32c::crc32c(&good);
        let expected = [
            (check(0, 2), Done::CheckFailed { id: 0, poisoned }),
            (check(1, 1), Done::Check { id: 1, crc }),
            (copy(2, lost, to), Done::CopyFailed { id: 2, poisoned }),
            (copy(3, good.as_ptr(), lost), Done::CopyFailed { id: 3, poisoned }),
            (copy(4, good.as_ptr(), to), Done::Copy { id: 4 }),
        ];
        for (job, expected) in expected {
            submit(&mut workers, job).unwrap();
            let done = loop {
                if let Some(done) = workers.take_done() {
                    break done;
                }
                if workers.arm() {
                    bell.recv_timeout(Duration::from_secs(60)).expect("the bell rings");
                }
            };
            assert_eq!(done, expected);
        }
        drop(workers);
        assert_eq!(target, good);
        // SAFETY: the mapping is this test's.
        unsafe { munmap(lost.cast(), PAGE).unwrap() };
    }

    #[test]
    fn every_job_is_done_once_and_the_bell_wakes_whoever_waits_for_it() {
        const JOBS: u32 = 20_000;
        const PLACES: usize = 16;
        for threads in [1, 3] {
            let (ring, bell) = mpsc::channel();
            let mut workers =
                Workers::start(threads, PLACES, move || ring.send(()).expect("somebody listens")).unwrap();
            let mut from = vec![vec![0u8; 4096]; PLACES];
            let mut to = vec![vec![0u8; 4096]; PLACES];
            let mut busy = [false; PLACES];
            let (mut submitted, mut done) = (0u32, 0u32);
            while done < JOBS {
                // All places at once, then one at a time, in turns: so workers sleep and are woken in
                // between.
                let at_once = if submitted / 64 % 2 == 0 { PLACES } else { 1 };
                while submitted < JOBS && busy.iter().filter(|&&busy| busy).count() < at_once {
                    let place = busy.iter().position(|&busy| !busy).expect("fewer are busy than there are");
                    let stamp = submitted.to_le_bytes();
                    from[place].fill(stamp[0]);
                    from[place][..4].copy_from_slice(&stamp);
                    to[place].fill(!stamp[0]);
                    busy[place] = true;
                    let id = u32::try_from(place).unwrap();
                    submit(&mut workers, job(id, &from[place], &mut to[place])).unwrap();
                    submitted += 1;
                }
                // The test sleeps as the reactor does. A lost ring fails it here.
                if workers.arm() {
                    bell.recv_timeout(Duration::from_secs(60)).expect("the bell rings");
                }
                while let Some(end) = workers.take_done() {
                    let Done::Copy { id } = end else { panic!("{end:?} was not asked for") };
                    let place = id as usize;
                    assert!(std::mem::replace(&mut busy[place], false), "job {id} is done twice");
                    assert_eq!(to[place], from[place]);
                    done += 1;
                }
            }
            assert_eq!(workers.take_done(), None);
        }
    }

    #[test]
    fn a_ring_for_what_was_taken_already_is_not_the_last() {
        let (ring, bell) = mpsc::channel();
        let mut workers = Workers::start(0, 4, move || ring.send(()).expect("somebody listens")).unwrap();
        workers.under_way = 2;
        workers.shared.put_done(Done::Copy { id: 1 });
        assert_eq!(workers.take_done(), copied(1));
        // The worker rings only now, after its job's end was taken.
        workers.shared.ring();
        bell.try_recv().unwrap();
        assert!(workers.arm());
        workers.shared.put_done(Done::Copy { id: 2 });
        workers.shared.ring();
        bell.try_recv().expect("whoever sleeps hears of the second job");
        assert!(!workers.arm());
        assert_eq!(workers.take_done(), copied(2));
    }

    #[test]
    fn who_does_not_sleep_is_rung_for_once() {
        let (ring, bell) = mpsc::channel();
        let mut workers = Workers::start(0, 4, move || ring.send(()).expect("somebody listens")).unwrap();
        workers.under_way = 3;
        for id in 0..3 {
            workers.shared.put_done(Done::Copy { id });
            workers.shared.ring();
            assert_eq!(workers.take_done(), copied(id));
        }
        assert_eq!(bell.try_iter().count(), 1);
    }

    /// Starts one worker that is held up in its first ring until the last of the returned values is dropped.
    fn held_up(capacity: usize) -> (Workers, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (enter, entered) = mpsc::channel();
        let (leave, left) = mpsc::channel();
        let left = Mutex::new(left);
        let workers = Workers::start(1, capacity, move || {
            enter.send(()).expect("the test listens");
            // Nothing is ever sent: this returns when the sender is dropped.
            let _: Result<(), _> = left.lock().expect("one worker").recv();
        });
        (workers.unwrap(), entered, leave)
    }

    #[test]
    fn copies_go_before_checks() {
        let from = vec![1u8; 8];
        let mut to = vec![0u8; 8];
        let piece = Piece { start: from.as_ptr(), bytes: from.len() };
        let check = |id| Job::Check(CheckJob { id, pieces: &raw const piece, count: 1 });
        let (mut workers, entered, leave) = held_up(4);
        submit(&mut workers, check(0)).unwrap();
        entered.recv().unwrap();
        submit(&mut workers, check(1)).unwrap();
        submit(&mut workers, job(2, &from, &mut to)).unwrap();
        drop(leave);
        let mut ends = Vec::new();
        while ends.len() < 3 {
            ends.extend(workers.take_done());
            std::thread::yield_now();
        }
        assert!(matches!(
            ends[..],
            [Done::Check { id: 0, .. }, Done::Copy { id: 2 }, Done::Check { id: 1, .. }]
        ));
    }

    #[test]
    fn no_more_is_taken_than_there_is_room_for_and_without_threads_nothing() {
        let from = vec![1u8; 8];
        let mut places = vec![vec![0u8; 8]; 5];
        let mut none = Workers::start(0, 4, || {}).unwrap();
        assert_eq!(submit(&mut none, job(0, &from, &mut places[0])), Err(QueueFull));
        assert!(none.arm());
        let (mut workers, entered, leave) = held_up(2);
        submit(&mut workers, job(0, &from, &mut places[0])).unwrap();
        entered.recv().unwrap();
        // The first job is done, and its end not taken. It counts, or there would be no place for the end of
        // the last job.
        submit(&mut workers, job(1, &from, &mut places[1])).unwrap();
        assert_eq!(submit(&mut workers, job(2, &from, &mut places[2])), Err(QueueFull));
        assert_eq!(workers.take_done(), copied(0));
        submit(&mut workers, job(3, &from, &mut places[3])).unwrap();
        assert_eq!(submit(&mut workers, job(4, &from, &mut places[4])), Err(QueueFull));
        drop(leave);
        drop(workers);
        let written: Vec<bool> = places.iter().map(|place| *place == from).collect();
        assert_eq!(written, [true, true, false, true, false]);
    }

    #[test]
    fn ending_makes_the_copies_that_were_submitted() {
        let from = vec![1u8; 1 << 16];
        let mut places = vec![vec![0u8; 1 << 16]; 32];
        let (mut workers, entered, leave) = held_up(32);
        for (id, place) in (0..).zip(&mut places) {
            submit(&mut workers, job(id, &from, place)).unwrap();
        }
        entered.recv().unwrap();
        drop(leave);
        drop(workers);
        assert!(places.iter().all(|place| *place == from));
    }
}
