//! Reading from a connection's stream: frames that may be cut anywhere, and their bytes, straight into slabs.
//!
//! The system call that reads the bytes of a begun piece of a READ puts them into their final places. All
//! else goes through a staging buffer that all connections share. So many small SENDs come with one read, and
//! the next header comes with a large READ's tail. Staged bytes that cannot be used yet are kept by the
//! connection until they can: a part of a frame, SENDs without an SRQ entry, or the beginning of what was
//! pushed and has no READ yet.
//!
//! A SEND takes an SRQ entry only when all of it is here. The entries are shared by all connections, so a
//! peer that begins SENDs and does not end them takes nothing from the others.

use super::pushes::{Kept, Landing, Offer};
use super::{Connection, End, Phase, Served};
use crate::nic::{DisconnectReason, Event, PRIVATE_DATA_MAX, PrivateData, Sge, Status};
use crate::soft::deadlines::Wait;
use crate::soft::options::SCATTER_MAX;
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::tcp::frame::{FRAME_BYTES, Fault, Frame, HEADER, SEND_BYTES_MAX};
use crate::soft::tcp::input::{Body, RECEIVE_BYTES_PER_TURN, STAGED_WITH_READS, STAGING_BYTES};
use crate::soft::tcp::socket::{self, IoOutcome, IoVec};

/// Length of the longest frame of which a part is kept between two reads: a SEND.
const CARRIED_FRAME_MAX: usize = FRAME_BYTES + SEND_BYTES_MAX as usize;
const _: () = assert!(PRIVATE_DATA_MAX <= SEND_BYTES_MAX as usize, "no frame of a handshake is longer");
/// Most stretches of one read: a READ's scatter list, and the staging buffer.
const STRETCHES_MAX: usize = SCATTER_MAX + 1;

impl Connection {
    /// Reads what the socket has and acts on it, for one turn. Returns whether it had any bytes.
    pub(in crate::soft::tcp) fn receive(
        &mut self,
        tables: &mut Tables,
        staging: &mut [u8; STAGING_BYTES],
    ) -> Result<bool, End> {
        if self.input.is_held() {
            self.resume(tables)?;
        }
        if self.input.rnr && self.is_lost() {
            // The peer is lost, so it no longer waits for these SENDs to be taken.
            return Err(End::of(DisconnectReason::Peer));
        }
        let mut budget = RECEIVE_BYTES_PER_TURN;
        while self.input.readable && !self.input.is_held() && budget > 0 {
            match self.read_once(tables, staging)? {
                IoOutcome::Bytes(bytes) => {
                    budget = budget.saturating_sub(bytes);
                    if self.input.rnr && self.is_lost() {
                        return Err(End::of(DisconnectReason::Peer));
                    }
                }
                IoOutcome::Blocked => {
                    self.input.readable = false;
                    self.read_dry()?;
                }
                IoOutcome::End => return Err(End::of(DisconnectReason::Peer)),
                IoOutcome::Failed(errno) => return Err(End::of_errno(errno)),
            }
        }
        Ok(budget < RECEIVE_BYTES_PER_TURN)
    }

    /// Continues with the bytes that were kept while there was no SRQ entry, or no READ for what was pushed.
    fn resume(&mut self, tables: &mut Tables) -> Result<(), End> {
        if self.input.rnr && matches!(self.phase, Phase::Connected) {
            if tables.srq.is_empty() {
                return Ok(());
            }
            tables.deadlines.clear_if(self.qp.index, Wait::Rnr);
        }
        (self.input.rnr, self.input.push_waits) = (false, false);
        let carried = std::mem::take(&mut self.input.carried);
        let from = self.input.carried_from;
        let result = self.take(tables, &carried[from..]);
        self.input.carried = carried;
        self.input.carried_from = from + result?;
        if !self.input.is_held() {
            self.input.carried.drain(..self.input.carried_from);
            self.input.carried_from = 0;
        }
        Ok(())
    }

    /// Makes one read, and acts on what it brought.
    fn read_once(
        &mut self,
        tables: &mut Tables,
        staging: &mut [u8; STAGING_BYTES],
    ) -> Result<IoOutcome, End> {
        let mut stretches = [IoVec { iov_base: std::ptr::null_mut(), iov_len: 0 }; STRETCHES_MAX];
        let (mut count, mut direct) = (0, 0);
        let mut add = |base: *mut u8, bytes: usize| {
            stretches[count] = IoVec { iov_base: base.cast(), iov_len: bytes };
            count += 1;
        };
        match self.input.body {
            Body::None | Body::ReadWhole | Body::Discard { .. } => {}
            Body::Read { left } => {
                let slot = self.read_arriving().expect("a body has its READ");
                let mut walk = *tables.reads.get(slot);
                let mut open = left;
                while open > 0 {
                    let stretch = walk.next_stretch(open).expect("a piece fits its READ");
                    let Some(base) = tables.regions.translate(stretch) else {
                        return Err(Self::scatter_lost());
                    };
                    add(base, stretch.bytes as usize);
                    walk.advance(stretch.bytes);
                    open -= stretch.bytes;
                }
                direct = left as usize;
            }
        }
        // Parts of a frame are kept only where no body is open.
        let part = self.input.carried.len();
        staging[..part].copy_from_slice(&self.input.carried);
        self.input.carried.clear();
        let are_long = self.promises.are_expected() || self.read_arriving().is_some();
        let room = match self.input.body {
            Body::Discard { left } => left as usize + STAGED_WITH_READS,
            _ if are_long => STAGED_WITH_READS,
            _ => STAGING_BYTES,
        };
        let staged = part..(part + room).min(STAGING_BYTES);
        add(staging[staged.clone()].as_mut_ptr(), staged.len());
        // SAFETY: the stretches lie in registered memory that was looked up just now and stays mapped while
        // it is in the table, and in the staging buffer, which is borrowed mutably. Nobody holds references
        // into slabs.
        let outcome = unsafe { socket::read(self.socket(), &stretches[..count]) };
        let IoOutcome::Bytes(bytes) = outcome else {
            // Nothing was read, so the part is kept again.
            self.input.carried.extend_from_slice(&staging[..part]);
            return Ok(outcome);
        };
        if bytes < direct + staged.len() {
            // A short read has emptied the socket; the epoll reports when more arrives.
            self.input.readable = self.input.hung_up;
        }
        self.filled(tables, bytes.min(direct));
        if direct == 0 && bytes == staged.len() {
            // An offer among them says otherwise.
            self.promises.note_others();
        }
        let arrived = &staging[..part + bytes.saturating_sub(direct)];
        let used = self.take(tables, arrived)?;
        let left = &arrived[used..];
        assert!(self.input.is_held() || left.len() < CARRIED_FRAME_MAX, "only a part of a frame is left");
        self.input.carried.extend_from_slice(left);
        self.input.carried_from = 0;
        Ok(outcome)
    }

    /// Makes the end of a connection whose READ was to fill memory that was deregistered.
    fn scatter_lost() -> End {
        let status = Status::LocalProtection;
        End { reason: DisconnectReason::WorkRequest(status), send: None, read: Some(status) }
    }

    /// Counts bytes of the arriving frame's body that were written to their places, and finishes the body
    /// where it is complete.
    fn filled(&mut self, tables: &mut Tables, bytes: usize) {
        let bytes = u32::try_from(bytes).expect("bodies are short");
        match &mut self.input.body {
            Body::None | Body::ReadWhole => {}
            Body::Read { left } => {
                *left -= bytes;
                let whole = *left == 0;
                self.reads_moved |= bytes > 0;
                let slot = self.read_arriving().expect("a body has its READ");
                tables.reads.get_mut(slot).advance(bytes);
                tables.counters.bytes_in += u64::from(bytes);
                if whole {
                    self.input.body = Body::ReadWhole;
                }
            }
            Body::Discard { left } => {
                *left -= bytes;
                // What a READ waits for comes behind pushed bytes, which the room bounds.
                self.reads_moved |= self.promises.is_in_progress();
                if *left == 0 {
                    self.input.body = Body::None;
                }
            }
        }
    }

    /// Uses staged bytes, and returns how many. The rest is a part of a frame, or waits for an SRQ entry or a
    /// READ.
    fn take(&mut self, tables: &mut Tables, input: &[u8]) -> Result<usize, End> {
        let mut used = 0;
        self.input.cut_send = false;
        loop {
            let wanted = self.input.missing_bytes();
            if wanted > 0 {
                let bytes = wanted.min(input.len() - used);
                if bytes == 0 {
                    return Ok(used);
                }
                self.place(tables, &input[used..used + bytes])?;
                used += bytes;
                continue;
            }
            let rest = &input[used..];
            let Some(head) = rest.first_chunk::<FRAME_BYTES>() else { return Ok(used) };
            let frame = Frame::parse(head).map_err(|_| End::PROTOCOL)?;
            match self.act(tables, frame, &rest[FRAME_BYTES..])? {
                Some(behind) => used += FRAME_BYTES + behind,
                None => return Ok(used),
            }
        }
    }

    /// Copies staged bytes of the arriving frame's body to their final places.
    fn place(&mut self, tables: &mut Tables, mut bytes: &[u8]) -> Result<(), End> {
        while !bytes.is_empty() {
            let most = u32::try_from(bytes.len()).expect("staged bytes are few");
            let stretch = match self.input.body {
                Body::Read { .. } => {
                    let slot = self.read_arriving().expect("a body has its READ");
                    tables.reads.get(slot).next_stretch(most)
                }
                Body::Discard { .. } => {
                    self.filled(tables, bytes.len());
                    return Ok(());
                }
                Body::None | Body::ReadWhole => unreachable!("bytes are placed only where a body wants them"),
            };
            let stretch = stretch.expect("a body has a place for its bytes");
            let stretch = Sge { bytes: stretch.bytes.min(most), ..stretch };
            let Some(base) = tables.regions.translate(stretch) else { return Err(Self::scatter_lost()) };
            let (now, later) = bytes.split_at(stretch.bytes as usize);
            // SAFETY: `translate` says that `stretch` lies within registered memory, which stays mapped while
            // it is in the table and is no part of the staging buffer; nobody holds references into it.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), base, now.len()) };
            self.filled(tables, now.len());
            bytes = later;
        }
        Ok(())
    }

    /// Acts on a frame. Returns how many bytes behind its header were used up, or `None` where the frame must
    /// wait.
    fn act(&mut self, tables: &mut Tables, frame: Frame, behind: &[u8]) -> Result<Option<usize>, End> {
        match (&self.phase, frame) {
            (Phase::Connected, frame) => self.act_connected(tables, frame, behind),
            (Phase::Closing { .. }, frame) => self.act_closing(tables, frame).map(Some),
            (Phase::Handshake, Frame::Connect { private_bytes, reads_answered }) => {
                let Some((used, private_data)) = private(behind, private_bytes) else { return Ok(None) };
                self.phase = Phase::Requested;
                self.peer_answers = counted(reads_answered);
                tables.deadlines.clear(self.qp.index);
                self.push_asked();
                tables.qps.set_state(self.qp, QpState::Requested);
                tables.push_event(Event::ConnectRequest { qp: self.qp, source: self.source, private_data });
                Ok(Some(used))
            }
            (Phase::Connecting, Frame::Asked) => {
                // From here on the connection waits for the peer's user, whose time has no limit.
                tables.deadlines.clear(self.qp.index);
                Ok(Some(0))
            }
            (Phase::Connecting, Frame::Accept { private_bytes, reads_answered }) => {
                let Some((used, private_data)) = private(behind, private_bytes) else { return Ok(None) };
                // A listener that answers no READs is no obstacle to an end that only sends.
                let reads_max = tables.agree_on_reads(counted(reads_answered)).unwrap_or(0);
                self.connected(tables, private_data, reads_max);
                Ok(Some(used))
            }
            (Phase::Connecting, Frame::Reject { private_bytes }) => {
                let Some((_, private_data)) = private(behind, private_bytes) else { return Ok(None) };
                tables.rejected(self.qp, private_data);
                self.close(tables);
                Err(End::of(DisconnectReason::Peer))
            }
            _ => Err(End::PROTOCOL),
        }
    }

    fn act_connected(
        &mut self,
        tables: &mut Tables,
        frame: Frame,
        behind: &[u8],
    ) -> Result<Option<usize>, End> {
        // After a piece only the frame may follow that says whether the piece counts.
        if self.promises.is_in_progress() {
            let Frame::PushEnd { fault } = frame else { return Err(End::PROTOCOL) };
            self.push_ended(tables, fault)?;
            return Ok(Some(0));
        }
        if matches!(self.input.body, Body::ReadWhole) {
            self.act_read_whole(tables, frame)?;
            return Ok(Some(0));
        }
        match frame {
            Frame::Send { payload_bytes } => return self.act_send(tables, payload_bytes, behind),
            // Credit, READs and room bound all that a peer says but this: it has to say something each time.
            Frame::SendAck { taken } if taken == self.sends_completed => return Err(End::PROTOCOL),
            Frame::SendAck { taken } => self.acknowledge(tables, taken)?,
            Frame::SendError { taken, fault } => return Err(self.send_failed(tables, taken, fault)),
            Frame::ReadRequest { id, address, key, bytes } => {
                if id != self.served_next
                    || self.served.len() >= tables.options.reads_answered_per_qp_max as usize
                {
                    return Err(End::PROTOCOL);
                }
                self.served_next += 1;
                self.served.push_back(Served { id, address, key, bytes, done: 0 });
            }
            Frame::ReadResponse { id, bytes } => {
                let (slot, _) =
                    self.reads.answered_now().filter(|&(_, first)| first == id).ok_or(End::PROTOCOL)?;
                let read = tables.reads.get(slot);
                let left = read.bytes - read.done;
                if bytes > left || (bytes == 0) != (left == 0) {
                    return Err(End::PROTOCOL);
                }
                self.input.body = if bytes == 0 { Body::ReadWhole } else { Body::Read { left: bytes } };
            }
            Frame::ReadError { id, fault } => return Err(self.read_failed(id, fault)),
            Frame::AskRoom => {
                let reads = tables.qps.get(self.qp).is_some_and(|entry| entry.reads_max > 0);
                self.promises.ask(reads).then_some(()).ok_or(End::PROTOCOL)?;
            }
            Frame::Room { limit } => self.offers.grant(limit).then_some(()).ok_or(End::PROTOCOL)?,
            Frame::Offer { address, key, bytes } => {
                let offer = Offer { address, key, bytes };
                let is_too_late = self.is_asked_for(tables, offer);
                self.promises.add(offer, is_too_late).then_some(()).ok_or(End::PROTOCOL)?;
            }
            Frame::Push { bytes } => {
                self.input.body = match self.push_begins(tables, bytes)? {
                    Landing::Read(_) => Body::Read { left: bytes },
                    Landing::Nowhere => Body::Discard { left: bytes },
                    Landing::Later => {
                        self.input.push_waits = true;
                        return Ok(None);
                    }
                };
            }
            Frame::PushEnd { fault } => self.push_ended(tables, fault)?,
            Frame::Bye => {
                self.peer_done = true;
                self.begin_closing(tables, DisconnectReason::Peer, None, false);
            }
            Frame::ReadEnd { .. }
            | Frame::Connect { .. }
            | Frame::Asked
            | Frame::Accept { .. }
            | Frame::Reject { .. } => {
                return Err(End::PROTOCOL);
            }
        }
        Ok(Some(0))
    }

    fn act_read_whole(&mut self, tables: &mut Tables, frame: Frame) -> Result<(), End> {
        let (slot, first) = self.reads.answered_now().expect("a body has its READ");
        match frame {
            Frame::ReadEnd { id } if id == first => {
                self.input.body = Body::None;
                let read = tables.reads.get(slot);
                if read.done == read.bytes {
                    self.complete_read(tables, slot);
                }
                Ok(())
            }
            Frame::ReadError { id, fault } => Err(self.read_failed(id, fault)),
            _ => Err(End::PROTOCOL),
        }
    }

    fn read_failed(&self, id: u64, fault: Fault) -> End {
        match self.reads.answered_now() {
            Some((_, first)) if first == id => {
                let status = fault.status();
                End { reason: DisconnectReason::WorkRequest(status), send: None, read: Some(status) }
            }
            _ => End::PROTOCOL,
        }
    }

    /// Decides where the bytes of a push go that has begun to arrive.
    fn push_begins(&mut self, tables: &mut Tables, bytes: u32) -> Result<Landing, End> {
        // A READ that was posted since the last output was written may be for them.
        self.match_waiting_reads(tables);
        self.promises.begin(bytes, tables.deadlines.now_ns()).ok_or(End::PROTOCOL)
    }

    /// Acts on the end of a push.
    fn push_ended(&mut self, tables: &mut Tables, fault: Option<Fault>) -> Result<(), End> {
        self.input.body = Body::None;
        match self.promises.end(fault.is_none()).ok_or(End::PROTOCOL)? {
            Kept::Read(slot) => self.complete_read(tables, slot),
            Kept::Broken(slot) => {
                tables.reads.get_mut(slot).begin_anew();
                self.reads.take_back(slot);
            }
            Kept::Nobody => {}
        }
        Ok(())
    }

    /// Receives a SEND that has arrived in full. Returns the bytes behind its header, or `None` where the
    /// SEND must wait for its rest, or for an SRQ entry.
    fn act_send(
        &mut self,
        tables: &mut Tables,
        payload_bytes: u32,
        behind: &[u8],
    ) -> Result<Option<usize>, End> {
        let Some(whole) = behind.get(..(HEADER + payload_bytes) as usize) else {
            self.input.cut_send = true;
            return Ok(None);
        };
        let Some(entry) = tables.srq.pop() else {
            tables.counters.rnr += 1;
            self.input.rnr = true;
            if let Some(timeout) = tables.options.rnr_timeout {
                tables.deadlines.set(self.qp.index, Wait::Rnr, timeout);
            }
            return Ok(None);
        };
        if payload_bytes > entry.payload.map_or(0, |slab| slab.bytes) {
            tables.complete_receive(self.qp, entry.id, 0, Status::Length);
            let last = Frame::SendError { taken: self.received, fault: Fault::Length };
            self.fail(tables, Some(last), Status::Length);
            return Ok(Some(whole.len()));
        }
        let (header, payload) = whole.split_at(HEADER as usize);
        let header_place = Sge { bytes: HEADER, ..entry.header };
        let payload_place = entry.payload.map(|slab| Sge { bytes: payload_bytes, ..slab });
        let parts = [(Some(header_place), header), (payload_place, payload)];
        for (place, bytes) in parts.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let Some(base) = place.and_then(|place| tables.regions.translate(place)) else {
                // The entry's memory was deregistered.
                tables.complete_receive(self.qp, entry.id, 0, Status::LocalProtection);
                return Err(End::of(DisconnectReason::WorkRequest(Status::LocalProtection)));
            };
            // SAFETY: `translate` says that the place lies within registered memory, which stays mapped while
            // it is in the table and is no part of the staging buffer; nobody holds references into it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base, bytes.len()) };
        }
        if !self.owes_ack() {
            self.owes_since_ns = tables.deadlines.now_ns();
        }
        self.received += 1;
        tables.counters.bytes_in += u64::from(payload_bytes);
        tables.complete_receive(self.qp, entry.id, payload_bytes, Status::Success);
        Ok(Some(whole.len()))
    }

    /// Sets or clears the deadline by which the rest of a SEND must arrive. To be called after any work, and
    /// after [`Self::watch_reads`]: while a READ is outstanding, the READ's deadline is the only one.
    pub(in crate::soft::tcp) fn watch_cut_send(&mut self, tables: &mut Tables) {
        let waits = self.input.cut_send && matches!(self.phase, Phase::Connected) && !self.reads_watched;
        let watched = waits.then_some(self.received);
        // The deadline counts from the SEND's first bytes: further bytes of the same SEND do not move it.
        if std::mem::replace(&mut self.cut_send_watched, watched) == watched {
            return;
        }
        if waits {
            tables.deadlines.set(self.qp.index, Wait::SendRest, tables.options.tcp.send_timeout);
        } else {
            tables.deadlines.clear_if(self.qp.index, Wait::SendRest);
        }
    }

    /// Ends the connection after the rest of a SEND did not arrive in time, unless the kernel has it.
    pub(super) fn cut_send_timed_out(
        &mut self,
        tables: &mut Tables,
        staging: &mut [u8; STAGING_BYTES],
    ) -> Result<(), End> {
        let before = self.received;
        self.input.readable = true;
        self.receive(tables, staging)?;
        self.cut_send_watched = None;
        if self.received == before && self.input.cut_send {
            return Err(End::of(DisconnectReason::Transport(libc::ETIMEDOUT)));
        }
        Ok(())
    }

    /// Ends the connection after a SEND has waited for an SRQ entry for too long.
    pub(in crate::soft::tcp) fn rnr_exhausted(&mut self, tables: &mut Tables) {
        let last = Frame::SendError { taken: self.received, fault: Fault::RnrExhausted };
        self.fail(tables, Some(last), Status::RnrExhausted);
    }

    /// Acts on a frame while this end closes the connection: acknowledgements and errors of SENDs still
    /// count, other work is discarded.
    fn act_closing(&mut self, tables: &mut Tables, frame: Frame) -> Result<usize, End> {
        match frame {
            Frame::Send { payload_bytes } => {
                self.input.body = Body::Discard { left: HEADER + payload_bytes };
            }
            Frame::ReadResponse { bytes: left, .. } | Frame::Push { bytes: left } if left > 0 => {
                self.input.body = Body::Discard { left };
            }
            Frame::SendAck { taken } if self.has_sends() => {
                self.acknowledge(tables, taken)?;
                self.end_if_closed()?;
            }
            Frame::SendError { taken, fault } if self.has_sends() => {
                return Err(self.send_failed(tables, taken, fault));
            }
            Frame::Bye => {
                self.peer_done = true;
                self.end_if_closed()?;
            }
            Frame::Connect { .. } | Frame::Asked | Frame::Accept { .. } | Frame::Reject { .. } => {
                return Err(End::PROTOCOL);
            }
            Frame::ReadResponse { .. }
            | Frame::AskRoom
            | Frame::Room { .. }
            | Frame::Offer { .. }
            | Frame::Push { .. }
            | Frame::PushEnd { .. }
            | Frame::SendAck { .. }
            | Frame::SendError { .. }
            | Frame::ReadRequest { .. }
            | Frame::ReadEnd { .. }
            | Frame::ReadError { .. } => {}
        }
        Ok(0)
    }
}

/// Limits to 32 bits the number of READs that a peer says it answers. This end makes no more than its own
/// limit anyway.
fn counted(reads_answered: u64) -> u32 {
    u32::try_from(reads_answered).unwrap_or(u32::MAX)
}

/// Returns the private data and its length, once all of it has arrived.
fn private(behind: &[u8], bytes: u32) -> Option<(usize, PrivateData)> {
    let private = behind.get(..bytes as usize)?;
    Some((private.len(), PrivateData::new(private).expect("the frame's length was checked")))
}
