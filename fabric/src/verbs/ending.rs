//! How a connection ends: farewell, error state, work back, quiet, gone.

use super::VerbsNic;
use super::connections::State;
use super::device_events::{DeviceEvent, QpEvent};
use super::polling::Expansion;
use crate::nic::{DisconnectReason, Event, Nic, Qp, Status};
use std::time::Instant;

impl VerbsNic {
    /// The user ends it; SENDs on the way are waited for, for a while.
    pub(super) fn begin_farewell(&mut self, qp: Qp) {
        self.give_gathered();
        let farewell = self.options.farewell;
        let Some(connection) = self.connections.get_mut(qp) else { return };
        match connection.state {
            State::Connected if connection.sends > 0 => {
                connection.state = State::Farewell;
                connection.reason = Some(DisconnectReason::Local);
                self.wait_until(qp, Instant::now() + farewell);
            }
            State::Connected | State::Resolving | State::Connecting | State::Requested | State::Accepting => {
                self.fail(qp, DisconnectReason::Local);
            }
            State::Free | State::Farewell | State::Draining | State::Ended => {}
        }
    }

    /// It ends, for this reason if there was none before. Its work comes back first.
    pub(super) fn fail(&mut self, qp: Qp, reason: DisconnectReason) {
        let now = Instant::now();
        let (drain, last_wqe) = (self.options.drain, self.options.last_wqe);
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if matches!(connection.state, State::Draining | State::Ended) {
            return;
        }
        let reason = *connection.reason.get_or_insert(reason);
        if connection.qp_number.is_none() {
            self.let_go(qp);
            self.events.push_back(Event::Disconnected { qp, reason });
            return;
        }
        connection.state = State::Draining;
        connection.last_wqe_deadline = Some(now + last_wqe);
        if let (Some(pair), Some(id)) = (&connection.pair, &connection.id) {
            pair.fail();
            id.disconnect();
        }
        self.wait_until(qp, now + drain);
    }

    /// Destroys what the connection has of the device.
    pub(super) fn let_go(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        connection.state = State::Ended;
        (connection.pair, connection.id) = (None, None);
        if let Some(number) = connection.qp_number.take() {
            self.by_qp_number.remove(number);
        }
        if let Some(seat) = connection.seat.take() {
            if connection.is_given_up {
                self.send_completions.end(seat);
            }
            self.send_completions.leave(seat);
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
                State::Draining if connection.quiet => connection.deadline,
                State::Draining => connection.last_wqe_deadline,
                _ => connection.deadline,
            };
            next = next.into_iter().chain(soonest).min();
        }
        next
    }

    /// What waited long enough goes on.
    pub(super) fn look_at_time(&mut self, now: Instant) {
        let mut position = 0;
        while let Some(&index) = self.timed.get(position) {
            let (qp, connection) = self.connections.at(index);
            let is_due = connection.deadline.is_some_and(|deadline| now >= deadline);
            match connection.state {
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
                    let told = connection.took_last_entry;
                    if !connection.quiet
                        && (told || connection.last_wqe_deadline.is_some_and(|deadline| now >= deadline))
                    {
                        connection.quiet = true;
                        let seat = connection.seat.expect("a connection with a queue pair has a place");
                        let moment = (self.receive_completions.now(), self.send_completions.now(seat));
                        connection.quiet_since = moment;
                        self.counters.last_wqe_missed += u64::from(!told);
                    }
                }
                State::Resolving | State::Connecting | State::Accepting | State::Farewell => {}
            }
            position += 1;
        }
    }

    /// The device said something of itself, or of what this NIC has in it.
    pub(super) fn device_said(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::Qp { number, said } => self.qp_said(number, said),
            DeviceEvent::SrqLimit => {
                self.counters.srq_limit_reached += 1;
                self.receives.limit_was_reached();
            }
            // Without its SRQ or one of its completion queues this NIC is good for nothing.
            DeviceEvent::QueueFailed | DeviceEvent::DeviceFailed => self.device_is_gone(),
            DeviceEvent::Other(_) => {}
        }
    }

    fn qp_said(&mut self, number: u32, said: QpEvent) {
        let Some(index) = self.by_qp_number.get(number) else { return };
        let (qp, connection) = self.connections.at(index);
        let stands = matches!(connection.state, State::Connected | State::Farewell | State::Accepting);
        match said {
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

    /// The device leaves, and waits until everything in it was let go.
    pub(super) fn device_is_gone(&mut self) {
        if self.device.is_gone() {
            return;
        }
        self.device.set_gone();
        // A dead device's descriptors are readable for ever.
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

    /// A connection may end with the next poll.
    pub(super) fn may_settle(&mut self) -> bool {
        (0..self.timed.len()).any(|position| {
            let (_, connection) = self.connections.at(self.timed[position]);
            connection.state == State::Draining && connection.quiet && connection.is_idle()
        })
    }

    /// Connections that are quiet and have their work back are over. What a QP keeps for too long is given up.
    pub(super) fn settle_endings(&mut self) {
        let now = Instant::now();
        let mut position = 0;
        while let Some(&index) = self.timed.get(position) {
            position += 1;
            let (qp, connection) = self.connections.at(index);
            if connection.state != State::Draining || !connection.quiet {
                continue;
            }
            let (arrived, sent) = connection.quiet_since;
            let seat = connection.seat.expect("a connection with a queue pair has a place");
            // What it took from the SRQ and nobody saw would be lost with it.
            if !self.receive_completions.has_passed(arrived) {
                continue;
            }
            let is_due = connection.deadline.is_some_and(|deadline| now >= deadline);
            if !connection.is_idle() {
                if is_due && self.expanding.is_none() && self.send_completions.has_passed(seat, sent) {
                    self.give_up_drain(qp);
                }
                continue;
            }
            // Its place in the queue is the next one's only when nothing of it lies there.
            if connection.is_given_up && !self.send_completions.has_passed(seat, sent) {
                continue;
            }
            let reason = connection.reason.unwrap_or(DisconnectReason::Peer);
            self.let_go(qp);
            self.events.push_back(Event::Disconnected { qp, reason });
        }
    }

    /// The QP is destroyed with its work; after that the device touches nothing of it.
    fn give_up_drain(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        connection.pair = None;
        if let Some(number) = connection.qp_number.take() {
            // The device may give the number to the next.
            self.by_qp_number.remove(number);
        }
        self.counters.drains_given_up += 1;
        let seat = connection.seat.expect("a connection with a queue pair has a place");
        connection.is_given_up = true;
        connection.quiet_since = (self.receive_completions.now(), self.send_completions.now(seat));
        let upto = connection.newest();
        self.expanding =
            Some(Expansion { index: qp.index, upto, last: Status::Flushed, others: Status::Flushed });
    }

    /// Takes the next event; what is over after it gives back its place.
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
