//! SENDs of this end: put into the ring, then completed as taken, failed or flushed.

use super::{Connection, End, PostedSend};
use crate::nic::{Access, Payload, PostError, SendRequest, Sge, Status};
use crate::soft::options::PAYLOAD_BYTES_MAX;
use crate::soft::shm::link::{BESIDE_BYTES, RING_CELLS, SendItem, source};
use crate::soft::tables::Tables;
use crate::unix::ring;
use jet_wire::ring::PushError;
use std::os::fd::AsFd;

impl Connection {
    /// Puts a SEND into the ring, without showing it to the peer yet.
    #[inline]
    pub(in crate::soft::shm) fn post_send(
        &mut self,
        tables: &Tables,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        if self.sends.len() == RING_CELLS as usize || self.broken {
            return Err(PostError::QueueFull);
        }
        let mut item = SendItem {
            source: source::BESIDE,
            payload_bytes: 0,
            key: 0,
            reserved: 0,
            place: 0,
            header: request.header.0,
            beside: [0; BESIDE_BYTES],
        };
        let mut staged = false;
        match request.payload {
            Payload::None => {}
            Payload::Inline(bytes) => staged = self.carry(&mut item, bytes)?,
            Payload::Registered(sge) => match tables.regions.get(sge.key) {
                Some(region) if region.access == Access::RemoteRead => {
                    item.source = source::REGISTERED;
                    (item.payload_bytes, item.key, item.place) = (sge.bytes, sge.key.0, sge.offset);
                }
                // The peer may not see that region, so its bytes are copied into the link.
                _ => staged = self.carry_local(tables, &mut item, sge)?,
            },
        }
        match self.link().outgoing.push(item) {
            Ok(()) => {}
            Err(PushError::Full) => return Err(PostError::QueueFull),
            Err(PushError::Broken(_)) => {
                self.broken = true;
                return Err(PostError::QueueFull);
            }
        }
        if staged {
            self.staged_next = (self.staged_next + 1) % self.link().staged_places();
            self.staged_held += 1;
        }
        self.sends.push_back(PostedSend { id: request.id, staged });
        Ok(())
    }

    /// Copies a payload into the ring's cell, or into a staged place of the link if the payload is too long
    /// for the cell. `true` for a staged place.
    #[inline]
    fn carry(&mut self, item: &mut SendItem, bytes: &[u8]) -> Result<bool, PostError> {
        item.payload_bytes = u32::try_from(bytes.len()).map_err(|_| PostError::Limit)?;
        if let Some(beside) = item.beside.get_mut(..bytes.len()) {
            beside.copy_from_slice(bytes);
            return Ok(false);
        }
        let place = self.staged_next;
        if self.staged_held == self.link().staged_places() {
            return Err(PostError::QueueFull);
        }
        let to = self.link().staged(place);
        // SAFETY: a staged place holds 4096 bytes, which the payload does not exceed (checked before
        // posting). No SEND under way uses this one: places are used in turn, and `staged_held` counts those
        // in use.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        (item.source, item.place) = (source::STAGED, u64::from(place));
        Ok(true)
    }

    fn carry_local(&mut self, tables: &Tables, item: &mut SendItem, sge: Sge) -> Result<bool, PostError> {
        let from = tables.regions.translate(sge).ok_or(PostError::LocalProtection)?;
        let mut bytes = [0u8; PAYLOAD_BYTES_MAX as usize];
        let bytes = &mut bytes[..sge.bytes as usize];
        // SAFETY: the stretch is registered and at most 4096 bytes (checked before posting).
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        self.carry(item, bytes)
    }

    /// Shows the peer all SENDs that were posted, and wakes the peer if it sleeps.
    #[inline]
    pub(in crate::soft::shm) fn show(&mut self) {
        let link = self.link();
        link.outgoing.publish();
        if link.outgoing.wake_needed() {
            ring(self.socket.as_fd());
        }
    }

    /// Completes the SENDs that the peer has taken, and returns whether there were any. All posted SENDs must
    /// have been shown.
    #[inline]
    pub(in crate::soft::shm) fn complete_sends(&mut self, tables: &mut Tables) -> Result<bool, End> {
        if self.broken {
            return Err(End::PROTOCOL);
        }
        if self.sends.is_empty() {
            return Ok(false);
        }
        let unread = self.link().outgoing.unread()? as usize;
        let taken = self.sends.len() - unread;
        self.complete_front(tables, taken, Status::Success);
        Ok(taken > 0)
    }

    fn complete_front(&mut self, tables: &mut Tables, count: usize, status: Status) {
        for _ in 0..count {
            let Some(posted) = self.sends.pop_front() else { return };
            self.staged_held -= u32::from(posted.staged);
            self.sends_completed = self.sends_completed.wrapping_add(1);
            tables.complete_send(self.qp, posted.id, status);
        }
    }

    /// Whether SENDs of this end are outstanding.
    pub(in crate::soft::shm) fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Completes all SENDs: as successful if the peer took them, one as failed if the peer said so, the rest
    /// as flushed.
    pub(super) fn flush_sends(&mut self, tables: &mut Tables) {
        let outstanding = self.sends.len();
        let unread = self.link().outgoing.unread().map_or(outstanding, |unread| unread as usize);
        self.complete_front(tables, outstanding - unread.min(outstanding), Status::Success);
        if let Some((fault, received)) = self.link().peer_fault() {
            // The count comes from the peer and may be anything. A count beyond the outstanding SENDs is
            // ignored.
            let taken = received.wrapping_sub(self.sends_completed) as usize;
            if taken <= self.sends.len() {
                self.complete_front(tables, taken, Status::Success);
                if let Some(status) = fault.send_status() {
                    self.complete_front(tables, 1, status);
                }
            }
        }
        self.complete_front(tables, usize::MAX, Status::Flushed);
    }
}
