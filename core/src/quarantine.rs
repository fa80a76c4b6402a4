//! What sessions held that are over: nobody else's before it is certain that nobody reads it any more.
//!
//! A process that ends, or closes its connection, has let go of what it held: it comes back after a while,
//! for I/O of the process's may still be under way. A process whose session was ended for a fault may live on
//! and read: then what it held comes back when it lets go, which may be never. So that one such process does
//! not take the pool slab by slab, it gets no further session before the slabs of the first are back.

use crate::effects::ProcessId;
use crate::stats::QuarantineStats;
use alloc::boxed::Box;
use alloc::vec;
use jet_wire::message::hello::AppName;

/// A session that is over.
#[derive(Clone, Copy, Debug)]
struct Detained {
    name: AppName,
    process: Option<ProcessId>,
    until_ns: u64,
    holder_lives: bool,
    /// It was ended for what its application did.
    faulted: bool,
    held_slabs: u32,
}

impl Detained {
    /// Whether time alone ends it.
    fn passes(&self) -> bool {
        !self.holder_lives || self.held_slabs == 0
    }
}

/// Sessions that are over, and whose slabs are not back.
#[derive(Debug)]
pub(crate) struct Quarantine {
    sessions: Box<[Option<Detained>]>,
    span_ns: u64,
}

impl Quarantine {
    /// For so many sessions; nothing comes back sooner than after `span_ns`.
    pub fn new(sessions: u32, span_ns: u64) -> Self {
        Self { sessions: vec![None; sessions as usize].into_boxed_slice(), span_ns }
    }

    /// A session is over. Its application may live on, and read what it held.
    pub fn begin(
        &mut self,
        now_ns: u64,
        session: u32,
        (name, process): (AppName, Option<ProcessId>),
        faulted: bool,
        held_slabs: u32,
    ) {
        let until_ns = now_ns.saturating_add(self.span_ns);
        let detained = Detained { name, process, until_ns, holder_lives: true, faulted, held_slabs };
        self.sessions[session as usize] = Some(detained);
    }

    /// Its application does not read any more, as far as it is known.
    pub fn let_go(&mut self, session: u32) {
        if let Some(detained) = &mut self.sessions[session as usize] {
            detained.holder_lives = false;
        }
    }

    /// Slabs in quarantine for faults of a process. Where processes cannot be told apart, an application's
    /// name stands for its process: one that only is faulty comes again under its own.
    pub fn slabs_for_faults_of(&self, process: Option<ProcessId>, name: AppName) -> u32 {
        let is_of_it = |detained: &&Detained| match (detained.process, process) {
            (Some(holder), Some(process)) => holder == process,
            _ => detained.name == name,
        };
        let faulted = self.sessions.iter().flatten().filter(|detained| detained.faulted);
        faulted.filter(is_of_it).map(|detained| detained.held_slabs).sum()
    }

    /// Whether time alone ends one of them.
    pub fn passes(&self) -> bool {
        self.sessions.iter().flatten().any(Detained::passes)
    }

    /// Whether the session is over and its quarantine is, too.
    pub fn is_over(&self, now_ns: u64, session: u32) -> bool {
        self.sessions[session as usize]
            .as_ref()
            .is_some_and(|detained| now_ns >= detained.until_ns && detained.passes())
    }

    /// What it held is anybody's again.
    pub fn end(&mut self, session: u32) {
        self.sessions[session as usize] = None;
    }

    /// One session; `None` where it is not in quarantine.
    pub fn stats(&self, session: u32) -> Option<QuarantineStats> {
        let &Detained { name, process, held_slabs, holder_lives, .. } =
            self.sessions.get(session as usize)?.as_ref()?;
        Some(QuarantineStats { app: name, process, held_slabs, holder_lives })
    }
}
