//! Opening and closing of sessions.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, SessionEnd, SessionId};
use crate::index::NONE;
use crate::messages::MessageState;
use crate::registry::{OpenRefused, Registration};
use jet_wire::message::AckStatus;
use jet_wire::planted;

/// The reason why an application was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Another application has that name, and one of the two does not share it.
    NameTaken,
    /// Applications of another user share that name.
    NameOfOtherUser,
    /// An application of another user had that name a short time ago, and may come back.
    NameKept {
        /// Configured time for which a name stays its user's, in nanoseconds.
        for_ns: u64,
    },
    /// The configured number of applications is reached, counting those in quarantine.
    TooMany {
        /// Configured limit.
        max: u32,
    },
    /// The process has its share of the sessions, counting those in quarantine.
    ProcessShare {
        /// Sessions that the process has.
        has: u32,
        /// Configured limit of all processes' sessions.
        max: u32,
    },
    /// The class does not exist.
    Class {
        /// Class that the application asked for.
        found: u8,
        /// Number of classes.
        classes: u8,
    },
    /// A session of the same process was ended for a fault, and what it held is in quarantine.
    Quarantined {
        /// Slabs in quarantine that the process may still read.
        slabs: u32,
    },
    /// The daemon is draining.
    Draining,
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NameTaken => f.write_str(
                "another application is registered under that name; choose another, stop it, or let all \
                     that have the name share it",
            ),
            Self::NameOfOtherUser => f.write_str(
                "applications of another user share that name; choose another, or run as that user",
            ),
            Self::NameKept { for_ns } => {
                write!(
                    f,
                    "an application of another user had that name, and it stays that user's for {} ms \
                     (session.name_kept_ms); choose another, run as that user, or try again later",
                    for_ns / 1_000_000
                )
            }
            Self::TooMany { max } => {
                write!(f, "all {max} sessions are in use or in quarantine; raise limits.sessions")
            }
            Self::ProcessShare { has, max } => {
                write!(
                    f,
                    "this process has {has} of the {max} sessions, counting those in quarantine, and the \
                     rest is for other processes; close some of its sessions, or raise limits.sessions"
                )
            }
            Self::Class { found, classes } => {
                write!(f, "class {found} does not exist; choose 0 to {}", classes - 1)
            }
            Self::Quarantined { slabs } => {
                let bytes = u64::from(*slabs) * jet_wire::SLAB_BYTES as u64;
                write!(
                    f,
                    "a session of this process was ended for a fault, and the process may still read the \
                     {bytes} bytes that it held; end the process, or close that session and register again \
                     after session.quarantine_ms"
                )
            }
            Self::Draining => f.write_str("the daemon is draining; register with the next one"),
        }
    }
}

impl core::error::Error for OpenError {}

impl<P: GrantPolicy> Receiver<P> {
    /// Handles an application that registers (Jet §3.2 step 1).
    ///
    /// # Errors
    /// [`OpenError`] says what to change.
    pub fn handle_session_opened(
        &mut self,
        now_ns: u64,
        registration: Registration,
    ) -> Result<SessionId, OpenError> {
        if self.draining {
            return Err(OpenError::Draining);
        }
        let Registration { name, class, process, .. } = registration;
        if class >= self.config.classes {
            return Err(OpenError::Class { found: class, classes: self.config.classes });
        }
        let slabs = self.quarantine.slabs_for_faults_of(process, name);
        if slabs > 0 {
            return Err(OpenError::Quarantined { slabs });
        }
        let opened = self.registry.open(now_ns, registration);
        opened.map(SessionId).map_err(|refused| match refused {
            OpenRefused::NumbersTaken => OpenError::TooMany { max: self.config.sessions_max },
            OpenRefused::ProcessShare { has } => {
                OpenError::ProcessShare { has, max: self.config.sessions_max }
            }
            OpenRefused::NameTaken => OpenError::NameTaken,
            OpenRefused::NameOfOtherUser => OpenError::NameOfOtherUser,
            OpenRefused::NameKept => OpenError::NameKept { for_ns: self.config.name_kept_ns },
        })
    }

    /// Handles an application that closed its session or died. Its messages end, and what it held comes back
    /// after the quarantine. The driver also calls this when the application of an already ended session is
    /// gone (see [`Self::handle_session_fault`] and [`Self::handle_session_ended`]). Until then that
    /// application may be reading what it held.
    pub fn handle_session_gone(&mut self, now_ns: u64, session: SessionId, effects: &mut impl Effects) {
        self.close_session(now_ns, session.0, |_| SessionEnd::Gone, effects);
        self.quarantine.let_go(session.0);
    }

    /// Ends a session for what its application did, or because its right is gone. The application may live
    /// on. Its messages end; what it held comes back after the quarantine, but not before
    /// [`Self::handle_session_gone`]. Its name is free at once.
    pub fn handle_session_ended(&mut self, now_ns: u64, session: SessionId, effects: &mut impl Effects) {
        self.close_session(now_ns, session.0, |held_slabs| SessionEnd::Ended { held_slabs }, effects);
    }

    /// Closes a session; does nothing if it is not open.
    pub(super) fn close_session(
        &mut self,
        now_ns: u64,
        index: u32,
        end: impl FnOnce(u32) -> SessionEnd,
        effects: &mut impl Effects,
    ) {
        let held_slabs = self.slots.occupied_slabs(index);
        let end = end(held_slabs);
        // Who is sent away is not waited for: its name may be another's now.
        let keeps_name = !matches!(end, SessionEnd::Ended { .. });
        let Some(registration) = self.registry.close(now_ns, index, keeps_name) else { return };
        self.ask_those_that_stay();
        let holder = (registration.name, registration.process);
        self.quarantine.begin(now_ns, index, holder, end.is_fault(), held_slabs);
        self.stats.delivered_bytes += self.delivery.take_delivered_bytes(index);
        self.admission.unlink_deferred(index, &mut self.messages);
        while let Some(message) = self.delivery.pop_backlog(index, &mut self.messages) {
            self.drop_backlogged(message);
        }
        // One pass takes about 1 ns for each record that was ever used. A list of each session's records
        // would be shorter to walk, but every small message would have to enter and leave it.
        for message in self.messages.indices() {
            let record = &self.messages[message];
            if record.state == MessageState::Free || record.session != index {
                continue;
            }
            self.delivery.end_arrival(message, &mut self.messages);
            self.admission.unlink(message, &mut self.messages);
            self.admission.leave_session(message, &mut self.messages);
            let record = &mut self.messages[message];
            record.session = NONE;
            record.app_state.forget();
            record.held = 0;
            // Messages that the application finished stay finished; the others end because the application is
            // gone.
            if planted!(RequestLost) && record.held == 0 && record.arrived == 0 {
                continue;
            }
            if !record.app_state.is_finished() {
                self.fail(message, AckStatus::AppGone);
            } else {
                self.settle(message);
            }
        }
        self.slots.detain(index, |run, share| self.pool.quarantine(run, share));
        self.escape.close(index);
        effects.close_session(SessionId(index), end);
    }

    /// Ends a session's quarantine if it is time.
    pub(super) fn check_quarantine(&mut self, now_ns: u64, index: u32) {
        // A copy may still be reading what the session held.
        if !self.quarantine.is_over(now_ns, index) || self.escape.is_copying(index) {
            return;
        }
        self.slots.reset(index, |run, share| self.pool.release_quarantined(run, share));
        self.delivery.reset(index);
        self.escape.reset(index);
        self.releases.reset(index);
        self.admission.reset(index);
        self.standstills.reset(index);
        self.quarantine.end(index);
        self.registry.free(index);
    }
}
