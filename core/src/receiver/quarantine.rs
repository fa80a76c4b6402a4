//! What sessions held that are over: nobody else's before it is certain that nobody reads it any more.
//!
//! A process that ends, or closes its connection, has let go of what it held: it comes back after a while, for I/O of the
//! process's may still be under way. A process whose session was ended for a fault may live on and read: then what it held
//! comes back when it lets go, which may be never. So that one such process does not take the pool slab by slab, it gets no
//! further session before the slabs of the first are back.

use super::Receiver;
use super::escape::for_each_stretch;
use crate::admission::GrantPolicy;
use crate::effects::{ProcessId, SessionId};
use crate::message::NONE;
use crate::session::SessionState;
use crate::stats::QuarantineStats;
use jet_wire::message::hello::AppName;

impl<P: GrantPolicy> Receiver<P> {
    /// Slabs in quarantine for faults of a process. Where processes cannot be told apart, an application's name stands for its
    /// process: one that only is faulty comes again under its own.
    pub(super) fn quarantined_for_faults(&self, process: Option<ProcessId>, name: AppName) -> u32 {
        let of_it = self.sessions.iter().filter(|session| match (session.process, process) {
            (Some(holder), Some(process)) => holder == process,
            _ => session.name == Some(name),
        });
        of_it
            .map(|session| match session.state {
                SessionState::Quarantine { faulted: true, held_slabs, .. } => held_slabs,
                _ => 0,
            })
            .sum()
    }

    /// Whether time alone ends a session's quarantine.
    pub(super) fn quarantine_passes(&self, index: u32) -> bool {
        match self.sessions[index as usize].state {
            SessionState::Quarantine { holder_lives, held_slabs, .. } => !holder_lives || held_slabs == 0,
            SessionState::Free | SessionState::Open => false,
        }
    }

    /// Ends a session's quarantine where it is time.
    pub(super) fn look_at_quarantine(&mut self, now_ns: u64, index: u32) {
        let session = &self.sessions[index as usize];
        let SessionState::Quarantine { until_ns, .. } = session.state else { return };
        // A copy may still be reading what it held.
        if now_ns >= until_ns && session.copies == 0 && self.quarantine_passes(index) {
            self.end_quarantine(index);
        }
    }

    fn end_quarantine(&mut self, index: u32) {
        let session = &mut self.sessions[index as usize];
        for slot in session.slots.iter().filter(|slot| slot.message != NONE) {
            for_each_stretch(slot.held, slot.run.first, |run| self.pool.release_quarantined(run, slot.share));
        }
        session.reset();
    }

    /// A session that is over and whose slabs are not back; `None` where that is not so.
    pub fn quarantine_stats(&self, session: SessionId) -> Option<QuarantineStats> {
        let record = self.sessions.get(session.0 as usize)?;
        let SessionState::Quarantine { holder_lives, held_slabs, .. } = record.state else { return None };
        Some(QuarantineStats { app: record.name?, process: record.process, held_slabs, holder_lives })
    }
}
