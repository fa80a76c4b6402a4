//! The daemon's end of an application's doorbell.
//!
//! Whoever rings a socket walks the list of all that wait at its other end. An application chooses how long
//! that list is: with 20,000 descriptors of its doorbell in an epoll a ring took 2.7 ms of the ringing
//! thread. So a bell that takes long is not rung by the reactor, but by a thread that does nothing else. And
//! rings at this end, each of which takes as long to clear, are not listened to any more. The application is
//! served at the reactor's next turn instead.

use jet_fabric::unix::{Doorbell, Rung};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time from which on a ring is slow. One takes 1 to 3 us, with the wake-up of a thread.
const SLOW: Duration = Duration::from_micros(50);
/// Slow ones after another that make a bell suspect. The thread may have lost its processor meanwhile.
const SUSPECT: u32 = 3;
/// Further slow ones, by the processor time of the thread, that prove it.
const PROOF: u32 = 3;

/// Counts how often in a row something took long.
#[derive(Debug, Default)]
struct Pace(u32);

impl Pace {
    /// Does something, and notes how long it took.
    fn time<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let (by_processor, wall) = (self.0 >= SUSPECT, Instant::now());
        let processor = by_processor.then(thread_time);
        let result = act();
        let took = processor.map_or_else(|| wall.elapsed(), |before| thread_time().saturating_sub(before));
        self.note(took);
        result
    }

    fn note(&mut self, took: Duration) {
        self.0 = if took < SLOW { 0 } else { self.0.saturating_add(1) };
    }

    fn is_proven(&self) -> bool {
        self.0 >= SUSPECT + PROOF
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
    rings: Pace,
    clears: Pace,
}

impl Bell {
    /// Rings. A bell that takes long is rung by another thread.
    pub fn ring(&mut self) {
        if !self.is_slow() {
            return self.rings.time(|| self.shared.doorbell.ring());
        }
        if !self.shared.asked.swap(true, Ordering::AcqRel)
            && self.slow.try_send(Arc::downgrade(&self.shared)).is_err()
        {
            // Bells of sessions that have ended take the places. The next delivery asks again.
            self.shared.asked.store(false, Ordering::Release);
        }
    }

    /// Takes the waiting rings off this end. `false` where no more are to be listened to: the other end is
    /// closed, or takes long.
    pub fn clear(&mut self) -> bool {
        let rung = self.clears.time(|| self.shared.doorbell.clear());
        rung != Rung::Closed && !self.is_slow()
    }

    fn is_slow(&self) -> bool {
        self.rings.is_proven() || self.clears.is_proven()
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

    /// Makes the daemon's end of a doorbell.
    pub fn bell(&self, doorbell: Doorbell) -> Bell {
        let shared = Arc::new(Shared { doorbell, asked: AtomicBool::new(false) });
        Bell { shared, slow: self.0.clone(), rings: Pace::default(), clears: Pace::default() }
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

    const LONG: Duration = Duration::from_millis(2);

    fn rings_at(doorbell: &Doorbell) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(doorbell, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn a_slow_bell_is_rung_by_another_thread_and_every_ring_arrives() {
        let ringer = Ringer::start(4).unwrap();
        let (ours, theirs) = Doorbell::pair().unwrap();
        let mut bell = ringer.bell(ours);
        (0..SUSPECT + PROOF).for_each(|_| bell.rings.note(LONG));
        for _ in 0..100 {
            bell.ring();
            until("the ring", || rings_at(&theirs).then_some(()));
            assert_eq!(theirs.clear(), Rung::Yes);
        }
        assert!(!bell.clear(), "it is not listened to");
    }

    #[test]
    fn a_bell_that_waits_for_the_thread_closes_with_its_session_and_one_without_a_place_asks_again() {
        // The thread rings nobody yet.
        let (slow, asked) = sync_channel(1);
        let ringer = Ringer(slow);
        let slow_bell = || {
            let (ours, theirs) = Doorbell::pair().unwrap();
            let mut bell = ringer.bell(ours);
            (0..SUSPECT + PROOF).for_each(|_| bell.rings.note(LONG));
            (bell, theirs)
        };
        let (mut gone, theirs_of_gone) = slow_bell();
        let (mut bell, theirs) = slow_bell();
        gone.ring();
        bell.ring();
        drop(gone);
        assert_eq!(theirs_of_gone.clear(), Rung::Closed);
        std::thread::spawn(move || ring_slow(&asked));
        until("the ring", || {
            bell.ring();
            rings_at(&theirs).then_some(())
        });
    }

    #[test]
    fn who_lost_the_processor_now_and_then_is_not_slow() {
        let mut pace = Pace::default();
        for took in [LONG, LONG, LONG, LONG, LONG, SLOW / 2].repeat(10) {
            pace.note(took);
            assert!(!pace.is_proven());
        }
        // What counts then is the processor time, of which sleeping takes none.
        for _ in 0..2 * (SUSPECT + PROOF) {
            pace.time(|| std::thread::sleep(LONG));
        }
        assert!(!pace.is_proven());
    }

    /// An application that waits at its doorbell with thousands of descriptors makes each ring walk them.
    #[test]
    fn an_application_that_waits_thousandfold_is_found_out_by_its_rings_and_by_its_own() {
        // Each of the descriptors waits in each of the places.
        const DESCRIPTORS: usize = 400;
        const PLACES: usize = 8;
        let ringer = Ringer::start(4).unwrap();
        for rings_itself in [false, true] {
            let (ours, theirs) = Doorbell::pair().unwrap();
            let mut bell = ringer.bell(ours);
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
                bell.is_slow().then_some(())
            });
            drop((descriptors, places));
        }
    }
}
