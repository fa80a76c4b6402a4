//! READs of this end: how they are posted and completed, and the deadline by which bytes of them must arrive.

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
        // While the connection waits for an SRQ entry it reads nothing.
        let watched = !self.reads.is_empty() && !self.input.rnr && matches!(self.phase, Phase::Connected);
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
            if self.reads_moved || self.input.rnr || !matches!(self.phase, Phase::Connected) {
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
        self.reads.push_back(slot);
    }

    /// Returns the slot of the READ that the peer answers now, and its place in the order of READs.
    pub(in crate::soft::tcp) fn read_answered(&self) -> Option<(u32, u64)> {
        let slot = *self.reads.front()?;
        (self.reads_asked > 0).then_some((slot, self.reads_completed))
    }

    /// Completes the oldest READ with success.
    pub(in crate::soft::tcp) fn complete_read(&mut self, tables: &mut Tables) {
        let slot = self.reads.pop_front().expect("it was answered");
        self.reads_asked -= 1;
        self.reads_completed += 1;
        self.reads_moved = true;
        tables.complete_read(slot, Status::Success);
    }

    pub(super) fn flush_reads(&mut self, tables: &mut Tables, end: &End) {
        let mut status = end.read.unwrap_or(Status::Flushed);
        while let Some(slot) = self.reads.pop_front() {
            tables.complete_read(slot, std::mem::replace(&mut status, Status::Flushed));
        }
        self.reads_asked = 0;
    }
}
