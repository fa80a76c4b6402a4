//! Carries out what the receiver says: posts to the NIC, writes to sessions' rings.

use super::command::{NewSession, SessionTicket};
use super::epoll::Epoll;
use super::posting::{WaitingHeader, WaitingRead};
use crate::daemon::poison::{Piece, Poisoned, guarded, take_lost};
use crate::daemon::workers::{CheckJob, CopyJob, Done, Job, Workers};
use crate::say;
use jet_core::pool::Run;
use jet_core::{
    Checksums, Commands, Copy, CopyFailed, CopyRefused, PeerId, Questions, ReadId, Remote, SessionEnd,
    SessionId, Standstill, StandstillStage, Sums,
};
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{MemoryKey, Nic, Qp, Sge, SrqEntry};
use jet_fabric::unix::{Doorbell, Rung};
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use jet_wire::segment::{DELIVERY_USER_HEADER_MAX, DaemonEnd, Delivery, Notice, Place};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

const HEADER_BYTES_U32: u32 = 128;
const _: () = assert!(HEADER_BYTES_U32 as usize == HEADER_BYTES);

/// One application as the driver knows it.
pub struct AppSession {
    /// Its end of the segment.
    pub segment: DaemonEnd,
    /// Where its releases wake us, and our deliveries wake it.
    pub doorbell: Doorbell,
    /// Delivered to, or told something, since the last publish.
    dirty: bool,
    ended: Option<oneshot::Sender<SessionEnd>>,
    standstill: watch::Sender<Option<Standstill>>,
    /// Tells its notices apart.
    notices: u16,
    /// Keeps the segment mapped.
    _memory: Arc<SharedMemory>,
}

/// The memory that the NIC fills.
pub struct PoolMemory {
    /// Slabs.
    pub pool: Arc<SharedMemory>,
    /// Header areas, one an SRQ entry.
    pub headers: Arc<SharedMemory>,
    /// The slabs' key.
    pub pool_key: MemoryKey,
    /// The header areas' key.
    pub headers_key: MemoryKey,
}

/// What escape needs: memory outside the cache, and the NIC's own knobs.
pub struct EscapeHands {
    /// Escape memory and its key; none where it could not be had or is off.
    pub memory: Option<(Arc<SharedMemory>, MemoryKey)>,
    /// Told whether congestion is to be marked by the NIC; must not wait.
    pub congestion: Box<dyn FnMut(bool) + Send>,
}

/// The receiver's hands.
pub struct Hands<N: Nic> {
    /// The NIC.
    pub nic: N,
    /// Dropped before the memory that they read and write.
    workers: Workers,
    escape: EscapeHands,
    memory: PoolMemory,
    /// What is being checked of each READ; a worker may be reading the list.
    pieces: Box<[Vec<Piece>]>,
    pool_slabs: u32,
    escape_slabs: u32,
    pub(super) qps: Box<[Option<Qp>]>,
    /// Peer by the QP's index, with the QP's generation.
    peers: Box<[Option<(u32, PeerId)>]>,
    sessions: Box<[Option<AppSession>]>,
    /// The ticket of each number's newest session; 0: none had it yet.
    tickets: Box<[u64]>,
    open: Vec<u32>,
    dirty: Vec<u32>,
    faulted: Vec<SessionId>,
    /// Slabs that cannot be read or written any more, and that the receiver was not told of.
    poisoned: Vec<Run>,
    /// READs that can no more be posted.
    pub(super) unposted_reads: Vec<ReadId>,
    /// READs that the NIC had no room for, in their order; no more than there are READs at once.
    pub(super) waiting_reads: VecDeque<WaitingRead>,
    /// Headers that the NIC had no room for, in their order; bounded by what peers may have on the way.
    pub(super) unsent: VecDeque<WaitingHeader>,
    pub(super) scatter: Vec<Sge>,
    /// What the reactor sleeps on.
    pub epoll: Epoll,
    next_ticket: u64,
}

impl<N: Nic> Hands<N> {
    /// For a receiver of this configuration.
    pub fn new(
        nic: N,
        memory: PoolMemory,
        workers: Workers,
        escape: EscapeHands,
        config: &jet_core::Config,
        epoll: Epoll,
    ) -> Self {
        let qps = nic.limits().qps_max;
        let shape = config.escape_shape();
        let checks = config.checksums == Checksums::Workers;
        let pieces =
            if checks { config.scatter_max.min(config.fragment_bytes / SLAB_BYTES_U32) } else { 0 } as usize;
        Self {
            nic,
            workers,
            escape,
            memory,
            pieces: (0..config.reads_max).map(|_| Vec::with_capacity(pieces)).collect(),
            pool_slabs: config.pool_slabs,
            escape_slabs: shape.replace_slabs + shape.memory_slabs,
            qps: vec![None; config.peers_max as usize].into(),
            peers: vec![None; qps as usize].into(),
            sessions: (0..config.sessions_max).map(|_| None).collect(),
            tickets: vec![0; config.sessions_max as usize].into(),
            open: Vec::with_capacity(config.sessions_max as usize),
            dirty: Vec::with_capacity(config.sessions_max as usize),
            faulted: Vec::with_capacity(config.sessions_max as usize),
            poisoned: Vec::new(),
            unposted_reads: Vec::with_capacity(config.reads_max as usize),
            waiting_reads: VecDeque::with_capacity(config.reads_max as usize),
            unsent: VecDeque::with_capacity((config.peers_max * config.sends_per_peer_max()) as usize),
            scatter: Vec::with_capacity(config.scatter_max as usize),
            epoll,
            next_ticket: 1,
        }
    }

    /// The peer of a QP.
    pub fn peer(&self, qp: Qp) -> Option<PeerId> {
        let (generation, peer) = (*self.peers.get(qp.index as usize)?)?;
        (generation == qp.generation).then_some(peer)
    }

    /// From now on this QP is this peer.
    pub fn bind(&mut self, qp: Qp, peer: PeerId) {
        self.peers[qp.index as usize] = Some((qp.generation, peer));
        self.qps[peer.0 as usize] = Some(qp);
    }

    /// This QP is gone.
    pub fn unbind(&mut self, qp: Qp) -> Option<PeerId> {
        let peer = self.peer(qp)?;
        self.peers[qp.index as usize] = None;
        self.qps[peer.0 as usize] = None;
        Some(peer)
    }

    /// Peers that are bound to a QP.
    pub fn bound(&self) -> usize {
        self.qps.iter().flatten().count()
    }

    /// The header of a SEND that arrived in this entry.
    pub fn header(&self, entry: u32) -> &HeaderBytes {
        let at = entry as usize * HEADER_BYTES;
        assert!(at + HEADER_BYTES <= self.memory.headers.bytes(), "entry {entry} has no header area");
        // SAFETY: within a mapping that `self` keeps, as just checked. The entry is completed, so the NIC no longer writes
        // there until it is posted again, which needs `&mut self`. Applications do not map the header area. Header areas are
        // 128 bytes each in page-aligned memory.
        unsafe { &*self.memory.headers.base().add(at).cast::<HeaderBytes>() }
    }

    /// Lets an application in under the number that the receiver gave it.
    ///
    /// # Errors
    /// What the system says about watching its doorbell.
    pub fn attach(&mut self, session: SessionId, new: NewSession) -> std::io::Result<u64> {
        self.epoll.add_session(&new.doorbell, session.0)?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.sessions[session.0 as usize] = Some(AppSession {
            segment: new.segment,
            doorbell: new.doorbell,
            dirty: false,
            ended: Some(new.ended),
            standstill: new.standstill,
            notices: 0,
            _memory: new.memory,
        });
        self.tickets[session.0 as usize] = ticket;
        self.open.push(session.0);
        Ok(ticket)
    }

    /// Whether a session is, or was, the newest of its number.
    pub fn has_had(&self, ticket: SessionTicket) -> bool {
        self.tickets[ticket.session.0 as usize] == ticket.ticket
    }

    /// The number of the n-th open session.
    pub fn open_session(&self, position: usize) -> Option<SessionId> {
        self.open.get(position).map(|&session| SessionId(session))
    }

    /// An open session.
    pub fn session(&mut self, session: SessionId) -> Option<&mut AppSession> {
        self.sessions[session.0 as usize].as_mut()
    }

    /// A session whose delivery ring turned out to be broken.
    pub fn take_faulted(&mut self) -> Option<SessionId> {
        self.faulted.pop()
    }

    /// Slabs that cannot be read or written any more.
    #[inline]
    pub fn take_poisoned(&mut self) -> Option<Run> {
        self.poisoned.pop()
    }

    /// Takes note of what was lost and replaced, whoever touched it.
    #[inline]
    pub fn note_lost(&mut self) {
        while let Some(page) = take_lost() {
            self.note_poisoned(page);
        }
    }

    /// The slabs on a page are lost. What of the page lies behind the last slab is nobody's: memory ends on a whole page.
    #[cold]
    pub fn note_poisoned(&mut self, page: Poisoned) {
        let end = page.start.saturating_add(page.bytes);
        let regions = [
            (Some(&self.memory.pool), 0, self.pool_slabs),
            (self.escape.memory.as_ref().map(|memory| &memory.0), self.pool_slabs, self.escape_slabs),
        ];
        for (memory, first, slabs) in regions {
            let Some(memory) = memory else { continue };
            let base = memory.base() as usize;
            let used_bytes = (slabs as usize * SLAB_BYTES).min(memory.bytes());
            let (from, to) = (page.start.max(base), end.min(base + used_bytes));
            if from < to {
                let slab = |address: usize| {
                    u32::try_from((address - base) / SLAB_BYTES).expect("slabs are counted in 32 bits")
                };
                let count = slab(to - 1) - slab(from) + 1;
                self.poisoned.push(Run { first: first + slab(from), count });
                say!(
                    "jetd: the hardware lost memory (a machine check, see dmesg): {} bytes of {} are not used any more, and \
                     messages in them end as corrupt",
                    count as usize * SLAB_BYTES,
                    if first == 0 { "the pool" } else { "escape memory" },
                );
            }
        }
    }

    /// A READ that could not be posted.
    pub fn take_unposted_read(&mut self) -> Option<ReadId> {
        self.unposted_reads.pop()
    }

    /// Takes the rings of a session's doorbell. A closed one is not watched any more: the control plane sees the same
    /// application go and closes the session.
    pub fn silence(&mut self, session: SessionId) {
        if let Some(app) = &self.sessions[session.0 as usize]
            && app.doorbell.clear() == Rung::Closed
        {
            self.epoll.remove(&app.doorbell);
        }
    }

    /// Shows applications what was delivered and wakes those that sleep; rings the NIC's doorbell.
    pub fn publish(&mut self) {
        while let Some(session) = self.dirty.pop() {
            let Some(app) = self.sessions[session as usize].as_mut() else { continue };
            app.dirty = false;
            app.segment.deliveries.publish();
            if app.segment.deliveries.wake_needed() {
                app.doorbell.ring();
            }
        }
        self.nic.flush();
    }

    /// Every session says "about to sleep". `false`: one of them has releases waiting.
    pub fn prepare_sleep(&mut self) -> bool {
        for position in 0..self.open.len() {
            let session = self.open[position] as usize;
            let Some(app) = self.sessions[session].as_mut() else { continue };
            if !app.segment.releases.prepare_sleep() {
                self.wake_up(position);
                return false;
            }
        }
        true
    }

    /// Takes "about to sleep" back for the first so many sessions.
    pub fn wake_up(&mut self, sessions: usize) {
        for position in 0..sessions.min(self.open.len()) {
            if let Some(app) = self.sessions[self.open[position] as usize].as_mut() {
                app.segment.releases.awake();
            }
        }
    }

    /// Open sessions.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    pub(super) fn sge(&self, run: Run, bytes: u32) -> Sge {
        let (key, slab) = match run.first.checked_sub(self.pool_slabs) {
            None => (self.memory.pool_key, run.first),
            Some(slab) => (self.escape_memory().1, slab),
        };
        Sge { key, offset: u64::from(slab) * SLAB_BYTES as u64, bytes }
    }

    /// Escape memory, which the receiver names only after it was told that there is some.
    fn escape_memory(&self) -> &(Arc<SharedMemory>, MemoryKey) {
        self.escape.memory.as_ref().expect("slabs of escape memory are used only where there is some")
    }

    /// First byte and bytes of the pool's mapping, and of escape memory's.
    #[cfg(test)]
    pub(super) fn mappings(&self) -> [(usize, usize); 2] {
        [&self.memory.pool, &self.escape_memory().0].map(|memory| (memory.base() as usize, memory.bytes()))
    }

    /// Where a slab lies: the pool's are numbered first, those of escape memory behind them.
    fn slab(&self, slab: u32) -> *mut u8 {
        self.run(Run { first: slab, count: 1 }, SLAB_BYTES)
    }

    /// Where a run lies, all of which is in one of the two memories, and has room for so many bytes.
    ///
    /// # Panics
    /// Where the receiver names what is not there: nothing outside is ever read or written.
    fn run(&self, run: Run, bytes: usize) -> *mut u8 {
        let (memory, index, slabs) = match run.first.checked_sub(self.pool_slabs) {
            None => (&self.memory.pool, run.first, self.pool_slabs as usize),
            Some(index) => (&self.escape_memory().0, index, self.escape_slabs as usize),
        };
        let (at, room) = (index as usize * SLAB_BYTES, run.count as usize * SLAB_BYTES);
        let end = at + room;
        assert!(
            bytes <= room && end <= slabs * SLAB_BYTES && end <= memory.bytes(),
            "{bytes} bytes of {run:?} are neither in the pool nor in escape memory"
        );
        // SAFETY: within the mapping, as just checked.
        unsafe { memory.base().add(at) }
    }

    fn place(&self, slab: u32) -> Place {
        match slab.checked_sub(self.pool_slabs) {
            None => Place { slab, escaped: false },
            Some(index) => Place { slab: index, escaped: true },
        }
    }

    /// The next job of a worker that is over.
    #[inline]
    pub fn take_done(&mut self) -> Option<Done> {
        self.workers.take_done()
    }

    /// From now on a worker's job that is over wakes the reactor. `false`: one is over already.
    pub fn arm_workers(&self) -> bool {
        self.workers.arm()
    }
}

impl<N: Nic> Commands for Hands<N> {
    fn post_srq(&mut self, entry: u32, slab: u32) {
        let header = Sge {
            key: self.memory.headers_key,
            offset: u64::from(entry) * u64::from(HEADER_BYTES_U32),
            bytes: HEADER_BYTES_U32,
        };
        let payload = self.sge(Run { first: slab, count: 1 }, SLAB_BYTES_U32);
        let posted = self.nic.post_srq(SrqEntry { id: entry, header, payload: Some(payload) });
        // Each entry is posted once until it comes back, and a NIC has room for all that it was asked to have, or is not made.
        posted.expect("the NIC's SRQ has room for every entry, and both regions are registered");
    }

    fn post_read(&mut self, peer: PeerId, read: ReadId, remote: Remote, bytes: u32, runs: &[Run]) {
        self.post_or_keep_read(peer, read, remote, bytes, runs);
    }

    fn send(&mut self, peer: PeerId, header: &HeaderBytes) {
        self.post_or_keep_header(peer, header);
    }

    fn disconnect(&mut self, peer: PeerId) {
        if let Some(qp) = self.qps[peer.0 as usize] {
            self.nic.disconnect(qp);
        }
    }

    fn deliver(&mut self, session: SessionId, delivery: &Delivery, user_header: &[u8]) {
        let place = self.place(delivery.slab);
        let Some(app) = self.sessions[session.0 as usize].as_mut() else { return };
        if user_header.len() > DELIVERY_USER_HEADER_MAX {
            app.segment.write_user_header(delivery.message, user_header);
        }
        if delivery.bytes > 0 || delivery.kind == jet_wire::segment::delivery_kind::SLICES {
            let slot = app.segment.slot(delivery.slot).expect("the receiver's slots are the segment's");
            slot.publish(delivery.slot_generation(), place);
        }
        // Slots bound what an honest application can have unread, so a full ring is as broken as a wild index.
        if app.segment.deliveries.push(*delivery).is_err() && !self.faulted.contains(&session) {
            self.faulted.push(session);
        }
        if !app.dirty {
            app.dirty = true;
            self.dirty.push(session.0);
        }
    }

    fn close_session(&mut self, session: SessionId, end: SessionEnd) {
        self.open.retain(|&open| open != session.0);
        if let Some(mut app) = self.sessions[session.0 as usize].take() {
            self.epoll.remove(&app.doorbell);
            if let Some(ended) = app.ended.take() {
                // Nobody listens where the control plane itself ended the session.
                let _ = ended.send(end);
            }
        }
    }

    fn tell_standstill(&mut self, session: SessionId, standstill: Option<Standstill>) {
        let Some(app) = self.sessions[session.0 as usize].as_mut() else { return };
        app.notices = app.notices.wrapping_add(1);
        let (number, releases) = (app.notices, app.segment.releases.taken());
        app.segment.put_notice(standstill.map(|Standstill { limit, stage }| Notice {
            limit,
            lasting: stage != StandstillStage::First,
            number,
            releases,
        }));
        app.standstill.send_replace(standstill);
        if !app.dirty {
            app.dirty = true;
            self.dirty.push(session.0);
        }
    }

    fn begin_copy(&mut self, copy: &Copy) -> Result<(), CopyRefused> {
        let app = self.sessions[copy.session.0 as usize].as_ref();
        let slot = app.and_then(|app| app.segment.slot(copy.slot));
        if slot.is_none_or(|slot| slot.is_pinned(copy.generation)) {
            return Err(CopyRefused::Pinned);
        }
        let bytes = copy.from.count as usize * SLAB_BYTES;
        let (from, to) = (self.run(copy.from, bytes), self.run(copy.to, bytes));
        let job = Job::Copy(CopyJob { id: copy.id.0, from, to, bytes });
        // SAFETY: both runs are mapped for as long as the workers live, which are dropped before the memory. The receiver
        // uses neither for anything else before it has heard of the copy's end, and they do not overlap: the one is in use,
        // the other was free. What is in use nobody writes: no READ, SEND or copy is told to before it is released.
        unsafe { self.workers.submit(job) }.map_err(|_| CopyRefused::NoRoom)
    }

    fn copy_slab(&mut self, source: u32, target: u32, bytes: u32) -> Result<(), CopyFailed> {
        assert_ne!(source, target, "a slab is copied to another");
        let (from, to) = (self.slab(source), self.slab(target));
        let bytes = (bytes as usize).min(SLAB_BYTES);
        let touched = [Piece { start: from, bytes }, Piece { start: to, bytes }];
        // SAFETY: two different slabs, each within its mapping and at least `bytes` long; nobody else uses either: the
        // one was just filled and is not delivered, the other comes out of the reserve. A copy that is half made is thrown
        // away.
        let made = unsafe { guarded(&touched, || std::ptr::copy_nonoverlapping(from, to, bytes)) };
        if let Err(page) = made {
            self.note_poisoned(page);
        }
        // Somebody else may have met it before, and had it replaced: then zeros were copied, or they were put where nobody
        // else finds them.
        self.note_lost();
        let is_lost =
            |slab: u32| self.poisoned.iter().any(|run| run.first <= slab && slab - run.first < run.count);
        match made {
            _ if is_lost(source) => Err(CopyFailed::Source),
            Ok(()) if !is_lost(target) => Ok(()),
            _ => Err(CopyFailed::Target),
        }
    }

    fn mark(&mut self, on: bool) {
        (self.escape.congestion)(on);
    }

    fn begin_check(&mut self, read: ReadId, bytes: u32, runs: &[Run]) {
        // The last job over this list is over: at most one check of each READ is under way.
        let mut pieces = std::mem::take(&mut self.pieces[read.0 as usize]);
        pieces.clear();
        let mut left = bytes;
        for &run in runs {
            let part = left.min(run.count * SLAB_BYTES_U32);
            pieces.push(Piece { start: self.run(run, part as usize), bytes: part as usize });
            left -= part;
        }
        assert_eq!(left, 0, "a READ's runs hold all of its bytes");
        let job = Job::Check(CheckJob { id: read.0, pieces: pieces.as_ptr(), count: pieces.len() });
        self.pieces[read.0 as usize] = pieces;
        // SAFETY: the runs are mapped for as long as the workers live, and hold what the READ brought: the receiver uses them
        // for nothing else before it has heard of the check's end. The list is kept beside, and changed by the next check of
        // this READ, of which there is at most one under way.
        let submitted = unsafe { self.workers.submit(job) };
        submitted.expect("there are workers, and room for a check of every READ beside every copy");
    }
}

impl<N: Nic> Questions for Hands<N> {
    fn relocate(&mut self, copy: &Copy) -> bool {
        let (from, to) = (self.place(copy.from.first), self.place(copy.to.first));
        let app = self.sessions[copy.session.0 as usize].as_ref();
        let slot = app.and_then(|app| app.segment.slot(copy.slot));
        slot.is_some_and(|slot| slot.relocate(copy.generation, from, to).is_ok())
    }

    fn payload(&self, slab: u32, bytes: u32) -> &[u8] {
        let start = self.run(Run { first: slab, count: 1 }, bytes as usize);
        // SAFETY: the slab lies within one of the two mappings, which `self` keeps and no application can write. The receiver
        // asks about a slab that a completed SEND filled; it is posted again only with `&mut self`.
        unsafe { std::slice::from_raw_parts(start, bytes as usize) }
    }
}

impl<N: Nic> Sums for Hands<N> {
    fn crc32c(&mut self, crc: u32, slab: u32, bytes: u32) -> Option<u32> {
        let count = bytes.div_ceil(SLAB_BYTES_U32).max(1);
        let start = self.run(Run { first: slab, count }, bytes as usize);
        // SAFETY: the run lies within one of the two mappings, which `self` keeps and nobody else can write. The receiver
        // asks about slabs that a completed request filled and that are not posted.
        let data = unsafe { std::slice::from_raw_parts(start, bytes as usize) };
        let touched = [Piece { start, bytes: data.len() }];
        // SAFETY: it reads only.
        let made = unsafe { guarded(&touched, || crc32c::crc32c_append(crc, data)) };
        made.map_err(|page| self.note_poisoned(page)).ok()
    }
}
