//! The end of a message: decided once, when its application is done with it or something else ended it.
//!
//! The functions that every small message passes through are inlined whatever the compiler thinks of their
//! size. Together they make a tenth of the cost of such a message (`jet-bench -- core`).

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::index::NONE;
use crate::messages::{Kind, Life, Reader};
use jet_wire::message::AckStatus;

impl<P: GrantPolicy> Receiver<P> {
    /// Decides that the message ends with `status`, unless its end was decided before; the message must be in
    /// no list.
    pub(super) fn fail(&mut self, message: u32, status: AckStatus) {
        self.messages[message].life.fail(status);
        self.settle(message);
    }

    /// Decides the message's end if that is possible, and frees what is not needed any more.
    #[inline(always)] // see the file's head
    pub(super) fn settle(&mut self, message: u32) {
        let record = &self.messages[message];
        if record.reads > 0 {
            return;
        }
        match record.life {
            Life::Settling => match record.reader {
                Reader::Finished { code, .. } | Reader::Done { code } if code != 0 => {
                    self.end(message, AckStatus::Rejected(code));
                }
                Reader::Finished { .. } | Reader::Done { .. } if record.held == 0 => {
                    self.end(message, AckStatus::Consumed);
                }
                Reader::Finished { .. } | Reader::Done { .. } | Reader::Open { .. } | Reader::Unaware => {
                    return;
                }
            },
            Life::Ending(status) => self.end(message, status),
            Life::Ended(_) | Life::Failed | Life::Told => {}
            Life::Free | Life::Waiting | Life::Deferred | Life::Running | Life::Backlogged { .. } => return,
        }
        let record = &mut self.messages[message];
        if let Reader::Finished { number, code } = record.reader
            && record.held == 0
        {
            record.reader = Reader::Done { code };
            let session = record.session;
            if session != NONE {
                self.delivery.close_number(session, u32::from(number));
            }
        }
        self.messages.free_if_settled(message);
    }

    #[inline(always)] // see the file's head
    fn end(&mut self, message: u32, status: AckStatus) {
        self.stats.ends.add(status);
        let record = &mut self.messages[message];
        let peer = record.peer;
        if peer == NONE {
            record.life.tell();
            return;
        }
        if record.kind != Kind::Small {
            self.admission.end_request(peer);
        }
        self.ends.end(peer, message, status, &mut self.messages);
    }

    /// Takes a message out of the list it waits in; no further READ is posted for it.
    pub(super) fn unlink(&mut self, message: u32) {
        if matches!(self.messages[message].life, Life::Backlogged { .. }) {
            self.delivery.take_backlogged(message, &mut self.messages);
            self.drop_backlogged(message);
        } else {
            self.admission.unlink(message, &mut self.messages);
        }
    }
}
