//! The deadline of the daemon's drain. A drain that is under way is never restarted; a request that names
//! another deadline changes only the deadline.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The deadline of the daemon's drain, shared by all tasks that ask for a drain.
pub struct Drain {
    /// Time that a drain may take if the request names no deadline.
    default: Duration,
    deadline: Mutex<Option<Instant>>,
    changed: Notify,
}

/// Result of asking for a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Time that the drain may still take.
    pub left: Duration,
    /// Whether a drain was under way already.
    pub again: bool,
}

impl Drain {
    /// Creates the deadline's state before any request for a drain. `default` is the time for requests
    /// without a deadline.
    pub fn new(default: Duration) -> Self {
        Self { default, deadline: Mutex::new(None), changed: Notify::new() }
    }

    /// Asks for a drain that takes at most `most`, or at most the default time. If `most` is `None`, a drain
    /// that is under way keeps its deadline.
    pub fn ask(&self, most: Option<Duration>) -> Asked {
        let now = Instant::now();
        let mut deadline = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        let again = deadline.is_some();
        let at = match (*deadline, most) {
            (Some(at), None) => at,
            (_, most) => {
                // Practically never; a longer span could overflow the clock.
                const CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);
                let at = now + most.unwrap_or(self.default).min(CENTURY);
                *deadline = Some(at);
                self.changed.notify_one();
                at
            }
        };
        Asked { left: at.saturating_duration_since(now), again }
    }

    /// Waits for the next request that sets or changes the drain's deadline. Returns the time that the drain
    /// may still take. Only one task may wait at a time.
    pub async fn asked(&self) -> Duration {
        loop {
            self.changed.notified().await;
            if let Some(at) = *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) {
                return at.saturating_duration_since(Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn whoever_asks_again_without_a_deadline_leaves_the_drain_as_it_is() {
        let drain = Drain::new(MINUTE);
        let first = drain.ask(Some(10 * MINUTE));
        assert_eq!(first, Asked { left: 10 * MINUTE, again: false });
        let second = drain.ask(None);
        assert!(second.again && second.left > 9 * MINUTE, "{second:?}");
        assert_eq!(drain.ask(Some(Duration::ZERO)), Asked { left: Duration::ZERO, again: true });
        assert_eq!(drain.ask(Some(Duration::MAX)).left, Duration::from_secs(100 * 366 * 86_400));
    }

    #[test]
    fn the_daemon_hears_of_every_deadline_and_of_nothing_else() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let drain = Drain::new(MINUTE);
            drain.ask(None);
            assert!(drain.asked().await <= MINUTE);
            drain.ask(None);
            let silence = tokio::time::timeout(Duration::from_millis(20), drain.asked()).await;
            assert!(silence.is_err(), "{silence:?}");
            drain.ask(Some(2 * MINUTE));
            assert!(drain.asked().await > MINUTE);
        });
    }
}
