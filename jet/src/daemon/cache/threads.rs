//! Threads in the reservation's CAT class, and the processors on which they run.

use super::locked;
use jet_cat::CpuSet;
use jet_cat::resctrl::AccessError;
use jet_cat::reservation::{Class, Reservation};
use jet_cat::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// Number of one process's threads in a CAT class beyond which no more are moved there. No application has as
/// many threads.
const APPLICATION_THREADS_MAX: usize = 100_000;

/// Threads of the daemon that belong in the reservation's CAT class: those that were started inside it, and
/// the threads that these started.
#[derive(Debug, Default)]
pub(super) struct OwnThreads(Mutex<BTreeSet<i32>>);

impl OwnThreads {
    /// Runs `make` with the calling thread in the CAT class, so that threads which `make` starts inherit the
    /// class. Afterwards the calling thread leaves the class.
    pub fn make<T>(&self, class: &Class, make: impl FnOnce() -> T) -> T {
        // Held until the end: otherwise [`misplaced`](Self::misplaced) would take the calling thread for one
        // that belongs to the class.
        let mut inside = locked(&self.0);
        let before = own_threads();
        let added = class.add_thread(own_thread());
        let made = make();
        match added {
            Ok(()) => leave(class),
            Err(error) => tracing::warn!("threads are not in the reserved cache's class: {error}"),
        }
        inside.extend(own_threads().difference(&before));
        made
    }

    /// Returns the daemon's threads that belong in the CAT class and are no longer in it.
    ///
    /// # Errors
    /// Returns an error if the list of the threads in the class cannot be read.
    pub fn misplaced(&self, class: &Class) -> Result<Vec<i32>, AccessError> {
        let mut inside = locked(&self.0);
        let own = own_threads();
        let found: BTreeSet<i32> =
            class.threads()?.into_iter().filter(|thread| own.contains(thread)).collect();
        inside.retain(|thread| own.contains(thread));
        inside.extend(&found);
        Ok(inside.difference(&found).copied().collect())
    }
}

/// Processes whose threads are in the reservation's CAT class, with the number of sessions of each.
#[derive(Debug, Default)]
pub(super) struct ApplicationProcesses(Mutex<BTreeMap<i32, usize>>);

impl ApplicationProcesses {
    /// Moves the threads of all recorded processes into a new CAT class.
    pub fn join_again(&self, class: &Class) {
        locked(&self.0).keys().for_each(|process| join(class, *process));
    }
}

/// A session of an application whose threads are in the reservation's CAT class. Dropping the last session of
/// a process moves the process's threads out of the class.
pub struct Application<'a> {
    class: Class,
    processes: &'a ApplicationProcesses,
    process: i32,
}

impl<'a> Application<'a> {
    /// Counts a session of the process, and moves the process's threads into the CAT class.
    pub(super) fn join(class: Class, processes: &'a ApplicationProcesses, process: i32) -> Self {
        *locked(&processes.0).entry(process).or_default() += 1;
        join(&class, process);
        Self { class, processes, process }
    }
}

impl Drop for Application<'_> {
    fn drop(&mut self) {
        let mut processes = locked(&self.processes.0);
        let sessions = processes.entry(self.process).or_default();
        *sessions = sessions.saturating_sub(1);
        if *sessions > 0 {
            return;
        }
        processes.remove(&self.process);
        let inside = self.class.threads().unwrap_or_default();
        for thread in threads_of(self.process).iter().filter(|thread| inside.contains(thread)) {
            // A thread that has ended is in no group.
            let _ = self.class.remove_thread(*thread);
        }
    }
}

/// Moves all threads of a process into the CAT class.
fn join(class: &Class, process: i32) {
    let mut threads = BTreeSet::new();
    // A thread that is not moved yet may start another meanwhile, so look until there is no new one.
    loop {
        let found = threads_of(process);
        let new: Vec<i32> = found.difference(&threads).copied().collect();
        if new.is_empty() || threads.len() > APPLICATION_THREADS_MAX {
            break;
        }
        for thread in new {
            threads.insert(thread);
            if let Err(error) = class.add_thread(thread) {
                tracing::warn!(
                    process,
                    "an application's thread is not in the reserved cache's class: {error}"
                );
            }
        }
    }
}

fn threads_of(process: impl std::fmt::Display) -> BTreeSet<i32> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the threads of this process.
fn own_threads() -> BTreeSet<i32> {
    threads_of("self")
}

/// Returns the name of a thread of this process; empty if the thread has ended.
pub(super) fn name_of(thread: i32) -> String {
    std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns the processors of the reserved caches; `None` if every cache is reserved.
pub(super) fn cpus_near(reservation: &Reservation) -> Option<CpuSet> {
    let topology = Topology::of_host().ok()?;
    let domains = &reservation.plan().domains;
    if domains.len() == topology.domains.len() {
        return None;
    }
    let reserved = domains.iter().filter_map(|planned| topology.domain(planned.domain));
    Some(reserved.flat_map(|domain| domain.cpus.iter()).collect())
}

/// Returns the number of the calling thread.
pub(super) fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

/// Moves the calling thread back to resctrl's default group, from which it came: threads are only taken from
/// the default group.
pub(super) fn leave(class: &Class) {
    if let Err(error) = class.remove_thread(own_thread()) {
        tracing::warn!("the control plane stays in the reserved cache's class: {error}");
    }
}
