//! Handling of large messages, in order: the request arrives, is admitted, and its fragments are read,
//! checked and delivered. The release and the end follow in `release` and `settle`.

use super::Receiver;
use super::small::RECORD_IN_RESERVE;
use crate::admission::{Grant, GrantPolicy};
use crate::checks::Verdict;
use crate::delivery::{Part, UserHeader};
use crate::effects::{Effects, PeerId, ReadId, Remote};
use crate::index::NONE;
use crate::messages::{Kind, MessageState, Transfer};
use crate::pool::Share;
use crate::reads::Read;
use crate::time::TurnTime;
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::{AckStatus, ByeReason, RequestHeader, check_pieces};
use jet_wire::planted;

impl<P: GrantPolicy> Receiver<P> {
    /// Handles a request that arrived: it is refused, or waits for admission. A user header that does not fit
    /// the request lies in the slab, and the list of pieces of a message that lies in several.
    pub(super) fn request(
        &mut self,
        now_ns: u64,
        peer: u32,
        request: &RequestHeader,
        (slab, payload_bytes): (u32, u32),
        effects: &mut impl Effects,
    ) {
        // Of a slab whose memory was lost no byte is read.
        let is_lost = payload_bytes > 0 && self.is_slab_lost(slab);
        let behind = if payload_bytes == 0 || is_lost { &[] } else { effects.payload(slab, payload_bytes) };
        let (long_user_header, pieces) = behind.split_at(behind.len().saturating_sub(request.list_bytes()));
        let is_right = pieces.is_empty()
            || (self.outbox.may_gather(peer) && check_pieces(pieces, request.length.get()).is_ok());
        if !is_right {
            self.expel(peer, ByeReason::Malformed, effects);
            return;
        }
        self.stats.large_messages += 1;
        self.stats.redelivered += u64::from(request.redelivered());
        let (sender, session) = self.registry.sender(peer);
        let session = session.unwrap_or(NONE);
        let refused = if self.draining {
            Some(AckStatus::Draining)
        } else if session == NONE {
            Some(AckStatus::NoApp)
        } else if request.length.get() > self.config.message_bytes_max {
            Some(AckStatus::TooLarge)
        } else if request.class >= self.config.classes && !planted!(AnyClass) {
            Some(AckStatus::Denied)
        } else if is_lost {
            Some(AckStatus::Corrupt)
        } else if self.admission.requests(peer) >= self.config.requests_per_peer
            || !self.admission.may_request(peer, session, self.records_for_large())
        {
            Some(AckStatus::Busy)
        } else {
            None
        };
        let message = self.messages.add().expect(RECORD_IN_RESERVE);
        self.outbox.begin(peer);
        self.admission.begin_request(message, peer, session, &mut self.messages);
        let record = &mut self.messages[message];
        // The record is large from the start: a request that is refused counts among its sender's until it
        // has its end.
        record.state = MessageState::Settling;
        record.kind = Kind::Large { class: 0 };
        record.peer = peer;
        record.redelivered = request.redelivered();
        record.wants_reply = request.wants_reply() && self.outbox.takes_replies(peer);
        record.sequence = request.sequence.get();
        record.sender = sender;
        let refused =
            if record.wants_reply { self.promise_reply((peer, session), message, refused) } else { refused };
        if let Some(status) = refused {
            self.fail(message, status);
            return;
        }
        let record = &mut self.messages[message];
        record.session = session;
        let class = self.registry.registration(session).map_or(0, |registration| registration.class);
        record.kind = Kind::Large { class: request.class.max(class) };
        record.tag = request.tag.get();
        record.length = request.length.get();
        *self.messages.transfer(message) = Transfer {
            address: request.address.get(),
            key: request.key.get(),
            crc_expected: request.crc32c().filter(|_| self.checks.are_made()),
            request_of: Some(session),
            ..Transfer::default()
        };
        if !pieces.is_empty() {
            self.messages.keep_pieces(message, pieces);
        }
        self.messages.keep_user_header(message, request.inline_user_header().unwrap_or(long_user_header));
        self.admission.enqueue(now_ns, message, &mut self.messages);
    }

    /// Admits messages and posts READs of their fragments, while the windows and the pool have room.
    pub(super) fn grant(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let time = self.turn_time(now_ns);
        while self.reads.any_free() {
            let view = mechanisms_of!(self);
            let tables = (&mut self.messages, &mut self.pool);
            let grant = self.admission.next(time, self.reads.in_use(), tables, &view);
            let Some(grant) = grant else { return };
            if !self.read(time, grant, effects) {
                return;
            }
        }
        self.admission.all_reads_in_use();
    }

    /// Posts the READ of one fragment. Returns `false` if there is no room for it after all.
    fn read(&mut self, time: TurnTime, grant: Grant, effects: &mut impl Effects) -> bool {
        let Grant { message, share, slabs, bytes } = grant;
        let Some(read) = self.reads.add() else { return false };
        // A READ ends with its piece. Pieces are whole slabs, so no slab but the message's last stays part
        // empty.
        let unread = self.messages.next_to_read(message);
        debug_assert!(u64::from(bytes) <= unread.bytes, "the grant is within a piece");
        let remote = Remote { address: unread.address, key: unread.key };
        let taken = self.reads.fill(read, slabs, self.config.scatter_max, share, &mut self.pool);
        if taken == 0 {
            self.reads.remove(read);
            return false;
        }
        let bytes = bytes.min(taken.saturating_mul(SLAB_BYTES_U32));
        let record = &self.messages[message];
        let (session, peer) = (record.session, record.peer);
        let offset = self.messages.transfer(message).requested;
        let entry = &mut self.reads[read];
        entry.message = message;
        entry.offset = offset;
        entry.bytes = bytes;
        entry.delivered = 0;
        entry.posted_ns = time.stall_free_ns;
        entry.share = share;
        entry.in_flight = true;
        let runs = u32::try_from(entry.run_count).unwrap_or(NONE);
        self.delivery.promise(message, runs, &mut self.messages);
        if share == Share::Spilled {
            self.escape.spill(session, taken);
        }
        self.admission.posted(time, message, (bytes, share), &mut self.messages);
        self.stats.reads_high_water = self.stats.reads_high_water.max(self.reads.in_use());
        let entry = &self.reads[read];
        effects.post_read(PeerId(peer), ReadId(read), remote, bytes, &entry.runs[..entry.run_count]);
        true
    }

    /// Handles the end of a READ. `ok`: its bytes arrived. A READ that failed ends its connection, so
    /// [`Self::handle_peer_lost`] follows; `refused` says that the peer's key or length was at fault.
    pub fn handle_read_done(
        &mut self,
        now_ns: u64,
        read: ReadId,
        ok: bool,
        refused: bool,
        effects: &mut impl Effects,
    ) {
        let read = read.0;
        let time = self.turn_time(now_ns);
        let entry = &mut self.reads[read];
        assert!(entry.in_flight && entry.message != NONE, "READ {read} ended but was not in flight");
        entry.in_flight = false;
        let (message, bytes, posted_ns) = (entry.message, entry.bytes, entry.posted_ns);
        let peer = self.messages[message].peer;
        if peer != NONE {
            if ok || !planted!(WindowKeptOnFlush) {
                self.admission.read_ended(time, peer, bytes, posted_ns, ok);
            }
            if refused {
                let sequence = self.messages[message].sequence;
                self.expel_for(peer, ByeReason::BadMemory, Some(sequence), effects);
            } else if !ok {
                // The connection is ending, so nothing can be sent on it.
                self.outbox.leave(peer);
            }
        }
        if ok && !self.messages[message].is_discarded() {
            let verdict = self.checks.begin(read, &mut self.messages, &mut self.reads, effects);
            self.act_on(now_ns, read, verdict, effects);
            return;
        }
        let record = &self.messages[message];
        if !ok && !record.state.has_failed() && !record.app_state.is_finished() {
            self.unlink(message);
            self.withdraw(message, false, effects);
            self.messages[message].state.fail(AckStatus::PeerLost);
        }
        self.drop_read_of(now_ns, read, effects);
    }

    /// Handles the end of a check that [`begin_check`](crate::effects::Commands::begin_check) began: `crc` is
    /// the CRC32C of the READ's bytes.
    pub fn handle_checked<E: Effects>(&mut self, now_ns: u64, read: ReadId, crc: u32, effects: &mut E) {
        let message = self.reads[read.0].message;
        assert!(message != NONE && !self.reads[read.0].in_flight, "{read:?} was checked but is not");
        self.checks.end(read.0, crc, &mut self.reads);
        // The record outlives the loop, for each READ left in the list keeps its message's record.
        while let Some(next) = self.checks.next_checked(message, &mut self.messages, &self.reads) {
            if self.messages[message].is_discarded() {
                self.drop_read_of(now_ns, next, effects);
                continue;
            }
            let verdict = self.checks.combine::<E>(next, &mut self.messages, &self.reads);
            self.act_on(now_ns, next, verdict, effects);
        }
    }

    /// Handles a check that [`begin_check`](crate::effects::Commands::begin_check) began and that failed: the
    /// READ's bytes cannot be read.
    pub fn handle_check_failed(&mut self, now_ns: u64, read: ReadId, effects: &mut impl Effects) {
        let message = self.reads[read.0].message;
        assert!(message != NONE, "{read:?} was checked but is not");
        self.end_unreadable(message, effects);
        // The rest of the message is discarded now, so none of its checksums matters. READs before this one
        // in the message still wait for their checks.
        self.handle_checked(now_ns, read, 0, effects);
    }

    /// Acts on the verdict of a READ's check: delivers the READ, or ends its message.
    fn act_on(&mut self, now_ns: u64, read: u32, verdict: Verdict, effects: &mut impl Effects) {
        let message = self.reads[read].message;
        match verdict {
            Verdict::Matches => self.deliver_read(now_ns, read, effects),
            Verdict::Pending => {}
            Verdict::Unreadable => {
                self.end_unreadable(message, effects);
                self.drop_read_of(now_ns, read, effects);
            }
            Verdict::Wrong => {
                self.withdraw(message, true, effects);
                self.messages[message].state.fail(AckStatus::Corrupt);
                self.drop_read_of(now_ns, read, effects);
            }
        }
    }

    /// Delivers a READ's runs. The session has the slots and the message number: they were kept when the READ
    /// was posted.
    fn deliver_read(&mut self, now_ns: u64, read: u32, effects: &mut impl Effects) {
        let message = self.reads[read].message;
        let mut before = 0;
        while self.reads[read].delivered < self.reads[read].run_count {
            let entry = &mut self.reads[read];
            let run = entry.runs[entry.delivered];
            entry.delivered += 1;
            let bytes = (run.count * SLAB_BYTES_U32).min(entry.bytes - before);
            let offset = entry.offset + u64::from(before);
            let cached_in_budget = self.pool.is_cached_in_budget(run, entry.share);
            let part = Part { run, offset, bytes, share: entry.share, cached_in_budget };
            before += bytes;
            let is_first = self.delivery.keep_promise(message, &mut self.messages);
            let user_header = if is_first { UserHeader::Kept } else { UserHeader::None };
            self.deliver(now_ns, message, part, user_header, effects);
        }
        self.end_read(read);
    }

    /// Drops a READ, and delivers small messages that may have waited for the number that its message gave
    /// back. The slabs that were not delivered come back; no application ever saw them.
    fn drop_read_of(&mut self, now_ns: u64, read: u32, effects: &mut impl Effects) {
        let entry = &self.reads[read];
        let share = entry.share;
        let session = self.messages[entry.message].session;
        let dropped = &entry.runs[entry.delivered..entry.run_count];
        if session != NONE {
            self.delivery.break_promise(session, u32::try_from(dropped.len()).unwrap_or(NONE));
            self.escape.give_up(session, dropped.iter().map(|run| run.count).sum(), share);
        }
        for &run in dropped {
            self.pool.give(run, share);
        }
        self.end_read(read);
        if session != NONE {
            self.deliver_backlog(now_ns, session, effects);
        }
    }

    /// Frees the READ's place, and ends its message if that can be decided.
    fn end_read(&mut self, read: u32) {
        let Read { message, bytes, share, .. } = self.reads[read];
        self.admission.left(message, (bytes, share), &mut self.messages);
        self.reads.remove(read);
        self.messages[message].reads -= 1;
        if self.messages[message].reads == 0 {
            self.delivery.give_up_number(message, &mut self.messages);
            if self.messages[message].state.is_settling() {
                self.admission.leave_running(message, &mut self.messages);
            }
        }
        self.settle(message);
    }
}
