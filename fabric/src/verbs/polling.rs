//! Turns the device's completions into those of [`crate::Nic`].

use super::VerbsNic;
use super::connections::{Posted, State};
use super::status::{reason_of, status_of};
use crate::nic::{Completion, DisconnectReason, Qp, Status, Work};
use jet_wire::message::HEADER_BYTES;
use rdma_sys::ibv_wc_opcode;
use rdma_sys::ibv_wc_status::IBV_WC_REM_OP_ERR;

/// Completion of a send queue whose work is being shown. One completion stands for all work up to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expansion {
    pub index: u32,
    /// Last position that the completion stands for.
    pub upto: u32,
    /// Status of the work at `upto`; `others` is that of the work before it.
    pub last: Status,
    pub others: Status,
}

/// Result of handling an SRQ entry's completion.
enum Received {
    Done(Completion),
    /// The user must first hear that the connection is ready.
    Blocked,
    /// Work that this end posted completed before, and is shown first.
    Later,
}

impl VerbsNic {
    pub(super) fn take_completions(&mut self, out: &mut [Completion]) -> usize {
        let filled = self.fill(out);
        if !self.timed.is_empty() {
            self.settle_endings();
        }
        filled
    }

    /// Takes completions from each queue in use: that of SRQ entries, and in turn those of posted work.
    ///
    /// Taking turns keeps a queue from waiting for ever where the other queues always fill `out`.
    fn fill(&mut self, out: &mut [Completion]) -> usize {
        let mut filled = 0;
        let mut is_blocked = false;
        let mut looks_left = 1 + self.send_completions.in_use();
        loop {
            if let Some(expansion) = self.expanding {
                filled += self.expand(expansion, &mut out[filled..]);
                if self.expanding.is_some() {
                    return filled;
                }
            }
            if filled == out.len() {
                return filled;
            }
            if self.take_sent() {
                continue;
            }
            if !is_blocked && !self.arrivals.is_empty() {
                match self.take_arrival() {
                    Received::Done(completion) => {
                        out[filled] = completion;
                        filled += 1;
                    }
                    Received::Blocked => is_blocked = true,
                    Received::Later => {}
                }
                continue;
            }
            if looks_left == 0 {
                return filled;
            }
            if !self.poll_in_turn() {
                looks_left -= 1;
            }
        }
    }

    /// Polls the queue whose turn it is. `true` where it may have more, and keeps its turn.
    #[inline]
    fn poll_in_turn(&mut self) -> bool {
        let has_more = match self.turn.checked_sub(1) {
            Some(position) => self.send_completions.poll_at(position),
            // Completions that are blocked are still in the batch.
            None if !self.arrivals.is_empty() => false,
            None => self.receive_completions.poll(&mut self.arrivals) && self.arrivals.was_full(),
        };
        if !has_more {
            self.turn = if self.turn < self.send_completions.in_use() { self.turn + 1 } else { 0 };
        }
        has_more
    }

    /// Begins to show the work of the next completion of a send queue. `false` where none is at hand.
    #[inline]
    fn take_sent(&mut self) -> bool {
        let Some(wc) = self.send_completions.peek() else { return false };
        let (id, status, number) = (wc.wr_id, status_of(wc.status), wc.qp_num);
        self.send_completions.pass();
        let index = u32::try_from(id >> 32).expect("indices are u32");
        // A completion of a QP that was given up with its work is ignored.
        if self.by_qp_number.get(number) == Some(index) {
            let upto = u32::try_from(id & u64::from(u32::MAX)).expect("positions are u32");
            self.expanding = Some(Expansion { index, upto, last: status, others: Status::Success });
        }
        true
    }

    /// Takes the next completion of an SRQ entry, if it can be shown.
    #[inline]
    fn take_arrival(&mut self) -> Received {
        let Some(wc) = self.arrivals.peek() else { return Received::Later };
        let (mut status, number, bytes) = (status_of(wc.status), wc.qp_num, wc.byte_len);
        let entry = u32::try_from(wc.wr_id).expect("entries are u32");
        if status == Status::Success && wc.opcode != ibv_wc_opcode::IBV_WC_RECV {
            // A request other than a SEND took the entry, and left nothing in it.
            status = Status::Length;
        }
        let received = self.received(entry, number, status, bytes);
        if matches!(received, Received::Done(_)) {
            self.arrivals.pass();
        }
        received
    }

    /// Shows as much of a completion's work as there is room for.
    #[inline]
    fn expand(&mut self, expansion: Expansion, out: &mut [Completion]) -> usize {
        let Expansion { index, upto, last, others } = expansion;
        let mut filled = 0;
        while filled < out.len() {
            let (qp, connection) = self.connections.at(index);
            let ends = matches!(connection.state, State::Draining | State::Farewell | State::Leaving);
            let Some((position, id, posted)) = connection.take_oldest(&mut self.send_completions) else {
                self.expanding = None;
                return filled;
            };
            let is_last = position == upto;
            // Whatever status the end of a connection gives to its work, the user sees it as flushed.
            let status = match if is_last { last } else { others } {
                Status::Success => Status::Success,
                _ if ends => Status::Flushed,
                status => status,
            };
            let succeeded = status == Status::Success;
            let status = match (posted, status) {
                // Soft-RoCE's status for a SEND that its entry could not take.
                (Posted::Send { .. }, Status::Other(IBV_WC_REM_OP_ERR)) => Status::Length,
                _ => status,
            };
            connection.is_active |= status == Status::Success;
            let work = match posted {
                Posted::Probe => {
                    if is_last {
                        self.expanding = None;
                        self.check_status(qp, status);
                        return filled;
                    }
                    continue;
                }
                Posted::Send { header, payload } => {
                    connection.sends -= 1;
                    self.sends -= 1;
                    self.outgoing.give(header, payload);
                    self.counters.sends += u64::from(succeeded);
                    Work::Send { id }
                }
                Posted::Read { bytes } => {
                    connection.reads -= 1;
                    self.reads -= 1;
                    self.counters.reads += u64::from(succeeded);
                    self.counters.bytes_in += if succeeded { u64::from(bytes) } else { 0 };
                    Work::Read { id }
                }
            };
            self.counters.flushed += u64::from(status == Status::Flushed);
            out[filled] = Completion { qp, work, status };
            filled += 1;
            let says_farewell = connection.state == State::Farewell && connection.sends == 0;
            if is_last {
                self.expanding = None;
                self.check_status(qp, status);
            }
            if says_farewell {
                self.fail(qp, DisconnectReason::Local);
            }
            if is_last {
                return filled;
            }
        }
        filled
    }

    /// Ends the connection of work that did not succeed.
    #[inline]
    fn check_status(&mut self, qp: Qp, status: Status) {
        if let Some(reason) = reason_of(status) {
            self.fail(qp, reason);
        } else if status == Status::Flushed {
            // The device took the QP to the error state unasked. It reported the reason to the peer, or
            // nowhere. If this end had asked for it, this call changes nothing.
            self.fail(qp, DisconnectReason::Peer);
        }
    }

    #[inline]
    fn received(&mut self, entry: u32, number: u32, status: Status, bytes: u32) -> Received {
        let Some(index) = self.by_qp_number.get(number) else {
            // The QP was given up; only its entry is left.
            self.receives_posted -= 1;
            let nobody = Qp { index: u32::MAX, generation: 0 };
            let work = Work::SrqFlush { entry };
            return Received::Done(Completion { qp: nobody, work, status: Status::Flushed });
        };
        let (qp, connection) = self.connections.at(index);
        if !connection.announced {
            match connection.state {
                State::Accepting => {
                    self.established(qp);
                    return Received::Blocked;
                }
                State::Connecting | State::Connected => {
                    // The event is on its way, or waits to be polled.
                    self.check_first = true;
                    return Received::Blocked;
                }
                _ => {}
            }
        }
        // If work that this end posted caused the QP's failure, its completion is in another queue, and tells
        // the reason. So it is shown first.
        if status != Status::Success
            && let Some(seat) = connection.seat
            && self.send_completions.poll_of(seat)
        {
            return Received::Later;
        }
        connection.is_active = true;
        let was_known = connection.announced;
        self.receives_posted -= 1;
        let header_bytes = u32::try_from(HEADER_BYTES).expect("a header is short");
        let status = match status {
            Status::Success if bytes < header_bytes => Status::Length,
            // The user never heard of the connection.
            Status::Success if !was_known => Status::Flushed,
            status => status,
        };
        let payload_bytes = if status == Status::Success { bytes - header_bytes } else { 0 };
        if status == Status::Success {
            self.counters.receives += 1;
            self.counters.bytes_in += u64::from(bytes);
        } else {
            self.counters.flushed += u64::from(status == Status::Flushed);
            self.counters.protocol_errors += u64::from(status == Status::Length);
            self.check_status(qp, status);
        }
        Received::Done(Completion { qp, work: Work::Receive { entry, payload_bytes }, status })
    }
}
