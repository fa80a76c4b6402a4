//! Quarantine: slabs of ended sessions, which nobody else may use before it is certain that nobody reads them
//! any more.
//!
//! A process that ended, or closed its connection, has let go of what it held. Those slabs come back after a
//! time, for the process's I/O may still be under way. A process whose session was ended for a fault may live
//! on and read. Then the slabs come back when the process lets go, which may be never. Such a process gets no
//! further session before the slabs of the first one are back. So it cannot take the pool slab by slab.

use crate::effects::ProcessId;
use crate::stats::QuarantineStats;
use alloc::boxed::Box;
use alloc::vec;
use jet_wire::message::hello::AppName;

/// An ended session whose slabs are in quarantine.
#[derive(Clone, Copy, Debug)]
struct Detained {
    name: AppName,
    process: Option<ProcessId>,
    until_ns: u64,
    holder_lives: bool,
    /// Whether the session was ended for what its application did.
    faulted: bool,
    held_slabs: u32,
}

impl Detained {
    /// Returns whether the quarantine ends with time alone, because no living application holds its slabs.
    fn passes(&self) -> bool {
        !self.holder_lives || self.held_slabs == 0
    }
}

/// Ended sessions whose slabs are still in quarantine.
#[derive(Debug)]
pub(crate) struct Quarantine {
    sessions: Box<[Option<Detained>]>,
    span_ns: u64,
}

impl Quarantine {
    /// Creates quarantines for `sessions` sessions. Slabs come back after `span_ns` nanoseconds at the
    /// earliest.
    pub fn new(sessions: u32, span_ns: u64) -> Self {
        Self { sessions: vec![None; sessions as usize].into_boxed_slice(), span_ns }
    }

    /// Begins the quarantine of an ended session. Its application may live on, and read what it held.
    pub fn begin(
        &mut self,
        now_ns: u64,
        session: u32,
        (name, process): (AppName, Option<ProcessId>),
        faulted: bool,
        held_slabs: u32,
    ) {
        // Where it held nothing, nobody reads anything of it.
        let until_ns = if held_slabs == 0 { now_ns } else { now_ns.saturating_add(self.span_ns) };
        let detained = Detained { name, process, until_ns, holder_lives: true, faulted, held_slabs };
        self.sessions[session as usize] = Some(detained);
    }

    /// Notes that the session's application does not read its slabs any more, as far as is known.
    pub fn let_go(&mut self, session: u32) {
        if let Some(detained) = &mut self.sessions[session as usize] {
            detained.holder_lives = false;
        }
    }

    /// Returns the slabs in quarantine for faults of a process. Where processes cannot be told apart, the
    /// application's name stands for the process: an application that is merely faulty registers again under
    /// its own name.
    pub fn slabs_for_faults_of(&self, process: Option<ProcessId>, name: AppName) -> u32 {
        let is_of_it = |detained: &&Detained| match (detained.process, process) {
            (Some(holder), Some(process)) => holder == process,
            _ => detained.name == name,
        };
        let faulted = self.sessions.iter().flatten().filter(|detained| detained.faulted);
        faulted.filter(is_of_it).map(|detained| detained.held_slabs).sum()
    }

    /// Returns whether any quarantine needs only time to end.
    pub fn passes(&self) -> bool {
        self.sessions.iter().flatten().any(Detained::passes)
    }

    /// Returns whether the session was in quarantine, and the quarantine is over.
    pub fn is_over(&self, now_ns: u64, session: u32) -> bool {
        self.sessions[session as usize]
            .as_ref()
            .is_some_and(|detained| now_ns >= detained.until_ns && detained.passes())
    }

    /// Ends a session's quarantine: what it held may be used again.
    pub fn end(&mut self, session: u32) {
        self.sessions[session as usize] = None;
    }

    /// Returns the quarantine of a session; `None` if it is not in quarantine.
    pub fn stats(&self, session: u32) -> Option<QuarantineStats> {
        let &Detained { name, process, faulted, held_slabs, holder_lives, .. } =
            self.sessions.get(session as usize)?.as_ref()?;
        Some(QuarantineStats { app: name, process, faulted, held_slabs, holder_lives })
    }
}
