//! How a connection comes about, by RDMA CM's events.

use super::VerbsNic;
use super::connection_manager::{CmEvent, ConnectionId, Terms};
use super::connections::{State, from_context, to_context};
use super::ece;
use super::error::LOOPBACK;
use super::listening::Listening;
use super::queue_pair::{Parts, QpAttributes, QueuePair};
use crate::address::Address;
use crate::nic::{ConnectError, DisconnectReason, Event, ListenError, PostError, PrivateData, Qp};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Instant;

fn resolve(text: &str) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    text.to_socket_addrs()?.next().ok_or_else(none)
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
    pub(super) fn begin_listening(&mut self, address: &Address) -> Result<Address, ListenError> {
        let Address::Rdma(text) = address else {
            return Err(ListenError::WrongFabric { address: address.clone() });
        };
        if self.device.is_gone() {
            let source = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(ListenError::System { address: address.clone(), source });
        }
        let listening = resolve(text).and_then(|asked| Listening::begin(&self.channel, &self.device, asked));
        match listening {
            Ok(listening) => {
                let real = listening.address();
                self.listening.push(listening);
                Ok(Address::Rdma(real.to_string()))
            }
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                Err(ListenError::InUse { address: address.clone() })
            }
            Err(source) => Err(ListenError::System { address: address.clone(), source }),
        }
    }

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
        let from = self.options.source.or(self.device.source).map(|ip| SocketAddr::new(ip, 0));
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
                (connection.id, connection.said) = (Some(id), *private_data);
                self.wait_until(qp, Instant::now() + self.options.handshake);
                Ok(qp)
            }
            Err(error) => {
                self.connections.release(qp);
                Err(failed(error))
            }
        }
    }

    /// Of one QP: SENDs, READs and a probe.
    fn queue_entries(&self) -> u32 {
        self.device_limits.send_queue
    }

    fn take_place(&mut self, state: State) -> Option<Qp> {
        let queue = self.queue_entries();
        self.connections.take(state, queue)
    }

    /// Something happened to an identifier.
    pub(super) fn handle(&mut self, context: u64, event: CmEvent) {
        if let CmEvent::Request { id, private_data, reads } = event {
            self.requested(id, private_data, reads);
            return;
        }
        if let CmEvent::DeviceRemoved { device } = event
            && self.device.context().is_of(device)
        {
            self.device_is_gone();
        }
        // What belongs to a connection that is gone says nothing any more.
        let Some(qp) = from_context(context) else { return };
        let Some(connection) = self.connections.get_mut(qp) else { return };
        match (event, connection.state) {
            (CmEvent::AddressResolved, State::Resolving) => self.find_route(qp),
            (CmEvent::RouteResolved, State::Resolving) => self.ask(qp),
            (CmEvent::Answered { private_data, reads }, State::Connecting) => {
                self.answered(qp, private_data, reads);
            }
            (CmEvent::Established, State::Accepting) => self.established(qp),
            (CmEvent::Rejected { private_data }, State::Connecting) => {
                self.let_go(qp);
                self.events.push_back(Event::Rejected { qp, private_data });
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

    /// The accepted connection stands: the peer said so, or its first message came.
    pub(super) fn established(&mut self, qp: Qp) {
        if let Some(connection) = self.connections.get_mut(qp) {
            connection.state = State::Connected;
            let reads_max = connection.reads_max;
            self.events.push_back(Event::Connected { qp, private_data: nothing(), reads_max });
        }
    }

    fn requested(&mut self, mut id: ConnectionId, private_data: PrivateData, reads: (u8, u8)) {
        if !self.device.context().is_of(id.device()) {
            // Addresses that move from device to device may let it come by another.
            id.reject(&nothing());
            return;
        }
        let Some(qp) = self.take_place(State::Requested) else {
            id.reject(&nothing());
            return;
        };
        id.set_place(to_context(qp));
        let connection = self.connections.get_mut(qp).expect("it was just made");
        (connection.id, connection.peer_reads) = (Some(id), reads);
        self.events.push_back(Event::ConnectRequest { qp, private_data });
    }

    fn find_route(&mut self, qp: Qp) {
        let handshake = self.options.handshake;
        let Some(connection) = self.connections.get_mut(qp) else { return };
        let Some(id) = &connection.id else { return };
        let result = if self.device.context().is_of(id.device()) {
            id.resolve_route(handshake)
        } else {
            // The way leads over another device than this NIC's.
            Err(io::Error::from_raw_os_error(libc::ENETUNREACH))
        };
        if let Err(error) = result {
            self.fail(qp, DisconnectReason::Transport(errno(&error)));
        }
    }

    fn ask(&mut self, qp: Qp) {
        let reads = self.reads_with((u8::MAX, u8::MAX));
        let asked = self.make_qp(qp).and_then(|qp_number| {
            let connection = self.connections.get_mut(qp).expect("it was just seen");
            connection.state = State::Connecting;
            let terms = Terms {
                private_data: connection.said,
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

    /// The peer accepted: the QP begins to work, and then the peer is told.
    fn answered(&mut self, qp: Qp, private_data: PrivateData, peer_reads: (u8, u8)) {
        let (pair, id) = self.connections.get_mut(qp).expect("it was just seen").parts();
        ece::take_answer(pair, id);
        let begun = self.begin_work(qp, peer_reads).and_then(|_| {
            let (_, id) = self.connections.get_mut(qp).expect("it was just seen").parts();
            id.establish()
        });
        match begun {
            Ok(()) => {
                let connection = self.connections.get_mut(qp).expect("it was just seen");
                connection.state = State::Connected;
                let reads_max = connection.reads_max;
                self.events.push_back(Event::Connected { qp, private_data, reads_max });
            }
            Err(error) => self.fail(qp, DisconnectReason::Transport(errno(&error))),
        }
    }

    /// Lets the connection's QP work; how many READs it answers, and makes.
    fn begin_work(&mut self, qp: Qp, peer_reads: (u8, u8)) -> io::Result<(u8, u8)> {
        let reads = self.reads_with(peer_reads);
        let wanted = QpAttributes {
            reads_answered: reads.0,
            reads_made: reads.1,
            retry: self.options.retry,
            rnr_retry: self.options.rnr_retry,
            rnr_timer: self.options.rnr_timer,
            ack_timeout: self.options.ack_timeout,
            tos: self.options.tos,
        };
        let connection = self.connections.get_mut(qp).expect("the caller looked");
        connection.reads_max = reads.1.into();
        let (pair, id) = connection.parts();
        pair.begin_work(id, &wanted)?;
        Ok(reads)
    }

    /// How many READs this end answers at once, and makes, on a connection with a peer that answers and makes so many.
    fn reads_with(&self, (peer_answers, peer_makes): (u8, u8)) -> (u8, u8) {
        let byte = |reads: u32| u8::try_from(reads).unwrap_or(u8::MAX);
        let answered = byte(self.device_limits.reads_answered_per_qp).min(peer_makes);
        (answered, byte(self.limits.reads_per_qp_max).min(peer_answers))
    }

    pub(super) fn accept_request(&mut self, qp: Qp, private_data: &PrivateData) -> Result<(), PostError> {
        match self.connections.get_mut(qp) {
            Some(connection) if connection.state == State::Requested => {}
            _ => return Err(PostError::Stale),
        }
        let connection = self.connections.get_mut(qp).expect("it was just seen");
        let peer_reads = connection.peer_reads;
        if self.limits.reads_per_qp_max > 0 && self.reads_with(peer_reads).1 == 0 {
            // READs on such a connection would wait for ever.
            self.counters.protocol_errors += 1;
            self.fail(qp, DisconnectReason::Protocol);
            return Err(PostError::Stale);
        }
        let accepted = self.make_qp(qp).and_then(|qp_number| {
            let (pair, id) = self.connections.get_mut(qp).expect("it was just seen").parts();
            ece::take_offer(pair, id);
            let terms = Terms {
                private_data: *private_data,
                qp_number,
                reads: self.begin_work(qp, peer_reads)?,
                retry: self.options.retry,
                rnr_retry: self.options.rnr_retry,
            };
            let (pair, id) = self.connections.get_mut(qp).expect("it was just seen").parts();
            ece::answer(pair, id);
            id.accept(&terms)
        });
        if let Err(error) = accepted {
            self.fail(qp, DisconnectReason::Transport(errno(&error)));
            return Err(PostError::Stale);
        }
        self.connections.get_mut(qp).expect("it was just seen").state = State::Accepting;
        self.wait_until(qp, Instant::now() + self.options.handshake);
        Ok(())
    }

    pub(super) fn reject_request(&mut self, qp: Qp, private_data: &PrivateData) {
        let Some(connection) = self.connections.get_mut(qp) else { return };
        if connection.state == State::Ended {
            // The peer went meanwhile. Who refuses a request hears nothing of it any more.
            self.events.retain(|event| !matches!(event, Event::Disconnected { qp: of, .. } if *of == qp));
            self.connections.release(qp);
            return;
        }
        if connection.state != State::Requested {
            return;
        }
        if let Some(id) = connection.id.take() {
            id.reject(private_data);
        }
        self.connections.release(qp);
    }

    /// Makes the connection's QP; its number.
    fn make_qp(&mut self, qp: Qp) -> io::Result<u32> {
        let seat = self.send_completions.take()?;
        let parts = Parts {
            domain: &self.domain,
            send_completions: self.send_completions.as_ptr(seat),
            receive_completions: self.receive_completions.as_ptr(),
            receives: &self.receives,
            send_entries: self.queue_entries(),
            send_sges: self.limits.scatter_max.max(self.device_limits.send_sges),
            inline: self.device_limits.inline_data,
        };
        let pair = QueuePair::new(&parts).inspect_err(|_| self.send_completions.leave(seat))?;
        let number = pair.number();
        let connection = self.connections.get_mut(qp).expect("the caller looked");
        (connection.qp_number, connection.inline_bytes) = (Some(number), pair.inline_bytes());
        (connection.pair, connection.seat) = (Some(pair), Some(seat));
        self.by_qp_number.insert(number, qp.index);
        Ok(number)
    }
}
