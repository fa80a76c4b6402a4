//! SENDs of the peer: taken out of the ring and put into SRQ entries.

use super::{Connection, End, Sought};
use crate::nic::Status;
use crate::soft::deadlines::Wait;
use crate::soft::options::PAYLOAD_BYTES_MAX;
use crate::soft::shm::link::{BESIDE_BYTES, Fault, REMOTE_OPERATION, SendItem, source};
use crate::soft::shm::regions::{Piece, RegionPlace};
use crate::soft::tables::Tables;
use crate::unix::ring;
use jet_wire::message::HEADER_BYTES;
use jet_wire::ring::copy_once;
use std::os::fd::AsFd;

/// SENDs that are taken from one connection before the next connection has its turn.
const RECEIVE_BURST: u32 = 32;

/// Memory that a SEND's payload is copied from.
#[derive(Clone, Copy)]
enum Source {
    /// Memory of the link.
    Memory(*const u8),
    /// Region of the peer.
    Region(RegionPlace),
}

impl Connection {
    /// Takes SENDs of the peer into SRQ entries, at most as many as `budget` says. Returns whether there were
    /// any.
    #[inline]
    pub(in crate::soft::shm) fn receive(
        &mut self,
        tables: &mut Tables,
        budget: &mut u32,
    ) -> Result<bool, End> {
        if self.awaits() {
            return Ok(false);
        }
        let mut taken = 0;
        while taken < RECEIVE_BURST && *budget > 0 {
            if tables.srq.is_empty() {
                self.note_rnr(tables);
                break;
            }
            let Some(item) = self.link().incoming.pop_place()? else { break };
            if !self.land(tables, item)? {
                self.link().incoming.put_back();
                // It waits for no entry.
                self.rnr_ends(tables);
                break;
            }
            self.received = self.received.wrapping_add(1);
            taken += 1;
            *budget -= 1;
        }
        if taken > 0 {
            self.rnr_ends(tables);
            let link = self.link();
            link.incoming.advance();
            if link.peer_waits_for_room() {
                ring(self.socket.as_fd());
            }
        }
        Ok(taken > 0)
    }

    fn note_rnr(&mut self, tables: &mut Tables) {
        if !self.rnr && !self.link().incoming.is_empty() {
            self.rnr = true;
            tables.counters.rnr += 1;
            // A connection that its user has ended already has the deadline of its farewell.
            if let Some(timeout) = tables.options.rnr_timeout.filter(|_| !self.closing) {
                tables.deadlines.set(self.qp.index, Wait::Rnr, timeout);
            }
        }
    }

    fn rnr_ends(&mut self, tables: &mut Tables) {
        if std::mem::take(&mut self.rnr) {
            tables.deadlines.clear_if(self.qp.index, Wait::Rnr);
        }
    }

    /// Whether a SEND of the peer waits for an SRQ entry, or for announcements.
    pub(in crate::soft::shm) fn stands_still(&self) -> bool {
        self.rnr || self.awaits()
    }

    /// Copies one SEND into an SRQ entry. `false` where it waits for announcements, and nothing was done.
    ///
    /// `item` is a cell of the ring, which the peer may write at any time. So what is checked is copied out
    /// once. Header and payload are copied where they go, and only looked at there.
    #[inline]
    fn land(&mut self, tables: &mut Tables, item: *const SendItem) -> Result<bool, End> {
        // SAFETY: the ring gave this cell, which stays mapped with the link. It is aligned, and its place,
        // too.
        let place = unsafe { copy_once(&raw const (*item).place) };
        let bytes = place.payload_bytes;
        let from = match place.source {
            source::BESIDE if bytes as usize <= BESIDE_BYTES => {
                // SAFETY: as above; only the address is computed.
                Source::Memory(unsafe { &raw const (*item).beside }.cast())
            }
            source::STAGED if bytes <= PAYLOAD_BYTES_MAX => {
                Source::Memory(self.link().staged_by_peer(place.offset).ok_or(End::PROTOCOL)?)
            }
            source::REGISTERED => match self.translate_peer(tables, place.key, place.offset, bytes)? {
                Sought::At(place) => Source::Region(place),
                Sought::Later => return Ok(false),
                Sought::Nowhere => return Err(End::work(Status::LocalProtection, Fault::PayloadKey)),
            },
            _ => return Err(End::PROTOCOL),
        };
        let entry = tables.srq.pop().expect("seen by the caller");
        let fits = entry.payload.map_or(bytes == 0, |payload| bytes <= payload.bytes);
        if !fits {
            tables.complete_receive(self.qp, entry.id, 0, Status::Length);
            return Err(End::work(Status::Length, Fault::Length));
        }
        let to_header = tables.regions.translate(entry.header);
        let to_payload = match entry.payload {
            Some(payload) => tables.regions.translate(payload),
            None => to_header,
        };
        let (Some(to_header), Some(to_payload)) = (to_header, to_payload) else {
            tables.complete_receive(self.qp, entry.id, 0, Status::LocalProtection);
            return Err(End::work(Status::LocalProtection, Fault::Receiver));
        };
        // SAFETY: both places are registered, as long as their entries say, and this NIC's to write while the
        // entry is its own. The two sides are different regions: a pool that is registered for local writing
        // is never announced. The peer may write the header meanwhile: the bytes are copied as they are.
        unsafe { to_header.copy_from((&raw const (*item).header).cast(), HEADER_BYTES) };
        let landed = match from {
            Source::Memory(from) => {
                // SAFETY: as above. `from` has `bytes` readable bytes. It may be the peer's memory, which the
                // peer can change meanwhile: the bytes are copied as they are and never looked at here.
                unsafe { to_payload.copy_from(from, bytes as usize) };
                Ok(())
            }
            // SAFETY: as above; the stretch was translated with this length.
            Source::Region(from) => unsafe { self.copy_from_peer(from, &[Piece { to: to_payload, bytes }]) },
        };
        if let Err(end) = landed {
            tables.complete_receive(self.qp, entry.id, 0, Status::Other(REMOTE_OPERATION));
            return Err(end);
        }
        tables.counters.bytes_in += HEADER_BYTES as u64 + u64::from(bytes);
        tables.complete_receive(self.qp, entry.id, bytes, Status::Success);
        Ok(true)
    }
}
