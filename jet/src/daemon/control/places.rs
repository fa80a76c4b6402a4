//! Places of control connections: who may stay, and who goes when another needs a place.
//!
//! The connection of a registered application needs no place here; `limits.sessions` bounds those. For all
//! others the rules are:
//! * There are [`PLACES`] places. One source, which is a process, has at most half of them.
//! * A newcomer whose source has its share takes the place of the connection of its own source that has been
//!   idle longest. A newcomer that finds all places taken takes that of the connection that has been idle
//!   longest of all.
//! * A connection is idle from its beginning, and from each answer on. While this process works for it, it is
//!   not: its question is looked into, or its application is being registered. While its answer or its
//!   refusal is written, it is not either, but after [`ANSWER_TAKEN_WITHIN`] it is. One whose question waits
//!   unread in its socket counts as being answered.
//! * A newcomer for whom nobody goes gets one of [`RESERVED`] further places, by the same rules. There
//!   nobody registers, and who neither asks nor takes its answer within [`ANSWER_TAKEN_WITHIN`] is closed.
//!   So the status and a drain can be asked for, whatever others do with their places.
//! * Where there is none of these either, the newcomer is refused in words.

use rustix::net::{RecvFlags, recv};
use std::future::Future;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

/// Places of connections without a registered application.
pub const PLACES: usize = 256;
/// Further places, for questions alone.
pub const RESERVED: usize = 16;
/// Time after which an answer that its client does not take no longer keeps a place.
pub const ANSWER_TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// Origin of a connection: the process that connected. Processes of one user in another pid namespace have no
/// number here, and are one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Number of the process, if it is known.
    pub process: Option<i32>,
    pub(super) user: u32,
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
    /// It has asked, and this process works for it.
    Asked,
    /// Its answer is being written, or it is about to ask.
    Answered,
}

/// A connection's socket, which its task and the places share.
pub type Stream = Arc<dyn AsFd + Send + Sync>;

struct Entry {
    number: u64,
    source: Source,
    is_reserved: bool,
    stream: Stream,
    doing: Doing,
    /// Time since which it does that.
    since: Instant,
    /// Tells the connection's task that its place is another's.
    leave: oneshot::Sender<()>,
}

impl Entry {
    /// Whether the connection has sent something that was not read yet.
    fn has_unread(&self) -> bool {
        let (mut byte, flags) = ([0], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(recv(&self.stream, &mut byte[..], flags), Ok((1.., _)))
    }

    /// Whether a newcomer may take this connection's place.
    fn may_go(&self, now: Instant) -> bool {
        match self.doing {
            Doing::Idle => true,
            Doing::Answered => now.saturating_duration_since(self.since) >= ANSWER_TAKEN_WITHIN,
            Doing::Asked => false,
        }
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
    /// The connection at this index makes room.
    MadeBy(usize),
    /// Neither.
    Nothing,
}

impl Table {
    /// Finds a place for a newcomer.
    fn find(&mut self, source: Source, reserved: bool, now: Instant) -> Found {
        let max = if reserved { RESERVED } else { PLACES };
        let these = || self.entries.iter().filter(|entry| entry.is_reserved == reserved);
        let is_at_its_share = these().filter(|entry| entry.source == source).count() >= max / 2;
        if !is_at_its_share && these().count() < max {
            return Found::Room;
        }
        let counts =
            |entry: &Entry| entry.is_reserved == reserved && (!is_at_its_share || entry.source == source);
        self.idle_longest(counts, now).map_or(Found::Nothing, Found::MadeBy)
    }

    /// Returns the connection, of those that count, that has been idle longest and may go.
    fn idle_longest(&mut self, counts: impl Fn(&Entry) -> bool, now: Instant) -> Option<usize> {
        loop {
            let (index, entry) = (self.entries.iter_mut().enumerate())
                .filter(|(_, entry)| counts(entry) && entry.may_go(now))
                .min_by_key(|(_, entry)| (entry.since, entry.number))?;
            if entry.doing == Doing::Answered || !entry.has_unread() {
                return Some(index);
            }
            // Its task reads the question next.
            (entry.doing, entry.since) = (Doing::Answered, now);
        }
    }

    fn send_away(&mut self, index: usize, now: Instant) -> Gone {
        let entry = self.entries.swap_remove(index);
        // The task that does not listen any more is about to end.
        let _ = entry.leave.send(());
        Gone { source: entry.source, idle: now.saturating_duration_since(entry.since) }
    }
}

/// The places of all control connections.
#[derive(Clone)]
pub struct Places(Arc<Mutex<Table>>);

/// A connection that made room for another.
#[derive(Clone, Copy, Debug)]
pub struct Gone {
    /// Its source.
    pub source: Source,
    /// Time for which it was idle.
    pub idle: Duration,
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
        let entries = Vec::with_capacity(PLACES + RESERVED);
        Self(Arc::new(Mutex::new(Table { entries, next_number: 0 })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a newcomer a place, and says who made room for it. `None` where there is no place.
    pub fn enter(&self, stream: Stream, source: Source, now: Instant) -> Option<(Place, Option<Gone>)> {
        let mut table = self.table();
        let (is_reserved, found) = match table.find(source, false, now) {
            Found::Nothing => (true, table.find(source, true, now)),
            found => (false, found),
        };
        let gone = match found {
            Found::Room => None,
            Found::MadeBy(index) => Some(table.send_away(index, now)),
            Found::Nothing => return None,
        };
        let (leave, asked_to_leave) = oneshot::channel();
        let number = table.next_number;
        table.next_number += 1;
        let doing = Doing::Idle;
        table.entries.push(Entry { number, source, is_reserved, stream, doing, since: now, leave });
        drop(table);
        Some((Place { places: self.clone(), number, is_reserved, asked_to_leave }, gone))
    }

    /// Makes the connection go that has been idle longest, for want of something that all connections share.
    /// `None` where no connection may go.
    pub fn make_room(&self, now: Instant) -> Option<Gone> {
        let mut table = self.table();
        let index = table.idle_longest(|_| true, now)?;
        Some(table.send_away(index, now))
    }
}

impl Place {
    /// Whether this is a place for questions alone.
    pub fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    fn now_does(&self, doing: Doing) {
        let mut table = self.places.table();
        if let Some(entry) = table.entries.iter_mut().find(|entry| entry.number == self.number) {
            (entry.doing, entry.since) = (doing, Instant::now());
        }
    }

    /// Notes that the connection has asked something. Its place cannot be taken away until it can be
    /// answered.
    pub fn asked(&self) {
        self.now_does(Doing::Asked);
    }

    /// Notes that the connection's answer is known and is written from now on.
    pub fn answer_begins(&self) {
        self.now_does(Doing::Answered);
    }

    /// Notes that the connection was answered.
    pub fn answered(&self) {
        self.now_does(Doing::Idle);
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// Time between two arrivals, so short that all have come by the time that a test goes on.
    const STEP: Duration = Duration::from_nanos(1);

    fn process(process: i32) -> Source {
        Source { process: Some(process), user: 0 }
    }

    /// Whether a connection was told that its place is another's.
    fn is_sent_away(place: &mut Place) -> bool {
        place.asked_to_leave.try_recv().is_ok()
    }

    /// A socket whose other end has sent nothing.
    fn silent() -> Stream {
        Arc::new(std::os::unix::net::UnixDatagram::unbound().expect("a socket"))
    }

    /// Fills all places with connections of many processes, and returns them with the next moment.
    fn full(places: &Places, begin: Instant) -> (Vec<Place>, Instant) {
        fill(places, begin, PLACES)
    }

    fn full_but_one(places: &Places, begin: Instant) -> (Vec<Place>, Instant) {
        fill(places, begin, PLACES - 1)
    }

    fn fill(places: &Places, begin: Instant, count: usize) -> (Vec<Place>, Instant) {
        let mut now = begin;
        let all = (1..=i32::try_from(count).unwrap())
            .map(|number| {
                now += STEP;
                let (place, gone) = places.enter(silent(), process(number), now).expect("a place");
                assert!(gone.is_none() && !place.is_reserved());
                place
            })
            .collect();
        (all, now + STEP)
    }

    #[test]
    fn who_has_been_idle_longest_makes_room_and_who_is_answered_or_worked_for_does_not() {
        let (places, begin) = (Places::new(), Instant::now());
        let (mut all, now) = full(&places, begin);
        all[0].asked();
        all[1].answer_begins();
        let (_new, gone) = places.enter(silent(), process(1000), now).expect("somebody is idle");
        assert!(is_sent_away(&mut all[2]) && gone.unwrap().source == process(3));
        assert!([0, 1, 3].iter().all(|&at| !is_sent_away(&mut all[at])));
        // An answer makes the connection the one that was idle last, whenever it came.
        all[3].answer_begins();
        all[3].answered();
        let (_another, _) = places.enter(silent(), process(1001), now).expect("somebody is idle");
        assert!(is_sent_away(&mut all[4]) && !is_sent_away(&mut all[3]));
        // A place that is given back is taken before anybody goes.
        drop(all.pop());
        let (_third, gone) = places.enter(silent(), process(1002), now).expect("a free place");
        assert!(gone.is_none());
    }

    #[test]
    fn whose_question_waits_unread_is_about_to_be_answered() {
        let (places, begin) = (Places::new(), Instant::now());
        let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        let (mut asking, _) = places.enter(Arc::new(near), process(5000), begin).expect("a place");
        let (mut all, now) = full_but_one(&places, begin);
        rustix::io::write(&far, b"?").expect("room");
        let (_new, gone) = places.enter(silent(), process(1000), now).expect("somebody is idle");
        assert!(gone.unwrap().source == process(1) && is_sent_away(&mut all[0]));
        assert!(!is_sent_away(&mut asking));
        let (_later, gone) = places.enter(silent(), process(1001), now + ANSWER_TAKEN_WITHIN).unwrap();
        assert!(gone.unwrap().source == process(2), "it counts from its question");
    }

    #[test]
    fn a_process_that_has_its_share_makes_room_for_itself() {
        let (places, now) = (Places::new(), Instant::now());
        let enter = |number, later| places.enter(silent(), process(number), now + SECOND * later);
        let (_oldest, _) = enter(1, 0).expect("a place");
        let mut crowd: Vec<_> =
            (1..=u32::try_from(PLACES / 2).unwrap()).map(|at| enter(2, at).expect("a place").0).collect();
        let (_one_more, gone) = enter(2, 1000).expect("its own place");
        assert!(gone.unwrap().source == process(2) && is_sent_away(&mut crowd[0]));
        // Places are left, so another process takes nobody's.
        assert!(enter(3, 1001).expect("a place").1.is_none());
        // Where all of its own are being answered, it gets reserved places up to its share of these, and then
        // none.
        crowd.iter().for_each(Place::asked);
        _one_more.asked();
        let reserved: Vec<_> = (0..RESERVED / 2).map(|_| enter(2, 0).expect("reserved").0).collect();
        assert!(reserved.iter().all(Place::is_reserved));
        reserved.iter().for_each(Place::asked);
        assert!(enter(2, 0).is_none());
        assert!(!enter(3, 0).expect("a place").0.is_reserved());
    }

    #[test]
    fn reserved_places_are_for_when_nobody_can_go() {
        let (places, begin) = (Places::new(), Instant::now());
        let (all, _) = full(&places, begin);
        all.iter().for_each(Place::answer_begins);
        let now = Instant::now();
        let (mut first, gone) = places.enter(silent(), process(1000), now).expect("reserved");
        assert!(first.is_reserved() && gone.is_none());
        let others: Vec<_> = (1..i32::try_from(RESERVED).unwrap())
            .map(|at| places.enter(silent(), process(1000 + at), now).unwrap().0)
            .collect();
        let (newest, gone) = places.enter(silent(), process(2000), now).expect("the place of the first");
        assert!(newest.is_reserved() && gone.unwrap().source == process(1000) && is_sent_away(&mut first));
        others.iter().chain([&newest]).for_each(Place::answer_begins);
        assert!(places.enter(silent(), process(3000), Instant::now()).is_none());
        // Answers that nobody takes keep no place.
        let later = Instant::now() + ANSWER_TAKEN_WITHIN;
        let (late, gone) = places.enter(silent(), process(3000), later).expect("an ordinary place");
        assert!(!late.is_reserved() && gone.unwrap().source == process(1));
        // The same holds for the want of a descriptor.
        assert!(places.make_room(later).unwrap().source == process(2));
        all.iter().chain(&others).chain([&late, &newest]).for_each(Place::asked);
        assert!(places.make_room(later + SECOND).is_none());
    }
}
