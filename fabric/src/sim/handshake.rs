//! Connections are made.

use super::device::timed_out;
use super::queue_pair::{End, QueuePair, State};
use super::schedule::What;
use super::world::World;
use crate::Qp;
use crate::nic::{DisconnectReason, Event, PostError, PrivateData, Source};

impl World {
    /// Begins to connect. `None`: there is no room for another connection.
    pub fn connect(&mut self, nic: u32, address: Option<u32>, said: &PrivateData) -> Option<Qp> {
        let qp = self.device(nic).begin(State::Asking)?;
        let from = End { nic, qp };
        let handshake_ns = self.device(nic).options.handshake_ns;
        let pair = self.qp(from).expect("it was just made");
        pair.said = *said;
        pair.address = address.unwrap_or(u32::MAX);
        match self.listener(address) {
            Some(listener) => self.tell(Self::no_qp(listener), What::Asked { from }),
            None => self.tell(from, What::Refused { by_user: false }),
        }
        self.after(handshake_ns, from, What::SetUpLate);
        Some(qp)
    }

    fn listener(&self, address: Option<u32>) -> Option<u32> {
        let address = address?;
        (0..).zip(&self.devices).find(|(_, device)| device.listens == Some(address)).map(|(nic, _)| nic)
    }

    pub(super) fn asked(&mut self, nic: u32, from: End) {
        let is_heard = |asking: &&mut QueuePair| asking.state == State::Asking && !asking.is_cut;
        let Some(asking) = self.qp(from).filter(is_heard) else { return };
        let (address, said) = (asking.address, asking.said);
        let device = self.device(nic);
        let qp = (device.listens == Some(address)).then(|| device.begin(State::Asked)).flatten();
        let Some(qp) = qp else {
            return self.tell(from, What::Refused { by_user: false });
        };
        let end = End { nic, qp };
        self.qp(end).expect("it was just made").peer = Some(from);
        self.qp(from).expect("it was just found").peer = Some(end);
        self.device(nic).events.push_back(Event::ConnectRequest {
            qp,
            source: Source::of_number(from.nic),
            private_data: said,
        });
        self.wake(nic);
    }

    /// Answers a connection request.
    pub fn accept(&mut self, end: End, answer: &PrivateData) -> Result<(), PostError> {
        let pair = self.qp(end).filter(|pair| pair.state == State::Asked).ok_or(PostError::Stale)?;
        let peer = pair.peer.expect("who was asked has a peer");
        pair.state = State::Answered;
        let reads_max = self.depth(end, peer);
        let makes_reads = self.device(end.nic).limits.reported.reads_per_qp_max > 0;
        if makes_reads && reads_max == 0 {
            self.device(end.nic).counters.protocol_errors += 1;
            self.end(end, DisconnectReason::Protocol);
            return Err(PostError::Stale);
        }
        self.qp(end).expect("it was just found").reads_max = reads_max;
        if let Some(asking) = self.qp(peer) {
            asking.answer = *answer;
        }
        self.tell(peer, What::Accepted);
        let handshake_ns = self.device(end.nic).options.handshake_ns;
        self.after(handshake_ns, end, What::SetUpLate);
        Ok(())
    }

    /// Returns how many READs of the other end's memory an end may have outstanding.
    fn depth(&mut self, end: End, peer: End) -> u32 {
        let made = self.device(end.nic).limits.reported.reads_per_qp_max;
        made.min(self.device(peer.nic).limits.reads_answered_per_qp)
    }

    /// Refuses a connection request.
    pub fn reject(&mut self, end: End, answer: &PrivateData) {
        let Some(pair) = self.qp(end).filter(|pair| pair.state == State::Asked) else { return };
        if let Some(peer) = pair.peer {
            if let Some(asking) = self.qp(peer) {
                asking.answer = *answer;
                asking.peer = None;
            }
            self.tell(peer, What::Refused { by_user: true });
        }
        self.device(end.nic).release(end.qp);
    }

    pub(super) fn accepted(&mut self, end: End) {
        let Some(pair) = self.qp(end).filter(|pair| pair.state == State::Asking && !pair.is_cut) else {
            return;
        };
        let (peer, private_data) = (pair.peer.expect("who was accepted has a peer"), pair.answer);
        pair.state = State::Up;
        let reads_max = self.depth(end, peer);
        self.qp(end).expect("it was just found").reads_max = reads_max;
        self.device(end.nic).events.push_back(Event::Connected { qp: end.qp, private_data, reads_max });
        self.wake(end.nic);
        if std::mem::take(&mut self.halves_next) {
            self.happened.half_open += 1;
            self.cut(end);
        }
        self.tell(peer, What::Ready);
    }

    pub(super) fn ready(&mut self, end: End) {
        let Some(pair) = self.qp(end).filter(|pair| pair.state == State::Answered && !pair.is_cut) else {
            return;
        };
        pair.state = State::Up;
        let reads_max = pair.reads_max;
        let private_data = PrivateData::new(&[]).expect("empty private data");
        self.device(end.nic).events.push_back(Event::Connected { qp: end.qp, private_data, reads_max });
        self.wake(end.nic);
    }

    pub(super) fn refused(&mut self, end: End, by_user: bool) {
        let Some(pair) = self.qp(end).filter(|pair| pair.state == State::Asking && !pair.is_cut) else {
            return;
        };
        let private_data = pair.answer;
        let reason = DisconnectReason::Transport(libc::ECONNREFUSED);
        let qp = end.qp;
        let event =
            if by_user { Event::Rejected { qp, private_data } } else { Event::Disconnected { qp, reason } };
        self.device(end.nic).report(qp, event);
        self.wake(end.nic);
    }

    pub(super) fn set_up_late(&mut self, end: End) {
        if self.qp(end).is_some_and(|pair| matches!(pair.state, State::Asking | State::Answered)) {
            self.end(end, timed_out());
        }
    }
}
