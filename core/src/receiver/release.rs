//! Releases by applications: they are checked, their slabs returned, and their messages brought to an end.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, ReleaseError, SessionEnd, SessionId};
use crate::pool::{Run, Share};
use crate::releases::Releases;
use crate::slots::ReleasedSlices;
use jet_wire::planted;
use jet_wire::segment::Release;

impl<P: GrantPolicy> Receiver<P> {
    /// Handles a release entry: the application gave slices back, finished a message, or both. On an error
    /// the session was closed.
    ///
    /// # Errors
    /// [`ReleaseError`] is for the log; the receiver has acted upon it.
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

    /// Handles an application that broke the protocol of its segment: its session is over. The application
    /// may live on and read what it held, which stays in quarantine until [`Self::handle_session_gone`].
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
        let entry = Releases::read(&release)?;
        let (message, slot_is_free, settles) = if entry.slices {
            let (released, settles) =
                Releases::take_back(session, &release, &mut self.slots, &mut self.messages)?;
            self.give_back(now_ns, session, &released);
            (released.message, released.slot_is_free, settles)
        } else {
            let named = self.delivery.named(session, release.index, release.generation);
            (named.ok_or(ReleaseError::Message { message: release.index })?, false, true)
        };
        if entry.replies {
            self.check_reply(message, &release)?;
        }
        if entry.finishes && Releases::finish(message, release.code, &mut self.messages)? {
            // The message was rejected while it arrives: no further READs of it.
            self.delivery.end_arrival(message, &mut self.messages);
            self.unlink(message);
        }
        if entry.replies {
            self.take_reply(session, message, &release, effects)?;
        }
        if entry.finishes || settles {
            self.settle(message);
        } else if !slot_is_free {
            // Nothing that a message could wait for came free.
            return Ok(());
        }
        if self.delivery.backlog(session) > 0 {
            self.deliver_backlog(now_ns, session, effects);
        }
        Ok(())
    }

    /// Gives the slabs of released slices back, and notes how long they were held.
    #[inline(always)] // on every message's way
    fn give_back(&mut self, now_ns: u64, session: u32, released: &ReleasedSlices) {
        let since_ns = if released.cached_and_idle {
            let since_ns = self.escape.release(session, released.slot, released.run.count);
            self.pool.give_cached(released.run, released.share);
            if planted!(SlabFreedTwice) && released.share == Share::Read {
                self.pool.give_cached(released.run, released.share);
            }
            since_ns
        } else {
            self.give_back_escaped(session, released.slot, released.run, released.share)
        };
        if released.emptied_slabs > 0 {
            let span_ns = super::stall_free_ns(now_ns, self.stalled_ns).saturating_sub(since_ns);
            let bytes = self.releases.note(session, released.emptied_slabs, span_ns);
            self.admission.released(bytes);
        }
    }

    /// Gives back slices of a run that escaped, lies in a stand-in, or is being copied. Returns the time
    /// since when the run has been held.
    #[cold]
    fn give_back_escaped(&mut self, session: u32, slot: u16, run: Run, share: Share) -> u64 {
        let since_ns = self.escape.since_ns(session, slot);
        self.escape.release_escaped(session, slot, run.count, share);
        // While it is being copied the run stays where it is.
        if !self.slots.movable_run(session, slot).copying {
            self.pool.give(run, share);
        }
        since_ns
    }
}
