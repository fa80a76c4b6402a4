//! The end of a connection: farewell, error state, last SRQ entry, completion of its work, and destruction.

use super::VerbsNic;
use super::connections::{FinalEvent, State};
use super::device_events::{DeviceEvent, QpEvent};
use super::later::later;
use super::polling::Expansion;
use super::set_up::Order;
use crate::nic::{DisconnectReason, Event, Nic, Qp, Status};
use std::time::Instant;

impl VerbsNic {
    /// Begins to end a connection at its user's wish. SENDs under way may be taken for a bounded time.
    pub(super) fn begin_farewell(&mut self, qp: Qp) {
        self.give_gathered();
        let farewell = self.options.farewell;
        let Some(connection) = self.connections.get_mut(qp) else { return };
        match connection.state {
            State::Connected if connection.sends > 0 => {
                connection.state = State::Farewell;
                connection.reason = Some(DisconnectReason::Local);
                self.wait_until(qp, later(farewell));
            }
            State::Connected | State::Resolving | State::Connecting | State::Requested | State::Accepting => {
                self.fail(qp, DisconnectReason::Local);
            }
            State::Free | State::Farewell | State::Draining | State::Leaving | State::Ended => {}
        }
    }

    /// Ends a connection, for this reason if it had none before. Its work completes first.
    pub(super) fn fail(&mut self, qp: Qp, reason: DisconnectReason) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if matches!(connection.state, State::Draining | State::Leaving | State::Ended) {
            return;
        }
        if connection.gathered.is_some() {
            // While an order has the QP, nobody could give it these requests.
            self.give_gathered();
            return self.fail(qp, reason);
        }
        connection.reason.get_or_insert(reason);
        if connection.has_order {
            connection.ends = true;
            if connection.state == State::Connected {
                // Nothing more is posted on the connection from now on.
                (connection.state, connection.deadline) = (State::Farewell, None);
            }
            self.set_up.give_up(qp);
            return;
        }
        if connection.pair.is_none() {
            return self.let_go(qp);
        }
        connection.state = State::Draining;
        let (pair, id) = (connection.pair.take(), connection.id.take());
        connection.has_order = true;
        // The connection first waits for the order's outcome, and then for its work.
        connection.deadline = None;
        if let (Some(pair), Some(id)) = (pair, id) {
            self.order(Order::HangUp { qp, id, pair });
        }
    }

    /// Destroys the connection's QP and identifier.
    pub(super) fn let_go(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        (connection.state, connection.deadline) = (State::Leaving, None);
        connection.has_order = true;
        let (pair, id) = (connection.pair.take(), connection.id.take());
        self.order(Order::LetGo { qp, id, pair });
    }

    /// Continues after the QP was destroyed: the device touches no memory of the connection any more.
    pub(super) fn gone(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if let Some(number) = connection.qp_number.take() {
            // The device may give the number to the next QP.
            self.by_qp_number.remove(number);
        }
        self.count_out(qp);
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if connection.is_idle() {
            return self.finish(qp);
        }
        // Work that the QP kept is shown as flushed, then the connection ends. Before that its completions
        // must all be out of the completion queue, where they could be mistaken for those of other
        // connections.
        let seat = connection.seat.expect("a connection keeps its place to its end");
        connection.settles_after = (self.receive_completions.now(), self.send_completions.now(seat));
        self.counters.drains_given_up += 1;
    }

    /// Continues after the QP was taken to the error state, in which its work completes.
    pub(super) fn hung_up(&mut self, qp: Qp) {
        let now = Instant::now();
        let (drain, last_wqe) = (self.options.drain, self.options.last_wqe);
        let Some(connection) = self.connections.get_mut(qp) else { return };
        connection.last_wqe_deadline = Some(now + last_wqe);
        self.wait_until(qp, now + drain);
    }

    /// Queues the connection's last event.
    fn finish(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        connection.state = State::Ended;
        if let Some(seat) = connection.seat.take() {
            self.send_completions.leave(seat);
        }
        let Some(connection) = self.connections.get_mut(qp) else { return };
        let reason = connection.reason.unwrap_or(DisconnectReason::Peer);
        match connection.final_event {
            FinalEvent::Disconnected => self.events.push_back(Event::Disconnected { qp, reason }),
            FinalEvent::Rejected(private_data) => self.events.push_back(Event::Rejected { qp, private_data }),
            FinalEvent::Nothing => self.connections.release(qp),
        }
    }

    pub(super) fn wait_until(&mut self, qp: Qp, deadline: Instant) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        connection.deadline = Some(deadline);
        if !std::mem::replace(&mut connection.is_timed, true) {
            self.timed.push(qp.index);
        }
    }

    pub(super) fn next_deadline(&mut self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for &index in &self.timed {
            let (_, connection) = self.connections.at(index);
            let soonest = match connection.state {
                // The order's outcome wakes a sleeping user.
                _ if connection.has_order => None,
                State::Draining if connection.takes_no_more_entries => connection.deadline,
                State::Draining => connection.last_wqe_deadline,
                _ => connection.deadline,
            };
            next = next.into_iter().chain(soonest).min();
        }
        next
    }

    /// Acts on the connections whose deadline has passed.
    pub(super) fn check_deadlines(&mut self, now: Instant) {
        let mut position = 0;
        while let Some(&index) = self.timed.get(position) {
            let (qp, connection) = self.connections.at(index);
            let is_due = connection.deadline.is_some_and(|deadline| now >= deadline);
            match connection.state {
                // The connection waits for an outcome, and is listed again when that arrives. There may be
                // thousands of them.
                _ if connection.has_order => {
                    connection.is_timed = false;
                    self.timed.swap_remove(position);
                    continue;
                }
                State::Free | State::Requested | State::Connected | State::Ended => {
                    connection.is_timed = false;
                    self.timed.swap_remove(position);
                    continue;
                }
                State::Resolving | State::Connecting | State::Accepting if is_due => {
                    self.fail(qp, DisconnectReason::Transport(libc::ETIMEDOUT));
                }
                State::Farewell if is_due => self.fail(qp, DisconnectReason::Local),
                State::Draining => {
                    let took_last_entry = connection.took_last_entry;
                    if !connection.takes_no_more_entries
                        && (took_last_entry
                            || connection.last_wqe_deadline.is_some_and(|deadline| now >= deadline))
                    {
                        connection.takes_no_more_entries = true;
                        let seat = connection.seat.expect("a connection with a queue pair has a place");
                        let moment = (self.receive_completions.now(), self.send_completions.now(seat));
                        connection.settles_after = moment;
                        self.counters.last_wqe_missed += u64::from(!took_last_entry);
                    }
                }
                State::Resolving
                | State::Connecting
                | State::Accepting
                | State::Farewell
                | State::Leaving => {}
            }
            position += 1;
        }
    }

    /// Acts on an event of the device.
    pub(super) fn handle_device_event(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::Qp { number, event } => self.handle_qp_event(number, event),
            DeviceEvent::SrqLimit => {
                self.counters.srq_limit_reached += 1;
                self.receives.limit_was_reached();
            }
            // Without its SRQ or one of its completion queues this NIC cannot work.
            DeviceEvent::QueueFailed | DeviceEvent::DeviceFailed => self.device_is_gone(),
            DeviceEvent::Port { number, event } => self.handle_port_event(number, event),
            DeviceEvent::Other(_) => {}
        }
    }

    fn handle_qp_event(&mut self, number: u32, event: QpEvent) {
        let Some(index) = self.by_qp_number.get(number) else { return };
        let (qp, connection) = self.connections.at(index);
        let stands = matches!(connection.state, State::Connected | State::Farewell | State::Accepting);
        match event {
            QpEvent::LastEntryTaken => {
                connection.took_last_entry = true;
                if stands {
                    self.fail(qp, DisconnectReason::Peer);
                }
            }
            QpEvent::Failed if stands => {
                self.counters.protocol_errors += 1;
                self.fail(qp, DisconnectReason::Protocol);
            }
            QpEvent::Established if connection.state == State::Accepting => {
                if let Some(id) = &connection.id {
                    id.notify_established();
                }
                self.established(qp);
            }
            QpEvent::Failed | QpEvent::Established => {}
        }
    }

    /// Ends all connections after the device was removed or failed. The device's removal waits until
    /// everything that was made in it is destroyed.
    pub(super) fn device_is_gone(&mut self) {
        if self.device.is_gone() {
            return;
        }
        self.device.set_gone();
        // The descriptors of a dead device would stay readable for ever.
        self.readiness.forget(self.completion_channel.fd());
        self.readiness.forget(self.device.context().async_fd());
        self.events.push_back(Event::Gone);
        self.stop_listening();
        for index in self.connections.indices() {
            let (qp, connection) = self.connections.at(index);
            if connection.state != State::Free {
                self.fail(qp, DisconnectReason::Transport(libc::ENODEV));
            }
        }
    }

    /// Whether a connection may end with the next poll.
    pub(super) fn may_settle(&mut self) -> bool {
        (0..self.timed.len()).any(|position| {
            let (_, connection) = self.connections.at(self.timed[position]);
            match connection.state {
                State::Draining => {
                    connection.takes_no_more_entries && !connection.has_order && connection.is_idle()
                }
                State::Leaving => !connection.has_order,
                _ => false,
            }
        })
    }

    /// Ends connections that take no more SRQ entries and whose work has completed. Work that a QP keeps for
    /// too long is given up.
    pub(super) fn settle_endings(&mut self) {
        let now = Instant::now();
        let mut position = 0;
        while let Some(&index) = self.timed.get(position) {
            position += 1;
            let (qp, connection) = self.connections.at(index);
            if connection.has_order {
                continue;
            }
            let (state, is_idle) = (connection.state, connection.is_idle());
            let waits = match state {
                State::Draining => connection.takes_no_more_entries,
                State::Leaving => true,
                _ => false,
            };
            if !waits {
                continue;
            }
            let (arrived, sent) = connection.settles_after;
            let seat = connection.seat.expect("a connection with a queue pair has a place");
            let is_due = connection.deadline.is_some_and(|deadline| now >= deadline);
            // Completions and SRQ entries of the connection would be lost if they had not been handled yet.
            let is_settled = self.receive_completions.has_passed(arrived)
                && (is_idle || self.send_completions.has_passed(seat, sent));
            match state {
                _ if !is_settled => {}
                State::Draining if is_idle || is_due => self.let_go(qp),
                State::Leaving if is_idle => self.finish(qp),
                State::Leaving if self.expanding.is_none() => {
                    let upto = connection.newest();
                    let (last, others) = (Status::Flushed, Status::Flushed);
                    self.expanding = Some(Expansion { index, upto, last, others });
                }
                _ => {}
            }
        }
    }

    /// Takes the next event. After its last event a connection gives back its place.
    pub(super) fn take_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        match event {
            Event::Connected { qp, .. } => {
                if let Some(connection) = self.connections.get_mut(qp) {
                    connection.announced = true;
                }
            }
            Event::Disconnected { qp, .. } | Event::Rejected { qp, .. } => self.connections.release(qp),
            Event::ConnectRequest { .. } | Event::Gone => {}
        }
        Some(event)
    }
}
