//! Limits on how often each kind of log line is written. A stranger who can cause a line must not be able to
//! fill a disk.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;

/// Most lines of one kind within [`SPAN`].
const BURST: u32 = 32;
/// Span after which the count of [`BURST`] starts over.
const SPAN: Duration = Duration::from_secs(10);

/// Decision about a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Write the line.
    Say {
        /// Number of lines of this kind that were left out since the last one.
        left_out: u64,
    },
    /// Leave the line out, and count it.
    LeaveOut,
}

/// Counts for one kind of line, which is one place in the source.
struct Kind {
    since: Instant,
    said: u32,
    left_out: u64,
}

/// The counts of all kinds of lines.
#[derive(Default)]
pub(super) struct Limit {
    // One entry for each place in the source that has logged. The lock is held for some nanoseconds, and
    // never during writing.
    kinds: Mutex<HashMap<Identifier, Kind>>,
}

impl Limit {
    pub fn ask(&self, kind: Identifier, now: Instant) -> Decision {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = kinds.entry(kind).or_insert(Kind { since: now, said: 0, left_out: 0 });
        if now.saturating_duration_since(kind.since) >= SPAN {
            (kind.since, kind.said) = (now, 0);
        }
        if kind.said < BURST {
            kind.said += 1;
            return Decision::Say { left_out: std::mem::take(&mut kind.left_out) };
        }
        kind.left_out += 1;
        Decision::LeaveOut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Metadata;
    use tracing::callsite::Callsite;
    use tracing::subscriber::Interest;

    struct Place;

    impl Callsite for Place {
        fn set_interest(&self, _interest: Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("nobody asks")
        }
    }

    static HERE: Place = Place;

    #[test]
    fn a_kind_that_comes_too_often_is_counted_and_told_with_the_next() {
        let (limit, start) = (Limit::default(), Instant::now());
        let kind = || Identifier(&HERE);
        for _ in 0..BURST {
            assert_eq!(limit.ask(kind(), start), Decision::Say { left_out: 0 });
        }
        for _ in 0..5 {
            assert_eq!(limit.ask(kind(), start + SPAN / 2), Decision::LeaveOut);
        }
        assert_eq!(limit.ask(kind(), start + SPAN), Decision::Say { left_out: 5 });
        assert_eq!(limit.ask(kind(), start + SPAN), Decision::Say { left_out: 0 });
    }
}
