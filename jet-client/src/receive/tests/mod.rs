//! Tests of a session against a daemon's end in the same process.

mod consume;
mod escape;
mod recycling;
mod register;
mod replies;
mod shared;
mod standstill;

use super::*;
use jet_control::connection::ANSWER_TIMEOUT;
use jet_control::frame::encode_frame;
use jet_control::{ControlConnection, ControlResponse, ErrorCode};
use jet_fabric::memory::SharedMemory;
use jet_fabric::unix::Doorbell;
use jet_wire::segment::{
    DELIVERY_USER_HEADER_MAX, DaemonEnd, Delivery, Place, Release, SegmentLayout, SegmentShape, daemon_end,
    delivery_flags as flags, delivery_kind, release_kind,
};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::io::Write;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const SLOTS: u32 = 8;
const MESSAGES: u32 = 4;
const POOL_SLABS: u32 = 32;
const LONG: Duration = Duration::from_secs(30);

struct Daemon {
    end: DaemonEnd,
    doorbell: Doorbell,
    control: UnixStream,
    pool: SharedMemory,
    escape: Option<SharedMemory>,
    /// Memory of the segment, kept for as long as `end` points into it.
    _segment: SharedMemory,
}

/// A run of a message, in slabs of its own.
#[derive(Clone, Copy)]
struct Run {
    slot: u32,
    message: u32,
    offset: u64,
    bytes: u32,
    message_bytes: u64,
    slab: u32,
    flags: u8,
}

/// Whether a look, or a wait, found no message.
fn nothing<M>(received: Result<M, ReceiveError>) -> bool {
    match received {
        Ok(_) => false,
        Err(ReceiveError::NotYet) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Returns a slot's generation. Generations tell slots and messages apart, and stay the same through a test.
fn slot_generation(slot: u32) -> u16 {
    u16::try_from(100 + slot).unwrap()
}

fn small(slot: u32, message: u32, bytes: u32) -> Run {
    let flags = flags::FIRST | flags::LAST;
    Run { slot, message, offset: 0, bytes, message_bytes: u64::from(bytes), slab: slot, flags }
}

fn pair(spin_max: Duration) -> (Daemon, Session) {
    pair_with_escape(spin_max, 0)
}

/// Makes a daemon and a session, with `escape_slabs` slabs of escape memory; 0: none is handed over.
fn pair_with_escape(spin_max: Duration, escape_slabs: usize) -> (Daemon, Session) {
    let (near, far) = UnixStream::pair().unwrap();
    let (daemon, parts) = daemon_with_parts(far, escape_slabs);
    let control = ControlConnection::from_stream(near, ANSWER_TIMEOUT).unwrap();
    (daemon, Session::assemble(control, parts, spin_max).unwrap())
}

/// Makes a daemon that speaks over `control`, and what it hands over.
fn daemon_with_parts(control: UnixStream, escape_slabs: usize) -> (Daemon, session::SessionParts) {
    let shape = SegmentShape::new(SLOTS, MESSAGES);
    let segment = SharedMemory::new("jet-test", SegmentLayout::new(shape).total_bytes(), false).unwrap();
    let pool = SharedMemory::new("jet-test", POOL_SLABS as usize * SLAB_BYTES, false).unwrap();
    let escape = (escape_slabs > 0).then(|| {
        let memory = SharedMemory::lazy("jet-test", escape_slabs * SLAB_BYTES).unwrap();
        memory.seal_future_writes().unwrap();
        memory
    });
    // SAFETY: the segment lives in the daemon beside the end, and this is the only daemon's end.
    let end = unsafe { daemon_end(segment.base(), segment.bytes(), shape) }.unwrap();
    let (near_bell, far_bell) = Doorbell::pair().unwrap();
    let owned = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
    let parts = session::SessionParts {
        number: 1,
        pool: owned(&pool),
        pool_bytes: pool.bytes() as u64,
        pool_slabs: POOL_SLABS,
        segment: owned(&segment),
        doorbell: owned(&near_bell),
        escape: escape.as_ref().map(|memory| (owned(memory), memory.bytes() as u64)),
    };
    (Daemon { end, doorbell: far_bell, control, pool, escape, _segment: segment }, parts)
}

impl Daemon {
    /// Fills the run's slabs with bytes that follow from message and offset, publishes the slot, and delivers
    /// the run.
    fn deliver_as(&mut self, run: Run, message_generation: u16, user_header: &[u8]) {
        let Run { slot, message, offset, bytes, message_bytes, slab, flags } = run;
        for at in 0..bytes as usize {
            let value = expected_byte(message, offset + at as u64);
            // SAFETY: within the pool; no slice of this run is held yet.
            unsafe { self.pool.base().add(slab as usize * SLAB_BYTES + at).write(value) };
        }
        let place = Place { slab, escaped: false };
        self.end.slot(slot).unwrap().publish(slot_generation(slot), place);
        let mut inline = [0; DELIVERY_USER_HEADER_MAX];
        if user_header.len() <= inline.len() {
            inline[..user_header.len()].copy_from_slice(user_header);
        } else {
            assert!(self.end.write_user_header(message, user_header));
        }
        self.push(Delivery {
            kind: delivery_kind::SLICES,
            flags,
            user_header_bytes: u16::try_from(user_header.len()).unwrap(),
            slot,
            message,
            generations: Delivery::pack_generations(slot_generation(slot), message_generation),
            offset,
            message_bytes,
            bytes,
            slab,
            tag: 1000 + u64::from(message),
            sequence: 1 + u64::from(message),
            sender: 42,
            user_header: inline,
        });
    }

    fn deliver(&mut self, run: Run) {
        self.deliver_as(run, 7, b"");
    }

    fn withdraw(&mut self, message: u32, flags: u8) {
        self.withdraw_as(message, 7, flags);
    }

    fn withdraw_as(&mut self, message: u32, message_generation: u16, flags: u8) {
        self.push(Delivery {
            kind: delivery_kind::WITHDRAWN,
            flags,
            message,
            generations: Delivery::pack_generations(0, message_generation),
            ..Delivery::ZERO
        });
    }

    fn push(&mut self, delivery: Delivery) {
        self.end.deliveries.push(delivery).unwrap();
        self.end.deliveries.publish();
    }

    fn releases(&mut self) -> Vec<Release> {
        let taken = std::iter::from_fn(|| self.end.releases.pop().unwrap()).collect();
        self.end.releases.advance();
        taken
    }
}

fn expected_byte(message: u32, offset: u64) -> u8 {
    ((offset / 7 + offset % 251 + u64::from(message) * 31) & 0xff) as u8
}

fn check_slice(slice: &Slice<'_>, message: u32) {
    for (at, &byte) in slice.iter().enumerate() {
        assert_eq!(byte, expected_byte(message, slice.offset() + at as u64), "message {message} at {at}");
    }
}

fn slices(slot: u32, first: u16, count: u16) -> Release {
    let (kind, generation) = (release_kind::SLICES, slot_generation(slot));
    Release { index: slot, generation, first, count, kind, reserved: 0, code: 0 }
}

fn slices_and_finish(slot: u32, first: u16, count: u16, code: u32) -> Release {
    Release { kind: release_kind::SLICES_AND_FINISH, code, ..slices(slot, first, count) }
}

fn finish(message: u32, code: u32) -> Release {
    Release {
        index: message,
        generation: 7,
        first: 0,
        count: 0,
        kind: release_kind::FINISH,
        reserved: 0,
        code,
    }
}

#[test]
fn a_small_message_costs_one_release_whatever_is_dropped_first() {
    for message_first in [false, true] {
        let (mut daemon, session) = pair(Duration::ZERO);
        daemon.deliver_as(small(3, 2, 64), 7, b"name");
        let mut message = session.try_receive().unwrap();
        assert_eq!((message.tag(), message.sequence(), message.sender()), (1002, 3, 42));
        assert_eq!(
            (message.bytes(), message.user_header(), message.redelivered()),
            (64, &b"name"[..], false)
        );
        let slice = message.next_timeout(LONG).unwrap().unwrap();
        assert_eq!((slice.len(), slice.offset(), slice.slabs()), (64, 0, 1));
        check_slice(&slice, 2);
        assert!(message.next_timeout(LONG).unwrap().is_none());
        if message_first {
            drop(message);
            drop(slice);
        } else {
            drop(slice);
            drop(message);
        }
        assert_eq!(daemon.releases(), [], "not shown before the session waits or polls in vain");
        assert!(nothing(session.try_receive()));
        assert_eq!(daemon.releases(), [slices_and_finish(3, 0, 1, 0)]);
        assert_eq!(session.stats().releases, 1);
    }
}

#[test]
fn a_message_of_no_bytes_has_its_slab_to_give_back() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(small(0, 0, 0));
    let mut message = session.try_receive().unwrap();
    assert!(message.next_timeout(LONG).unwrap().unwrap().is_empty());
    assert!(message.next_timeout(LONG).unwrap().is_none());
    drop(message);
    session.flush();
    assert_eq!(daemon.releases(), [slices_and_finish(0, 0, 1, 0)]);
}

#[test]
fn large_messages_interleave_and_each_gives_its_own_slices() {
    let (mut daemon, session) = pair(Duration::ZERO);
    let bytes = 2 * SLAB_BYTES_U32;
    let total = u64::from(bytes) + 100;
    let head = |slot, message| Run {
        slot,
        message,
        offset: 0,
        bytes,
        message_bytes: total,
        slab: 4 * slot,
        flags: flags::FIRST,
    };
    let tail = |slot, message| Run {
        offset: u64::from(bytes),
        bytes: 100,
        slab: 4 * slot,
        flags: flags::LAST,
        ..head(slot, message)
    };
    daemon.deliver(head(0, 0));
    daemon.deliver(head(1, 1));
    let mut first = session.try_receive().unwrap();
    check_slice(&first.next_timeout(LONG).unwrap().unwrap(), 0);
    assert!(matches!(first.try_next(), Err(SliceError::NotYet)));
    let short = Duration::from_millis(1);
    assert!(matches!(first.next_timeout(short), Err(SliceError::NotYet)));
    daemon.deliver(tail(2, 1));
    daemon.deliver(tail(3, 0));
    let mut second = session.try_receive().unwrap();
    assert_eq!((first.tag(), second.tag()), (1000, 1001));
    for (message, number) in [(&mut second, 1), (&mut first, 0)] {
        while let Some(slice) = message.next_timeout(LONG).unwrap() {
            check_slice(&slice, number);
        }
    }
    drop((second, first));
    session.flush();
    let expected =
        [slices(0, 0, 2), slices(1, 0, 2), slices(2, 0, 1), slices(3, 0, 1), finish(1, 0), finish(0, 0)];
    let mut found = daemon.releases();
    // The newest release at message 1's end is a slice of message 0, so the end of message 1 is an entry of
    // its own.
    assert_eq!(found.len(), 6);
    found.sort_by_key(|release| (release.kind, release.index));
    let mut sorted = expected;
    sorted.sort_by_key(|release| (release.kind, release.index));
    assert_eq!(found, sorted);
}

#[test]
fn parts_of_a_run_come_back_on_their_own_and_neighbours_merge() {
    let (mut daemon, session) = pair(Duration::ZERO);
    let bytes = 5 * SLAB_BYTES_U32 + 10;
    daemon.deliver(Run { slab: 8, ..small(0, 0, bytes) });
    let mut message = session.try_receive().unwrap();
    let whole = message.next_timeout(LONG).unwrap().unwrap();
    assert!(daemon.end.slot(0).unwrap().pin(slot_generation(0)).is_err(), "pinned while it is out");
    let mut pieces: Vec<_> = whole.into_slabs().collect();
    assert_eq!(pieces.len(), 6);
    assert_eq!(pieces.iter().map(|piece| piece.len()).sum::<usize>(), bytes as usize);
    pieces.iter().for_each(|piece| check_slice(piece, 0));
    assert_eq!(pieces[5].offset(), u64::from(5 * SLAB_BYTES_U32));
    drop(pieces.remove(5));
    drop(pieces.remove(1));
    drop(pieces.remove(1));
    drop(pieces.remove(1));
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 5, 1), slices(0, 1, 3)]);
    drop(message);
    drop(pieces);
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 0, 1), slices_and_finish(0, 4, 1, 0)]);
}

#[test]
fn a_message_dropped_early_is_rejected_and_what_comes_late_goes_back_at_once() {
    let (mut daemon, session) = pair(Duration::ZERO);
    let part = |slot, flags| Run {
        offset: u64::from(slot * SLAB_BYTES_U32),
        message_bytes: u64::from(4 * SLAB_BYTES_U32),
        flags,
        ..small(slot, 0, SLAB_BYTES_U32)
    };
    daemon.deliver(part(0, flags::FIRST));
    daemon.deliver(part(1, 0));
    let mut message = session.try_receive().unwrap();
    let held = message.next_timeout(LONG).unwrap().unwrap();
    drop(message.next_timeout(LONG).unwrap().unwrap());
    daemon.deliver(part(2, 0));
    assert!(nothing(session.try_receive()));
    drop(message);
    daemon.deliver(part(3, flags::LAST));
    assert!(nothing(session.try_receive()));
    let code = REJECT_DROPPED;
    assert_eq!(daemon.releases(), [slices(1, 0, 1), slices_and_finish(2, 0, 1, code), slices(3, 0, 1)]);
    check_slice(&held, 0);
    drop(held);
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 0, 1)]);
    // The message number is used again, with another generation.
    daemon.deliver_as(small(1, 0, 5), 8, b"");
    drop(session.try_receive().unwrap());
}

#[test]
fn verdicts_and_panics_reach_the_daemon() {
    let (mut daemon, session) = pair(Duration::ZERO);
    for number in 0..3 {
        daemon.deliver(small(number, number, 10));
    }
    let code = NonZeroU32::new(28).unwrap();
    session.receive_timeout(LONG).unwrap().reject(code);
    session.receive_timeout(LONG).unwrap().consume();
    let panicking = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut message = session.receive_timeout(LONG).unwrap();
        let _slice = message.next_timeout(LONG).unwrap();
        std::panic::resume_unwind(Box::new("as if the application failed"));
    }));
    assert!(panicking.is_err());
    session.flush();
    assert_eq!(
        daemon.releases(),
        [
            slices_and_finish(0, 0, 1, 28),
            slices_and_finish(1, 0, 1, 0),
            slices_and_finish(2, 0, 1, REJECT_DROPPED)
        ]
    );
}

#[test]
fn a_withdrawn_message_says_so_and_is_not_consumed() {
    for (bits, expected) in [(0, false), (flags::CORRUPT, true)] {
        let (mut daemon, session) = pair(Duration::ZERO);
        daemon.deliver(Run { flags: flags::FIRST, message_bytes: 100, ..small(0, 0, 50) });
        let mut message = session.try_receive().unwrap();
        let slice = message.next_timeout(LONG).unwrap().unwrap();
        daemon.withdraw(0, bits);
        let withdrawn = message.next_timeout(LONG).unwrap_err();
        assert!(matches!(withdrawn, SliceError::Withdrawn { corrupt } if corrupt == expected));
        drop(message);
        drop(slice);
        session.flush();
        assert_eq!(daemon.releases(), [finish(0, REJECT_DROPPED), slices(0, 0, 1)]);
    }
}

#[test]
fn long_user_headers_come_from_their_cell() {
    let (mut daemon, session) = pair(Duration::ZERO);
    let header: Vec<u8> = (0..=255).collect();
    daemon.deliver_as(small(0, 3, 10), 7, &header);
    daemon.deliver_as(small(1, 1, 10), 7, &header[..65]);
    let long = session.try_receive().unwrap();
    let shorter = session.try_receive().unwrap();
    assert_eq!((long.user_header(), shorter.user_header()), (&header[..], &header[..65]));
}

#[test]
fn a_slot_that_holds_another_run_breaks_the_session() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(small(0, 0, 10));
    let place = Place { slab: 0, escaped: false };
    daemon.end.slot(0).unwrap().publish(slot_generation(0).wrapping_add(1), place);
    let mut message = session.try_receive().unwrap();
    let broken = message.next_timeout(LONG).unwrap_err();
    assert!(matches!(broken, SliceError::Receive(ReceiveError::Broken(Fault::Run { slot: 0 }))), "{broken}");
}

#[test]
fn what_cannot_be_breaks_the_session_and_nothing_else() {
    type Scribble = fn(&mut Daemon);
    let scribbles: [(&str, Scribble); 7] = [
        ("slot", |daemon| daemon.push_raw(|delivery| delivery.slot = SLOTS)),
        ("message", |daemon| daemon.push_raw(|delivery| delivery.message = u32::MAX)),
        ("kind", |daemon| daemon.push_raw(|delivery| delivery.kind = 9)),
        ("bytes", |daemon| daemon.push_raw(|delivery| delivery.bytes = u32::MAX)),
        ("offset", |daemon| daemon.push_raw(|delivery| delivery.offset = u64::MAX)),
        ("header", |daemon| daemon.push_raw(|delivery| delivery.user_header_bytes = 257)),
        ("not first", |daemon| daemon.push_raw(|delivery| delivery.flags = 0)),
    ];
    for (what, scribble) in scribbles {
        let (mut daemon, session) = pair(Duration::ZERO);
        scribble(&mut daemon);
        assert!(matches!(session.try_receive(), Err(ReceiveError::Broken(_))), "{what}");
        assert!(matches!(session.receive_timeout(LONG), Err(ReceiveError::Broken(_))), "{what} is final");
    }
    for place in [Place { slab: POOL_SLABS, escaped: false }, Place { slab: 0, escaped: true }] {
        let (mut daemon, session) = pair(Duration::ZERO);
        daemon.deliver(small(0, 0, 10));
        daemon.end.slot(0).unwrap().publish(slot_generation(0), place);
        let mut message = session.try_receive().unwrap();
        let error = message.next_timeout(LONG).unwrap_err();
        assert!(matches!(error, SliceError::Receive(ReceiveError::Broken(Fault::Place { .. }))), "{error}");
    }
}

impl Daemon {
    fn push_raw(&mut self, change: impl FnOnce(&mut Delivery)) {
        let mut delivery = Delivery {
            kind: delivery_kind::SLICES,
            flags: flags::FIRST | flags::LAST,
            message_bytes: 10,
            bytes: 10,
            ..Delivery::ZERO
        };
        change(&mut delivery);
        self.push(delivery);
    }
}

#[test]
fn a_sleeping_session_is_woken_by_another_thread() {
    let (mut daemon, session) = pair(Duration::ZERO);
    std::thread::scope(|scope| {
        let daemon = &mut daemon;
        scope.spawn(move || {
            for number in 0..3 {
                // The word is set only by a session that is about to sleep.
                while !daemon.end.deliveries.wake_needed() {
                    std::thread::yield_now();
                }
                daemon.deliver(small(number, number, 10));
                daemon.doorbell.ring();
            }
        });
        for tag in 1000..1003 {
            let message = session.receive_timeout(LONG).unwrap();
            assert_eq!(message.tag(), tag);
            message.consume();
        }
    });
    assert!(session.stats().sleeps >= 3);
    assert!(nothing(session.receive_timeout(Duration::from_millis(1))));
}

#[test]
fn a_daemon_that_hangs_up_is_noticed_and_held_slices_stay_readable() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(small(0, 0, 10));
    let mut message = session.receive_timeout(LONG).unwrap();
    let slice = message.next_timeout(LONG).unwrap().unwrap();
    drop(daemon);
    assert!(matches!(session.receive_timeout(LONG), Err(ReceiveError::DaemonGone)));
    assert!(matches!(session.try_receive(), Err(ReceiveError::DaemonGone)));
    check_slice(&slice, 0);
    drop((slice, message));
    session.flush();
}

#[test]
fn a_poller_notices_a_daemon_that_is_gone() {
    let (daemon, session) = pair(Duration::ZERO);
    drop(daemon);
    let gone = (0..1 << 20).find_map(|_| session.try_receive().err().filter(|error| !error.is_not_yet()));
    assert!(matches!(gone, Some(ReceiveError::DaemonGone)));
}

#[test]
fn a_daemon_says_why_it_ends_a_session() {
    let (mut daemon, session) = pair(Duration::ZERO);
    let (code, message) = (ErrorCode::BadRequest, "slot 3 was released twice".to_owned());
    let frame = encode_frame(&ControlResponse::Error { code, message }).unwrap();
    daemon.control.write_all(&frame).unwrap();
    let error = session.receive_timeout(LONG).unwrap_err();
    assert!(error.to_string().contains("slot 3 was released twice"), "{error}");
}

#[test]
fn detached_parts_travel_and_come_back() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(small(0, 0, 100));
    let mut message = session.receive_timeout(LONG).unwrap();
    let slice = message.next_timeout(LONG).unwrap().unwrap().detach();
    let message = message.detach();
    let slice = std::thread::spawn(move || {
        // SAFETY: the session lives until the end of the test.
        let bytes = unsafe { slice.bytes() };
        assert_eq!((bytes.len(), bytes[99]), (100, expected_byte(0, 99)));
        slice
    })
    .join()
    .unwrap();
    session.finish(message, Verdict::Rejected(NonZeroU32::new(5).unwrap()));
    session.release(slice);
    session.flush();
    assert_eq!(daemon.releases(), [slices_and_finish(0, 0, 1, 5)]);
}

#[test]
fn giving_back_ends_when_the_daemon_is_gone_and_its_ring_is_full() {
    let (mut daemon, session) = pair(Duration::ZERO);
    for slot in 0..2 {
        let bytes = 16 * SLAB_BYTES_U32;
        daemon.deliver(Run { slab: 16 * slot, ..small(slot, slot, bytes) });
    }
    let mut pieces = Vec::new();
    while let Ok(mut message) = session.try_receive() {
        while let Some(slice) = message.next_timeout(LONG).unwrap() {
            pieces.extend(slice.into_slabs());
        }
        message.end(Verdict::Consumed);
    }
    assert_eq!(pieces.len(), 32);
    drop(daemon);
    // Every second piece is dropped first, so that no two merge. That makes more entries than the ring has
    // cells, and nobody reads them.
    let (even, odd): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|piece| piece.offset() / 4096 % 2 == 0);
    drop(even);
    drop(odd);
    session.flush();
    let gone = (0..1 << 20).find_map(|_| session.try_receive().err().filter(|error| !error.is_not_yet()));
    assert!(matches!(gone, Some(ReceiveError::DaemonGone)));
}
