//! Which class and which processors threads are in.

use super::locked;
use jet_cat::CpuSet;
use jet_cat::resctrl::AccessError;
use jet_cat::reservation::{Class, Reservation};
use jet_cat::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// More threads than any application has.
const APPLICATION_THREADS_MAX: usize = 100_000;

/// Threads of this process that belong into the class: those that were made in it, and those that these made.
#[derive(Debug, Default)]
pub(super) struct Inside(Mutex<BTreeSet<i32>>);

impl Inside {
    /// Threads that this makes are in the class: they inherit it from the one that makes them, which is there
    /// meanwhile.
    pub fn make<T>(&self, class: &Class, make: impl FnOnce() -> T) -> T {
        // Held to the end: nobody takes the one that makes for one that belongs there.
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

    /// Those that are not in the class any more.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn astray(&self, class: &Class) -> Result<Vec<i32>, AccessError> {
        let mut inside = locked(&self.0);
        let own = own_threads();
        let found: BTreeSet<i32> =
            class.threads()?.into_iter().filter(|thread| own.contains(thread)).collect();
        inside.retain(|thread| own.contains(thread));
        inside.extend(&found);
        Ok(inside.difference(&found).copied().collect())
    }
}

/// Processes whose threads are in the class, with the sessions that each has.
#[derive(Debug, Default)]
pub(super) struct Members(Mutex<BTreeMap<i32, usize>>);

impl Members {
    /// Moves all their threads: the class is another.
    pub fn join_again(&self, class: &Class) {
        locked(&self.0).keys().for_each(|process| join(class, *process));
    }
}

/// A session of an application whose threads are in the class. Dropped, they leave it, if it was the last
/// one.
pub struct Application<'a> {
    class: Class,
    members: &'a Members,
    process: i32,
}

impl<'a> Application<'a> {
    /// Moves its threads.
    pub(super) fn join(class: Class, members: &'a Members, process: i32) -> Self {
        *locked(&members.0).entry(process).or_default() += 1;
        join(&class, process);
        Self { class, members, process }
    }
}

impl Drop for Application<'_> {
    fn drop(&mut self) {
        let mut members = locked(&self.members.0);
        let sessions = members.entry(self.process).or_default();
        *sessions = sessions.saturating_sub(1);
        if *sessions > 0 {
            return;
        }
        members.remove(&self.process);
        let inside = self.class.threads().unwrap_or_default();
        for thread in threads_of(self.process).iter().filter(|thread| inside.contains(thread)) {
            // One that ended meanwhile is in no group.
            let _ = self.class.remove_thread(*thread);
        }
    }
}

/// Moves a process's threads into the class.
fn join(class: &Class, process: i32) {
    let mut threads = BTreeSet::new();
    // One that was not moved yet may start another meanwhile.
    loop {
        let found = threads_of(process);
        let new: Vec<i32> = found.difference(&threads).copied().collect();
        if new.is_empty() || threads.len() > APPLICATION_THREADS_MAX {
            break;
        }
        for thread in new {
            threads.insert(thread);
            if let Err(error) = class.add_thread(thread) {
                tracing::warn!("an application's thread is not in the reserved cache's class: {error}");
            }
        }
    }
}

fn threads_of(process: impl std::fmt::Display) -> BTreeSet<i32> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// This process's.
fn own_threads() -> BTreeSet<i32> {
    threads_of("self")
}

/// A thread's name; none of one that has ended.
pub(super) fn name_of(thread: i32) -> String {
    std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default().trim().to_owned()
}

/// The processors of the caches that are reserved; none where these are all.
pub(super) fn cpus_near(reservation: &Reservation) -> Option<CpuSet> {
    let topology = Topology::of_host().ok()?;
    let domains = &reservation.plan().domains;
    if domains.len() == topology.domains.len() {
        return None;
    }
    let reserved = domains.iter().filter_map(|planned| topology.domain(planned.domain));
    Some(reserved.flat_map(|domain| domain.cpus.iter()).collect())
}

/// The thread that calls.
pub(super) fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

/// Back to the group that this thread came from: only from the default group are threads taken.
pub(super) fn leave(class: &Class) {
    if let Err(error) = class.remove_thread(own_thread()) {
        tracing::warn!("the control plane stays in the reserved cache's class: {error}");
    }
}
