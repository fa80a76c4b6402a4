//! Restriction of a thread to some processors for a limited time. Threads that it starts meanwhile inherit
//! the restriction.

use crate::cpu_set::CpuSet;
use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};
use std::io;
use std::marker::PhantomData;

/// Restriction of the current thread to some processors, made by [`CpuSet::pin_thread`]. Dropping it ends the
/// restriction: the thread may then use the same processors as before.
#[must_use = "dropped, it lets the thread run as before"]
pub struct Pinning {
    before: Mask,
    /// Makes the type `!Send`: the restriction belongs to the thread that made it.
    of_this_thread: PhantomData<*const ()>,
}

impl CpuSet {
    /// Restricts the calling thread to those processors of this set that it is allowed to use.
    ///
    /// # Errors
    /// The thread is allowed to use none of them, or the kernel refuses.
    pub fn pin_thread(&self) -> io::Result<Pinning> {
        let before = sched_getaffinity(None)?;
        let mut both = Mask::new();
        let own = self.iter().map(|cpu| cpu as usize).filter(|cpu| *cpu < Mask::MAX_CPU);
        own.filter(|cpu| before.is_set(*cpu)).for_each(|cpu| both.set(cpu));
        sched_setaffinity(None, &both)?;
        Ok(Pinning { before, of_this_thread: PhantomData })
    }
}

impl Drop for Pinning {
    fn drop(&mut self) {
        // The kernel allowed this mask before, so a failure is unlikely; `drop` could not report one.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> CpuSet {
        let mask = sched_getaffinity(None).unwrap();
        (0..Mask::MAX_CPU).filter(|cpu| mask.is_set(*cpu)).map(|cpu| u32::try_from(cpu).unwrap()).collect()
    }

    #[test]
    fn a_thread_stays_and_what_it_makes_until_it_is_let_go() {
        let before = allowed();
        let last: CpuSet = before.iter().last().into_iter().collect();
        let pinning = last.pin_thread().unwrap();
        assert_eq!(allowed(), last);
        assert_eq!(std::thread::spawn(allowed).join().unwrap(), last);
        drop(pinning);
        assert_eq!(allowed(), before);
        assert!(CpuSet::default().pin_thread().is_err());
        assert!(CpuSet::from_iter([1_000_000]).pin_thread().is_err());
        assert_eq!(allowed(), before);
    }
}
