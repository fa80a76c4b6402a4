//! Places of control connections: who may stay, and who goes when another needs a place.
//!
//! The connection of a registered application needs no place here; `limits.sessions` bounds those. For all
//! others the rules are:
//! * There are [`PLACES`] places. One source, which is a process, has at most half of them.
//! * Before anybody goes for a newcomer, or a newcomer is refused, the places of clients that have hung up
//!   are freed. Nobody is told.
//! * A newcomer whose source has its share takes the place of the connection of its own source that has been
//!   idle longest. A newcomer that finds all places taken takes that of the connection that has been idle
//!   longest of all.
//! * A connection is idle from its beginning, and from each answer on. While this process works for it, it is
//!   not: its question is looked into, or its application is being registered. While its answer or its
//!   refusal is written, it is not either, but after [`ANSWER_TAKEN_WITHIN`] it is. One whose question waits
//!   unread in its socket counts as being answered.
//! * Where nobody is idle, whoever has most gives: the source with most places loses one, if it has at least
//!   two more than the newcomer's source. Of its connections, the one that has been here longest gets its
//!   answer, is told why, and is closed. The newcomer does not wait for that. At most [`LEAVING`] connections
//!   are on their way out at once, and one of these that does not take its answer within
//!   [`ANSWER_TAKEN_WITHIN`] is closed for the next newcomer. So who asks without a pause keeps its share
//!   only, and no source takes places from another that has as many or fewer.
//! * A newcomer for whom nobody goes gets one of [`RESERVED`] further places, by the same rules. There
//!   nobody registers, and who neither asks nor takes its answer within [`ANSWER_TAKEN_WITHIN`] is closed.
//!   So the status and a drain can be asked for, whatever others do with their places.
//! * Where there is none of these either, the newcomer is refused in words.
//! * An application that is being registered keeps its place, even where it has hung up: its registration is
//!   work under way, and the places bound that.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::HashMap;
use std::future::Future;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

#[cfg(test)]
mod tests;

/// Places of connections without a registered application.
pub const PLACES: usize = 256;
/// Further places, for questions alone.
pub const RESERVED: usize = 16;
/// Most connections that are to leave after their answers, and whose places are others' already.
pub const LEAVING: usize = 16;
/// Time after which an answer that its client does not take no longer keeps a place.
pub const ANSWER_TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// Origin of a connection: the process that connected. Processes of one user in another pid namespace have no
/// number here, and are one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Number of the process, if it is known.
    pub process: Option<i32>,
    /// Number of its user.
    pub user: u32,
}

impl Source {
    /// Returns the source of a connection.
    pub fn of(stream: &UnixStream) -> Self {
        // A connected Unix socket has these. Without them, all such connections are one source.
        let peer = stream.peer_cred().ok();
        let process = peer.and_then(|peer| peer.pid()).filter(|process| *process > 0);
        Self { process, user: peer.map_or(u32::MAX, |peer| peer.uid()) }
    }
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It has not asked, or was answered.
    Idle,
    /// Its question lies unread in its socket. Its task reads it next.
    Asks,
    /// It was heard, and what it wants is not known yet, or its application is being registered.
    Heard,
    /// Its question is looked into.
    LookedInto,
    /// Its answer is being written.
    Answered,
}

/// A connection's socket, which its task and the places share.
pub type Stream = Arc<dyn AsFd + Send + Sync>;

/// What a socket has for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    Nothing,
    Something,
    /// Nothing, and nothing comes any more.
    End,
}

struct Entry {
    number: u64,
    source: Source,
    is_reserved: bool,
    stream: Stream,
    doing: Doing,
    /// Time since which it does that.
    since: Instant,
    /// Whether its place is another's already, and it is to leave when it was answered.
    is_leaving: bool,
    /// Tells the connection's task that it is to end.
    leave: oneshot::Sender<()>,
}

impl Entry {
    fn unread(&self) -> Unread {
        let (mut byte, flags) = ([0], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        match recv(&self.stream, &mut byte[..], flags) {
            Ok((1.., _)) => Unread::Something,
            Err(Errno::AGAIN | Errno::INTR) => Unread::Nothing,
            Ok((0, _)) | Err(_) => Unread::End,
        }
    }

    /// Whether nobody waits for what this connection's task does. `is_closed`: the client has closed its
    /// socket, though what it wrote before may lie unread.
    fn is_abandoned(&self, is_closed: bool) -> bool {
        match self.doing {
            // Also one that only ceased to write: who has nothing more to ask is done.
            Doing::Idle | Doing::Asks => self.unread() == Unread::End,
            Doing::LookedInto | Doing::Answered => is_closed,
            Doing::Heard => false,
        }
    }

    /// Whether a newcomer may take this connection's place at once.
    fn may_go(&self, now: Instant) -> bool {
        match self.doing {
            Doing::Idle => true,
            Doing::Asks | Doing::Answered => now.saturating_duration_since(self.since) >= ANSWER_TAKEN_WITHIN,
            Doing::Heard | Doing::LookedInto => false,
        }
    }

    /// Whether this connection has one of the places, or of the reserved ones.
    fn has_place(&self, reserved: bool) -> bool {
        self.is_reserved == reserved && !self.is_leaving
    }
}

struct Table {
    entries: Vec<Entry>,
    next_number: u64,
}

/// What a newcomer finds in one of the two kinds of places.
enum Found {
    /// A free place.
    Room,
    /// The connection at this index makes room at once.
    MadeBy(usize),
    /// The connection at this index makes room, and leaves when it was answered.
    AfterItsAnswer(usize),
    /// None of these.
    Nothing,
}

impl Table {
    fn has_its_share(&self, source: Source, reserved: bool) -> bool {
        let its = |entry: &&Entry| entry.has_place(reserved) && entry.source == source;
        self.entries.iter().filter(its).count() >= places(reserved) / 2
    }

    fn has_room(&self, source: Source, reserved: bool) -> bool {
        let taken = self.entries.iter().filter(|entry| entry.has_place(reserved)).count();
        taken < places(reserved) && !self.has_its_share(source, reserved)
    }

    /// Finds a place for a newcomer.
    fn find(&mut self, source: Source, reserved: bool, now: Instant) -> Found {
        if self.has_room(source, reserved) {
            return Found::Room;
        }
        self.free_abandoned(now);
        if self.has_room(source, reserved) {
            return Found::Room;
        }
        let has_its_share = self.has_its_share(source, reserved);
        let counts = |entry: &Entry| entry.has_place(reserved) && (!has_its_share || entry.source == source);
        if let Some(index) = self.idle_longest(counts, now) {
            return Found::MadeBy(index);
        }
        self.of_who_has_most(source, reserved).map_or(Found::Nothing, Found::AfterItsAnswer)
    }

    /// Frees the places of clients that have hung up, and closes connections that are on their way out and
    /// take no answer. Returns whether there were any.
    fn free_abandoned(&mut self, now: Instant) -> bool {
        // Nothing is asked for: that the other end is closed is always told.
        let mut looks: Vec<_> =
            self.entries.iter().map(|entry| PollFd::new(&entry.stream, PollFlags::empty())).collect();
        // Fails only for want of memory. Then nobody counts as closed.
        let _ = poll(&mut looks, Some(&Timespec::default()));
        let is_closed = |look: &PollFd<'_>| look.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let closed: Vec<_> = looks.iter().map(is_closed).collect();
        let before = self.entries.len();
        for index in (0..before).rev() {
            let entry = &self.entries[index];
            if entry.is_abandoned(closed[index]) || (entry.is_leaving && entry.may_go(now)) {
                // The task that does not listen any more is about to end.
                let _ = self.entries.swap_remove(index).leave.send(());
            }
        }
        self.entries.len() < before
    }

    /// Returns the connection, of those that count, that has been idle longest and may go.
    fn idle_longest(&mut self, counts: impl Fn(&Entry) -> bool, now: Instant) -> Option<usize> {
        loop {
            let (index, entry) = (self.entries.iter_mut().enumerate())
                .filter(|(_, entry)| counts(entry) && entry.may_go(now))
                .min_by_key(|(_, entry)| (entry.since, entry.number))?;
            if entry.doing != Doing::Idle || entry.unread() != Unread::Something {
                return Some(index);
            }
            (entry.doing, entry.since) = (Doing::Asks, now);
        }
    }

    /// Returns the connection that has been here longest, of the source with most places. That source must
    /// have at least two more than the newcomer's, so that places do not go to and fro between two.
    fn of_who_has_most(&self, source: Source, reserved: bool) -> Option<usize> {
        if self.entries.iter().filter(|entry| entry.is_leaving).count() >= LEAVING {
            return None;
        }
        let mut held = HashMap::new();
        for entry in self.entries.iter().filter(|entry| entry.has_place(reserved)) {
            *held.entry(entry.source).or_insert(0_usize) += 1;
        }
        let own = held.get(&source).copied().unwrap_or(0);
        (self.entries.iter().enumerate())
            .filter(|(_, entry)| entry.has_place(reserved) && entry.doing != Doing::Heard)
            .filter(|(_, entry)| held[&entry.source] >= own + 2)
            .max_by_key(|(_, entry)| (held[&entry.source], std::cmp::Reverse(entry.number)))
            .map(|(index, _)| index)
    }

    fn send_away(&mut self, index: usize, now: Instant) -> Gone {
        let entry = self.entries.swap_remove(index);
        // The task that does not listen any more is about to end.
        let _ = entry.leave.send(());
        Gone { source: entry.source, why: Why::Idle(now.saturating_duration_since(entry.since)) }
    }
}

fn places(reserved: bool) -> usize {
    if reserved { RESERVED } else { PLACES }
}

/// The places of all control connections.
#[derive(Clone)]
pub struct Places(Arc<Mutex<Table>>);

/// A connection that makes room for another.
#[derive(Clone, Copy, Debug)]
pub struct Gone {
    /// Its source.
    pub source: Source,
    /// Why it is the one.
    pub why: Why,
}

/// Why a connection makes room for another.
#[derive(Clone, Copy, Debug)]
pub enum Why {
    /// It was idle longest: for this time.
    Idle(Duration),
    /// Nobody was idle, and its source has most places. It leaves when it was answered.
    HasMost,
}

/// How room was made for something that all connections share.
#[derive(Clone, Copy, Debug)]
pub enum Room {
    /// Clients had hung up, and their tasks end.
    HungUp,
    /// A connection was sent away.
    MadeBy(Gone),
}

/// Place of a connection. Dropping it gives the place back.
pub struct Place {
    places: Places,
    number: u64,
    is_reserved: bool,
    asked_to_leave: oneshot::Receiver<()>,
}

impl Places {
    /// Makes the places, all free.
    pub fn new() -> Self {
        let entries = Vec::with_capacity(PLACES + RESERVED + LEAVING);
        Self(Arc::new(Mutex::new(Table { entries, next_number: 0 })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a newcomer a place, and says who makes room for it. `None` where there is no place.
    pub fn enter(&self, stream: Stream, source: Source, now: Instant) -> Option<(Place, Option<Gone>)> {
        let mut table = self.table();
        let (is_reserved, found) = match table.find(source, false, now) {
            Found::Nothing => (true, table.find(source, true, now)),
            found => (false, found),
        };
        let gone = match found {
            Found::Room => None,
            Found::MadeBy(index) => Some(table.send_away(index, now)),
            Found::AfterItsAnswer(index) => {
                let entry = &mut table.entries[index];
                entry.is_leaving = true;
                Some(Gone { source: entry.source, why: Why::HasMost })
            }
            Found::Nothing => return None,
        };
        let (leave, asked_to_leave) = oneshot::channel();
        let number = table.next_number;
        table.next_number += 1;
        table.entries.push(Entry {
            number,
            source,
            is_reserved,
            stream,
            doing: Doing::Idle,
            since: now,
            is_leaving: false,
            leave,
        });
        drop(table);
        Some((Place { places: self.clone(), number, is_reserved, asked_to_leave }, gone))
    }

    /// Makes connections go for want of something that all connections share: those of clients that have hung
    /// up, or else the one that has been idle longest. `None` where no connection may go.
    pub fn make_room(&self, now: Instant) -> Option<Room> {
        let mut table = self.table();
        if table.free_abandoned(now) {
            return Some(Room::HungUp);
        }
        let index = table.idle_longest(|_| true, now)?;
        Some(Room::MadeBy(table.send_away(index, now)))
    }
}

impl Place {
    /// Whether this is a place for questions alone.
    pub fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    /// Notes what the connection does from now on. Returns `false` if its place is another's.
    fn now_does(&self, doing: Doing) -> bool {
        let mut table = self.places.table();
        let entry = table.entries.iter_mut().find(|entry| entry.number == self.number);
        entry.map(|entry| (entry.doing, entry.since) = (doing, Instant::now())).is_some()
    }

    /// Waits for a question, but not longer than the connection may keep its place: `None` once it may not.
    /// From the question on, the place cannot be taken away before [`Self::answer_begins`] or
    /// [`Self::look_into`]. A question that was read when the place was already another's counts as not
    /// heard.
    pub async fn hear<Q, E>(&mut self, question: impl Future<Output = Result<Q, E>>) -> Option<Result<Q, E>> {
        let heard = self.while_kept(question).await?;
        (heard.is_err() || self.now_does(Doing::Heard)).then_some(heard)
    }

    /// Looks into the question of the connection. The place cannot be taken away meanwhile, but if the client
    /// has hung up: then `None`.
    pub async fn look_into<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        self.now_does(Doing::LookedInto);
        tokio::select! {
            biased;
            // First: a request is carried out, whether its client waits for the answer or not.
            outcome = work => Some(outcome),
            _ = &mut self.asked_to_leave => None,
        }
    }

    /// Notes that the connection's answer is known and is written from now on.
    pub fn answer_begins(&self) {
        self.now_does(Doing::Answered);
    }

    /// Notes that the connection was answered. Returns `false` if its place is another's since, so that it is
    /// to be told so and closed.
    pub fn answered(&self) -> bool {
        let mut table = self.places.table();
        let Some(entry) = table.entries.iter_mut().find(|entry| entry.number == self.number) else {
            return false;
        };
        entry.since = Instant::now();
        if entry.is_leaving {
            // Its last words are part of its answer.
            return false;
        }
        entry.doing = Doing::Idle;
        true
    }

    /// Waits for `what`, but not longer than the connection may keep its place: `None` once it may not.
    pub async fn while_kept<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            _ = &mut self.asked_to_leave => None,
            outcome = what => Some(outcome),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().entries.retain(|entry| entry.number != self.number);
    }
}
