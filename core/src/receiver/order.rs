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

    /// The class's running message whose turn it is: the first, while there is plenty; else the first that may use the
    /// reserve.
    pub(super) fn next_to_read(&mut self, class: usize, plenty: bool) -> Option<u32> {
        let running = self.queues[class].running;
        if plenty {
            return running.head();
        }
        let mut list = running.iter(&self.messages);
        list.find(|&message| self.sessions[self.messages[message].session as usize].may_use_reserve(message))
    }
}
