//! A message's end: decided once, when its application is done with it or something else ended it.
//!
//! What every small message passes through is inlined whatever the compiler thinks of its size: together a tenth of what
//! such a message costs (`jet-bench -- core`).

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::message::{NONE, State};
use jet_wire::message::AckStatus;

impl<P: GrantPolicy> Receiver<P> {
    /// The message ends like this, whatever else happens to it; it must be in no list.
    pub(super) fn fail(&mut self, message: u32, status: AckStatus) {
        let record = &mut self.messages[message];
        if record.failure.is_none() && !record.ended {
            record.failure = Some(status);
        }
        self.settle(message);
    }

    /// Decides the message's end if it can be decided, and lets go of what nobody needs.
    #[inline(always)] // see the file's head
    pub(super) fn settle(&mut self, message: u32) {
        let record = &self.messages[message];
        if record.state != State::Settling
            || record.reads > 0
            || !(record.finished || record.failure.is_some())
        {
            return;
        }
        self.settle_now(message);
    }

    #[inline(always)] // see the file's head
    fn settle_now(&mut self, message: u32) {
        let record = &self.messages[message];
        if !record.ended {
            let status = match record.failure {
                Some(status) => status,
                None if record.code != 0 => AckStatus::Rejected(record.code),
                None if record.held == 0 => AckStatus::Consumed,
                None => return,
            };
            self.end(message, status);
        }
        let record = &self.messages[message];
        if record.app_open && record.finished && record.held == 0 {
            let (session, number) = (record.session, record.app_message);
            self.messages[message].app_open = false;
            if session != NONE {
                self.delivery.close_number(session, number);
            }
        }
        self.messages.free_if_settled(message);
    }

    #[inline(always)] // see the file's head
    fn end(&mut self, message: u32, status: AckStatus) {
        self.stats.ends.add(status);
        let record = &mut self.messages[message];
        record.ended = true;
        let peer = record.peer;
        if peer == NONE {
            record.acked = true;
            return;
        }
        if !record.small {
            self.admission.end_request(peer);
        }
        self.ends.end(peer, message, status, &mut self.messages);
    }

    /// Takes a message out of whatever list it waits in; no further READ is posted for it.
    pub(super) fn unlink(&mut self, message: u32) {
        if self.messages[message].state == State::Backlogged {
            self.delivery.take_backlogged(message, &mut self.messages);
            self.drop_backlogged(message);
        } else {
            self.admission.unlink(message, &mut self.messages);
        }
    }
}
