//! Measures what an application's end costs: nanoseconds for each slice and each message that it takes and
//! gives back, with messages and slices that are borrowed ([`Session`]) and owned ([`SharedSession`]).
//!
//! The daemon's end is written by this thread between the measured parts, so nothing is waited for, nobody
//! sleeps, and no other thread wants the lock of the shared session. What several threads cost each other is
//! not measured.

use crate::allocations;
use crate::report::{Bound, Row, RunSize, pairwise};
use jet_client::receive::{RegisterError, Session, SessionParts, SharedSession};
use jet_control::ControlConnection;
use jet_control::connection::ANSWER_TIMEOUT;
use jet_fabric::memory::SharedMemory;
use jet_fabric::unix::Doorbell;
use jet_wire::segment::{
    DaemonEnd, Delivery, Place, SegmentLayout, SegmentShape, daemon_end, delivery_flags, delivery_kind,
};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Slices that are delivered at a time: as many as a session has slots by default.
const SLICES: u32 = 1024;
const ROUNDS: u32 = 400;
const ROUNDS_BRIEF: u32 = 10;

/// What a round is: one message of all slices, or as many messages of one slice.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Slices,
    Messages,
}

/// The end of a daemon that delivers what it is told, and never looks at the NIC.
struct Daemon {
    end: DaemonEnd,
    generation: u16,
    _segment: SharedMemory,
    _doorbell: Doorbell,
    _control: UnixStream,
}

/// Runs the benchmark `session`.
///
/// # Errors
/// An error of the system about memory or descriptors.
pub fn run(run_size: RunSize) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let rounds = run_size.of(ROUNDS, ROUNDS_BRIEF);
    let (mut daemon, session) = Daemon::with_session()?;
    let (mut shared_daemon, shared) = Daemon::with_session()?;
    let shared = SharedSession::from_session(shared)?;
    let (mut rows, mut allocated) = (Vec::new(), Vec::new());
    // The bound is for slices; a message takes two more steps with the lock.
    let shapes = [
        (Shape::Slices, "a slice", Bound::AtMost(20.0)),
        (Shape::Messages, "a message of one slice", Bound::None),
    ];
    for (shape, unit, bound) in shapes {
        // With room for all, so that only what is measured could allocate.
        let room = || Vec::with_capacity(run_size.samples as usize);
        let (mut borrowed, mut owned) = (room(), room());
        for _ in 0..run_size.samples {
            let before = allocations::count();
            borrowed.push(daemon.each_ns(rounds, shape, || take_borrowed(&session)));
            owned.push(shared_daemon.each_ns(rounds, shape, || take_owned(&shared)));
            #[allow(clippy::cast_precision_loss)] // none, it is hoped
            allocated.push((allocations::count() - before) as f64);
        }
        let more = pairwise_difference(&owned, &borrowed);
        let ratio = pairwise(&owned, &borrowed);
        let row = |what, unit, samples, bound| Row::new("session", what, unit, samples, bound);
        rows.extend([
            row(&format!("{unit}, borrowed"), "ns", borrowed, Bound::None),
            row(&format!("{unit}, owned"), "ns", owned, Bound::None),
            row(&format!("{unit}, owned - borrowed"), "ns", more, bound),
            row(&format!("{unit}, owned / borrowed"), "ratio", ratio, Bound::None),
        ]);
    }
    rows.push(Row::exact("session", "allocations", "count", allocated, Bound::AtMost(0.0)));
    Ok(rows)
}

fn pairwise_difference(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of - to).collect()
}

fn take_borrowed(session: &Session) {
    while let Ok(mut message) = session.try_receive() {
        while let Ok(Some(slice)) = message.try_next() {
            black_box(&slice[0]);
        }
    }
}

fn take_owned(session: &SharedSession) {
    while let Ok(mut message) = session.try_receive() {
        while let Ok(Some(slice)) = message.try_next() {
            black_box(&slice[0]);
        }
    }
}

impl Daemon {
    fn with_session() -> Result<(Self, Session), RegisterError> {
        let shape = SegmentShape::new(SLICES, SLICES);
        let segment = SharedMemory::new("jet-bench", SegmentLayout::new(shape).total_bytes(), false)?;
        let pool = SharedMemory::new("jet-bench", SLICES as usize * SLAB_BYTES, false)?;
        // SAFETY: the segment lives in the daemon beside the end, and this is the only daemon's end.
        let end = unsafe { daemon_end(segment.base(), segment.bytes(), shape) }?;
        let (near_bell, far_bell) = Doorbell::pair()?;
        let (near, far) = UnixStream::pair()?;
        let copy = |fd: &dyn AsFd| -> io::Result<_> { fd.as_fd().try_clone_to_owned() };
        let parts = SessionParts {
            number: 1,
            pool: copy(&pool)?,
            pool_bytes: pool.bytes() as u64,
            pool_slabs: SLICES,
            segment: copy(&segment)?,
            doorbell: copy(&near_bell)?,
            escape: None,
        };
        let control = ControlConnection::from_stream(near, ANSWER_TIMEOUT)?;
        let session = Session::assemble(control, parts, Duration::ZERO)?;
        let daemon = Self { end, generation: 0, _segment: segment, _doorbell: far_bell, _control: far };
        Ok((daemon, session))
    }

    /// Delivers the slices of a round and has them taken, again and again. Returns the nanoseconds that
    /// taking and giving back took for each.
    fn each_ns(&mut self, rounds: u32, shape: Shape, take: impl Fn()) -> f64 {
        let mut spent = Duration::ZERO;
        for _ in 0..rounds {
            self.deliver(shape);
            let begin = Instant::now();
            take();
            spent += begin.elapsed();
            while self.end.releases.pop().expect("a sound ring").is_some() {}
            self.end.releases.advance();
        }
        #[allow(clippy::cast_precision_loss)] // below a minute
        let spent_ns = spent.as_nanos() as f64;
        spent_ns / f64::from(rounds) / f64::from(SLICES)
    }

    fn deliver(&mut self, shape: Shape) {
        self.generation = self.generation.wrapping_add(1);
        for number in 0..SLICES {
            let slot = self.end.slot(number).expect("within the shape");
            slot.publish(self.generation, Place { slab: number, escaped: false });
            let (message, offset, message_bytes, flags) = match shape {
                Shape::Slices => {
                    let first = if number == 0 { delivery_flags::FIRST } else { 0 };
                    let last = if number == SLICES - 1 { delivery_flags::LAST } else { 0 };
                    (0, number * SLAB_BYTES_U32, SLICES * SLAB_BYTES_U32, first | last)
                }
                Shape::Messages => (number, 0, SLAB_BYTES_U32, delivery_flags::FIRST | delivery_flags::LAST),
            };
            let delivery = Delivery {
                kind: delivery_kind::SLICES,
                flags,
                slot: number,
                message,
                generations: Delivery::pack_generations(self.generation, self.generation),
                offset: u64::from(offset),
                message_bytes: u64::from(message_bytes),
                bytes: SLAB_BYTES_U32,
                slab: number,
                sequence: 1,
                sender: 1,
                ..Delivery::ZERO
            };
            self.end.deliveries.push(delivery).expect("never full");
        }
        self.end.deliveries.publish();
    }
}
