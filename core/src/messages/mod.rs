//! The table of messages that the receiver knows, from arrival to acknowledgement.

mod life;
mod list;

pub(crate) use life::{Life, Reader};
pub(crate) use list::MessageList;

use crate::index::NONE;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::message::USER_HEADER_MAX;

/// What a message is to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It occupies an SRQ slab, not READs.
    Small,
    /// It is read, when its class's turn comes.
    Large { class: u8 },
}

/// One message. A record lives until its sender has its acknowledgement and its application is done with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub life: Life,
    pub reader: Reader,
    pub kind: Kind,
    pub redelivered: bool,
    /// `NONE`: it is gone.
    pub peer: u32,
    /// `NONE`: there is none, or none any more.
    pub session: u32,
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
}

const EMPTY: Message = Message {
    life: Life::Free,
    reader: Reader::Unaware,
    kind: Kind::Small,
    redelivered: false,
    peer: NONE,
    session: NONE,
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
    /// Writes every field where it lies. Building the record elsewhere and copying it stalls: the wide loads
    /// of the copy would wait for the narrow stores before them.
    #[inline]
    fn begin_small(&mut self, small: &Small) {
        let Self {
            life,
            reader,
            kind,
            redelivered,
            peer,
            session,
            reads,
            held,
            sequence,
            sender,
            tag,
            length,
            arrived,
            // Set before they are read: by waiting in a list or for a slot.
            next: _,
            user_header_bytes: _,
            since_ns: _,
        } = self;
        *life = Life::Settling;
        *reader = Reader::Unaware;
        *kind = Kind::Small;
        *redelivered = small.redelivered;
        *peer = small.peer;
        *session = small.session;
        *reads = 0;
        *held = 0;
        *sequence = small.sequence;
        *sender = small.sender;
        *tag = small.tag;
        *length = small.length;
        *arrived = 0;
    }

    /// The class that it waits in.
    #[inline]
    pub fn class(&self) -> usize {
        match self.kind {
            Kind::Small => 0,
            Kind::Large { class } => usize::from(class),
        }
    }

    /// Whether nobody takes what arrives of it.
    #[inline]
    pub fn is_unwanted(&self) -> bool {
        self.session == NONE || self.life.has_failed() || self.reader.is_finished()
    }
}

/// What only a large message has: where it lies and how far its READs are. Apart from [`Message`], so that a
/// small one does not touch it.
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
    /// Its READs go to escape memory.
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
        assert!(record.life != Life::Free, "message {index} is removed twice");
        record.life = Life::Free;
        self.free.push(index);
    }

    /// The message's sender has its end, or there is nobody to have it: what nobody needs is let go of.
    pub fn told(&mut self, index: u32) {
        self.records[index as usize].life.tell();
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
        if record.life.is_told() && !record.reader.is_open() && record.reads == 0 {
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

#[cfg(test)]
mod tests;
