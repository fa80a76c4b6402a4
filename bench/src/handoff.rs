//! Handing a descriptor over to another process, both ends spinning on a core of their own.
//!
//! A: a bare single-producer single-consumer ring, the least that such a hand-over can be: one cell, one index a way.
//! B: the session segment as the daemon and an application use it: slot word, 128-byte descriptor, publish, the look
//! whether the other end sleeps; back comes a release entry. Each way is half a round trip, in turns A B A B.
//!
//! It cannot see the system calls of a sleeping end, nor what else the two cores would be doing.

use crate::report::{Bound, Row};
use jet_fabric::memory::SharedMemory;
use jet_wire::segment::{
    DELIVERY_USER_HEADER_MAX, Delivery, Place, Release, SegmentLayout, SegmentShape, app_end, daemon_end,
    delivery_kind, release_kind,
};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const ROUNDS: u64 = 200_000;
/// A sample takes a tenth of a second on two idle cores.
const SAMPLE_SECONDS_MAX: u32 = 10;

/// Two bare rings of one direction each: enough cells that neither is ever full, cells of 64 bytes as a descriptor
/// needs, indices on lines of their own.
#[repr(C, align(128))]
struct Bare {
    there_tail: Line,
    there_cells: [Line; 64],
    back_tail: Line,
    back_cells: [Line; 64],
}

#[repr(C, align(128))]
struct Line(AtomicU64);

/// Where the two ends spin.
#[derive(Clone, Copy)]
struct Cores {
    near: core_affinity::CoreId,
    far: core_affinity::CoreId,
}

/// Runs the benchmark.
///
/// # Errors
/// What the system says about memory and processes.
pub fn run(samples: u32) -> io::Result<Vec<Row>> {
    // Asked once: afterwards this thread is pinned and sees one core only.
    let cores = match core_affinity::get_core_ids().unwrap_or_default()[..] {
        [near, far, ..] => Cores { near, far },
        _ => {
            return Err(io::Error::other(
                "two spinning processes need two cores, and this one may use fewer",
            ));
        }
    };
    let (mut bare, mut ring, mut pinned) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..samples {
        bare.push(bare_ring(cores)?);
        ring.push(segment(cores, false)?);
        bare.push(bare_ring(cores)?);
        pinned.push(segment(cores, true)?);
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
    ])
}

/// Runs `near` here on core 0 and `far` in a forked process on core 1; gives half a round trip.
fn between(cores: Cores, near: impl FnOnce(), far: impl FnOnce()) -> io::Result<f64> {
    // SAFETY: this process has one thread; the child touches only the shared mapping and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            pin(cores.far);
            // SAFETY: the child does not outlive a parent that its alarm ended.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            far();
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(0) }
        }
        _ => pin(cores.near),
    }
    // SAFETY: only sets this process's timer. Two spinning ends need two cores of their own; where something else runs
    // there a round trip takes milliseconds, and the benchmark ends here instead of going on for hours.
    unsafe { libc::alarm(SAMPLE_SECONDS_MAX) };
    let start = Instant::now();
    near();
    let span_ns = start.elapsed().as_nanos();
    // SAFETY: takes the timer back.
    unsafe { libc::alarm(0) };
    let mut status = 0;
    // SAFETY: waits for our own child.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
        return Err(io::Error::other("the other process did not end well"));
    }
    #[allow(clippy::cast_precision_loss)] // seconds in nanoseconds
    Ok(span_ns as f64 / ROUNDS as f64 / 2.0)
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
            for n in 0..ROUNDS {
                bare.there_cells[(n % 64) as usize].0.store(n, Ordering::Relaxed);
                bare.there_tail.0.store(n + 1, Ordering::Release);
                wait(&bare.back_tail.0, n);
                assert_eq!(bare.back_cells[(n % 64) as usize].0.load(Ordering::Relaxed), n);
            }
        },
        || {
            for n in 0..ROUNDS {
                wait(&bare.there_tail.0, n);
                let seen = bare.there_cells[(n % 64) as usize].0.load(Ordering::Relaxed);
                bare.back_cells[(n % 64) as usize].0.store(seen, Ordering::Relaxed);
                bare.back_tail.0.store(n + 1, Ordering::Release);
            }
        },
    )
}

fn segment(cores: Cores, pin_slots: bool) -> io::Result<f64> {
    let shape = SegmentShape::new(1024, 1024);
    let memory = SharedMemory::new("jet-bench", SegmentLayout::new(shape).total_bytes(), false)?;
    // SAFETY: zeroed, page-aligned, mapped until both ends are done; each end is used by one process.
    let (mut daemon, mut app) = unsafe {
        let daemon = daemon_end(memory.base(), memory.bytes(), shape).map_err(io::Error::other)?;
        (daemon, app_end(memory.base(), memory.bytes()).map_err(io::Error::other)?)
    };
    between(
        cores,
        || {
            for n in 0..ROUNDS {
                // Slots are reused last in, first out: one at a time is always the same one.
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
                assert_eq!(release.generation, generation);
            }
        },
        || {
            for _ in 0..ROUNDS {
                let delivery = loop {
                    if let Some(delivery) = app.deliveries.pop().expect("a sound ring") {
                        break delivery;
                    }
                    std::hint::spin_loop();
                };
                app.deliveries.advance();
                let generation = delivery.slot_generation();
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
        },
    )
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
