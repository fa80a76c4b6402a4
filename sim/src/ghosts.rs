//! Ghosts: I/O that goes on after its application is gone. Nobody else may get what it reads from before the
//! quarantine is over.

use crate::event::{Life, MessageName};
use crate::payload::find_damage;
use jet_fabric::memory::SharedMemory;
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

/// Ghosts, in the order of the times at which their quarantines end.
#[derive(Debug, Default)]
pub struct Ghosts(Vec<(u64, Ghost)>);

impl Ghosts {
    /// Adds ghosts whose quarantine ends at a time.
    pub fn add(&mut self, until_ns: u64, ghosts: Vec<Ghost>) {
        self.0.extend(ghosts.into_iter().map(|ghost| (until_ns, ghost)));
    }

    /// Lets all quarantines end earlier, as the receiver's clock jumped ahead.
    pub fn hurry(&mut self, span_ns: u64) {
        for (until_ns, _) in &mut self.0 {
            *until_ns = until_ns.saturating_sub(span_ns);
        }
    }

    /// Returns when the first quarantine ends.
    pub fn next_ns(&self) -> Option<u64> {
        self.0.first().map(|(until_ns, _)| *until_ns)
    }

    /// Returns the slabs of a memory that ghosts read.
    pub fn slabs_of(&self, memory: &Arc<SharedMemory>) -> usize {
        let of_it = self.0.iter().filter(|(_, ghost)| Arc::ptr_eq(&ghost.memory, memory));
        of_it.map(|(_, ghost)| ghost.bytes.div_ceil(SLAB_BYTES)).sum()
    }

    /// Takes the ghosts whose quarantine is over at a time, and returns what one of them read that was not
    /// its message's. To be called before anybody else runs at that time or later.
    pub fn check_until(&mut self, now_ns: u64) -> Option<String> {
        let due = self.0.iter().take_while(|(until_ns, _)| *until_ns <= now_ns).count();
        self.0.drain(..due).find_map(|(until_ns, ghost)| {
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
