//! Parts `half-sent`, `silent` and `loss`: a good sender beside crowds of connections over `tcp:`.
//!
//! A crowd is a process that sleeps once its connections have done what they do. So it takes no processor
//! time while the good sender is measured, and alone there is no crowd. Only in the part `loss` the kernel
//! closes the crowd's sockets meanwhile, for which it takes processor time: at the good sender that time
//! cannot be told from the daemon's. The rows `the reactor's turns late` are of the daemon's own count, by a
//! clock that runs on while another process has the core. What a reactor itself does is in [`own_reactor`].

use super::crowd::{Crowd, How};
use super::good_sender::Messages;
use super::own_reactor;
use super::stage::{BAD, Stage};
use super::{LIMIT, PartRows, Plan, milliseconds};
use crate::report::{Bound, Row, pairwise};
use std::error::Error;
use std::time::{Duration, Instant};

/// The good sender's small messages.
const SMALL: Messages = Messages { bytes: 4096, depth: 32, class: 0 };
/// A new sender's message.
const FIRST: Messages = Messages { bytes: 4096, depth: 1, class: 0 };
/// Connections of a crowd.
const PEERS: usize = 1000;
const PEERS_BRIEF: usize = 100;
/// Connections that say nothing.
const SILENT: usize = 384;
/// So few that the daemon takes them all at once, whatever it does about more.
const SILENT_BRIEF: usize = 64;
/// Length of a span.
const SPAN: Duration = Duration::from_millis(1000);
const SPAN_BRIEF: Duration = Duration::from_millis(100);
/// Bound: the least share of its rate alone that the good sender keeps.
const KEPT: f64 = 0.9;
/// Bound: how much longer a new sender's first message takes, in ms.
const LATER_MS: f64 = 100.0;
/// Bound: a reactor's longest turn while peers are lost, in ms of processor time.
const STALL_MS: f64 = 5.0;

/// Runs the part `half-sent` of the benchmark `others`.
///
/// # Errors
/// An error of the rig, a sender or a crowd.
pub fn half_sent(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let mut stage = Stage::start(plan)?;
    let fabrics = ["tcp", "shm"];
    let mut senders = [stage.good_sender("tcp", SMALL)?, stage.good_sender("shm", SMALL)?];
    let span = plan.run_size.of(SPAN, SPAN_BRIEF);
    let (mut alone, mut beside) = ([vec![], vec![]], [vec![], vec![]]);
    for sender in &mut senders {
        sender.run(span / 4)?;
        sender.drain()?;
    }
    for _ in plan.turns("half-sent") {
        for (sender, rates) in senders.iter_mut().zip(&mut alone) {
            rates.push(sender.run(span)?.per_s());
            sender.drain()?;
        }
        let crowd = Crowd::start(&stage.rig, BAD, plan.run_size.of(PEERS, PEERS_BRIEF), How::HalfSent)?;
        for (sender, rates) in senders.iter_mut().zip(&mut beside) {
            rates.push(sender.run(span)?.per_s());
            sender.drain()?;
        }
        drop(crowd);
        stage.until_senders(2)?;
    }
    let mut part = PartRows { rows, name: "half-sent" };
    for ((fabric, alone), beside) in fabrics.into_iter().zip(alone).zip(beside) {
        let name = format!("{fabric}: 4 KiB messages");
        let ratios = pairwise(&beside, &alone);
        part.timed(&format!("{name} alone"), "1/s", alone, Bound::None);
        part.timed(&format!("{name} beside 1000 half-sent SENDs"), "1/s", beside, Bound::None);
        part.timed(&format!("{name}, beside / alone"), "ratio", ratios, Bound::AtLeast(KEPT));
    }
    for sender in senders {
        stage.dismiss(sender)?;
    }
    stage.finish(&mut part, 0)
}

/// Runs the part `silent` of the benchmark `others`.
///
/// # Errors
/// An error of the rig, a sender or a crowd.
pub fn silent(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let mut stage = Stage::start(plan)?;
    let (mut alone_ms, mut beside_ms) = (Vec::new(), Vec::new());
    first_message(&mut stage)?;
    for _ in plan.turns("silent") {
        alone_ms.push(first_message(&mut stage)?);
        let crowd = Crowd::start(&stage.rig, BAD, plan.run_size.of(SILENT, SILENT_BRIEF), How::Silent)?;
        beside_ms.push(first_message(&mut stage)?);
        drop(crowd);
        // The daemon may know some of them only now.
        stage.until_forgotten()?;
    }
    let mut part = PartRows { rows, name: "silent" };
    let later_ms = beside_ms.iter().zip(&alone_ms).map(|(beside, alone)| beside - alone).collect();
    part.timed("tcp: a new sender's first message alone", "ms", alone_ms, Bound::None);
    part.timed(
        "tcp: a new sender's first message beside 384 silent connections",
        "ms",
        beside_ms,
        Bound::None,
    );
    let bound = Bound::AtMost(LATER_MS);
    part.timed("tcp: a new sender's first message, beside less alone", "ms", later_ms, bound);
    stage.finish(&mut part, 0)
}

/// Returns the time in which a new sender connects and its first message ends, in ms. An attempt to connect
/// that failed, as one does after 5 s without an answer, is made again.
fn first_message(stage: &mut Stage) -> Result<f64, Box<dyn Error>> {
    let before = Instant::now();
    let mut sender = loop {
        match stage.good_sender("tcp", FIRST) {
            Ok(sender) => break sender,
            Err(error) if before.elapsed() > LIMIT => return Err(error),
            Err(_) => {}
        }
    };
    sender.one(LIMIT)?;
    let span = before.elapsed();
    stage.dismiss(sender)?;
    Ok(milliseconds(span))
}

/// Runs the part `loss` of the benchmark `others`.
///
/// # Errors
/// An error of the rig, a sender or a crowd.
pub fn loss(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let mut stage = Stage::start(plan)?;
    let mut good = stage.good_sender("shm", SMALL)?;
    let span = plan.run_size.of(SPAN, SPAN_BRIEF);
    let (mut gap_before_ms, mut gap_ms) = (Vec::new(), Vec::new());
    let (mut late_before_ms, mut late_ms) = (Vec::new(), Vec::new());
    good.run(span / 4)?;
    for _ in plan.turns("loss") {
        let crowd = Crowd::start(&stage.rig, BAD, plan.run_size.of(PEERS, PEERS_BRIEF), How::Requested)?;
        let late = stage.rig.status()?.escape.stalled_ms;
        gap_before_ms.push(milliseconds(good.run(span)?.longest_gap));
        let late_then = stage.rig.status()?.escape.stalled_ms;
        crowd.kill()?;
        let mut longest = Duration::ZERO;
        // The kernel closes the sockets within the first span, unless the machine is very busy.
        let status = loop {
            longest = longest.max(good.run(span)?.longest_gap);
            let status = stage.rig.status()?;
            if status.peer_count == 1 {
                break status;
            }
        };
        #[allow(clippy::cast_precision_loss)] // milliseconds
        {
            late_before_ms.push((late_then - late) as f64);
            late_ms.push((status.escape.stalled_ms - late_then) as f64);
        }
        gap_ms.push(milliseconds(longest));
        drop(crowd);
    }
    let mut part = PartRows { rows, name: "loss" };
    part.timed(
        "shm: longest stall of 4 KiB messages while 1000 peers stay",
        "ms",
        gap_before_ms,
        Bound::None,
    );
    part.timed("shm: longest stall of 4 KiB messages while 1000 peers are lost", "ms", gap_ms, Bound::None);
    part.timed("the reactor's turns late while 1000 peers stay, in all", "ms", late_before_ms, Bound::None);
    part.timed("the reactor's turns late while 1000 peers are lost, in all", "ms", late_ms, Bound::None);
    stage.dismiss(good)?;
    stage.finish(&mut part, 0)?;
    own_reactor::rows(plan, plan.run_size.of(PEERS, PEERS_BRIEF), Bound::AtMost(STALL_MS), &mut part)
}
