//! READs of this end: posted, answered, and the time by which something of them must have come.

use super::{Connection, End, Phase, RING_BYTES};
use crate::nic::{DisconnectReason, Status};
use crate::soft::deadlines::Wait;
use crate::soft::tables::Tables;
use crate::soft::tcp::input::{RECEIVE_BYTES_PER_TURN, STAGING_BYTES};

/// Turns that read all SENDs which a peer may have put in front of an answer, and what follows them.
const TURNS_BEHIND_SENDS: usize = RING_BYTES.div_ceil(RECEIVE_BYTES_PER_TURN) + 1;

impl Connection {
    /// Sets the time by which outstanding READs must have moved, after anything was done.
    pub(in crate::soft::tcp) fn watch_reads(&mut self, tables: &mut Tables) {
        let moved = std::mem::take(&mut self.reads_moved);
        // Who waits for an SRQ entry reads nothing.
        let watched = !self.reads.is_empty() && !self.input.rnr && matches!(self.phase, Phase::Connected);
        let was_watched = std::mem::replace(&mut self.reads_watched, watched);
        if watched && (moved || !was_watched) {
            tables.deadlines.set(self.qp.index, Wait::ReadSilence, tables.options.tcp.read_silence_max);
        } else if was_watched && !watched {
            tables.deadlines.clear_if(self.qp.index, Wait::ReadSilence);
        }
    }

    /// No READ has moved for too long, unless the kernel has bytes of one that nobody has read yet.
    pub(super) fn reads_silent(
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

    /// Takes the READ in this slot.
    pub(in crate::soft::tcp) fn post_read(&mut self, slot: u32) {
        self.reads.push_back(slot);
    }

    /// The READ that the peer answers now, and its place in the order.
    pub(in crate::soft::tcp) fn read_answered(&self) -> Option<(u32, u64)> {
        let slot = *self.reads.front()?;
        (self.reads_asked > 0).then_some((slot, self.reads_completed))
    }

    /// The oldest READ is done.
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
