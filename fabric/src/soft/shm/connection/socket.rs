//! Messages between the two ends of a connection over its socket: answers, announcements of regions, bells.

use super::{Awaited, Connection, End, Sought};
use crate::memory::{MapError, Mapping, Protection, is_on_huge_pages};
use crate::nic::{DisconnectReason, Event, MemoryKey, RegionError};
use crate::soft::deadlines::Wait;
use crate::soft::shm::control::{Control, Received, receive, send_control};
use crate::soft::shm::link::{Fault, LINK_BYTES, Link};
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::tables::socket_turns::{REGION_COST, TURNS_EVERY};
use rustix::event::epoll::EventFlags;
use rustix::fs::{SealFlags, fcntl_get_seals};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Messages that are taken from one socket before the next socket has its turn.
const SOCKET_BURST: u32 = 64;
/// Messages taken from the socket to translate one address, at most, for each region that a NIC may have.
/// Where so many are not enough, the connection ends.
///
/// Two messages for each region may wait in the peer's outbox, and a socket holds some hundred.
const ANNOUNCEMENTS_PER_REGION: u32 = 8;

impl Connection {
    /// Stops watching the socket, after its end was seen.
    pub(in crate::soft::shm) fn unwatch(&mut self, tables: &Tables) {
        if std::mem::take(&mut self.watched) {
            tables.epoll.remove(self.socket.as_fd());
        }
    }

    /// Sends a control message, or queues it where the socket is full.
    pub(in crate::soft::shm) fn send_control(
        &mut self,
        tables: &Tables,
        control: Control,
    ) -> Result<(), End> {
        // Twice the regions: each may be registered and taken back while the peer does not read.
        if self.outbox.len() > 2 * tables.options.regions_max as usize {
            return Err(End::PROTOCOL);
        }
        self.outbox.push_back(control);
        self.empty_outbox(tables)
    }

    /// Sends the queued control messages, as far as the socket takes them.
    fn empty_outbox(&mut self, tables: &Tables) -> Result<(), End> {
        while let Some(control) = self.outbox.front().copied() {
            let sent = match control {
                Control::Connect { .. } => {
                    let file = self.link.as_ref().and_then(Link::file).expect("who connects made the link");
                    send_control(&self.socket, control, Some(file.as_fd()))
                }
                Control::Register(key) => match tables.regions.get(MemoryKey(key)) {
                    Some(region) => send_control(&self.socket, control, Some(region.memory.as_fd())),
                    // The region was deregistered meanwhile. A message is sent all the same, since the peer
                    // counts them.
                    None => send_control(&self.socket, Control::Deregister(key), None),
                },
                Control::Accept { .. } | Control::Reject(_) | Control::Deregister(_) => {
                    send_control(&self.socket, control, None)
                }
            };
            match sent {
                Ok(true) => drop(self.outbox.pop_front()),
                Ok(false) => break,
                // The other end is closed. The next check of the socket finds that, and what the other end
                // sent before.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::BrokenPipe
                            | io::ErrorKind::ConnectionReset
                            | io::ErrorKind::NotConnected
                    ) =>
                {
                    self.outbox.clear();
                }
                Err(error) => return Err(transport(&error)),
            }
        }
        self.watch(tables)
    }

    /// Makes the epoll watch for what this connection acts on.
    fn watch(&mut self, tables: &Tables) -> Result<(), End> {
        let flags = match (self.in_line, self.outbox.is_empty()) {
            (false, true) => EventFlags::IN,
            (false, false) => EventFlags::IN | EventFlags::OUT,
            // Only that the other end is closed, which the epoll tells always: once, since edge-triggered.
            (true, _) => EventFlags::ET,
        };
        if self.watched && flags != self.watched_for {
            let changed = tables.epoll.modify(self.socket.as_fd(), Self::token(self.qp), flags);
            changed.map_err(|error| transport(&error))?;
            self.watched_for = flags;
        }
        Ok(())
    }

    /// Announces that a region was registered or deregistered.
    pub(in crate::soft::shm) fn announce(&mut self, tables: &Tables, control: Control) -> Result<(), End> {
        self.announced = self.announced.wrapping_add(1);
        let sent = self.send_control(tables, control);
        let announced = self.announced;
        // Set after the message was sent or queued, so that a peer that reads the count can find the message.
        if let Some(link) = &self.link {
            link.set_announced(announced);
        }
        sent
    }

    /// Announces every region that peers may read.
    pub(in crate::soft::shm) fn announce_all(&mut self, tables: &Tables) -> Result<(), End> {
        for region in tables.regions.remote() {
            self.announce(tables, Control::Register(region.key.0))?;
        }
        Ok(())
    }

    /// Takes messages that arrived on the socket, as many as the peer's process may spend. The connection
    /// stands in line for the others. `true` where the bell rang, or may have.
    ///
    /// A connection that stands in line must have been given its turn.
    pub(in crate::soft::shm) fn listen_to_peer(&mut self, tables: &mut Tables) -> Result<bool, End> {
        self.empty_outbox(tables)?;
        let (number, now_ns) = (self.source_number, tables.deadlines.now_ns());
        let mut rang = false;
        for _ in 0..SOCKET_BURST {
            let may_take = match self.in_line {
                false => tables.socket_turns.may_take(number, now_ns),
                true => tables.socket_turns.may_go_on(number, now_ns),
            };
            if !may_take {
                // What woke this end may be a bell. In line nothing wakes it.
                rang |= !self.in_line;
                self.stand_in_line(tables)?;
                break;
            }
            // This end asks for one bell when it no longer polls the connection.
            let bell_cost = u32::from(self.hot || rang);
            match self.receive_control(tables, bell_cost)? {
                Some(is_bell) => rang |= is_bell,
                None => {
                    self.awaited = None;
                    self.leave_line(tables)?;
                    break;
                }
            }
        }
        let taken = |awaited: &Awaited| awaited.is_taken(self.announcements_seen);
        self.awaited = self.awaited.filter(|awaited| !taken(awaited));
        match self.awaited {
            Some(awaited) if awaited.messages >= announcements_max(tables) => Err(End::PROTOCOL),
            _ => Ok(rang),
        }
    }

    /// Puts the connection at the end of its process's line, where it does not stand.
    fn stand_in_line(&mut self, tables: &mut Tables) -> Result<(), End> {
        tables.socket_turns.stand_in_line(self.source_number, self.qp.index);
        let deadline = tables.place_of_turns();
        if tables.deadlines.wait_at(deadline).is_none() {
            tables.deadlines.set(deadline, Wait::Turn, TURNS_EVERY);
        }
        self.in_line = true;
        self.watch(tables)
    }

    /// Notes that no message waits for a turn any more.
    fn leave_line(&mut self, tables: &mut Tables) -> Result<(), End> {
        self.in_line = false;
        self.watch(tables)
    }

    /// Notes that the other end was closed while messages waited for their turn. They are not taken any more:
    /// whoever left so much would keep its place for long.
    pub(in crate::soft::shm) fn hangs_up_in_line(&mut self, tables: &mut Tables) {
        tables.socket_turns.stand_down(self.source_number, self.qp.index);
        (self.in_line, self.awaited, self.hung_up) = (false, None, true);
        self.unwatch(tables);
    }

    /// Whether messages in the socket wait for a turn.
    pub(in crate::soft::shm) fn is_in_line(&self) -> bool {
        self.in_line
    }

    /// Returns how many announcements of the peer were taken.
    #[cfg(test)]
    pub(in crate::soft::shm) fn announcements_seen(&self) -> u32 {
        self.announcements_seen
    }

    /// Makes this a connection of another source, as far as turns go.
    #[cfg(test)]
    pub(in crate::soft::shm) fn set_source(&mut self, tables: &mut Tables, source: crate::source::Source) {
        tables.socket_turns.leave(self.source_number, self.qp.index);
        self.source_number = tables.socket_turns.join(source);
    }

    /// Whether a SEND of the peer or a READ of this end waits for announcements.
    pub(in crate::soft::shm) fn awaits(&self) -> bool {
        self.awaited.is_some()
    }

    /// Takes one message from the socket, and carries out a control message. Returns whether it was a bell.
    /// `None` where there are no more.
    fn receive_control(&mut self, tables: &mut Tables, bell_cost: u32) -> Result<Option<bool>, End> {
        let (is_bell, cost) = match receive(&self.socket) {
            Received::Bell => (true, bell_cost),
            Received::Control(control, file) => {
                self.carry_out(tables, control, file)?;
                (false, if let Control::Register(_) = control { REGION_COST } else { 1 })
            }
            Received::Nothing => return Ok(None),
            Received::Closed => {
                self.hung_up = true;
                self.unwatch(tables);
                return Ok(None);
            }
            Received::Malformed(files) => {
                tables.disposal.close_files(self.source, files);
                return Err(End::PROTOCOL);
            }
            Received::NoDescriptor => return Err(RegionError::ReceiverFull.into()),
        };
        tables.socket_turns.spend(self.source_number, cost, tables.deadlines.now_ns());
        if let Some(awaited) = &mut self.awaited {
            awaited.messages += 1;
        }
        Ok(Some(is_bell))
    }

    fn carry_out(&mut self, tables: &mut Tables, control: Control, file: Option<OwnedFd>) -> Result<(), End> {
        let state = tables.qps.get(self.qp).expect("a connection's QP lives").state;
        let accepted = matches!(state, QpState::Requested | QpState::Connected | QpState::Closing);
        match (control, file, state) {
            (Control::Connect { private_data, reads_answered }, Some(file), QpState::Handshake) => {
                if let Err(end) = self.join(&file) {
                    tables.disposal.close_files(self.source, [file]);
                    return Err(end);
                }
                // A memory file that is mapped: this frees nothing, and gives the descriptor back.
                drop(file);
                tables.deadlines.clear(self.qp.index);
                self.peer_answers = reads_answered;
                tables.qps.set_state(self.qp, QpState::Requested);
                tables.push_event(Event::ConnectRequest { qp: self.qp, source: self.source, private_data });
            }
            (Control::Accept { private_data, reads_answered }, None, QpState::Connecting) => {
                tables.deadlines.clear(self.qp.index);
                // A listener that answers no READs is no obstacle to an end that only sends.
                let reads_max = tables.agree_on_reads(reads_answered).unwrap_or(0);
                tables.connected(self.qp, private_data, reads_max);
            }
            (Control::Reject(private_data), None, QpState::Connecting) => {
                tables.rejected(self.qp, private_data);
            }
            (Control::Register(key), Some(file), _) if accepted => {
                self.announcements_seen = self.announcements_seen.wrapping_add(1);
                if let Err((error, file)) = self.add_region(tables, key, file) {
                    tables.disposal.close_files(self.source, [file]);
                    return Err(error.into());
                }
            }
            (Control::Deregister(key), None, _) if accepted => {
                self.announcements_seen = self.announcements_seen.wrapping_add(1);
                if let Some(region) = self.peer_regions.remove(key) {
                    tables.disposal.free(region);
                }
            }
            (_, file, _) => {
                tables.disposal.close_files(self.source, file);
                return Err(End::PROTOCOL);
            }
        }
        Ok(())
    }

    /// Takes a region of the peer. A file that is not taken is given back.
    fn add_region(&mut self, tables: &Tables, key: u32, file: OwnedFd) -> Result<(), (RegionError, OwnedFd)> {
        let places = match tables.region_places.take(&self.source_places) {
            Ok(places) => places,
            Err(error) => return Err((error, file)),
        };
        let (regions_max, bytes_max) = (tables.options.peer_regions_max, tables.options.peer_bytes_max);
        self.peer_regions.add(key, file, regions_max, bytes_max, places)
    }

    fn join(&mut self, file: &OwnedFd) -> Result<(), End> {
        // Sealed against growing, too: whoever touches a page waits while a hole is punched into the file
        // near it, and that takes the longer, the larger the file is.
        let sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::GROW));
        if !sealed || is_on_huge_pages(file.as_fd()) {
            return Err(End::PROTOCOL);
        }
        let mapping = Mapping::map_received(file.as_fd(), Protection::ReadWrite, LINK_BYTES as u64);
        let mapping = mapping.map_err(|error| match error {
            // This process has no memory, or has as many mappings as it may.
            MapError::System(error) if error.kind() == io::ErrorKind::OutOfMemory => transport(&error),
            _ => End::PROTOCOL,
        })?;
        self.link = Some(Link::join(mapping).ok_or(End::PROTOCOL)?);
        Ok(())
    }

    /// Returns the place of a stretch of the peer's memory, by what the peer has announced up to now.
    #[inline]
    pub(in crate::soft::shm) fn translate_peer(
        &mut self,
        tables: &mut Tables,
        key: u32,
        address: u64,
        bytes: u32,
    ) -> Result<Sought, End> {
        if self.link().peer_announced() != self.announcements_seen && !self.take_announcements(tables)? {
            return Ok(Sought::Later);
        }
        Ok(self.peer_regions.translate(key, address, bytes).map_or(Sought::Nowhere, Sought::At))
    }

    /// Takes what the peer has announced up to now. `false` where that waits for a turn.
    #[cold]
    fn take_announcements(&mut self, tables: &mut Tables) -> Result<bool, End> {
        if self.awaits() {
            return Ok(false);
        }
        if self.hung_up {
            return Ok(true);
        }
        self.empty_outbox(tables)?;
        // Announcements after this point are left to the next call, since a peer that never stops must not
        // hold this thread.
        let announced = self.link().peer_announced();
        self.awaited = Some(Awaited { announced, messages: 0 });
        let (number, now_ns) = (self.source_number, tables.deadlines.now_ns());
        while let Some(awaited) = self.awaited.filter(|awaited| !awaited.is_taken(self.announcements_seen)) {
            if awaited.messages >= announcements_max(tables) {
                return Err(End::PROTOCOL);
            }
            if self.in_line {
                return Ok(false);
            }
            if !tables.socket_turns.may_take(number, now_ns) {
                self.stand_in_line(tables)?;
                return Ok(false);
            }
            // A bell that is taken here is not lost: the caller works on the connection, so it is hot.
            if self.receive_control(tables, 1)?.is_none() {
                break;
            }
        }
        self.awaited = None;
        Ok(true)
    }
}

/// Returns how many messages are taken for one address, at most.
fn announcements_max(tables: &Tables) -> u32 {
    ANNOUNCEMENTS_PER_REGION * tables.options.regions_max
}

/// Makes the end of a connection whose socket failed with this error.
fn transport(error: &io::Error) -> End {
    End { reason: DisconnectReason::Transport(error.raw_os_error().unwrap_or(0)), fault: Fault::Closed }
}
