//! Measures how long it takes to hand a descriptor over to another process. Both ends spin on a core of their
//! own.
//!
//! Case A: a bare single-producer single-consumer ring, the least that a hand-over can be: one cell and one
//! index each way. Case B: the session segment as the daemon and an application use it. A delivery writes the
//! slot word and the 128-byte descriptor, publishes it, and checks whether the other end sleeps. A release
//! entry comes back. A figure is half a round trip; A and B alternate.
//!
//! The system calls that wake a sleeping end are not measured, nor other work on the two cores.

use crate::report::{Bound, Row, RunSize};
use jet_fabric::memory::SharedMemory;
use jet_wire::segment::{
    DELIVERY_USER_HEADER_MAX, Delivery, Place, Release, SegmentLayout, SegmentShape, app_end, daemon_end,
    delivery_kind, release_kind,
};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const ROUNDS: u64 = 200_000;
const ROUNDS_BRIEF: u64 = 1000;
/// Seconds after which a sample is given up. A sample takes a tenth of a second on two idle cores.
const SAMPLE_SECONDS_MAX: u32 = 10;
/// Seconds after which a brief run's sample is given up. Where something else runs on the two cores, a round
/// trip takes some milliseconds.
const SAMPLE_SECONDS_MAX_BRIEF: u32 = 60;

/// Two bare rings, one for each direction. Each ring has enough cells never to be full. Each cell and each
/// index is aligned to 128 bytes, so that none shares a cache line.
#[repr(C, align(128))]
struct Bare {
    there_tail: Line,
    there_cells: [Line; 64],
    back_tail: Line,
    back_cells: [Line; 64],
}

#[repr(C, align(128))]
struct Line(AtomicU64);

/// The cores of the two ends, and the limits of a sample.
#[derive(Clone, Copy)]
struct Cores {
    near: core_affinity::CoreId,
    far: core_affinity::CoreId,
    rounds: u64,
    seconds_max: u32,
}

/// Results of hand-overs through the segment.
struct HandedOver {
    one_way_ns: f64,
    /// Number of descriptors and of releases that arrived out of order.
    astray: f64,
}

/// Runs the benchmark `handoff`.
///
/// # Errors
/// An error of the system about memory and processes, or fewer than two cores.
pub fn run(run_size: RunSize) -> io::Result<Vec<Row>> {
    let rounds = run_size.of(ROUNDS, ROUNDS_BRIEF);
    let seconds_max = run_size.of(SAMPLE_SECONDS_MAX, SAMPLE_SECONDS_MAX_BRIEF);
    // Asked before any pinning: a pinned thread sees one core only.
    let cores = match core_affinity::get_core_ids().unwrap_or_default()[..] {
        [near, far, ..] => Cores { near, far, rounds, seconds_max },
        _ => {
            return Err(io::Error::other(
                "two spinning processes need two cores, and this one may use fewer",
            ));
        }
    };
    let (mut bare, mut ring, mut pinned) = (Vec::new(), Vec::new(), Vec::new());
    let mut astray = Vec::new();
    for _ in 0..run_size.samples {
        bare.push(bare_ring(cores)?);
        for (pin_slots, into) in [(false, &mut ring), (true, &mut pinned)] {
            let handed_over = segment(cores, pin_slots)?;
            into.push(handed_over.one_way_ns);
            astray.push(handed_over.astray);
            if !pin_slots {
                bare.push(bare_ring(cores)?);
            }
        }
    }
    let base = crate::report::median(&bare);
    let ratio = |figures: &[f64]| figures.iter().map(|figure| figure / base).collect::<Vec<f64>>();
    let ratios = ratio(&ring);
    let pinned_ratios = ratio(&pinned);
    Ok(vec![
        Row::new("handoff", "bare ring, one way", "ns", bare, Bound::None),
        Row::new("handoff", "session segment, one way", "ns", ring, Bound::None),
        Row::new("handoff", "session segment with pin and unpin, one way", "ns", pinned, Bound::None),
        Row::new("handoff", "session segment / bare ring", "ratio", ratios, Bound::AtMost(1.25)),
        Row::new("handoff", "with pin and unpin / bare ring", "ratio", pinned_ratios, Bound::None),
        Row::exact(
            "handoff",
            "descriptors and releases that were not the next one",
            "count",
            astray,
            Bound::AtMost(0.0),
        ),
    ])
}

/// Runs `near` in this process and `far` in a forked one, each on its core. Returns half a round trip in
/// nanoseconds.
fn between(cores: Cores, near: impl FnOnce(), far: impl FnOnce()) -> io::Result<f64> {
    // SAFETY: this process has one thread; the child touches only the shared mapping and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            pin(cores.far);
            // SAFETY: asks the kernel to kill the child if its parent ends, as the alarm may end it.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            far();
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(0) }
        }
        _ => pin(cores.near),
    }
    // SAFETY: only sets this process's timer. Two spinning ends need two cores of their own. Where something
    // else runs there, a round trip takes milliseconds. The alarm then ends the benchmark, which would take
    // hours.
    unsafe { libc::alarm(cores.seconds_max) };
    let start = Instant::now();
    near();
    let span_ns = start.elapsed().as_nanos();
    // SAFETY: only takes the timer back.
    unsafe { libc::alarm(0) };
    let mut status = 0;
    // SAFETY: waits for our own child.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
        return Err(io::Error::other("the other process did not end well"));
    }
    #[allow(clippy::cast_precision_loss)] // seconds in nanoseconds
    Ok(span_ns as f64 / cores.rounds as f64 / 2.0)
}

fn pin(core: core_affinity::CoreId) {
    core_affinity::set_for_current(core);
}

fn bare_ring(cores: Cores) -> io::Result<f64> {
    let memory = SharedMemory::new("jet-bench", size_of::<Bare>(), false)?;
    // SAFETY: zeroed memory of that size is a valid `Bare` (only atomics), mapped until both ends are done.
    let bare = unsafe { &*memory.base().cast::<Bare>() };
    let wait = |tail: &AtomicU64, past: u64| {
        while tail.load(Ordering::Acquire) == past {
            std::hint::spin_loop();
        }
    };
    between(
        cores,
        || {
            for n in 0..cores.rounds {
                bare.there_cells[(n % 64) as usize].0.store(n, Ordering::Relaxed);
                bare.there_tail.0.store(n + 1, Ordering::Release);
                wait(&bare.back_tail.0, n);
                assert_eq!(bare.back_cells[(n % 64) as usize].0.load(Ordering::Relaxed), n);
            }
        },
        || {
            for n in 0..cores.rounds {
                wait(&bare.there_tail.0, n);
                let seen = bare.there_cells[(n % 64) as usize].0.load(Ordering::Relaxed);
                bare.back_cells[(n % 64) as usize].0.store(seen, Ordering::Relaxed);
                bare.back_tail.0.store(n + 1, Ordering::Release);
            }
        },
    )
}

fn segment(cores: Cores, pin_slots: bool) -> io::Result<HandedOver> {
    let shape = SegmentShape::new(1024, 1024);
    let memory = SharedMemory::new("jet-bench", SegmentLayout::new(shape).total_bytes(), false)?;
    // SAFETY: zeroed, page-aligned, mapped until both ends are done; each end is used by one process.
    let (mut daemon, mut app) = unsafe {
        let daemon = daemon_end(memory.base(), memory.bytes(), shape).map_err(io::Error::other)?;
        (daemon, app_end(memory.base(), memory.bytes()).map_err(io::Error::other)?)
    };
    // The count lies in shared memory, since both ends add to it.
    let counts = SharedMemory::new("jet-bench", size_of::<Line>(), false)?;
    // SAFETY: zeroed memory of that size is a valid `Line` (only an atomic), mapped until both ends are done.
    let astray = unsafe { &*counts.base().cast::<Line>() };
    let expect = |next: bool| {
        astray.0.fetch_add(u64::from(!next), Ordering::Relaxed);
    };
    let one_way_ns = between(
        cores,
        || {
            for n in 0..cores.rounds {
                // Slots are reused last in, first out: with one delivery at a time it is always the same
                // slot.
                let generation = (n & 0xffff) as u16;
                let slot = daemon.slot(0).expect("within the shape");
                slot.publish(generation, Place { slab: 1, escaped: false });
                daemon.deliveries.push(delivery(n, generation)).expect("never full");
                daemon.deliveries.publish();
                assert!(!daemon.deliveries.wake_needed(), "the other end spins");
                let release = loop {
                    if let Some(release) = daemon.releases.pop().expect("a sound ring") {
                        break release;
                    }
                    std::hint::spin_loop();
                };
                daemon.releases.advance();
                expect((release.index, release.generation) == (0, generation));
            }
        },
        || {
            for n in 0..cores.rounds {
                let delivery = loop {
                    if let Some(delivery) = app.deliveries.pop().expect("a sound ring") {
                        break delivery;
                    }
                    std::hint::spin_loop();
                };
                app.deliveries.advance();
                let generation = delivery.slot_generation();
                expect((delivery.sequence, delivery.tag, delivery.slab) == (n, n, 1));
                if pin_slots {
                    let slot = app.slot(delivery.slot).expect("within the shape");
                    assert_eq!(slot.pin(generation).map(|place| place.slab), Ok(delivery.slab));
                    slot.unpin(generation);
                }
                let release = Release {
                    index: delivery.slot,
                    generation,
                    first: 0,
                    count: 1,
                    kind: release_kind::SLICES_AND_FINISH,
                    reserved: 0,
                    code: 0,
                };
                app.releases.push(release).expect("never full");
                app.releases.publish();
                assert!(!app.releases.wake_needed(), "the other end spins");
            }
            // A ring with an entry too many would hand an entry over twice.
            expect(app.deliveries.pop().expect("a sound ring").is_none());
        },
    )?;
    expect(daemon.releases.pop().map_err(io::Error::other)?.is_none());
    #[allow(clippy::cast_precision_loss)] // none, it is hoped
    Ok(HandedOver { one_way_ns, astray: astray.0.load(Ordering::Relaxed) as f64 })
}

fn delivery(sequence: u64, generation: u16) -> Delivery {
    Delivery {
        kind: delivery_kind::SLICES,
        flags: 3,
        user_header_bytes: 0,
        slot: 0,
        message: 0,
        generations: Delivery::pack_generations(generation, 1),
        offset: 0,
        message_bytes: 64,
        bytes: 64,
        slab: 1,
        tag: sequence,
        sequence,
        sender: 1,
        user_header: [0; DELIVERY_USER_HEADER_MAX],
    }
}
