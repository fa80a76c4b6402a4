//! The runs of the cache budget that sessions hold: one queue for each session, in order of time.
//!
//! Jet §4.3: "the cache buffer allocated for each application is organized by linked lists. [...] a node
//! would be linked to the tail". So the head alone shows whether there are stragglers. Here each list is a
//! ring of slot numbers: delivering writes one entry at its end, releasing writes none. The entries of
//! released runs stay in the ring until a search for stragglers passes them, or until the ring is full. Then
//! the ring is swept, at two or three nanoseconds an entry. Unlinking each run from a chain was slower for
//! every message.
//!
//! All memory is allocated once. A node is 16 bytes, and a session's record one cache line.

use crate::session_set::SessionSet;
use alloc::boxed::Box;
use alloc::vec;

/// Limit on the number of slots: slot numbers are below it.
const SLOTS_MAX: u32 = u16::MAX as u32;
/// Due time of a session that has no run which could become a straggler.
const NEVER: u64 = u64::MAX;

/// Entries of released runs that cost as much to pass as one held run to count.
const PASSED_PER_NODE: u32 = 4;

/// Flag of a run that counts among its session's stragglers.
const STRAGGLER: u8 = 1;
/// Flag of a run that is being copied to memory.
const COPYING: u8 = 2;

/// A run that is or was held; there is one for each slot.
#[derive(Clone, Copy, Debug)]
struct Node {
    since_ns: u64,
    /// Position of the run's entry in its session's ring. Entries of this slot at other positions belong to
    /// former runs.
    position: u32,
    /// Slabs that are not released; 0 if the run is not held.
    slabs: u16,
    state: u8,
}

const _: () = assert!(size_of::<Node>() == 16 && size_of::<Session>() <= 64);

/// The queue of one session. Positions increase for ever, and wrap; in the ring they lie modulo its length.
#[derive(Clone, Debug)]
struct Session {
    nodes: Box<[Node]>,
    /// Ring of slot numbers. Its length is a power of two, at least twice the slots, so that a sweep frees
    /// half of it.
    ring: Box<[u16]>,
    held_slabs: u32,
    straggler_slabs: u32,
    /// Position in the ring before which no run is held.
    head: u32,
    tail: u32,
    /// Position in the ring before which every run is counted as a straggler, and from which on none is.
    due: u32,
    /// Position in the ring from which on runs are offered for copying next.
    cursor: u32,
}

impl Session {
    #[inline]
    fn entry(&self, position: u32) -> usize {
        position as usize & (self.ring.len() - 1)
    }

    /// Returns the run of the ring's entry at a position, if the run is still held.
    #[inline]
    fn run_at(&self, position: u32) -> Option<(u16, Node)> {
        let slot = self.ring[self.entry(position)];
        let node = self.nodes[usize::from(slot)];
        (node.slabs != 0 && node.position == position).then_some((slot, node))
    }

    /// Moves the head of the queue to the first run that is held.
    fn pop_released(&mut self) {
        let mut head = self.head;
        while head != self.tail && self.run_at(head).is_none() {
            head = head.wrapping_add(1);
        }
        self.move_head(head);
    }

    fn move_head(&mut self, head: u32) {
        self.head = head;
        if is_before(self.due, head) {
            self.due = head;
        }
        if is_before(self.cursor, head) {
            self.cursor = head;
        }
    }

    /// Frees at least half of a full ring.
    #[cold]
    fn sweep(&mut self) {
        self.pop_released();
        let Self { head, tail, due, cursor, .. } = *self;
        if (tail.wrapping_sub(head) as usize) <= self.ring.len() / 2 {
            return;
        }
        // An old run at the head keeps the released entries behind it, so the entries are closed up.
        let (mut to, mut new_due, mut new_cursor) = (head, None, None);
        let mut from = head;
        while from != tail {
            if from == due {
                new_due = Some(to);
            }
            if from == cursor {
                new_cursor = Some(to);
            }
            if let Some((slot, _)) = self.run_at(from) {
                let entry = self.entry(to);
                self.ring[entry] = slot;
                self.nodes[usize::from(slot)].position = to;
                to = to.wrapping_add(1);
            }
            from = from.wrapping_add(1);
        }
        self.tail = to;
        self.due = new_due.unwrap_or(to);
        self.cursor = new_cursor.unwrap_or(to);
    }
}

/// The queues of all sessions.
#[derive(Debug)]
pub(crate) struct Held {
    sessions: Box<[Session]>,
    /// Time before which each session gets no further straggler. These times lie apart from the sessions'
    /// records, so that a search passes over them quickly.
    due_ns: Box<[u64]>,
    /// Time before which no run becomes a straggler. It is a lower bound, which saves most searches.
    quiet_until_ns: u64,
    /// Session with which the next count of stragglers begins, after the last one reached its limit.
    count_from: u32,
    /// Sessions that have stragglers.
    straggling: SessionSet,
    /// Sessions whose share of stragglers is above CREDIT.
    slow: SessionSet,
    straggler_ns: u64,
    credit_permille: u32,
    /// Slabs that applications released while their runs were in a queue.
    released_slabs: u64,
}

/// Result of a search for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    Found {
        slot: u16,
        slabs: u32,
    },
    /// The session has no such run, or none left.
    None,
    /// The search visited as many entries as it may.
    Spent,
}

/// Returns whether a position comes before another, where positions wrap.
#[inline]
fn is_before(position: u32, other: u32) -> bool {
    other.wrapping_sub(position).wrapping_sub(1) < u32::MAX / 2
}

impl Held {
    pub fn new(sessions: u32, slots: u32, straggler_ns: u64, credit_permille: u32) -> Self {
        assert!(slots <= SLOTS_MAX, "{slots} slots a session, but at most {SLOTS_MAX} can be told apart");
        let empty = Session {
            nodes: vec![Node { since_ns: 0, position: 0, slabs: 0, state: 0 }; slots as usize].into(),
            ring: vec![0; (2 * slots.max(1) as usize).next_power_of_two()].into(),
            held_slabs: 0,
            straggler_slabs: 0,
            head: 0,
            tail: 0,
            due: 0,
            cursor: 0,
        };
        Self {
            sessions: vec![empty; sessions as usize].into_boxed_slice(),
            due_ns: vec![NEVER; sessions as usize].into_boxed_slice(),
            quiet_until_ns: 0,
            count_from: 0,
            straggling: SessionSet::new(sessions),
            slow: SessionSet::new(sessions),
            straggler_ns,
            credit_permille,
            released_slabs: 0,
        }
    }

    /// Sets the straggler's time. Runs that count as stragglers already still do.
    pub fn set_straggler_ns(&mut self, straggler_ns: u64) {
        let earlier_ns = self.straggler_ns.saturating_sub(straggler_ns);
        self.straggler_ns = straggler_ns;
        if earlier_ns > 0 {
            self.quiet_until_ns = self.quiet_until_ns.saturating_sub(earlier_ns);
            for due_ns in self.due_ns.iter_mut().filter(|due_ns| **due_ns != NEVER) {
                *due_ns = due_ns.saturating_sub(earlier_ns);
            }
        }
    }

    /// Returns the slabs that applications released while their runs were in a queue, since the beginning.
    #[inline]
    pub fn released_slabs(&self) -> u64 {
        self.released_slabs
    }

    /// Notes that a run of `slabs` slabs was delivered: the newest of its session.
    #[inline(always)] // on every message's way
    pub fn hold(&mut self, session: u32, slot: u16, slabs: u32, now_ns: u64) {
        debug_assert!(slabs > 0, "a run has a slab at least");
        let record = &mut self.sessions[session as usize];
        if record.held_slabs == 0 {
            // Everything that the ring still has was released.
            (record.head, record.due, record.cursor) = (record.tail, record.tail, record.tail);
        } else if (record.tail.wrapping_sub(record.head)) as usize == record.ring.len() {
            record.sweep();
        }
        let position = record.tail;
        record.tail = position.wrapping_add(1);
        record.held_slabs += slabs;
        let is_next = record.due == position;
        let straggling = record.straggler_slabs != 0;
        let entry = record.entry(position);
        record.ring[entry] = slot;
        let node = &mut record.nodes[usize::from(slot)];
        debug_assert!(node.slabs == 0, "slot {slot} of session {session} is held already");
        #[allow(clippy::cast_possible_truncation)] // a run is 64 slabs at most
        let slabs = slabs as u16;
        *node = Node { since_ns: now_ns, position, slabs, state: 0 };
        if is_next || straggling {
            self.note_hold(session, is_next, now_ns);
        }
    }

    #[cold]
    fn note_hold(&mut self, session: u32, is_next: bool, now_ns: u64) {
        if is_next {
            self.due_ns[session as usize] = now_ns.saturating_add(self.straggler_ns);
        }
        self.note_share(session);
    }

    /// Notes that `slabs` slabs of a run are not held any more, and returns since when the run is held.
    /// Nothing happens to a run that has left its queue.
    #[inline]
    pub fn release(&mut self, session: u32, slot: u16, slabs: u32) -> u64 {
        let record = &mut self.sessions[session as usize];
        let node = &mut record.nodes[usize::from(slot)];
        let since_ns = node.since_ns;
        if node.slabs == 0 {
            return since_ns;
        }
        debug_assert!(u32::from(node.slabs) >= slabs, "no more slabs are released than are held");
        #[allow(clippy::cast_possible_truncation)] // a run is 64 slabs at most
        let left = node.slabs.wrapping_sub(slabs as u16);
        node.slabs = left;
        self.released_slabs += u64::from(slabs);
        record.held_slabs = record.held_slabs.wrapping_sub(slabs);
        if record.straggler_slabs != 0 {
            self.note_release(session, slot, slabs);
        }
        since_ns
    }

    #[cold]
    fn note_release(&mut self, session: u32, slot: u16, slabs: u32) {
        let record = &mut self.sessions[session as usize];
        if record.nodes[usize::from(slot)].state & STRAGGLER != 0 {
            record.straggler_slabs -= slabs;
        }
        self.note_share(session);
    }

    /// Takes the run out of its queue with all that is held of it, for another reason than a release by its
    /// application.
    pub fn remove(&mut self, session: u32, slot: u16) {
        let slabs = self.sessions[session as usize].nodes[usize::from(slot)].slabs;
        let released_slabs = self.released_slabs;
        self.release(session, slot, u32::from(slabs));
        self.released_slabs = released_slabs;
    }

    /// Takes all runs of a session out of the session's queue.
    pub fn close(&mut self, session: u32) {
        let record = &mut self.sessions[session as usize];
        record.nodes.iter_mut().for_each(|node| node.slabs = 0);
        (record.held_slabs, record.straggler_slabs) = (0, 0);
        (record.head, record.due, record.cursor) = (record.tail, record.tail, record.tail);
        self.due_ns[session as usize] = NEVER;
        self.straggling.set(session, false);
        self.slow.set(session, false);
    }

    /// Updates the session's membership of the sets `straggling` and `slow`. To be called after a change of
    /// what the session holds while it has, or had, stragglers.
    fn note_share(&mut self, session: u32) {
        let &Session { held_slabs, straggler_slabs, .. } = &self.sessions[session as usize];
        // Jet §4.3: stragglers / held > CREDIT.
        let slow =
            u64::from(straggler_slabs) * 1000 > u64::from(held_slabs) * u64::from(self.credit_permille);
        self.straggling.set(session, straggler_slabs != 0);
        self.slow.set(session, slow);
    }

    /// Counts the runs that have become stragglers, at most `nodes_max` of them; the next call counts the
    /// others. Four entries of released runs count as one. Returns how many were visited.
    #[inline]
    pub fn count(&mut self, now_ns: u64, nodes_max: u32) -> u32 {
        if now_ns < self.quiet_until_ns { 0 } else { self.count_due(now_ns, nodes_max) }
    }

    fn count_due(&mut self, now_ns: u64, nodes_max: u32) -> u32 {
        let mut left = nodes_max;
        // A run that is delivered from now on becomes no straggler before that.
        let mut quiet_until_ns = now_ns.saturating_add(self.straggler_ns);
        let sessions = self.due_ns.len();
        let from = (self.count_from as usize).min(sessions);
        for session in (from..sessions).chain(0..from) {
            if self.due_ns[session] <= now_ns {
                #[allow(clippy::cast_possible_truncation)] // there are u32 sessions
                let session = session as u32;
                if left == 0 {
                    self.count_from = session;
                    return nodes_max;
                }
                left -= self.count_session(session, now_ns, left);
            }
            quiet_until_ns = quiet_until_ns.min(self.due_ns[session]);
        }
        self.quiet_until_ns = quiet_until_ns;
        nodes_max - left
    }

    fn count_session(&mut self, session: u32, now_ns: u64, nodes_max: u32) -> u32 {
        let record = &mut self.sessions[session as usize];
        let (mut visited, mut passed) = (0, 0);
        let mut due_ns = NEVER;
        while record.due != record.tail {
            let run = record.run_at(record.due);
            if let Some((_, node)) = run {
                due_ns = node.since_ns.saturating_add(self.straggler_ns);
                if due_ns > now_ns {
                    break;
                }
            }
            if passed == PASSED_PER_NODE {
                (visited, passed) = (visited + 1, 0);
            }
            if visited >= nodes_max {
                // The next call continues here.
                due_ns = now_ns;
                break;
            }
            if let Some((slot, node)) = run {
                visited += 1;
                record.nodes[usize::from(slot)].state |= STRAGGLER;
                record.straggler_slabs += u32::from(node.slabs);
            } else {
                passed += 1;
            }
            record.due = record.due.wrapping_add(1);
            due_ns = NEVER;
        }
        self.due_ns[session as usize] = due_ns;
        self.note_share(session);
        visited
    }

    /// Returns the next session that has stragglers and is not in `without`. The search begins at `from` and
    /// wraps.
    #[inline]
    pub fn next_straggling(&self, from: u32, without: &SessionSet) -> Option<u32> {
        self.straggling.next(from, without)
    }

    /// Returns the next session that is slow and that is not in `without`. The search begins at `from` and
    /// wraps.
    #[inline]
    pub fn next_slow(&self, from: u32, without: &SessionSet) -> Option<u32> {
        self.slow.next(from, without)
    }

    /// Returns a session's oldest straggler that is not being copied. Each entry that it visits is taken off
    /// `nodes_left`.
    #[inline]
    pub fn oldest_straggler(&mut self, session: u32, nodes_left: &mut u32) -> Search {
        let record = &mut self.sessions[session as usize];
        let mut head = record.head;
        let mut position = head;
        let search = loop {
            if position == record.due {
                break Search::None;
            }
            if *nodes_left == 0 {
                break Search::Spent;
            }
            *nodes_left -= 1;
            match record.run_at(position) {
                Some((slot, node)) if node.state & COPYING == 0 => {
                    break Search::Found { slot, slabs: u32::from(node.slabs) };
                }
                Some(_) => {}
                // Released entries at the head are never visited again.
                None if position == head => head = head.wrapping_add(1),
                None => {}
            }
            position = position.wrapping_add(1);
        };
        record.move_head(head);
        search
    }

    /// Returns the next run of a session, from its cursor on, that is not being copied; the cursor moves past
    /// it. Also returns whether the cursor came round, so that every run of the session had its turn.
    #[inline]
    pub fn next_to_copy(&mut self, session: u32, nodes_left: &mut u32) -> (Search, bool) {
        let record = &mut self.sessions[session as usize];
        let mut position = record.cursor;
        let mut search = Search::None;
        while position != record.tail {
            if *nodes_left == 0 {
                search = Search::Spent;
                break;
            }
            *nodes_left -= 1;
            let here = position;
            position = position.wrapping_add(1);
            if let Some((slot, node)) = record.run_at(here)
                && node.state & COPYING == 0
            {
                search = Search::Found { slot, slabs: u32::from(node.slabs) };
                break;
            }
        }
        let came_round = position == record.tail;
        record.cursor = if came_round { record.head } else { position };
        (search, came_round)
    }

    /// Notes that a run is being copied.
    pub fn begin_copy(&mut self, session: u32, slot: u16) {
        let node = &mut self.sessions[session as usize].nodes[usize::from(slot)];
        assert!(node.slabs > 0, "only a run that is held can be copied");
        node.state |= COPYING;
    }

    /// Notes that a run is not being copied any more.
    pub fn end_copy(&mut self, session: u32, slot: u16) {
        self.sessions[session as usize].nodes[usize::from(slot)].state &= !COPYING;
    }

    #[inline]
    pub fn is_held(&self, session: u32, slot: u16) -> bool {
        self.sessions[session as usize].nodes[usize::from(slot)].slabs != 0
    }

    #[inline]
    pub fn since_ns(&self, session: u32, slot: u16) -> u64 {
        self.sessions[session as usize].nodes[usize::from(slot)].since_ns
    }

    #[inline]
    pub fn is_slow(&self, session: u32) -> bool {
        self.slow.contains(session)
    }

    #[inline]
    pub fn held_slabs(&self, session: u32) -> u32 {
        self.sessions[session as usize].held_slabs
    }

    #[inline]
    pub fn straggler_slabs(&self, session: u32) -> u32 {
        self.sessions[session as usize].straggler_slabs
    }

    /// Returns when the next run becomes a straggler. It passes over entries that were released since the
    /// last search.
    pub fn next_due_ns(&self) -> Option<u64> {
        let next = self.sessions.iter().filter_map(|session| {
            let mut due = session.due;
            while due != session.tail {
                if let Some((_, node)) = session.run_at(due) {
                    return Some(node.since_ns.saturating_add(self.straggler_ns));
                }
                due = due.wrapping_add(1);
            }
            None
        });
        next.min()
    }
}
