//! The front of the software RNIC: it checks requests, enters them in the tables, and passes them to their
//! transport.

use super::options::{PAYLOAD_BYTES_MAX, SoftOptions};
use super::shm::Shm;
use super::tables::Tables;
use super::tables::qps::QpState;
use super::tcp::Tcp;
use super::token::{Kind, Token};
use super::transport::Transport;
use crate::address::Address;
use crate::limits::NicLimits;
use crate::memory::SharedMemory;
use crate::networks::Networks;
use crate::nic::{
    Access, Completion, ConnectError, Counters, Event, Limits, ListenError, MemoryKey, Nic, Payload,
    PostError, PrivateData, Qp, ReadRequest, RegisterError, SendRequest, Sge, SrqEntry,
};
use crate::readiness::none_ready;
use jet_wire::message::HEADER_BYTES;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Polls between two checks of the epoll while there is work.
///
/// A system call costs as much as several messages, and new connections can wait a few hundred microseconds.
const CHECK_EVERY_BUSY: u32 = 1024;
/// Polls between two checks of the epoll while there is no work.
const CHECK_EVERY_IDLE: u32 = 64;
/// Longest time between two checks of the epoll. Polls may take 100 us each, where much arrives.
const CHECK_WITHIN_NS: u64 = 200_000;
/// Deadlines that are carried out in one poll.
pub(super) const DEADLINES_PER_POLL: usize = 16;

/// NIC in software; see [`crate::soft`].
///
/// Completions and events are made while the NIC is polled. [`Nic::poll`] with an empty slice only does the
/// work. The end of a connection is shown after the last completion of its work was polled.
pub struct SoftNic {
    pub(super) tables: Tables,
    pub(super) shm: Shm,
    pub(super) tcp: Tcp,
    limits: NicLimits,
    polls_since_check: u32,
    /// Time of the last check of the epoll, in nanoseconds.
    checked_ns: u64,
    /// Whether the last poll found work.
    worked: bool,
    /// Whether the next poll checks the epoll first, since the user may have slept.
    check_first: bool,
    /// Whether the NIC has worked for the events that are taken next: in `poll`, or for the first of them. It
    /// ends when there is no event.
    polled: bool,
}

/// Calls a method of the transport of this `kind`, with the tables.
macro_rules! carried_by {
    ($nic:ident, $kind:expr, $method:ident($($argument:expr),*)) => {
        match $kind {
            Kind::Shm => $nic.shm.$method(&mut $nic.tables, $($argument),*),
            Kind::Tcp => $nic.tcp.$method(&mut $nic.tables, $($argument),*),
        }
    };
}

impl SoftNic {
    /// Makes a NIC with nothing registered and no connections.
    ///
    /// # Errors
    /// What the system says (out of file descriptors). `InvalidInput` where the options contradict each
    /// other, or ask for more than the profile's device has; in the latter case the error contains a
    /// [`crate::limits::LimitError`].
    pub fn new(options: SoftOptions) -> io::Result<Self> {
        if let Some(problem) = options.problem() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let limits = options.limits().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let options = options.within(&limits);
        Ok(Self {
            tables: Tables::new(options)?,
            shm: Shm::new(&options),
            tcp: Tcp::new(&options),
            limits,
            polls_since_check: 0,
            checked_ns: 0,
            worked: false,
            check_first: false,
            polled: false,
        })
    }

    /// Returns the options that the NIC was built with, lowered to what its profile allows.
    pub fn options(&self) -> &SoftOptions {
        &self.tables.options
    }

    /// Takes connections over `tcp:` from these networks alone. Others are closed before anything is
    /// allocated for them. Connections that there are stay.
    pub fn accept_from(&mut self, networks: Networks) {
        self.tcp.accept_from(networks);
    }

    fn kind_of(address: &Address) -> Option<Kind> {
        match address {
            Address::Shm(_) => Some(Kind::Shm),
            Address::Tcp(_) => Some(Kind::Tcp),
            Address::Rdma(_) => None,
        }
    }

    /// Returns the QP's transport, if the QP is not stale and in this state.
    #[inline]
    fn kind_in(&self, qp: Qp, state: QpState) -> Result<Kind, PostError> {
        match self.tables.qps.get(qp) {
            Some(entry) if entry.state == state => Ok(entry.kind),
            _ => Err(PostError::Stale),
        }
    }

    fn progress(&mut self, now_ns: u64) {
        self.tables.deadlines.begin_poll(now_ns);
        self.polled = true;
        self.polls_since_check = self.polls_since_check.saturating_add(1);
        let check_every = if self.worked { CHECK_EVERY_BUSY } else { CHECK_EVERY_IDLE };
        let bearable = self.shm.epoll_interval().min(self.tcp.epoll_interval());
        let is_late = now_ns.saturating_sub(self.checked_ns) >= CHECK_WITHIN_NS;
        if self.check_first || is_late || self.polls_since_check >= check_every.min(bearable) {
            self.check_events();
        }
        self.flush();
        self.worked = self.shm.progress(&mut self.tables);
        if self.tcp.is_used() {
            self.worked |= self.tcp.progress(&mut self.tables);
        }
        // Deadlines expire after the work, so that what arrived before this poll is in time. Those of a crowd
        // may fall due together, and each ends a connection.
        for _ in 0..DEADLINES_PER_POLL {
            let Some((place, wait)) = self.tables.deadlines.take_due() else { break };
            let Token { kind, place } = self.tables.whose_deadline(place);
            carried_by!(self, kind, expire(place, wait));
            self.worked = true;
        }
        self.tables.deadlines.end_poll();
    }

    /// Whether completions or events wait for the user's poll.
    pub(super) fn has_news(&self) -> bool {
        self.tables.has_news()
    }

    /// Does what there is to do, for a user that is away. What it finds for the user waits for its poll.
    /// `true`: there is nothing more to do until the descriptor is readable.
    pub(super) fn serve(&mut self, now_ns: u64) -> bool {
        self.progress(now_ns);
        if self.worked {
            return false;
        }
        self.tables.deadlines.begin_poll(now_ns);
        let is_idle = self.prepare_wait(now_ns);
        self.tables.deadlines.end_poll();
        self.check_first |= is_idle;
        is_idle
    }

    /// Prepares to sleep. To be called between `begin_poll` and `end_poll` of the deadlines. `false` where
    /// there is work, or news for the user.
    fn prepare_sleep(&mut self, now_ns: u64) -> bool {
        !self.tables.has_news() && self.prepare_wait(now_ns) && !self.tables.has_news()
    }

    /// Prepares to wait for the descriptor. To be called between `begin_poll` and `end_poll` of the
    /// deadlines. `false` where there is work.
    fn prepare_wait(&mut self, now_ns: u64) -> bool {
        // A descriptor that is ready would wake the user at once.
        if self.check_events() > 0 || !self.shm.arm(&mut self.tables) || !self.tcp.arm(&mut self.tables) {
            return false;
        }
        let wait_ns = match self.tables.deadlines.next_ns() {
            Some(due_ns) if due_ns <= now_ns => return false,
            next => next.map(|due_ns| due_ns - now_ns),
        };
        self.tables.epoll.set_timer(wait_ns.map(Duration::from_nanos));
        true
    }

    /// Asks the epoll once, tells the transports, and returns how many descriptors were ready and said
    /// anything new.
    fn check_events(&mut self) -> usize {
        (self.check_first, self.polls_since_check) = (false, 0);
        self.checked_ns = self.tables.deadlines.now_ns();
        let mut ready = none_ready();
        let count = self.tables.epoll.poll(&mut ready);
        let mut news = 0;
        for event in &ready[..count] {
            news += usize::from(match Token::from_u64(event.data.u64()) {
                None => {
                    // The timer's only purpose is to wake the user; it is set anew before the next sleep.
                    self.tables.epoll.set_timer(None);
                    true
                }
                Some(Token { kind, place }) => carried_by!(self, kind, ready(place, event.flags)),
            });
        }
        news
    }

    /// Checks a SEND's payload against this end's limits and keys.
    #[inline]
    fn check_payload(&self, payload: &Payload<'_>) -> Result<(), PostError> {
        match payload {
            Payload::None => Ok(()),
            Payload::Inline(bytes) if bytes.len() <= PAYLOAD_BYTES_MAX as usize => Ok(()),
            Payload::Registered(sge) if sge.bytes <= PAYLOAD_BYTES_MAX => self.check_local(*sge),
            Payload::Inline(_) | Payload::Registered(_) => Err(PostError::Limit),
        }
    }

    #[inline]
    fn check_local(&self, sge: Sge) -> Result<(), PostError> {
        self.tables.regions.translate(sge).map(drop).ok_or(PostError::LocalProtection)
    }

    /// Posts a SEND on a device that cannot gather a registered payload beside the header.
    ///
    /// The payload is copied first, as if it had been inline.
    #[inline(never)]
    fn post_send_of_one_stretch(
        &mut self,
        kind: Kind,
        qp: Qp,
        request: SendRequest<'_>,
        payload: Sge,
    ) -> Result<(), PostError> {
        let from = self.tables.regions.translate(payload).ok_or(PostError::LocalProtection)?;
        let mut bytes = [0u8; PAYLOAD_BYTES_MAX as usize];
        let bytes = &mut bytes[..payload.bytes as usize];
        // SAFETY: the stretch is registered and at most 4096 bytes (checked before posting).
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        let request = SendRequest { payload: Payload::Inline(bytes), ..request };
        carried_by!(self, kind, post_send(qp, request))
    }
}

impl Nic for SoftNic {
    fn limits(&self) -> Limits {
        self.limits.reported
    }

    fn counters(&self) -> Counters {
        self.tables.counters
    }

    fn register(&mut self, memory: &Arc<SharedMemory>, access: Access) -> Result<MemoryKey, RegisterError> {
        let key = self.tables.regions.register(memory, access)?;
        if access == Access::RemoteRead {
            self.shm.registered(&mut self.tables, key);
            self.tcp.registered(&mut self.tables, key);
        }
        Ok(key)
    }

    fn deregister(&mut self, key: MemoryKey) {
        if self.tables.regions.deregister(key).is_some() {
            self.shm.deregistered(&mut self.tables, key);
            self.tcp.deregistered(&mut self.tables, key);
        }
    }

    fn remote_address(&self, _key: MemoryKey, offset: u64) -> u64 {
        // Addresses count from the region's start, so a peer learns nothing of this process's layout.
        offset
    }

    fn listen(&mut self, address: &Address) -> Result<Address, ListenError> {
        let wrong = || ListenError::WrongFabric { address: address.clone() };
        carried_by!(self, Self::kind_of(address).ok_or_else(wrong)?, listen(address))
    }

    fn stop_listening(&mut self) {
        self.shm.stop_listening(&mut self.tables);
        self.tcp.stop_listening(&mut self.tables);
    }

    fn connect(&mut self, address: &Address, private_data: &PrivateData) -> Result<Qp, ConnectError> {
        let wrong = || ConnectError::WrongFabric { address: address.clone() };
        let kind = Self::kind_of(address).ok_or_else(wrong)?;
        let max = self.limits.reported.qps_max;
        let qp = self.tables.qps.take(kind, QpState::Connecting).ok_or(ConnectError::TooMany { max })?;
        if let Err(error) = carried_by!(self, kind, connect(qp, address, private_data)) {
            self.tables.qps.release(qp);
            return Err(error);
        }
        Ok(qp)
    }

    fn accept(&mut self, qp: Qp, private_data: &PrivateData) -> Result<(), PostError> {
        let kind = self.kind_in(qp, QpState::Requested)?;
        carried_by!(self, kind, accept(qp, private_data))
    }

    fn reject(&mut self, qp: Qp, private_data: &PrivateData) {
        if let Ok(kind) = self.kind_in(qp, QpState::Requested) {
            carried_by!(self, kind, reject(qp, private_data));
        }
    }

    fn disconnect(&mut self, qp: Qp) {
        let Some(entry) = self.tables.qps.get(qp) else { return };
        match entry.state {
            QpState::Requested | QpState::Connecting | QpState::Connected => {
                carried_by!(self, entry.kind, disconnect(qp));
            }
            QpState::Handshake | QpState::Closing | QpState::Ended => {}
        }
    }

    fn post_srq(&mut self, entry: SrqEntry) -> Result<(), PostError> {
        if !self.tables.room_for_receive() {
            return Err(PostError::QueueFull);
        }
        if entry.header.bytes as usize != HEADER_BYTES || !entry.header.offset.is_multiple_of(64) {
            return Err(PostError::LocalProtection);
        }
        self.check_local(entry.header)?;
        entry.payload.map_or(Ok(()), |payload| self.check_local(payload))?;
        self.tables.srq.push(entry);
        self.tables.receive_posted();
        Ok(())
    }

    fn post_send(&mut self, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        let (kind, sends) = match self.tables.qps.get(qp) {
            Some(entry) if entry.state == QpState::Connected => (entry.kind, entry.sends),
            _ => return Err(PostError::Stale),
        };
        self.check_payload(&request.payload)?;
        if sends >= self.limits.reported.sends_per_qp_max || !self.tables.room_for_send() {
            return Err(PostError::QueueFull);
        }
        match request.payload {
            Payload::Registered(payload) if self.limits.send_sges == 1 => {
                self.post_send_of_one_stretch(kind, qp, request, payload)?;
            }
            _ => carried_by!(self, kind, post_send(qp, request))?,
        }
        self.tables.send_posted(qp, request.id);
        Ok(())
    }

    fn post_read(&mut self, qp: Qp, request: ReadRequest<'_>) -> Result<(), PostError> {
        let (kind, reads, reads_max) = match self.tables.qps.get(qp) {
            Some(entry) if entry.state == QpState::Connected => (entry.kind, entry.reads, entry.reads_max),
            _ => return Err(PostError::Stale),
        };
        if reads_max == 0 || request.scatter.len() > self.limits.reported.scatter_max as usize {
            return Err(PostError::Limit);
        }
        let mut bytes = 0u32;
        for sge in request.scatter {
            bytes = bytes.checked_add(sge.bytes).ok_or(PostError::Limit)?;
            self.check_local(*sge)?;
        }
        if reads >= reads_max || !self.tables.room_for_read() {
            return Err(PostError::QueueFull);
        }
        let slot = self.tables.reads.take(qp, &request, bytes).ok_or(PostError::QueueFull)?;
        self.tables.read_posted(qp);
        carried_by!(self, kind, post_read(qp, slot));
        Ok(())
    }

    fn offer(&mut self, qp: Qp, address: u64, key: u32, bytes: u32) {
        // A READ over `shm:` asks nobody.
        if self.kind_in(qp, QpState::Connected) == Ok(Kind::Tcp) {
            self.tcp.offer(&mut self.tables, qp, address, key, bytes);
        }
    }

    fn flush(&mut self) {
        self.shm.flush(&mut self.tables);
        if self.tcp.is_used() {
            self.tcp.flush(&mut self.tables);
        }
    }

    fn poll(&mut self, now_ns: u64, completions: &mut [Completion]) -> usize {
        self.progress(now_ns);
        self.tables.poll(completions)
    }

    fn poll_event(&mut self, now_ns: u64) -> Option<Event> {
        if !self.polled {
            self.progress(now_ns);
        }
        let event = self.tables.poll_event();
        // The NIC makes progress once for all events that a caller takes in a row. Otherwise the events of a
        // crowd that leaves would have the caller end one connection after another.
        self.polled = event.is_some();
        event
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.tables.epoll.fd()
    }

    fn arm(&mut self, now_ns: u64) -> bool {
        self.flush();
        self.tables.deadlines.begin_poll(now_ns);
        let may_sleep = self.prepare_sleep(now_ns);
        self.tables.deadlines.end_poll();
        self.check_first |= may_sleep;
        may_sleep
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        self.stop_listening();
        self.shm.leave(&mut self.tables);
    }
}

#[cfg(test)]
mod tests;
