//! SENDs of this end: how they are posted, written, acknowledged, or failed.

use super::{Connection, End, Phase, PostedSend};
use crate::nic::{DisconnectReason, MemoryKey, Payload, PostError, SendRequest, Status};
use crate::soft::options::SENDS_PER_QP_MAX;
use crate::soft::tables::Tables;
use crate::soft::tcp::frame::{FRAME_BYTES, Fault, Frame};
use crate::soft::tcp::output::Urgency;
use jet_wire::message::HEADER_BYTES;

/// Queued bytes from which on the next SEND first writes the queue, without waiting for
/// [`crate::Nic::flush`]. So the queue stays in the cache.
const WRITE_EARLY: usize = 64 << 10;

impl Connection {
    /// Whether SENDs of this end may still be acknowledged.
    pub(in crate::soft::tcp) fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Queues a SEND. The outer error ends the connection, the inner one only refuses the SEND.
    pub(in crate::soft::tcp) fn post_send(
        &mut self,
        tables: &mut Tables,
        request: &SendRequest<'_>,
    ) -> Result<Result<(), PostError>, End> {
        let (inline, memory): (&[u8], _) = match &request.payload {
            Payload::None => (&[], None),
            Payload::Inline(bytes) => (bytes, None),
            Payload::Registered(sge) => (&[], Some(*sge).filter(|sge| sge.bytes > 0)),
        };
        let frame_bytes = FRAME_BYTES + HEADER_BYTES + inline.len();
        if self.output.queued() >= WRITE_EARLY || !self.output.has_room(frame_bytes, Urgency::Request) {
            self.write(tables)?;
            if !matches!(self.phase, Phase::Connected) {
                // A READ of the peer failed during the write.
                return Ok(Err(PostError::Stale));
            }
        }
        if self.sends.len() == SENDS_PER_QP_MAX as usize
            || !self.output.has_room(frame_bytes, Urgency::Request)
        {
            return Ok(Err(PostError::QueueFull));
        }
        let behind = memory.map_or(inline.len(), |sge| sge.bytes as usize);
        let payload_bytes = u32::try_from(behind).expect("the limit is 4096");
        self.push(&Frame::Send { payload_bytes }.to_bytes());
        self.push(&request.header.0);
        if !inline.is_empty() {
            self.push(inline);
        }
        if let Some(sge) = memory {
            self.output.push_payload(sge, self.sends_completed + self.sends.len() as u64);
            self.bytes_pushed += u64::from(sge.bytes);
        }
        self.sends.push_back(PostedSend { id: request.id, written_at: self.bytes_pushed });
        Ok(Ok(()))
    }

    /// Completes SENDs after the peer said that it has taken `taken` of them since the connection began.
    pub(in crate::soft::tcp) fn acknowledge(&mut self, tables: &mut Tables, taken: u64) -> Result<(), End> {
        let newly = taken.checked_sub(self.sends_completed).ok_or(End::PROTOCOL)?;
        let newly = usize::try_from(newly).map_err(|_| End::PROTOCOL)?;
        if newly == 0 {
            return Ok(());
        }
        // The peer can have taken only SENDs that were written in full.
        let written = self.bytes_pushed - self.output.queued() as u64;
        match self.sends.get(newly - 1) {
            Some(last) if last.written_at <= written => {}
            _ => return Err(End::PROTOCOL),
        }
        for send in self.sends.drain(..newly) {
            tables.complete_send(self.qp, send.id, Status::Success);
        }
        self.sends_completed = taken;
        Ok(())
    }

    /// Returns the end of the connection after the peer said that the SEND behind the first `taken` ones
    /// failed.
    pub(in crate::soft::tcp) fn send_failed(&mut self, tables: &mut Tables, taken: u64, fault: Fault) -> End {
        if let Err(end) = self.acknowledge(tables, taken) {
            return end;
        }
        if self.sends.is_empty() {
            return End::PROTOCOL;
        }
        let reason = DisconnectReason::WorkRequest(fault.status());
        End { reason, send: Some((taken, fault.status())), read: None }
    }

    /// Finds a SEND of this end that is not written yet and whose payload is in this region. Returns its
    /// place in the order of SENDs.
    pub(in crate::soft::tcp) fn send_from(&self, key: MemoryKey) -> Option<u64> {
        self.output.payload_of(key)
    }

    /// Makes the end of a connection whose SEND lost its payload's memory.
    pub(in crate::soft::tcp) fn payload_lost(send: u64) -> End {
        let status = Status::LocalProtection;
        End { reason: DisconnectReason::WorkRequest(status), send: Some((send, status)), read: None }
    }

    pub(super) fn flush_sends(&mut self, tables: &mut Tables, end: &End) {
        while let Some(send) = self.sends.pop_front() {
            let status = match end.send {
                Some((place, status)) if place == self.sends_completed => status,
                _ => Status::Flushed,
            };
            self.sends_completed += 1;
            tables.complete_send(self.qp, send.id, status);
        }
    }
}
