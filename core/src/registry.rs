//! The registry of applications by name: it connects senders with sessions.

use crate::effects::ProcessId;
use crate::index::NONE;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::message::hello::AppName;

/// An application's name, with its session and the number of its users.
#[derive(Clone, Copy, Debug)]
struct App {
    name: Option<AppName>,
    session: u32,
    /// Number of senders and sessions with that name.
    users: u32,
}

const NOBODY: App = App { name: None, session: NONE, users: 0 };

/// A connected sender.
#[derive(Clone, Copy, Debug)]
struct Sender {
    identity: u64,
    /// Index of the application that the sender's messages are for.
    app: u32,
}

/// The values that an application registered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub name: AppName,
    pub class: u8,
    /// Whether the application's messages may take escape memory instead of waiting for room in the pool.
    pub takes_memory: bool,
    pub process: Option<ProcessId>,
}

/// The state of a session's number.
#[derive(Clone, Copy, Debug)]
enum Session {
    Free,
    Open {
        app: u32,
        registration: Registration,
    },
    /// The session is over, but its number cannot be used again yet.
    Over {
        process: Option<ProcessId>,
    },
}

/// The reason why a session was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenRefused {
    /// Every session number is in use.
    NumbersTaken,
    /// The process has its share of the numbers.
    ProcessShare {
        /// Numbers that the process has.
        has: u32,
    },
    /// Another open session has the name.
    NameTaken,
}

/// Free numbers, for each of which one process may have three: the first process gets three quarters of all,
/// and there is always a number left for the next one.
const NUMBERS_PER_FREE: u32 = 3;

/// All applications by name, connected senders, and sessions.
#[derive(Debug)]
pub(crate) struct Registry {
    apps: Box<[App]>,
    /// Index of each application that has users, by name.
    by_name: BTreeMap<AppName, u32>,
    free_apps: Vec<u32>,
    senders: Box<[Sender]>,
    free_senders: Vec<u32>,
    sessions: Box<[Session]>,
    open: u32,
}

impl Registry {
    /// Creates a registry with room for so many senders and sessions.
    pub fn new(senders: u32, sessions: u32) -> Self {
        Self {
            apps: vec![NOBODY; (senders + sessions) as usize].into_boxed_slice(),
            by_name: BTreeMap::new(),
            free_apps: (0..senders + sessions).rev().collect(),
            senders: vec![Sender { identity: 0, app: NONE }; senders as usize].into_boxed_slice(),
            free_senders: (0..senders).rev().collect(),
            sessions: vec![Session::Free; sessions as usize].into_boxed_slice(),
            open: 0,
        }
    }

    /// Adds a sender that connects; returns its number. `None`: there is no room for it.
    pub fn join(&mut self, app: AppName, identity: u64) -> Option<u32> {
        let peer = self.free_senders.pop()?;
        let Some(app) = self.use_app(app) else {
            self.free_senders.push(peer);
            return None;
        };
        self.senders[peer as usize] = Sender { identity, app };
        Some(peer)
    }

    /// Removes a sender that is gone.
    pub fn leave(&mut self, peer: u32) {
        let app = core::mem::replace(&mut self.senders[peer as usize].app, NONE);
        self.drop_app(app);
        self.free_senders.push(peer);
    }

    /// Returns the identity that a sender gave, and the session that its messages are for.
    #[inline]
    pub fn sender(&self, peer: u32) -> (u64, Option<u32>) {
        let sender = &self.senders[peer as usize];
        let session = self.apps.get(sender.app as usize).map(|app| app.session);
        (sender.identity, session.filter(|&session| session != NONE))
    }

    /// Returns the identity that a sender gave.
    pub fn identity(&self, peer: u32) -> u64 {
        self.senders[peer as usize].identity
    }

    /// Returns the session that a sender's messages are for.
    #[inline]
    pub fn session_of(&self, peer: u32) -> Option<u32> {
        self.sender(peer).1
    }

    /// Returns the name of the application that a sender's messages are for.
    pub fn app_of(&self, peer: u32) -> Option<AppName> {
        self.apps.get(self.senders[peer as usize].app as usize)?.name
    }

    /// Returns the number of connected senders.
    pub fn joined(&self) -> u32 {
        u32::try_from(self.senders.len() - self.free_senders.len()).unwrap_or(NONE)
    }

    /// Opens a session for an application that registers; returns its number.
    ///
    /// # Errors
    /// [`OpenRefused`] says what is in use already.
    pub fn open(&mut self, registration: Registration) -> Result<u32, OpenRefused> {
        let is_free = |session: &Session| matches!(session, Session::Free);
        let free = self.sessions.iter().position(is_free).ok_or(OpenRefused::NumbersTaken)?;
        let (free_numbers, has) = self.numbers_of(registration.process);
        if has > 0 && has >= free_numbers.saturating_mul(NUMBERS_PER_FREE) {
            return Err(OpenRefused::ProcessShare { has });
        }
        let app = self.use_app(registration.name).ok_or(OpenRefused::NumbersTaken)?;
        if self.apps[app as usize].session != NONE {
            self.drop_app(app);
            return Err(OpenRefused::NameTaken);
        }
        let session = u32::try_from(free).unwrap_or(NONE);
        self.apps[app as usize].session = session;
        self.sessions[free] = Session::Open { app, registration };
        self.open += 1;
        Ok(session)
    }

    /// Returns how many numbers are free, and how many a process has. One that cannot be told from others has
    /// none of its own.
    fn numbers_of(&self, process: Option<ProcessId>) -> (u32, u32) {
        let (mut free, mut has) = (0, 0);
        for session in &self.sessions {
            match session {
                Session::Free => free += 1,
                Session::Open { registration: Registration { process: of, .. }, .. }
                | Session::Over { process: of } => has += u32::from(of.is_some() && *of == process),
            }
        }
        (free, has)
    }

    /// Closes a session: its name is free at once, its number not before [`Self::free`]. Returns `None` if
    /// the session was not open.
    pub fn close(&mut self, session: u32) -> Option<Registration> {
        let entry = &mut self.sessions[session as usize];
        let Session::Open { app, registration } = *entry else { return None };
        *entry = Session::Over { process: registration.process };
        self.apps[app as usize].session = NONE;
        self.open -= 1;
        self.drop_app(app);
        Some(registration)
    }

    /// Makes a session's number free for another session.
    pub fn free(&mut self, session: u32) {
        self.sessions[session as usize] = Session::Free;
    }

    /// Returns the values that the application of an open session registered with.
    #[inline]
    pub fn registration(&self, session: u32) -> Option<&Registration> {
        match self.sessions.get(session as usize)? {
            Session::Open { registration, .. } => Some(registration),
            Session::Free | Session::Over { .. } => None,
        }
    }

    /// Returns whether a session is open.
    #[inline]
    pub fn is_open(&self, session: u32) -> bool {
        self.registration(session).is_some()
    }

    /// Returns whether an open session's messages may take escape memory instead of waiting for room in the
    /// pool.
    pub fn takes_memory(&self, session: u32) -> bool {
        self.registration(session).is_some_and(|registration| registration.takes_memory)
    }

    /// Returns the number of open sessions.
    #[inline]
    pub fn open_count(&self) -> u32 {
        self.open
    }

    /// Returns the numbers of all sessions, open or not.
    pub fn numbers(&self) -> core::ops::Range<u32> {
        0..u32::try_from(self.sessions.len()).unwrap_or(NONE)
    }

    /// Finds an application by name, or adds it, and counts one more user of the name. `None`: there is no
    /// room for it.
    fn use_app(&mut self, name: AppName) -> Option<u32> {
        let index = match self.by_name.get(&name) {
            Some(&known) => known,
            None => {
                let free = self.free_apps.pop()?;
                self.by_name.insert(name, free);
                self.apps[free as usize] = App { name: Some(name), ..NOBODY };
                free
            }
        };
        self.apps[index as usize].users += 1;
        Some(index)
    }

    fn drop_app(&mut self, index: u32) {
        let app = &mut self.apps[index as usize];
        app.users -= 1;
        if app.users == 0
            && let Some(name) = app.name.take()
        {
            self.by_name.remove(&name);
            self.free_apps.push(index);
        }
    }
}
