//! Arrival of a SEND: a small message, a request for a large message, an answer to a recall of credit, or
//! a message that its sender takes back.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, PeerId};
use crate::pool::{Run, Share};
use jet_wire::message::{ByeReason, FromSender, HeaderBytes, HeaderError, parse_from_sender};

/// A completed SRQ entry.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Peer whose SEND arrived.
    pub peer: PeerId,
    /// SRQ entry that completed.
    pub entry: u32,
    /// Bytes of the header area.
    pub header: &'a HeaderBytes,
    /// Bytes of the slab that were filled.
    pub payload_bytes: u32,
}

impl<P: GrantPolicy> Receiver<P> {
    /// Handles a SEND that arrived (Jet §4.1.1).
    #[inline]
    pub fn handle_receive(&mut self, now_ns: u64, arrival: Arrival<'_>, effects: &mut impl Effects) {
        let slab = self.srq.complete(arrival.entry);
        let peer = arrival.peer.0;
        let Some(version) = self.outbox.receive_version(peer) else {
            self.give_small(slab);
            return;
        };
        // What takes a message back takes no credit: there are no more of them than requests.
        if !arrival.header.is_cancel() && !self.credit.use_one(peer) {
            self.give_small(slab);
            self.expel(peer, ByeReason::CreditExceeded, effects);
            return;
        }
        match parse_from_sender(version, arrival.header, arrival.payload_bytes as usize) {
            Ok(FromSender::Small(small)) => self.small(now_ns, peer, slab, small, effects),
            Ok(FromSender::Request(request)) => {
                self.request(now_ns, peer, request, (slab, arrival.payload_bytes), effects);
                self.give_small(slab);
            }
            Ok(FromSender::CreditReturn(answer)) => {
                self.give_small(slab);
                if self.credit.returned(peer, answer.credit_limit.get()) {
                    self.outbox.mark_dirty(peer);
                } else {
                    self.expel(peer, ByeReason::Malformed, effects);
                }
            }
            Ok(FromSender::Cancel(cancel)) => {
                self.give_small(slab);
                self.handle_cancel(peer, cancel.sequence.get(), effects);
            }
            Err(error) => {
                self.give_small(slab);
                let version = matches!(error, HeaderError::Version { .. });
                self.expel(peer, if version { ByeReason::Version } else { ByeReason::Malformed }, effects);
            }
        }
        self.credit.end_recall_if_used_up(peer);
    }

    /// Handles an SRQ entry that completed without a message, or with an error of its peer. The entry can be
    /// posted again.
    pub fn handle_receive_failed(&mut self, entry: u32) {
        let slab = self.srq.complete(entry);
        self.give_small(slab);
    }

    /// Returns whether the slab lies in memory that was lost since the slab was posted.
    #[inline]
    pub(super) fn is_slab_lost(&self, slab: u32) -> bool {
        self.pool.is_retired(Run { first: slab, count: 1 })
    }

    #[inline]
    pub(super) fn give_small(&mut self, slab: u32) {
        self.pool.give(Run { first: slab, count: 1 }, Share::Srq);
    }
}
