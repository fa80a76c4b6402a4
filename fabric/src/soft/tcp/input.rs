//! State of a connection's reading side between two reads: the frame whose bytes arrive, and bytes that could
//! not be used yet.

use super::frame::HEADER;
use crate::nic::{Qp, Sge, SrqEntry, Status};
use crate::soft::tables::Tables;

/// Bytes of the staging buffer: some 280 messages of 64 bytes in one read.
pub(super) const STAGING_BYTES: usize = 64 << 10;
/// Bytes that one read puts into the staging buffer while READs are outstanding, at most. More of an answer's
/// bytes would be copied twice.
pub(super) const STAGED_WITH_READS: usize = 4 << 10;
/// Bytes read from one connection before another has its turn: one fragment.
pub(super) const RECEIVE_BYTES_PER_TURN: usize = 256 << 10;

/// Body of the frame whose bytes arrive now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// No body: a header is next.
    None,
    /// A SEND, which fills an SRQ entry that was popped.
    Receive { entry: SrqEntry, payload_bytes: u32, done: u32 },
    /// A piece of the answer to this end's oldest READ.
    Read { left: u32 },
    /// A piece that has arrived in full; a `ReadEnd` or a `ReadError` is next.
    ReadWhole,
    /// Bytes that are no longer wanted.
    Discard { left: u32 },
}

/// Reading side of a connection.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) body: Body,
    /// Bytes that were read and not used yet. The unused ones begin at `carried_from`.
    pub(super) carried: Vec<u8>,
    pub(super) carried_from: usize,
    /// Whether the socket may have bytes.
    pub(super) readable: bool,
    /// Whether the peer closed or the socket failed. Nothing more arrives than the socket has now.
    pub(super) hung_up: bool,
    /// Whether a SEND waits for an SRQ entry. Nothing is read meanwhile.
    pub(super) rnr: bool,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            body: Body::None,
            carried: Vec::with_capacity(STAGING_BYTES),
            carried_from: 0,
            readable: false,
            hung_up: false,
            rnr: false,
        }
    }

    pub(super) fn clear(&mut self) {
        self.carried.clear();
        (self.body, self.carried_from) = (Body::None, 0);
        (self.readable, self.hung_up, self.rnr) = (false, false, false);
    }

    /// Gives up the SRQ entry or the READ that an arriving frame was to fill. The rest of the frame's bytes
    /// is discarded.
    pub(super) fn abandon(&mut self, qp: Qp, tables: &mut Tables) {
        self.body = match self.body {
            Body::Receive { entry, payload_bytes, done } => {
                tables.complete_receive(qp, entry.id, 0, Status::Flushed);
                Body::Discard { left: HEADER + payload_bytes - done }
            }
            Body::Read { left } => Body::Discard { left },
            Body::ReadWhole => Body::None,
            body => body,
        };
    }

    /// Returns how many bytes the body still needs.
    pub(super) fn missing_bytes(&self) -> usize {
        match self.body {
            Body::None | Body::ReadWhole => 0,
            Body::Receive { payload_bytes, done, .. } => (HEADER + payload_bytes - done) as usize,
            Body::Read { left } | Body::Discard { left } => left as usize,
        }
    }
}

/// Returns the next stretch of an SRQ entry that a SEND has filled up to `done`. `None` where it is full.
pub(super) fn receive_stretch(entry: &SrqEntry, payload_bytes: u32, done: u32) -> Option<Sge> {
    if done < HEADER {
        let header = entry.header;
        return Some(Sge { offset: header.offset + u64::from(done), bytes: HEADER - done, ..header });
    }
    let landed = done - HEADER;
    let slab = entry.payload.filter(|_| landed < payload_bytes)?;
    Some(Sge { offset: slab.offset + u64::from(landed), bytes: payload_bytes - landed, ..slab })
}
