//! Applications come and go.

use super::Receiver;
use super::escape::for_each_stretch;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, SessionEnd, SessionId};
use crate::message::{NONE, State};
use crate::session::SessionState;
use jet_wire::message::AckStatus;
use jet_wire::message::hello::AppName;

/// Why an application was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Another one has that name.
    NameTaken,
    /// As many as the configuration allows are registered (or in quarantine).
    TooMany {
        /// The limit.
        max: u32,
    },
    /// The class does not exist.
    Class {
        /// The class asked for.
        found: u8,
        /// Classes that there are.
        classes: u8,
    },
    /// The daemon is draining.
    Draining,
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NameTaken => {
                f.write_str("another application is registered under that name; choose another or stop it")
            }
            Self::TooMany { max } => {
                write!(f, "all {max} sessions are in use or in quarantine; raise limits.sessions")
            }
            Self::Class { found, classes } => {
                write!(f, "class {found} does not exist; choose 0 to {}", classes - 1)
            }
            Self::Draining => f.write_str("the daemon is draining; register with the next one"),
        }
    }
}

impl core::error::Error for OpenError {}

impl<P: GrantPolicy> Receiver<P> {
    /// An application registers (Jet §3.2 step 1). `takes_memory`: its messages may go to escape memory instead of
    /// waiting for room in the pool (Jet §5).
    ///
    /// # Errors
    /// [`OpenError`] says what to change.
    pub fn handle_session_opened(
        &mut self,
        name: AppName,
        class: u8,
        takes_memory: bool,
    ) -> Result<SessionId, OpenError> {
        if self.draining {
            return Err(OpenError::Draining);
        }
        if class >= self.config.classes {
            return Err(OpenError::Class { found: class, classes: self.config.classes });
        }
        let too_many = OpenError::TooMany { max: self.config.sessions_max };
        let free = self.sessions.iter().position(|s| s.state == SessionState::Free).ok_or(too_many)?;
        let app = self.use_app(name).ok_or(too_many)?;
        if self.apps[app as usize].session != NONE {
            self.drop_app(app);
            return Err(OpenError::NameTaken);
        }
        let index = u32::try_from(free).expect("below sessions_max");
        self.apps[app as usize].session = index;
        let session = &mut self.sessions[free];
        session.state = SessionState::Open;
        session.app = app;
        session.class = class;
        session.takes_memory = takes_memory;
        self.open_sessions += 1;
        Ok(SessionId(index))
    }

    /// The application closed its session or died: its messages end, what it held comes back after the quarantine. Also to
    /// be told of an application whose session was ended before, by [`Self::handle_session_fault`] or
    /// [`Self::handle_session_ended`]: until then it may be reading what it held.
    pub fn handle_session_gone(&mut self, now_ns: u64, session: SessionId, effects: &mut impl Effects) {
        self.handle_session_ended(now_ns, session, effects);
        if let SessionState::Quarantine { holder_lives, .. } = &mut self.sessions[session.0 as usize].state {
            *holder_lives = false;
        }
    }

    /// The session is over, and its application may live on: its messages end, what it held comes back after the
    /// quarantine, and not before [`Self::handle_session_gone`].
    pub fn handle_session_ended(&mut self, now_ns: u64, session: SessionId, effects: &mut impl Effects) {
        if self.sessions[session.0 as usize].is_open() {
            self.close_session(now_ns, session.0, SessionEnd::Gone, effects);
        }
    }

    pub(super) fn close_session(
        &mut self,
        now_ns: u64,
        index: u32,
        end: SessionEnd,
        effects: &mut impl Effects,
    ) {
        let session = &mut self.sessions[index as usize];
        let until_ns = now_ns.saturating_add(self.config.quarantine_ns);
        session.state = SessionState::Quarantine { until_ns, holder_lives: true };
        self.stats.delivered_bytes += core::mem::take(&mut session.delivered_bytes);
        let app = session.app;
        self.apps[app as usize].session = NONE;
        self.open_sessions -= 1;
        self.drop_app(app);
        self.unlink_all(index);
        for message in self.messages.indices() {
            let record = &self.messages[message];
            if record.state == State::Free || record.session != index {
                continue;
            }
            self.end_arrival(message);
            let record = &mut self.messages[message];
            record.session = NONE;
            record.app_open = false;
            record.held = 0;
            // What it finished is finished; for the rest it is gone.
            if !record.finished {
                self.fail(message, AckStatus::AppGone);
            } else {
                self.settle(message);
            }
        }
        let session = &mut self.sessions[index as usize];
        for slot in session.slots.iter_mut().filter(|slot| slot.message != NONE) {
            if slot.copying {
                // What was released of it is still where it was.
                slot.held = slot.all();
            }
            for_each_stretch(slot.held, slot.run.first, |run| self.pool.quarantine(run, slot.share));
        }
        self.escape.close(index);
        effects.close_session(SessionId(index), end);
    }

    pub(super) fn end_quarantine(&mut self, index: u32) {
        let session = &mut self.sessions[index as usize];
        for slot in session.slots.iter().filter(|slot| slot.message != NONE) {
            for_each_stretch(slot.held, slot.run.first, |run| self.pool.release_quarantined(run, slot.share));
        }
        session.reset();
    }
}
