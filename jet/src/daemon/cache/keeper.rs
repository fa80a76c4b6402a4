//! Keeping the cache reservation as it was made. The kernel and other tools may undo the reservation without
//! telling anyone, so a thread checks it every second. The thread repairs what it can without a loss for
//! other tools. If repairs do not last, the thread tries more and more rarely.

use super::setting::Setting;
use super::status::{self, Bandwidth};
use super::threads::{Application, ApplicationProcesses, OwnThreads, name_of};
use super::{CacheError, locked};
use jet_cat::plan::Request;
use jet_cat::resctrl::Resctrl;
use jet_cat::reservation::{Class, Fault, Reservation};
use jet_control::status::ReservationStatus;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two checks of the reservation.
const LOOK: Duration = Duration::from_secs(1);
/// First pause between two repairs of the reservation. Each further pause is twice as long, up to
/// [`PAUSE_MAX`]. After [`PAUSE_MAX`] without a repair, the next pause is `PAUSE_FIRST` again.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// A difference between the cache reservation as it was made and as it is found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Deviation {
    /// A fault of the reservation itself.
    Fault(Fault),
    /// The reservation is gone and could not be made anew. The text is the reason.
    Lost(String),
    /// The reservation cannot be checked. The text is the error.
    Unseen(String),
    /// A thread of the daemon is no longer in the reservation's resctrl group: it is in another tool's
    /// `group`, or (`None`) in the default group.
    Misplaced { thread: i32, name: String, group: Option<String> },
}

impl Deviation {
    /// Returns the kind of the deviation, by which its log lines are limited.
    fn kind(&self) -> &'static str {
        match self {
            Self::Fault(_) => "fault",
            Self::Lost(_) => "lost",
            Self::Unseen(_) => "unseen",
            Self::Misplaced { .. } => "misplaced",
        }
    }

    /// Whether a repair of the reservation may remove the deviation.
    fn may_be_repaired(&self) -> bool {
        match self {
            // If resctrl is mounted elsewhere now, the reservation can be made there.
            Self::Fault(Fault::Unmounted { .. }) => Resctrl::find().is_ok(),
            Self::Fault(Fault::GroupOfOthers { .. } | Fault::Offline { .. } | Fault::Changed { .. }) => false,
            Self::Fault(_) => true,
            Self::Lost(_) => true,
            Self::Unseen(_) => false,
            Self::Misplaced { group, .. } => group.is_none(),
        }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Lost(reason) => write!(f, "it is not made again: {reason}"),
            Self::Unseen(error) => write!(f, "it cannot be looked at: {error}"),
            Self::Misplaced { thread, name, group: Some(group) } => {
                write!(
                    f,
                    "the thread {name} ({thread}) was moved to the group '{group}' of another tool, and \
                     stays there"
                )
            }
            Self::Misplaced { thread, name, group: None } => {
                write!(f, "the thread {name} ({thread}) was moved out of the group by another tool")
            }
        }
    }
}

/// Pauses between repairs of the reservation.
struct RepairPacing {
    pause: Duration,
    last: Option<Instant>,
    /// Deviations at the last repair.
    tried: Vec<Deviation>,
}

impl RepairPacing {
    const NEW: Self = Self { pause: PAUSE_FIRST, last: None, tried: Vec::new() };

    /// Notes that the reservation needs no repair. If the last repair was [`PAUSE_MAX`] ago or more, the next
    /// pause is [`PAUSE_FIRST`] again.
    fn reset_pacing(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now - last >= PAUSE_MAX) {
            *self = Self::NEW;
        }
    }

    /// Returns whether to repair the reservation now. If other tools have removed some of the deviations, the
    /// pause does not apply.
    fn tries(&mut self, now: Instant, deviations: &[Deviation]) -> bool {
        let is_less =
            deviations.len() < self.tried.len() && deviations.iter().all(|one| self.tried.contains(one));
        if self.last.is_some_and(|last| now - last < self.pause) && !is_less {
            return false;
        }
        if self.last.is_some() {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        self.last = Some(now);
        self.tried = deviations.to_vec();
        true
    }
}

/// State that the checking thread and callers share.
#[derive(Default)]
struct KeeperState {
    /// The reservation; `None` while it is being repaired. A repair takes time, and the status must not wait
    /// for it.
    reservation: Mutex<Option<Setting<Reservation>>>,
    /// Request for the reservation, and the folder of its journal; `None` if nothing was reserved.
    wanted: Option<(Request, PathBuf)>,
    /// CAT class of the reservation, for callers that cannot wait for a repair. The class changes only with
    /// the reservation.
    class: Mutex<Option<Class>>,
    own_threads: OwnThreads,
    applications: ApplicationProcesses,
    bandwidth: Mutex<Bandwidth>,
    /// Number of successful repairs of the reservation.
    again: AtomicU64,
    /// Deviations at the last check.
    told: Mutex<Vec<Deviation>>,
    /// Reservation's status as it was last read.
    last: Mutex<ReservationStatus>,
}

/// A reservation, and the thread that checks and repairs it.
#[derive(Default)]
pub(super) struct ReservationKeeper {
    state: Arc<KeeperState>,
    /// Channel whose drop ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ReservationKeeper {
    pub fn holding(reservation: Setting<Reservation>, journals: &Path) -> Self {
        let held = reservation.get();
        let state = KeeperState {
            class: Mutex::new(held.map(Reservation::class)),
            wanted: held.map(|held| (held.request().clone(), journals.to_owned())),
            reservation: Mutex::new(Some(reservation)),
            ..KeeperState::default()
        };
        Self { state: Arc::new(state), stop: None, thread: None }
    }

    /// Calls `look` with the reservation, which no repair changes during the call.
    pub fn with<T>(&self, look: impl FnOnce(Option<&Reservation>) -> T) -> T {
        look(locked(&self.state.reservation).as_ref().and_then(Setting::get))
    }

    /// Starts the thread that checks and repairs the reservation, if there is a reservation.
    pub fn watch(&mut self) {
        if self.state.wanted.is_none() {
            return;
        }
        let (stop, stopped) = channel();
        let state = Arc::clone(&self.state);
        match std::thread::Builder::new().name("jet-cache".to_owned()).spawn(move || state.watch(&stopped)) {
            Ok(thread) => (self.stop, self.thread) = (Some(stop), Some(thread)),
            Err(error) => tracing::warn!("what is reserved of the cache is not looked after: {error}"),
        }
    }

    /// Runs `make` inside the reservation's CAT class. Threads that `make` starts inherit the class and stay
    /// in it.
    pub fn inside<T>(&self, make: impl FnOnce() -> T) -> T {
        match self.state.class() {
            Some(class) => self.state.own_threads.make(&class, make),
            None => make(),
        }
    }

    /// Moves an application's threads into the reservation's CAT class until the returned value is dropped;
    /// `None` if nothing is reserved.
    pub fn application(&self, process: i32) -> Option<Application<'_>> {
        let state = &*self.state;
        state.class().map(|class| Application::join(class, &state.applications, process))
    }

    pub fn status(&self) -> ReservationStatus {
        if let Some(reservation) = &*locked(&self.state.reservation) {
            return self.state.answer(reservation);
        }
        let mut status = locked(&self.state.last).clone();
        status.faults = locked(&self.state.told).iter().map(ToString::to_string).collect();
        status.faults.push("it is being made again at this moment".to_owned());
        status
    }

    /// Ends the thread that checks the reservation, and undoes the reservation.
    pub fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The log has the panic of a thread that panicked.
            let _ = thread.join();
        }
        if let Some(reservation) = &mut *locked(&self.state.reservation) {
            reservation.undo("the reserved cache is", |reservation| reservation.restore().map(drop));
        }
    }
}

impl KeeperState {
    fn class(&self) -> Option<Class> {
        locked(&self.class).clone()
    }

    fn watch(&self, stopped: &Receiver<()>) {
        let mut pacing = RepairPacing::NEW;
        while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            self.look(&mut pacing);
        }
    }

    fn look(&self, pacing: &mut RepairPacing) {
        let mut slot = locked(&self.reservation);
        let Some(reservation) = &*slot else { return };
        let deviations = self.deviations(reservation);
        self.tell(&deviations);
        if !deviations.iter().any(Deviation::may_be_repaired) {
            pacing.reset_pacing(Instant::now());
        } else if pacing.tries(Instant::now(), &deviations)
            && let Some(mut reservation) = slot.take()
        {
            drop(slot);
            self.repair(&mut reservation, &deviations);
            *locked(&self.reservation) = Some(reservation);
        }
    }

    /// Returns all deviations from the reservation as it was made.
    fn deviations(&self, reservation: &Setting<Reservation>) -> Vec<Deviation> {
        let held = match reservation {
            Setting::Set(held) => held,
            Setting::Failed(reason) => return vec![Deviation::Lost(reason.clone())],
            Setting::Left => return Vec::new(),
        };
        let faults = match held.faults() {
            Ok(faults) => faults,
            Err(error) => return vec![Deviation::Unseen(error.to_string())],
        };
        let mut deviations: Vec<_> = faults.into_iter().map(Deviation::Fault).collect();
        let class = held.class();
        // If the group is gone, no thread counts as misplaced.
        for thread in self.own_threads.misplaced(&class).unwrap_or_default() {
            deviations.push(Deviation::Misplaced {
                thread,
                name: name_of(thread),
                group: class.other_group_of(thread),
            });
        }
        deviations
    }

    /// Logs the deviations that the check before did not find.
    fn tell(&self, deviations: &[Deviation]) {
        let mut told = locked(&self.told);
        for one in deviations.iter().filter(|one| !told.contains(one)) {
            tracing::warn!(kind = one.kind(), "the reserved cache: {one}");
        }
        deviations.clone_into(&mut told);
    }

    fn repair(&self, reservation: &mut Setting<Reservation>, deviations: &[Deviation]) {
        let is_undone = |one: &Deviation| {
            matches!(one, Deviation::Lost(_) | Deviation::Fault(Fault::MountedAnew | Fault::Unmounted { .. }))
        };
        let repaired = if deviations.iter().any(is_undone) {
            self.make_anew(reservation).map(|()| Vec::new())
        } else if let Setting::Set(held) = reservation {
            held.repair(&mut |_| {}).map_err(CacheError::from)
        } else {
            Ok(Vec::new())
        };
        let back = self.class().map_or(0, |class| self.bring_back(&class));
        let mut left = self.deviations(reservation);
        // Add deviations that the repair met, such as another tool's group.
        let in_the_way =
            repaired.as_ref().map_or(&[][..], Vec::as_slice).iter().cloned().map(Deviation::Fault);
        let in_the_way: Vec<_> = in_the_way.filter(|fault| !left.contains(fault)).collect();
        left.extend(in_the_way);
        if let Err(error) = repaired
            && !left.iter().any(|one| matches!(one, Deviation::Lost(_)))
        {
            tracing::warn!("the reserved cache is not made again for now: {error}");
        }
        let is_repaired = |one: &Deviation| {
            !matches!(one, Deviation::Misplaced { .. }) && one.may_be_repaired() && !left.contains(one)
        };
        if let Setting::Set(held) = reservation
            && deviations.iter().any(is_repaired)
        {
            self.again.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("{}", format!("cache reserved again: {}", held.plan()).trim_end());
            self.applications.join_again(&held.class());
        }
        if back > 0 {
            tracing::warn!("threads back in the reserved cache's group: {back}");
        }
        self.tell(&left);
    }

    /// Makes a reservation anew after the kernel has undone the old one.
    fn make_anew(&self, reservation: &mut Setting<Reservation>) -> Result<(), CacheError> {
        let Some((request, journals)) = &self.wanted else { return Ok(()) };
        // While resctrl is not mounted, the old reservation stays, with its journal.
        let resctrl = Resctrl::find()?;
        if let Setting::Set(held) = std::mem::take(reservation) {
            // Unmounting has undone everything. If a journal is left, the next reservation deals with it.
            let _ = held.restore();
        }
        match Reservation::make(&resctrl, request, journals, &mut |_| {}) {
            Ok(made) => {
                *locked(&self.class) = Some(made.class());
                *reservation = Setting::Set(made);
                Ok(())
            }
            Err(error) => {
                let error = CacheError::from(error);
                *reservation = Setting::Failed(error.to_string());
                Err(error)
            }
        }
    }

    /// Moves the daemon's threads that have left the CAT class back into it, except those in another tool's
    /// group. Returns the number of threads moved.
    fn bring_back(&self, class: &Class) -> usize {
        let misplaced = self.own_threads.misplaced(class).unwrap_or_default();
        // The next check looks again at threads that another tool has taken, or that have ended.
        misplaced.into_iter().filter(|thread| class.add_thread(*thread).is_ok()).count()
    }

    /// Builds the reservation's status, and keeps it for readings during a repair.
    fn answer(&self, reservation: &Setting<Reservation>) -> ReservationStatus {
        let held = reservation.get();
        let deviations = if self.wanted.is_some() { self.deviations(reservation) } else { Vec::new() };
        let status = ReservationStatus {
            reason: reservation.reason().map(str::to_owned),
            group: held.map(|held| held.plan().group.to_string()),
            exclusive: held.and_then(status::is_exclusive),
            domains: held.map_or_else(Vec::new, |held| status::domains(held, &mut locked(&self.bandwidth))),
            faults: deviations.iter().map(ToString::to_string).collect(),
            reserved_again: self.again.load(Ordering::Relaxed),
        };
        locked(&self.last).clone_from(&status);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misplaced(thread: i32) -> Deviation {
        Deviation::Misplaced { thread, name: "a".to_owned(), group: None }
    }

    #[test]
    fn what_does_not_last_is_tried_more_and_more_rarely() {
        let start = Instant::now();
        let mut pacing = RepairPacing::NEW;
        let deviations = [misplaced(1)];
        let mut now = start;
        let mut tries = Vec::new();
        // Another tool undoes each repair at once, for an hour.
        while now - start < Duration::from_secs(3600) {
            if pacing.tries(now, &deviations) {
                tries.push((now - start).as_secs());
            }
            now += LOOK;
        }
        assert_eq!(tries[..5], [0, 1, 3, 7, 15]);
        assert_eq!(tries.len(), 15, "{tries:?}");
        assert!(tries.windows(2).all(|two| two[1] - two[0] <= PAUSE_MAX.as_secs()), "{tries:?}");
        // After the longest pause without a repair, the pause is the first one again.
        pacing.reset_pacing(now + PAUSE_MAX);
        assert!(pacing.tries(now + PAUSE_MAX, &deviations));
        assert!(pacing.tries(now + PAUSE_MAX + PAUSE_FIRST, &deviations));
    }

    #[test]
    fn what_others_made_better_is_tried_at_once() {
        let now = Instant::now();
        let mut pacing = RepairPacing::NEW;
        assert!(pacing.tries(now, &[misplaced(1), misplaced(2)]));
        assert!(!pacing.tries(now, &[misplaced(1), misplaced(2)]));
        assert!(!pacing.tries(now, &[misplaced(3)]), "something else is no improvement");
        assert!(pacing.tries(now, &[misplaced(2)]));
        assert!(!pacing.tries(now, &[misplaced(2)]));
    }
}
