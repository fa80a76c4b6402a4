//! Messages that are taken back, by the program or because their deadlines passed.

use super::Protocol;
use crate::send::table::{Entry, Queue, State};
use jet_wire::message::AckStatus;

/// Time between two searches for messages whose deadlines passed, in nanoseconds: a search looks at every
/// place of the table.
const SEARCH_NS: u64 = 1_000_000;
/// SENDs that tell the receiver of messages that are taken back and have not completed, at most. They take no
/// credit, so there are few.
const PENDING_MAX: u32 = 4;

/// What there is to do for messages that are taken back.
#[derive(Debug)]
pub(super) struct Cancels {
    /// Messages that the receiver is to be told of. They stay [`State::Sent`].
    untold: Queue,
    /// Earliest deadline of a message, or earlier.
    next_deadline_ns: Option<u64>,
    /// Time from which on deadlines are looked for again.
    next_search_ns: u64,
    /// SENDs that tell the receiver, and have not completed.
    pending: u32,
}

impl Cancels {
    pub(super) const NONE: Self =
        Self { untold: Queue::EMPTY, next_deadline_ns: None, next_search_ns: 0, pending: 0 };

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.next_deadline_ns
    }

    fn expect(&mut self, deadline_ns: u64) {
        let due_ns = deadline_ns.max(self.next_search_ns);
        self.next_deadline_ns = Some(self.next_deadline_ns.map_or(due_ns, |next| next.min(due_ns)));
    }
}

/// Returns how a message ends that is not at the receiver and is not sent any more.
fn fate(entry: &Entry) -> AckStatus {
    entry.seen.or(entry.failure).unwrap_or(AckStatus::Cancelled)
}

/// Returns the end that is told of a message which the receiver ended so. `Cancelled` says that no
/// application consumed it, and this receiver does not know that of an earlier attempt.
pub(super) fn told(entry: &Entry, status: AckStatus) -> AckStatus {
    if status == AckStatus::Cancelled { entry.seen.unwrap_or(status) } else { status }
}

impl Protocol {
    /// Takes a message back. It is not sent any more. Its end is [`AckStatus::Cancelled`] where no
    /// application consumed it, and else as it would have been. A message that has its end, or that does not
    /// exist, is left alone.
    ///
    /// A message that was sent ends when the receiver says so: at once or almost, if it waits there or is
    /// being read, and when the application ends it, if the application has it.
    pub fn cancel(&mut self, sequence: u64) {
        if let Some(index) = self.table.find(sequence) {
            self.take_back(index);
        }
    }

    /// Sets the time by which a message is taken back if it has no end. Where the time is over, it is taken
    /// back at once. Deadlines are kept to a millisecond.
    pub fn set_deadline(&mut self, index: u32, deadline_ns: u64, now_ns: u64) {
        if deadline_ns <= now_ns {
            return self.take_back(index);
        }
        self.table.get_mut(index).deadline_ns = deadline_ns;
        self.cancels.expect(deadline_ns);
    }

    /// Takes back what has a deadline that is over.
    pub(super) fn keep_deadlines(&mut self, now_ns: u64) {
        if self.cancels.next_deadline_ns.is_none_or(|at_ns| at_ns > now_ns) {
            return;
        }
        self.cancels.next_search_ns = now_ns.saturating_add(SEARCH_NS);
        self.cancels.next_deadline_ns = None;
        let mut any_queued = false;
        for index in self.table.indices() {
            let entry = self.table.get_mut(index);
            if matches!(entry.state, State::Free | State::Ended) || entry.deadline_ns == u64::MAX {
                continue;
            }
            let deadline_ns = entry.deadline_ns;
            if deadline_ns > now_ns {
                self.cancels.expect(deadline_ns);
                continue;
            }
            entry.deadline_ns = u64::MAX;
            if entry.state == State::Queued {
                // All of them leave their queues together.
                any_queued = true;
                self.end_taken_back(index);
            } else {
                self.take_back(index);
            }
        }
        if any_queued {
            self.rebuild_queues();
        }
    }

    fn take_back(&mut self, index: u32) {
        let entry = self.table.get_mut(index);
        match entry.state {
            State::Free | State::Ended => return,
            State::Queued => {
                let queue = if entry.large { &mut self.large } else { &mut self.small };
                self.table.take_out(queue, index);
            }
            State::Waiting => {}
            State::Sent => {
                let asks = entry.large && entry.end.is_none() && self.link.cancels;
                if asks && !entry.taken_back {
                    entry.cancel_queued = true;
                    self.table.push_back(&mut self.cancels.untold, index);
                }
                self.table.get_mut(index).taken_back = true;
                return;
            }
        }
        self.end_taken_back(index);
    }

    /// Ends a message that is in no queue.
    fn end_taken_back(&mut self, index: u32) {
        let entry = self.table.get_mut(index);
        entry.end = Some(fate(entry));
        self.finish(index);
    }

    /// Returns the next message that the receiver is to be told of: its place, and its sequence number. The
    /// SEND takes no credit.
    #[inline]
    pub(super) fn next_cancel(&mut self) -> Option<(u32, u64)> {
        if self.cancels.pending >= PENDING_MAX {
            return None;
        }
        let index = self.table.pop_front(&mut self.cancels.untold)?;
        self.cancels.pending += 1;
        let entry = self.table.get_mut(index);
        entry.cancel_queued = false;
        let sequence = entry.sequence;
        self.stats.cancels += 1;
        self.stats.sends += 1;
        self.sends_pending += 1;
        Some((index, sequence))
    }

    /// Takes back that the receiver was told of a message: the SEND could not be posted.
    pub(super) fn cancel_not_sent(&mut self, index: u32) {
        self.stats.cancels -= 1;
        self.cancels.pending -= 1;
        self.table.get_mut(index).cancel_queued = true;
        self.table.push_front(&mut self.cancels.untold, index);
    }

    /// Notes that the receiver was told of a message.
    pub(super) fn cancel_completed(&mut self) {
        self.cancels.pending = self.cancels.pending.saturating_sub(1);
    }

    /// Notes that the connection is gone: no SEND completes any more.
    pub(super) fn forget_pending_cancels(&mut self) {
        self.cancels.pending = 0;
    }

    /// Notes that a message is not at the receiver any more: nobody has to be told of it.
    #[inline]
    pub(super) fn forget_cancel(&mut self, index: u32) {
        let entry = self.table.get_mut(index);
        if std::mem::take(&mut entry.cancel_queued) {
            self.table.take_out(&mut self.cancels.untold, index);
        }
    }

    /// Ends a message that was taken back and was at the receiver when the connection ended. Returns whether
    /// it was one.
    pub(super) fn ends_with_connection(&mut self, index: u32) -> bool {
        let is_taken_back = self.table.get(index).taken_back;
        if is_taken_back {
            self.end_taken_back(index);
        }
        is_taken_back
    }
}
