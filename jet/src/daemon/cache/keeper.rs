//! What is reserved, and that it stays so. The kernel and other tools undo it and tell nobody, so it is
//! looked at every second; what can be made again without a loss for anybody else is, more and more rarely
//! where it does not last.

use super::setting::Setting;
use super::status::{self, Bandwidth};
use super::threads::{Application, Inside, Members, name_of};
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

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Between two attempts, the first and the longest; what stood for the longest begins with the first again.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Amiss {
    /// Of the reservation.
    Fault(Fault),
    /// There is none any more, and why.
    Lost(String),
    /// It cannot be looked at.
    Unseen(String),
    /// A thread is elsewhere: in another tool's group, or in the default one.
    Astray { thread: i32, name: String, group: Option<String> },
}

impl Amiss {
    /// Whether trying to make it again may help.
    fn may_be_repaired(&self) -> bool {
        match self {
            // Mounted elsewhere it can be made anew.
            Self::Fault(Fault::Unmounted { .. }) => Resctrl::find().is_ok(),
            Self::Fault(Fault::GroupOfOthers { .. } | Fault::Offline { .. } | Fault::Changed { .. }) => false,
            Self::Fault(_) => true,
            Self::Lost(_) => true,
            Self::Unseen(_) => false,
            Self::Astray { group, .. } => group.is_none(),
        }
    }
}

impl fmt::Display for Amiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Lost(reason) => write!(f, "it is not made again: {reason}"),
            Self::Unseen(error) => write!(f, "it cannot be looked at: {error}"),
            Self::Astray { thread, name, group: Some(group) } => {
                write!(
                    f,
                    "the thread {name} ({thread}) was moved to the group '{group}' of another tool, and \
                     stays there"
                )
            }
            Self::Astray { thread, name, group: None } => {
                write!(f, "the thread {name} ({thread}) was moved out of the group by another tool")
            }
        }
    }
}

/// When to try.
struct Patience {
    pause: Duration,
    last: Option<Instant>,
    /// What was amiss at the last attempt.
    tried: Vec<Amiss>,
}

impl Patience {
    const NEW: Self = Self { pause: PAUSE_FIRST, last: None, tried: Vec::new() };

    /// Nothing is to be tried.
    fn calm(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now - last >= PAUSE_MAX) {
            *self = Self::NEW;
        }
    }

    /// Whether to try now. Where somebody else has made better a part of what was amiss there is no reason to
    /// wait.
    fn tries(&mut self, now: Instant, amiss: &[Amiss]) -> bool {
        let is_less = amiss.len() < self.tried.len() && amiss.iter().all(|one| self.tried.contains(one));
        if self.last.is_some_and(|last| now - last < self.pause) && !is_less {
            return false;
        }
        if self.last.is_some() {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        self.last = Some(now);
        self.tried = amiss.to_vec();
        true
    }
}

/// Shared by the thread that looks, and by whoever asks.
#[derive(Default)]
struct Kept {
    /// None while it is made again: that takes its time, and whoever asks is not to wait for it.
    reservation: Mutex<Option<Setting<Reservation>>>,
    /// What is asked for, and where it is written down; none where nothing was reserved.
    wanted: Option<(Request, PathBuf)>,
    /// Changed with the reservation only: for those who cannot wait until it is made again.
    class: Mutex<Option<Class>>,
    inside: Inside,
    members: Members,
    bandwidth: Mutex<Bandwidth>,
    /// How often it was made again.
    again: AtomicU64,
    /// What was amiss at the last look.
    told: Mutex<Vec<Amiss>>,
    /// What was answered last.
    last: Mutex<ReservationStatus>,
}

/// A reservation, and the thread that looks after it.
#[derive(Default)]
pub(super) struct Keeper {
    kept: Arc<Kept>,
    /// Dropped, it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn holding(reservation: Setting<Reservation>, journals: &Path) -> Self {
        let held = reservation.get();
        let kept = Kept {
            class: Mutex::new(held.map(Reservation::class)),
            wanted: held.map(|held| (held.request().clone(), journals.to_owned())),
            reservation: Mutex::new(Some(reservation)),
            ..Kept::default()
        };
        Self { kept: Arc::new(kept), stop: None, thread: None }
    }

    /// What is reserved now, for as long as this takes.
    pub fn with<T>(&self, look: impl FnOnce(Option<&Reservation>) -> T) -> T {
        look(locked(&self.kept.reservation).as_ref().and_then(Setting::get))
    }

    /// Looks after it from now on, where something is reserved.
    pub fn watch(&mut self) {
        if self.kept.wanted.is_none() {
            return;
        }
        let (stop, stopped) = channel();
        let kept = Arc::clone(&self.kept);
        match std::thread::Builder::new().name("jet-cache".to_owned()).spawn(move || kept.watch(&stopped)) {
            Ok(thread) => (self.stop, self.thread) = (Some(stop), Some(thread)),
            Err(error) => tell(&format!("what is reserved of the cache is not looked after: {error}")),
        }
    }

    /// Threads that this makes are in the class, and stay in it: they inherit it from the one that makes
    /// them.
    pub fn inside<T>(&self, make: impl FnOnce() -> T) -> T {
        match self.kept.class() {
            Some(class) => self.kept.inside.make(&class, make),
            None => make(),
        }
    }

    /// An application's threads join until what this gives is dropped.
    pub fn application(&self, process: i32) -> Option<Application<'_>> {
        let kept = &*self.kept;
        kept.class().map(|class| Application::join(class, &kept.members, process))
    }

    pub fn status(&self) -> ReservationStatus {
        if let Some(reservation) = &*locked(&self.kept.reservation) {
            return self.kept.answer(reservation);
        }
        let mut status = locked(&self.kept.last).clone();
        status.faults = locked(&self.kept.told).iter().map(ToString::to_string).collect();
        status.faults.push("it is being made again at this moment".to_owned());
        status
    }

    /// Puts back what is reserved, and looks no more.
    pub fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
        if let Some(reservation) = &mut *locked(&self.kept.reservation) {
            reservation.undo("the reserved cache is", |reservation| reservation.restore().map(drop));
        }
    }
}

impl Kept {
    fn class(&self) -> Option<Class> {
        locked(&self.class).clone()
    }

    fn watch(&self, stopped: &Receiver<()>) {
        let mut patience = Patience::NEW;
        while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            self.look(&mut patience);
        }
    }

    fn look(&self, patience: &mut Patience) {
        let mut slot = locked(&self.reservation);
        let Some(reservation) = &*slot else { return };
        let amiss = self.amiss(reservation);
        self.tell(&amiss);
        if !amiss.iter().any(Amiss::may_be_repaired) {
            patience.calm(Instant::now());
        } else if patience.tries(Instant::now(), &amiss)
            && let Some(mut reservation) = slot.take()
        {
            drop(slot);
            self.repair(&mut reservation, &amiss);
            *locked(&self.reservation) = Some(reservation);
        }
    }

    /// What is not as it was made.
    fn amiss(&self, reservation: &Setting<Reservation>) -> Vec<Amiss> {
        let held = match reservation {
            Setting::Set(held) => held,
            Setting::Failed(reason) => return vec![Amiss::Lost(reason.clone())],
            Setting::Left => return Vec::new(),
        };
        let faults = match held.faults() {
            Ok(faults) => faults,
            Err(error) => return vec![Amiss::Unseen(error.to_string())],
        };
        let mut amiss: Vec<_> = faults.into_iter().map(Amiss::Fault).collect();
        let class = held.class();
        // Of a group that is not there no thread is astray.
        for thread in self.inside.astray(&class).unwrap_or_default() {
            amiss.push(Amiss::Astray { thread, name: name_of(thread), group: class.other_group_of(thread) });
        }
        amiss
    }

    /// Says what was not amiss before.
    fn tell(&self, amiss: &[Amiss]) {
        let mut told = locked(&self.told);
        for one in amiss.iter().filter(|one| !told.contains(one)) {
            tell(&format!("the reserved cache: {one}"));
        }
        amiss.clone_into(&mut told);
    }

    fn repair(&self, reservation: &mut Setting<Reservation>, amiss: &[Amiss]) {
        let is_undone = |one: &Amiss| {
            matches!(one, Amiss::Lost(_) | Amiss::Fault(Fault::MountedAnew | Fault::Unmounted { .. }))
        };
        let repaired = if amiss.iter().any(is_undone) {
            self.make_anew(reservation).map(|()| Vec::new())
        } else if let Setting::Set(held) = reservation {
            held.repair(&mut |_| {}).map_err(CacheError::from)
        } else {
            Ok(Vec::new())
        };
        let back = self.class().map_or(0, |class| self.bring_back(&class));
        let mut left = self.amiss(reservation);
        // Who was in the way.
        let in_the_way = repaired.as_ref().map_or(&[][..], Vec::as_slice).iter().cloned().map(Amiss::Fault);
        let in_the_way: Vec<_> = in_the_way.filter(|fault| !left.contains(fault)).collect();
        left.extend(in_the_way);
        if let Err(error) = repaired
            && !left.iter().any(|one| matches!(one, Amiss::Lost(_)))
        {
            tell(&format!("the reserved cache is not made again for now: {error}"));
        }
        let is_repaired = |one: &Amiss| {
            !matches!(one, Amiss::Astray { .. }) && one.may_be_repaired() && !left.contains(one)
        };
        if let Setting::Set(held) = reservation
            && amiss.iter().any(is_repaired)
        {
            self.again.fetch_add(1, Ordering::Relaxed);
            tell(format!("cache reserved again: {}", held.plan()).trim_end());
            self.members.join_again(&held.class());
        }
        if back > 0 {
            tell(&format!("threads back in the reserved cache's group: {back}"));
        }
        self.tell(&left);
    }

    /// Where everything is undone already.
    fn make_anew(&self, reservation: &mut Setting<Reservation>) -> Result<(), CacheError> {
        let Some((request, journals)) = &self.wanted else { return Ok(()) };
        // Not mounted it stays as it is, with its journal.
        let resctrl = Resctrl::find()?;
        if let Setting::Set(held) = std::mem::take(reservation) {
            // Unmounting has put back everything; a journal that is left is the next one's to look at.
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

    /// Threads that are in no other tool's group; how many.
    fn bring_back(&self, class: &Class) -> usize {
        let astray = self.inside.astray(class).unwrap_or_default();
        // One that another tool has, or that ended meanwhile, is looked at again.
        astray.into_iter().filter(|thread| class.add_thread(*thread).is_ok()).count()
    }

    /// What is shown, and kept for those who ask while it is made again.
    fn answer(&self, reservation: &Setting<Reservation>) -> ReservationStatus {
        let held = reservation.get();
        let amiss = if self.wanted.is_some() { self.amiss(reservation) } else { Vec::new() };
        let status = ReservationStatus {
            reason: reservation.reason().map(str::to_owned),
            group: held.map(|held| held.plan().group.to_string()),
            exclusive: held.and_then(status::is_exclusive),
            domains: held.map_or_else(Vec::new, |held| status::domains(held, &mut locked(&self.bandwidth))),
            faults: amiss.iter().map(ToString::to_string).collect(),
            reserved_again: self.again.load(Ordering::Relaxed),
        };
        locked(&self.last).clone_from(&status);
        status
    }
}

/// Into the log.
fn tell(what: &str) {
    tracing::warn!("{what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn astray(thread: i32) -> Amiss {
        Amiss::Astray { thread, name: "a".to_owned(), group: None }
    }

    #[test]
    fn what_does_not_last_is_tried_more_and_more_rarely() {
        let start = Instant::now();
        let mut patience = Patience::NEW;
        let amiss = [astray(1)];
        let mut now = start;
        let mut tries = Vec::new();
        // It is undone again at once, for an hour.
        while now - start < Duration::from_secs(3600) {
            if patience.tries(now, &amiss) {
                tries.push((now - start).as_secs());
            }
            now += LOOK;
        }
        assert_eq!(tries[..5], [0, 1, 3, 7, 15]);
        assert_eq!(tries.len(), 15, "{tries:?}");
        assert!(tries.windows(2).all(|two| two[1] - two[0] <= PAUSE_MAX.as_secs()), "{tries:?}");
        // What stood for long is as new.
        patience.calm(now + PAUSE_MAX);
        assert!(patience.tries(now + PAUSE_MAX, &amiss));
        assert!(patience.tries(now + PAUSE_MAX + PAUSE_FIRST, &amiss));
    }

    #[test]
    fn what_others_made_better_is_tried_at_once() {
        let now = Instant::now();
        let mut patience = Patience::NEW;
        assert!(patience.tries(now, &[astray(1), astray(2)]));
        assert!(!patience.tries(now, &[astray(1), astray(2)]));
        assert!(!patience.tries(now, &[astray(3)]), "something else is no improvement");
        assert!(patience.tries(now, &[astray(2)]));
        assert!(!patience.tries(now, &[astray(2)]));
    }
}
