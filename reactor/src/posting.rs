//! Posting READs and headers to the NIC. A request that the NIC has no room for waits. One that the NIC
//! refuses for any other reason ends its connection.

use crate::memory::Memory;
use crate::peers::Peers;
use jet_core::pool::Run;
use jet_core::{FRAGMENT_SLABS_MAX, PeerId, ReadId, Remote};
use jet_fabric::nic::{Nic, Payload, PostError, Qp, ReadRequest, SendRequest, Sge};
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::HeaderBytes;
use std::collections::VecDeque;

mod waiting_headers;

use jet_wire::planted;
use waiting_headers::WaitingHeaders;

/// A READ to be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read<'a> {
    pub peer: PeerId,
    pub id: ReadId,
    pub remote: Remote,
    pub bytes: u32,
    pub runs: &'a [Run],
}

/// The bytes that a header brings along: those of a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// Slot that the bytes are in.
    pub slot: u32,
    /// Place of the bytes.
    pub place: Sge,
}

/// Bit that the ids of SENDs with replies have; the others are the peers' numbers. The rest is the slot.
const OF_REPLY: u64 = 1 << 32;

/// Returns the slot of the reply that a SEND brought, by its id.
#[inline]
pub(crate) fn slot_of(id: u64) -> Option<u32> {
    if id & OF_REPLY == 0 { None } else { u32::try_from(id ^ OF_REPLY).ok() }
}

/// A READ that the NIC had no room for.
#[derive(Clone, Copy, Debug)]
struct WaitingRead {
    peer: PeerId,
    id: ReadId,
    remote: Remote,
    bytes: u32,
    runs: [Run; FRAGMENT_SLABS_MAX as usize],
    run_count: usize,
}

impl WaitingRead {
    fn new(read: Read<'_>) -> Self {
        let Read { peer, id, remote, bytes, runs: now } = read;
        let mut runs = [Run::default(); FRAGMENT_SLABS_MAX as usize];
        runs[..now.len()].copy_from_slice(now);
        Self { peer, id, remote, bytes, runs, run_count: now.len() }
    }

    fn read(&self) -> Read<'_> {
        let Self { peer, id, remote, bytes, ref runs, run_count } = *self;
        Read { peer, id, remote, bytes, runs: &runs[..run_count] }
    }
}

/// Outcome of an attempt to post a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posted {
    Done,
    /// The NIC has no room now. Outstanding requests make room when they end.
    NoRoom,
    /// The request can never be posted.
    Refused,
}

/// The NIC that takes requests, and the tables from which requests take queue pairs and memory keys.
pub(crate) struct PostingContext<'a, N: Nic> {
    pub nic: &'a mut N,
    pub peers: &'a mut Peers,
    pub memory: &'a Memory,
}

/// Requests that could not be posted yet, and READs that cannot be posted at all.
pub(crate) struct Posting {
    /// READs that can no longer be posted.
    unposted: Vec<ReadId>,
    /// READs that the NIC had no room for, in their order. There are at most as many as READs in flight.
    reads: VecDeque<WaitingRead>,
    /// READs that were posted and have not completed.
    reads_posted: u32,
    /// Peers that the NIC has no room for, in one pass over the READs that wait.
    full: Vec<PeerId>,
    /// Headers that the NIC had no room for. Their number is bounded by the SENDs that each peer may have
    /// under way.
    headers: WaitingHeaders,
    scatter: Vec<Sge>,
}

impl Posting {
    /// Makes an empty set of waiting requests, with room for all that `config` allows.
    pub fn new(config: &jet_core::Config) -> Self {
        Self {
            unposted: Vec::with_capacity(config.reads_max as usize),
            reads: VecDeque::with_capacity(config.reads_max as usize),
            reads_posted: 0,
            full: Vec::with_capacity(config.reads_max as usize),
            headers: WaitingHeaders::new(config.peers_max, config.sends_per_peer_max()),
            scatter: Vec::with_capacity(config.scatter_max as usize),
        }
    }

    /// Posts a READ, now or when the NIC has room. READs of the same peer that wait already go first.
    pub fn read<N: Nic>(&mut self, read: Read<'_>, context: &mut PostingContext<'_, N>) {
        if self.reads.iter().any(|waiting| waiting.peer == read.peer) {
            self.reads.push_back(WaitingRead::new(read));
            return;
        }
        match read_now(read, &mut self.scatter, context) {
            Posted::Done => self.reads_posted += 1,
            Posted::NoRoom => self.reads.push_back(WaitingRead::new(read)),
            Posted::Refused => self.unposted.push(read.id),
        }
    }

    /// Posts READs that the NIC had no room for. A peer whose queue pair is full holds up no other peer's
    /// READs.
    #[inline]
    pub fn waiting_reads<N: Nic>(&mut self, context: &mut PostingContext<'_, N>) {
        if !self.reads.is_empty() {
            self.retry_reads(context);
        }
    }

    #[cold]
    fn retry_reads<N: Nic>(&mut self, context: &mut PostingContext<'_, N>) {
        let Self { reads, reads_posted, full, scatter, unposted, .. } = self;
        full.clear();
        reads.retain(|waiting| {
            if full.contains(&waiting.peer) {
                return true;
            }
            match read_now(waiting.read(), scatter, context) {
                Posted::NoRoom => {
                    full.push(waiting.peer);
                    return true;
                }
                Posted::Refused => unposted.push(waiting.id),
                Posted::Done => *reads_posted += 1,
            }
            false
        });
    }

    /// Gives up what waits for a peer whose connection is over: none of it will be posted.
    pub fn give_up(&mut self, peer: PeerId) {
        let unposted = &mut self.unposted;
        self.reads.retain(|waiting| {
            if waiting.peer == peer {
                unposted.push(waiting.id);
            }
            waiting.peer != peer
        });
        self.headers.drop_of(peer);
    }

    /// Takes a READ that could not be posted.
    #[inline]
    pub fn take_unposted(&mut self) -> Option<ReadId> {
        self.unposted.pop()
    }

    /// Posts a header, alone or with a reply, now or when the NIC has room. Headers of the same peer that
    /// wait already go first, so that a peer's headers keep their order.
    #[inline]
    pub fn header<N: Nic>(
        &mut self,
        peer: PeerId,
        header: &HeaderBytes,
        reply: Option<Reply>,
        context: &mut PostingContext<'_, N>,
    ) {
        let Some(qp) = context.peers.qp(peer) else { return };
        if self.headers.any_of(peer) || header_now(context, qp, peer, header, reply) == Posted::NoRoom {
            self.headers.push(peer, qp, header, reply);
        }
    }

    /// Posts headers that the NIC had no room for. Returns `true` if it posted some.
    #[inline]
    pub fn waiting_headers<N: Nic>(&mut self, context: &mut PostingContext<'_, N>) -> bool {
        self.headers.retry(|peer, qp, header, reply| header_now(context, qp, peer, header, reply))
    }

    /// Returns whether headers wait for room in the NIC.
    pub fn any_waiting_header(&self) -> bool {
        self.headers.any()
    }

    /// Returns whether the driver is to try again without being woken. Where a peer has SENDs under way,
    /// their completions wake the driver; so do those of READs. Where there are none, the NIC is behind with
    /// its work, and nothing wakes anybody.
    pub fn must_try_again(&self, peers: &Peers) -> bool {
        (!self.reads.is_empty() && self.reads_posted == 0)
            || self.headers.any_for(|peer| peers.sends(peer) == 0)
    }

    /// Counts the completion of a READ that was posted.
    #[inline]
    pub fn read_completed(&mut self) {
        debug_assert!(self.reads_posted > 0, "a READ completes once");
        self.reads_posted = self.reads_posted.saturating_sub(1);
    }
}

fn read_now<N: Nic>(read: Read<'_>, scatter: &mut Vec<Sge>, context: &mut PostingContext<'_, N>) -> Posted {
    let Some(qp) = context.peers.qp(read.peer) else { return Posted::Refused };
    scatter.clear();
    let mut left = read.bytes;
    for &run in read.runs {
        let part = left.min(run.count * SLAB_BYTES_U32);
        scatter.push(context.memory.sge(run, part));
        left -= part;
    }
    let Remote { address, key } = read.remote;
    let result = context.nic.post_read(qp, ReadRequest { id: u64::from(read.id.0), address, key, scatter });
    after_posting(context.nic, qp, read.peer, result)
}

fn header_now<N: Nic>(
    context: &mut PostingContext<'_, N>,
    qp: Qp,
    peer: PeerId,
    header: &HeaderBytes,
    reply: Option<Reply>,
) -> Posted {
    let request = match reply {
        None => SendRequest { id: u64::from(peer.0), header, payload: Payload::None },
        Some(Reply { slot, place }) => {
            SendRequest { id: OF_REPLY | u64::from(slot), header, payload: Payload::Registered(place) }
        }
    };
    let result = context.nic.post_send(qp, request);
    if result.is_ok() {
        context.peers.send_posted(peer);
    }
    after_posting(context.nic, qp, peer, result)
}

/// Decides the fate of a request from the NIC's result. Where the request cannot be posted for good, ends its
/// connection.
fn after_posting<N: Nic>(nic: &mut N, qp: Qp, peer: PeerId, result: Result<(), PostError>) -> Posted {
    match result {
        Ok(()) => Posted::Done,
        Err(PostError::QueueFull) if planted!(DepthIsDeath) => {
            nic.disconnect(qp);
            Posted::Refused
        }
        Err(PostError::QueueFull) => Posted::NoRoom,
        // The connection's end is on its way. The receiver learns of the failed READs before that.
        Err(PostError::Stale) => Posted::Refused,
        // A connection on which a request cannot be posted would keep its sender waiting for ever.
        Err(error @ (PostError::LocalProtection | PostError::Limit)) => {
            tracing::warn!(
                peer = peer.0,
                "a sender is disconnected, since the NIC takes no request to it: {error}"
            );
            nic.disconnect(qp);
            Posted::Refused
        }
    }
}

#[cfg(test)]
mod tests;
