//! A SEND arrived: a small message, a request for a large one, or an answer about credit.

use super::Receiver;
use super::settle::UserHeader;
use crate::admission::GrantPolicy;
use crate::config::Checksums;
use crate::effects::{Effects, PeerId};
use crate::message::{NONE, Small, State, Transfer};
use crate::pool::{Run, Share};
use jet_wire::message::{
    AckStatus, ByeReason, FromSender, HeaderBytes, HeaderError, RequestHeader, SmallHeader, parse_from_sender,
};

/// A completed SRQ entry.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Whose SEND.
    pub peer: PeerId,
    /// The entry that was posted.
    pub entry: u32,
    /// The header area's bytes.
    pub header: &'a HeaderBytes,
    /// How many of the slab's bytes were filled.
    pub payload_bytes: u32,
}

const RECORD_IN_RESERVE: &str = "each entry that is posted has a record in reserve";

impl<P: GrantPolicy> Receiver<P> {
    /// A SEND arrived (Jet §4.1.1).
    #[inline]
    pub fn handle_receive(&mut self, now_ns: u64, arrival: Arrival<'_>, effects: &mut impl Effects) {
        let slab = self.srq.complete(arrival.entry);
        let peer = arrival.peer.0;
        if !self.ends.counts(peer) {
            self.give_small(slab);
            return;
        }
        if !self.credit.use_one(peer) {
            self.give_small(slab);
            self.expel(peer, ByeReason::CreditExceeded, effects);
            return;
        }
        match parse_from_sender(arrival.header, arrival.payload_bytes as usize) {
            Ok(FromSender::Small(small)) => self.small(now_ns, peer, slab, small, effects),
            Ok(FromSender::Request(request)) => {
                self.request(now_ns, peer, request, (slab, arrival.payload_bytes), effects);
                self.give_small(slab);
            }
            Ok(FromSender::CreditReturn(answer)) => {
                self.give_small(slab);
                if !self.credit.returned(peer, answer.credit_limit.get()) {
                    self.expel(peer, ByeReason::Malformed, effects);
                }
            }
            Err(error) => {
                self.give_small(slab);
                let version = matches!(error, HeaderError::Version { .. });
                self.expel(peer, if version { ByeReason::Version } else { ByeReason::Malformed }, effects);
            }
        }
        self.credit.end_recall_if_used_up(peer);
        self.ends.mark_dirty(peer);
    }

    /// An SRQ entry completed without a message, or with an error of its peer: it can be posted again.
    pub fn handle_receive_failed(&mut self, entry: u32) {
        let slab = self.srq.complete(entry);
        self.give_small(slab);
    }

    /// Whether what arrived in the slab lies in memory that was lost since the slab was posted.
    #[inline]
    fn is_slab_lost(&self, slab: u32) -> bool {
        self.pool.is_retired(Run { first: slab, count: 1 })
    }

    #[inline]
    pub(super) fn give_small(&mut self, slab: u32) {
        self.pool.give(Run { first: slab, count: 1 }, Share::Srq);
    }

    #[inline]
    fn small(&mut self, now_ns: u64, peer: u32, slab: u32, small: &SmallHeader, effects: &mut impl Effects) {
        let sequence = small.sequence.get();
        let payload_bytes = small.payload_bytes.get();
        self.stats.small_messages += 1;
        self.stats.redelivered += u64::from(small.redelivered());
        let session = self.registry.session_of(peer).unwrap_or(NONE);
        let refused = if self.draining {
            Some(AckStatus::Draining)
        } else if session == NONE {
            Some(AckStatus::NoApp)
        } else if self.is_slab_lost(slab) || !self.small_fits(small, slab, effects) {
            Some(AckStatus::Corrupt)
        } else {
            None
        };
        let message = self.messages.add_small(&Small {
            redelivered: small.redelivered(),
            peer,
            session,
            sequence,
            sender: self.registry.identity(peer),
            tag: small.tag.get(),
            length: u64::from(payload_bytes),
        });
        let message = message.expect(RECORD_IN_RESERVE);
        self.ends.begin(peer);
        if let Some(status) = refused {
            self.give_small(slab);
            self.fail(message, status);
            return;
        }
        let owner = &self.sessions[session as usize];
        if owner.backlog.head().is_some() || !owner.has_room_for_small() {
            self.backlog(now_ns, message, slab, small, effects);
            return;
        }
        let user_header = UserHeader::in_place(&small.user_header, small.user_header().len());
        self.deliver_small(now_ns, message, (slab, Share::Srq), user_header, effects);
    }

    /// A small message waits for a slot of its session, which is barred until it has some.
    #[cold]
    fn backlog(
        &mut self,
        now_ns: u64,
        message: u32,
        slab: u32,
        small: &SmallHeader,
        effects: &mut impl Effects,
    ) {
        let session = self.messages[message].session;
        let Ok(kept) = self.keep_in_memory(now_ns, session, slab, small.payload_bytes.get(), effects) else {
            self.give_small(slab);
            self.fail(message, AckStatus::Corrupt);
            return;
        };
        let record = &mut self.messages[message];
        record.state = State::Backlogged;
        record.slab = kept.unwrap_or(slab);
        self.messages.transfer(message).in_memory = kept.is_some();
        self.messages.keep_user_header(message, small.user_header());
        self.sessions[session as usize].backlog.push(&mut self.messages, message);
        self.bar(session);
    }

    /// A request for a large message. A user header that does not fit the request lies in the slab.
    fn request(
        &mut self,
        now_ns: u64,
        peer: u32,
        request: &RequestHeader,
        (slab, payload_bytes): (u32, u32),
        effects: &mut impl Effects,
    ) {
        let sequence = request.sequence.get();
        self.stats.large_messages += 1;
        self.stats.redelivered += u64::from(request.redelivered());
        let session = self.registry.session_of(peer).unwrap_or(NONE);
        let refused = if self.draining {
            Some(AckStatus::Draining)
        } else if session == NONE {
            Some(AckStatus::NoApp)
        } else if request.length.get() > self.config.message_bytes_max {
            Some(AckStatus::TooLarge)
        } else if request.class >= self.config.classes {
            Some(AckStatus::Denied)
        } else if request.inline_user_header().is_none() && self.is_slab_lost(slab) {
            Some(AckStatus::Corrupt)
        } else if self.peers[peer as usize].requests >= self.config.requests_per_peer
            || self.messages.available() <= self.config.srq_slabs as usize
        {
            // The last records are for small messages, whose number the credit bounds.
            Some(AckStatus::Busy)
        } else {
            None
        };
        let message = self.messages.add().expect(RECORD_IN_RESERVE);
        self.ends.begin(peer);
        self.peers[peer as usize].requests += 1;
        let record = &mut self.messages[message];
        record.state = State::Settling;
        record.peer = peer;
        record.redelivered = request.redelivered();
        record.sequence = sequence;
        record.sender = self.registry.identity(peer);
        if let Some(status) = refused {
            self.fail(message, status);
            return;
        }
        record.state = State::Waiting;
        record.session = session;
        record.class = request.class.max(self.registry.registration(session).map_or(0, |app| app.class));
        record.tag = request.tag.get();
        record.length = request.length.get();
        record.since_ns = now_ns;
        *self.messages.transfer(message) = Transfer {
            address: request.address.get(),
            key: request.key.get(),
            crc_expected: request.crc32c().filter(|_| self.config.checksums != Checksums::Off),
            ..Transfer::default()
        };
        match request.inline_user_header() {
            Some(inline) => self.messages.keep_user_header(message, inline),
            None => self.messages.keep_user_header(message, effects.payload(slab, payload_bytes)),
        }
        self.enqueue(message);
    }
}
