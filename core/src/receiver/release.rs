//! What an application gives back: checked, its slabs returned, its message brought to an end.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, ReleaseError, SessionEnd, SessionId};
use crate::pool::{Run, Share};
use crate::recycling::Recycling;
use crate::slots::Freed;
use jet_wire::segment::Release;

impl<P: GrantPolicy> Receiver<P> {
    /// The application released slices, finished a message, or both. On an error the session was closed.
    ///
    /// # Errors
    /// [`ReleaseError`], for the log; it has been acted upon.
    #[inline]
    pub fn handle_release(
        &mut self,
        now_ns: u64,
        session: SessionId,
        release: Release,
        effects: &mut impl Effects,
    ) -> Result<(), ReleaseError> {
        if !self.registry.is_open(session.0) {
            return Ok(());
        }
        let result = self.release(now_ns, session.0, release, effects);
        if let Err(error) = result {
            self.handle_session_fault(now_ns, session, error, effects);
        }
        result
    }

    /// The application broke its segment: its session is over. It may live on and read what it held: that
    /// stays in quarantine until [`Self::handle_session_gone`].
    pub fn handle_session_fault(
        &mut self,
        now_ns: u64,
        session: SessionId,
        error: ReleaseError,
        effects: &mut impl Effects,
    ) {
        if self.registry.is_open(session.0) {
            self.stats.session_faults += 1;
            let end = |held_slabs| SessionEnd::Release { error, held_slabs };
            self.close_session(now_ns, session.0, end, effects);
        }
    }

    #[inline]
    fn release(
        &mut self,
        now_ns: u64,
        session: u32,
        release: Release,
        effects: &mut impl Effects,
    ) -> Result<(), ReleaseError> {
        let entry = Recycling::read(&release)?;
        let (message, slot_is_free, settles) = if entry.slices {
            let (freed, settles) =
                Recycling::take_back(session, &release, &mut self.slots, &mut self.messages)?;
            self.give_back(now_ns, session, &freed);
            (freed.message, freed.slot_is_free, settles)
        } else {
            let named = self.delivery.named(session, release.index, release.generation);
            (named.ok_or(ReleaseError::Message { message: release.index })?, false, true)
        };
        if entry.finishes && Recycling::finish(message, release.code, &mut self.messages)? {
            // Rejected while it comes: no further READs.
            self.delivery.end_arrival(message, &mut self.messages);
            self.unlink(message);
        }
        if entry.finishes || settles {
            self.settle(message);
        } else if !slot_is_free {
            // Nothing came free that anybody could wait for.
            return Ok(());
        }
        if self.delivery.backlog(session) > 0 {
            self.deliver_backlog(now_ns, session, effects);
        }
        Ok(())
    }

    /// Slices came back: their slabs are free, and how long they were held is noted.
    #[inline(always)] // on every message's way
    fn give_back(&mut self, now_ns: u64, session: u32, freed: &Freed) {
        if freed.emptied_slabs > 0 {
            let attended_ns = super::attended_ns(now_ns, self.stalled_ns);
            let span_ns = attended_ns.saturating_sub(self.escape.since_ns(session, freed.slot));
            let bytes = self.recycling.note(session, freed.emptied_slabs, span_ns);
            self.admission.released(bytes);
        }
        if freed.plain {
            self.escape.release(session, freed.slot, freed.run.count);
            self.pool.give_plain(freed.run, freed.share);
        } else {
            self.give_back_escaped(session, freed.slot, freed.run, freed.share);
        }
    }

    /// Slices of a run that escaped, lies in a slab that stands in for another, or is being copied.
    #[cold]
    fn give_back_escaped(&mut self, session: u32, slot: u16, run: Run, share: Share) {
        self.escape.release_escaped(session, slot, run.count, share);
        // While it is copied it stays where it is.
        if !self.slots.movable(session, slot).copying {
            self.pool.give(run, share);
        }
    }
}
