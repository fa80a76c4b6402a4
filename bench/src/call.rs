//! Measures what a reply costs: a call of 64 B that is replied to with 64 B, beside a message of 64 B alone,
//! one after the other and sixteen at a time.
//!
//! The application is a thread of this process, which takes each message, and ends it at once. The two cases
//! take turns over one connection to a daemon of its own. Where there are two cores, sender, daemon and
//! application share them: the numbers say how the cases compare, and little of what a machine with a core
//! for each can do.

use crate::report::{Bound, Row, RunSize, pairwise};
use crate::rig::{APP, Rig};
use jet_client::receive::{Message, ReceiveError, RegisterOptions, Session, SliceError};
use jet_client::send::{AckStatus, Envelope, Sender, SenderOptions};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a message, and of its reply.
const BYTES: usize = 64;
/// Bound: how many times as long as a message a call with its reply may take.
const CALL_RATIO: f64 = 2.0;
/// Messages of a turn.
const MESSAGES: u64 = 20_000;

/// Runs the benchmark `call`.
///
/// # Errors
/// An error of the daemon, the sender or the application.
pub fn run(run_size: RunSize) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for fabric in ["shm", "tcp"] {
        let rig = Rig::start_daemon(fabric, &[])?;
        let session = Session::register(&RegisterOptions::new(APP).control_socket(rig.control_socket()))?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            let serves = scope.spawn(move || serve(&session, stop).map_err(|error| error.to_string()));
            let measured = measure(&rig, fabric, run_size);
            stop.store(true, Ordering::Relaxed);
            serves.join().map_err(|_| "the application panicked")??;
            rows.extend(measured?);
            Ok::<_, Box<dyn Error>>(())
        })?;
    }
    Ok(rows)
}

fn measure(rig: &Rig, fabric: &str, run_size: RunSize) -> Result<Vec<Row>, Box<dyn Error>> {
    let options = SenderOptions::new(rig.address()?, APP).in_flight_max(64).replies(true);
    let mut sender = Sender::connect(&options)?;
    let messages = run_size.of(MESSAGES, 500);
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    for (depth, words) in [(1, "one at a time"), (16, "16 at a time")] {
        let (mut alone, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..run_size.samples {
            alone.push(turn(&mut sender, false, messages, depth)?.0);
            let (call_us, found) = turn(&mut sender, true, messages, depth)?;
            calls.push(call_us);
            wrong.push(found);
        }
        let row = |metric: String, unit, values, bound| Row::new("call", &metric, unit, values, bound);
        let ratio = pairwise(&calls, &alone);
        rows.extend([
            row(format!("a message of 64 B, {words}, {fabric}"), "us", alone, Bound::None),
            row(format!("a call and its reply of 64 B, {words}, {fabric}"), "us", calls, Bound::None),
            row(format!("call / message, {words}, {fabric}"), "ratio", ratio, Bound::AtMost(CALL_RATIO)),
        ]);
    }
    let metric = format!("replies that are not those of their messages, {fabric}");
    rows.push(Row::exact("call", &metric, "count", wrong, Bound::AtMost(0.0)));
    Ok(rows)
}

/// Sends messages, so many at a time. Returns how many microseconds each took, and how many had not their
/// reply.
fn turn(
    sender: &mut Sender,
    wants_reply: bool,
    messages: u64,
    depth: u64,
) -> Result<(f64, f64), Box<dyn Error>> {
    let (mut sent, mut ended, mut wrong) = (0, 0, 0u32);
    let began = Instant::now();
    while ended < messages {
        while sent < messages && sent - ended < depth {
            let tag = sent;
            sender.send_small(Envelope::new(tag).wants_reply(wants_reply), &[tag.to_le_bytes()[0]; BYTES])?;
            sent += 1;
        }
        let end = sender.wait()?.ok_or("a message is under way")?;
        if end.status != AckStatus::Consumed {
            return Err(format!("a message ended: {}", end.status).into());
        }
        let expected = wants_reply.then_some([end.tag.to_le_bytes()[0]; BYTES]);
        wrong += u32::from(end.reply.as_deref() != expected.as_ref().map(|bytes| &bytes[..]));
        ended += 1;
    }
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let each_us = began.elapsed().as_secs_f64() * 1e6 / messages as f64;
    Ok((each_us, f64::from(wrong)))
}

/// Serves messages as the application: each is taken, and ended with its own bytes where it wants a reply.
fn serve(session: &Session, stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    while !stop.load(Ordering::Relaxed) {
        match session.receive_timeout(Duration::from_millis(10)) {
            Ok(message) => answer(message)?,
            Err(ReceiveError::NotYet) => {}
            Err(error) => return Err(error.into()),
        }
        session.flush();
    }
    Ok(())
}

fn answer(mut message: Message<'_>) -> Result<(), SliceError> {
    let mut bytes = [0; BYTES];
    while let Some(slice) = message.next()? {
        bytes.copy_from_slice(&slice);
    }
    if message.wants_reply() {
        // It is as long as a reply may be.
        message.reply(&bytes).unwrap_or_else(|not_replied| not_replied.message.consume());
    } else {
        message.consume();
    }
    Ok(())
}
