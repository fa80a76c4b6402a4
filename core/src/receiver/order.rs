//! The message that an application waits for, and what is reserved for it.
//!
//! Parts of several messages arrive side by side. An application may take its messages one after the other: it then
//! waits for the next part of the message that began to arrive first, while parts of later ones lie unread and hold
//! slabs and slots. So that it never waits for ever, the oldest incomplete message of a session has a reserve that later
//! ones do not touch: a fragment's slabs, a fragment's slots. What it gets from the reserve its application reads and
//! gives back, so one reserve of slabs serves all sessions. READs end by themselves and need none.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::footprint::Footprint;
use crate::message::NONE;
use crate::pool::Share;
use jet_escape::Pressure;
use jet_wire::SLAB_BYTES;

/// A message's turn to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub message: u32,
    /// [`Share::Read`] or [`Share::Granted`].
    pub share: Share,
}

impl<P: GrantPolicy> Receiver<P> {
    /// The message began to arrive, and is not complete.
    pub(super) fn begin_arrival(&mut self, message: u32) {
        let session = self.messages[message].session as usize;
        let (oldest, newest) = self.sessions[session].incomplete;
        let transfer = self.messages.transfer(message);
        (transfer.listed, transfer.older, transfer.newer) = (true, newest, NONE);
        if newest != NONE {
            self.messages.transfer(newest).newer = message;
        }
        self.sessions[session].incomplete = (if oldest == NONE { message } else { oldest }, message);
    }

    /// The message is complete, or will never be.
    pub(super) fn end_arrival(&mut self, message: u32) {
        let session = self.messages[message].session;
        let transfer = self.messages.transfer(message);
        if session == NONE || !core::mem::take(&mut transfer.listed) {
            return;
        }
        let (older, newer) = (transfer.older, transfer.newer);
        let (mut oldest, mut newest) = self.sessions[session as usize].incomplete;
        if older == NONE {
            oldest = newer;
        } else {
            self.messages.transfer(older).newer = newer;
        }
        if newer == NONE {
            newest = older;
        } else {
            self.messages.transfer(newer).older = older;
        }
        self.sessions[session as usize].incomplete = (oldest, newest);
    }

    /// Whether the message may use what is reserved. What its application waits for, if it gave back all that it got of
    /// it; or the first of an application that holds nothing. Who has something to read does not need the reserve.
    fn may_use_reserve(&self, message: u32) -> bool {
        let record = &self.messages[message];
        let owner = &self.sessions[record.session as usize];
        if !self.config.escape.enabled {
            return owner.incomplete.0 == NONE || owner.incomplete.0 == message;
        }
        if owner.incomplete.0 == message {
            return record.held == 0 && record.reads == 0;
        }
        owner.incomplete.0 == NONE && !self.holds_anything(record.session)
    }

    /// Whether it is the message of its session that began to arrive first and is not complete.
    pub(super) fn is_oldest(&self, message: u32) -> bool {
        self.sessions[self.messages[message].session as usize].incomplete.0 == message
    }

    /// Whether anything was delivered to the session and not released, or is being read for it.
    pub(super) fn holds_anything(&self, session: u32) -> bool {
        let owner = &self.sessions[session as usize];
        owner.promised_slots + owner.now.memory() + owner.now.replaced + self.escape.held_slabs(session) > 0
    }

    /// What is left in the pool by a session that holds more than half of it: an eighth, for it may be about to sit on
    /// what it holds, which is known only when its runs are stragglers.
    pub(super) fn room_left_by_most(&self) -> u32 {
        if self.config.escape.enabled { self.pool.total() / 8 } else { 0 }
    }

    fn room_left_by(&self, session: u32) -> u32 {
        let holds_most = self.escape.held_slabs(session) > self.pool.total() / 2;
        let reserve = 2 * self.fragment_slabs();
        if holds_most { reserve.max(self.room_left_by_most()) } else { reserve }
    }

    /// Whether the session has something to read, and the pool no room for more that is its own.
    pub(super) fn lacks_room(&self, session: u32) -> bool {
        let owner = &self.sessions[session as usize];
        // A bar for this is lifted only when there is room for more than one fragment.
        let slack = if owner.barred { self.fragment_slabs() } else { 0 };
        self.config.escape.enabled
            && self.holds_anything(session)
            && self.pool.read_room_max(self.srq_needed()) < self.room_left_by(session) + slack
            && !(self.registry.takes_memory(session) && self.pool.memory_room() >= self.fragment_slabs())
    }

    /// Whether another fragment fits the window that follows the load. What stragglers hold is no part of what the load needs,
    /// and comes back in its own time.
    fn is_within_window(&self) -> bool {
        let Some(window_bytes) = self.following.as_ref().and_then(Footprint::window_bytes) else {
            return true;
        };
        let used = self.pool.read_used().saturating_sub(self.straggler_slabs) + self.fragment_slabs();
        u64::from(used) * SLAB_BYTES as u64 <= window_bytes
    }

    /// The class's running message whose turn it is, and where its fragment goes: to the cache, or to memory for those
    /// that take it instead of waiting (Jet §5). What may not go on now waits elsewhere, with its session.
    pub(super) fn next_to_read(&mut self, class: usize, room: u32) -> Option<Turn> {
        let pressed = self.escape.pressure() != Pressure::Ok;
        let within_window = self.is_within_window();
        let mut next = self.queues[class].running.head();
        while let Some(message) = next {
            let following = self.messages[message].next;
            next = (following != NONE).then_some(following);
            if !self.may_go_on(message) {
                self.bar(self.messages[message].session);
                self.park_running(message);
                continue;
            }
            // As many READs as its connection takes are in flight: the next that ends makes room.
            if !self.peers[self.messages[message].peer as usize].takes_read() {
                continue;
            }
            let session = self.messages[message].session;
            let left = self.messages[message].length - self.messages.transfer(message).requested;
            let left = u32::try_from(left.div_ceil(SLAB_BYTES as u64)).unwrap_or(NONE);
            let plenty = room >= self.room_left_by(session);
            // A low class leaves the cache to the others as soon as it is scarce.
            let prefers_memory = self.registry.takes_memory(session)
                && (!plenty || (pressed && class > 0) || self.messages.transfer(message).in_memory);
            if prefers_memory && self.pool.memory_room() >= left.min(self.fragment_slabs()) {
                return Some(Turn { message, share: Share::Granted });
            }
            if (plenty && within_window) || self.may_use_reserve(message) {
                return Some(Turn { message, share: Share::Read });
            }
        }
        None
    }

    /// Whether the message may have READs now. What its application waits for may, though its session is to be barred:
    /// always where all that came of it was given back. One that did not is as slow as it seems: it leaves the reserve to
    /// the others, and stops where the pool is in danger.
    pub(super) fn may_go_on(&self, message: u32) -> bool {
        let record = &self.messages[message];
        let session = record.session;
        let owner = &self.sessions[session as usize];
        if owner.incomplete.0 != message {
            return !self.is_to_be_barred(session);
        }
        let is_awaited = record.held == 0 && record.reads == 0;
        owner.slots_left() > 0
            && (is_awaited || (!self.lacks_room(session) && self.escape.pressure() != Pressure::Danger))
    }
}
