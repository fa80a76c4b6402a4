//! Waiting for a condition, with a limit.

use std::time::{Duration, Instant};

/// Longest time that a wait may take before the test fails. The demo over a lossy wire takes a minute in an
/// emulated guest on a busy host.
pub const WAIT_LIMIT: Duration = Duration::from_secs(180);

/// Pause between two checks of a condition.
pub const PAUSE: Duration = Duration::from_millis(2);

/// Calls `poll` again and again until it returns a value, for at most [`WAIT_LIMIT`].
///
/// # Panics
/// If `poll` returned no value in that time. `what` names the condition in the message.
#[track_caller]
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {WAIT_LIMIT:?} for {what}");
        std::thread::sleep(PAUSE);
    }
}
