//! Lowering and restoring the settings of all actuators, one actuator after the other. The journal is always
//! written before a change.
//!
//! The failure of one actuator does not keep the others from working. Settings that could not be restored
//! stay in the journal. This daemon, or the next, tries again until they are restored.

use super::journal::{Journal, JournalError};
use super::tool_lock::ToolLock;
use super::{ActuatorKind, Congestion, CongestionConfig, Passive, Setting, Support, actuator};
use jet_control::status::{ActuatorState, ActuatorStatus};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Lowered,
    Unsupported,
    Failed,
}

impl State {
    const fn shown(self) -> ActuatorState {
        match self {
            Self::Ready => ActuatorState::Ready,
            Self::Lowered => ActuatorState::Lowered,
            Self::Unsupported => ActuatorState::Unsupported,
            Self::Failed => ActuatorState::Failed,
        }
    }
}

struct Held {
    actuator: Box<dyn Congestion>,
    /// Whether the configuration names the actuator. Otherwise the actuator is only here because the journal
    /// of an earlier configuration names it.
    configured: bool,
    state: State,
    detail: String,
    lowered: u64,
    restored: u64,
    failed: u64,
}

/// Settings that an earlier daemon left lowered, and how restoring them ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Number of settings that were found in the journal.
    pub found: usize,
    /// Notes for people: knobs that are gone or were changed by other programs, failures, a journal that was
    /// refused.
    pub notes: Vec<String>,
    /// Settings that are still lowered, because restoring failed. These settings stay in the journal.
    pub pending: Vec<Setting>,
}

/// Restores the settings that a killed daemon with this control socket left lowered.
///
/// Calling this function twice does no harm, but it must not be called while a daemon with this control
/// socket runs. [`CongestionControl::start`](super::CongestionControl::start) restores these settings itself.
///
/// # Errors
/// Returns [`JournalError::Read`] if the journal cannot be read.
pub fn recover(config: &CongestionConfig, control_socket: &Path) -> Result<Recovery, JournalError> {
    let config = CongestionConfig { actuators: Vec::new(), ..config.clone() };
    ActuatorKeeper::open(&config, control_socket, Vec::new()).map(|(_, recovery)| recovery)
}

/// All actuators, and the journal of their changes.
pub(super) struct ActuatorKeeper {
    held: Vec<Held>,
    journal: Journal,
    /// Settings in the journal, in the order in which they were lowered.
    pending: Vec<Setting>,
}

/// Rows of the status about the actuators: the congestion thread writes them, the status reads them.
pub(super) type Rows = Mutex<Vec<ActuatorStatus>>;

impl ActuatorKeeper {
    /// Restores the settings that an earlier daemon left lowered, and afterwards probes the configured
    /// actuators and `others`.
    pub(super) fn open(
        config: &CongestionConfig,
        control_socket: &Path,
        others: Vec<Box<dyn Congestion>>,
    ) -> Result<(Self, Recovery), JournalError> {
        let journal = Journal::of(control_socket);
        let mut recovery = Recovery::default();
        let pending = match journal.load() {
            Ok(pending) => pending,
            Err(error @ JournalError::Foreign { .. }) => {
                recovery.notes.push(error.to_string());
                recovery.notes.push(match journal.put_aside() {
                    Ok(aside) => format!("it lies in {} now", aside.display()),
                    Err(error) => format!("it cannot be put aside: {error}"),
                });
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        recovery.found = pending.len();
        let lock = if config.actuators.is_empty() && pending.is_empty() {
            Err("no tool is in use".to_owned())
        } else {
            let path = control_socket.with_extension("congestion.lock");
            ToolLock::take(&path, Duration::from_millis(config.tool_timeout_ms))
                .map_err(|error| error.to_string())
        };
        let mut held = vec![Held::new(Box::new(Passive::soft(config.soft)), true)];
        held.extend(config.actuators.iter().map(|&kind| Held::new(actuator(config, kind, &lock), true)));
        held.extend(others.into_iter().map(|actuator| Held::new(actuator, true)));
        for setting in &pending {
            if !held.iter().any(|held| held.actuator.name() == setting.actuator) {
                let kind = ActuatorKind::ALL.into_iter().find(|kind| kind.name() == setting.actuator);
                let kind = kind.expect("the journal was checked for names");
                held.push(Held::new(actuator(config, kind, &lock), false));
            }
        }
        // A tool may hang, so it comes after actuators that take no time.
        held.sort_by_key(|held| held.actuator.name() == ActuatorKind::Mstcongestion.name());
        let mut keeper = Self { held, journal, pending };
        if recovery.found > 0 {
            keeper.restore(&mut recovery.notes);
        }
        recovery.pending.clone_from(&keeper.pending);
        keeper.probe();
        Ok((keeper, recovery))
    }

    fn probe(&mut self) {
        let pending = &self.pending;
        self.held.retain(|held| held.configured || held.has_any(pending));
        // The row counts what this daemon restores, without leftovers of an earlier one.
        self.held.iter_mut().for_each(|held| held.restored = 0);
        for held in self.held.iter_mut().filter(|held| held.configured && held.state != State::Failed) {
            match held.actuator.probe() {
                Support::Ready { found } => held.ready(&found),
                Support::Unsupported { why } => (held.state, held.detail) = (State::Unsupported, why),
            }
        }
    }

    /// Whether the journal holds settings that may be lowered.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Lowers all configured actuators that can be used. Failures are reported in the rows and in `notes`.
    pub(super) fn lower(&mut self, notes: &mut Vec<String>) {
        for held in self.held.iter_mut().filter(|held| held.configured) {
            if matches!(held.state, State::Unsupported | State::Lowered) {
                continue;
            }
            match held.lower(&self.journal, &mut self.pending) {
                Ok(()) => held.lowered += 1,
                Err(why) => held.fails(why, notes),
            }
        }
    }

    /// Restores all lowered settings, in reverse order. Failures are reported in the rows and in `notes`, and
    /// the failed settings stay pending.
    pub(super) fn restore(&mut self, notes: &mut Vec<String>) {
        for held in self.held.iter_mut().rev() {
            let settings = held.own(&self.pending);
            if held.state != State::Lowered && settings.is_empty() {
                continue;
            }
            match held.actuator.restore(&settings) {
                Ok(told) => {
                    notes.extend(told.into_iter().map(|note| format!("{}: {note}", held.actuator.name())));
                    self.pending.retain(|setting| setting.actuator != held.actuator.name());
                    held.restored += 1;
                    held.ready("");
                    if !held.configured {
                        held.state = State::Unsupported;
                        held.detail =
                            "not configured; what an earlier daemon had lowered is restored".to_owned();
                    }
                }
                Err(error) => held.fails(format!("not restored, tried again: {error}"), notes),
            }
        }
        if let Err(error) = self.journal.store(&self.pending) {
            // The journal lists too many settings now. The next start finds those restored already, and
            // leaves them.
            notes.push(error.to_string());
        }
    }

    /// Replaces the rows that the status reads by the actuators' present state.
    pub(super) fn publish(&self, rows: &Rows) {
        let fresh = self.held.iter().map(Held::row).collect();
        *rows.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
    }
}

impl Held {
    fn new(actuator: Box<dyn Congestion>, configured: bool) -> Self {
        Self {
            actuator,
            configured,
            state: State::Ready,
            detail: String::new(),
            lowered: 0,
            restored: 0,
            failed: 0,
        }
    }

    fn has_any(&self, pending: &[Setting]) -> bool {
        pending.iter().any(|setting| setting.actuator == self.actuator.name())
    }

    fn own(&self, pending: &[Setting]) -> Vec<Setting> {
        pending.iter().filter(|setting| setting.actuator == self.actuator.name()).cloned().collect()
    }

    /// Writes the actuator's settings to the journal, and then lowers the actuator. If lowering fails half
    /// way, the settings are restored at once.
    fn lower(&mut self, journal: &Journal, pending: &mut Vec<Setting>) -> Result<(), String> {
        let mut settings = self.actuator.plan().map_err(|error| error.to_string())?;
        let mut ahead = pending.clone();
        for setting in &mut settings {
            // The knob is still lowered from before: keep the value from before the first lowering.
            if let Some(old) = ahead.iter().position(|old| old.is_same_knob(setting)) {
                setting.before = ahead.remove(old).before;
            }
            ahead.push(setting.clone());
        }
        if !settings.is_empty() {
            journal.store(&ahead).map_err(|error| error.to_string())?;
            *pending = ahead;
        }
        let Err(error) = self.actuator.lower(&settings) else {
            self.state = State::Lowered;
            self.detail = self.values(&self.own(pending));
            return Ok(());
        };
        let why = error.to_string();
        match self.actuator.restore(&self.own(pending)) {
            Ok(told) => {
                pending.retain(|setting| setting.actuator != self.actuator.name());
                // If this fails, the journal lists too many settings until the next restoring writes it
                // again.
                let _ = journal.store(pending);
                Err([vec![why], told].concat().join("; "))
            }
            Err(error) if error.to_string() == why => Err(format!("{why}; not undone yet, tried again")),
            Err(error) => Err(format!("{why}; not undone yet, tried again: {error}")),
        }
    }

    fn values(&self, settings: &[Setting]) -> String {
        let mut text = self.actuator.what().to_owned();
        for (at, setting) in settings.iter().enumerate() {
            let Setting { knob, before, lowered, .. } = setting;
            text.push_str(if at == 0 { "; " } else { ", " });
            text.push_str(&format!("{knob} {before} -> {lowered}"));
        }
        text
    }

    fn ready(&mut self, found: &str) {
        self.state = State::Ready;
        self.detail = self.actuator.what().to_owned();
        if !found.is_empty() {
            self.detail.push_str("; ");
            self.detail.push_str(found);
        }
    }

    fn fails(&mut self, why: String, notes: &mut Vec<String>) {
        self.failed += 1;
        // Report a reason once, not at every try.
        if self.state != State::Failed || self.detail != why {
            notes.push(format!("{}: {why}", self.actuator.name()));
        }
        (self.state, self.detail) = (State::Failed, why);
    }

    fn row(&self) -> ActuatorStatus {
        ActuatorStatus {
            name: self.actuator.name().to_owned(),
            state: self.state.shown(),
            detail: self.detail.clone(),
            lowered: self.lowered,
            restored: self.restored,
            failed: self.failed,
        }
    }
}
