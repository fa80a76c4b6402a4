//! Writing to a connection's stream: frames of this end, the answers that this end owes, and registered
//! memory between them.

use super::pushes::Offer;
use super::{Connection, End, Phase};
use crate::nic::{PrivateData, Sge};
use crate::soft::tables::Tables;
use crate::soft::tables::regions::Regions;
use crate::soft::tcp::frame::{FRAME_BYTES, Fault, Frame, READ_PIECE_MAX};
use crate::soft::tcp::output::{AnswerTo, Lookup, Revoked, Urgency, no_stretches};
use crate::soft::tcp::socket::{self, IoOutcome};

/// Bytes written by one connection before another has its turn.
const WRITE_BYTES_PER_TURN: usize = 1 << 20;
/// Nanoseconds for which an acknowledgement waits for something else to be written with it, at least.
///
/// An application's answer to a small message takes less. Alone, the acknowledgement costs both ends as many
/// system calls as the answer.
const ACK_DELAY_NS: u64 = 30_000;
/// SENDs taken after which an acknowledgement waits no longer. By default either end may have more of them
/// under way, so nobody waits for an acknowledgement that waits.
const SENDS_PER_ACK: u64 = 8;

impl Lookup for Regions {
    fn local(&self, memory: &Sge) -> Option<*mut u8> {
        self.translate(*memory)
    }

    fn remote(&self, key: u32, address: u64, bytes: u32) -> Option<*mut u8> {
        self.translate_remote(key, address, bytes).map(<*const u8>::cast_mut)
    }
}

impl Connection {
    /// Whether there is output that could be written now, or the connection can end.
    pub(in crate::soft::tcp) fn wants_to_write(&self) -> bool {
        self.is_closed()
            || !self.blocked
                && self.broken.is_none()
                && (self.output.queued() > 0
                    || self.received - self.acknowledged >= SENDS_PER_ACK
                    || self.reads.has_waiting()
                    || self.promises.must_grant()
                    || !self.offers.is_empty()
                    || !self.served.is_empty())
    }

    /// Whether SENDs of the peer were taken of which it has not heard.
    pub(in crate::soft::tcp) fn owes_ack(&self) -> bool {
        self.received != self.acknowledged
    }

    /// Returns the time in nanoseconds from which on the peer is to hear of SENDs that were taken, alone if
    /// need be. `None`: it has heard of all, or hears of them with what waits for room in the socket.
    pub(in crate::soft::tcp) fn ack_due_ns(&self) -> Option<u64> {
        let waits = self.owes_ack() && !self.blocked && self.broken.is_none();
        waits.then(|| self.owes_since_ns.saturating_add(ACK_DELAY_NS))
    }

    /// Queues the acknowledgement that is owed, if there is room.
    pub(super) fn push_ack(&mut self) {
        if self.owes_ack() && self.output.has_room(FRAME_BYTES, Urgency::Answer) {
            self.acknowledged = self.received;
            self.push(&Frame::SendAck { taken: self.received }.to_bytes());
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.output.push(bytes);
        self.bytes_pushed += bytes.len() as u64;
    }

    /// Queues the first frame of either end, with its private data.
    pub(in crate::soft::tcp) fn push_handshake(
        &mut self,
        frame: impl Fn(u32) -> Frame,
        private_data: &PrivateData,
    ) {
        let private = private_data.as_slice();
        let private_bytes = u32::try_from(private.len()).expect("at most 56 bytes");
        self.push(&frame(private_bytes).to_bytes());
        self.push(private);
    }

    /// Queues the frame that tells the connecting end that its request has arrived.
    pub(in crate::soft::tcp) fn push_asked(&mut self) {
        self.push(&Frame::Asked.to_bytes());
    }

    /// Queues the output that this end owes, as far as there is room: an acknowledgement, READ requests,
    /// answers to READs.
    fn pull(&mut self, tables: &mut Tables) {
        self.push_ack();
        if !matches!(self.phase, Phase::Connected) {
            return;
        }
        if self.promises.should_grant() && self.output.has_room(FRAME_BYTES, Urgency::Answer) {
            let limit = self.promises.grant();
            self.push(&Frame::Room { limit }.to_bytes());
        }
        self.match_waiting_reads(tables);
        while self.output.has_room(FRAME_BYTES, Urgency::Request)
            && let Some((_, slot)) = self.reads.waiting_from(0)
        {
            let id = self.reads.ask(slot);
            let read = tables.reads.get(slot);
            let (address, key, bytes) = (read.address, read.key, read.bytes);
            self.push(&Frame::ReadRequest { id, address, key, bytes }.to_bytes());
        }
        // Two answers at most: one being written, and one behind it. More would only delay SENDs.
        while self.output.answers() < 2 && self.output.has_room(2 * FRAME_BYTES, Urgency::Answer) {
            let oldest = self.served.front().map(|served| served.id);
            if let Some(offer) = self.offers.pop_before(oldest) {
                self.push_offer(tables, offer);
            } else if oldest.is_none() || !self.answer_oldest(tables) {
                return;
            }
        }
    }

    /// Queues the next piece of the answer to the oldest READ of the peer. `false`: the connection ends,
    /// because the peer may not read that.
    fn answer_oldest(&mut self, tables: &mut Tables) -> bool {
        let served = self.served.front_mut().expect("the caller looked");
        let id = served.id;
        let left = served.bytes - served.done;
        let address = served.address.checked_add(u64::from(served.done));
        let allowed =
            address.filter(|&address| tables.regions.translate_remote(served.key, address, left).is_some());
        let Some(address) = allowed else {
            let fault = Fault::RemoteAccess;
            self.fail(tables, Some(Frame::ReadError { id, fault }), fault.status());
            return false;
        };
        let piece = left.min(READ_PIECE_MAX);
        let key = served.key;
        served.done += piece;
        if served.done == served.bytes {
            self.served.pop_front();
        }
        self.push(&Frame::ReadResponse { id, bytes: piece }.to_bytes());
        self.output.push_answer(AnswerTo::Read(id), key, address, piece);
        self.bytes_pushed += u64::from(piece);
        self.push(&Frame::ReadEnd { id }.to_bytes());
        true
    }

    /// Queues the bytes of an offer.
    fn push_offer(&mut self, tables: &Tables, Offer { address, key, bytes }: Offer) {
        if tables.regions.translate_remote(key, address, bytes).is_none() {
            let fault = Some(Fault::RemoteAccess);
            self.push(&Frame::PushEnd { fault }.to_bytes());
            return;
        }
        self.push(&Frame::Push { bytes }.to_bytes());
        self.output.push_answer(AnswerTo::Offer, key, address, bytes);
        self.bytes_pushed += u64::from(bytes);
        self.push(&Frame::PushEnd { fault: None }.to_bytes());
    }

    /// Offers memory that the peer is about to READ, if it has room for it.
    pub(in crate::soft::tcp) fn offer(&mut self, address: u64, key: u32, bytes: u32) {
        if !matches!(self.phase, Phase::Connected)
            || !(1..=READ_PIECE_MAX).contains(&bytes)
            || !self.output.has_room(FRAME_BYTES, Urgency::Request)
        {
            return;
        }
        if self.offers.ask() {
            self.push(&Frame::AskRoom.to_bytes());
        } else if self.offers.has_room(bytes) {
            self.offers.add(Offer { address, key, bytes }, self.served_next);
            self.push(&Frame::Offer { address, key, bytes }.to_bytes());
        }
    }

    /// Writes the queued output until the socket takes no more, or the connection's turn is over.
    pub(in crate::soft::tcp) fn write(&mut self, tables: &mut Tables) -> Result<(), End> {
        let mut stretches = no_stretches();
        let mut budget = WRITE_BYTES_PER_TURN;
        while !self.blocked && self.broken.is_none() {
            self.pull(tables);
            if self.output.queued() == 0 || budget == 0 {
                break;
            }
            let (count, _) = match self.output.gather(&tables.regions, &mut stretches, budget) {
                Ok(listed) => listed,
                Err(Revoked::Answer { to: AnswerTo::Offer, behind }) => {
                    // Nobody asked for it, so nothing has failed.
                    let fault = Some(Fault::RemoteAccess);
                    self.output.overwrite(behind, &Frame::PushEnd { fault }.to_bytes());
                    continue;
                }
                Err(Revoked::Answer { to: AnswerTo::Read(id), behind }) => {
                    // The rest of the piece is sent as zeros. The frame behind the piece then says that it is
                    // worth nothing.
                    let fault = Fault::RemoteAccess;
                    self.output.overwrite(behind, &Frame::ReadError { id, fault }.to_bytes());
                    self.fail(tables, None, fault.status());
                    continue;
                }
                Err(Revoked::Payload { send }) => return Err(Self::payload_lost(send)),
            };
            // SAFETY: the frames' bytes are the queue's own; registered memory was looked up just now, and
            // regions stay mapped while they are in the table, which nobody changes during this call.
            match unsafe { socket::write(self.socket(), &mut stretches[..count]) } {
                IoOutcome::Bytes(bytes) => {
                    self.output.advance(bytes);
                    budget = budget.saturating_sub(bytes);
                }
                IoOutcome::Blocked | IoOutcome::End => self.blocked = true,
                IoOutcome::Failed(errno) => {
                    // The peer's last frames may still wait to be read.
                    self.broken = Some(errno);
                    self.input.readable = true;
                }
            }
        }
        self.end_if_closed()
    }
}
