//! Messages that are sent again: because of their end, or because their connection ended.

use super::Protocol;
use super::cancel::told;
use crate::send::connection::Connection;
use crate::send::receiver_timeout::ReceiverTimeout;
use crate::send::table::State;
use jet_wire::message::AckStatus;

impl Protocol {
    /// Applies an end to a message that was sent: the end is final, or the message is retried.
    pub(super) fn settle(&mut self, index: u32, status: AckStatus, now_ns: u64) {
        self.leave_sent(index);
        let entry = self.table.get_mut(index);
        let until_ns = entry.submitted_ns.saturating_add(self.retry_for_ns);
        if !self.options.retry.covers(status) || now_ns >= until_ns || entry.taken_back {
            entry.end = Some(told(entry, status));
            return self.finish(index);
        }
        entry.failures += 1;
        entry.end = None;
        entry.failure = Some(status);
        let may_be_seen = matches!(status, AckStatus::AppGone | AckStatus::Draining);
        entry.seen = entry.seen.or(may_be_seen.then_some(status));
        entry.state = State::Waiting;
        entry.redelivered |= may_be_seen;
        let wait_ns =
            self.retry_waits.wait_ns(entry.failures, self.options.sender_id ^ entry.sequence).max(1);
        entry.retry_at_ns = now_ns.saturating_add(wait_ns).min(until_ns);
        let due = entry.retry_at_ns;
        self.next_retry_ns = Some(self.next_retry_ns.map_or(due, |next| next.min(due)));
        self.stats.retried += 1;
    }

    pub(super) fn requeue_due(&mut self, now_ns: u64) {
        self.next_retry_ns = None;
        for index in self.table.indices() {
            let entry = self.table.get_mut(index);
            if entry.state != State::Waiting {
                continue;
            }
            let due = entry.retry_at_ns;
            if due <= now_ns {
                entry.state = State::Queued;
            } else {
                self.next_retry_ns = Some(self.next_retry_ns.map_or(due, |next| next.min(due)));
            }
        }
        self.rebuild_queues();
    }

    /// Queues again what was sent on a connection that is gone. All of its SENDs have completed.
    pub(super) fn take_back_sent(&mut self, now_ns: u64) {
        self.sends_pending = 0;
        self.forget_pending_cancels();
        for index in self.table.indices() {
            let entry = self.table.get_mut(index);
            entry.send_pending = false;
            if entry.state != State::Sent {
                continue;
            }
            if let Some(status) = entry.end {
                self.settle(index, status, now_ns);
                continue;
            }
            entry.redelivered = true;
            entry.seen.get_or_insert(AckStatus::PeerLost);
            entry.failure = None;
            self.leave_sent(index);
            if self.ends_with_connection(index) {
                continue;
            }
            self.table.get_mut(index).state = State::Queued;
            self.stats.redelivered += 1;
        }
        self.connection = Connection::NONE;
        self.receiver_timeout = ReceiverTimeout::NEVER;
        self.rebuild_queues();
    }

    pub(super) fn rebuild_queues(&mut self) {
        self.small = self.table.queue_again(false);
        self.large = self.table.queue_again(true);
    }
}
