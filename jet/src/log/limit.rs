//! Limits on how often each kind of log line is written. A stranger who can cause a line must not be able to
//! fill a disk.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::Level;
use tracing::callsite::Identifier;

/// Limit of the lines of one kind that are written within [`SPAN`].
const KIND_BURST: u32 = 32;
/// Most of these lines that are about one application or one peer, so that it does not silence the others.
const SUBJECT_BURST: u32 = 8;
/// Span after which the counts start over.
const SPAN: Duration = Duration::from_secs(10);
/// Most kinds and subjects that are counted at once. Further subjects have the counts of their kind alone.
const COUNTS_MAX: usize = 512;

/// Decision about a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Write the line.
    Say {
        /// Number of lines of this kind that were left out since the last one.
        left_out: u64,
    },
    /// Leave the line out, and count it.
    LeaveOut {
        /// Whether it is the first of its kind since the count was told.
        first: bool,
    },
}

/// A kind of line, which is one place in the source; or the lines of a kind that are about one subject.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub place: Identifier,
    /// Hash of the application or the peer that the line is about.
    pub subject: Option<u64>,
}

/// Lines of one kind within the present span.
struct Count {
    since: Instant,
    said: u32,
    left_out: u64,
    /// Last line of this kind that was written.
    last: Option<(Level, String)>,
}

impl Count {
    fn at(now: Instant) -> Self {
        Self { since: now, said: 0, left_out: 0, last: None }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= SPAN
    }

    fn begin(&mut self, now: Instant) {
        if self.is_over(now) {
            (self.since, self.said) = (now, 0);
        }
    }

    /// Counts a line that is left out.
    fn leave_out(&mut self) -> Decision {
        self.left_out += 1;
        Decision::LeaveOut { first: self.left_out == 1 }
    }
}

/// Lines of one kind that were left out, and that no later line of the kind has told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Untold {
    pub level: Level,
    /// Message of the last line of this kind that was written.
    pub message: String,
    pub left_out: u64,
}

/// The counts of all kinds of lines.
#[derive(Default)]
pub(super) struct Limit {
    // The lock is held for some nanoseconds, and never during writing.
    counts: Mutex<HashMap<Kind, Count>>,
}

impl Limit {
    /// Decides about a line of a kind.
    pub fn ask(&self, kind: &Kind, now: Instant) -> Decision {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = 0;
        if kind.subject.is_some() {
            if counts.len() >= COUNTS_MAX && !counts.contains_key(kind) {
                counts.retain(|_, count| !count.is_over(now) || count.left_out > 0);
            }
            if counts.len() < COUNTS_MAX || counts.contains_key(kind) {
                let count = counts.entry(kind.clone()).or_insert_with(|| Count::at(now));
                count.begin(now);
                if count.said >= SUBJECT_BURST {
                    return count.leave_out();
                }
                count.said += 1;
                left_out += std::mem::take(&mut count.left_out);
            }
        }
        let whole = Kind { place: kind.place.clone(), subject: None };
        let count = counts.entry(whole).or_insert_with(|| Count::at(now));
        count.begin(now);
        if count.said >= KIND_BURST {
            count.left_out += left_out;
            return count.leave_out();
        }
        count.said += 1;
        Decision::Say { left_out: left_out + std::mem::take(&mut count.left_out) }
    }

    /// Notes the text of a line that is written, for the line that may have to tell how many others were not.
    pub fn note(&self, kind: &Kind, level: Level, message: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = Kind { place: kind.place.clone(), subject: None };
        for kind in [kind, &whole] {
            if let Some(count) = counts.get_mut(kind) {
                count.last = Some((level, message.to_owned()));
            }
        }
    }

    /// Returns the kinds of which lines were left out, and of which none came within [`SPAN`] that could have
    /// told. Also returns when to ask again, if other kinds have lines that were left out. `at_end`: returns
    /// all kinds, since no line comes any more.
    pub fn take_untold(&self, now: Instant, at_end: bool) -> (Vec<Untold>, Option<Instant>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut untold, mut again) = (Vec::new(), None::<Instant>);
        for count in counts.values_mut().filter(|count| count.left_out > 0) {
            let due = count.since + SPAN;
            if now < due && !at_end {
                again = Some(again.map_or(due, |again| again.min(due)));
                continue;
            }
            (count.since, count.said) = (now, 1);
            let (level, message) = count.last.clone().unwrap_or((Level::WARN, String::new()));
            untold.push(Untold { level, message, left_out: std::mem::take(&mut count.left_out) });
        }
        (untold, again)
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

    fn kind(subject: Option<u64>) -> Kind {
        Kind { place: Identifier(&HERE), subject }
    }

    #[test]
    fn a_kind_that_comes_too_often_is_counted_and_told_with_the_next() {
        let (limit, start) = (Limit::default(), Instant::now());
        for _ in 0..KIND_BURST {
            assert_eq!(limit.ask(&kind(None), start), Decision::Say { left_out: 0 });
        }
        for n in 0..5 {
            assert_eq!(limit.ask(&kind(None), start + SPAN / 2), Decision::LeaveOut { first: n == 0 });
        }
        assert_eq!(limit.ask(&kind(None), start + SPAN), Decision::Say { left_out: 5 });
        assert_eq!(limit.ask(&kind(None), start + SPAN), Decision::Say { left_out: 0 });
    }

    #[test]
    fn one_application_leaves_lines_to_the_others_and_many_keep_the_limit_of_the_kind() {
        let (limit, now) = (Limit::default(), Instant::now());
        let said = |subject, lines: u32| {
            let say = |_: &u32| matches!(limit.ask(&kind(Some(subject)), now), Decision::Say { .. });
            (0..lines).filter(say).count()
        };
        assert_eq!((said(1, 1000), said(2, 3), said(1, 1)), (SUBJECT_BURST as usize, 3, 0));
        let others: usize = (3..10_000).map(|subject| said(subject, 2)).sum();
        assert_eq!(others, (KIND_BURST - SUBJECT_BURST - 3) as usize);
        assert!(limit.counts.lock().unwrap().len() <= COUNTS_MAX + 1);
    }

    #[test]
    fn what_no_later_line_tells_is_told_when_the_span_is_over_and_at_the_end() {
        let (limit, start) = (Limit::default(), Instant::now());
        let flood = |at| (0..KIND_BURST + 3).for_each(|_| _ = limit.ask(&kind(None), at));
        flood(start);
        limit.note(&kind(None), Level::ERROR, "bad");
        assert_eq!(limit.take_untold(start + SPAN / 2, false), (vec![], Some(start + SPAN)));
        let untold = |left_out| Untold { level: Level::ERROR, message: "bad".to_owned(), left_out };
        assert_eq!(limit.take_untold(start + SPAN, false), (vec![untold(3)], None));
        assert_eq!(limit.take_untold(start + 2 * SPAN, false), (vec![], None));
        flood(start + 3 * SPAN);
        assert_eq!(limit.take_untold(start + 3 * SPAN, true), (vec![untold(3)], None));
    }
}
