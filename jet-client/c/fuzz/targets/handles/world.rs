//! The model: which handles live, what was sent, and what became of it.

use crate::call::{Calls, Pointer};
use crate::daemon::{Daemon, text};
use crate::input::Input;
use crate::senders::SenderEnd;
use crate::sessions::SessionEnd;
use jet_client_c::Code;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::CString;
use std::sync::LazyLock;

/// Names of applications in a run.
pub const APPS: usize = 4;
/// Most handles of a kind that live at once.
pub const HANDLES_MAX: usize = 4;
/// Handles of earlier runs that are used again, although they were freed.
const OLD_HANDLES: usize = 64;
const PATTERN_BYTES: usize = 1 << 20;
/// Longest piece of the pattern.
pub const PIECE_BYTES_MAX: usize = 256 << 10;

/// Bytes that are sent: pieces of it.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 32) as u8
    };
    (0..PATTERN_BYTES).map(|_| next()).collect()
});

/// What outlives a run.
pub struct Past {
    pub daemon: Daemon,
    pub calls: Calls,
    pub runs: u64,
    /// All handles that ever were.
    pub ever: HashSet<usize>,
    /// Some that were freed in earlier runs.
    pub old: VecDeque<usize>,
    pieces: usize,
}

impl Past {
    pub fn new() -> Self {
        Self {
            daemon: Daemon::start(),
            calls: Calls::default(),
            runs: 0,
            ever: HashSet::new(),
            old: VecDeque::new(),
            pieces: 0,
        }
    }
}

/// A name that applications register under.
#[derive(Clone, Copy, Default)]
pub struct App {
    /// The session that is registered.
    pub session: Option<usize>,
    /// A session was freed. The daemon may not know it yet.
    pub was_freed: bool,
}

/// A message that was accepted.
pub struct Sent {
    pub app: usize,
    pub tag: u64,
    pub header: &'static [u8],
    pub payload: &'static [u8],
    pub large: bool,
    /// The class does not exist at the receiver.
    pub denied: bool,
    /// Nobody was registered when it was sent, or a session was freed since.
    pub app_is_gone: bool,
    pub sender_is_gone: bool,
    /// The session that received it.
    pub receiver: Option<usize>,
    /// It was received by a session that was freed since.
    pub was_received: bool,
    pub finished: Option<u32>,
    pub wants_reply: bool,
    /// What its application replied.
    pub reply: Option<&'static [u8]>,
    /// Slices that were not given back.
    pub slices: usize,
    pub ended: bool,
    /// Its sender took it back while it had no end.
    pub taken_back: bool,
}

/// A message's sender and its number there.
pub type MessageId = (u64, u64);

pub struct World<'a> {
    pub past: &'a mut Past,
    pub input: Input<'a>,
    pub apps: [App; APPS],
    pub senders: BTreeMap<usize, SenderEnd>,
    pub sessions: BTreeMap<usize, SessionEnd>,
    pub sent: BTreeMap<MessageId, Sent>,
    /// Handles that were freed in this run.
    freed: Vec<usize>,
}

impl<'a> World<'a> {
    pub fn new(past: &'a mut Past, bytes: &'a [u8]) -> Self {
        past.runs += 1;
        Self {
            past,
            input: Input::new(bytes),
            apps: [App::default(); APPS],
            senders: BTreeMap::new(),
            sessions: BTreeMap::new(),
            sent: BTreeMap::new(),
            freed: Vec::new(),
        }
    }

    /// Returns an application's name, which no other run has: the daemon may still know those of the run
    /// before.
    pub fn name(&self, app: usize) -> CString {
        text(&format!("run-{}/{app}", self.past.runs))
    }

    /// Returns bytes that differ from those of other calls.
    pub fn piece(&mut self, bytes: usize) -> &'static [u8] {
        assert!(bytes <= PIECE_BYTES_MAX);
        self.past.pieces += 1;
        let at = self.past.pieces.wrapping_mul(7919) % (PATTERN_BYTES - PIECE_BYTES_MAX);
        &PATTERN[at..at + bytes]
    }

    pub fn pointer(&mut self) -> Pointer {
        match self.input.digit(16) {
            14 => Pointer::Null,
            15 => Pointer::Crooked,
            _ => Pointer::Good,
        }
    }

    /// Notes a new handle.
    pub fn handle_made(&mut self, handle: usize) {
        assert_ne!(handle, 0, "the handle that is none");
        assert!(self.past.ever.insert(handle), "handle {handle:#x} was freed before, and lives again");
    }

    pub fn handle_freed(&mut self, handle: usize) {
        self.freed.push(handle);
        if self.past.old.len() == OLD_HANDLES {
            self.past.old.pop_front();
        }
        self.past.old.push_back(handle);
    }

    fn handle(&mut self, of_kind: &[usize], of_another: &[usize]) -> usize {
        let digit = self.input.digit(16);
        let of = |list: &[usize], at: usize| list.get(at % list.len().max(1)).copied();
        let found = match digit {
            0..=7 => of(of_kind, digit).or_else(|| of(&self.freed, digit)),
            8 => None,
            9 => Some(usize::MAX),
            10 => of(of_another, self.input.digit(4)),
            11 => of(&self.freed, self.input.digit(16)),
            12 => self.past.old.get(self.input.digit(16)).copied(),
            // A later handle of the same place, and the place beside.
            13 => of(of_kind, 0).map(|handle| handle.wrapping_add(4096)),
            14 => of(of_kind, 0).map(|handle| handle.wrapping_add(1)),
            _ => Some(self.input.number() as usize),
        };
        found.unwrap_or(0)
    }

    /// Chooses a sender's handle: one that lives, or not. Returns the handle with what is wrong with it.
    pub fn sender(&mut self) -> (usize, Vec<Code>) {
        let (senders, sessions) = self.handles();
        let handle = self.handle(&senders, &sessions);
        (handle, if self.senders.contains_key(&handle) { vec![] } else { vec![Code::Handle] })
    }

    /// Chooses a session's handle, like [`Self::sender`].
    pub fn session(&mut self) -> (usize, Vec<Code>) {
        let (senders, sessions) = self.handles();
        let handle = self.handle(&sessions, &senders);
        (handle, if self.sessions.contains_key(&handle) { vec![] } else { vec![Code::Handle] })
    }

    pub fn handles(&self) -> (Vec<usize>, Vec<usize>) {
        (self.senders.keys().copied().collect(), self.sessions.keys().copied().collect())
    }

    pub fn freed(&self) -> &[usize] {
        &self.freed
    }

    /// Notes that a session was freed.
    pub fn app_gone(&mut self, app: usize, session: usize) {
        self.apps[app] = App { session: None, was_freed: true };
        for sent in self.sent.values_mut().filter(|sent| sent.app == app && !sent.ended) {
            sent.app_is_gone = true;
            if sent.receiver == Some(session) {
                (sent.receiver, sent.was_received, sent.slices) = (None, true, 0);
            }
        }
    }
}
