//! How a connection ends: farewell, error state, work back, quiet, gone.

use super::VerbsNic;
use super::connections::{Last, State};
use super::device_events::{DeviceEvent, QpEvent};
use super::later::later;
use super::polling::Expansion;
use super::set_up::Order;
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
                self.wait_until(qp, later(farewell));
            }
            State::Connected | State::Resolving | State::Connecting | State::Requested | State::Accepting => {
                self.fail(qp, DisconnectReason::Local);
            }
            State::Free | State::Farewell | State::Draining | State::Leaving | State::Ended => {}
        }
    }

    /// It ends, for this reason if there was none before. Its work comes back first.
    pub(super) fn fail(&mut self, qp: Qp, reason: DisconnectReason) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if matches!(connection.state, State::Draining | State::Leaving | State::Ended) {
            return;
        }
        if connection.gathered.is_some() {
            // While the QP is away nobody could give it to the device.
            self.give_gathered();
            return self.fail(qp, reason);
        }
        connection.reason.get_or_insert(reason);
        if connection.is_away {
            connection.ends = true;
            if connection.state == State::Connected {
                // Nothing more is posted on it.
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
        connection.is_away = true;
        // It waits for what comes of the order, and then for its work.
        connection.deadline = None;
        if let (Some(pair), Some(id)) = (pair, id) {
            self.order(Order::HangUp { qp, id, pair });
        }
    }

    /// Destroys what the connection has of RDMA CM and of the device.
    pub(super) fn let_go(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        (connection.state, connection.deadline) = (State::Leaving, None);
        connection.is_away = true;
        let (pair, id) = (connection.pair.take(), connection.id.take());
        self.order(Order::LetGo { qp, id, pair });
    }

    /// It is destroyed; after that the device touches nothing of it.
    pub(super) fn gone(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if let Some(number) = connection.qp_number.take() {
            // The device may give the number to the next.
            self.by_qp_number.remove(number);
        }
        self.count_out(qp);
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if connection.is_idle() {
            return self.finish(qp);
        }
        // What the QP kept is shown as flushed, then it ends. Before that everything of it must be out of the
        // completion queue, where it would be in the way of others'.
        let seat = connection.seat.expect("a connection keeps its place to its end");
        connection.quiet_since = (self.receive_completions.now(), self.send_completions.now(seat));
        self.counters.drains_given_up += 1;
    }

    /// Its QP is in the error state, and its work comes back.
    pub(super) fn hung_up(&mut self, qp: Qp) {
        let now = Instant::now();
        let (drain, last_wqe) = (self.options.drain, self.options.last_wqe);
        let Some(connection) = self.connections.get_mut(qp) else { return };
        connection.last_wqe_deadline = Some(now + last_wqe);
        self.wait_until(qp, now + drain);
    }

    /// Its last event is told.
    fn finish(&mut self, qp: Qp) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        connection.state = State::Ended;
        if let Some(seat) = connection.seat.take() {
            self.send_completions.leave(seat);
        }
        let Some(connection) = self.connections.get_mut(qp) else { return };
        let reason = connection.reason.unwrap_or(DisconnectReason::Peer);
        match connection.last {
            Last::Disconnected => self.events.push_back(Event::Disconnected { qp, reason }),
            Last::Rejected(private_data) => self.events.push_back(Event::Rejected { qp, private_data }),
            Last::Nothing => self.connections.release(qp),
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
                // The outcome wakes who sleeps.
                _ if connection.is_away => None,
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
                // What it waits for is an outcome, with which it is back here: there may be thousands.
                _ if connection.is_away => {
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
                State::Resolving
                | State::Connecting
                | State::Accepting
                | State::Farewell
                | State::Leaving => {}
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
            DeviceEvent::Port { number, said } => self.port_said(number, said),
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
            match connection.state {
                State::Draining => connection.quiet && !connection.is_away && connection.is_idle(),
                State::Leaving => !connection.is_away,
                _ => false,
            }
        })
    }

    /// Connections that are quiet and have their work back are over. What a QP keeps for too long is given up
    /// with it.
    pub(super) fn settle_endings(&mut self) {
        let now = Instant::now();
        let mut position = 0;
        while let Some(&index) = self.timed.get(position) {
            position += 1;
            let (qp, connection) = self.connections.at(index);
            if connection.is_away {
                continue;
            }
            let (state, is_idle) = (connection.state, connection.is_idle());
            let waits = match state {
                State::Draining => connection.quiet,
                State::Leaving => true,
                _ => false,
            };
            if !waits {
                continue;
            }
            let (arrived, sent) = connection.quiet_since;
            let seat = connection.seat.expect("a connection with a queue pair has a place");
            let is_due = connection.deadline.is_some_and(|deadline| now >= deadline);
            // What came back, and what it took from the SRQ, would be lost with it if nobody had looked at
            // it.
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
