//! The table of messages that the receiver knows, from arrival to acknowledgement.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::message::{AckStatus, USER_HEADER_MAX};

/// No index: the end of a list, a peer or session that is gone.
pub(crate) const NONE: u32 = u32::MAX;

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The record is unused.
    Free,
    /// A request that waits for admission.
    Waiting,
    /// Admitted; READs are being made.
    Running,
    /// A request whose session is barred for now.
    Parked,
    /// A small message that waits for a slot of its session.
    Backlogged,
    /// Everything was asked for, or nothing more will be.
    Settling,
}

/// One message. A record lives until its sender has its acknowledgement and its application is done with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub state: State,
    pub class: u8,
    /// Small: it occupies an SRQ slab, not READs.
    pub small: bool,
    pub redelivered: bool,
    /// Its acknowledgement was handed to the peer's pending ones, or has nobody to go to.
    pub acked: bool,
    /// Its end is decided (and kept in `failure` while the peer's pending ranges are full).
    pub ended: bool,
    /// The application knows of it: a session message index is in use.
    pub app_open: bool,
    /// The application finished it.
    pub finished: bool,
    /// Of a finish: 0 consumed, else the rejection's code.
    pub code: u32,
    /// An end that was decided here: corrupt, application gone, and so on.
    pub failure: Option<AckStatus>,
    pub peer: u32,
    pub session: u32,
    pub app_message: u32,
    pub next: u32,
    /// READs in flight or waiting for slots.
    pub reads: u32,
    /// Slices delivered and not released.
    pub held: u32,
    pub sequence: u64,
    pub sender: u64,
    pub tag: u64,
    pub length: u64,
    /// Bytes that arrived and were delivered.
    pub arrived: u64,
    pub user_header_bytes: u16,
    /// When it began to wait, or last got a READ.
    pub since_ns: u64,
    /// A small one's slab while it is backlogged.
    pub slab: u32,
}

const EMPTY: Message = Message {
    state: State::Free,
    class: 0,
    small: false,
    redelivered: false,
    acked: false,
    ended: false,
    app_open: false,
    finished: false,
    code: 0,
    failure: None,
    peer: NONE,
    session: NONE,
    app_message: NONE,
    next: NONE,
    reads: 0,
    held: 0,
    sequence: 0,
    sender: 0,
    tag: 0,
    length: 0,
    arrived: 0,
    user_header_bytes: 0,
    since_ns: 0,
    slab: NONE,
};

const _: () =
    assert!(size_of::<Message>() <= 128, "a record is written for every small message: two cache lines");

/// What there is to know of a small message when it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small {
    pub redelivered: bool,
    pub peer: u32,
    pub session: u32,
    pub sequence: u64,
    pub sender: u64,
    pub tag: u64,
    pub length: u64,
}

impl Message {
    /// Writes every field where it lies. Building the record elsewhere and copying it stalls: the wide loads of the copy
    /// would wait for the narrow stores before them.
    #[inline]
    fn begin_small(&mut self, small: &Small) {
        let Self {
            state,
            class,
            small: is_small,
            redelivered,
            acked,
            ended,
            app_open,
            finished,
            failure,
            peer,
            session,
            app_message,
            reads,
            held,
            sequence,
            sender,
            tag,
            length,
            arrived,
            // Set before they are read: by finishing, by waiting in a list or for a slot.
            code: _,
            next: _,
            user_header_bytes: _,
            since_ns: _,
            slab: _,
        } = self;
        *state = State::Settling;
        *class = 0;
        *is_small = true;
        *redelivered = small.redelivered;
        *acked = false;
        *ended = false;
        *app_open = false;
        *finished = false;
        *failure = None;
        *peer = small.peer;
        *session = small.session;
        *app_message = NONE;
        *reads = 0;
        *held = 0;
        *sequence = small.sequence;
        *sender = small.sender;
        *tag = small.tag;
        *length = small.length;
        *arrived = 0;
    }
}

/// What only a large message has: where it lies and how far its READs are. Apart from [`Message`], so that a small one
/// does not touch it (but where it has to wait).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transfer {
    pub address: u64,
    pub key: u32,
    /// Bytes that READs were posted for.
    pub requested: u64,
    /// What the checksum must be at the end, where there is one.
    pub crc_expected: Option<u32>,
    /// What it is so far.
    pub crc: u32,
    /// The first and the last of its READs that are checked elsewhere, in the order of their bytes.
    pub checks: Option<(u32, u32)>,
    pub footprint_bytes: u64,
    /// It counts among the messages being read.
    pub running: bool,
    /// Its READs go to escape memory; of a small message that is backlogged: its slab is of escape memory.
    pub in_memory: bool,
    /// A READ of it was posted before its application knew of it: a number is kept for it.
    pub numbered: bool,
    /// Neighbours in its session's list of messages that began to arrive and are not complete.
    pub newer: u32,
    pub older: u32,
    pub listed: bool,
}

/// All messages, with a stack of unused records, last used first.
#[derive(Debug)]
pub(crate) struct Messages {
    records: Box<[Message]>,
    transfers: Box<[Transfer]>,
    free: Vec<u32>,
    user_headers: Box<[[u8; USER_HEADER_MAX]]>,
}

impl Messages {
    pub fn new(capacity: u32) -> Self {
        Self {
            records: vec![EMPTY; capacity as usize].into_boxed_slice(),
            transfers: vec![Transfer::default(); capacity as usize].into_boxed_slice(),
            free: (0..capacity).rev().collect(),
            user_headers: vec![[0; USER_HEADER_MAX]; capacity as usize].into_boxed_slice(),
        }
    }

    pub fn available(&self) -> usize {
        self.free.len()
    }

    pub fn in_use(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// A record that says nothing, for a large message.
    pub fn add(&mut self) -> Option<u32> {
        let index = self.free.pop()?;
        self.records[index as usize] = EMPTY;
        Some(index)
    }

    /// A record of a small message.
    #[inline]
    pub fn add_small(&mut self, small: &Small) -> Option<u32> {
        let index = self.free.pop()?;
        self.records[index as usize].begin_small(small);
        Some(index)
    }

    #[inline]
    fn remove(&mut self, index: u32) {
        let record = &mut self.records[index as usize];
        assert!(record.state != State::Free, "message {index} is removed twice");
        record.state = State::Free;
        self.free.push(index);
    }

    /// The message's sender has its end, or there is nobody to have it: what nobody needs is let go of.
    pub fn told(&mut self, index: u32) {
        self.records[index as usize].acked = true;
        self.free_if_settled(index);
    }

    /// The message's sender is gone.
    pub fn forget_sender(&mut self, index: u32) {
        self.records[index as usize].peer = NONE;
    }

    /// The record is free once neither sender nor application needs it.
    #[inline]
    pub fn free_if_settled(&mut self, index: u32) {
        let record = &self.records[index as usize];
        if record.acked && !record.app_open && record.reads == 0 && record.state == State::Settling {
            self.remove(index);
        }
    }

    pub fn transfer(&mut self, index: u32) -> &mut Transfer {
        &mut self.transfers[index as usize]
    }

    /// Keeps a user header beside the message until it is delivered.
    pub fn keep_user_header(&mut self, index: u32, user_header: &[u8]) {
        let used = user_header.len().min(USER_HEADER_MAX);
        self.user_headers[index as usize][..used].copy_from_slice(&user_header[..used]);
        self.records[index as usize].user_header_bytes = u16::try_from(used).unwrap_or(0);
    }

    /// The place of the user header that was kept, and how much of it is used.
    pub fn user_header(&self, index: u32) -> ([u8; USER_HEADER_MAX], usize) {
        let used = usize::from(self.records[index as usize].user_header_bytes);
        (self.user_headers[index as usize], used)
    }

    pub fn indices(&self) -> core::ops::Range<u32> {
        0..u32::try_from(self.records.len()).unwrap_or(NONE)
    }
}

impl core::ops::Index<u32> for Messages {
    type Output = Message;
    #[inline]
    fn index(&self, index: u32) -> &Message {
        &self.records[index as usize]
    }
}

impl core::ops::IndexMut<u32> for Messages {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Message {
        &mut self.records[index as usize]
    }
}

/// A first-in first-out list of messages, threaded through their `next`. A message is in at most one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageList {
    head: u32,
    tail: u32,
    len: u32,
}

impl MessageList {
    pub const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    pub fn head(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn push(&mut self, messages: &mut Messages, index: u32) {
        messages[index].next = NONE;
        if self.tail == NONE {
            self.head = index;
        } else {
            messages[self.tail].next = index;
        }
        self.tail = index;
        self.len += 1;
    }

    /// Takes out one message, which is usually the first.
    pub fn take_one(&mut self, messages: &mut Messages, index: u32) {
        if self.head == index {
            self.pop(messages);
        } else {
            self.take_out(messages, |message| message == index);
        }
    }

    /// Takes out every message that `leaves` names; the others keep their order.
    pub fn take_out(&mut self, messages: &mut Messages, mut leaves: impl FnMut(u32) -> bool) {
        let mut rest = core::mem::replace(self, Self::EMPTY);
        while let Some(index) = rest.pop(messages) {
            if !leaves(index) {
                self.push(messages, index);
            }
        }
    }

    /// Puts one message before the others.
    pub fn push_front(&mut self, messages: &mut Messages, index: u32) {
        messages[index].next = self.head;
        self.head = index;
        self.tail = if self.tail == NONE { index } else { self.tail };
        self.len += 1;
    }

    /// Puts one message behind another that is in the list.
    pub fn insert_after(&mut self, messages: &mut Messages, before: u32, index: u32) {
        messages[index].next = core::mem::replace(&mut messages[before].next, index);
        if self.tail == before {
            self.tail = index;
        }
        self.len += 1;
    }

    /// Takes the first messages, `most` at most, as a list of their own.
    pub fn split_front(&mut self, messages: &mut Messages, most: u32) -> Self {
        let mut front = Self::EMPTY;
        while front.len < most
            && let Some(index) = self.pop(messages)
        {
            front.push(messages, index);
        }
        front
    }

    /// Puts another list's messages before its own.
    pub fn prepend(&mut self, messages: &mut Messages, other: Self) {
        if other.tail == NONE {
            return;
        }
        messages[other.tail].next = self.head;
        self.head = other.head;
        self.tail = if self.tail == NONE { other.tail } else { self.tail };
        self.len += other.len;
    }

    /// Puts another list's messages behind its own.
    pub fn append(&mut self, messages: &mut Messages, other: Self) {
        if self.tail == NONE {
            *self = other;
        } else if other.head != NONE {
            messages[self.tail].next = other.head;
            self.tail = other.tail;
            self.len += other.len;
        }
    }

    pub fn pop(&mut self, messages: &Messages) -> Option<u32> {
        let index = self.head()?;
        self.head = messages[index].next;
        if self.head == NONE {
            self.tail = NONE;
        }
        self.len -= 1;
        Some(index)
    }
}
