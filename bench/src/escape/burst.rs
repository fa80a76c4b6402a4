//! Part `burst`: senders submit ten times the pool's bytes at once, to an application that takes a message a
//! millisecond.
//!
//! Eight senders submit 60 messages of 256 KiB each in one go: 120 MiB. Every word that arrives is checked.
//! Each sample has a daemon of its own, because some figures are the largest values since the daemon's start.

use super::feed::Depth;
use super::load::{DaemonState, HEALTHY, Load, mebibytes, milliseconds};
use super::{PartRows, Plan};
use crate::consumer::{Behaviour, Reading};
use crate::pattern::Words;
use crate::report::{Bound, Row};
use std::error::Error;
use std::time::{Duration, Instant};

const SENDERS: usize = 8;
const DEPTH: Depth = Depth { large: 60, small: 0 };
const PACE: Duration = Duration::from_millis(1);

/// Runs the part `burst` of the benchmark `escape`.
///
/// # Errors
/// An error of the rig or the load.
pub fn run(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let (mut spans, mut whole, mut high_water, mut memory) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut copied, mut replaced, mut came, mut lost) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for turn in 1..=plan.samples {
        plan.progress(&format!("burst: {turn} of {}", plan.samples));
        let mut load = Load::start(plan.fabric, plan.settings, 1, SENDERS, DEPTH, Words::Every)?;
        let slow = Behaviour { reading: Reading::Every, pace: PACE, ..HEALTHY };
        load.consumers.iter_mut().for_each(|consumer| consumer.behave(slow));
        let start = Instant::now();
        for feed in &mut load.feeds {
            feed.submit()?;
        }
        load.drain()?;
        let read = Instant::now();
        let seen = load.until_whole(|_| {})?;
        let state = DaemonState::of(&load.rig)?;
        spans.push(milliseconds(read - start));
        whole.push(milliseconds(seen - read));
        high_water.push(mebibytes(state.high_water));
        memory.push(mebibytes(state.memory_used_max));
        #[allow(clippy::cast_precision_loss)] // some thousands
        {
            copied.push(state.copied_bytes as f64 / 1_048_576.0);
            replaced.push(state.replaced as f64);
            came.push(load.taken() as f64);
            let missing = ((SENDERS * DEPTH.large) as u64).abs_diff(load.taken());
            lost.push((missing + load.damaged()) as f64);
        }
    }
    let mut part = PartRows { rows, name: "burst, 120 MiB".to_owned() };
    part.timed("until all was consumed", "ms", spans, Bound::None);
    #[allow(clippy::cast_precision_loss)] // some hundreds
    let all = Bound::Exactly((SENDERS * DEPTH.large) as f64);
    part.exact("messages that came", "messages", came, all);
    part.exact("messages lost or damaged", "messages", lost, Bound::AtMost(0.0));
    part.timed("pool high-water mark, as the daemon counts", "MiB", high_water, Bound::None);
    part.timed("escape memory, at most", "MiB", memory, Bound::None);
    part.timed("copied", "MiB", copied, Bound::None);
    part.timed("replaced", "slabs", replaced, Bound::None);
    part.timed("last end to whole, no escape memory", "ms", whole, Bound::AtMost(100.0));
    Ok(())
}
