//! The footprint of a message: the bytes that it takes up in the pool (Jet §3.2, §4).

use super::footprint_window::measured_footprint_bytes;
use super::policy::GrantPolicy;
use super::{Admission, View};
use crate::index::NONE;
use crate::messages::Messages;
use crate::pool::Pool;
use jet_wire::SLAB_BYTES;

impl<P: GrantPolicy> Admission<P> {
    /// Returns the bytes that a message is expected to take up in the pool when it is admitted. The paper's
    /// footprint (Jet §3.2, §4) is its session's throughput times its post-NIC time. A message of a session
    /// that was not measured yet counts in full, for its application may collect all of it before it gives
    /// anything back. No application can collect a long message: see [`under_way`].
    #[inline]
    pub(super) fn first_footprint(&self, message: u32, messages: &mut Messages, view: &impl View) -> u64 {
        let (session, length) = (messages[message].session, messages[message].length);
        if self.is_long(length) {
            return under_way(message, messages);
        }
        let least = length.min(u64::from(self.limits.fragment_bytes));
        let measured = measured_footprint_bytes(view.bytes_per_ms(session), view.post_nic_ns(session));
        let whole = measured.map_or(length, |bytes| bytes.clamp(least, length));
        whole.min(length - messages[message].arrived)
    }

    /// Returns the footprint of a message before its next READ is posted. It is no more than what has not
    /// arrived: what has arrived is in the pool, or was given back.
    #[inline]
    pub(super) fn next_footprint(&self, message: u32, messages: &mut Messages) -> u64 {
        let record = &messages[message];
        let coming = record.length - record.arrived;
        messages.transfer(message).footprint_bytes.min(coming)
    }

    /// Returns whether a message is too long to be collected: it takes up more than half of the pool.
    #[inline]
    pub(super) fn is_long(&self, length: u64) -> bool {
        length > self.limits.long_bytes
    }

    /// Counts a message's footprint anew.
    #[inline]
    pub(super) fn set_footprint(&mut self, message: u32, bytes: u64, messages: &mut Messages) {
        let before = core::mem::replace(&mut messages.transfer(message).footprint_bytes, bytes);
        if before == bytes {
            return;
        }
        let record = &messages[message];
        self.reading.change_footprint(record.peer, record.class(), before, bytes);
    }

    /// Counts a long message's footprint anew, after one of its READs was posted or has ended.
    #[inline]
    pub(super) fn count_under_way(&mut self, message: u32, messages: &mut Messages) {
        if self.is_long(messages[message].length) {
            let transfer = messages.transfer(message);
            if transfer.running && !transfer.in_memory {
                let bytes = under_way(message, messages);
                self.set_footprint(message, bytes, messages);
            }
        }
    }

    /// Returns the bytes that the READ share can hold beside what lies in it and belongs to no footprint:
    /// what was delivered, and READs in flight of slow peers.
    #[inline]
    pub(super) fn footprint_room(&self, pool: &Pool) -> u64 {
        let srq = pool.srq_used().max(self.limits.srq_floor_slabs);
        let counted_slabs =
            u32::try_from(self.reading.counted_bytes().div_ceil(SLAB_BYTES as u64)).unwrap_or(NONE);
        let others = pool.read_used().saturating_sub(counted_slabs) + pool.quarantined();
        u64::from(pool.total().saturating_sub(srq + others)) * SLAB_BYTES as u64
    }
}

/// Returns the bytes of a long message that are under way. Those of all long messages together are no more
/// than the READs in flight.
#[inline]
fn under_way(message: u32, messages: &mut Messages) -> u64 {
    messages.transfer(message).requested - messages[message].arrived
}

#[cfg(test)]
impl<P: GrantPolicy> Admission<P> {
    /// Returns the bytes of READs in flight in the READ share that count with their messages' footprints.
    pub fn counted_bytes(&self) -> u64 {
        self.reading.counted_bytes()
    }

    /// Returns whether a message has a footprint that counts.
    pub fn has_counted_footprint(&self, message: u32, messages: &mut Messages) -> bool {
        let (peer, transfer) = (messages[message].peer, messages.transfer(message));
        transfer.running && !transfer.in_memory && self.reading.has_footprint(peer)
    }
}
