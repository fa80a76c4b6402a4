//! How a connection is made, step by step, by RDMA CM's events.

use super::VerbsNic;
use super::connection_manager::{CmEvent, ConnectionId, ReadDepth, Terms};
use super::connections::{FinalEvent, State, from_context, to_context};
use super::ece;
use super::error::LOOPBACK;
use super::later::later;
use super::options::resolve;
use super::queue_pair::{BeginError, Parts, QpAttributes, QueuePair};
use super::set_up::Order;
use crate::address::Address;
use crate::nic::{ConnectError, DisconnectReason, Event, PostError, PrivateData, Qp, Source};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Refusal that a peer gets whose packets are longer than this end's port takes.
const PACKETS_TOO_LONG: &[u8] = b"jet: packets too long";

fn errno_of(error: &BeginError) -> i32 {
    match error {
        BeginError::Packets { .. } => libc::EMSGSIZE,
        BeginError::System(error) => errno(error),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn loopback(socket: SocketAddr) -> io::Error {
    io::Error::other(format!("{} {LOOPBACK}", socket.ip()))
}

fn nothing() -> PrivateData {
    PrivateData::new(&[]).expect("nothing is short enough")
}

impl VerbsNic {
    pub(super) fn begin_connecting(
        &mut self,
        address: &Address,
        private_data: &PrivateData,
    ) -> Result<Qp, ConnectError> {
        let Address::Rdma(text) = address else {
            return Err(ConnectError::WrongFabric { address: address.clone() });
        };
        let failed = |source| ConnectError::System { address: address.clone(), source };
        if self.device.is_gone() {
            return Err(failed(io::Error::from_raw_os_error(libc::ENODEV)));
        }
        let to = resolve(text).map_err(failed)?;
        if to.ip().is_loopback() {
            return Err(failed(loopback(to)));
        }
        let from = self.options.source.or(self.device.port().source).map(|ip| SocketAddr::new(ip, 0));
        let max = self.limits.qps_max;
        let qp = self.take_place(State::Resolving).ok_or(ConnectError::TooMany { max })?;
        let begun = ConnectionId::new(&self.channel, to_context(qp)).and_then(|id| {
            if let Some(tos) = self.options.tos {
                id.set_tos(tos)?;
            }
            id.resolve_address(from, to, self.options.handshake)?;
            Ok(id)
        });
        match begun {
            Ok(id) => {
                let connection = self.connections.get_mut(qp).expect("it was just made");
                (connection.id, connection.private_data) = (Some(id), *private_data);
                self.wait_until(qp, later(self.options.handshake));
                Ok(qp)
            }
            Err(error) => {
                self.connections.release(qp);
                Err(failed(error))
            }
        }
    }

    /// Returns the places of one QP's send queue: for SENDs, READs and a probe.
    fn queue_entries(&self) -> u32 {
        self.device_limits.send_queue
    }

    fn take_place(&mut self, state: State) -> Option<Qp> {
        let queue = self.queue_entries();
        self.connections.take(state, queue)
    }

    /// Acts on an event of an identifier. `context` is the number that the identifier carries.
    pub(super) fn handle(&mut self, context: u64, event: CmEvent) {
        if let CmEvent::Request { id, private_data, reads } = event {
            self.requested(id, private_data, reads);
            return;
        }
        if let CmEvent::DeviceRemoved { device } = event
            && self.device.port().is_of(device)
        {
            self.device_is_gone();
        }
        if matches!(event, CmEvent::AddressMoved) {
            // A connection keeps the path that it has, and ends if that leads nowhere.
            return self.survey_soon();
        }
        // Events for a connection that is gone are ignored.
        let Some(qp) = from_context(context) else { return };
        let Some(connection) = self.connections.get_mut(qp) else { return };
        match (event, connection.state) {
            (CmEvent::AddressResolved, State::Resolving) => self.find_route(qp),
            (CmEvent::RouteResolved, State::Resolving) => self.ask(qp),
            (CmEvent::Answered { private_data, reads }, State::Connecting) => {
                self.answered(qp, private_data, reads);
            }
            (CmEvent::Established, State::Accepting) => self.established(qp),
            (CmEvent::Rejected { private_data }, State::Connecting)
                if private_data.as_slice().starts_with(PACKETS_TOO_LONG) =>
            {
                self.fail(qp, DisconnectReason::Transport(libc::EMSGSIZE));
            }
            (CmEvent::Rejected { private_data }, State::Connecting) => {
                connection.final_event = FinalEvent::Rejected(private_data);
                self.let_go(qp);
            }
            (CmEvent::Failed(errno), state) if state != State::Ended => {
                self.fail(qp, DisconnectReason::Transport(errno));
            }
            (CmEvent::Rejected { .. }, state) if state != State::Ended => {
                self.fail(qp, DisconnectReason::Transport(libc::ECONNREFUSED));
            }
            (CmEvent::Disconnected, state) if state != State::Ended => {
                self.fail(qp, DisconnectReason::Peer);
            }
            (CmEvent::DeviceRemoved { .. }, state) if state != State::Ended => {
                self.fail(qp, DisconnectReason::Transport(libc::ENODEV));
            }
            _ => {}
        }
    }

    /// Marks an accepted connection as ready, after the peer's confirmation or its first message arrived.
    pub(super) fn established(&mut self, qp: Qp) {
        if let Some(connection) = self.connections.get_mut(qp) {
            connection.state = State::Connected;
            let reads_max = connection.reads_max;
            self.events.push_back(Event::Connected { qp, private_data: nothing(), reads_max });
            self.count_in(qp);
        }
    }

    fn requested(&mut self, mut id: ConnectionId, private_data: PrivateData, reads: ReadDepth) {
        if !self.device.port().is_of(id.device()) {
            // The request may arrive over another device when addresses move between devices.
            return self.order(Order::Refuse { qp: None, id, words: nothing() });
        }
        // Who cannot be told is in no network.
        if !id
            .peer()
            .map_or_else(|| self.options.networks.are_all(), |peer| self.options.networks.contain(peer))
        {
            self.counters.networks_refused += 1;
            return self.order(Order::Refuse { qp: None, id, words: nothing() });
        }
        let Some(qp) = self.take_place(State::Requested) else {
            return self.order(Order::Refuse { qp: None, id, words: nothing() });
        };
        id.set_place(to_context(qp));
        let connection = self.connections.get_mut(qp).expect("it was just made");
        let source = id.peer().map_or_else(Source::of_nobody, Source::of_address);
        (connection.id, connection.peer_reads) = (Some(id), reads);
        self.events.push_back(Event::ConnectRequest { qp, source, private_data });
    }

    fn find_route(&mut self, qp: Qp) {
        let handshake = self.options.handshake;
        let Some(connection) = self.connections.get_mut(qp) else { return };
        let Some(id) = &connection.id else { return };
        let result = if self.device.port().is_of(id.device()) {
            id.resolve_route(handshake)
        } else {
            // The route leads over another device than this NIC's.
            Err(io::Error::from_raw_os_error(libc::ENETUNREACH))
        };
        if let Err(error) = result {
            self.fail(qp, DisconnectReason::Transport(errno(&error)));
        }
    }

    fn ask(&mut self, qp: Qp) {
        let reads = self.reads_beside(ReadDepth::MOST);
        let parts = self.parts_for(qp);
        // The numbers of destroyed QPs must be free before the device uses them again.
        self.take_outcomes();
        let asked = QueuePair::new(&parts).and_then(|pair| {
            let qp_number = pair.number();
            self.take_pair(qp, pair);
            let connection = self.connections.get_mut(qp).expect("it was just seen");
            connection.state = State::Connecting;
            let terms = Terms {
                private_data: connection.private_data,
                qp_number,
                reads,
                retry: self.options.retry,
                rnr_retry: self.options.rnr_retry,
            };
            let (pair, id) = connection.parts();
            ece::offer(pair, id);
            id.connect(&terms)
        });
        if let Err(error) = asked {
            self.fail(qp, DisconnectReason::Transport(errno(&error)));
        }
    }

    /// Continues after the peer accepted: the QP begins to work, and then the peer is told.
    fn answered(&mut self, qp: Qp, private_data: PrivateData, peer_reads: ReadDepth) {
        let wanted = self.attributes_of(peer_reads);
        let connection = self.connections.get_mut(qp).expect("it was just seen");
        connection.reads_max = u32::from(wanted.reads.makes);
        let (pair, id) = connection.parts();
        ece::take_answer(pair, id);
        match pair.begin_work(id, &wanted).and_then(|()| Ok(id.establish()?)) {
            Ok(()) => {
                let connection = self.connections.get_mut(qp).expect("it was just seen");
                connection.state = State::Connected;
                let reads_max = connection.reads_max;
                self.events.push_back(Event::Connected { qp, private_data, reads_max });
                self.count_in(qp);
            }
            Err(error) => self.fail(qp, DisconnectReason::Transport(errno_of(&error))),
        }
    }

    /// Returns the attributes of a QP for a peer that makes and answers so many READs.
    fn attributes_of(&self, peer_reads: ReadDepth) -> QpAttributes {
        QpAttributes {
            reads: self.reads_beside(peer_reads),
            retry: self.options.retry,
            rnr_retry: self.options.rnr_retry,
            rnr_timer: self.options.rnr_timer,
            ack_timeout: self.options.ack_timeout,
            tos: self.options.tos,
        }
    }

    /// Returns the READs that this end makes and answers with a peer of this READ depth.
    fn reads_beside(&self, peer: ReadDepth) -> ReadDepth {
        let byte = |reads: u32| u8::try_from(reads).unwrap_or(u8::MAX);
        let own = ReadDepth {
            answers: byte(self.device_limits.reads_answered_per_qp),
            makes: byte(self.limits.reads_per_qp_max),
        };
        own.beside(peer)
    }

    pub(super) fn accept_request(&mut self, qp: Qp, private_data: &PrivateData) -> Result<(), PostError> {
        match self.connections.get_mut(qp) {
            Some(connection) if connection.state == State::Requested => {}
            _ => return Err(PostError::Stale),
        }
        let peer_reads = self.connections.get_mut(qp).expect("it was just seen").peer_reads;
        let wanted = self.attributes_of(peer_reads);
        if self.limits.reads_per_qp_max > 0 && wanted.reads.makes == 0 {
            // READs on such a connection would wait for ever.
            self.counters.protocol_errors += 1;
            self.fail(qp, DisconnectReason::Protocol);
            return Err(PostError::Stale);
        }
        let parts = self.parts_for(qp);
        let connection = self.connections.get_mut(qp).expect("it was just seen");
        (connection.private_data, connection.state) = (*private_data, State::Accepting);
        connection.reads_max = u32::from(wanted.reads.makes);
        connection.has_order = true;
        let id = connection.id.take().expect("a request has an identifier");
        self.wait_until(qp, later(self.options.handshake));
        self.order(Order::Make { qp, id, parts, wanted });
        Ok(())
    }

    /// Continues after the QP of an accepted connection was made, or could not be made.
    pub(super) fn made(&mut self, qp: Qp, id: ConnectionId, result: Result<QueuePair, BeginError>) {
        let connection = self.order_returned(qp);
        connection.id = Some(id);
        match result {
            Ok(pair) => self.take_pair(qp, pair),
            Err(BeginError::Packets { bytes, standing }) => {
                self.watch.update(|status| {
                    status.take_standing(&standing);
                    (status.refused, status.refused_packet_bytes) = (status.refused + 1, bytes);
                });
                // The port was surveyed a while ago, and has changed.
                self.begin_survey(false);
                return self.refuse(qp, DisconnectReason::Transport(libc::EMSGSIZE), PACKETS_TOO_LONG);
            }
            Err(BeginError::System(error)) => {
                return self.fail(qp, DisconnectReason::Transport(errno(&error)));
            }
        }
        if self.ends_now(qp) {
            return;
        }
        // The QP's number is known from here on, so that messages which arrive once the peer knows find their
        // connection.
        let peer_reads = self.connections.get_mut(qp).expect("it is back").peer_reads;
        let reads = self.reads_beside(peer_reads);
        let connection = self.connections.get_mut(qp).expect("it is back");
        let terms = Terms {
            private_data: connection.private_data,
            qp_number: connection.qp_number.expect("it was just made"),
            reads,
            retry: self.options.retry,
            rnr_retry: self.options.rnr_retry,
        };
        connection.has_order = true;
        let id = connection.id.take().expect("it is back");
        self.order(Order::Accept { qp, id, terms });
    }

    /// Refuses a connection request that this end's user has accepted, with these words as private data.
    fn refuse(&mut self, qp: Qp, reason: DisconnectReason, words: &[u8]) {
        let connection = self.connections.get_mut(qp).expect("the caller looked");
        connection.reason.get_or_insert(reason);
        (connection.state, connection.deadline) = (State::Leaving, None);
        connection.has_order = true;
        let id = connection.id.take().expect("a request has an identifier");
        let words = PrivateData::new(words).expect("short");
        self.order(Order::Refuse { qp: Some(qp), id, words });
    }

    pub(super) fn accepted(&mut self, qp: Qp, id: ConnectionId, result: io::Result<()>) {
        let connection = self.order_returned(qp);
        if connection.state == State::Connected {
            // The first message came before the peer's confirmation, for which RDMA CM still waits.
            id.notify_established();
        }
        connection.id = Some(id);
        match result {
            Ok(()) => {
                self.ends_now(qp);
            }
            Err(error) => self.fail(qp, DisconnectReason::Transport(errno(&error))),
        }
    }

    pub(super) fn reject_request(&mut self, qp: Qp, private_data: &PrivateData) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        match connection.state {
            State::Requested => {
                (connection.state, connection.final_event) = (State::Leaving, FinalEvent::Nothing);
                connection.has_order = true;
                let id = connection.id.take().expect("a request has an identifier");
                self.order(Order::Refuse { qp: Some(qp), id, words: *private_data });
            }
            // The peer went meanwhile. A user that refuses a request gets no further event of it.
            State::Leaving => connection.final_event = FinalEvent::Nothing,
            State::Ended => {
                self.events.retain(|event| !matches!(event, Event::Disconnected { qp: of, .. } if *of == qp));
                self.connections.release(qp);
            }
            _ => {}
        }
    }

    /// Takes a seat for the completions of a connection, and returns what its QP is made of.
    fn parts_for(&mut self, qp: Qp) -> Parts {
        let (seat, send_completions) = self.send_completions.take();
        self.connections.get_mut(qp).expect("the caller looked").seat = Some(seat);
        Parts {
            domain: Arc::clone(&self.domain),
            port: self.device.port().clone(),
            send_completions,
            receive_completions: self.receive_completions.as_ptr(),
            receives: self.receives.as_ptr(),
            send_entries: self.queue_entries(),
            send_sges: self.limits.scatter_max.max(self.device_limits.send_sges),
            inline: self.device_limits.inline_data,
        }
    }

    /// Enters a connection's new QP in the tables.
    fn take_pair(&mut self, qp: Qp, pair: QueuePair) {
        let number = pair.number();
        let connection = self.connections.get_mut(qp).expect("the caller looked");
        (connection.qp_number, connection.inline_bytes) = (Some(number), pair.inline_bytes());
        connection.pair = Some(pair);
        self.send_completions.made(connection.seat.expect("it has a place since its QP was ordered"));
        self.by_qp_number.insert(number, qp.index);
    }
}
