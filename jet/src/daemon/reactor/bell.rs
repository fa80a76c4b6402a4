//! The daemon's end of an application's doorbell.
//!
//! Whoever rings a socket walks the list of all that wait at its other end. An application chooses how long
//! that list is: with 20,000 descriptors of its doorbell in an epoll a ring took 2.7 ms of the ringing
//! thread. So a bell that takes long is not rung by the reactor, but by a thread that does nothing else. And
//! where rings at this end take long to clear, they are not listened to any more: the application is served
//! at the reactor's next turn instead. An application can have this twice [`EXCESS_MAX`] and a ring of the
//! reactor's time with each session.

use jet_fabric::unix::{Doorbell, Rung};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time that a ring may take on average. One takes 1 to 20 us of processor time: on a virtual machine most of
/// that is to wake another processor.
const ALLOWED: Duration = Duration::from_micros(150);
/// Time beyond what is allowed, in all, that shows a bell to be slow.
const EXCESS_MAX: Duration = Duration::from_millis(5);
/// Rings without any excess after which a bell is no longer suspect.
const CALM: u32 = 64;

/// Finds out whether something takes longer than [`ALLOWED`] on average.
///
/// It is suspect by the time on the clock, in which the thread may have lost its processor. What proves it is
/// the processor time of the thread, which takes a system call to read.
#[derive(Debug, Default)]
struct Pace {
    /// Time beyond what was allowed.
    excess: Duration,
    is_suspect: bool,
    /// Rings without any excess, in a row.
    calm: u32,
    is_slow: bool,
}

impl Pace {
    /// Does something, and notes how long it took.
    fn time<T>(&mut self, act: impl FnOnce() -> T) -> T {
        if self.is_suspect {
            let before = thread_time();
            let result = act();
            self.note(thread_time().saturating_sub(before));
            result
        } else {
            let before = Instant::now();
            let result = act();
            self.note(before.elapsed());
            result
        }
    }

    fn note(&mut self, took: Duration) {
        self.excess = (self.excess + took).saturating_sub(ALLOWED);
        self.calm = if self.excess.is_zero() { self.calm + 1 } else { 0 };
        if self.excess >= EXCESS_MAX {
            self.is_slow |= self.is_suspect;
            self.is_suspect = true;
            (self.excess, self.calm) = (Duration::ZERO, 0);
        } else if self.calm >= CALM {
            (self.is_suspect, self.calm) = (false, 0);
        }
    }
}

/// Returns the processor time that this thread has used.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[derive(Debug)]
struct Shared {
    doorbell: Doorbell,
    /// Whether the thread of slow bells is asked to ring, and has not yet.
    asked: AtomicBool,
}

/// The daemon's end of an application's doorbell.
#[derive(Debug)]
pub struct Bell {
    shared: Arc<Shared>,
    slow: SyncSender<Weak<Shared>>,
    application: Box<str>,
    rings: Pace,
    clears: Pace,
}

impl Bell {
    /// Rings. A bell that takes long is rung by another thread.
    pub fn ring(&mut self) {
        if !self.rings.is_slow {
            self.rings.time(|| self.shared.doorbell.ring());
            if self.rings.is_slow {
                self.log("takes long to ring, and another thread rings it from now on");
            }
            return;
        }
        if !self.shared.asked.swap(true, Ordering::AcqRel)
            && self.slow.try_send(Arc::downgrade(&self.shared)).is_err()
        {
            // Bells of sessions that have ended take the places. Nobody else would wake the application.
            self.shared.asked.store(false, Ordering::Release);
            self.shared.doorbell.ring();
        }
    }

    /// Takes the waiting rings off this end. `false` where no more are to be listened to: the other end is
    /// closed, or takes long.
    pub fn clear(&mut self) -> bool {
        let rung = self.clears.time(|| self.shared.doorbell.clear());
        if rung != Rung::Closed && self.clears.is_slow {
            self.log("takes long to clear, and its rings are not listened to any more");
        }
        rung != Rung::Closed && !self.clears.is_slow
    }

    fn log(&self, what: &str) {
        let application = &*self.application;
        tracing::warn!(application, "a doorbell {what}: too many descriptors of it wait in epolls or polls");
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }
}

/// Maker of bells, and the thread that rings slow ones. The thread ends when this and all bells are gone.
#[derive(Debug)]
pub struct Ringer(SyncSender<Weak<Shared>>);

impl Ringer {
    /// Starts the thread. As many bells may wait for it as there are sessions, and as many of sessions that
    /// have ended.
    ///
    /// # Errors
    /// The system's error: no thread can be started.
    pub fn start(sessions_max: u32) -> io::Result<Self> {
        let (slow, asked) = sync_channel(2 * sessions_max as usize);
        std::thread::Builder::new().name("jet-bells".to_owned()).spawn(move || ring_slow(&asked))?;
        Ok(Self(slow))
    }

    /// Makes the daemon's end of an application's doorbell.
    pub fn bell(&self, doorbell: Doorbell, application: &str) -> Bell {
        let shared = Arc::new(Shared { doorbell, asked: AtomicBool::new(false) });
        let (slow, application) = (self.0.clone(), application.into());
        Bell { shared, slow, application, rings: Pace::default(), clears: Pace::default() }
    }
}

fn ring_slow(asked: &Receiver<Weak<Shared>>) {
    // A bell whose session has ended is closed at once, and leaves the reactor's epoll with that.
    for bell in asked.iter().filter_map(|bell| bell.upgrade()) {
        // Taken back first: whoever asks from now on may have delivered more. What was delivered before the
        // last that asked is in view, for this reads what it wrote.
        bell.asked.swap(false, Ordering::AcqRel);
        bell.doorbell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_test_support::waiting::until;
    use rustix::event::epoll;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::OwnedFd;

    const LONG: Duration = Duration::from_millis(3);

    fn rings_at(doorbell: &Doorbell) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(doorbell, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn a_slow_bell_is_rung_by_another_thread_and_every_ring_arrives() {
        let ringer = Ringer::start(4).unwrap();
        let (ours, theirs) = Doorbell::pair().unwrap();
        let mut bell = ringer.bell(ours, "store");
        bell.rings.is_slow = true;
        for _ in 0..100 {
            bell.ring();
            until("the ring", || rings_at(&theirs).then_some(()));
            assert_eq!(theirs.clear(), Rung::Yes);
        }
        theirs.ring();
        assert!(bell.clear(), "it is listened to: what is slow is to ring it");
    }

    #[test]
    fn a_bell_that_waits_for_the_thread_closes_with_its_session_and_one_without_a_place_is_rung_at_once() {
        // The thread rings nobody yet.
        let (slow, asked) = sync_channel(1);
        let ringer = Ringer(slow);
        let slow_bell = || {
            let (ours, theirs) = Doorbell::pair().unwrap();
            let mut bell = ringer.bell(ours, "store");
            bell.rings.is_slow = true;
            (bell, theirs)
        };
        let (mut gone, theirs_of_gone) = slow_bell();
        let (mut bell, theirs) = slow_bell();
        gone.ring();
        bell.ring();
        drop(gone);
        assert_eq!(theirs_of_gone.clear(), Rung::Closed);
        assert_eq!(theirs.clear(), Rung::Yes, "it found no place");
        std::thread::spawn(move || ring_slow(&asked));
        // The thread takes the place away, and rings from then on.
        for _ in 0..100 {
            bell.ring();
            until("the ring", || rings_at(&theirs).then_some(()));
            assert_eq!(theirs.clear(), Rung::Yes);
        }
    }

    #[test]
    fn who_lost_the_processor_now_and_then_is_not_slow() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            // It is suspect, and then what counts is the processor time, of which sleeping takes none.
            (0..4).for_each(|_| pace.time(|| std::thread::sleep(LONG)));
            assert!(pace.is_suspect && !pace.is_slow);
            (0..2 * CALM).for_each(|_| pace.note(ALLOWED / 10));
            assert!(!pace.is_suspect);
        }
    }

    #[test]
    fn what_takes_long_on_average_is_slow_however_it_is_spread() {
        // One ring in ten takes twenty times as long as is allowed, or one in thirty.
        for (every, expected) in [(10, true), (30, false)] {
            let mut pace = Pace::default();
            (0..1000).for_each(|ring| pace.note(if ring % every == 0 { 20 * ALLOWED } else { ALLOWED / 10 }));
            assert_eq!(pace.is_slow, expected, "one in {every}");
        }
    }

    /// An application that waits at its doorbell with thousands of descriptors makes each ring walk them.
    #[test]
    fn an_application_that_waits_thousandfold_is_found_out_by_its_rings_and_by_its_own() {
        // Each of the descriptors waits in each of the places.
        const DESCRIPTORS: usize = 400;
        const PLACES: usize = 16;
        let ringer = Ringer::start(4).unwrap();
        for rings_itself in [false, true] {
            let (ours, theirs) = Doorbell::pair().unwrap();
            let mut bell = ringer.bell(ours, "store");
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            let descriptor = || theirs.as_fd().try_clone_to_owned().expect("one, see ulimit -n");
            let descriptors: Vec<OwnedFd> = std::iter::repeat_with(descriptor).take(DESCRIPTORS).collect();
            let places = [(); PLACES].map(|()| epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
            for (place, descriptor) in
                places.iter().flat_map(|place| descriptors.iter().map(move |fd| (place, fd)))
            {
                epoll::add(place, descriptor, epoll::EventData::new_u64(0), flags).unwrap();
            }
            until("it to be found out", || {
                if rings_itself {
                    theirs.ring();
                    bell.clear();
                } else {
                    bell.ring();
                    theirs.clear();
                }
                (bell.rings.is_slow || bell.clears.is_slow).then_some(())
            });
            drop((descriptors, places));
        }
    }
}
