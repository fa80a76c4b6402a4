//! Waiting for a condition, with a limit.

use std::time::{Duration, Instant};

/// Longest time that a wait may take before the test fails. The demo over a lossy wire takes a minute in an
/// emulated guest on a busy host.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Pause between two looks at a condition.
pub const LOOK: Duration = Duration::from_millis(2);

/// Calls `look` again and again until it returns a value, for at most [`PATIENCE`].
///
/// # Panics
/// If `look` returned no value in that time. `what` names the condition in the message.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(LOOK);
    }
}
