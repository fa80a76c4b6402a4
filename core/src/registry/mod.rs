//! The registry of applications by name: it connects senders with sessions.
//!
//! A name has one session, or several that share it: the consumers of the name. Each sender's messages go to
//! one of them ([`spread`](self) says which).

mod kept;
mod spread;
#[cfg(test)]
mod tests;

use crate::effects::{ProcessId, UserId};
use crate::index::NONE;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::message::hello::AppName;
use kept::KeptNames;
#[cfg(test)]
pub(crate) use spread::{MOVE_NS, STAYS_NS};

/// An application's name, and the number of its users.
#[derive(Clone, Copy, Debug)]
struct App {
    name: Option<AppName>,
    /// Number of open sessions with that name.
    sessions: u32,
    /// Number of senders and sessions with that name.
    users: u32,
}

const NOBODY: App = App { name: None, sessions: 0, users: 0 };

/// A connected sender.
#[derive(Clone, Copy, Debug)]
struct Sender {
    identity: u64,
    /// Index of the application that the sender's messages are for. [`NONE`]: the sender is gone.
    app: u32,
    /// Session that the sender's messages go to. [`NONE`]: the name has no session. It stays when the sender
    /// leaves, for the case that it comes back.
    session: u32,
    /// Session that the sender's messages are to go to as soon as all earlier ones have their ends. [`NONE`]:
    /// the sender stays where it is.
    next: u32,
    /// Time when it was last chosen to move; 0: never.
    chosen_ns: u64,
}

const NO_SENDER: Sender = Sender { identity: 0, app: NONE, session: NONE, next: NONE, chosen_ns: 0 };

/// The values with which an application registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Name that senders address.
    pub name: AppName,
    /// Admission class of the application's messages; 0 is the most urgent.
    pub class: u8,
    /// Whether the application's messages may take escape memory instead of waiting for room in the pool
    /// (Jet §5).
    pub takes_memory: bool,
    /// Process of the application, where that can be told.
    pub process: Option<ProcessId>,
    /// User of the application, where that can be told from others. The name stays this user's for a while
    /// after the session.
    pub user: Option<UserId>,
    /// Whether the session shares its name with others of its user that do so, too. Only where the user is
    /// known.
    pub shares_name: bool,
}

impl Registration {
    /// Returns the values of an application of class 0 that has its name for itself, waits for room in the
    /// pool, and whose process and user are not known.
    pub fn new(name: AppName) -> Self {
        Self { name, class: 0, takes_memory: false, process: None, user: None, shares_name: false }
    }
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
    /// An open session has the name, and it or this one does not share it.
    NameTaken,
    /// Sessions of another user share the name.
    NameOfOtherUser,
    /// The name was left a short time ago, and is kept for the user that had it.
    NameKept,
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
    /// Senders of each session: those whose messages go to it, or are to go to it next.
    assigned: Box<[u32]>,
    open: u32,
    spreading: spread::Spreading,
    kept: KeptNames,
}

impl Registry {
    /// Creates a registry with room for so many senders and sessions. A name stays its user's for
    /// `name_kept_ns` after the last session that had it.
    pub fn new(senders: u32, sessions: u32, name_kept_ns: u64) -> Self {
        Self {
            apps: vec![NOBODY; (senders + sessions) as usize].into_boxed_slice(),
            by_name: BTreeMap::new(),
            free_apps: (0..senders + sessions).rev().collect(),
            senders: vec![NO_SENDER; senders as usize].into_boxed_slice(),
            free_senders: (0..senders).rev().collect(),
            sessions: vec![Session::Free; sessions as usize].into_boxed_slice(),
            assigned: vec![0; sessions as usize].into_boxed_slice(),
            open: 0,
            spreading: spread::Spreading::new(senders, sessions),
            kept: KeptNames::new(sessions, name_kept_ns),
        }
    }

    /// Adds a sender that connects; returns its number. `None`: there is no room for it.
    pub fn join(&mut self, name: AppName, identity: u64) -> Option<u32> {
        let app = self.use_app(name)?;
        let (Some(at), session) = self.place_for(app, identity) else {
            self.drop_app(app);
            return None;
        };
        // Usually the last one.
        let peer = self.free_senders.remove(at);
        self.senders[peer as usize] = Sender { identity, app, session, ..NO_SENDER };
        self.count_in(session);
        Some(peer)
    }

    /// Removes a sender that is gone.
    pub fn leave(&mut self, peer: u32) {
        let app = core::mem::replace(&mut self.senders[peer as usize].app, NONE);
        self.left(app, peer);
        self.drop_app(app);
        self.free_senders.push(peer);
    }

    /// Returns the identity that a sender gave, and the session that its messages are for.
    #[inline]
    pub fn sender(&self, peer: u32) -> (u64, Option<u32>) {
        let sender = &self.senders[peer as usize];
        (sender.identity, Some(sender.session).filter(|&session| session != NONE))
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
    pub fn open(&mut self, now_ns: u64, registration: Registration) -> Result<u32, OpenRefused> {
        let is_free = |session: &Session| matches!(session, Session::Free);
        let free = self.sessions.iter().position(is_free).ok_or(OpenRefused::NumbersTaken)?;
        let (free_numbers, has) = self.numbers_of(registration.process);
        if has > 0 && has >= free_numbers.saturating_mul(NUMBERS_PER_FREE) {
            return Err(OpenRefused::ProcessShare { has });
        }
        self.may_have_name(now_ns, &registration)?;
        let app = self.use_app(registration.name).ok_or(OpenRefused::NumbersTaken)?;
        let session = u32::try_from(free).unwrap_or(NONE);
        self.apps[app as usize].sessions += 1;
        self.sessions[free] = Session::Open { app, registration };
        self.open += 1;
        self.kept.forget(registration.name);
        self.opened(app, session);
        Ok(session)
    }

    /// Checks whether a session may have its name, beside those that have it or had it last.
    fn may_have_name(&self, now_ns: u64, registration: &Registration) -> Result<(), OpenRefused> {
        let Registration { name, user, shares_name, .. } = *registration;
        // All who share a name share it with the same user.
        let app = self.by_name.get(&name);
        let other = app.and_then(|&app| self.sessions_of(app).find_map(|session| self.registration(session)));
        match other {
            None if self.kept.leaves(now_ns, name, user) => Ok(()),
            None => Err(OpenRefused::NameKept),
            Some(other) if !(shares_name && other.shares_name) => Err(OpenRefused::NameTaken),
            Some(other) if user.is_some() && user == other.user => Ok(()),
            Some(_) => Err(OpenRefused::NameOfOtherUser),
        }
    }

    /// Returns the open sessions with an application's name.
    fn sessions_of(&self, app: u32) -> impl Iterator<Item = u32> {
        let count = self.apps[app as usize].sessions as usize;
        self.numbers().filter(move |&session| self.app_of_session(session) == Some(app)).take(count)
    }

    /// Returns the application whose session is open; `None`: it is not.
    fn app_of_session(&self, session: u32) -> Option<u32> {
        match self.sessions.get(session as usize)? {
            Session::Open { app, .. } => Some(*app),
            Session::Free | Session::Over { .. } => None,
        }
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

    /// Closes a session: its senders go to others of its name, or to none. If no other session has the name
    /// and it `keeps_name`, the name is free for its user at once, and for others after a while. The number
    /// is free not before [`Self::free`]. Returns `None` if the session was not open.
    pub fn close(&mut self, now_ns: u64, session: u32, keeps_name: bool) -> Option<Registration> {
        let entry = &mut self.sessions[session as usize];
        let Session::Open { app, registration } = *entry else { return None };
        *entry = Session::Over { process: registration.process };
        self.apps[app as usize].sessions -= 1;
        self.open -= 1;
        if keeps_name
            && self.apps[app as usize].sessions == 0
            && let Some(user) = registration.user
        {
            self.kept.keep(now_ns, registration.name, user);
        }
        self.closed(app, session);
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
