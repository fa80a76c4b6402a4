//! Schedule that carries out a [`Slow`]: which slices are held until when, and when no message is read.

use super::slow_option::{Slow, Stop};
use std::collections::VecDeque;
use std::time::Instant;

/// Queue of slices that are held, in the order in which they are due. The queue reads no clock: its callers
/// pass the time.
#[derive(Debug)]
pub(super) struct SlowSchedule<T> {
    slow: Slow,
    /// Held slices, each with the time at which it is due. All are held equally long, so the first is due
    /// first.
    held: VecDeque<(Instant, T)>,
    held_max: usize,
    /// Number of slices that pass before the next one is held.
    passing: u32,
    started_at: Option<Instant>,
}

impl<T> SlowSchedule<T> {
    /// Makes a schedule that holds at most `held_max` slices at once. The caller must not exceed that.
    pub(super) fn new(slow: Slow, held_max: usize) -> Self {
        let capacity = if slow.hold.is_some() { held_max } else { 0 };
        let passing = slow.hold.map_or(0, |hold| hold.one_in.get() - 1);
        Self { slow, held: VecDeque::with_capacity(capacity), held_max, passing, started_at: None }
    }

    /// Returns whether anything is slowed down.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.slow != Slow::default()
    }

    /// Notes that a session begins. The beginning of a stop is counted from the first session.
    pub(super) fn start(&mut self, now: Instant) {
        self.started_at.get_or_insert(now);
    }

    /// Returns the end of the stop if one is under way.
    pub(super) fn stopped_until(&self, now: Instant) -> Option<Instant> {
        let (Stop { span, after }, started_at) = (self.slow.stop?, self.started_at?);
        let (from, until) = (started_at + after, started_at + after + span);
        (from <= now && now < until).then_some(until)
    }

    /// Counts a slice, and returns whether it must be held.
    #[inline]
    pub(super) fn holds(&mut self) -> bool {
        let Some(hold) = self.slow.hold else { return false };
        if self.passing > 0 {
            self.passing -= 1;
            return false;
        }
        self.passing = hold.one_in.get() - 1;
        true
    }

    /// Holds a slice from `now` on.
    ///
    /// # Panics
    /// Panics where the option has no hold, or where `held_max` slices are held.
    pub(super) fn hold(&mut self, what: T, now: Instant) {
        let hold = self.slow.hold.expect("only what `holds` said");
        assert!(self.held.len() < self.held_max, "{} are held already", self.held_max);
        self.held.push_back((now + hold.span, what));
    }

    /// Takes a slice that is due, if there is one.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<T> {
        if self.next_due()? <= now { self.take_now() } else { None }
    }

    /// Takes the slice that was held first, due or not.
    pub(super) fn take_now(&mut self) -> Option<T> {
        self.held.pop_front().map(|(_, what)| what)
    }

    /// Returns the time at which the next slice is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.front().map(|(due, _)| *due)
    }

    /// Returns the number of slices that are held.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    fn schedule(slow: &str, held_max: usize) -> SlowSchedule<u32> {
        SlowSchedule::new(slow.parse().unwrap(), held_max)
    }

    #[test]
    fn slices_come_back_in_order_when_they_are_due() {
        let mut slow = schedule("5ms", 3);
        let start = Instant::now();
        for number in 0..3 {
            assert!(slow.holds());
            slow.hold(number, start + number * MS);
        }
        assert_eq!((slow.held(), slow.next_due()), (3, Some(start + 5 * MS)));
        assert_eq!(slow.take_due(start + 5 * MS - Duration::from_nanos(1)), None);
        assert_eq!(slow.take_due(start + 6 * MS), Some(0));
        assert_eq!(slow.take_due(start + 6 * MS), Some(1));
        assert_eq!(slow.take_due(start + 6 * MS), None);
        assert_eq!(slow.next_due(), Some(start + 7 * MS));
        // At the end of a session slices are taken before they are due.
        assert_eq!((slow.take_now(), slow.take_now(), slow.next_due()), (Some(2), None, None));
    }

    #[test]
    fn one_in_so_many_is_held_whatever_comes_between() {
        let mut slow = schedule("5ms/4", 100);
        let start = Instant::now();
        let held: Vec<u32> = (0..12).filter(|_| slow.holds()).collect();
        assert_eq!(held, [3, 7, 11]);
        held.into_iter().for_each(|number| slow.hold(number, start));
        assert_eq!(slow.take_due(start + 5 * MS), Some(3));
        assert_eq!((0..4).filter(|_| slow.holds()).count(), 1);
    }

    #[test]
    #[should_panic(expected = "2 are held already")]
    fn more_than_may_be_are_never_held() {
        let mut slow = schedule("5ms", 2);
        (0..3).for_each(|number| slow.hold(number, Instant::now()));
    }

    #[test]
    fn nothing_is_read_from_the_beginning_of_a_stop_to_its_end_and_once() {
        let mut slow = schedule("stop:30ms@100ms", 0);
        let start = Instant::now();
        assert!(slow.is_on() && !slow.holds());
        assert_eq!(slow.stopped_until(start + 110 * MS), None, "no session began yet");
        slow.start(start);
        // The next session does not count as another beginning.
        slow.start(start + 90 * MS);
        let until = Some(start + 130 * MS);
        for (at, expected) in [(0, None), (99, None), (100, until), (129, until), (130, None), (230, None)] {
            assert_eq!(slow.stopped_until(start + at * MS), expected, "{at} ms");
        }
    }

    #[test]
    fn without_a_specification_nothing_is_slow() {
        let mut slow = SlowSchedule::<u32>::new(Slow::default(), 8);
        slow.start(Instant::now());
        assert!(!slow.is_on() && !slow.holds());
        assert_eq!((slow.next_due(), slow.stopped_until(Instant::now())), (None, None));
    }
}
