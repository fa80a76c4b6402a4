//! The end of a message: decided once, when its application is done with it or something else ended it.
//!
//! The functions that every small message passes through are inlined whatever the compiler thinks of their
//! size. Together they make a tenth of the cost of such a message (`jet-bench -- core`).

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::Effects;
use crate::index::NONE;
use crate::messages::{AppState, Kind, Message, MessageState};
use jet_wire::message::AckStatus;
use jet_wire::planted;

impl<P: GrantPolicy> Receiver<P> {
    /// Decides that the message ends with `status`, unless its end was decided before; the message must be in
    /// no list.
    pub(super) fn fail(&mut self, message: u32, status: AckStatus) {
        self.messages[message].state.fail(status);
        self.settle(message);
    }

    /// Decides the message's end if that is possible, and frees what is not needed any more.
    #[inline(always)] // see the file's head
    pub(super) fn settle(&mut self, message: u32) {
        // Nearly every message ends so: its record is looked at once, and free afterwards.
        if let Some(small) = self.messages.consumed_small(message)
            && self.outbox.end_small(small.peer, small.sequence)
        {
            self.stats.ends.add(AckStatus::Consumed);
            self.delivery.close_number(small.session, u32::from(small.number));
            self.messages.free_consumed(message);
            return;
        }
        self.settle_otherwise(message);
    }

    /// Decides the end of any message as [`Self::settle`] does.
    #[inline(never)]
    fn settle_otherwise(&mut self, message: u32) {
        let record = &self.messages[message];
        if record.reads > 0 {
            return;
        }
        match record.state {
            MessageState::Settling => match record.app_state {
                AppState::Finished { code, .. } | AppState::Done { code } if code != 0 => {
                    self.end(message, AckStatus::Rejected(code));
                }
                AppState::Finished { .. } | AppState::Done { .. } if record.held == 0 => {
                    self.end(message, AckStatus::Consumed);
                }
                AppState::Open { .. } if planted!(EarlyAcknowledgement) => {
                    self.end(message, AckStatus::Consumed);
                }
                AppState::Finished { .. }
                | AppState::Done { .. }
                | AppState::Open { .. }
                | AppState::Unaware => {
                    return;
                }
            },
            MessageState::Ending(status) => self.end(message, status),
            MessageState::Ended(_) | MessageState::Failed | MessageState::Acknowledged => {}
            MessageState::Free
            | MessageState::Waiting
            | MessageState::Deferred
            | MessageState::Running
            | MessageState::Backlogged { .. } => return,
        }
        let record = &mut self.messages[message];
        if let AppState::Finished { number, code } = record.app_state
            && record.held == 0
        {
            record.app_state = AppState::Done { code };
            let session = record.session;
            if session != NONE {
                self.delivery.close_number(session, u32::from(number));
            }
        }
        self.messages.free_if_settled(message);
    }

    fn end(&mut self, message: u32, status: AckStatus) {
        self.stats.ends.add(status);
        let Message { peer, kind, wants_reply, .. } = self.messages[message];
        if kind != Kind::Small {
            self.admission.end_request(message, peer, &mut self.messages);
        }
        if peer == NONE {
            self.messages[message].state.mark_acknowledged();
            return;
        }
        if wants_reply && self.end_with_reply(peer, message, status) {
            return;
        }
        self.outbox.end(peer, message, status, &mut self.messages);
    }

    /// Tells the application that the rest of a message will not arrive. What was kept free for that message
    /// is for small messages that wait.
    pub(super) fn withdraw(&mut self, message: u32, corrupt: bool, effects: &mut impl Effects) {
        self.delivery.withdraw(message, corrupt, &mut self.messages, effects);
        let session = self.messages[message].session;
        if session != NONE && self.delivery.backlog(session) > 0 && !self.withdrawn_from.contains(&session) {
            self.withdrawn_from.push(session);
        }
    }

    /// Delivers small messages that waited for what a withdrawn message leaves free.
    #[cold]
    pub(super) fn deliver_after_withdrawals(&mut self, now_ns: u64, effects: &mut impl Effects) {
        while let Some(session) = self.withdrawn_from.pop() {
            if self.registry.is_open(session) {
                self.deliver_backlog(now_ns, session, effects);
            }
        }
    }

    /// Takes a message out of the list it waits in; no further READ is posted for it.
    pub(super) fn unlink(&mut self, message: u32) {
        if matches!(self.messages[message].state, MessageState::Backlogged { .. }) {
            self.delivery.take_backlogged(message, &mut self.messages);
            self.drop_backlogged(message);
        } else {
            self.admission.unlink(message, &mut self.messages);
        }
    }
}
