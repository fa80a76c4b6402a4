//! Strangers: connections that were accepted and have not said all of their request.
//!
//! A stranger costs a descriptor and a place in this table, and nothing else: no QP and no connection's
//! buffers. What it has said stays in its socket until all of its request is there. Then its transport takes
//! the socket out of the table and makes the connection.
//!
//! Who waits here must not keep others out. The rules:
//! * One source has at most half of the places. A source is a host over `tcp:` and a process over `shm:`.
//! * A newcomer whose source has its share takes the place of the stranger of its own source that has waited
//!   longest.
//! * A newcomer that finds all places taken takes the place of the stranger that has waited longest, whoever
//!   that is.
//! * The wait counts from the moment when the connection was accepted. Single bytes do not renew it.
//! * A stranger whose place is taken is looked at first. If all of its request is there, it is let in.
//! * Nobody waits here for longer than [`SoftOptions::handshake`].
//! * A newcomer whose request is there already takes no place.
//! * After [`NEWCOMERS_PER_PAUSE`] newcomers accepting pauses for [`PAUSE`]. Newcomers that the NIC's user
//!   has accepted do not count. So strangers that come back as soon as they are closed take a small part of
//!   the time in which the NIC is polled, and so do those whose requests are refused.

use super::deadlines::Wait;
use super::options::SoftOptions;
use super::tables::Tables;
use super::token::{Kind, NUMBER_MASK, Place, Token};
use crate::source::Source;
use rustix::event::epoll::EventFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Newcomers after which accepting pauses, less those that the NIC's user has accepted.
pub(crate) const NEWCOMERS_PER_PAUSE: u32 = 16;
/// Time for which accepting pauses. 16 newcomers cost about 0.1 ms.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

const HUNG_UP: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);
/// Events that a stranger's socket is watched for. They are edge-triggered: a part of a request wakes once.
const WATCHED: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// What a connection has said so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing, or a part of a request.
    NotAll,
    /// All of a request, which waits in the socket.
    Request,
    /// Something that is no request.
    Garbage,
    /// It has hung up.
    Gone,
}

/// What became of a stranger that was looked at.
#[derive(Debug)]
pub(crate) enum Looked {
    /// It keeps its place.
    Stays,
    /// It has said all of its request.
    Request(OwnedFd, Source),
    /// It is to be closed.
    Leaves(OwnedFd, Source),
}

#[derive(Debug)]
struct Stranger {
    socket: OwnedFd,
    source: Source,
    /// Number in the order of arrival.
    number: u64,
    since_ns: u64,
}

/// Strangers of one transport.
#[derive(Debug)]
pub(crate) struct Strangers {
    kind: Kind,
    /// Empty until the transport listens.
    places: Box<[Option<Stranger>]>,
    free: Vec<u32>,
    next_number: u64,
    newcomers: u32,
    /// Whether accepting pauses because of newcomers.
    pauses: bool,
    /// Listener that has the next turn.
    turn: usize,
}

impl Strangers {
    /// Makes a table without places.
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            places: Box::default(),
            free: Vec::new(),
            next_number: 0,
            newcomers: 0,
            pauses: false,
            turn: 0,
        }
    }

    /// Makes the places, if there are none yet.
    pub(crate) fn open(&mut self, options: &SoftOptions) {
        if self.places.is_empty() {
            let places = options.strangers_max.max(1);
            self.places = (0..places).map(|_| None).collect();
            self.free = (0..places).rev().collect();
        }
    }

    /// Returns how many strangers there are.
    pub(crate) fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns the listener, of so many, whose turn it is.
    pub(crate) fn take_turn(&mut self, listeners: usize) -> usize {
        let turn = self.turn % listeners;
        self.turn = turn + 1;
        turn
    }

    /// Counts a newcomer.
    pub(crate) fn count_newcomer(&mut self) {
        self.newcomers += 1;
    }

    /// Notes that the NIC's user has accepted a newcomer, which does not count any more. `true` where that
    /// ends a pause.
    pub(crate) fn was_accepted(&mut self) -> bool {
        self.newcomers = self.newcomers.saturating_sub(1);
        !self.must_pause() && std::mem::take(&mut self.pauses)
    }

    /// Whether accepting must pause for [`PAUSE`].
    pub(crate) fn must_pause(&self) -> bool {
        self.newcomers >= NEWCOMERS_PER_PAUSE
    }

    /// Notes that accepting pauses because of newcomers. The caller calls [`Self::forget_newcomers`] after
    /// it.
    pub(crate) fn begin_pause(&mut self) {
        self.pauses = true;
    }

    /// Notes that a pause of accepting is over.
    pub(crate) fn forget_newcomers(&mut self) {
        (self.newcomers, self.pauses) = (0, false);
    }

    /// Returns the stranger whose place a newcomer of this source takes. `None` where there is a place that
    /// the newcomer may have.
    pub(crate) fn in_the_way_of(&self, source: Source) -> Option<u32> {
        let share = self.places.len().div_ceil(2);
        if self.count() < share {
            return None;
        }
        let is_own = |stranger: &Stranger| stranger.source == source;
        if self.places.iter().flatten().filter(|stranger| is_own(stranger)).count() >= share {
            return self.first_of(is_own);
        }
        if self.free.is_empty() { self.first() } else { None }
    }

    /// Returns the stranger that has waited longest.
    pub(crate) fn first(&self) -> Option<u32> {
        self.first_of(|_| true)
    }

    fn first_of(&self, counts: impl Fn(&Stranger) -> bool) -> Option<u32> {
        (0..)
            .zip(&self.places)
            .filter_map(|(place, stranger)| Some((place, stranger.as_ref()?)))
            .filter(|(_, stranger)| counts(stranger))
            .min_by_key(|(_, stranger)| stranger.number)
            .map(|(place, _)| place)
    }

    /// Returns a stranger whose time is over. Where there is none, the next deadline is set. To be called
    /// within a poll.
    pub(crate) fn next_due(&self, tables: &mut Tables) -> Option<u32> {
        let first = self.first()?;
        let since_ns = self.places[first as usize].as_ref().expect("just found").since_ns;
        let waited = Duration::from_nanos(tables.deadlines.now_ns().saturating_sub(since_ns));
        let left = tables.options.handshake.saturating_sub(waited);
        if left.is_zero() {
            return Some(first);
        }
        tables.deadlines.set(tables.place_of_strangers(self.kind), Wait::Handshake, left);
        None
    }

    /// Gives a newcomer a place, which must be free. To be called within a poll.
    ///
    /// # Errors
    /// The system cannot watch the socket, which comes back.
    pub(crate) fn seat(
        &mut self,
        tables: &mut Tables,
        socket: OwnedFd,
        source: Source,
    ) -> Result<(), OwnedFd> {
        let place = *self.free.last().expect("the caller made room");
        let token =
            Token { kind: self.kind, place: Place::Stranger { place, number: short(self.next_number) } };
        if tables.epoll.add(socket.as_fd(), token.to_u64(), WATCHED).is_err() {
            return Err(socket);
        }
        self.free.pop();
        let (number, since_ns) = (self.next_number, tables.deadlines.now_ns());
        self.next_number += 1;
        self.places[place as usize] = Some(Stranger { socket, source, number, since_ns });
        let deadline = tables.place_of_strangers(self.kind);
        if tables.deadlines.wait_at(deadline).is_none() {
            tables.deadlines.set(deadline, Wait::Handshake, tables.options.handshake);
        }
        Ok(())
    }

    /// Looks at what a stranger has said. It keeps its place if that is a part of a request, and it may stay.
    pub(crate) fn look(
        &mut self,
        tables: &mut Tables,
        place: u32,
        leaves: bool,
        said: impl Fn(&OwnedFd) -> Said,
    ) -> Looked {
        let Some(stranger) = self.places.get(place as usize).and_then(Option::as_ref) else {
            return Looked::Stays;
        };
        let said = said(&stranger.socket);
        if said == Said::NotAll && !leaves {
            return Looked::Stays;
        }
        tables.counters.protocol_errors += u64::from(said == Said::Garbage);
        let (socket, source) = self.send_away(tables, place).expect("just found");
        if said == Said::Request { Looked::Request(socket, source) } else { Looked::Leaves(socket, source) }
    }

    /// Whether the stranger with this short number has this place.
    pub(crate) fn has(&self, place: u32, number: u32) -> bool {
        let stranger = self.places.get(place as usize).and_then(Option::as_ref);
        stranger.is_some_and(|stranger| short(stranger.number) == number)
    }

    /// Returns the stranger that has waited longest and has not said all of its request.
    pub(crate) fn first_without_request(&self, said: impl Fn(&OwnedFd) -> Said) -> Option<u32> {
        self.first_of(|stranger| said(&stranger.socket) != Said::Request)
    }

    /// Whether a stranger with these events on its socket has hung up.
    pub(crate) fn hung_up(flags: EventFlags) -> bool {
        flags.intersects(HUNG_UP)
    }

    /// Takes a stranger's place away, and returns its socket.
    pub(crate) fn send_away(&mut self, tables: &mut Tables, place: u32) -> Option<(OwnedFd, Source)> {
        let stranger = self.places[place as usize].take()?;
        self.free.push(place);
        tables.epoll.remove(stranger.socket.as_fd());
        if self.count() == 0 {
            tables.deadlines.clear(tables.place_of_strangers(self.kind));
        }
        Some((stranger.socket, stranger.source))
    }

    /// Takes the places of all away, and returns their sockets.
    pub(crate) fn send_all_away(&mut self, tables: &mut Tables) -> Vec<(OwnedFd, Source)> {
        let places = 0..u32::try_from(self.places.len()).expect("places are few");
        places.filter_map(|place| self.send_away(tables, place)).collect()
    }
}

/// Returns the part of a stranger's number that a token carries.
fn short(number: u64) -> u32 {
    u32::try_from(number & u64::from(NUMBER_MASK)).expect("masked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Anything that the epoll can watch.
    fn socket() -> OwnedFd {
        std::os::unix::net::UnixDatagram::unbound().unwrap().into()
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Arrives { source: u32 },
        Leaves { nth: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3u32).prop_map(|source| Step::Arrives { source }),
            1 => (0..8usize).prop_map(|nth| Step::Leaves { nth }),
        ]
    }

    proptest! {
        /// A newcomer takes the place of the first of its own source where that has its share, of the first
        /// of all where all places are taken, and of nobody otherwise.
        #[test]
        fn who_has_waited_longest_makes_room(
            max in 1..7u32,
            steps in prop::collection::vec(step(), 0..60),
        ) {
            let options = SoftOptions { strangers_max: max, qps_max: 2, ..SoftOptions::default() };
            let mut tables = Tables::new(options).unwrap();
            tables.deadlines.begin_poll(0);
            let mut strangers = Strangers::new(Kind::Shm);
            strangers.open(&options);
            // The sources of those who wait, in the order of their arrival, with their places.
            let mut waiting: Vec<(u32, u32)> = Vec::new();
            let share = max.div_ceil(2) as usize;
            for step in steps {
                match step {
                    Step::Arrives { source } => {
                        let of_source = waiting.iter().filter(|(other, _)| *other == source).count();
                        let leaves = if of_source >= share {
                            waiting.iter().position(|(other, _)| *other == source)
                        } else {
                            (waiting.len() == max as usize).then_some(0)
                        };
                        let found = strangers.in_the_way_of(Source::of_process(source, 0));
                        prop_assert_eq!(found, leaves.map(|at| waiting[at].1));
                        if let Some(at) = leaves {
                            let (_, place) = waiting.remove(at);
                            let found = strangers.look(&mut tables, place, true, |_| Said::NotAll);
                            prop_assert!(matches!(found, Looked::Leaves(..)));
                        }
                        let place = *strangers.free.last().unwrap();
                        strangers.seat(&mut tables, socket(), Source::of_process(source, 0)).unwrap();
                        waiting.push((source, place));
                    }
                    Step::Leaves { nth } if nth < waiting.len() => {
                        let (_, place) = waiting.remove(nth);
                        let found = strangers.look(&mut tables, place, false, |_| Said::Request);
                        prop_assert!(matches!(found, Looked::Request(..)));
                    }
                    Step::Leaves { .. } => {}
                }
                prop_assert_eq!(strangers.count(), waiting.len());
                prop_assert_eq!(strangers.first(), waiting.first().map(|(_, place)| *place));
                let deadline = tables.deadlines.wait_at(tables.place_of_strangers(Kind::Shm));
                prop_assert_eq!(deadline.is_some(), !waiting.is_empty());
            }
        }
    }
}
