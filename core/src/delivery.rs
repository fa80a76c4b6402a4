//! Delivery into sessions: message numbers, messages that wait for a slot, and slots and numbers that are
//! promised to READs in flight.
//!
//! The functions that every small message passes through are inlined whatever the compiler thinks of their
//! size. Together they make a tenth of the cost of such a message (`jet-bench -- core`).
//!
//! Parts of several messages arrive side by side. The application waits for the oldest message of its session
//! that began to arrive and is not complete. This module knows that message, and keeps slots for it.

use crate::config::FRAGMENT_SLABS_MAX;
use crate::effects::{Commands, SessionId};
use crate::index::NONE;
use crate::messages::{AppState, MessageList, Messages};
use crate::pool::{Run, Share};
use crate::slots::Slots;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::segment::{DELIVERY_USER_HEADER_MAX, Delivery as Descriptor, delivery_flags, delivery_kind};

/// Where the user header of a message is when a run of the message is delivered.
#[derive(Clone, Copy)]
pub(crate) enum UserHeader<'a> {
    /// Every run but the first has none.
    None,
    /// It has just arrived.
    Arrived(HeaderBytes<'a>),
    /// It was kept beside its message.
    Kept,
}

/// A user header on its way to a descriptor. The bytes inside the descriptor are an array of fixed size: a
/// copy of variable length would cost a store-forwarding stall for each message.
#[derive(Clone, Copy)]
pub(crate) struct HeaderBytes<'a> {
    /// The user header's first bytes. Behind a shorter header the array has other bytes, whatever they are.
    inline: &'a [u8; DELIVERY_USER_HEADER_MAX],
    /// All bytes of the header.
    whole: &'a [u8],
}

impl<'a> HeaderBytes<'a> {
    const NONE: HeaderBytes<'static> = HeaderBytes { inline: &[0; DELIVERY_USER_HEADER_MAX], whole: &[] };

    /// Borrows the first `used` bytes of a place that has room for any user header.
    #[inline]
    pub fn in_place<const N: usize>(place: &'a [u8; N], used: usize) -> Self {
        let inline = place.first_chunk().expect("a place for user headers has at least 64 bytes");
        Self { inline, whole: &place[..used.min(N)] }
    }
}

/// Part of a message that is ready for its application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub run: Run,
    pub offset: u64,
    pub bytes: u32,
    pub share: Share,
    /// Whether the run lies in the cache, and its slabs count in the pool's budget.
    pub cached_in_budget: bool,
}

/// The delivery state of one session.
#[derive(Debug)]
#[repr(align(64))] // of 128 bytes, so that finding it by its number takes a shift
struct SessionDelivery {
    /// Record of the message that has each message number, with the number's generation.
    numbers: Box<[(u32, u16)]>,
    free_numbers: Vec<u16>,
    /// Small messages that wait for a slot or a number.
    backlog: MessageList,
    /// Messages that began to arrive and are not complete: the oldest and the newest.
    incomplete: (u32, u32),
    /// Slots that READs in flight will need.
    promised_slots: u32,
    /// Message numbers that READs in flight will need.
    promised_numbers: u32,
    delivered_messages: u64,
    delivered_bytes: u64,
}

impl SessionDelivery {
    fn new(numbers: u16) -> Self {
        Self {
            numbers: vec![(NONE, 0); usize::from(numbers)].into_boxed_slice(),
            free_numbers: (0..numbers).rev().collect(),
            backlog: MessageList::EMPTY,
            incomplete: (NONE, NONE),
            promised_slots: 0,
            promised_numbers: 0,
            delivered_messages: 0,
            delivered_bytes: 0,
        }
    }

    /// Returns the slots that are kept for the message that the application waits for.
    #[inline]
    fn reserve(&self) -> u32 {
        if self.incomplete.0 == NONE { 0 } else { FRAGMENT_SLABS_MAX }
    }
}

/// Messages and bytes that were delivered to a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub messages: u64,
    pub bytes: u64,
}

/// The deliveries of all sessions.
#[derive(Debug)]
pub(crate) struct Delivery {
    sessions: Box<[SessionDelivery]>,
}

impl Delivery {
    /// Creates the deliveries of `sessions` sessions, with `numbers` message numbers each.
    pub fn new(sessions: u32, numbers: u32) -> Self {
        let numbers = u16::try_from(numbers).expect("checked by Config::check");
        Self { sessions: (0..sessions).map(|_| SessionDelivery::new(numbers)).collect() }
    }

    #[inline]
    fn owner(&self, session: u32) -> &SessionDelivery {
        &self.sessions[session as usize]
    }

    #[inline]
    fn owner_mut(&mut self, session: u32) -> &mut SessionDelivery {
        &mut self.sessions[session as usize]
    }

    /// Delivers one run to its session and returns the slot that it took. The session must have a slot, and a
    /// message number if this is the message's first run.
    #[inline(always)] // see the file's head
    pub fn deliver(
        &mut self,
        message: u32,
        part: Part,
        user_header: UserHeader<'_>,
        (messages, slots): (&mut Messages, &mut Slots),
        effects: &mut impl Commands,
    ) -> u16 {
        let record = &mut messages[message];
        let session = record.session;
        let owner = &mut self.sessions[session as usize];
        let (number, generation, first) = if let AppState::Open { number } = record.app_state {
            (number, owner.numbers[usize::from(number)].1, false)
        } else {
            let number = owner.free_numbers.pop().expect("the caller looked");
            let entry = &mut owner.numbers[usize::from(number)];
            *entry = (message, entry.1.wrapping_add(1));
            record.app_state = AppState::Open { number };
            owner.delivered_messages += 1;
            (number, entry.1, true)
        };
        let taken = slots.take(session, message, part.run, part.share, part.cached_in_budget);
        record.held += part.run.count;
        record.arrived += u64::from(part.bytes);
        owner.delivered_bytes += u64::from(part.bytes);
        let last = record.arrived == record.length;
        let record = &messages[message];
        let user_header = match user_header {
            UserHeader::None => HeaderBytes::NONE,
            UserHeader::Arrived(bytes) => bytes,
            UserHeader::Kept => {
                let (place, used) = messages.user_header(message);
                HeaderBytes::in_place(place, used)
            }
        };
        let flags = (if first { delivery_flags::FIRST } else { 0 })
            | (if last { delivery_flags::LAST } else { 0 })
            | (if record.redelivered { delivery_flags::REDELIVERED } else { 0 })
            | (if record.wants_reply { delivery_flags::WANTS_REPLY } else { 0 });
        let descriptor = Descriptor {
            kind: delivery_kind::SLICES,
            flags,
            user_header_bytes: u16::try_from(user_header.whole.len()).expect("at most USER_HEADER_MAX"),
            slot: u32::from(taken.slot),
            message: u32::from(number),
            generations: Descriptor::pack_generations(taken.generation, generation),
            offset: part.offset,
            message_bytes: record.length,
            bytes: part.bytes,
            slab: part.run.first,
            tag: record.tag,
            sequence: record.sequence,
            sender: record.sender,
            user_header: *user_header.inline,
        };
        effects.deliver(SessionId(session), &descriptor, user_header.whole);
        if first != last {
            if first {
                self.begin_arrival(message, messages);
            } else {
                self.end_arrival(message, messages);
            }
        }
        taken.slot
    }

    /// Tells the application that the rest of a message will not arrive, if it knows of the message.
    pub fn withdraw(
        &mut self,
        message: u32,
        corrupt: bool,
        messages: &mut Messages,
        effects: &mut impl Commands,
    ) {
        self.end_arrival(message, messages);
        let record = &messages[message];
        let AppState::Open { number } = record.app_state else { return };
        if record.session == NONE {
            return;
        }
        let generation = self.owner(record.session).numbers[usize::from(number)].1;
        let descriptor = Descriptor {
            kind: delivery_kind::WITHDRAWN,
            flags: if corrupt { delivery_flags::CORRUPT } else { 0 },
            user_header_bytes: 0,
            slot: 0,
            message: u32::from(number),
            generations: Descriptor::pack_generations(0, generation),
            offset: record.arrived,
            message_bytes: record.length,
            bytes: 0,
            slab: 0,
            tag: record.tag,
            sequence: record.sequence,
            sender: record.sender,
            user_header: [0; DELIVERY_USER_HEADER_MAX],
        };
        effects.deliver(SessionId(record.session), &descriptor, &[]);
    }

    /// Returns the record of the message that the application names by number and generation; `None` if it
    /// has no such message.
    pub fn named(&self, session: u32, number: u32, generation: u16) -> Option<u32> {
        let &(message, at) = self.owner(session).numbers.get(number as usize)?;
        (message != NONE && at == generation).then_some(message)
    }

    /// Frees the number of a message that the application is done with.
    #[inline(always)] // see the file's head
    pub fn close_number(&mut self, session: u32, number: u32) {
        let owner = self.owner_mut(session);
        owner.numbers[number as usize].0 = NONE;
        owner.free_numbers.push(u16::try_from(number).expect("below session_messages"));
    }

    /// Adds a message that began to arrive to its session's list of incomplete messages.
    fn begin_arrival(&mut self, message: u32, messages: &mut Messages) {
        let incomplete = &mut self.owner_mut(messages[message].session).incomplete;
        let (oldest, newest) = *incomplete;
        let transfer = messages.transfer(message);
        (transfer.listed, transfer.older, transfer.newer) = (true, newest, NONE);
        if newest != NONE {
            messages.transfer(newest).newer = message;
        }
        *incomplete = (if oldest == NONE { message } else { oldest }, message);
    }

    /// Takes a message that is complete, or will never be, off its session's list of incomplete messages.
    pub fn end_arrival(&mut self, message: u32, messages: &mut Messages) {
        let session = messages[message].session;
        let transfer = messages.transfer(message);
        if session == NONE || !core::mem::take(&mut transfer.listed) {
            return;
        }
        let (older, newer) = (transfer.older, transfer.newer);
        let (oldest, newest) = &mut self.owner_mut(session).incomplete;
        if older == NONE {
            *oldest = newer;
        } else {
            messages.transfer(older).newer = newer;
        }
        if newer == NONE {
            *newest = older;
        } else {
            messages.transfer(newer).older = older;
        }
    }

    /// Returns the session's message that began to arrive first and is not complete. The application waits
    /// for it.
    #[inline]
    pub fn oldest_incomplete(&self, session: u32) -> Option<u32> {
        let oldest = self.owner(session).incomplete.0;
        (oldest != NONE).then_some(oldest)
    }

    /// Adds a small message that waits for a slot of its session.
    pub fn push_backlog(&mut self, message: u32, messages: &mut Messages) {
        self.owner_mut(messages[message].session).backlog.push(messages, message);
    }

    /// Takes the small message that has waited longest for a slot of the session.
    pub fn pop_backlog(&mut self, session: u32, messages: &mut Messages) -> Option<u32> {
        self.owner_mut(session).backlog.pop(messages)
    }

    /// Takes a small message out of those that wait for a slot of its session.
    pub fn take_backlogged(&mut self, message: u32, messages: &mut Messages) {
        self.owner_mut(messages[message].session).backlog.take_out(messages, |waits| waits == message);
    }

    /// Returns the number of small messages that wait for a slot of the session.
    #[inline]
    pub fn backlog(&self, session: u32) -> u32 {
        self.owner(session).backlog.len()
    }

    /// Reserves slots for the runs of a READ that is posted. Reserves a message number, too, if the
    /// application does not know of the message.
    pub fn promise(&mut self, message: u32, slots: u32, messages: &mut Messages) {
        let record = &messages[message];
        let (session, needs_number) = (record.session, !record.app_state.is_open());
        let numbered = &mut messages.transfer(message).numbered;
        let new_number = needs_number && !core::mem::replace(numbered, *numbered || needs_number);
        let owner = self.owner_mut(session);
        owner.promised_slots += slots;
        owner.promised_numbers += u32::from(new_number);
    }

    /// Uses one promised slot, for the next run of a READ. Returns `true` if the run is its message's first,
    /// which uses the promised number.
    pub fn keep_promise(&mut self, message: u32, messages: &mut Messages) -> bool {
        let record = &messages[message];
        let (session, first) = (record.session, !record.app_state.is_open());
        let owner = self.owner_mut(session);
        owner.promised_slots -= 1;
        if first {
            owner.promised_numbers -= 1;
            messages.transfer(message).numbered = false;
        }
        first
    }

    /// Gives up promised slots for runs of a READ that will not be delivered.
    pub fn break_promise(&mut self, session: u32, slots: u32) {
        self.owner_mut(session).promised_slots -= slots;
    }

    /// Gives up the message number kept for a message of which no READ is under way any more, if one is still
    /// kept.
    pub fn give_up_number(&mut self, message: u32, messages: &mut Messages) {
        let (session, unseen) = (messages[message].session, !messages[message].app_state.is_open());
        if unseen && core::mem::take(&mut messages.transfer(message).numbered) && session != NONE {
            self.owner_mut(session).promised_numbers -= 1;
        }
    }

    /// Returns the slots promised to READs in flight.
    pub fn promised_slots(&self, session: u32) -> u32 {
        self.owner(session).promised_slots
    }

    /// Returns the slots that are neither in use nor kept for READs in flight.
    #[inline]
    pub fn slots_left(&self, session: u32, slots: &Slots) -> u32 {
        slots.free(session) - self.owner(session).promised_slots
    }

    /// Returns the message numbers that are neither in use nor kept for READs in flight.
    #[inline]
    pub fn numbers_left(&self, session: u32) -> u32 {
        let owner = self.owner(session);
        u32::try_from(owner.free_numbers.len()).unwrap_or(NONE) - owner.promised_numbers
    }

    /// Returns the message numbers in use.
    pub fn numbers_used(&self, session: u32) -> u32 {
        let owner = self.owner(session);
        u32::try_from(owner.numbers.len() - owner.free_numbers.len()).unwrap_or(NONE)
    }

    /// Returns whether there are a slot and a number for a small message.
    #[inline]
    pub fn has_room_for_small(&self, session: u32, slots: &Slots) -> bool {
        let owner = self.owner(session);
        slots.has_more_free_than(session, owner.promised_slots + owner.reserve())
            && owner.free_numbers.len() > owner.promised_numbers as usize
    }

    /// Returns whether a small message can be delivered at once: none waits, and there is room.
    #[inline]
    pub fn takes_small_now(&self, session: u32, slots: &Slots) -> bool {
        self.backlog(session) == 0 && self.has_room_for_small(session, slots)
    }

    /// Returns whether the session has slots for a fragment even if each slab is a run of its own.
    #[inline]
    pub fn has_slots_for_fragment(&self, session: u32, slabs: u32, slots: &Slots) -> bool {
        self.slots_left(session, slots) >= slabs + self.owner(session).reserve()
    }

    /// Returns what was delivered to a session.
    pub fn delivered(&self, session: u32) -> Delivered {
        let owner = self.owner(session);
        Delivered { messages: owner.delivered_messages, bytes: owner.delivered_bytes }
    }

    /// Returns the bytes that were delivered to open sessions.
    pub fn delivered_bytes(&self) -> u64 {
        self.sessions.iter().map(|owner| owner.delivered_bytes).sum()
    }

    /// Takes the count of bytes delivered to a session that is over; the caller counts them from then on.
    pub fn take_delivered_bytes(&mut self, session: u32) -> u64 {
        core::mem::take(&mut self.owner_mut(session).delivered_bytes)
    }

    /// Makes the session's number ready for another application. Generations continue, so late releases of
    /// the former application fail.
    pub fn reset(&mut self, session: u32) {
        let owner = self.owner_mut(session);
        owner.numbers.iter_mut().for_each(|number| number.0 = NONE);
        owner.free_numbers.clear();
        owner.free_numbers.extend((0..u16::try_from(owner.numbers.len()).unwrap_or(u16::MAX)).rev());
        owner.backlog = MessageList::EMPTY;
        owner.incomplete = (NONE, NONE);
        (owner.promised_slots, owner.promised_numbers) = (0, 0);
        (owner.delivered_messages, owner.delivered_bytes) = (0, 0);
    }
}
