//! Deadlines of a software NIC: one at a time for each connection, and for each transport one of its
//! listeners and one of its strangers; and one of those that wait for a turn.
//!
//! The time comes in as a number from the caller that polls; nothing here reads a clock. The span of a wait
//! that begins between two polls is counted from the later poll, since nobody knows how long ago the earlier
//! one was.

use std::time::Duration;

/// Event that must happen before a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The peer must send its connection request, or answer one.
    Handshake,
    /// An arrived SEND needs an SRQ entry.
    Rnr,
    /// SENDs of a connection that its user has ended must be taken by the peer.
    Farewell,
    /// Bytes of a READ must arrive.
    ReadAnswer,
    /// The rest of a SEND must arrive.
    SendRest,
    /// The system must have a descriptor for the next connection.
    Accept,
    /// Connections whose messages wait in their sockets must have a turn.
    Turn,
}

/// Time that never comes.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    wait: Option<Wait>,
    span_ns: u64,
    due_ns: u64,
    /// Whether the place is in the list of places that have a deadline, or had one.
    listed: bool,
    /// Whether the place is in the list of those whose wait begins with the next poll.
    begins: bool,
}

/// Deadlines of a NIC, each at a place of its own. Setting or clearing one neither allocates nor searches.
#[derive(Debug)]
pub(crate) struct Deadlines {
    entries: Box<[Entry]>,
    listed: Vec<u32>,
    beginning: Vec<u32>,
    /// Number of places that have a deadline.
    waiting: u32,
    /// Time in nanoseconds before which nothing is due.
    ///
    /// It may be too early where a deadline was moved to a later time. So moving a deadline needs no search.
    earliest_ns: u64,
    /// Position in `listed` at which a poll's search for what is due goes on; 0: it begins.
    searched: usize,
    /// Earliest time that the search has found so far, or that was set meanwhile.
    earliest_found_ns: u64,
    /// Time of the poll that is under way, in nanoseconds; `None` between polls.
    now_ns: Option<u64>,
}

impl Deadlines {
    /// Makes so many places, none with a deadline.
    pub(crate) fn new(places: u32) -> Self {
        let none = Entry { wait: None, span_ns: 0, due_ns: NEVER, listed: false, begins: false };
        Self {
            entries: vec![none; places as usize].into(),
            listed: Vec::with_capacity(places as usize),
            beginning: Vec::with_capacity(places as usize),
            waiting: 0,
            earliest_ns: NEVER,
            searched: 0,
            earliest_found_ns: NEVER,
            now_ns: None,
        }
    }

    /// Begins a poll at this time in nanoseconds, which never goes back.
    #[inline]
    pub(crate) fn begin_poll(&mut self, now_ns: u64) {
        (self.now_ns, self.searched) = (Some(now_ns), 0);
        while let Some(place) = self.beginning.pop() {
            self.entries[place as usize].begins = false;
            self.start(place, now_ns);
        }
    }

    /// Ends the poll.
    #[inline]
    pub(crate) fn end_poll(&mut self) {
        self.now_ns = None;
    }

    /// Sets the deadline of a place: `wait` must happen within `span`. It replaces the earlier deadline of
    /// the place.
    ///
    /// Within a poll the span begins now, otherwise with the next poll.
    pub(crate) fn set(&mut self, place: u32, wait: Wait, span: Duration) {
        let entry = &mut self.entries[place as usize];
        self.waiting += u32::from(entry.wait.replace(wait).is_none());
        (entry.span_ns, entry.due_ns) = (u64::try_from(span.as_nanos()).unwrap_or(NEVER), NEVER);
        if !std::mem::replace(&mut entry.listed, true) {
            self.listed.push(place);
        }
        match self.now_ns {
            Some(now_ns) => self.start(place, now_ns),
            None if std::mem::replace(&mut entry.begins, true) => {}
            None => self.beginning.push(place),
        }
    }

    fn start(&mut self, place: u32, now_ns: u64) {
        let entry = &mut self.entries[place as usize];
        if entry.wait.is_some() {
            entry.due_ns = now_ns.saturating_add(entry.span_ns);
            self.earliest_ns = self.earliest_ns.min(entry.due_ns);
            self.earliest_found_ns = self.earliest_found_ns.min(entry.due_ns);
        }
    }

    /// Clears the deadline of a place.
    #[inline]
    pub(crate) fn clear(&mut self, place: u32) {
        self.waiting -= u32::from(self.entries[place as usize].wait.take().is_some());
    }

    /// Clears the deadline of a place if it is for this event. A deadline for another event stays.
    #[inline]
    pub(crate) fn clear_if(&mut self, place: u32, wait: Wait) {
        if self.wait_at(place) == Some(wait) {
            self.clear(place);
        }
    }

    /// Returns the time in nanoseconds of the poll that is under way. To be called within a poll.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.expect("the time is asked for within a poll")
    }

    /// Returns the event for which a place has a deadline.
    #[inline]
    pub(crate) fn wait_at(&self, place: u32) -> Option<Wait> {
        self.entries[place as usize].wait
    }

    /// Takes one deadline that is over, with its place. To be called within a poll.
    #[inline]
    pub(crate) fn take_due(&mut self) -> Option<(u32, Wait)> {
        let now_ns = self.now_ns.expect("a poll looks for what is due");
        if now_ns < self.earliest_ns { None } else { self.search(now_ns) }
    }

    #[cold]
    fn search(&mut self, now_ns: u64) -> Option<(u32, Wait)> {
        if self.searched == 0 {
            self.earliest_found_ns = NEVER;
        }
        while let Some(&place) = self.listed.get(self.searched) {
            let entry = &mut self.entries[place as usize];
            match entry.wait {
                Some(_) if entry.due_ns > now_ns || entry.due_ns == NEVER => {
                    self.earliest_found_ns = self.earliest_found_ns.min(entry.due_ns);
                    self.searched += 1;
                }
                wait => {
                    (entry.wait, entry.listed) = (None, false);
                    self.listed.swap_remove(self.searched);
                    if let Some(wait) = wait {
                        self.waiting -= 1;
                        // Other places may be due, too: the next call goes on with the search.
                        self.earliest_ns = 0;
                        return Some((place, wait));
                    }
                }
            }
        }
        (self.searched, self.earliest_ns) = (0, self.earliest_found_ns);
        None
    }

    /// Returns the event that a place waits for, and its deadline in nanoseconds.
    #[cfg(test)]
    pub(crate) fn due_at(&self, place: u32) -> Option<(Wait, u64)> {
        let entry = self.entries[place as usize];
        entry.wait.map(|wait| (wait, entry.due_ns))
    }

    /// Returns the time in nanoseconds by which the next poll is needed; `None` where no place has a
    /// deadline.
    ///
    /// The time may be earlier than any deadline.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        (self.waiting > 0 && self.earliest_ns != NEVER).then_some(self.earliest_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SPAN: Duration = Duration::from_nanos(100);

    /// Makes one poll at this time, and returns what was due.
    fn poll(deadlines: &mut Deadlines, now_ns: u64) -> Vec<(u32, Wait)> {
        deadlines.begin_poll(now_ns);
        let due = std::iter::from_fn(|| deadlines.take_due()).collect();
        deadlines.end_poll();
        due
    }

    #[test]
    fn what_begins_between_polls_begins_with_the_next_one() {
        let mut deadlines = Deadlines::new(2);
        assert_eq!(poll(&mut deadlines, 1_000), []);
        // The last poll may have been long before the deadline is set.
        deadlines.set(1, Wait::Handshake, SPAN);
        assert_eq!((deadlines.next_ns(), deadlines.wait_at(1)), (None, Some(Wait::Handshake)));
        assert_eq!(poll(&mut deadlines, 50_000), []);
        assert_eq!(deadlines.next_ns(), Some(50_100));
        assert_eq!(poll(&mut deadlines, 50_099), []);
        assert_eq!(poll(&mut deadlines, 50_100), [(1, Wait::Handshake)]);
        assert_eq!((poll(&mut deadlines, 99_999), deadlines.next_ns()), (vec![], None));
    }

    #[test]
    fn a_span_beyond_all_time_is_never_over() {
        let mut deadlines = Deadlines::new(1);
        deadlines.set(0, Wait::Farewell, Duration::MAX);
        for now_ns in [0, 1, u64::MAX] {
            assert_eq!((poll(&mut deadlines, now_ns), deadlines.next_ns()), (vec![], None));
        }
        assert_eq!(deadlines.wait_at(0), Some(Wait::Farewell));
    }

    #[test]
    fn only_what_is_named_is_taken_back() {
        let mut deadlines = Deadlines::new(1);
        deadlines.set(0, Wait::Farewell, SPAN);
        deadlines.clear_if(0, Wait::ReadAnswer);
        assert_eq!(deadlines.wait_at(0), Some(Wait::Farewell));
        deadlines.clear_if(0, Wait::Farewell);
        assert_eq!((poll(&mut deadlines, 0), poll(&mut deadlines, 1_000)), (vec![], vec![]));
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Set { place: u32, span_ns: u64, within: bool },
        Clear { place: u32 },
        Poll { later_ns: u64, most: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4u32, 0..50u64, any::<bool>()).prop_map(|(place, span_ns, within)| Step::Set {
                place,
                span_ns,
                within
            }),
            (0..4u32).prop_map(|place| Step::Clear { place }),
            (0..30u64, 0..6usize).prop_map(|(later_ns, most)| Step::Poll { later_ns, most }),
        ]
    }

    proptest! {
        /// Each poll finds what is due and nothing else, whatever is set and cleared at whatever time. Where
        /// it takes only some of that, later ones take the others.
        #[test]
        fn each_poll_finds_what_is_due(steps in prop::collection::vec(step(), 0..200)) {
            let mut deadlines = Deadlines::new(4);
            // For each place the time when it is due, or the span that begins with the next poll.
            let mut model: [Option<Result<u64, u64>>; 4] = [None; 4];
            let mut now_ns = 0;
            for step in steps {
                match step {
                    Step::Set { place, span_ns, within } => {
                        let span = Duration::from_nanos(span_ns);
                        if within {
                            deadlines.begin_poll(now_ns);
                            model
                                .iter_mut()
                                .flatten()
                                .for_each(|due| *due = due.or_else(|span| Ok::<_, u64>(now_ns + span)));
                        }
                        deadlines.set(place, Wait::Rnr, span);
                        deadlines.end_poll();
                        model[place as usize] =
                            Some(if within { Ok(now_ns + span_ns) } else { Err(span_ns) });
                    }
                    Step::Clear { place } => {
                        deadlines.clear(place);
                        model[place as usize] = None;
                    }
                    Step::Poll { later_ns, most } => {
                        now_ns += later_ns;
                        model
                            .iter_mut()
                            .flatten()
                            .for_each(|due| *due = due.or_else(|span| Ok::<_, u64>(now_ns + span)));
                        deadlines.begin_poll(now_ns);
                        let due = std::iter::from_fn(|| deadlines.take_due()).take(most);
                        let found: BTreeSet<u32> = due.map(|(place, _)| place).collect();
                        deadlines.end_poll();
                        let is_due = |place: &u32| {
                            matches!(model[*place as usize], Some(Ok(due_ns)) if due_ns <= now_ns)
                        };
                        let expected: Vec<u32> = (0..4).filter(is_due).collect();
                        prop_assert_eq!(found.len(), most.min(expected.len()), "{:?}", expected);
                        prop_assert!(found.iter().all(|place| expected.contains(place)), "{:?}", found);
                        found.iter().for_each(|place| model[*place as usize] = None);
                        let next = model.iter().flatten().filter_map(|due| due.ok()).min();
                        let all_were_taken = most > expected.len();
                        prop_assert!(
                            !all_were_taken || deadlines.next_ns().is_none_or(|at| at > now_ns),
                            "nothing is due any more"
                        );
                        prop_assert!(next.is_some() || deadlines.next_ns().is_none(), "nothing is waited \
                            for");
                        prop_assert!(
                            next.is_none_or(|next| deadlines.next_ns().is_some_and(|at| at <= next))
                        );
                    }
                }
            }
        }
    }
}
