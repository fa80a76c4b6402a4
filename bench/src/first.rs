//! Measures a sender's first message: what its memory takes, and what the message takes more than a later
//! one.
//!
//! The limit is as much fresh memory as the kernel maps for anybody, with all its pages there. Sender, daemon
//! and application are three processes; each sample is of a sender of its own. The sender's program writes
//! all bytes of the message, as programs do.

use crate::report::{Bound, Row, RunSize, pairwise};
use crate::rig::{APP, Rig};
use jet_client::send::{AckStatus, SendBuffer, Sender, SenderOptions};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::error::Error;
use std::time::Instant;

/// Bytes of the message.
const BYTES: usize = 1 << 20;
/// Bound for the first buffer, in microseconds.
const BUFFER_US: f64 = 200.0;
/// Messages before one is a later one.
const LATER: u32 = 16;

/// What one sender's messages took, in microseconds.
#[derive(Default)]
struct Taken {
    fresh: Vec<f64>,
    connect: Vec<f64>,
    buffer: Vec<f64>,
    first: Vec<f64>,
    later: Vec<f64>,
}

/// Runs the benchmark `first`.
///
/// # Errors
/// An error of the daemon, the sender or the application.
pub fn run(run_size: RunSize) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for fabric in ["shm", "tcp"] {
        let rig = Rig::start(fabric, true, &[])?;
        let mut taken = Taken::default();
        // A sender that is not measured: the daemon's own first time is not the subject.
        one_sender(&rig, &mut Taken::default())?;
        for _ in 0..run_size.samples {
            one_sender(&rig, &mut taken)?;
        }
        let Taken { fresh, connect, buffer, first, later } = taken;
        let ratios = pairwise(&buffer, &fresh);
        let first_ratios = pairwise(&first, &later);
        let row = |metric: &str, unit, samples, bound| {
            Row::new("first", &format!("{fabric}: {metric}"), unit, samples, bound)
        };
        rows.extend([
            row("limit: 1 MiB of fresh memory, with its pages", "us", fresh, Bound::None),
            row("a sender connects", "us", connect, Bound::None),
            row("its first buffer of 1 MiB", "us", buffer, Bound::AtMost(BUFFER_US)),
            row("its first buffer of 1 MiB / fresh memory", "ratio", ratios, Bound::None),
            row("its first message of 1 MiB, written, sent and read", "us", first, Bound::None),
            row("a later message of 1 MiB, written, sent and read", "us", later, Bound::None),
            row("its first message of 1 MiB / a later one", "ratio", first_ratios, Bound::None),
        ]);
    }
    Ok(rows)
}

fn one_sender(rig: &Rig, taken: &mut Taken) -> Result<(), Box<dyn Error>> {
    taken.fresh.push(fresh_memory_us()?);
    let options = SenderOptions::new(rig.address()?, APP);
    let began = Instant::now();
    let mut sender = Sender::connect(&options)?;
    taken.connect.push(us_since(began));
    let began = Instant::now();
    let buffer = sender.buffer(BYTES)?;
    taken.buffer.push(us_since(began));
    let (took, mut buffer) = message_us(&mut sender, buffer, 1)?;
    taken.first.push(took);
    for number in 2..LATER {
        buffer = message_us(&mut sender, buffer, number)?.1;
    }
    taken.later.push(message_us(&mut sender, buffer, LATER)?.0);
    Ok(())
}

/// Writes, sends and waits for one message. Returns what that took, and the buffer.
fn message_us(
    sender: &mut Sender,
    mut buffer: SendBuffer,
    number: u32,
) -> Result<(f64, SendBuffer), Box<dyn Error>> {
    let began = Instant::now();
    buffer.fill(number.to_le_bytes()[0] | 1);
    sender.send(u64::from(number), buffer)?;
    let end = sender.wait()?.ok_or("a message is under way")?;
    let took = us_since(began);
    match (end.status, end.buffer) {
        (AckStatus::Consumed, Some(buffer)) => Ok((took, buffer)),
        (status, _) => Err(format!("a message ended: {status}").into()),
    }
}

fn fresh_memory_us() -> Result<f64, Box<dyn Error>> {
    let began = Instant::now();
    // SAFETY: a fresh mapping at an address of the kernel's choice, which nobody uses and which is unmapped
    // again.
    unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let memory =
            mmap_anonymous(std::ptr::null_mut(), BYTES, access, MapFlags::PRIVATE | MapFlags::POPULATE)?;
        let took = us_since(began);
        munmap(memory, BYTES)?;
        Ok(took)
    }
}

fn us_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6
}
