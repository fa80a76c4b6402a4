//! The message that an application waits for, and what is reserved for it.
//!
//! Parts of several messages arrive side by side. An application may take its messages one after the other: it then
//! waits for the next part of the message that began to arrive first, while parts of later ones lie unread and hold
//! slabs and slots. So that it never waits for ever, the oldest incomplete message of a session has a reserve that later
//! ones do not touch: a READ, a fragment's slabs, a fragment's slots. What it gets from the reserve its application
//! reads and gives back, so one reserve of slabs and READs serves all sessions.

use super::Receiver;
use crate::admission::GrantPolicy;
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

    /// The class's running message whose turn it is, and where its fragment goes. While there is plenty, the first goes
    /// to the cache; else the first that may use the reserve, or that takes memory instead of waiting (Jet §5). What
    /// belongs to a barred session waits elsewhere, except for what its application waits for.
    pub(super) fn next_to_read(&mut self, class: usize, plenty: bool) -> Option<Turn> {
        let memory_room = self.pool.memory_room();
        let fragment_slabs = self.fragment_slabs();
        let pressed = self.escape.pressure() != Pressure::Ok;
        let mut next = self.queues[class].running.head();
        while let Some(message) = next {
            let following = self.messages[message].next;
            next = (following != NONE).then_some(following);
            let session = self.messages[message].session;
            let owner = &self.sessions[session as usize];
            if owner.incomplete.0 == message {
                if owner.slots_left() == 0 || !self.may_go_on(message, plenty) {
                    continue;
                }
            } else if self.is_to_be_barred(session) {
                self.bar(session);
                self.park_running(message);
                continue;
            }
            let owner = &self.sessions[session as usize];
            let needed = self.messages[message].length - self.messages.transfer(message).requested;
            let needed =
                u32::try_from(needed.div_ceil(SLAB_BYTES as u64)).unwrap_or(NONE).min(fragment_slabs);
            // A low class leaves the cache to the others as soon as it is scarce.
            let prefers_memory = owner.takes_memory
                && (!plenty || (pressed && class > 0) || self.messages.transfer(message).in_memory);
            if prefers_memory && memory_room >= needed {
                return Some(Turn { message, share: Share::Granted });
            }
            if plenty || self.sessions[session as usize].may_use_reserve(message) {
                return Some(Turn { message, share: Share::Read });
            }
        }
        None
    }

    /// Whether what an application waits for may go on though its session is to be barred. One that read all it got of
    /// it is waiting indeed. One that did not is as slow as it seems: it leaves the reserve to the others, and stops where
    /// the pool is in danger.
    fn may_go_on(&self, message: u32, plenty: bool) -> bool {
        let record = &self.messages[message];
        let is_awaited = record.held == 0 && record.reads == 0;
        is_awaited
            || (plenty && self.escape.pressure() != Pressure::Danger)
            || !self.is_to_be_barred(record.session)
    }
}
