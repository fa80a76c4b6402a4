//! What an application gives back. Every value comes from a stranger and is checked against what the receiver knows.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, SessionEnd, SessionId};
use crate::message::NONE;
use crate::pool::Run;
use jet_wire::segment::{Release, release_kind};

/// An application released what it must not. Its session is over; nobody else is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseError {
    /// No such kind of entry, or reserved bytes set.
    Kind {
        /// The kind found.
        found: u8,
    },
    /// No such slot.
    Slot {
        /// The slot named.
        slot: u32,
    },
    /// The slot holds nothing, or another run than the one named: released twice, or never held.
    NotHeld {
        /// The slot named.
        slot: u32,
    },
    /// The slices lie outside the run, or are none.
    Slices {
        /// The slot named.
        slot: u32,
        /// First slice named.
        first: u16,
        /// Slices named.
        count: u16,
    },
    /// The message named is not open.
    Message {
        /// The message named.
        message: u32,
    },
    /// A message was finished as consumed before all of it was delivered.
    Early {
        /// The message named.
        message: u32,
    },
    /// The release ring's index cannot be.
    Ring,
}

impl core::fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Kind { found } => write!(f, "release entry of unknown kind {found}"),
            Self::Slot { slot } => write!(f, "released slot {slot}, which does not exist"),
            Self::NotHeld { slot } => write!(f, "released slot {slot}, which the application does not hold"),
            Self::Slices { slot, first, count } => {
                let end = u32::from(first) + u32::from(count);
                write!(f, "released slices {first}..{end} of slot {slot}, which it does not hold")
            }
            Self::Message { message } => write!(f, "finished message {message}, which is not open"),
            Self::Early { message } => {
                write!(f, "finished message {message} as consumed before all of it came")
            }
            Self::Ring => f.write_str("the release ring's index cannot be: the segment was scribbled over"),
        }
    }
}

impl core::error::Error for ReleaseError {}

/// What a release of slices led to.
struct Released {
    message: u32,
    /// Its slot can be used again.
    slot_is_free: bool,
    /// The message's end may be decided now.
    settles: bool,
}

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

    /// The application broke its segment: its session is over. It may live on and read what it held: that stays in
    /// quarantine until [`Self::handle_session_gone`].
    pub fn handle_session_fault(
        &mut self,
        now_ns: u64,
        session: SessionId,
        error: ReleaseError,
        effects: &mut impl Effects,
    ) {
        if self.registry.is_open(session.0) {
            self.stats.session_faults += 1;
            self.close_session(
                now_ns,
                session.0,
                |held_slabs| SessionEnd::Release { error, held_slabs },
                effects,
            );
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
        if release.reserved != 0 {
            return Err(ReleaseError::Kind { found: release.kind });
        }
        let (slices, finishes) = match release.kind {
            release_kind::SLICES => (true, false),
            release_kind::SLICES_AND_FINISH => (true, true),
            release_kind::FINISH => (false, true),
            found => return Err(ReleaseError::Kind { found }),
        };
        let released = if slices {
            self.release_slices(now_ns, session, release)?
        } else {
            let message = self.message_named(session, release)?;
            Released { message, slot_is_free: false, settles: true }
        };
        if finishes {
            self.finish(released.message, release.code)?;
        }
        if finishes || released.settles {
            self.settle(released.message);
        } else if !released.slot_is_free {
            // Nothing came free that anybody could wait for.
            return Ok(());
        }
        if self.sessions[session as usize].backlog.head().is_some() {
            self.deliver_backlog(now_ns, session, effects);
        }
        Ok(())
    }

    #[inline]
    fn release_slices(
        &mut self,
        now_ns: u64,
        session: u32,
        release: Release,
    ) -> Result<Released, ReleaseError> {
        let Release { index, generation, first, count, .. } = release;
        let owner = &mut self.sessions[session as usize];
        let slot = owner.slots.get_mut(index as usize).ok_or(ReleaseError::Slot { slot: index })?;
        let slot_number = u16::try_from(index).expect("below session_slots");
        if slot.message == NONE || slot.generation != generation {
            return Err(ReleaseError::NotHeld { slot: index });
        }
        let outside = ReleaseError::Slices { slot: index, first, count };
        if count == 0 || u32::from(first) + u32::from(count) > slot.run.count {
            return Err(outside);
        }
        let bits = (u64::MAX >> (64 - count)) << first;
        if slot.held & bits != bits {
            return Err(outside);
        }
        slot.held &= !bits;
        let message = slot.message;
        let run = Run { first: slot.run.first + u32::from(first), count: u32::from(count) };
        let (share, plain) = (slot.share, slot.plain);
        let emptied = slot.held == 0;
        // A run that is being copied stays where it is until that is over; then its slabs and its slot come back.
        let slot_is_free = emptied && (plain || !slot.copying);
        if slot_is_free {
            slot.message = NONE;
            owner.free_slots.push(slot_number);
        }
        if emptied {
            let attended_ns = super::attended_ns(now_ns, self.stalled_ns);
            let span_ns = attended_ns.saturating_sub(self.escape.since_ns(session, slot_number));
            let bytes = u64::from(slot.run.count) * jet_wire::SLAB_BYTES as u64;
            owner.released_since_tick_bytes += bytes;
            if let Some(following) = &mut self.following {
                following.released(bytes);
            }
            owner.note_release(span_ns);
        }
        let record = &mut self.messages[message];
        record.held -= run.count;
        let settles = record.finished || record.failure.is_some();
        if plain {
            self.escape.release(session, slot_number, run.count);
            self.pool.give_plain(run, share);
        } else {
            self.release_escaped(session, slot_number, run);
        }
        Ok(Released { message, slot_is_free, settles })
    }

    /// Slices of a run that escaped, lies in a slab that stands in for another, or is being copied.
    #[cold]
    fn release_escaped(&mut self, session: u32, slot_number: u16, run: Run) {
        let owner = &mut self.sessions[session as usize];
        let slot = &owner.slots[usize::from(slot_number)];
        let (share, copying) = (slot.share, slot.copying);
        if share.in_budget() {
            self.escape.release(session, slot_number, run.count);
        } else {
            owner.now.give(run.count, share);
        }
        if !copying {
            self.pool.give(run, share);
        }
    }

    fn message_named(&self, session: u32, release: Release) -> Result<u32, ReleaseError> {
        let unknown = ReleaseError::Message { message: release.index };
        let owner = &self.sessions[session as usize];
        let &(message, generation) = owner.messages.get(release.index as usize).ok_or(unknown)?;
        if message == NONE || generation != release.generation {
            return Err(unknown);
        }
        Ok(message)
    }

    #[inline]
    fn finish(&mut self, message: u32, code: u32) -> Result<(), ReleaseError> {
        let record = &mut self.messages[message];
        if record.finished {
            return Err(ReleaseError::Message { message: record.app_message });
        }
        if code == 0 && record.failure.is_none() && record.arrived < record.length {
            return Err(ReleaseError::Early { message: record.app_message });
        }
        record.finished = true;
        record.code = code;
        if record.arrived < record.length {
            // Rejected while it comes: no further READs.
            self.end_arrival(message);
            self.unlink(message);
        }
        Ok(())
    }
}
