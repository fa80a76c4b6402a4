//! Messages between the two ends of a connection over its socket: answers, announcements of regions, bells.

use super::{Connection, End};
use crate::memory::{MapError, Mapping, Protection, is_on_huge_pages};
use crate::nic::{DisconnectReason, Event, MemoryKey, RegionError};
use crate::soft::shm::control::{Control, Received, receive, send_control};
use crate::soft::shm::link::{Fault, LINK_BYTES, Link};
use crate::soft::shm::regions::RegionPlace;
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
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

/// Kinds of message that were taken from the socket.
enum Handled {
    /// The peer rang the bell.
    Bell,
    /// A control message, which was carried out.
    Control,
}

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
        let for_room = !self.outbox.is_empty();
        if self.watched && for_room != self.watched_for_room {
            let flags = if for_room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            tables
                .epoll
                .modify(self.socket.as_fd(), Self::token(self.qp), flags)
                .map_err(|error| transport(&error))?;
            self.watched_for_room = for_room;
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

    /// Takes the messages that arrived on the socket. `true` where the bell rang.
    pub(in crate::soft::shm) fn listen_to_peer(&mut self, tables: &mut Tables) -> Result<bool, End> {
        self.empty_outbox(tables)?;
        let mut rang = false;
        for _ in 0..SOCKET_BURST {
            match self.receive_control(tables)? {
                Some(Handled::Bell) => rang = true,
                Some(Handled::Control) => {}
                None => break,
            }
        }
        Ok(rang)
    }

    /// Takes one message from the socket, and carries out a control message. `None` where there are no more.
    fn receive_control(&mut self, tables: &mut Tables) -> Result<Option<Handled>, End> {
        match receive(&self.socket) {
            Received::Bell => Ok(Some(Handled::Bell)),
            Received::Control(control, file) => {
                self.carry_out(tables, control, file)?;
                Ok(Some(Handled::Control))
            }
            Received::Nothing => Ok(None),
            Received::Closed => {
                self.hung_up = true;
                self.unwatch(tables);
                Ok(None)
            }
            Received::Malformed(files) => {
                tables.disposal.close_files(self.source, files);
                Err(End::PROTOCOL)
            }
            Received::NoDescriptor => Err(RegionError::ReceiverFull.into()),
        }
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
                tables.push_event(Event::ConnectRequest { qp: self.qp, private_data });
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

    /// Returns the place of a stretch of the peer's memory, by what the peer has announced up to now. `None`
    /// where no announced region contains it.
    #[inline]
    pub(in crate::soft::shm) fn translate_peer(
        &mut self,
        tables: &mut Tables,
        key: u32,
        address: u64,
        bytes: u32,
    ) -> Result<Option<RegionPlace>, End> {
        if self.link().peer_announced() != self.announcements_seen {
            self.take_announcements(tables)?;
        }
        Ok(self.peer_regions.translate(key, address, bytes))
    }

    #[cold]
    fn take_announcements(&mut self, tables: &mut Tables) -> Result<(), End> {
        // Announcements after this point are left to the next call, since a peer that never stops must not
        // hold this thread.
        let target = self.link().peer_announced();
        let is_reached = |seen: u32| {
            // Both counts wrap. A message may be seen before it is counted: then `seen` is ahead.
            matches!(target.wrapping_sub(seen), 0 | 0x8000_0000..)
        };
        self.empty_outbox(tables)?;
        // A bell that is taken here is not lost: the caller works on the connection, so it is hot.
        for _ in 0..ANNOUNCEMENTS_PER_REGION * tables.options.regions_max {
            if is_reached(self.announcements_seen) || self.receive_control(tables)?.is_none() {
                return Ok(());
            }
        }
        if is_reached(self.announcements_seen) { Ok(()) } else { Err(End::PROTOCOL) }
    }
}

/// Makes the end of a connection whose socket failed with this error.
fn transport(error: &io::Error) -> End {
    End { reason: DisconnectReason::Transport(error.raw_os_error().unwrap_or(0)), fault: Fault::Closed }
}
