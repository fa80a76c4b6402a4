//! Ends of messages, and delivery into sessions' slots.
//!
//! What every small message passes through is inlined whatever the compiler thinks of its size: together a tenth of what
//! such a message costs (`jet-bench -- core`).

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, SessionId};
use crate::message::{NONE, State};
use crate::pool::{Run, Share};
use jet_wire::message::AckStatus;
use jet_wire::segment::{DELIVERY_USER_HEADER_MAX, Delivery, delivery_flags, delivery_kind};

/// A user header on its way to a descriptor. The bytes that ride in the descriptor are an array of fixed size: a copy
/// of variable length would cost a store-forwarding stall a message.
#[derive(Clone, Copy)]
pub(super) struct UserHeader<'a> {
    /// Its first bytes, and whatever follows them in its place.
    pub inline: &'a [u8; DELIVERY_USER_HEADER_MAX],
    /// All of it.
    pub whole: &'a [u8],
}

impl<'a> UserHeader<'a> {
    /// None, on every run but the first.
    pub const NONE: UserHeader<'static> = UserHeader { inline: &[0; DELIVERY_USER_HEADER_MAX], whole: &[] };

    /// The first `used` bytes of a place that is large enough.
    #[inline]
    pub fn in_place<const N: usize>(place: &'a [u8; N], used: usize) -> Self {
        let inline = place.first_chunk().expect("a place for user headers has at least 64 bytes");
        Self { inline, whole: &place[..used.min(N)] }
    }
}

/// Part of a message that is ready for its application.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub run: Run,
    pub offset: u64,
    pub bytes: u32,
    pub share: Share,
}

impl<P: GrantPolicy> Receiver<P> {
    /// The message ends like this, whatever else happens to it; it must be in no list.
    pub(super) fn fail(&mut self, message: u32, status: AckStatus) {
        let record = &mut self.messages[message];
        if record.failure.is_none() && !record.ended {
            record.failure = Some(status);
        }
        self.settle(message);
    }

    /// Decides the message's end if it can be decided, and lets go of what nobody needs.
    #[inline(always)] // see the file's head
    pub(super) fn settle(&mut self, message: u32) {
        let record = &self.messages[message];
        if record.state != State::Settling
            || record.reads > 0
            || !(record.finished || record.failure.is_some())
        {
            return;
        }
        self.settle_now(message);
    }

    #[inline(always)] // see the file's head
    fn settle_now(&mut self, message: u32) {
        let record = &self.messages[message];
        if !record.ended {
            let status = match record.failure {
                Some(status) => status,
                None if record.code != 0 => AckStatus::Rejected(record.code),
                None if record.held == 0 => AckStatus::Consumed,
                None => return,
            };
            self.end(message, status);
        }
        let record = &self.messages[message];
        if record.app_open && record.finished && record.held == 0 {
            let (session, number) = (record.session, record.app_message);
            self.messages[message].app_open = false;
            if session != NONE {
                let owner = &mut self.sessions[session as usize];
                owner.messages[number as usize].0 = NONE;
                owner.free_messages.push(u16::try_from(number).expect("below session_messages"));
            }
        }
        self.messages.free_if_settled(message);
    }

    #[inline(always)] // see the file's head
    fn end(&mut self, message: u32, status: AckStatus) {
        self.stats.ends.add(status);
        let record = &mut self.messages[message];
        record.ended = true;
        let peer = record.peer;
        if peer == NONE {
            record.acked = true;
            return;
        }
        self.peers[peer as usize].requests -= u32::from(!record.small);
        self.ends.end(peer, message, status, &mut self.messages);
    }

    /// Delivers a small message; the session has a slot and a number.
    #[inline]
    pub(super) fn deliver_small(
        &mut self,
        now_ns: u64,
        message: u32,
        (slab, share): (u32, Share),
        user_header: UserHeader<'_>,
        effects: &mut impl Effects,
    ) {
        let bytes = u32::try_from(self.messages[message].length).expect("small");
        let part = Part { run: Run { first: slab, count: 1 }, offset: 0, bytes, share };
        self.deliver(now_ns, message, part, user_header, effects);
    }

    /// Hands one run to its session; the session has a slot, and a number if this is the first.
    #[inline(always)] // see the file's head
    pub(super) fn deliver(
        &mut self,
        now_ns: u64,
        message: u32,
        part: Part,
        user_header: UserHeader<'_>,
        effects: &mut impl Effects,
    ) {
        debug_assert!(!self.pool.is_retired(part.run), "{part:?} is lost");
        let record = &mut self.messages[message];
        let session = record.session;
        let owner = &mut self.sessions[session as usize];
        let first = !record.app_open;
        if first {
            let number = owner.free_messages.pop().expect("the caller looked");
            let entry = &mut owner.messages[usize::from(number)];
            *entry = (message, entry.1.wrapping_add(1));
            record.app_message = u32::from(number);
            record.app_open = true;
            owner.delivered_messages += 1;
        }
        let slot_index = owner.free_slots.pop().expect("the caller looked");
        let slot = &mut owner.slots[usize::from(slot_index)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.message = message;
        slot.run = part.run;
        slot.share = part.share;
        slot.held = u64::MAX >> (64 - part.run.count);
        slot.plain = self.pool.is_plain(part.run, part.share);
        self.escape.hold(session, slot_index, part.run.count, super::attended_ns(now_ns, self.stalled_ns));
        if !slot.plain && !part.share.in_budget() {
            // In memory already: nothing to escape from, only the time is kept.
            self.escape.remove(session, slot_index);
        }
        record.held += part.run.count;
        record.arrived += u64::from(part.bytes);
        owner.delivered_bytes += u64::from(part.bytes);
        let last = record.arrived == record.length;
        let flags = (if first { delivery_flags::FIRST } else { 0 })
            | (if last { delivery_flags::LAST } else { 0 })
            | (if record.redelivered { delivery_flags::REDELIVERED } else { 0 });
        let delivery = Delivery {
            kind: delivery_kind::SLICES,
            flags,
            user_header_bytes: u16::try_from(user_header.whole.len()).expect("at most USER_HEADER_MAX"),
            slot: u32::from(slot_index),
            message: record.app_message,
            generations: Delivery::pack_generations(
                slot.generation,
                owner.messages[record.app_message as usize].1,
            ),
            offset: part.offset,
            message_bytes: record.length,
            bytes: part.bytes,
            slab: part.run.first,
            tag: record.tag,
            sequence: record.sequence,
            sender: record.sender,
            user_header: *user_header.inline,
        };
        effects.deliver(SessionId(session), &delivery, user_header.whole);
        if first != last {
            if first {
                self.begin_arrival(message);
            } else {
                self.end_arrival(message);
            }
        }
    }

    /// Tells the application that the rest of a message will not come, if it knows of the message.
    pub(super) fn withdraw(&mut self, message: u32, corrupt: bool, effects: &mut impl Effects) {
        self.end_arrival(message);
        let record = &self.messages[message];
        if !record.app_open || record.session == NONE || record.finished {
            return;
        }
        let owner = &self.sessions[record.session as usize];
        let delivery = Delivery {
            kind: delivery_kind::WITHDRAWN,
            flags: if corrupt { delivery_flags::CORRUPT } else { 0 },
            user_header_bytes: 0,
            slot: 0,
            message: record.app_message,
            generations: Delivery::pack_generations(0, owner.messages[record.app_message as usize].1),
            offset: record.arrived,
            message_bytes: record.length,
            bytes: 0,
            slab: 0,
            tag: record.tag,
            sequence: record.sequence,
            sender: record.sender,
            user_header: [0; DELIVERY_USER_HEADER_MAX],
        };
        effects.deliver(SessionId(record.session), &delivery, &[]);
    }

    /// A small message's slab while it waits for a slot, and whose it is.
    pub(super) fn take_backlogged_slab(&mut self, message: u32) -> (u32, Share) {
        let record = &mut self.messages[message];
        let slab = core::mem::replace(&mut record.slab, NONE);
        let session = record.session;
        if !core::mem::take(&mut self.messages.transfer(message).in_memory) {
            return (slab, Share::Srq);
        }
        if session != NONE {
            self.sessions[session as usize].now.copied -= 1;
        }
        (slab, Share::Copied)
    }

    /// Slots or numbers came free: small messages that waited for them go on.
    pub(super) fn deliver_backlog(&mut self, now_ns: u64, session: u32, effects: &mut impl Effects) {
        loop {
            let owner = &mut self.sessions[session as usize];
            if !owner.has_room_for_small() {
                return;
            }
            let Some(message) = owner.backlog.pop(&self.messages) else { return };
            let (kept, used) = self.messages.user_header(message);
            self.messages[message].state = State::Settling;
            let (slab, share) = self.take_backlogged_slab(message);
            if share == Share::Copied {
                self.sessions[session as usize].now.copied += 1;
            }
            self.deliver_small(now_ns, message, (slab, share), UserHeader::in_place(&kept, used), effects);
        }
    }
}
