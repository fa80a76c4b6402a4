//! Limits on how often each kind of log line is written. A stranger who can cause a line must not be able to
//! fill a disk.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use tracing::Level;
use tracing::callsite::Identifier;

/// Limit of the lines of one kind that are written within [`SPAN`].
const KIND_BURST: u32 = 32;
/// Most of these lines that are about one application, peer or process, so that one does not use up the lines
/// of the others.
const SUBJECT_BURST: u32 = 8;
/// Span after which the counts start over.
const SPAN: Duration = Duration::from_secs(10);
/// Most kinds that are counted at once. Further keys of a place in the source share one count.
const KINDS_MAX: usize = 256;
/// Most subjects that are counted at once: those of which lines were written in the present span, so at most
/// [`KIND_BURST`] of each kind. Further subjects have the counts of their kind alone.
const SUBJECTS_MAX: usize = 512;
/// Places of the table that may hold a subject's count. The cost of finding it is therefore bounded.
const PROBES: usize = 8;
/// Value of [`Limit::due_ns`] if no lines were left out that are not reported.
const NONE_DUE: u64 = u64::MAX;
/// Tries to get the counts before a thread does without them.
const TRIES: u32 = 32;

/// Decision about a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Write the line.
    Write {
        /// Number of lines of this kind that were left out since the last one.
        left_out: u64,
    },
    /// Leave the line out. It is counted.
    LeaveOut {
        /// Whether it is the first of its kind since the count was reported.
        first: bool,
    },
    /// Leave the line out, and count it as lost: other threads used the counts each time that lines came.
    Lose,
}

/// Origin of a kind of line.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A place in the source, and the hash of the event's field `kind` if it has one.
    Source(Identifier, Option<u64>),
    /// Panics of all threads.
    Panic,
}

/// A kind of line, which is one place in the source; or the lines of a kind that are about one subject.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub place: Place,
    /// Hash of the application, the peer or the process that the line is about.
    pub subject: Option<u64>,
}

/// Lines of one kind within the present span.
struct Count {
    since: Instant,
    written: u32,
    left_out: u64,
    /// Last line of this kind that was written.
    last: Option<(Level, Arc<str>)>,
}

impl Count {
    fn at(now: Instant) -> Self {
        Self { since: now, written: 0, left_out: 0, last: None }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= SPAN
    }

    /// Time at which the lines that were left out have to be reported.
    fn due(&self) -> Instant {
        self.since + SPAN
    }

    fn begin(&mut self, now: Instant) {
        if self.is_over(now) {
            (self.since, self.written) = (now, 0);
        }
    }

    /// Counts lines that are left out.
    fn leave_out(&mut self, lines: u64) -> Decision {
        let first = self.left_out == 0;
        self.left_out += lines;
        Decision::LeaveOut { first }
    }
}

/// Lines of one kind that were left out, and that no later line of the kind has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unreported {
    pub level: Level,
    /// Message of the last line of this kind that was written.
    pub message: Arc<str>,
    pub left_out: u64,
}

/// The counts, in memory that is allocated once.
struct Counts {
    kinds: HashMap<Place, Count>,
    subjects: Box<[Option<(Kind, Count)>]>,
    /// Time since which [`Limit::uncounted`] counts.
    uncounted_since: Instant,
}

impl Counts {
    /// Returns the place of a subject's count, which may have to be made: a free place, or one whose count is
    /// over and reported. `None` if there is no such place.
    fn place_of(&self, kind: &Kind, hash: u64, now: Instant) -> Option<usize> {
        let mut free = None;
        let first = usize::try_from(hash % SUBJECTS_MAX as u64).unwrap_or_default();
        for probe in 0..PROBES {
            let at = (first + probe) % SUBJECTS_MAX;
            match &self.subjects[at] {
                Some((found, _)) if found == kind => return Some(at),
                Some((_, count)) if !count.is_over(now) || count.left_out > 0 => {}
                _ => free = free.or(Some(at)),
            }
        }
        free
    }

    /// Returns the count of a kind, all subjects together.
    fn whole(&mut self, place: &Place, now: Instant) -> &mut Count {
        let place = match place {
            // Places in the source are few; keys may be many.
            Place::Source(identifier, Some(_))
                if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(place) =>
            {
                Place::Source(identifier.clone(), None)
            }
            place => place.clone(),
        };
        self.kinds.entry(place).or_insert_with(|| Count::at(now))
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Count> {
        self.kinds.values_mut().chain(self.subjects.iter_mut().flatten().map(|(_, count)| count))
    }
}

/// The counts of all kinds of lines.
pub(super) struct Limit {
    // Measured on a virtual machine of two processors, with a full table: a decision takes 50 to 130 ns and a
    // note 60 to 120 ns, most of it under the lock. The log's own thread holds the lock for 2 to 35 µs where
    // it goes through all counts, which it does only when the span of lines that were left out is over. A
    // thread that logs never waits for any of them, nor for a thread that was preempted: it tries, and then
    // does without the counts.
    counts: Mutex<Counts>,
    /// Number of lines that were written without being counted, since other threads used the counts.
    uncounted: AtomicU32,
    /// Time before which no lines that were left out have to be reported; [`NONE_DUE`] if there are none. The
    /// log's thread asks in the middle of a flood, as soon as a line is left out. This tells it that it need
    /// not take the counts from the threads that log.
    due_ns: AtomicU64,
    /// Time from which [`Self::due_ns`] counts.
    start: Instant,
    hasher: RandomState,
}

impl Limit {
    /// Makes the counts, which allocate no memory later.
    pub fn new() -> Self {
        let counts = Counts {
            kinds: HashMap::with_capacity(KINDS_MAX),
            subjects: std::iter::repeat_with(|| None).take(SUBJECTS_MAX).collect(),
            uncounted_since: Instant::now(),
        };
        Self {
            counts: Mutex::new(counts),
            uncounted: AtomicU32::new(0),
            due_ns: AtomicU64::new(NONE_DUE),
            start: Instant::now(),
            hasher: RandomState::new(),
        }
    }

    /// Returns the counts, unless other threads use them all the time.
    fn try_counts(&self) -> Option<MutexGuard<'_, Counts>> {
        for _ in 0..TRIES {
            match self.counts.try_lock() {
                Ok(counts) => return Some(counts),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    /// Notes when lines that were left out have to be reported at the latest.
    fn note_due(&self, due: Instant) {
        let due_ns = u64::try_from(due.saturating_duration_since(self.start).as_nanos());
        self.due_ns.fetch_min(due_ns.unwrap_or(NONE_DUE - 1), Ordering::Relaxed);
    }

    /// Decides about a line of a kind. Neither waits nor allocates.
    pub fn decide(&self, kind: &Kind, now: Instant) -> Decision {
        let hash = kind.subject.map(|_| self.hasher.hash_one(kind));
        // Dropped after the lock.
        let _replaced;
        let Some(mut counts) = self.try_counts() else { return self.decide_without_counts() };
        let counts = &mut *counts;
        if self.uncounted.load(Ordering::Relaxed) > 0
            && now.saturating_duration_since(counts.uncounted_since) >= SPAN
        {
            self.uncounted.store(0, Ordering::Relaxed);
            counts.uncounted_since = now;
        }
        let at = hash.and_then(|hash| counts.place_of(kind, hash, now));
        let mut left_out = 0;
        if let Some((found, count)) = at.and_then(|at| counts.subjects[at].as_mut())
            && found == kind
        {
            count.begin(now);
            if count.written >= SUBJECT_BURST {
                self.note_due(count.due());
                return count.leave_out(1);
            }
            left_out = std::mem::take(&mut count.left_out);
        }
        let whole = counts.whole(&kind.place, now);
        whole.begin(now);
        if whole.written >= KIND_BURST {
            // Counted with the kind, not the subject: subjects may be many, and each count becomes a line.
            self.note_due(whole.due());
            return whole.leave_out(left_out + 1);
        }
        whole.written += 1;
        left_out += std::mem::take(&mut whole.left_out);
        if let Some(slot) = at.map(|at| &mut counts.subjects[at]) {
            if slot.as_ref().is_none_or(|(found, _)| found != kind) {
                _replaced = slot.replace((kind.clone(), Count::at(now)));
            }
            if let Some((_, count)) = slot {
                count.written += 1;
            }
        }
        Decision::Write { left_out }
    }

    /// Decides about a line while other threads use the counts: a few such lines are written.
    fn decide_without_counts(&self) -> Decision {
        match self.uncounted.fetch_add(1, Ordering::Relaxed) {
            ..KIND_BURST => Decision::Write { left_out: 0 },
            KIND_BURST.. => {
                // Stays far from an overflow.
                self.uncounted.fetch_sub(1, Ordering::Relaxed);
                Decision::Lose
            }
        }
    }

    /// Notes the text of a line that is written, for the line that may have to report how many others were
    /// not. Does not wait: without the counts, an earlier text stays.
    pub fn note(&self, kind: &Kind, level: Level, message: &str) {
        // Allocated before the lock; what it replaces is freed after it.
        let text: Arc<str> = message.into();
        let mut replaced = [None, None];
        let hash = kind.subject.map(|_| self.hasher.hash_one(kind));
        let Some(mut counts) = self.try_counts() else { return };
        if let Some(hash) = hash
            && let Some(at) = counts.place_of(kind, hash, Instant::now())
            && let Some((found, count)) = &mut counts.subjects[at]
            && found == kind
        {
            replaced[0] = count.last.replace((level, Arc::clone(&text)));
        }
        if let Some(count) = counts.kinds.get_mut(&kind.place) {
            replaced[1] = count.last.replace((level, Arc::clone(&text)));
        }
        drop(counts);
    }

    /// Returns the kinds of which lines were left out, and of which none came within [`SPAN`] that could have
    /// reported them. Also returns when to ask again, if other kinds have lines that were left out. `at_end`:
    /// returns all kinds, since no line comes any more. Takes the counts only if some may be due.
    pub fn take_unreported(&self, now: Instant, at_end: bool) -> (Vec<Unreported>, Option<Instant>) {
        let due_ns = self.due_ns.load(Ordering::Relaxed);
        if due_ns == NONE_DUE {
            return (Vec::new(), None);
        }
        let due = self.start + Duration::from_nanos(due_ns);
        if now < due && !at_end {
            return (Vec::new(), Some(due));
        }
        // Before the counts are taken: what is left out later is noted later.
        self.due_ns.store(NONE_DUE, Ordering::Relaxed);
        // Allocated before the lock, for every count that there can be.
        let mut unreported = Vec::with_capacity(2 * KINDS_MAX + SUBJECTS_MAX);
        let mut again = None::<Instant>;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for count in counts.all().filter(|count| count.left_out > 0) {
            let due = count.due();
            if (now < due && !at_end) || unreported.len() == unreported.capacity() {
                again = Some(again.map_or(due, |again| again.min(due)));
                continue;
            }
            (count.since, count.written) = (now, 1);
            let (level, message) = match &count.last {
                Some((level, message)) => (*level, Some(Arc::clone(message))),
                None => (Level::WARN, None),
            };
            unreported.push((level, message, std::mem::take(&mut count.left_out)));
        }
        drop(counts);
        if let Some(again) = again {
            self.note_due(again);
        }
        let whole = |(level, message, left_out)| Unreported {
            level,
            message: Option::unwrap_or_else(message, || "".into()),
            left_out,
        };
        (unreported.into_iter().map(whole).collect(), again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Metadata;
    use tracing::callsite::Callsite;
    use tracing::subscriber::Interest;

    struct Here;

    impl Callsite for Here {
        fn set_interest(&self, _interest: Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("nobody asks")
        }
    }

    // Holds the address of the methods as well, which an identifier's hash is made of.
    static HERE: &dyn Callsite = &Here;

    fn kind(subject: Option<u64>) -> Kind {
        Kind { place: Place::Source(Identifier(HERE), None), subject }
    }

    fn written(limit: &Limit, kind: &Kind, now: Instant, lines: u32) -> usize {
        let is_written = |_: &u32| matches!(limit.decide(kind, now), Decision::Write { .. });
        (0..lines).filter(is_written).count()
    }

    #[test]
    fn a_kind_that_comes_too_often_is_counted_and_told_with_the_next() {
        let (limit, start) = (Limit::new(), Instant::now());
        for _ in 0..KIND_BURST {
            assert_eq!(limit.decide(&kind(None), start), Decision::Write { left_out: 0 });
        }
        for n in 0..5 {
            assert_eq!(limit.decide(&kind(None), start + SPAN / 2), Decision::LeaveOut { first: n == 0 });
        }
        assert_eq!(limit.decide(&kind(None), start + SPAN), Decision::Write { left_out: 5 });
        assert_eq!(limit.decide(&kind(None), start + SPAN), Decision::Write { left_out: 0 });
    }

    #[test]
    fn one_application_leaves_lines_to_the_others_and_many_keep_the_limit_of_the_kind() {
        let (limit, now) = (Limit::new(), Instant::now());
        let written = |subject, lines| written(&limit, &kind(Some(subject)), now, lines);
        assert_eq!((written(1, 1000), written(2, 3), written(1, 1)), (SUBJECT_BURST as usize, 3, 0));
        let others: usize = (3..10_000).map(|subject| written(subject, 2)).sum();
        assert_eq!(others, (KIND_BURST - SUBJECT_BURST - 3) as usize);
    }

    #[test]
    fn subjects_of_an_earlier_span_make_room_for_others() {
        let (limit, start) = (Limit::new(), Instant::now());
        let held = |limit: &Limit| limit.counts.lock().unwrap().subjects.iter().flatten().count();
        let mut last = start;
        for span in 0..4u32 {
            last = start + 2 * span * SPAN;
            // A kind writes lines about so many subjects in a span, so these are lines of many kinds.
            for subject in 0..100_000 {
                let place = Place::Source(Identifier(HERE), Some(subject % 200));
                limit.decide(&Kind { place, subject: Some(u64::from(span) << 32 | subject) }, last);
            }
            assert!(held(&limit) > SUBJECTS_MAX / 2);
            // What was left out is reported, so that its counts make room.
            limit.take_unreported(last, true);
        }
        let fresh = kind(Some(u64::MAX));
        assert_eq!(written(&limit, &fresh, last + 2 * SPAN, 1000), SUBJECT_BURST as usize);
    }

    #[test]
    fn who_writes_no_line_takes_no_place_of_a_subject() {
        let (limit, now) = (Limit::new(), Instant::now());
        for subject in 0..100_000 {
            limit.decide(&kind(Some(subject)), now);
        }
        assert_eq!(limit.counts.lock().unwrap().subjects.iter().flatten().count(), KIND_BURST as usize);
        let other = |subject| Kind { place: Place::Panic, subject: Some(subject) };
        let each = [1, 2, 3].map(|subject| written(&limit, &other(subject), now, 1000));
        assert_eq!(each, [SUBJECT_BURST as usize; 3], "those of another kind are counted");
    }

    #[test]
    fn more_subjects_than_are_counted_fill_no_log_and_every_line_is_written_or_told() {
        const SUBJECTS: u64 = 4 * SUBJECTS_MAX as u64;
        const LINES: u32 = 2 * SUBJECT_BURST;
        let (limit, start) = (Limit::new(), Instant::now());
        let (mut written, mut told, mut sent) = (0, 0, 0);
        for span in 0..6u32 {
            let (before, mut lines) = (written, 0);
            // Lines come all the time, so subjects and their kind begin their spans at different times. Some
            // of the many are those of the span before. A few are loud: before the others or after them.
            let loud = (0..4 * 2 * SUBJECT_BURST).map(|line| u64::MAX - u64::from(line) % 4);
            let many = u64::from(span) * SUBJECTS / 2;
            let many = many..many + SUBJECTS;
            let subjects: Vec<_> = match span % 3 {
                2 => many.chain(loud).collect(),
                _ => loud.chain(many).collect(),
            };
            for line in 0..LINES {
                let now = start + span * SPAN + SPAN * line / LINES;
                for &subject in &subjects {
                    let kind = kind(Some(subject));
                    sent += 1;
                    if let Decision::Write { left_out } = limit.decide(&kind, now) {
                        (written, told) = (written + 1, told + left_out);
                        limit.note(&kind, Level::WARN, "bad");
                    }
                }
            }
            // The log's thread may be late.
            let (end, is_last) = (start + (span + 1) * SPAN, span == 5);
            let reports = if span % 2 == 1 { limit.take_unreported(end, is_last).0 } else { Vec::new() };
            for report in reports {
                assert_eq!(&*report.message, "bad");
                (lines, told) = (lines + 1, told + report.left_out);
            }
            lines += written - before;
            // A few subjects wrote so many lines that they are told of by themselves.
            let most = u64::from(KIND_BURST + 2 * KIND_BURST / SUBJECT_BURST + 1);
            // A report counts as a line of the next span.
            assert!((u64::from(KIND_BURST - 1)..=most).contains(&lines), "{lines} lines in span {span}");
        }
        assert_eq!(written + told, sent);
    }

    #[test]
    fn each_key_of_a_place_has_a_limit_of_its_own_and_many_keys_share_one() {
        let (limit, now) = (Limit::new(), Instant::now());
        let keyed = |key| Kind { place: Place::Source(Identifier(HERE), Some(key)), subject: None };
        let each: Vec<_> = (0..10_000).map(|key| written(&limit, &keyed(key), now, 100)).collect();
        assert!(each[..KINDS_MAX - 1].iter().all(|&lines| lines == KIND_BURST as usize));
        assert_eq!(each.iter().sum::<usize>(), (KINDS_MAX + 1) * KIND_BURST as usize);
    }

    #[test]
    fn what_no_later_line_tells_is_told_when_the_span_is_over_and_at_the_end() {
        let (limit, start) = (Limit::new(), Instant::now());
        let flood = |at| (0..KIND_BURST + 3).for_each(|_| _ = limit.decide(&kind(None), at));
        flood(start);
        limit.note(&kind(None), Level::ERROR, "bad");
        assert_eq!(limit.take_unreported(start + SPAN / 2, false), (vec![], Some(start + SPAN)));
        let unreported = |left_out| Unreported { level: Level::ERROR, message: "bad".into(), left_out };
        assert_eq!(limit.take_unreported(start + SPAN, false), (vec![unreported(3)], None));
        assert_eq!(limit.take_unreported(start + 2 * SPAN, false), (vec![], None));
        flood(start + 3 * SPAN);
        assert_eq!(limit.take_unreported(start + 3 * SPAN, true), (vec![unreported(3)], None));
    }

    #[test]
    fn the_log_takes_no_counts_in_the_middle_of_a_flood() {
        let (limit, start) = (Limit::new(), Instant::now());
        assert_eq!(written(&limit, &kind(None), start, KIND_BURST + 3), KIND_BURST as usize);
        let held = limit.counts.lock().unwrap();
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| limit.take_unreported(start + SPAN / 2, false));
            let deadline = Instant::now() + Duration::from_secs(60);
            while !looks.is_finished() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            let is_finished = looks.is_finished();
            drop(held);
            assert!(is_finished, "the log waited for the counts, before any were due");
            assert_eq!(looks.join().unwrap(), (vec![], Some(start + SPAN)));
        });
    }

    #[test]
    fn counts_that_another_thread_holds_hold_up_no_line_and_bound_their_number() {
        let (limit, start) = (Limit::new(), Instant::now());
        let held = limit.counts.lock().unwrap();
        std::thread::scope(|scope| {
            let lines = scope.spawn(|| {
                limit.note(&kind(None), Level::ERROR, "bad");
                (0..100).map(|_| limit.decide(&kind(None), start)).collect::<Vec<_>>()
            });
            let deadline = Instant::now() + Duration::from_secs(60);
            while !lines.is_finished() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            let is_finished = lines.is_finished();
            drop(held);
            assert!(is_finished, "a line waited for the counts");
            let lines = lines.join().unwrap();
            assert_eq!(lines[..32], [Decision::Write { left_out: 0 }; 32]);
            assert_eq!(lines[32..], [Decision::Lose; 68]);
        });
        // A span later, lines that come without the counts are written again.
        limit.decide(&kind(None), start + 2 * SPAN);
        assert_eq!(limit.decide_without_counts(), Decision::Write { left_out: 0 });
    }
}
