//! Part `kill`: one of four applications is killed at full load.
//!
//! Case A: three applications alone, for a second. Case B: the second that begins when the faulty
//! application, which ran beside them, is killed. Then the load rests. The slabs that the dead application
//! held must be back in the pool when the quarantine is over, and not before: I/O that the application
//! started may still be reading them. The dead application's messages must end.

use super::faulty_application::FaultyApplication;
use super::feed::Depth;
use super::load::{DaemonState, Load, milliseconds};
use super::{PartRows, Plan};
use crate::pattern::Words;
use crate::report::{Bound, Row, pairwise};
use std::error::Error;
use std::time::{Duration, Instant};

const SPAN: Duration = Duration::from_secs(1);
const SPAN_BRIEF: Duration = Duration::from_millis(200);
const DEPTH: Depth = Depth { large: 16, small: 0 };
/// The daemon's quarantine time in this part. The quarantine lasts longer than a span and the time until the
/// load rests, so that the quarantined slabs are seen before it ends.
const QUARANTINE: Duration = Duration::from_secs(3);

/// Limit of turns in which no status of the daemon arrives during the quarantine. After more of these turns
/// the machine counts as too busy, and this part fails.
const MISSED_MAX: u32 = 10;

/// The slabs of a dead application, as the daemon counts them while the load rests. No other application
/// holds slabs then.
struct Quarantine {
    end: Instant,
    slabs_min: Option<u64>,
}

impl Quarantine {
    /// Expects the quarantine of an application that was killed at `killed`. The daemon notices the death
    /// later, and counts from there.
    fn of(killed: Instant) -> Self {
        Self { end: killed + QUARANTINE, slabs_min: None }
    }

    /// Notes how many slabs the daemon keeps in quarantine. An answer after the quarantine's end is left out,
    /// since the quarantine may be over.
    fn note_quarantined(&mut self, state: &DaemonState) {
        if Instant::now() < self.end {
            // Slabs in the pool, and those that had been copied or replaced.
            let slabs = state.quarantined + state.memory_used;
            self.slabs_min = Some(self.slabs_min.map_or(slabs, |least| least.min(slabs)));
        }
    }

    /// Returns the fewest quarantined slabs seen, divided by those that the application held when it was
    /// killed. `None`: no status of the daemon came before the quarantine's end.
    #[allow(clippy::cast_precision_loss)] // some thousands
    fn of_held(&self, held: u64) -> Option<f64> {
        self.slabs_min.map(|slabs| slabs as f64 / held as f64)
    }
}

/// Runs the part `kill` of the benchmark `escape`.
///
/// # Errors
/// An error of the rig, the load or the system.
pub fn run(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let quarantine = format!("session.quarantine_ms={}", QUARANTINE.as_millis());
    let settings = [plan.settings, &[quarantine]].concat();
    let mut load = Load::start(plan.fabric, &settings, 3, 1, DEPTH, Words::FirstOfSlab)?;
    let span = plan.run_size.of(SPAN, SPAN_BRIEF);
    load.run(span / 4, None)?;
    let (mut alone, mut after, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let (mut gone, mut quarantined) = (Vec::new(), Vec::new());
    let mut missed = 0;
    while whole.len() < plan.samples as usize {
        plan.progress(&format!("kill: {} of {}", whole.len() + 1, plan.samples));
        let before = load.run(span, None)?.gigabytes_per_s();
        let mut faulty = FaultyApplication::start(&load.rig, DEPTH)?;
        let killed = faulty.run_and_kill(&mut load)?;
        let mut quarantine = Quarantine::of(killed.at);
        // The dead application's sender sends nothing more. Its messages in flight must end.
        let measured = load.run(span, None)?;
        load.drain()?;
        load.drain_other(&mut faulty.feed)?;
        // The messages have ended, so the daemon knows of the death.
        let seen = load.until_whole(|state| quarantine.note_quarantined(state))?;
        let Some(kept) = quarantine.of_held(killed.held) else {
            // The load came to rest too late to see the quarantine: this turn does not count.
            missed += 1;
            if missed == MISSED_MAX {
                let text = "times the load rested only when the quarantine was over";
                return Err(format!("{missed} {text} ({QUARANTINE:?}); the machine is too busy").into());
            }
            continue;
        };
        alone.push(before);
        after.push(measured.gigabytes_per_s());
        #[allow(clippy::cast_precision_loss)] // dozens
        gone.push(faulty.feed.ends().gone as f64);
        quarantined.push(kept);
        whole.push(milliseconds(seen.saturating_duration_since(quarantine.end)));
    }
    let ratios = pairwise(&after, &alone);
    #[allow(clippy::cast_precision_loss)] // none, it is hoped
    let damaged = load.damaged() as f64;
    let mut part = PartRows { rows, name: "kill".to_owned() };
    part.timed("three alone", "GB/s", alone, Bound::None);
    part.timed("three, in the second after the faulty application's death", "GB/s", after, Bound::None);
    part.timed("after / alone", "ratio", ratios, Bound::None);
    part.exact("the dead one's messages that ended as gone", "messages", gone, Bound::AtLeast(1.0));
    let kept = "slabs in quarantine, the least before its end / held at the kill";
    part.exact(kept, "ratio", quarantined, Bound::AtLeast(1.0));
    part.exact("the others' messages lost or damaged", "messages", vec![damaged], Bound::AtMost(0.0));
    part.timed("quarantine's end to whole, no escape memory", "ms", whole, Bound::AtMost(100.0));
    Ok(())
}
