//! Connections end: at their users' wish, by errors, and by faults.

use super::device::{Presence, timed_out};
use super::queue_pair::{End, Kind, SendPayload, State, Wqe};
use super::schedule::What;
use super::world::World;
use crate::Qp;
use crate::nic::{DisconnectReason, Event, Status, Work};

/// Status of work that the other end never acknowledges: verbs' `IBV_WC_RETRY_EXC_ERR`.
const UNACKNOWLEDGED: Status = Status::Other(12);

/// Nanoseconds that the NIC waits for a device that never says that it takes no more SRQ entries for a
/// connection: the default of the one on verbs.
const LAST_WQE_LIMIT_NS: u64 = 20_000_000;

/// Connection of which nothing is left but an SRQ entry.
const NOBODY: Qp = Qp { index: u32::MAX, generation: 0 };

impl World {
    /// Ends a connection at its user's wish, once its SENDs are taken.
    pub fn disconnect(&mut self, end: End) {
        let Some(pair) = self.qp(end) else { return };
        match pair.state {
            State::Asking | State::Asked | State::Answered => self.end(end, DisconnectReason::Local),
            State::Up => {
                self.issue(end);
                let pair = self.qp(end).expect("it was just found");
                pair.state = State::Leaving;
                if pair.has_sends() {
                    let farewell_ns = self.device(end.nic).options.farewell_ns;
                    self.after(farewell_ns, end, What::FarewellLate);
                } else {
                    self.end(end, DisconnectReason::Local);
                }
            }
            _ => {}
        }
    }

    pub(super) fn farewell_late(&mut self, end: End) {
        if self.qp(end).is_some_and(|pair| pair.state == State::Leaving) {
            self.end(end, DisconnectReason::Local);
        }
    }

    pub(super) fn hung_up(&mut self, end: End) {
        let is_heard = |pair: &&mut super::queue_pair::QueuePair| pair.state.stands() && !pair.is_cut;
        if self.qp(end).filter(is_heard).is_some() {
            self.end(end, DisconnectReason::Peer);
        }
    }

    pub(super) fn silent(&mut self, end: End) {
        let Some(pair) = self.qp(end).filter(|pair| pair.state.stands()) else { return };
        let head = pair.head;
        if let Some(wqe) = pair.request_mut(head)
            && wqe.outcome.is_none()
        {
            wqe.outcome = Some(UNACKNOWLEDGED);
        }
        self.complete_done(end);
        self.end(end, timed_out());
    }

    /// Ends a connection. Its work is flushed some time later, and the other end hears of it.
    pub(super) fn end(&mut self, end: End, reason: DisconnectReason) {
        let Some(pair) = self.qp(end).filter(|pair| pair.state.stands()) else { return };
        let (peer, is_cut, outcomes_from_ns) = (pair.peer, pair.is_cut, pair.outcomes_from_ns);
        let was_up = matches!(pair.state, State::Up | State::Leaving);
        pair.state = State::Ended(reason);
        pair.inbound.clear();
        if let Some(peer) = peer {
            if was_up && !is_cut {
                self.leave_on_the_way(end, peer);
            }
            if !is_cut && reason != DisconnectReason::Peer {
                // What this end has answered comes first.
                self.tell_from(outcomes_from_ns, peer, What::HungUp);
            }
        }
        let span_ns = self.one_to(self.conditions.flush_ns);
        self.after(span_ns, end, What::Flush);
    }

    /// Decides what becomes of requests that are on their way while their sender ends: some SENDs still
    /// arrive, and a READ has written a part.
    fn leave_on_the_way(&mut self, end: End, peer: End) {
        let pair = self.qp(end).expect("its caller found it");
        let (from, to) = (pair.head, pair.issued);
        let arrive = self.up_to(to - from);
        for number in from..from + arrive {
            let device = &mut self.devices[end.nic as usize];
            let pair = &device.qps[end.qp.index as usize];
            let Some(wqe) = pair.request(number).filter(|wqe| wqe.outcome.is_none()) else { continue };
            match wqe.kind {
                Kind::Send { payload } => {
                    let mut wqe: Wqe = wqe.clone();
                    if let SendPayload::Registered(sge) = payload {
                        let Ok(stretch) = device.regions.local(&sge) else { continue };
                        stretch.append_to(&mut wqe.inline);
                        wqe.kind = Kind::Send { payload: SendPayload::Inline };
                    }
                    self.late.insert((end, number), wqe);
                }
                Kind::Read { bytes, .. } => self.bring_some(end, peer, (number, bytes)),
            }
        }
    }

    /// Brings a part of what a READ reads. Whether that part could be read makes no difference: the READ is
    /// flushed.
    fn bring_some(&mut self, end: End, peer: End, (number, bytes): (u64, u64)) {
        let part = self.up_to(bytes);
        let _ = self.bring(end, peer, number, part);
    }

    /// Flushes what is left of a connection's work. Until then its READs may write: one that was on its way
    /// does so at the last moment.
    pub(super) fn flush_work(&mut self, end: End) {
        let Some(pair) = self.qp(end) else { return };
        let State::Ended(reason) = pair.state else { return };
        if let Some(peer) = pair.peer.filter(|_| !pair.is_cut) {
            let read_of = |number| match pair.request(number) {
                Some(Wqe { kind: Kind::Read { bytes, .. }, outcome: None, .. }) => Some((number, *bytes)),
                _ => None,
            };
            let reads: Vec<(u64, u64)> = (pair.head..pair.issued).filter_map(read_of).collect();
            reads.into_iter().for_each(|read| self.bring_some(end, peer, read));
        }
        let pair = self.qp(end).expect("it was there");
        for number in pair.head..pair.tail {
            if let Some(wqe) = pair.request_mut(number) {
                wqe.outcome.get_or_insert(Status::Flushed);
            }
        }
        pair.state = State::Flushed(reason);
        self.complete_done(end);
        let taken = self.up_to(self.conditions.entries_taken_max.into());
        self.take_entries(end, taken, |entry| (end.qp, Work::Receive { entry, payload_bytes: 0 }));
        let missing_permille = self.conditions.last_wqe_missing_permille;
        let is_missing = missing_permille > 0 && self.up_to(999) < u64::from(missing_permille);
        let span_ns = self.one_to(self.conditions.last_wqe_ns);
        let is_untold = is_missing || span_ns > LAST_WQE_LIMIT_NS;
        self.qp(end).expect("it was there").is_untold = is_untold;
        self.after(if is_untold { LAST_WQE_LIMIT_NS } else { span_ns }, end, What::LastWqe);
    }

    pub(super) fn last_wqe(&mut self, end: End) {
        let Some(pair) = self.qp(end) else { return };
        if let State::Flushed(reason) = pair.state {
            pair.state = State::Over(reason);
            let is_untold = pair.is_untold;
            self.device(end.nic).counters.last_wqe_missed += u64::from(is_untold);
            let taken = self.up_to(self.conditions.entries_taken_max.into());
            self.take_entries(end, taken, |entry| (NOBODY, Work::SrqFlush { entry }));
            self.device(end.nic).report_end(end.qp);
            self.wake_for_events(end.nic);
        }
    }

    /// Takes SRQ entries for a connection that ended, which come back without a SEND.
    fn take_entries(&mut self, end: End, count: u64, work: impl Fn(u32) -> (Qp, Work)) {
        let device = self.device(end.nic);
        for _ in 0..count {
            let Some(entry) = device.srq.pop_front() else { break };
            let (qp, work) = work(entry.id);
            device.complete(qp, work, Status::Flushed);
        }
        self.wake_for_events(end.nic);
    }

    fn wake_for_events(&mut self, nic: u32) {
        if self.device(nic).has_work() {
            self.wake(nic);
        }
    }

    /// Ends all connections of a NIC whose process has gone.
    pub fn drop_nic(&mut self, nic: u32) {
        if self.device(nic).presence != Presence::Lost {
            for qp in self.device(nic).standing() {
                let end = End { nic, qp };
                if let Some(pair) = self.qp(end)
                    && let (Some(peer), false) = (pair.peer, pair.is_cut)
                {
                    self.tell(peer, What::HungUp);
                }
            }
        }
        let device = self.device(nic);
        device.presence = Presence::Lost;
        device.listens = None;
        device.armed = false;
        if device.bell.take().is_some() {
            self.bells -= 1;
        }
        self.forget_memory(nic);
    }

    /// Takes the memory of a NIC back, and everything that could name it.
    fn forget_memory(&mut self, nic: u32) {
        let device = self.device(nic);
        let max = device.options.regions_max;
        device.regions = super::regions::Regions::new(max);
        device.qps = Vec::new();
        device.srq.clear();
        self.late.retain(|(end, _), _| end.nic != nic);
    }

    /// Takes the power from a NIC's host: nothing comes from it any more, and its peers notice at different
    /// times.
    pub fn lose(&mut self, nic: u32) {
        for qp in self.device(nic).standing() {
            self.cut(End { nic, qp });
        }
        let device = self.device(nic);
        device.presence = Presence::Lost;
        device.listens = None;
    }

    /// Cuts a connection: nothing comes through any more, and its ends notice at different times.
    pub fn cut(&mut self, end: End) {
        let peer = self.peer(end);
        for end in [Some(end), peer].into_iter().flatten() {
            if let Some(pair) = self.qp(end) {
                pair.is_cut = true;
                let span_ns = self.one_to(self.conditions.silence_ns);
                self.after(span_ns, end, What::Silent);
            }
        }
    }

    /// Removes a device from its host. Its connections end, and their peers notice at different times.
    pub fn remove(&mut self, nic: u32) {
        if !self.device(nic).is_there() {
            return;
        }
        let device = self.device(nic);
        device.presence = Presence::Removed;
        device.listens = None;
        device.events.push_back(Event::Gone);
        for (end, what) in std::mem::take(&mut device.held) {
            self.after(0, end, what);
        }
        for qp in self.device(nic).standing() {
            let end = End { nic, qp };
            if let Some(peer) = self.peer(end)
                && let Some(pair) = self.qp(peer)
            {
                pair.is_cut = true;
                let span_ns = self.one_to(self.conditions.silence_ns);
                self.after(span_ns, peer, What::Silent);
            }
            if let Some(pair) = self.qp(end) {
                pair.is_cut = true;
            }
            self.end(end, DisconnectReason::Transport(libc::ENODEV));
        }
        self.wake(nic);
    }

    /// Lets nothing happen at a NIC before a time. What is due meanwhile happens then, in its order.
    pub fn freeze(&mut self, nic: u32, until_ns: u64) {
        let until_ns = match self.device(nic).presence {
            Presence::There => until_ns,
            Presence::Frozen { until_ns: before_ns } => until_ns.max(before_ns),
            Presence::Lost | Presence::Removed => return,
        };
        self.device(nic).presence = Presence::Frozen { until_ns };
        self.at(until_ns, Self::no_qp(nic), What::Thaw);
    }
}
