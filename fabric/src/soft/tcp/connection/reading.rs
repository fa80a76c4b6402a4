//! READs of this end: how they are posted and completed, and the deadline by which bytes of them must arrive.

use super::pushes::Offer;
use super::{Connection, End, Phase, RING_BYTES};
use crate::nic::{DisconnectReason, Status};
use crate::soft::deadlines::Wait;
use crate::soft::tables::Tables;
use crate::soft::tcp::input::{RECEIVE_BYTES_PER_TURN, STAGING_BYTES};

/// Turns of reading that suffice for all SENDs which a peer may have written before an answer to a READ, and
/// for the beginning of that answer.
const TURNS_BEHIND_SENDS: usize = RING_BYTES.div_ceil(RECEIVE_BYTES_PER_TURN) + 1;

impl Connection {
    /// Sets or clears the deadline by which bytes of outstanding READs must arrive. To be called after any
    /// work.
    pub(in crate::soft::tcp) fn watch_reads(&mut self, tables: &mut Tables) {
        let moved = std::mem::take(&mut self.reads_moved);
        // While the connection waits for an SRQ entry, or for the READ of what was pushed, it reads nothing.
        let watched =
            !self.reads.is_empty() && !self.input.is_held() && matches!(self.phase, Phase::Connected);
        let was_watched = std::mem::replace(&mut self.reads_watched, watched);
        if watched && (moved || !was_watched) {
            tables.deadlines.set(self.qp.index, Wait::ReadAnswer, tables.options.tcp.read_timeout);
        } else if was_watched && !watched {
            tables.deadlines.clear_if(self.qp.index, Wait::ReadAnswer);
        }
    }

    /// Ends the connection after no bytes of a READ arrived in time, unless the kernel has some that were not
    /// read yet.
    pub(super) fn read_timed_out(
        &mut self,
        tables: &mut Tables,
        staging: &mut [u8; STAGING_BYTES],
    ) -> Result<(), End> {
        for _ in 0..TURNS_BEHIND_SENDS {
            self.input.readable = true;
            self.receive(tables, staging)?;
            if self.reads_moved || self.input.is_held() || !matches!(self.phase, Phase::Connected) {
                return Ok(());
            }
            if !self.input.readable {
                break;
            }
        }
        Err(End::of(DisconnectReason::Transport(libc::ETIMEDOUT)))
    }

    /// Queues the READ in this slot.
    pub(in crate::soft::tcp) fn post_read(&mut self, slot: u32) {
        self.reads.post(slot);
    }

    /// Returns the slot of the READ whose bytes arrive now or next.
    #[inline]
    pub(super) fn read_arriving(&self) -> Option<u32> {
        self.promises.landing().or_else(|| self.reads.answered_now().map(|(slot, _)| slot))
    }

    /// Has the READs of which the peer does not know wait for promised bytes, as far as there are such.
    pub(super) fn match_waiting_reads(&mut self, tables: &Tables) {
        let mut place = 0;
        while let Some((at, slot)) = self.reads.waiting_from(place) {
            if self.promises.match_read(slot, Self::bytes_of(tables, slot)) {
                self.reads.promise(slot);
            }
            place = at + 1;
        }
    }

    /// Whether the peer was asked for exactly these bytes.
    pub(super) fn is_asked_for(&self, tables: &Tables, offer: Offer) -> bool {
        self.reads.asked().any(|slot| Self::bytes_of(tables, slot) == offer)
    }

    fn bytes_of(tables: &Tables, slot: u32) -> Offer {
        let read = tables.reads.get(slot);
        Offer { address: read.address, key: read.key, bytes: read.bytes }
    }

    /// Notes that the bytes of this READ are here. It completes with success once those before it have.
    pub(super) fn complete_read(&mut self, tables: &mut Tables, slot: u32) {
        self.reads_moved = true;
        self.promises.read_done();
        self.reads.arrived(slot);
        while let Some(done) = self.reads.pop_done() {
            tables.complete_read(done, Status::Success);
        }
    }

    pub(super) fn flush_reads(&mut self, tables: &mut Tables, end: &End) {
        let failed = self.read_arriving();
        self.promises.clear();
        while let Some(slot) = self.reads.pop() {
            let status = end.read.filter(|_| failed == Some(slot)).unwrap_or(Status::Flushed);
            tables.complete_read(slot, status);
        }
    }
}
