//! Tests of an application that holds all that it may: it gets an error, once for each notice of the daemon.
//! Also tests of copying whole messages out.

use super::*;
use jet_wire::segment::Notice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

impl Daemon {
    /// Puts the notice that the session holds all that it may, and wakes the session where it sleeps.
    pub(super) fn tell(&mut self, number: u16, lasting: bool) {
        let releases = self.end.releases.taken();
        self.end.put_notice(Some(Notice { limit: HeldLimit::Pool, lasting, number, releases }));
        if self.end.deliveries.wake_needed() {
            self.doorbell.ring();
        }
    }
}

/// Returns one of the `SLOTS` runs of a message, each of one slab.
fn part(number: u32) -> Run {
    Run {
        flags: if number == 0 { flags::FIRST } else { 0 } | if number == SLOTS - 1 { flags::LAST } else { 0 },
        offset: u64::from(number * SLAB_BYTES_U32),
        message_bytes: u64::from(SLOTS * SLAB_BYTES_U32),
        ..small(number, 0, SLAB_BYTES_U32)
    }
}

const SHORT: Duration = Duration::from_millis(1);

#[test]
fn who_holds_all_that_it_may_is_told_once_a_notice_and_goes_on_when_it_gave_something_back() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(part(0));
    let mut message = session.try_receive().unwrap();
    let mut held = vec![message.next_timeout(LONG).unwrap().unwrap()];
    daemon.deliver(part(1));
    daemon.tell(1, false);
    // Runs that were delivered before the notice are returned before it is reported.
    held.push(message.next_timeout(LONG).unwrap().unwrap());
    let error = message.next_timeout(LONG).unwrap_err();
    assert!(
        matches!(error, SliceError::HoldsAll(HoldsAll { limit: HeldLimit::Pool, held_bytes: 8192 })),
        "{error:?}"
    );
    let said = error.to_string();
    for part in ["8192 bytes", "pool.bytes", "give them back", "copy_to"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // The notice is reported once: the application may wait again.
    assert!(matches!(message.next_timeout(SHORT), Err(SliceError::NotYet)));
    assert_eq!(session.holds_all().unwrap().held_bytes, 8192);
    assert!(
        matches!(message.try_next(), Err(SliceError::NotYet)),
        "who polls may be about to give something back"
    );
    daemon.tell(2, true);
    assert!(matches!(session.receive_timeout(LONG), Err(ReceiveError::HoldsAll(_))), "whatever it waits for");
    // The application gave something back, so the notice does not hold any more, whatever the daemon has
    // seen.
    held.remove(0);
    assert_eq!(session.holds_all(), None);
    assert!(matches!(message.next_timeout(SHORT), Err(SliceError::NotYet)));
    daemon.deliver(part(2));
    held.push(message.next_timeout(LONG).unwrap().unwrap());
    assert_eq!(held.len(), 2);
}

#[test]
fn who_sleeps_is_woken_by_the_notice() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(part(0));
    let mut message = session.try_receive().unwrap();
    let _held = message.next_timeout(LONG).unwrap().unwrap();
    let is_rung = || {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&session, PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    assert!(!session.prepare_sleep().unwrap(), "what was read could be for a message that was polled before");
    assert!(session.prepare_sleep().unwrap() && !is_rung(), "nothing is there");
    daemon.tell(1, false);
    assert!(is_rung());
    assert!(matches!(message.next_timeout(LONG), Err(SliceError::HoldsAll(_))));
}

#[test]
fn what_is_copied_out_is_given_back_and_may_be_larger_than_the_pool() {
    for growing in [false, true] {
        let (mut daemon, session) = pair(Duration::ZERO);
        // Twice as many runs as there are slots, in slabs that are used again. The second half of the message
        // arrives first.
        let bytes = 2 * SLOTS * SLAB_BYTES_U32 - 100;
        let run = |number: u32| Run {
            flags: if number == SLOTS { flags::FIRST } else { 0 }
                | if number == SLOTS - 1 { flags::LAST } else { 0 },
            offset: u64::from(number * SLAB_BYTES_U32),
            message_bytes: u64::from(bytes),
            bytes: SLAB_BYTES_U32.min(bytes - number * SLAB_BYTES_U32),
            ..small(number % SLOTS, 0, 0)
        };
        (SLOTS..2 * SLOTS).for_each(|number| daemon.deliver(run(number)));
        let mut message = session.try_receive().unwrap();
        let (mut place, mut vector) = (vec![0xaa; bytes as usize + 5], vec![0xbb; 3]);
        let small_place = message.copy_to(&mut place[..100]).unwrap_err();
        assert!(matches!(small_place, CopyError::Room { room: 100, .. }), "{small_place}");
        let mut copy = |message: &mut Message<'_>| {
            if growing {
                message.read_to_end_timeout(&mut vector, SHORT)
            } else {
                message.copy_to_timeout(&mut place, SHORT)
            }
        };
        assert!(matches!(copy(&mut message), Err(CopyError::Slice(SliceError::NotYet))));
        assert_eq!(daemon.releases().len(), SLOTS as usize, "given back as they were copied");
        (0..SLOTS).for_each(|number| daemon.deliver(run(number)));
        assert_eq!(copy(&mut message).unwrap(), u64::from(SLOTS * SLAB_BYTES_U32), "what was missing");
        drop(message);
        if growing {
            assert_eq!(vector.len(), bytes as usize);
            place[..vector.len()].copy_from_slice(&vector);
        }
        let wrong = (0..bytes as usize).find(|at| place[*at] != expected_byte(0, *at as u64));
        assert_eq!(wrong, None);
        assert_eq!(place[bytes as usize..], [0xaa; 5]);
        session.flush();
        assert_eq!(daemon.releases().last().unwrap().code, 0, "consumed");
    }
}
