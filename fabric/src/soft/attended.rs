//! A software NIC that its user works, and a helper thread while the user is away.
//!
//! A sender over `tcp:` must answer the receiver's READs while its program does something else.
//! [`super::threaded`] solves that by a thread that does all the work. Then each SEND and each completion
//! passes from thread to thread, and wakes one where both sleep. Here the user's own calls do the work, as
//! with a bare [`SoftNic`], and so nothing passes to another thread while the user waits for its messages.
//!
//! The helper naps, and looks then whether the user was here since. If it was, the helper naps again, longer
//! each time, up to 2 ms. If it was not, the user is *away*, and the helper answers what arrives at
//! once, until the user is back. So the first READ after a user has left waits for two naps at most.
//!
//! A user that sleeps on [`Nic::wait_fd`] is woken by the inner NIC itself. Where it does not come in a nap's
//! time, because its program's event loop is busy with something else, the helper takes over, too. What it
//! found for the user then keeps the descriptor readable.
//!
//! Only the calls that have the NIC work show that the user is here: `poll`, `poll_event` and `arm`. A user
//! that posts and registers, and polls nothing, has its READs answered by the helper.
//!
//! Differences from the inner NIC: each call takes a lock. It is free, but for the time of the helper's last
//! step when a user comes back.

use super::nic::SoftNic;
use crate::address::Address;
use crate::memory::SharedMemory;
use crate::nic::{
    Access, Completion, ConnectError, Counters, Event, Limits, ListenError, MemoryKey, Nic, PostError,
    PrivateData, Qp, ReadRequest, RegisterError, SendRequest, SrqEntry,
};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// First nap after the user came back.
const NAP_MIN: Duration = Duration::from_micros(500);
/// Longest nap. A process may have many senders, and the naps of all should take little of a core.
const NAP_MAX: Duration = Duration::from_millis(2);

/// Software NIC with a helper. Dropping it stops and joins the helper's thread.
pub struct Attended {
    shared: Arc<Shared>,
    limits: Limits,
    /// Descriptor that the user sleeps on: the inner NIC's, and what the helper rings.
    wait: OwnedFd,
    /// Whether the user may have slept since its last call.
    armed: bool,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    held: Mutex<Held>,
    /// The user's calls so far, of all kinds. Only the user counts, and before it takes the lock, so the
    /// helper lets it go first.
    calls: AtomicU64,
    /// Those of them that have the NIC work. The helper leaves as soon as there is one.
    visits: AtomicU64,
    /// Whether the NIC is being dropped.
    stop: AtomicBool,
    /// Wakes the helper where it waits for work.
    ends: OwnedFd,
    /// Readable while the user has news that the helper found.
    news: OwnedFd,
    /// Descriptor of the inner NIC, which the helper waits on.
    inner: OwnedFd,
}

/// What the user and the helper both use, one at a time.
struct Held {
    nic: SoftNic,
    /// Whether the user sleeps, or is about to, and the inner NIC's descriptor wakes it.
    asleep: bool,
    /// Whether the helper rang for the user.
    rang: bool,
    /// Latest time that the NIC was given, in nanoseconds.
    now_ns: u64,
}

/// What a helper's step found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// The user is here.
    UserIsBack,
    /// There is nothing to do until the descriptor is readable.
    Idle,
}

/// Time that passes while the user is away, from its last visit on. It begins when that visit is noticed, so
/// it never runs ahead of the user's own clock.
struct Absence {
    noticed: Instant,
    /// Time that the user gave last, in nanoseconds.
    from_ns: Option<u64>,
}

impl Absence {
    fn begin() -> Self {
        Self { noticed: Instant::now(), from_ns: None }
    }

    /// Returns the time in nanoseconds. `given_ns`: the latest that the NIC was given.
    fn now_ns(&mut self, given_ns: u64) -> u64 {
        let since_ns = u64::try_from(self.noticed.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.from_ns.get_or_insert(given_ns).saturating_add(since_ns)
    }
}

impl Held {
    /// Returns the time that the NIC is given: clocks of user and helper may differ.
    fn advance(&mut self, now_ns: u64) -> u64 {
        self.now_ns = self.now_ns.max(now_ns);
        self.now_ns
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("neither the user nor the helper panicked with the NIC in hand")
    }

    fn visits(&self) -> u64 {
        // Relaxed: the count decides only who works. What the two do, they do under the lock.
        self.visits.load(Ordering::Relaxed)
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Works for the user until there is nothing to do, or the user has come since its visit number `seen`.
    fn serve(&self, seen: u64, absence: &mut Absence) -> Served {
        let mut calls = self.calls.load(Ordering::Relaxed);
        loop {
            if self.visits() != seen || self.is_stopping() {
                return Served::UserIsBack;
            }
            if std::mem::replace(&mut calls, self.calls.load(Ordering::Relaxed)) != calls {
                // The user may wait for the lock, which nobody passes on.
                std::thread::yield_now();
            }
            let mut held = self.lock();
            let now_ns = absence.now_ns(held.now_ns);
            let now_ns = held.advance(now_ns);
            let is_idle = held.nic.serve(now_ns);
            if held.asleep && !held.rang && held.nic.has_news() {
                // What woke the user, or was about to, may have been taken just now.
                held.rang = true;
                ring(&self.news);
            }
            drop(held);
            if is_idle {
                return Served::Idle;
            }
        }
    }

    /// The helper's life.
    fn help(&self) {
        let (mut seen, mut absence) = (self.visits(), Absence::begin());
        // Whether a user that was woken is given a nap's time to come.
        let (mut is_patient, mut nap) = (true, NAP_MIN);
        while !self.is_stopping() {
            std::thread::park_timeout(nap);
            let visits = self.visits();
            if std::mem::replace(&mut seen, visits) != visits {
                (is_patient, nap, absence) = (true, (nap * 2).min(NAP_MAX), Absence::begin());
                continue;
            }
            nap = NAP_MIN;
            while self.serve(seen, &mut absence) == Served::Idle {
                self.wait_for_work();
                if is_patient && self.lock().asleep {
                    is_patient = false;
                    break;
                }
            }
        }
    }

    /// Waits until the inner NIC has work, or the NIC is dropped.
    fn wait_for_work(&self) {
        let mut fds = [&self.inner, &self.ends].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("waiting on descriptors of our own failed: {error}"),
        }
    }
}

/// Counts one more, where nobody else does.
fn count(calls: &AtomicU64) {
    calls.store(calls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

fn ring(bell: &OwnedFd) {
    // A full counter is readable, too.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

fn clear(bell: &OwnedFd) {
    // Nothing to read is no ring.
    let _ = rustix::io::read(bell, &mut [0; 8]);
}

impl Attended {
    /// Gives a NIC a helper.
    ///
    /// # Errors
    /// What the system says: no descriptors or threads left.
    pub fn new(nic: SoftNic) -> io::Result<Self> {
        let (limits, inner) = (nic.limits(), nic.wait_fd().try_clone_to_owned()?);
        let bell = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let (news, wait) = (bell()?, epoll::create(epoll::CreateFlags::CLOEXEC)?);
        for (fd, data) in [(&inner, 0), (&news, 1)] {
            epoll::add(&wait, fd, EventData::new_u64(data), EventFlags::IN)?;
        }
        let held = Held { nic, asleep: false, rang: false, now_ns: 0 };
        let shared = Arc::new(Shared {
            held: Mutex::new(held),
            calls: AtomicU64::new(0),
            visits: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            ends: bell()?,
            news,
            inner,
        });
        let helped = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("jet-nic".to_owned()).spawn(move || helped.help())?;
        Ok(Self { shared, limits, wait, armed: false, thread: Some(thread) })
    }

    /// Lets the user in for a call that does not have the NIC work. A sleeper stays one: another thread of
    /// its program may make such a call.
    fn call(&mut self) -> MutexGuard<'_, Held> {
        count(&self.shared.calls);
        self.shared.lock()
    }

    /// Lets the user in for a call that has the NIC work.
    fn visit(&mut self) -> MutexGuard<'_, Held> {
        count(&self.shared.calls);
        count(&self.shared.visits);
        let mut held = self.shared.lock();
        if std::mem::take(&mut self.armed) {
            held.asleep = false;
            if std::mem::take(&mut held.rang) {
                clear(&self.shared.news);
            }
        }
        held
    }
}

impl Nic for Attended {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn counters(&self) -> Counters {
        self.shared.lock().nic.counters()
    }

    fn register(&mut self, memory: &Arc<SharedMemory>, access: Access) -> Result<MemoryKey, RegisterError> {
        self.call().nic.register(memory, access)
    }

    fn deregister(&mut self, key: MemoryKey) {
        self.call().nic.deregister(key);
    }

    fn remote_address(&self, key: MemoryKey, offset: u64) -> u64 {
        self.shared.lock().nic.remote_address(key, offset)
    }

    fn listen(&mut self, address: &Address) -> Result<Address, ListenError> {
        self.call().nic.listen(address)
    }

    fn stop_listening(&mut self) {
        self.call().nic.stop_listening();
    }

    fn connect(&mut self, address: &Address, private_data: &PrivateData) -> Result<Qp, ConnectError> {
        self.call().nic.connect(address, private_data)
    }

    fn accept(&mut self, qp: Qp, private_data: &PrivateData) -> Result<(), PostError> {
        self.call().nic.accept(qp, private_data)
    }

    fn reject(&mut self, qp: Qp, private_data: &PrivateData) {
        self.call().nic.reject(qp, private_data);
    }

    fn disconnect(&mut self, qp: Qp) {
        self.call().nic.disconnect(qp);
    }

    fn post_srq(&mut self, entry: SrqEntry) -> Result<(), PostError> {
        self.call().nic.post_srq(entry)
    }

    fn post_send(&mut self, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        self.call().nic.post_send(qp, request)
    }

    fn post_read(&mut self, qp: Qp, request: ReadRequest<'_>) -> Result<(), PostError> {
        self.call().nic.post_read(qp, request)
    }

    fn offer(&mut self, qp: Qp, address: u64, key: u32, bytes: u32) {
        self.call().nic.offer(qp, address, key, bytes);
    }

    fn flush(&mut self) {
        self.call().nic.flush();
    }

    fn poll(&mut self, now_ns: u64, completions: &mut [Completion]) -> usize {
        let mut held = self.visit();
        let now_ns = held.advance(now_ns);
        held.nic.poll(now_ns, completions)
    }

    fn poll_event(&mut self, now_ns: u64) -> Option<Event> {
        let mut held = self.visit();
        let now_ns = held.advance(now_ns);
        held.nic.poll_event(now_ns)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.wait.as_fd()
    }

    fn arm(&mut self, now_ns: u64) -> bool {
        let mut held = self.visit();
        let now_ns = held.advance(now_ns);
        let may_sleep = held.nic.arm(now_ns);
        held.asleep = may_sleep;
        drop(held);
        self.armed = may_sleep;
        may_sleep
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        ring(&self.shared.ends);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The helper has printed its panic; nobody here can handle it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
