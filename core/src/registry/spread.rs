//! Which of the consumers of a name gets a sender's messages.
//!
//! All messages of a sender go to one session, so that their order holds. A sender that connects goes to the
//! session of its name that has the fewest senders. One that comes back finds its place again.
//!
//! When a session opens, or senders leave, the sessions of a name differ in their senders. Then some senders
//! move, so that no session has two more than another. A sender that waits for no end moves at once. Any
//! other one gets no further credit until its messages have their ends, and moves then: each message goes to
//! a session only when all earlier ones have their ends. An application may finish nothing before it has more
//! of the sender, so a move that is not over soon is given up, and the sender is left alone for long. When a
//! session closes, its messages end, so its senders move at once.

use super::{Registry, Sender};
use crate::index::NONE;
use alloc::vec::Vec;
use jet_wire::planted;

/// Time after which the senders of all names are looked at again.
pub(super) const SPREAD_NS: u64 = 1_000_000_000;
/// Senders of a name that are chosen to move at a tick, at most.
pub(super) const MOVES_MAX: u32 = 64;
/// Time in which a move must be over.
pub(crate) const MOVE_NS: u64 = 100_000_000;
/// Time after a move, or an attempt, in which a sender that waits for ends is not chosen again.
pub(crate) const STAYS_NS: u64 = 10_000_000_000;

/// When the senders of names are to be looked at, and what the last look left to do.
#[derive(Debug, Default)]
pub(super) struct Spreading {
    /// Number of names that several sessions share.
    shared_names: u32,
    /// Number of senders that are to move.
    moving: u32,
    /// Whether the next tick is to look: a session of a shared name was opened, or the last look left
    /// something to do.
    is_due: bool,
    /// Time of the last look at all names.
    looked_ns: u64,
    /// Sender at which the next look begins, so that it is not always the same ones that move.
    cursor: u32,
    /// Senders that got no credit because they were to move, and may have some again.
    may_have_credit: Vec<u32>,
    /// The sessions of the name that is looked at.
    consumers: Vec<u32>,
}

impl Spreading {
    pub fn new(senders: u32, sessions: u32) -> Self {
        Self {
            may_have_credit: Vec::with_capacity(senders as usize),
            consumers: Vec::with_capacity(sessions as usize),
            ..Self::default()
        }
    }
}

impl Sender {
    /// Returns the session that counts the sender.
    pub fn goes_to(&self) -> u32 {
        if self.next == NONE { self.session } else { self.next }
    }
}

impl Registry {
    /// Returns the session for a sender that connects, and where in the list of free numbers its own is: the
    /// one that it had, or else one that is nobody's place.
    pub(super) fn place_for(&self, app: u32, identity: u64) -> (Option<usize>, u32) {
        let place_of = |at: usize| &self.senders[self.free_senders[at] as usize];
        let free = || {
            let last = self.free_senders.len().checked_sub(1)?;
            // Usually the last one. Where all are places, the one that has been so for longest.
            Some((0..=last).rev().find(|&at| place_of(at).session == NONE).unwrap_or(0))
        };
        if self.apps[app as usize].sessions < 2 {
            return (free(), self.sessions_of(app).next().unwrap_or(NONE));
        }
        let is_earlier =
            |sender: &Sender| sender.identity == identity && self.app_of_session(sender.session) == Some(app);
        let least = self.least_of(app);
        // Its earlier connection may still count. Whoever has many of one identity fills no session by that.
        let has_room = |sender: &&Sender| self.senders_of(sender.session) < self.senders_of(least) + 2;
        let mut stand = self.senders.iter().filter(|sender| sender.app == app && is_earlier(sender));
        if let Some(stands) = stand.next() {
            return (free(), Some(stands).filter(has_room).map_or(least, |stands| stands.session));
        }
        match (0..self.free_senders.len()).rev().find(|&at| is_earlier(place_of(at))) {
            Some(at) => (Some(at), place_of(at).session),
            None => (free(), least),
        }
    }

    /// Returns the session of a name that has the fewest senders; [`NONE`] if the name has no session.
    fn least_of(&self, app: u32) -> u32 {
        self.sessions_of(app).min_by_key(|&session| self.senders_of(session)).unwrap_or(NONE)
    }

    /// Returns the one of [`Spreading::consumers`] that has the fewest senders.
    fn least_consumer(&self) -> u32 {
        let consumers = self.spreading.consumers.iter().copied();
        consumers.min_by_key(|&session| self.senders_of(session)).unwrap_or(NONE)
    }

    /// Notes the sessions of a name, to choose among them.
    fn note_consumers(&mut self, app: u32) {
        let mut consumers = core::mem::take(&mut self.spreading.consumers);
        consumers.clear();
        consumers.extend(self.sessions_of(app));
        self.spreading.consumers = consumers;
    }

    /// Counts a sender of a session, if it is one.
    pub(super) fn count_in(&mut self, session: u32) {
        if session != NONE {
            self.assigned[session as usize] += 1;
        }
    }

    /// Counts a sender of a session no more, if it is one.
    fn count_out(&mut self, session: u32) {
        if session != NONE {
            self.assigned[session as usize] -= 1;
        }
    }

    /// Returns the number of senders whose messages go to a session, or are to go to it next.
    pub fn senders_of(&self, session: u32) -> u32 {
        self.assigned[session as usize]
    }

    /// Gives a session that was opened the senders that have none. Where others have the name, the next tick
    /// spreads their senders.
    pub(super) fn opened(&mut self, app: u32, session: u32) {
        match self.apps[app as usize].sessions {
            1 => {
                for sender in self.senders.iter_mut().filter(|sender| sender.app == app) {
                    sender.session = session;
                    self.assigned[session as usize] += 1;
                }
                return;
            }
            2 => self.spreading.shared_names += 1,
            _ => {}
        }
        self.spreading.is_due = true;
    }

    /// Gives the senders of a session that was closed to others of its name.
    pub(super) fn closed(&mut self, app: u32, session: u32) {
        self.spreading.shared_names -= u32::from(self.apps[app as usize].sessions == 1);
        self.note_consumers(app);
        for peer in 0..u32::try_from(self.senders.len()).unwrap_or(NONE) {
            let sender = self.senders[peer as usize];
            if sender.app == app && sender.session == session {
                let to = if sender.next == NONE { self.least_consumer() } else { sender.next };
                self.count_out(sender.goes_to());
                self.count_in(to);
                self.senders[peer as usize].session = to;
                self.choose_next(peer, NONE);
            } else if sender.app == app && sender.next == session {
                self.choose(peer, self.least_consumer());
            } else if sender.session == session {
                // It is gone, and finds no session there again.
                self.senders[peer as usize].session = NONE;
            }
        }
        debug_assert_eq!(self.assigned[session as usize], 0, "all are with others");
    }

    /// Forgets where a sender that leaves was to go. Its place stays where others have the name.
    pub(super) fn left(&mut self, app: u32, peer: u32) {
        let sender = self.senders[peer as usize];
        self.count_out(sender.goes_to());
        self.choose_next(peer, NONE);
        if self.apps[app as usize].sessions < 2 {
            self.senders[peer as usize].session = NONE;
        }
    }

    /// Chooses the session that a sender goes to.
    fn choose(&mut self, peer: u32, session: u32) {
        let sender = self.senders[peer as usize];
        self.count_out(sender.goes_to());
        self.count_in(session);
        self.choose_next(peer, if session == sender.session { NONE } else { session });
    }

    /// Sets the session that a sender is to move to. [`NONE`]: it stays where it is.
    fn choose_next(&mut self, peer: u32, next: u32) {
        let before = core::mem::replace(&mut self.senders[peer as usize].next, next);
        self.spreading.moving += u32::from(next != NONE);
        self.spreading.moving -= u32::from(before != NONE);
        if before != NONE && next == NONE {
            self.spreading.may_have_credit.push(peer);
        }
    }

    /// Returns whether the sender is to move to another session as soon as its messages have their ends.
    #[inline]
    pub fn is_moving(&self, peer: u32) -> bool {
        self.senders[peer as usize].next != NONE
    }

    /// Moves a sender whose messages have their ends.
    pub fn finish_move(&mut self, peer: u32) {
        self.senders[peer as usize].session = self.senders[peer as usize].goes_to();
        self.choose_next(peer, NONE);
    }

    /// Takes a sender that got no credit because it was to move, and may have some again. It may be gone.
    pub fn next_that_may_have_credit(&mut self) -> Option<u32> {
        self.spreading.may_have_credit.pop()
    }

    /// Returns whether a tick is to spread senders soon.
    pub fn is_spreading(&self) -> bool {
        self.spreading.is_due || self.spreading.moving > 0
    }

    /// Moves senders between the sessions that share a name, as far as their numbers differ. `waits`: whether
    /// a sender waits for the end of a message.
    pub fn spread(&mut self, now_ns: u64, waits: impl Fn(u32) -> bool) {
        if self.spreading.moving > 0 {
            self.give_moves_up(now_ns);
        }
        let is_time = now_ns.saturating_sub(self.spreading.looked_ns) >= SPREAD_NS;
        let looks = self.spreading.is_due || (is_time && self.spreading.shared_names > 0);
        if !looks {
            return;
        }
        self.spreading.looked_ns = now_ns;
        self.spreading.is_due = false;
        for session in self.numbers() {
            let Some(app) = self.app_of_session(session) else { continue };
            if self.apps[app as usize].sessions > 1 {
                self.note_consumers(app);
                if self.spreading.consumers.first() == Some(&session) {
                    self.spread_senders_of(app, now_ns, &waits);
                }
            }
        }
    }

    /// Gives moves up that are not over in time.
    fn give_moves_up(&mut self, now_ns: u64) {
        for peer in 0..u32::try_from(self.senders.len()).unwrap_or(NONE) {
            let Sender { next, chosen_ns, session, .. } = self.senders[peer as usize];
            if next != NONE && now_ns.saturating_sub(chosen_ns) >= MOVE_NS {
                self.choose(peer, session);
            }
        }
    }

    /// Moves senders of one name, whose sessions are noted: first those that can move at once.
    fn spread_senders_of(&mut self, app: u32, now_ns: u64, waits: &impl Fn(u32) -> bool) {
        let is_uneven = |registry: &Self, session: u32, least: u32| {
            registry.senders_of(session) >= registry.senders_of(least) + 2
        };
        let mut least = self.least_consumer();
        if !self.spreading.consumers.iter().any(|&session| is_uneven(self, session, least)) {
            return;
        }
        let senders = u32::try_from(self.senders.len()).unwrap_or(NONE);
        let (first, mut moves) = (self.spreading.cursor, 0);
        for may_wait in [false, true] {
            for peer in (first..senders).chain(0..first) {
                let sender = self.senders[peer as usize];
                if sender.app != app || !is_uneven(self, sender.goes_to(), least) {
                    continue;
                }
                let stays = now_ns < sender.chosen_ns.saturating_add(STAYS_NS) && sender.chosen_ns > 0;
                if waits(peer) && (!may_wait || stays) {
                    continue;
                }
                if moves == MOVES_MAX {
                    self.spreading.is_due = true;
                    self.spreading.cursor = peer;
                    return;
                }
                moves += 1;
                self.choose(peer, least);
                self.senders[peer as usize].chosen_ns = now_ns;
                if !waits(peer) || planted!(MovesAtOnce) {
                    self.finish_move(peer);
                }
                least = self.least_consumer();
            }
        }
    }
}
