//! Ghosts: I/O that goes on after its session ended. Nobody else may get what it reads from before its
//! process has ended, and the quarantine is over.

use crate::event::{Life, MessageName};
use crate::payload::find_damage;
use jet_fabric::memory::SharedMemory;
use jet_reactor::SessionTicket;
use jet_wire::SLAB_BYTES;
use std::sync::Arc;

/// A run that an application was reading when it was killed.
#[derive(Clone, Debug)]
pub struct Ghost {
    /// The application's life.
    pub life: Life,
    /// The message that the run is of.
    pub message: MessageName,
    /// Memory that the run lies in.
    pub memory: Arc<SharedMemory>,
    /// Place of its first byte there, and its bytes.
    pub from: usize,
    /// Bytes of the run.
    pub bytes: usize,
    /// Offset of the run in its message.
    pub offset: u64,
}

/// A process that lives on after its session was ended for a fault.
#[derive(Debug)]
pub struct Holder {
    /// When the process ends.
    pub gone_ns: u64,
    /// The ticket of its session.
    pub ticket: SessionTicket,
    /// When the quarantine is over, where the process has ended by then.
    pub until_ns: u64,
    /// What it reads.
    pub ghosts: Vec<Ghost>,
}

/// Ghosts.
#[derive(Debug, Default)]
pub struct Ghosts {
    /// Those whose applications are gone, in the order of the times at which their quarantines end.
    gone: Vec<(u64, Ghost)>,
    /// Those whose applications live on.
    held: Vec<Holder>,
    /// When an application was last gone, or its session ended.
    ended_ns: u64,
}

impl Ghosts {
    /// Notes that an application is gone, or its session has ended.
    pub fn note_end(&mut self, now_ns: u64) {
        self.ended_ns = now_ns;
    }

    /// Returns when the last application was gone, where none lives on.
    pub fn last_gone_ns(&self) -> Option<u64> {
        self.held.is_empty().then_some(self.ended_ns)
    }

    /// Adds ghosts whose quarantine ends at a time.
    pub fn add(&mut self, until_ns: u64, ghosts: Vec<Ghost>) {
        self.gone.extend(ghosts.into_iter().map(|ghost| (until_ns, ghost)));
        self.gone.sort_by_key(|(until_ns, _)| *until_ns);
    }

    /// Adds the ghosts of a process that lives on.
    pub fn hold(&mut self, holder: Holder) {
        self.held.push(holder);
    }

    /// Returns when the first of the processes that live on ends.
    pub fn holder_ns(&self) -> Option<u64> {
        self.held.iter().map(|holder| holder.gone_ns).min()
    }

    /// Ends one of the processes that lived on until a time.
    pub fn let_go(&mut self, now_ns: u64) -> Option<SessionTicket> {
        let at = self.held.iter().position(|holder| holder.gone_ns <= now_ns)?;
        let Holder { ticket, until_ns, ghosts, .. } = self.held.swap_remove(at);
        self.add(until_ns.max(now_ns), ghosts);
        self.note_end(now_ns);
        Some(ticket)
    }

    /// Forgets the processes that live on: the receiver that knew them is gone.
    pub fn forget_holders(&mut self) {
        self.held.clear();
    }

    /// Lets all quarantines end earlier, as the receiver's clock jumped ahead.
    pub fn hurry(&mut self, span_ns: u64) {
        let held = self.held.iter_mut().map(|holder| &mut holder.until_ns);
        for until_ns in self.gone.iter_mut().map(|(until_ns, _)| until_ns).chain(held) {
            *until_ns = until_ns.saturating_sub(span_ns);
        }
    }

    /// Returns when the first quarantine ends.
    pub fn next_ns(&self) -> Option<u64> {
        self.gone.first().map(|(until_ns, _)| *until_ns)
    }

    /// Returns the slabs of a memory that ghosts read.
    pub fn slabs_of(&self, memory: &Arc<SharedMemory>) -> usize {
        let held = self.held.iter().flat_map(|holder| &holder.ghosts);
        let all = self.gone.iter().map(|(_, ghost)| ghost).chain(held);
        let of_it = all.filter(|ghost| Arc::ptr_eq(&ghost.memory, memory));
        of_it.map(|ghost| ghost.bytes.div_ceil(SLAB_BYTES)).sum()
    }

    /// Takes the ghosts whose quarantine is over at a time, and returns what one of them read that was not
    /// its message's. To be called before anybody else runs at that time or later.
    pub fn check_until(&mut self, now_ns: u64) -> Option<String> {
        let due = self.gone.iter().take_while(|(until_ns, _)| *until_ns <= now_ns).count();
        self.gone.drain(..due).find_map(|(until_ns, ghost)| {
            let Ghost { life, message, memory, from, bytes, offset } = ghost;
            // SAFETY: within the mapping, as its maker checked. Nobody writes these bytes while nobody runs.
            let read = unsafe { std::slice::from_raw_parts(memory.base().add(from), bytes) };
            let at = find_damage(message, offset, read)?;
            Some(format!(
                "{life:?} is gone, and before {until_ns} ns somebody wrote to {message} at {} of its \
                 {bytes} bytes from {offset}, in slab {}",
                at,
                from / SLAB_BYTES
            ))
        })
    }
}
