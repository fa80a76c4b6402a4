//! Tests of applications that break the protocol. Each loses its own session and gets the reason, and the
//! others are still served.

use crate::children::Role;
use crate::hand_session::{HandSession, release, wait_delivery};
use crate::rig::{NIC_THREAD, Rig, random_for};
use crate::traffic::{Traffic, fits};
use jet_client::send::{AckStatus, RetryPolicy, Sender};
use jet_control::ErrorCode;
use jet_fabric::memory::{Mapping, Protection};
use jet_test_support::random::Random;
use jet_test_support::waiting::until;
use jet_wire::segment::{AppEnd, Delivery, Release, release_kind};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const QUARANTINE: &str = "session.quarantine_ms=20";

/// Connects a sender to an application that will break the protocol. It sends nothing again: every end is
/// final.
fn sender_to(rig: &Rig, app: &str, random: Random) -> Traffic {
    let options = Rig::sender_options(&rig.addresses()[0], app).retry(RetryPolicy::NEVER);
    Traffic::over(Sender::connect(&options).expect("let in"), random)
}

/// Returns the release of all slabs of a delivered run.
fn all_of(delivery: &Delivery) -> Release {
    let count = u16::try_from(delivery.bytes.div_ceil(4096).max(1)).expect("a run");
    Release {
        index: delivery.slot,
        generation: delivery.slot_generation(),
        first: 0,
        count,
        kind: release_kind::SLICES,
        reserved: 0,
        code: 0,
    }
}

fn finish_of(delivery: &Delivery, code: u32) -> Release {
    Release {
        index: delivery.message,
        generation: delivery.message_generation(),
        first: 0,
        count: 0,
        kind: release_kind::FINISH,
        reserved: 0,
        code,
    }
}

/// Case of a test: its name, the releases that a session with one small message makes, and words that the
/// daemon's reason must have.
type Misdeed = (&'static str, fn(&Delivery) -> Vec<Release>, &'static str);

const MISDEEDS: &[Misdeed] = &[
    ("a kind that does not exist", |d| vec![Release { kind: 9, ..all_of(d) }], "kind 9"),
    ("no kind", |d| vec![Release { kind: 0, ..all_of(d) }], "kind 0"),
    ("reserved bytes", |d| vec![Release { reserved: 1, ..all_of(d) }], "kind"),
    (
        "a slot that does not exist",
        |d| vec![Release { index: 1 << 20, ..all_of(d) }],
        "slot 1048576, which does not exist",
    ),
    ("the last of all slots", |d| vec![Release { index: u32::MAX, ..all_of(d) }], "does not exist"),
    ("a slot that is not held", |d| vec![Release { index: d.slot ^ 1, ..all_of(d) }], "does not hold"),
    (
        "an earlier run of the slot",
        |d| vec![Release { generation: d.slot_generation().wrapping_sub(1), ..all_of(d) }],
        "does not hold",
    ),
    ("a slot released twice", |d| vec![all_of(d), all_of(d)], "does not hold"),
    ("no slices", |d| vec![Release { count: 0, ..all_of(d) }], "slices 0..0"),
    ("slices beyond the run", |d| vec![Release { count: 2, ..all_of(d) }], "slices 0..2"),
    ("slices beside the run", |d| vec![Release { first: 1, ..all_of(d) }], "slices 1..2"),
    (
        "slices beyond everything",
        |d| vec![Release { first: u16::MAX, count: u16::MAX, ..all_of(d) }],
        "slices 65535..131070",
    ),
    (
        "a message that does not exist",
        |d| vec![Release { index: 1 << 20, ..finish_of(d, 0) }],
        "message 1048576",
    ),
    ("a message that is not open", |d| vec![Release { index: d.message ^ 1, ..finish_of(d, 0) }], "not open"),
    (
        "an earlier message of the number",
        |d| vec![Release { generation: d.message_generation().wrapping_sub(1), ..finish_of(d, 0) }],
        "not open",
    ),
    ("a message finished twice", |d| vec![finish_of(d, 0), finish_of(d, 0)], "not open"),
    (
        "a message finished twice, and released",
        |d| vec![all_of(d), finish_of(d, 0), finish_of(d, 5)],
        "not open",
    ),
];

#[test]
fn what_is_not_held_cannot_be_released() {
    let mut random = random_for("releases", 10);
    let rig = Rig::start(&[QUARANTINE]);
    let good = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::new(&rig.addresses()[1], "store", random.fork());
    let mut victim_traffic = sender_to(&rig, "victim", random.fork());
    let control = rig.control();
    // Another session holds runs of the same numbers, and must keep them.
    let other = HandSession::register(&control, "other");
    let mut other_end = other.end();
    let mut other_traffic = sender_to(&rig, "other", random.fork());
    other_traffic.send(3000).unwrap();
    let held = wait_delivery(&mut other_end, &mut other_traffic);
    for (what, releases, words) in MISDEEDS {
        let before = rig.status().faults.sessions;
        let mut session = HandSession::register(&control, "victim");
        let mut end = session.end();
        victim_traffic.send(1000).unwrap();
        let delivery = wait_delivery(&mut end, &mut victim_traffic);
        release(&session, &mut end, &releases(&delivery));
        let (code, message) = session.wait_ended();
        assert_eq!(code, ErrorCode::BadRequest, "{what}: {message}");
        assert!(message.contains(words), "{what}: {message}");
        assert_eq!(rig.status().faults.sessions, before + 1, "{what}");
        // A message that was finished before the bad release is finished. The others lost their application.
        let end = victim_traffic.end().status;
        let consumed = what.starts_with("a message finished twice");
        assert_eq!(end, if consumed { AckStatus::Consumed } else { AckStatus::AppGone }, "{what}");
        traffic.round();
    }
    // A run that another session holds cannot be released here, though both sessions use the same numbers.
    let mut session = HandSession::register(&control, "victim");
    let mut end = session.end();
    release(&session, &mut end, &[all_of(&held)]);
    assert!(session.wait_ended().1.contains("does not hold"));
    assert!(other_traffic.sender.poll().is_none());
    release(&other, &mut other_end, &[all_of(&held), finish_of(&held, 0)]);
    assert_eq!(other_traffic.end().status, AckStatus::Consumed);
    traffic.round();
    drop(other);
    rig.wait_whole();
    assert_eq!((good.reported("registered"), good.reported("wrong")), (1, 0));
}

#[test]
fn a_message_cannot_be_consumed_before_it_is_there() {
    let mut random = random_for("early", 11);
    let rig = Rig::start(&[QUARANTINE]);
    let _good = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::new(&rig.addresses()[0], "store", random.fork());
    let mut session = HandSession::register(&rig.control(), "early");
    let mut end = session.end();
    // The message is larger than the pool and escape memory, so it cannot arrive as a whole.
    let mut sender = sender_to(&rig, "early", random.fork());
    sender.send(64 << 20).unwrap();
    let first = wait_delivery(&mut end, &mut sender);
    release(&session, &mut end, &[Release { code: 0, ..finish_of(&first, 0) }]);
    let (code, message) = until("the session to be ended", || {
        sender.sender.flush();
        session.hung_up()
    })
    .expect("it says why");
    assert_eq!(code, ErrorCode::BadRequest);
    assert!(message.contains("before all of it came"), "{message}");
    assert_eq!(sender.end().status, AckStatus::AppGone);
    drop((end, session));
    rig.wait_whole();
    traffic.round();
    rig.wait_whole();
}

#[test]
fn what_an_application_may_still_read_is_not_used_again_while_it_lives() {
    let mut random = random_for("lives on", 14);
    let rig = Rig::start(&[QUARANTINE]);
    let _good = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::new(&rig.addresses()[0], "store", random.fork());
    for speaks in [false, true] {
        let mut session = HandSession::register(&rig.control(), "victim");
        let mut end = session.end();
        let mut sender = sender_to(&rig, "victim", random.fork());
        sender.send(4096).unwrap();
        let delivery = wait_delivery(&mut end, &mut sender);
        let pool = Mapping::map_received(session.pool.as_fd(), Protection::Read, 1 << 30).expect("mapped");
        // SAFETY: the slab lies within the pool. The test reads it as the application does, which holds it.
        let held = || unsafe {
            let slab = pool.base().add(delivery.slab as usize * jet_wire::SLAB_BYTES);
            std::slice::from_raw_parts(slab, jet_wire::SLAB_BYTES)
        };
        assert!(fits(delivery.tag, 0, held()));
        if speaks {
            // The application sends something that the daemon cannot read, which ends its session as well.
            session.say(b"what?");
        } else {
            release(&session, &mut end, &[Release { kind: 9, ..all_of(&delivery) }]);
            session.wait_ended();
        }
        assert_eq!(sender.end().status, AckStatus::AppGone);
        // Other messages use the pool for much longer than the quarantine of 20 ms.
        let until = std::time::Instant::now() + std::time::Duration::from_millis(500);
        while std::time::Instant::now() < until {
            traffic.round();
            assert!(fits(delivery.tag, 0, held()), "another message lies where this one is being read");
        }
        assert!(rig.status().pool.quarantined >= 1);
        drop((end, session));
        rig.wait_whole();
    }
}

/// Ways of writing nonsense into a segment.
#[derive(Clone, Copy, Debug)]
enum Scribble {
    /// Random words everywhere.
    Everywhere,
    /// Random small numbers in the lines where the indices of both rings are.
    Indices,
    /// Releases that the ring's own rules allow, with made-up contents.
    Releases,
    /// Correct releases at first, then random words everywhere.
    Late,
}

#[test]
fn a_segment_scribbled_over_costs_its_own_session_only() {
    const ROUNDS: u64 = 48;
    let mut random = random_for("scribble", 12);
    let rig = Rig::start(&[QUARANTINE, NIC_THREAD]);
    let good = rig.application(Role::Consumer, "store");
    let stop = AtomicU32::new(0);
    let control = rig.control();
    std::thread::scope(|scope| {
        for address in rig.addresses() {
            let seed = random.fork();
            let stop = &stop;
            scope.spawn(move || {
                let mut traffic = Traffic::new(&address, "store", seed);
                while stop.load(Ordering::Relaxed) == 0 {
                    traffic.round();
                }
            });
        }
        let stop_at_the_end = StopOnDrop(&stop);
        for round in 0..ROUNDS {
            let way = [Scribble::Everywhere, Scribble::Indices, Scribble::Releases, Scribble::Late]
                [usize::try_from(round % 4).expect("small")];
            let mut session = HandSession::register(&control, "scribbled");
            let mut sender = sender_to(&rig, "scribbled", random.fork());
            let mut sizes = random.fork();
            let mut sent = 0;
            for _ in 0..20 {
                let bytes =
                    if sizes.below(2) == 0 { sizes.size_below(4097) } else { 1 + sizes.size_below(2 << 20) };
                sender.send(bytes).unwrap();
                sent += 1;
            }
            let mut end = session.end();
            let first = wait_delivery(&mut end, &mut sender);
            let mut scribbler = Scribbler { random: random.fork(), way, first, honest_turns: 5 };
            let said = until("the session to be ended", || {
                scribbler.scribble(&session, &mut end);
                sender.sender.flush();
                session.bell.ring();
                // A daemon that has nothing to deliver never looks at the delivery ring, so more messages are
                // sent.
                if sent < 200 {
                    sent += usize::from(sender.send(10).is_ok());
                }
                session.hung_up()
            });
            let (code, message) = said.expect("it says why");
            assert_eq!(code, ErrorCode::BadRequest, "{way:?}: {message}");
            for status in sender.ends(sent) {
                // A random release may end the session's own messages in any way. What the session holds may
                // be so much that no further small message is taken.
                assert!(
                    matches!(
                        status,
                        AckStatus::AppGone
                            | AckStatus::Busy
                            | AckStatus::NoApp
                            | AckStatus::Consumed
                            | AckStatus::Rejected(_)
                    ),
                    "{way:?}: {status:?}"
                );
            }
        }
        drop(stop_at_the_end);
    });
    let status = rig.wait_whole();
    assert_eq!(status.faults.sessions, ROUNDS);
    assert_eq!((good.reported("registered"), good.reported("wrong")), (1, 0));
}

struct StopOnDrop<'a>(&'a AtomicU32);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Relaxed);
    }
}

struct Scribbler {
    random: Random,
    way: Scribble,
    first: Delivery,
    honest_turns: u32,
}

impl Scribbler {
    fn scribble(&mut self, session: &HandSession, end: &mut AppEnd) {
        let words = session.mapping.bytes() / 8;
        match self.way {
            Scribble::Everywhere => self.write(session, 0..words, 4000, u64::MAX),
            Scribble::Indices => {
                // The rings' indices lie behind the header, and behind the delivery ring's cells.
                self.write(session, 0..128, 40, 0xffff);
                let cells = end.shape().delivery_cells as usize * 128 / 8;
                self.write(session, cells..(cells + 200).min(words), 40, 0xffff);
            }
            Scribble::Releases => self.invent(session, end),
            Scribble::Late if self.honest_turns > 0 => {
                self.honest_turns -= 1;
                while let Ok(Some(delivery)) = end.deliveries.pop() {
                    release(session, end, &[all_of(&delivery)]);
                }
                end.deliveries.advance();
            }
            Scribble::Late => self.write(session, 0..words, 20_000, u64::MAX),
        }
    }

    fn write(&mut self, session: &HandSession, words: std::ops::Range<usize>, count: u32, mask: u64) {
        for _ in 0..count {
            let at = words.start + self.random.size_below(words.len());
            let value = self.random.next() & mask;
            // SAFETY: the word lies within the mapping and is aligned. The daemon accesses the segment by
            // atomics or copies.
            let word = unsafe { AtomicU64::from_ptr(session.mapping.base().cast::<u64>().add(at)) };
            word.store(value, Ordering::Relaxed);
        }
    }

    fn invent(&mut self, session: &HandSession, end: &mut AppEnd) {
        for _ in 0..20 {
            let random = &mut self.random;
            let mut small = |limit: u64| u16::try_from(random.below(limit)).expect("small");
            let near = Release {
                index: u32::from(small(32)),
                generation: small(4),
                first: small(3),
                count: small(70),
                kind: small(5).to_le_bytes()[0],
                reserved: 0,
                code: u32::from(small(3)),
            };
            let near = if small(4) == 0 {
                Release { index: self.first.slot, generation: self.first.slot_generation(), ..near }
            } else {
                near
            };
            if end.releases.push(near).is_err() {
                break;
            }
        }
        end.releases.publish();
        session.bell.ring();
    }
}

#[test]
fn an_application_gets_no_more_than_it_should() {
    let rig = Rig::start(&[QUARANTINE]);
    let mut random = random_for("rights", 13);
    let _good = rig.application(Role::Consumer, "store");
    let session = HandSession::register(&rig.control(), "greedy");
    use rustix::fs::{
        Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, open,
    };
    use std::os::fd::AsRawFd;
    // The pool cannot be mapped for writing, written to, or opened again for writing and then mapped.
    assert!(Mapping::map_received(session.pool.as_fd(), Protection::ReadWrite, 1 << 30).is_err());
    assert!(Mapping::map_received(session.pool.as_fd(), Protection::Read, 1 << 30).is_ok());
    assert!(rustix::io::pwrite(&session.pool, b"scribble", 0).is_err());
    let again = open(format!("/proc/self/fd/{}", session.pool.as_raw_fd()), OFlags::RDWR, Mode::empty());
    if let Ok(again) = again {
        assert!(Mapping::map_received(again.as_fd(), Protection::ReadWrite, 1 << 30).is_err());
        assert!(rustix::io::pwrite(&again, b"scribble", 0).is_err());
    }
    // Neither file can be made shorter or longer, or get holes on which the daemon would take a SIGBUS.
    for file in [&session.pool, &session.segment] {
        let bytes = u64::try_from(fstat(file).unwrap().st_size).unwrap();
        for length in [0, 4096, bytes - 4096, bytes + 4096] {
            assert!(ftruncate(file, length).is_err(), "{length} of {bytes}");
        }
        let grown = fallocate(file, rustix::fs::FallocateFlags::empty(), bytes, 4096);
        assert!(grown.is_err());
        assert!(fcntl_get_seals(file).unwrap().contains(SealFlags::SHRINK | SealFlags::GROW));
    }
    assert!(fcntl_add_seals(&session.pool, SealFlags::WRITE).is_err());
    // More seals on its own segment change nothing for the daemon's mapping.
    let _ = fcntl_add_seals(&session.segment, SealFlags::WRITE | SealFlags::SEAL);
    let mut end = session.end();
    let mut sender = sender_to(&rig, "greedy", random.fork());
    for bytes in [100, 300_000] {
        sender.send(bytes).unwrap();
        let mut left = bytes;
        while left > 0 {
            let delivery = wait_delivery(&mut end, &mut sender);
            left -= delivery.bytes as usize;
            release(&session, &mut end, &[all_of(&delivery)]);
            if left == 0 {
                release(&session, &mut end, &[finish_of(&delivery, 0)]);
            }
        }
        assert_eq!(sender.end().status, AckStatus::Consumed);
    }
    let mut traffic = Traffic::new(&rig.addresses()[1], "store", random.fork());
    traffic.round();
    drop(session);
    rig.wait_whole();
}

#[test]
fn doorbells_that_ring_without_end_or_are_never_answered_hold_nobody_up() {
    let mut random = random_for("doorbells", 14);
    let rig = Rig::start(&[QUARANTINE]);
    let _good = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::to_each(&rig.addresses(), "store", &mut random);
    // One application never reads its doorbell. After each message it claims to sleep, so that the daemon
    // rings for each.
    let deaf = HandSession::register(&rig.control(), "deaf");
    let mut deaf_end = deaf.end();
    let mut to_deaf = sender_to(&rig, "deaf", random.fork());
    // Another rings all the time, and sends other data over the doorbell's socket.
    let loud = HandSession::register(&rig.control(), "loud");
    let stop = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let long = [7u8; 3000];
            while stop.load(Ordering::Relaxed) == 0 {
                loud.bell.ring();
                // The socket is meant to be full.
                let _ = rustix::net::send(&loud.bell, &long, rustix::net::SendFlags::DONTWAIT);
            }
        });
        let _stop = StopOnDrop(&stop);
        for _ in 0..600 {
            deaf_end.deliveries.prepare_sleep();
            to_deaf.send(64).unwrap();
            let delivery = wait_delivery(&mut deaf_end, &mut to_deaf);
            deaf_end.deliveries.advance();
            release(
                &deaf,
                &mut deaf_end,
                &[Release { kind: release_kind::SLICES_AND_FINISH, ..all_of(&delivery) }],
            );
            assert_eq!(to_deaf.end().status, AckStatus::Consumed);
        }
        traffic.iter_mut().for_each(Traffic::round);
    });
    drop((deaf, loud));
    rig.wait_status("one session", |status| status.rows.sessions.len() == 1);
    rig.wait_whole();
}
