//! Pushing: bytes that the peer is about to READ are sent before it asks for them, right behind the SEND that
//! announces them. So a large message takes no further round trip where its receiver has room.
//!
//! An end that may push asks for room once, and the end that READs grants it, in bytes. Then the pushing end
//! offers memory behind a SEND, and pushes the bytes of its offers in their order, between its answers to
//! READs. Each offer is a [`Promise`] at the other end. A READ that is posted for exactly the promised bytes
//! is not asked for: it waits for the push. Where the READ was asked for before, the offer came too late.
//!
//! Where the bytes arrive and no READ was posted for them, the connection is not read on for
//! [`READ_WAIT_NS`]: the SEND came just before, and its user has to see it first. After that time the bytes
//! are discarded. The READ, once it is posted, is asked for as any other. Room that was used in vain is
//! granted again only after some READs, a quarter of all room at once, and each time in a row after twice as
//! many. So an end whose user READs later, or in other pieces, is soon pushed little.
//!
//! A READ never takes the bytes of an earlier message that lay in the same memory. A READ for a SEND is
//! posted after that SEND arrived. A push that is still open then comes behind the SEND in the stream, so
//! its bytes were read from memory after the SEND was posted. A push before the SEND has ended by then.
//!
//! Neither side relies on the other: offers are hints of the user, and a READ waits for bytes that were
//! promised as for an answer ([`crate::soft::TcpOptions::read_timeout`]).

use crate::soft::tcp::frame::{OFFER_COUNTS_MIN, READ_PIECE_MAX};
use std::collections::VecDeque;

/// Bytes that may be offered and not yet have arrived: sixteen messages of the longest that senders offer.
pub(super) const ROOM_BYTES: u64 = 1 << 20;
/// Nanoseconds for which pushed bytes wait for their READ, at most.
pub(super) const READ_WAIT_NS: u64 = 100_000;
/// Offers that have not arrived, at most.
const OFFERS_MAX: usize = (ROOM_BYTES / OFFER_COUNTS_MIN) as usize;
/// Pushes in vain in a row up to which the pause after each one doubles.
const PAUSE_DOUBLES_MAX: u32 = 10;

/// Memory of this end that the peer is about to READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) bytes: u32,
}

impl Offer {
    /// Returns the room that an offer of so many bytes takes.
    fn counts(bytes: u32) -> u64 {
        u64::from(bytes).max(OFFER_COUNTS_MIN)
    }
}

/// Offer that waits for its turn in the stream.
#[derive(Clone, Copy, Debug)]
struct Queued {
    offer: Offer,
    /// READs of the peer that had come before the offer was made, since the connection began.
    after: u64,
}

/// Offers of this end.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// Whether the peer was asked for room.
    has_asked: bool,
    /// Bytes since the connection began: the peer's first grant, all that may be offered, and what was.
    first: u64,
    limit: u64,
    offered: u64,
    queue: VecDeque<Queued>,
}

impl Offers {
    pub(super) fn clear(&mut self) {
        (self.has_asked, self.first, self.limit, self.offered) = (false, 0, 0, 0);
        self.queue.clear();
    }

    /// Forgets what was offered and not pushed, since the connection closes.
    pub(super) fn withdraw(&mut self) {
        self.queue.clear();
    }

    /// Notes that the peer is asked for room. `false` where it was asked before.
    pub(super) fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.has_asked, true)
    }

    /// Takes the peer's grant. `false` where it cannot be: nobody asked, it is no more than before, or it is
    /// for more than was offered since the first one. So the peer says no more of it than it hears offers.
    #[must_use]
    pub(super) fn grant(&mut self, limit: u64) -> bool {
        let is_first = self.first == 0;
        let may_be = self.has_asked
            && limit > self.limit
            && (is_first || limit <= self.first.saturating_add(self.offered));
        if may_be {
            self.limit = limit;
        }
        if may_be && is_first {
            self.first = limit;
            // Only for connections that push.
            self.queue.reserve(OFFERS_MAX);
        }
        may_be
    }

    /// Whether there is room for an offer.
    pub(super) fn has_room(&self, bytes: u32) -> bool {
        self.queue.len() < OFFERS_MAX && self.limit - self.offered >= Offer::counts(bytes)
    }

    /// Adds an offer, for which there is room. `reads`: how many READs of the peer have come.
    pub(super) fn add(&mut self, offer: Offer, reads: u64) {
        self.offered += Offer::counts(offer.bytes);
        self.queue.push_back(Queued { offer, after: reads });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Removes the oldest offer, to be pushed, if its turn is before the READ with this number, the oldest
    /// that is not answered: offers and READs have their turns as they came.
    pub(super) fn pop_before(&mut self, read: Option<u64>) -> Option<Offer> {
        let oldest = self.queue.front()?;
        if read.is_some_and(|read| read < oldest.after) {
            return None;
        }
        self.queue.pop_front().map(|queued| queued.offer)
    }
}

/// Bytes that the peer will push.
#[derive(Clone, Copy, Debug)]
struct Promise {
    offer: Offer,
    /// Slot of the READ that waits for them.
    read: Option<u32>,
    /// Whether the READ for them was asked for before they were offered.
    is_too_late: bool,
}

/// What happens with the bytes of the oldest promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// They have not begun to arrive.
    Not,
    /// They have begun, no READ is there for them, and they are not read before this time in nanoseconds.
    Waits { until_ns: u64 },
    /// They go where the READ wants them.
    Lands,
    /// They are discarded.
    InVain,
}

/// What is to be done with the bytes of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landing {
    /// The READ in this slot takes them.
    Read(u32),
    /// Nobody takes them.
    Nowhere,
    /// Nothing yet: a READ may be posted for them in a moment.
    Later,
}

/// How a promise ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The READ in this slot has its bytes.
    Read(u32),
    /// The READ in this slot was promised bytes that are not valid, and has to be asked for.
    Broken(u32),
    /// No READ was concerned.
    Nobody,
}

/// Promises of the peer.
#[derive(Debug)]
pub(super) struct Promises {
    /// Whether the peer asked for room, and gets it.
    asked: bool,
    grants: bool,
    /// Bytes since the connection began: that the peer may offer, that it offered, and whose room it has
    /// again or will have with the next grant.
    granted: u64,
    offered: u64,
    settled: u64,
    /// Bytes pushed in vain whose room the peer does not have again, and READs until it has.
    kept_back: u64,
    pause_reads: u32,
    /// Pushes in vain in a row.
    in_vain: u32,
    queue: VecDeque<Promise>,
    arrival: Arrival,
    /// Whether the last bytes of the stream had offers.
    is_active: bool,
}

impl Promises {
    pub(super) fn new() -> Self {
        Self {
            asked: false,
            grants: false,
            granted: 0,
            offered: 0,
            settled: 0,
            kept_back: 0,
            pause_reads: 0,
            in_vain: 0,
            queue: VecDeque::new(),
            arrival: Arrival::Not,
            is_active: false,
        }
    }

    pub(super) fn clear(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.clear();
        *self = Self { queue, ..Self::new() };
    }

    /// Notes that the peer asks for room, which it gets where this end READs at all. `false` where it asked
    /// before.
    #[must_use]
    pub(super) fn ask(&mut self, reads: bool) -> bool {
        if reads {
            // Once for a connection, and only for those whose peer pushes.
            self.queue.reserve(OFFERS_MAX.saturating_sub(self.queue.len()));
            self.grants = true;
        }
        !std::mem::replace(&mut self.asked, true)
    }

    /// Returns the bytes of room that the peer does not know of.
    fn untold(&self) -> u64 {
        if self.grants { self.settled + ROOM_BYTES - self.granted } else { 0 }
    }

    /// Whether the peer should hear of its room, with whatever else is written.
    pub(super) fn should_grant(&self) -> bool {
        self.untold() >= ROOM_BYTES / 4
    }

    /// Whether the peer must hear of its room, also where nothing else is written.
    pub(super) fn must_grant(&self) -> bool {
        self.untold() >= ROOM_BYTES / 2
    }

    /// Returns the limit that the peer is told now.
    pub(super) fn grant(&mut self) -> u64 {
        self.granted = self.settled + ROOM_BYTES;
        self.granted
    }

    /// Takes an offer of the peer. `is_too_late`: a READ of these bytes was asked for already. `false` where
    /// the peer had no room for it.
    #[must_use]
    pub(super) fn add(&mut self, offer: Offer, is_too_late: bool) -> bool {
        let counts = Offer::counts(offer.bytes);
        if self.granted - self.offered < counts {
            return false;
        }
        debug_assert!(self.queue.len() < OFFERS_MAX, "the room bounds them");
        self.offered += counts;
        self.is_active = true;
        self.queue.push_back(Promise { offer, read: None, is_too_late });
        true
    }

    /// Finds a promise for a READ of exactly these bytes, and keeps it for the READ in this slot. `false`
    /// where there is none.
    pub(super) fn match_read(&mut self, slot: u32, offer: Offer) -> bool {
        // What is being discarded is lost for every READ.
        let lost = usize::from(self.arrival == Arrival::InVain);
        let mut open = self.queue.iter_mut().skip(lost);
        let found =
            open.find(|promise| promise.offer == offer && promise.read.is_none() && !promise.is_too_late);
        found.map(|promise| promise.read = Some(slot)).is_some()
    }

    /// Decides about the bytes of a push of this length. `None` where it cannot be.
    pub(super) fn begin(&mut self, bytes: u32, now_ns: u64) -> Option<Landing> {
        let oldest = self.queue.front()?;
        if oldest.offer.bytes != bytes || matches!(self.arrival, Arrival::Lands | Arrival::InVain) {
            return None;
        }
        let (arrival, landing) = match (oldest.read, self.arrival) {
            (Some(slot), _) => (Arrival::Lands, Landing::Read(slot)),
            // That READ is answered by itself.
            (None, _) if oldest.is_too_late => (Arrival::InVain, Landing::Nowhere),
            (None, Arrival::Waits { until_ns }) if now_ns >= until_ns => (Arrival::InVain, Landing::Nowhere),
            (None, Arrival::Waits { until_ns }) => (Arrival::Waits { until_ns }, Landing::Later),
            (None, _) => (Arrival::Waits { until_ns: now_ns.saturating_add(READ_WAIT_NS) }, Landing::Later),
        };
        self.arrival = arrival;
        Some(landing)
    }

    /// Returns the slot of the READ that takes the bytes which arrive now.
    #[inline]
    pub(super) fn landing(&self) -> Option<u32> {
        if self.arrival != Arrival::Lands {
            return None;
        }
        self.queue.front()?.read
    }

    /// Whether bytes of a push have begun to arrive, so that its end is next.
    pub(super) fn is_in_progress(&self) -> bool {
        matches!(self.arrival, Arrival::Lands | Arrival::InVain)
    }

    /// Ends the oldest promise. `None` where it cannot be: there is none, or its bytes are said to be valid
    /// and never came.
    pub(super) fn end(&mut self, is_valid: bool) -> Option<Kept> {
        let arrival = std::mem::replace(&mut self.arrival, Arrival::Not);
        let promise = self.queue.pop_front()?;
        let counts = Offer::counts(promise.offer.bytes);
        match (arrival, promise.read) {
            (Arrival::Lands, Some(slot)) if is_valid => {
                self.settled += counts;
                self.in_vain = 0;
                self.pause_reads = self.pause_reads.min(1);
                Some(Kept::Read(slot))
            }
            (Arrival::Not | Arrival::Waits { .. }, _) if is_valid => None,
            (_, read) => {
                self.kept_back += counts;
                self.in_vain = (self.in_vain + 1).min(PAUSE_DOUBLES_MAX);
                self.pause_reads = 1 << self.in_vain;
                Some(read.map_or(Kept::Nobody, Kept::Broken))
            }
        }
    }

    /// Notes that a READ is done.
    pub(super) fn read_done(&mut self) {
        if self.kept_back > 0 {
            self.pause_reads -= 1;
            if self.pause_reads == 0 {
                // Enough to try again with.
                let back = self.kept_back.min(ROOM_BYTES / 4);
                (self.settled, self.kept_back) = (self.settled + back, self.kept_back - back);
                self.pause_reads = 1 << self.in_vain;
            }
        }
    }

    /// Whether pushed bytes may be next in the stream.
    pub(super) fn are_expected(&self) -> bool {
        self.is_active || !self.queue.is_empty()
    }

    /// Notes that much arrived and none of it was offered: pushes are no longer expected.
    pub(super) fn note_others(&mut self) {
        self.is_active = false;
    }
}

const _: () = assert!(READ_PIECE_MAX as u64 <= ROOM_BYTES / 4, "the longest offer finds room");

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u32 = 1024;

    fn offer(address: u64, bytes: u32) -> Offer {
        Offer { address, key: 7, bytes }
    }

    /// Promises of a peer that has asked and was granted its first room.
    fn granted() -> Promises {
        let mut promises = Promises::new();
        assert!(!promises.should_grant() && !promises.add(offer(0, 1), false), "nobody asked");
        assert!(promises.ask(true) && promises.must_grant());
        assert_eq!(promises.grant(), ROOM_BYTES);
        assert!(!promises.should_grant() && !promises.ask(true));
        promises
    }

    #[test]
    fn no_more_is_offered_than_was_granted() {
        let mut offers = Offers::default();
        let limit = 100 * u64::from(KIB);
        assert!(!offers.grant(limit), "nobody asked");
        assert!(offers.ask() && !offers.ask());
        assert!(!offers.has_room(1) && offers.grant(limit) && !offers.grant(limit) && !offers.grant(99));
        assert!(offers.has_room(100 * KIB) && !offers.has_room(100 * KIB + 1));
        offers.add(offer(0, 60 * KIB), 0);
        assert!(offers.has_room(40 * KIB) && !offers.has_room(40 * KIB + 1));
        assert_eq!(offers.pop_before(None), Some(offer(0, 60 * KIB)));
        assert!(offers.is_empty() && !offers.has_room(41 * KIB), "room comes from the peer alone");
        for _ in 0..2 {
            assert!(offers.has_room(1));
            offers.add(offer(0, 1), 0);
        }
        assert!(!offers.has_room(1), "a short one counts for 16 KiB");
        // 92 KiB were offered.
        assert!(!offers.grant(limit + 92 * u64::from(KIB) + 1), "more than was offered");
        assert!(offers.grant(limit + 92 * u64::from(KIB)) && offers.has_room(92 * KIB));
    }

    #[test]
    fn offers_and_reads_have_their_turns_as_they_came() {
        let mut offers = Offers::default();
        assert!(offers.ask() && offers.grant(ROOM_BYTES));
        offers.add(offer(0, KIB), 3);
        offers.add(offer(1, KIB), 5);
        // The READs 0 to 2 came before the first offer, 3 and 4 before the second.
        assert_eq!(offers.pop_before(Some(2)), None);
        assert_eq!(offers.pop_before(Some(3)), Some(offer(0, KIB)));
        assert_eq!(offers.pop_before(Some(4)), None);
        assert_eq!((offers.pop_before(None), offers.pop_before(None)), (Some(offer(1, KIB)), None));
    }

    #[test]
    fn the_room_bounds_the_number_of_offers_that_have_not_arrived() {
        let (mut offers, mut promises) = (Offers::default(), granted());
        assert!(offers.ask() && offers.grant(ROOM_BYTES));
        let mut count = 0;
        // What is pushed at once is still under way.
        while offers.has_room(1) {
            offers.add(offer(count, 1), 0);
            assert!(promises.add(offers.pop_before(None).unwrap(), false), "{count}");
            count += 1;
        }
        assert_eq!((count, promises.add(offer(count, 1), false)), (OFFERS_MAX as u64, false));
    }

    #[test]
    fn a_promise_is_for_a_read_of_exactly_its_bytes_and_for_one_read() {
        let mut promises = granted();
        assert!(promises.add(offer(4096, 8 * KIB), false) && promises.add(offer(4096, 8 * KIB), false));
        for other in [offer(0, 8 * KIB), offer(4096, 4 * KIB), Offer { key: 8, ..offer(4096, 8 * KIB) }] {
            assert!(!promises.match_read(1, other), "{other:?}");
        }
        assert!(promises.match_read(1, offer(4096, 8 * KIB)) && promises.match_read(2, offer(4096, 8 * KIB)));
        assert!(!promises.match_read(3, offer(4096, 8 * KIB)));
        for slot in [1, 2] {
            assert_eq!(promises.begin(4 * KIB, 0), None, "another length");
            assert_eq!(promises.begin(8 * KIB, 0), Some(Landing::Read(slot)));
            assert_eq!((promises.landing(), promises.is_in_progress()), (Some(slot), true));
            assert_eq!(promises.begin(8 * KIB, 0), None, "it has begun");
            assert_eq!(promises.end(true), Some(Kept::Read(slot)));
        }
        assert_eq!((promises.begin(8 * KIB, 0), promises.end(false)), (None, None), "nothing was offered");
    }

    #[test]
    fn bytes_wait_for_their_read_and_not_for_ever() {
        let mut promises = granted();
        for is_posted in [true, false] {
            assert!(promises.add(offer(0, KIB), false));
            assert_eq!(promises.begin(KIB, 1000), Some(Landing::Later));
            assert_eq!(promises.begin(KIB, 1000 + READ_WAIT_NS - 1), Some(Landing::Later));
            assert!(!promises.is_in_progress() && promises.landing().is_none());
            if is_posted {
                assert!(promises.match_read(5, offer(0, KIB)));
                assert_eq!(promises.begin(KIB, 1000 + READ_WAIT_NS), Some(Landing::Read(5)));
                assert_eq!(promises.end(true), Some(Kept::Read(5)));
            } else {
                assert_eq!(promises.begin(KIB, 1000 + READ_WAIT_NS), Some(Landing::Nowhere));
                assert!(!promises.match_read(5, offer(0, KIB)), "they are lost");
                assert_eq!(promises.end(true), Some(Kept::Nobody));
            }
        }
    }

    #[test]
    fn what_was_asked_for_before_it_was_offered_holds_nothing_up() {
        let mut promises = granted();
        assert!(promises.add(offer(0, KIB), true));
        assert!(!promises.match_read(5, offer(0, KIB)), "the next READ of these bytes wants others");
        assert_eq!(promises.begin(KIB, 0), Some(Landing::Nowhere));
        assert_eq!(promises.end(true), Some(Kept::Nobody));
    }

    #[test]
    fn a_broken_promise_names_its_read() {
        let mut promises = granted();
        assert!(
            promises.add(offer(0, KIB), false)
                && promises.add(offer(1, KIB), false)
                && promises.add(offer(2, KIB), false)
        );
        assert!(promises.match_read(5, offer(0, KIB)) && promises.match_read(6, offer(1, KIB)));
        assert_eq!(promises.begin(KIB, 0), Some(Landing::Read(5)));
        assert_eq!(promises.end(false), Some(Kept::Broken(5)));
        assert_eq!(promises.end(false), Some(Kept::Broken(6)), "nothing of it came");
        assert_eq!(promises.end(true), None, "what did not come is not valid");
    }

    #[test]
    fn room_comes_back_with_what_lands_and_later_with_what_was_in_vain() {
        let mut promises = granted();
        let piece = 256 * KIB;
        let pass = |promises: &mut Promises, lands: bool| {
            assert!(promises.add(offer(0, piece), false));
            assert!(!lands || promises.match_read(1, offer(0, piece)));
            let _ = promises.begin(piece, 0).unwrap();
            let _ = promises.begin(piece, READ_WAIT_NS);
            assert!(promises.end(true).is_some());
        };
        pass(&mut promises, true);
        assert!(promises.should_grant() && !promises.must_grant());
        pass(&mut promises, true);
        assert!(promises.must_grant());
        assert_eq!(promises.grant(), ROOM_BYTES + 2 * u64::from(piece));
        for round in 1..=4 {
            pass(&mut promises, false);
            assert!(!promises.should_grant(), "{round}");
        }
        assert!(!promises.add(offer(0, 1), false), "no room is left");
        // After four in a row a quarter comes back after 16 READs, and the next after as many.
        for quarter in 3..=4 {
            for read in 1..=16 {
                assert!(!promises.should_grant(), "{read}");
                promises.read_done();
            }
            assert_eq!(promises.grant(), ROOM_BYTES + quarter * u64::from(piece));
        }
        pass(&mut promises, true);
        promises.read_done();
        assert_eq!(promises.grant(), ROOM_BYTES + 6 * u64::from(piece), "it landed, and another quarter");
        promises.read_done();
        assert_eq!(promises.grant(), ROOM_BYTES + 7 * u64::from(piece), "the count begins anew");
    }

    #[test]
    fn an_end_that_reads_nothing_grants_nothing() {
        let mut promises = Promises::new();
        assert!(promises.ask(false) && !promises.should_grant() && !promises.add(offer(0, 1), false));
        assert!(!promises.ask(false));
    }

    #[test]
    fn nothing_of_a_connection_is_left_for_the_next() {
        let mut promises = granted();
        assert!(promises.add(offer(0, KIB), false) && promises.begin(KIB, 0).is_some());
        promises.clear();
        assert!(!promises.are_expected() && !promises.must_grant() && !promises.add(offer(0, KIB), false));
        let mut offers = Offers::default();
        assert!(offers.ask() && offers.grant(OFFER_COUNTS_MIN));
        offers.add(offer(0, 5), 0);
        offers.clear();
        assert!(offers.is_empty() && !offers.has_room(1) && offers.ask());
    }
}
