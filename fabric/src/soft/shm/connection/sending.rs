//! SENDs of this end: put into the ring, then completed as taken, failed or flushed.

use super::{Connection, End, PostedSend};
use crate::nic::{Access, Payload, PostError, SendRequest, Status};
use crate::soft::shm::link::{BESIDE_BYTES, RING_CELLS, SendPlace, source};
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
        let mut place = SendPlace { source: source::BESIDE, ..SendPlace::default() };
        let mut from: *const u8 = [].as_ptr();
        match request.payload {
            Payload::None => {}
            Payload::Inline(bytes) => {
                from = bytes.as_ptr();
                place.payload_bytes = u32::try_from(bytes.len()).map_err(|_| PostError::Limit)?;
            }
            Payload::Registered(sge) => {
                place.payload_bytes = sge.bytes;
                match tables.regions.get(sge.key) {
                    Some(region) if region.access == Access::RemoteRead => {
                        place.source = source::REGISTERED;
                        (place.key, place.offset) = (sge.key.0, sge.offset);
                    }
                    // The peer may not see that region, so its bytes are copied into the link.
                    _ => from = tables.regions.translate(sge).ok_or(PostError::LocalProtection)?,
                }
            }
        }
        let bytes = place.payload_bytes as usize;
        let staged = place.source == source::BESIDE && bytes > BESIDE_BYTES;
        if staged {
            place.source = source::STAGED;
            // SAFETY: `from` has so many readable bytes: they were given inline, or translated. They are at
            // most 4096, which the NIC checked before it called this.
            place.offset = u64::from(unsafe { self.stage(from, bytes) }?);
        }
        let item = match self.link().outgoing.push_place() {
            Ok(item) => item,
            Err(PushError::Full) => return Err(PostError::QueueFull),
            Err(PushError::Broken(_)) => {
                self.broken = true;
                return Err(PostError::QueueFull);
            }
        };
        // SAFETY: the cell is this end's to write until it is published. What lies beside the header fits,
        // and `from` has so many readable bytes.
        unsafe {
            (&raw mut (*item).place).write(place);
            (&raw mut (*item).header).write(request.header.0);
            if place.source == source::BESIDE {
                (&raw mut (*item).beside).cast::<u8>().copy_from_nonoverlapping(from, bytes);
            }
        }
        if staged {
            self.staged_next = (self.staged_next + 1) % self.link().staged_places();
            self.staged_held += 1;
        }
        self.sends.push_back(PostedSend { id: request.id, staged });
        Ok(())
    }

    /// Copies a payload into the next staged place of the link, and returns its number.
    ///
    /// # Safety
    /// `from` has `bytes` readable bytes, at most 4096.
    unsafe fn stage(&mut self, from: *const u8, bytes: usize) -> Result<u32, PostError> {
        let number = self.staged_next;
        if self.staged_held == self.link().staged_places() {
            return Err(PostError::QueueFull);
        }
        let to = self.link().staged(number);
        // SAFETY: a staged place holds 4096 bytes. No SEND under way uses this one: places are used in turn,
        // and `staged_held` counts those in use.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        Ok(number)
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
