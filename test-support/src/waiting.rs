//! Waiting for a condition.

use std::time::{Duration, Instant};

/// How long anything may take before the test fails. The demo over a lossy wire takes a minute in an emulated
/// guest on a busy host.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Between two looks at a condition.
pub const LOOK: Duration = Duration::from_millis(2);

/// Looks until there is something, at most [`PATIENCE`] long.
///
/// # Panics
/// If there is nothing by then.
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
