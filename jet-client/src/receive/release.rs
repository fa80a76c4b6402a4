//! Giving slices back: release entries, merged and shown to the daemon in batches.
//!
//! The newest entry is held back. The next slice of the same run widens it, and the end of its message is
//! added to it. So a small message costs one entry.

use super::error::ReplyError;
use super::session::Session;
use super::table::{MessageState, SlotState};
use jet_wire::ring::PushError;
use jet_wire::segment::{Release, release_kind};

/// Release entries that are shown to the daemon together, unless the application waits, or a poll finds
/// nothing, before.
const ENTRIES: u32 = 16;
/// Number of slabs in written entries from which on the entries are shown to the daemon. The daemon counts
/// slabs that it was not shown as held by the application. With the entry that is held back, these slabs are
/// two fragments at most.
const SLABS: u32 = 64;
/// Number of tries on a full release ring between two checks whether the daemon still lives.
const FULL_TRIES_PER_CHECK: u32 = 256;

impl Session {
    /// Gives `count` slices of the run in slot `index` back, from slice `first` on.
    #[inline]
    pub(super) fn release_slices(&self, index: u32, first: u16, count: u16) {
        let slot = self.table.slot(index);
        let left = slot.slices_left.get();
        assert!(count <= left, "slot {index} has {left} slices out, {count} come back");
        slot.slices_left.set(left - count);
        let generation = slot.generation.get();
        if left > count {
            return self.push_slices(index, generation, first, count);
        }
        if slot.state.replace(SlotState::Free) == SlotState::Taken
            && let Some(word) = self.end.borrow().slot(index)
        {
            word.unpin(generation);
        }
        self.push_slices(index, generation, first, count);
        let message = self.table.message(slot.message.get());
        if message.generation.get() == slot.message_generation.get() {
            let taken = message.runs_taken.get().saturating_sub(1);
            message.runs_taken.set(taken);
            if taken == 0 && message.state.get() == MessageState::Closing {
                self.finish_now(slot.message.get(), message.code.get());
            }
        }
    }

    /// Gives the run in slot `index` back, which was never pinned.
    pub(super) fn release_unread(&self, index: u32) {
        let slot = self.table.slot(index);
        slot.state.set(SlotState::Free);
        self.push_slices(index, slot.generation.get(), 0, slot.slices_left.replace(0));
    }

    /// Ends a message for the application: with code 0 as consumed, otherwise as rejected.
    #[inline]
    pub(super) fn end_message(&self, index: u32, code: u32) {
        let message = self.table.message(index);
        let whole = message.complete.get() && message.head.get() == super::table::NONE;
        if whole && message.withdrawn.get().is_none() && message.runs_taken.get() > 0 {
            // The daemon acknowledges after the last slice anyhow, so the end goes with the last slice's
            // entry.
            message.code.set(code);
            message.state.set(MessageState::Closing);
            return;
        }
        while let Some(slot) = self.table.take_run(index) {
            self.release_unread(slot);
        }
        if code == 0 && !message.complete.get() && message.withdrawn.get().is_none() {
            // The daemon does not accept a message as consumed before all of it was delivered.
            message.state.set(MessageState::Draining);
            return self.draining.set(self.draining.get() + 1);
        }
        self.finish_now(index, code);
    }

    /// Writes the reply to a message, which goes with its end. Returns why it cannot be one.
    pub(super) fn write_reply(&self, index: u32, reply: &[u8]) -> Result<(), ReplyError> {
        let message = self.table.message(index);
        if !message.wants_reply.get() {
            return Err(ReplyError::NotWanted);
        }
        if !self.end.borrow_mut().write_reply(index, reply) {
            return Err(ReplyError::TooLong { bytes: reply.len() });
        }
        message.set_reply(u16::try_from(reply.len()).expect("at most 4096"));
        Ok(())
    }

    /// Finishes a message that was consumed early, once nothing more of it arrives.
    pub(super) fn finish_drained(&self, index: u32) {
        let message = self.table.message(index);
        let over = message.complete.get() || message.withdrawn.get().is_some();
        if over && message.state.get() == MessageState::Draining {
            self.draining.set(self.draining.get() - 1);
            self.finish_now(index, 0);
        }
    }

    #[inline]
    fn finish_now(&self, index: u32, code: u32) {
        let message = self.table.message(index);
        message.state.set(MessageState::Finished);
        if let Some(bytes) = message.reply_bytes() {
            return self.finish_with_reply(index, bytes, code);
        }
        if let Some(mut held) = self.held_release.get()
            && held.kind == release_kind::SLICES
            && self.table.slot(held.index).message.get() == index
            && self.table.slot(held.index).message_generation.get() == message.generation.get()
        {
            held.kind = release_kind::SLICES_AND_FINISH;
            held.code = code;
            self.held_release.set(Some(held));
            return;
        }
        self.push_release(Release {
            index,
            generation: message.generation.get(),
            first: 0,
            count: 0,
            kind: release_kind::FINISH,
            reserved: 0,
            code,
        });
    }

    /// Finishes a message with the reply in its cell. Not inline: what has no reply is to be short.
    #[cold]
    fn finish_with_reply(&self, index: u32, bytes: u16, code: u32) {
        let generation = self.table.message(index).generation.get();
        let kind = release_kind::REPLY;
        self.push_release(Release { index, generation, first: bytes, count: 0, kind, reserved: 0, code });
    }

    #[inline]
    fn push_slices(&self, index: u32, generation: u16, first: u16, count: u16) {
        if let Some(mut held) = self.held_release.get()
            && held.kind == release_kind::SLICES
            && (held.index, held.generation) == (index, generation)
        {
            if held.first + held.count == first {
                held.count += count;
                return self.held_release.set(Some(held));
            }
            if first + count == held.first {
                held.first = first;
                held.count += count;
                return self.held_release.set(Some(held));
            }
        }
        let kind = release_kind::SLICES;
        self.push_release(Release { index, generation, first, count, kind, reserved: 0, code: 0 });
    }

    #[inline]
    fn push_release(&self, release: Release) {
        if let Some(held) = self.held_release.replace(Some(release)) {
            self.write_release(held);
            let (entries, slabs) = self.unpublished.get();
            let (entries, slabs) = (entries + 1, slabs + u32::from(held.count));
            self.unpublished.set((entries, slabs));
            if entries >= ENTRIES || slabs >= SLABS {
                self.publish();
            }
        }
    }

    /// Writes an entry to the release ring. Where the ring is full, waits until the daemon has read entries,
    /// or is gone.
    fn write_release(&self, release: Release) {
        let mut tries = 0u32;
        loop {
            // Once the session ended, nobody reads releases, and none are needed.
            if !self.is_well() {
                return;
            }
            match self.end.borrow_mut().releases.push(release) {
                Ok(()) => return self.stats.releases.set(self.stats.releases.get() + 1),
                Err(PushError::Broken(error)) => return self.break_down(super::Fault::Ring(error)),
                Err(PushError::Full) => {}
            }
            self.publish();
            rustix::thread::sched_yield();
            tries += 1;
            if tries.is_multiple_of(FULL_TRIES_PER_CHECK) {
                self.check_daemon();
            }
        }
    }

    fn publish(&self) {
        self.unpublished.set((0, 0));
        let wake = {
            let mut end = self.end.borrow_mut();
            // The delivery ring's cells are freed first. A slot that the daemon knows to be free may be used
            // for the next delivery. The ring has room for it only because every released delivery has freed
            // its cell.
            end.deliveries.advance();
            end.releases.publish();
            end.releases.wake_needed()
        };
        if wake {
            self.doorbell.ring();
            self.stats.rings.set(self.stats.rings.get() + 1);
        }
    }

    /// Shows the daemon everything that was given back, now. Waiting, and polls that find nothing, do so too.
    ///
    /// Where messages were consumed before all of them arrived, `flush` first gives back what arrived of them
    /// since, see [`Message::consume`](super::Message::consume). A fault that `flush` finds is reported by
    /// the next call that can fail.
    #[inline]
    pub fn flush(&self) {
        if self.draining.get() > 0 {
            self.drain();
        }
        self.show_releases();
    }

    /// Reads deliveries, so that messages that were consumed early get their end. Deliveries of other
    /// messages are stored.
    fn drain(&self) {
        let before = self.deliveries_read.get();
        // The loop is bounded, because the daemon may use released slots for further deliveries meanwhile.
        for _ in 0..self.table.deliveries_max() {
            // A fault is kept in the session's health.
            if self.draining.get() == 0 || !self.is_well() || !matches!(self.demultiplex(), Ok(true)) {
                break;
            }
        }
        if self.deliveries_read.get() != before {
            self.show_releases();
            self.end.borrow_mut().deliveries.advance();
        }
    }

    /// Shows the daemon what was given back, without reading deliveries.
    #[inline]
    pub(super) fn show_releases(&self) {
        if let Some(held) = self.held_release.take() {
            self.write_release(held);
            self.publish();
        } else if self.unpublished.get().0 > 0 {
            self.publish();
        }
    }
}
