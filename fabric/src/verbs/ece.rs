//! Enhanced connection establishment (ECE): options that two devices of one maker can use beyond the
//! specification.
//!
//! The options travel in RDMA CM's messages. librdmacm handles them for QPs that it makes itself, but the QPs
//! here are made by the NIC. A device without ECE (soft-RoCE) has the maker's number 0, and nothing changes
//! for it.

use super::connection_manager::ConnectionId;
use super::queue_pair::QueuePair;

/// Offers the peer the options of this end's device. Called by the asking end before it asks.
pub(super) fn offer(pair: &QueuePair, id: &ConnectionId) {
    let own = pair.ece();
    if own.vendor_id != 0 {
        id.set_ece(own);
    }
}

/// Sets the ECE options (enhanced connection establishment) that the peer agreed to, or none. The asking end
/// calls it before its QP takes work.
pub(super) fn take_answer(pair: &QueuePair, id: &ConnectionId) {
    let (mut own, peer) = (pair.ece(), id.peer_ece());
    if own.vendor_id != 0 {
        own.options = if peer.vendor_id == own.vendor_id { peer.options } else { 0 };
        pair.set_ece(own);
    }
}

/// Sets the ECE options (enhanced connection establishment) that the peer offered, if it offered any. The
/// accepting end calls it before its QP takes work.
pub(super) fn take_offer(pair: &QueuePair, id: &ConnectionId) {
    let (mut own, peer) = (pair.ece(), id.peer_ece());
    if own.vendor_id != 0 && peer.vendor_id != 0 {
        own.options = if peer.vendor_id == own.vendor_id { peer.options } else { 0 };
        pair.set_ece(own);
    }
}

/// Tells the peer which of its offered options were taken. Called by the accepting end before it accepts.
pub(super) fn answer(pair: &QueuePair, id: &ConnectionId) {
    let own = pair.ece();
    if own.vendor_id != 0 && id.peer_ece().vendor_id != 0 {
        id.set_ece(own);
    }
}
