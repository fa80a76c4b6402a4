//! One of four applications is killed at full load.
//!
//! A: three alone, for a second; B: the second that begins when the fourth, which ran beside them, is killed. Then the
//! load rests, and what the dead one held has to be back when its quarantine is over. Its messages have to end.

use super::feed::Depth;
use super::fourth::Fourth;
use super::load::{Load, milliseconds};
use super::{PartRows, Plan};
use crate::pattern::Words;
use crate::report::{Bound, Row, pairwise};
use std::error::Error;
use std::time::Duration;

const SPAN: Duration = Duration::from_secs(1);
const DEPTH: Depth = Depth { large: 16, small: 0 };
const QUARANTINE: Duration = Duration::from_secs(1);

/// Runs it.
///
/// # Errors
/// What the rig, the load or the system says.
pub fn run(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let quarantine = format!("session.quarantine_ms={}", QUARANTINE.as_millis());
    let settings = [plan.settings, &[quarantine]].concat();
    let mut load = Load::start(plan.fabric, &settings, 3, 1, DEPTH, Words::FirstOfSlab)?;
    load.run(SPAN / 4, None)?;
    let (mut alone, mut after, mut ended, mut whole) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for turn in 1..=plan.samples {
        plan.progress(&format!("kill: {turn} of {}", plan.samples));
        alone.push(load.run(SPAN, None)?.gigabytes_per_s());
        let mut fourth = Fourth::start(&load.rig, DEPTH)?;
        let killed = fourth.run_and_kill(&mut load)?;
        // Its sender sends nothing more: what it has in flight has to end.
        let measured = load.run(SPAN, None)?;
        after.push(measured.gigabytes_per_s());
        load.drain()?;
        load.drain_other(&mut fourth.feed)?;
        #[allow(clippy::cast_precision_loss)] // dozens
        ended.push(fourth.feed.ends().gone as f64);
        let seen = load.until_whole()?;
        whole.push(milliseconds(seen.saturating_duration_since(killed + QUARANTINE)));
    }
    let ratios = pairwise(&after, &alone);
    #[allow(clippy::cast_precision_loss)] // none, it is hoped
    let damaged = load.damaged() as f64;
    let mut part = PartRows { rows, name: "kill".to_owned() };
    part.timed("three alone", "GB/s", alone, Bound::None);
    part.timed("three, in the second after the fourth's death", "GB/s", after, Bound::None);
    part.timed("after / alone", "ratio", ratios, Bound::None);
    part.timed("the dead one's messages that ended as gone", "messages", ended, Bound::None);
    part.exact("the others' messages lost or damaged", "messages", vec![damaged], Bound::AtMost(0.0));
    part.timed("quarantine's end to whole, no escape memory", "ms", whole, Bound::AtMost(100.0));
    Ok(())
}
