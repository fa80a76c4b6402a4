//! Which class and which processors threads are in.

use super::locked;
use jet_cat::CpuSet;
use jet_cat::resctrl::GroupName;
use jet_cat::reservation::Reservation;
use jet_cat::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// More threads than any application has.
const APPLICATION_THREADS_MAX: usize = 100_000;

/// Processes whose threads are in the class, with the sessions that each has.
#[derive(Debug, Default)]
pub(super) struct Members(Mutex<BTreeMap<i32, usize>>);

/// A session of an application whose threads are in the class. Dropped, they leave it, if it was the last one.
pub struct Application<'a> {
    reservation: &'a Reservation,
    members: &'a Members,
    process: i32,
}

impl<'a> Application<'a> {
    /// Moves its threads.
    pub(super) fn join(reservation: &'a Reservation, members: &'a Members, process: i32) -> Self {
        *locked(&members.0).entry(process).or_default() += 1;
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
                if let Err(error) = reservation.add_thread(thread) {
                    eprintln!("jetd: an application's thread is not in the reserved cache's class: {error}");
                }
            }
        }
        Self { reservation, members, process }
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
        let group = self.reservation.plan().group.clone();
        let inside = self.reservation.resctrl().group(&group).threads().unwrap_or_default();
        let default = GroupName::default_group();
        let default = self.reservation.resctrl().group(&default);
        for thread in threads_of(self.process).iter().filter(|thread| inside.contains(thread)) {
            // One that ended meanwhile is in no group.
            let _ = default.add_thread(*thread);
        }
    }
}

fn threads_of(process: i32) -> BTreeSet<i32> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
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
pub(super) fn leave(reservation: &Reservation) {
    let default = GroupName::default_group();
    if let Err(error) = reservation.resctrl().group(&default).add_thread(own_thread()) {
        eprintln!("jetd: the control plane stays in the reserved cache's class: {error}");
    }
}
