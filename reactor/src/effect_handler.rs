//! The effect handler carries out what the receiver asks for: it posts to the NIC, writes to the sessions'
//! rings, and has workers copy and make checksums.

use crate::application::Application;
use crate::memory::{EscapeRegion, Memory, PoolMemory, ReplyMemory};
use crate::peers::Peers;
use crate::poison::{Piece, guarded};
use crate::posting::{Posting, PostingContext, Read, Reply};
use crate::sessions::Sessions;
use crate::workers::{CheckJob, CopyJob, Job, Workers};
use jet_core::pool::Run;
use jet_core::{
    Checksums, Commands, CopyFailed, CopyRefused, EscapeCopy, PeerId, Questions, ReadId, Remote, SessionEnd,
    SessionId, Standstill, Sums,
};
use jet_fabric::nic::{Nic, SrqEntry};
use jet_wire::message::{ByeReason, HeaderBytes};
use jet_wire::segment::Delivery;
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};

/// Parts that a driver is made of.
pub struct Parts<N> {
    /// NIC that listens already, and in which the memory is registered.
    pub nic: N,
    /// Memory of the pool, which the NIC fills.
    pub pool: PoolMemory,
    /// Escape memory; none where it is switched off, or could not be allocated.
    pub escape: Option<EscapeRegion>,
    /// Memory for replies; none where the configuration has no slots for them.
    pub replies: Option<ReplyMemory>,
    /// Workers that copy, and that make checksums where the configuration says so.
    pub workers: Workers,
    /// Callback that has the NIC mark congestion (`true`), or stop that (`false`). It must not wait.
    pub congestion: Box<dyn FnMut(bool) + Send>,
}

const REPLY_MEMORY: &str = "the receiver promises no memory that there is not";

/// The receiver's effect handler.
pub(crate) struct EffectHandler<N: Nic, A> {
    /// NIC that READs and headers are posted to.
    pub nic: N,
    /// Workers, dropped before the memory that they read and write.
    pub workers: Workers,
    /// Memory that slabs lie in.
    pub memory: Memory,
    /// Memory for replies.
    replies: Option<ReplyMemory>,
    /// Peers and their queue pairs.
    pub peers: Peers,
    /// Rings of the applications.
    pub sessions: Sessions<A>,
    /// Requests that wait for room in the NIC.
    pub posting: Posting,
    /// Pieces of memory that are being checked, a list for each READ. A worker may be reading a list.
    pieces: Box<[Vec<Piece>]>,
    congestion: Box<dyn FnMut(bool) + Send>,
}

impl<N: Nic, A: Application> EffectHandler<N, A> {
    /// Makes the effect handler of a receiver with this configuration.
    pub fn new(parts: Parts<N>, config: &jet_core::Config) -> Self {
        let Parts { nic, pool, escape, replies, workers, congestion } = parts;
        let qps_max = nic.limits().qps_max;
        let checks = config.checksums == Checksums::Workers;
        let pieces =
            if checks { config.scatter_max.min(config.fragment_bytes / SLAB_BYTES_U32) } else { 0 } as usize;
        Self {
            nic,
            workers,
            memory: Memory::new(pool, escape, config),
            replies,
            peers: Peers::new(config.peers_max, qps_max),
            sessions: Sessions::new(config.sessions_max),
            posting: Posting::new(config),
            pieces: (0..config.reads_max).map(|_| Vec::with_capacity(pieces)).collect(),
            congestion,
        }
    }

    /// Splits the handler into the waiting requests, and what posting them needs.
    #[inline]
    fn posting(&mut self) -> (&mut Posting, PostingContext<'_, N>) {
        let Self { nic, memory, peers, posting, .. } = self;
        (posting, PostingContext { nic, peers, memory })
    }

    /// Posts READs that the NIC had no room for.
    #[inline]
    pub fn post_waiting_reads(&mut self) {
        let (posting, mut context) = self.posting();
        posting.waiting_reads(&mut context);
    }

    /// Posts headers that the NIC had no room for. Returns `true` if it posted some.
    #[inline]
    pub fn post_waiting_headers(&mut self) -> bool {
        let (posting, mut context) = self.posting();
        posting.waiting_headers(&mut context)
    }

    /// Returns whether something waits for room in the NIC, and nothing will report that there is room.
    pub fn must_try_again(&self) -> bool {
        self.posting.must_try_again(&self.peers)
    }

    /// Shows applications what was delivered, wakes those that sleep, and rings the NIC's doorbell.
    #[inline]
    pub fn publish(&mut self) {
        self.sessions.publish();
        self.nic.flush();
    }
}

impl<N: Nic, A: Application> Commands for EffectHandler<N, A> {
    fn post_srq(&mut self, entry: u32, slab: u32) {
        let header = self.memory.header_sge(entry);
        let payload = self.memory.sge(Run { first: slab, count: 1 }, SLAB_BYTES_U32);
        let posted = self.nic.post_srq(SrqEntry { id: entry, header, payload: Some(payload) });
        // Each entry is posted once until it comes back. A NIC that has no room for all entries that it was
        // asked for cannot be made.
        posted.expect("the NIC's SRQ has room for every entry, and both regions are registered");
    }

    fn post_read(&mut self, peer: PeerId, read: ReadId, remote: Remote, bytes: u32, runs: &[Run]) {
        let (posting, mut context) = self.posting();
        posting.read(Read { peer, id: read, remote, bytes, runs }, &mut context);
    }

    fn send(&mut self, peer: PeerId, header: &HeaderBytes) {
        let (posting, mut context) = self.posting();
        posting.header(peer, header, None, &mut context);
    }

    fn send_reply(&mut self, peer: PeerId, header: &HeaderBytes, slot: u32, bytes: u32) {
        let place = self.replies.as_ref().map(|replies| replies.sge(slot, bytes)).expect(REPLY_MEMORY);
        let (posting, mut context) = self.posting();
        posting.header(peer, header, Some(Reply { slot, place }), &mut context);
    }

    fn take_reply(&mut self, session: SessionId, message: u32, slot: u32, bytes: u32) -> bool {
        let bytes = (bytes as usize).min(SLAB_BYTES);
        let to = self.replies.as_ref().expect(REPLY_MEMORY).slot(slot);
        let Some(from) = self.sessions.reply_cell(session, message) else { return false };
        let touched = [Piece { start: from, bytes }];
        // SAFETY: the cell has 4096 bytes, as the slot has, and lies in another mapping. The application may
        // write the cell meanwhile; then the copy has bytes of either reply, which nobody reads but its own
        // sender. A copy that is half made, because there is no memory for a page of the cell, is not sent.
        unsafe { guarded(&touched, || std::ptr::copy_nonoverlapping(from, to, bytes)) }.is_ok()
    }

    fn disconnect(&mut self, peer: PeerId, reason: ByeReason, message: Option<u64>) {
        if let Some(words) = reason.fault() {
            tracing::warn!(
                peer = peer.0,
                application = self.peers.application(peer),
                message_id = message,
                reason = ?reason,
                "a sender is cut off: {words}"
            );
        }
        if let Some(qp) = self.peers.qp(peer) {
            self.nic.disconnect(qp);
        }
    }

    fn deliver(&mut self, session: SessionId, delivery: &Delivery, user_header: &[u8]) {
        let place = self.memory.place(delivery.slab);
        self.sessions.deliver(session, delivery, place, user_header);
    }

    fn close_session(&mut self, session: SessionId, end: SessionEnd) {
        self.sessions.close(session, end);
    }

    fn report_standstill(&mut self, session: SessionId, standstill: Option<Standstill>) {
        self.sessions.report_standstill(session, standstill);
    }

    fn begin_copy(&mut self, copy: &EscapeCopy) -> Result<(), CopyRefused> {
        let slot = self.sessions.slot(copy.session, copy.slot);
        if slot.is_none_or(|slot| slot.is_pinned(copy.generation)) {
            return Err(CopyRefused::Pinned);
        }
        let bytes = copy.from.count as usize * SLAB_BYTES;
        let (from, to) = (self.memory.run(copy.from, bytes), self.memory.run(copy.to, bytes));
        let job = Job::Copy(CopyJob { id: copy.id.0, from, to, bytes });
        // SAFETY: both runs are mapped for as long as the workers live, which are dropped before the memory.
        // The receiver uses neither run for anything else before it learns of the copy's end. The runs do not
        // overlap: one is in use, the other was free. Nobody writes a run that is in use: no READ, SEND or
        // copy writes to it before it is released.
        unsafe { self.workers.submit(job) }.map_err(|_| CopyRefused::NoRoom)
    }

    fn copy_slab(&mut self, source: u32, target: u32, bytes: u32) -> Result<(), CopyFailed> {
        assert_ne!(source, target, "a slab is copied to another");
        let (from, to) = (self.memory.slab(source), self.memory.slab(target));
        let bytes = (bytes as usize).min(SLAB_BYTES);
        let touched = [Piece { start: from, bytes }, Piece { start: to, bytes }];
        // SAFETY: two different slabs, each within its mapping and at least `bytes` long. Nobody else uses
        // either: the source was just filled and is not delivered, the target comes out of the reserve. A
        // copy that is half made is thrown away.
        let made = unsafe { guarded(&touched, || std::ptr::copy_nonoverlapping(from, to, bytes)) };
        if let Err(page) = made {
            self.memory.note_poisoned(page);
        }
        // Another thread may have touched a lost page of these slabs before, and had it replaced. Then zeros
        // were copied, or the bytes were written to a page that only this process sees.
        self.memory.note_lost();
        let is_lost = |slab: u32| self.memory.is_poisoned(slab);
        match made {
            _ if is_lost(source) => Err(CopyFailed::Source),
            Ok(()) if !is_lost(target) => Ok(()),
            _ => Err(CopyFailed::Target),
        }
    }

    fn mark(&mut self, on: bool) {
        (self.congestion)(on);
    }

    fn begin_check(&mut self, read: ReadId, bytes: u32, runs: &[Run]) {
        // The last job over this list is over: at most one check of each READ is under way.
        let mut pieces = std::mem::take(&mut self.pieces[read.0 as usize]);
        pieces.clear();
        let mut left = bytes;
        for &run in runs {
            let part = left.min(run.count * SLAB_BYTES_U32);
            pieces.push(Piece { start: self.memory.run(run, part as usize), bytes: part as usize });
            left -= part;
        }
        assert_eq!(left, 0, "a READ's runs hold all of its bytes");
        let job = Job::Check(CheckJob { id: read.0, pieces: pieces.as_ptr(), count: pieces.len() });
        self.pieces[read.0 as usize] = pieces;
        // SAFETY: the runs are mapped for as long as the workers live, and hold what the READ brought: the
        // receiver uses them for nothing else before it learns of the check's end. The handler keeps the
        // list, and changes it only for the next check of this READ, of which at most one is under way.
        let submitted = unsafe { self.workers.submit(job) };
        submitted.expect("there are workers, and room for a check of every READ beside every copy");
    }
}

impl<N: Nic, A: Application> Questions for EffectHandler<N, A> {
    fn relocate(&mut self, copy: &EscapeCopy) -> bool {
        let (from, to) = (self.memory.place(copy.from.first), self.memory.place(copy.to.first));
        let slot = self.sessions.slot(copy.session, copy.slot);
        slot.is_some_and(|slot| slot.relocate(copy.generation, from, to).is_ok())
    }

    fn payload(&self, slab: u32, bytes: u32) -> &[u8] {
        // SAFETY: the receiver asks about a slab that a completed SEND filled; it is posted again only with
        // `&mut self`.
        unsafe { self.memory.bytes(Run { first: slab, count: 1 }, bytes) }
    }
}

impl<N: Nic, A: Application> Sums for EffectHandler<N, A> {
    fn crc32c(&mut self, crc: u32, slab: u32, bytes: u32) -> Option<u32> {
        let run = Run { first: slab, count: bytes.div_ceil(SLAB_BYTES_U32).max(1) };
        // SAFETY: the receiver asks about slabs that a completed request filled and that are not posted.
        let data = unsafe { self.memory.bytes(run, bytes) };
        let touched = [Piece { start: data.as_ptr(), bytes: data.len() }];
        // SAFETY: the work only reads.
        let made = unsafe { guarded(&touched, || crc32c::crc32c_append(crc, data)) };
        made.map_err(|page| self.memory.note_poisoned(page)).ok()
    }
}

#[cfg(test)]
mod tests;
