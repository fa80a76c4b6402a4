//! When the daemon is to end, as far as anybody has asked: a drain that is under way is never begun anew, and
//! only who names another deadline moves it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Where a drain stands for whoever asks for one.
pub struct Drain {
    /// How long a drain may take where nobody says.
    default: Duration,
    deadline: Mutex<Option<Instant>>,
    changed: Notify,
}

/// What asking for a drain brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// So long the drain may take from now on.
    pub left: Duration,
    /// It was under way already.
    pub again: bool,
}

impl Drain {
    /// Nobody has asked. A drain may take so long where nobody says.
    pub fn new(default: Duration) -> Self {
        Self { default, deadline: Mutex::new(None), changed: Notify::new() }
    }

    /// Asks for a drain of at most so long. Without a deadline one that is under way keeps its own.
    pub fn ask(&self, most: Option<Duration>) -> Asked {
        let now = Instant::now();
        let mut deadline = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        let again = deadline.is_some();
        let at = match (*deadline, most) {
            (Some(at), None) => at,
            (_, most) => {
                // As good as never.
                const CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);
                let at = now + most.unwrap_or(self.default).min(CENTURY);
                *deadline = Some(at);
                self.changed.notify_one();
                at
            }
        };
        Asked { left: at.saturating_duration_since(now), again }
    }

    /// Waits until somebody asked for a drain, or for another deadline: so long it may take from now on. One
    /// waits at a time.
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
