//! Words by which the two ends of a connection over shared memory inform each other, beside the rings. Each
//! word is written by one end alone.
//!
//! The pairs of orderings, by label:
//! * *fault*: the Release in [`ConnectionWords::set_fault`] pairs with the Acquire in
//!   [`ConnectionWords::fault`]: an end that sees the fault sees the count that belongs to it.
//! * *left*: the Release fence in [`ConnectionWords::set_fault`] pairs with the Acquire fence in
//!   [`ConnectionWords::has_left`]: who has copied a byte that the other end wrote after it left sees that it
//!   has left.
//! * *announced*: the Release in [`ConnectionWords::set_announced`] pairs with the Acquire in
//!   [`ConnectionWords::announced`].
//! * *sleep*: see [`crate::sleep`].

use crate::sleep::Sleeper;
use crate::sync::{AtomicU32, Ordering, fence};

/// The words of one end, on cache lines of their own. Initially all bits are 0. A hostile peer may write
/// anything into them.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct ConnectionWords {
    /// Reason why this end gave up; 0 while it has not.
    fault: AtomicU32,
    /// SENDs that this end had taken when it set `fault`.
    received: AtomicU32,
    announced: AtomicU32,
    /// Sleeper word of this end, while it waits until the other end has taken its SENDs.
    room: Sleeper,
}

impl ConnectionWords {
    /// Ends the connection from this end: `fault` is the reason, not 0, and `received` how many SENDs this
    /// end had taken. From now on this end's memory may be used for something else.
    pub fn set_fault(&self, fault: u32, received: u32) {
        self.received.store(received, Ordering::Relaxed);
        self.fault.store(fault, Ordering::Release); // label: fault
        fence(Ordering::Release); // label: left
    }

    /// Returns whether the end that writes these words has left. `false`: the bytes of its memory that were
    /// copied before this call are from before it left.
    #[inline]
    pub fn has_left(&self) -> bool {
        fence(Ordering::Acquire); // label: left
        self.fault.load(Ordering::Relaxed) != 0
    }

    /// Returns the reason why the end that writes these words gave up (0: it did not), and how many SENDs it
    /// had taken.
    pub fn fault(&self) -> (u32, u32) {
        let fault = self.fault.load(Ordering::Acquire); // label: fault
        (fault, self.received.load(Ordering::Relaxed))
    }

    /// Publishes how many announcements this end has made elsewhere, for example on a socket.
    pub fn set_announced(&self, count: u32) {
        self.announced.store(count, Ordering::Release); // label: announced
    }

    /// Returns how many announcements the end that writes these words has published.
    #[inline]
    pub fn announced(&self) -> u32 {
        self.announced.load(Ordering::Acquire) // label: announced
    }

    /// Returns the word with which the end that writes these words sleeps until its SENDs are taken. The
    /// other end checks the word after it took some.
    #[inline]
    pub fn room(&self) -> &Sleeper {
        &self.room
    }
}

#[cfg(all(test, loom))]
mod loom {
    use super::*;
    use crate::ring::loom::ring;
    use ::loom::sync::{Arc, Condvar, Mutex};
    use ::loom::thread;

    fn words() -> ConnectionWords {
        let word = || AtomicU32::new(0);
        ConnectionWords { fault: word(), received: word(), announced: word(), room: Sleeper::awake() }
    }

    /// Checks label *fault*: an end that sees the fault sees the count of SENDs that belongs to it.
    #[test]
    fn loom_a_fault_is_seen_with_its_count() {
        ::loom::model(|| {
            let words = Arc::new(words());
            let theirs = words.clone();
            let end = thread::spawn(move || theirs.set_fault(3, 41));
            let seen = words.fault();
            assert!(seen.0 == 0 || seen == (3, 41), "{seen:?}");
            end.join().unwrap();
            assert_eq!(words.fault(), (3, 41));
        });
    }

    /// Checks label *left*: no byte from after the end counts as one from before it.
    #[test]
    fn loom_a_copy_of_later_bytes_is_noticed() {
        ::loom::model(|| {
            let words = Arc::new(words());
            let byte = Arc::new(AtomicU32::new(1));
            let (theirs, memory) = (words.clone(), byte.clone());
            let end = thread::spawn(move || {
                theirs.set_fault(3, 0);
                memory.store(2, Ordering::Relaxed);
            });
            let copied = byte.load(Ordering::Relaxed);
            let has_left = words.has_left();
            assert!(copied == 1 || has_left);
            end.join().unwrap();
        });
    }

    /// Checks that an announcement made before a SEND is known to the end that takes the SEND.
    #[test]
    fn loom_what_was_announced_before_a_send_is_seen_with_it() {
        ::loom::model(|| {
            let words = Arc::new(words());
            let ((mut producer, memory), (mut consumer, _held)) = ring(2, 0);
            let theirs = words.clone();
            let end = thread::spawn(move || {
                let _memory = memory;
                theirs.set_announced(5);
                producer.push(1).unwrap();
                producer.publish();
            });
            if consumer.pop().unwrap().is_some() {
                assert_eq!(words.announced(), 5);
            }
            end.join().unwrap();
        });
    }

    /// Checks that a sender whose ring is full sleeps until some of it is taken.
    #[test]
    fn loom_who_waits_for_room_is_woken() {
        let mut builder = ::loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let words = Arc::new(words());
            let bell = Arc::new((Mutex::new(false), Condvar::new()));
            let ((mut producer, memory), (mut consumer, _held)) = ring(1, 0);
            let (theirs, rung) = (words.clone(), bell.clone());
            let end = thread::spawn(move || {
                let _memory = memory;
                for item in 1..=2 {
                    while producer.push(item).is_err() {
                        theirs.room().sleeps();
                        if producer.room().unwrap() == 0 {
                            let mut rings = rung.0.lock().unwrap();
                            while !*rings {
                                rings = rung.1.wait(rings).unwrap();
                            }
                            *rings = false;
                        }
                        theirs.room().is_up();
                    }
                    producer.publish();
                }
            });
            let mut taken = 0;
            while taken < 2 {
                if consumer.pop().unwrap().is_none() {
                    thread::yield_now();
                    continue;
                }
                taken += 1;
                consumer.advance();
                if words.room().must_be_woken() {
                    *bell.0.lock().unwrap() = true;
                    bell.1.notify_one();
                }
            }
            end.join().unwrap();
        });
    }
}
