//! Enhanced connection establishment (ECE): what two devices of one maker can do with each other beyond the
//! specification. Their options travel in RDMA CM's messages. librdmacm sees to that for QPs that it makes
//! itself, which these are not.
//!
//! A device that knows nothing of it (soft-RoCE) has no maker's number, and everything stays as it is.

use super::connection_manager::ConnectionId;
use super::queue_pair::QueuePair;

/// The asking end, before it asks: the peer is told what this end's device can do.
pub(super) fn offer(pair: &QueuePair, id: &ConnectionId) {
    let own = pair.ece();
    if own.vendor_id != 0 {
        id.tell_ece(own);
    }
}

/// The asking end, before its QP begins to work: what the peer agreed to, or nothing.
pub(super) fn take_answer(pair: &QueuePair, id: &ConnectionId) {
    let (mut own, peer) = (pair.ece(), id.peer_ece());
    if own.vendor_id != 0 {
        own.options = if peer.vendor_id == own.vendor_id { peer.options } else { 0 };
        pair.set_ece(own);
    }
}

/// The accepting end, before its QP begins to work: what the peer offered, if it offered anything.
pub(super) fn take_offer(pair: &QueuePair, id: &ConnectionId) {
    let (mut own, peer) = (pair.ece(), id.peer_ece());
    if own.vendor_id != 0 && peer.vendor_id != 0 {
        own.options = if peer.vendor_id == own.vendor_id { peer.options } else { 0 };
        pair.set_ece(own);
    }
}

/// The accepting end, before it accepts: the peer is told what its offer came to.
pub(super) fn answer(pair: &QueuePair, id: &ConnectionId) {
    let own = pair.ece();
    if own.vendor_id != 0 && id.peer_ece().vendor_id != 0 {
        id.tell_ece(own);
    }
}
