//! A sender: the protocol, a NIC, and the messages' bytes.

use super::buffer::SendBuffer;
use super::driver::Driver;
use super::error::{BufferError, SendConnectError, SendError, WaitError};
use super::options::{Backoff, RdmaOptions, RetryPolicy};
use super::protocol::ProtocolStats;
use crate::spin::{SPIN_MAX, Spin};
use jet_fabric::nic::Counters;
use jet_fabric::{Address, Nic};
use jet_wire::SLAB_BYTES;
use jet_wire::message::{
    AckStatus, ByeReason, REQUEST_INLINE_USER_HEADER_MAX, SMALL_USER_HEADER_MAX, USER_HEADER_MAX,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::net::IpAddr;
#[cfg(feature = "tokio")]
use std::task::Poll;
use std::time::{Duration, Instant};

/// How to connect, and how much may be in flight.
#[derive(Clone, Debug)]
pub struct SenderOptions {
    /// Where the receiver's daemon listens.
    pub address: Address,
    /// The address of this host that an `rdma:` connection leaves from, and so its device; default: as the kernel routes.
    pub source: Option<IpAddr>,
    /// How an `rdma:` connection works; other addresses take the defaults only.
    pub rdma: RdmaOptions,
    /// The application that the messages are for.
    pub app: String,
    /// Messages that may be without an end at once, 1 to 65,536; default 256. Each takes 4 KiB here.
    pub in_flight_max: u32,
    /// Bytes of large messages that may be requested and without an end at once; default 64 MiB.
    pub window_bytes: u64,
    /// How long the first connection may take; default 5 s.
    pub connect_timeout: Duration,
    /// How long a lost connection is tried again before its messages end `PeerLost`; default 30 s.
    pub reconnect_for: Duration,
    /// How long the receiver may say nothing while a message waits for its end before the connection is taken for lost; default
    /// 30 s. A receiver says every few seconds that it is there, and is given three times as long at the least.
    pub silence_max: Duration,
    /// Between attempts to connect again.
    pub backoff: Backoff,
    /// Which ends are retried; by default `Busy`, for 30 s.
    pub retry: RetryPolicy,
    /// Whether messages carry a CRC32C that the receiver checks; default no: the transports have checks of their own. Where
    /// the receiver says that it checks none, none is made ([`Sender::sends_checksums`]). A message keeps what it was
    /// submitted with.
    pub crc: bool,
    /// The longest that a wait spins before it sleeps; default 50 us. Zero never spins.
    pub spin_max: Duration,
    /// Bytes that are registered at once for send buffers; default 8 MiB.
    pub region_bytes: usize,
}

impl SenderOptions {
    /// The defaults.
    pub fn new(address: Address, app: impl Into<String>) -> Self {
        Self {
            address,
            source: None,
            rdma: RdmaOptions::default(),
            app: app.into(),
            in_flight_max: 256,
            window_bytes: 64 << 20,
            connect_timeout: Duration::from_secs(5),
            reconnect_for: Duration::from_secs(30),
            silence_max: Duration::from_secs(30),
            backoff: Backoff::default(),
            retry: RetryPolicy::default(),
            crc: false,
            spin_max: SPIN_MAX,
            region_bytes: 8 << 20,
        }
    }
}

/// Names a message of a sender: its sequence, counting from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A message's end; each has exactly one.
#[derive(Debug)]
pub struct Completion {
    /// Which message.
    pub ticket: Ticket,
    /// How it ended.
    pub status: AckStatus,
    /// Its buffer, to be used again; `None` for one that was copied.
    pub buffer: Option<SendBuffer>,
    /// From the submission to the end, in nanoseconds.
    pub latency_ns: u64,
}

/// What a sender counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// The protocol's counts.
    pub protocol: ProtocolStats,
    /// The NIC's.
    pub nic: Counters,
    /// Messages without an end that was polled.
    pub in_flight: usize,
    /// The share of its windows that the receiver lets it use, in thousandths.
    pub window_permille: u32,
    /// Messages that were submitted without a checksum though one was asked for: the receiver checks none.
    pub unchecked: u64,
}

/// What a message is, kept until its end because it may have to be sent again.
#[derive(Debug)]
pub(super) struct Pending {
    pub tag: u64,
    pub class: u8,
    pub large: bool,
    pub length: u64,
    pub crc32c: Option<u32>,
    pub submitted_ns: u64,
    pub buffer: Option<SendBuffer>,
    pub user_header_bytes: usize,
    /// A longer one (of a large message) lies in the message's place of the copy area.
    pub user_header: [u8; SMALL_USER_HEADER_MAX],
}

impl Pending {
    /// The user header; of one that rides as the payload only the length counts.
    pub(super) fn header_or_filler(&self) -> &[u8] {
        const FILLER: [u8; USER_HEADER_MAX] = [0; USER_HEADER_MAX];
        self.user_header.get(..self.user_header_bytes).unwrap_or(&FILLER[..self.user_header_bytes])
    }
}

/// A connection to one application behind one daemon. One thread uses it at a time.
///
/// Messages that were accepted are sent at the latest by the next [`Self::poll`], [`Self::wait`] or [`Self::flush`].
/// Over `shm:` the caller's thread is the NIC: poll or wait while messages are in flight. Over `tcp:` a NIC thread
/// serves the receiver's READs meanwhile.
pub struct Sender {
    driver: Driver,
    crc: bool,
    unchecked: u64,
    spin: Spin,
    #[cfg(feature = "tokio")]
    timer: super::timer::Timer,
}

impl Sender {
    /// Connects.
    ///
    /// # Errors
    /// [`SendConnectError`]; only this first connection: a lost one is made again.
    pub fn connect(options: SenderOptions) -> Result<Self, SendConnectError> {
        let nic = super::nic::nic_for(&options.address, options.source, options.rdma)?;
        Self::connect_with(options, nic)
    }

    /// Connects over a NIC of the caller's.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(options: SenderOptions, nic: Box<dyn Nic>) -> Result<Self, SendConnectError> {
        let mut sender = Self {
            driver: Driver::new(&options, nic)?,
            crc: options.crc,
            unchecked: 0,
            spin: Spin::new(options.spin_max),
            #[cfg(feature = "tokio")]
            timer: super::timer::Timer::default(),
        };
        let timeout = options.connect_timeout;
        let deadline = Instant::now().checked_add(timeout);
        loop {
            sender.driver.drive();
            if sender.driver.protocol.is_connected() {
                return Ok(sender);
            }
            if let Some(failure) = sender.driver.take_failure() {
                return Err(failure);
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                return Err(SendConnectError::TimedOut { address: options.address, timeout });
            }
            sender.sleep(left).map_err(|WaitError(error)| SendConnectError::System(error))?;
        }
    }

    /// Whether messages that are submitted now carry a checksum: it was asked for, and the receiver checks, or none is
    /// connected.
    pub fn sends_checksums(&self) -> bool {
        self.crc && self.driver.protocol.receiver_checks()
    }

    fn checksum(&mut self, payload: &[u8]) -> Option<u32> {
        let made = self.sends_checksums().then(|| crc32c::crc32c(payload));
        self.unchecked += u64::from(self.crc && made.is_none());
        made
    }

    /// A registered buffer of so many bytes.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffer(&mut self, bytes: usize) -> Result<SendBuffer, BufferError> {
        self.driver.buffers.get(self.driver.nic.as_mut(), bytes)
    }

    /// So many registered buffers of so many bytes each; where that is a power of two of 4096 or more, each begins where the one
    /// before ends, so that together they are one stretch of memory.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffers(&mut self, bytes: usize, count: usize) -> Result<Vec<SendBuffer>, BufferError> {
        self.driver.buffers.get_row(self.driver.nic.as_mut(), bytes, count)
    }

    /// Sends a small message: at most 4096 bytes of payload, which are copied, and 96 of user header.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_small(&mut self, tag: u64, user_header: &[u8], payload: &[u8]) -> Result<Ticket, SendError> {
        let bytes = small_length(user_header, payload.len())?;
        let now_ns = self.driver.now_ns();
        let (index, sequence) = self.driver.protocol.submit_small(bytes, now_ns)?;
        self.driver.copy_area.write(index, payload);
        let crc32c = self.checksum(payload);
        let fields = Fields { tag, class: 0, large: false, length: u64::from(bytes), crc32c, user_header };
        self.keep(index, now_ns, &fields, None);
        self.driver.transmit();
        Ok(Ticket(sequence))
    }

    /// Sends the first `length` bytes of a buffer, at most 4096, as a small message, without a copy where the NIC can.
    ///
    /// # Errors
    /// [`SendError`], with the buffer.
    pub fn send_small_buffer(
        &mut self,
        tag: u64,
        user_header: &[u8],
        buffer: SendBuffer,
        length: usize,
    ) -> Result<Ticket, (SendError, SendBuffer)> {
        let checked = self.check_buffer(&buffer).and_then(|()| {
            let payload =
                buffer.get(..length).ok_or(SendError::Length { bytes: length, buffer: buffer.len() })?;
            let bytes = small_length(user_header, length)?;
            let now_ns = self.driver.now_ns();
            let (index, sequence) = self.driver.protocol.submit_small(bytes, now_ns)?;
            Ok((index, sequence, now_ns, self.checksum(payload)))
        });
        let (index, sequence, now_ns, crc32c) = match checked {
            Ok(taken) => taken,
            Err(error) => return Err((error, buffer)),
        };
        let fields = Fields { tag, class: 0, large: false, length: length as u64, crc32c, user_header };
        self.keep(index, now_ns, &fields, Some(buffer));
        self.driver.transmit();
        Ok(Ticket(sequence))
    }

    /// Sends the first `length` bytes of a buffer as a large message, in admission class `class` (0 the most urgent);
    /// the user header has at most 256 bytes. The receiver READs the buffer, which comes back with the completion.
    ///
    /// # Errors
    /// [`SendError`], with the buffer.
    pub fn send(
        &mut self,
        tag: u64,
        user_header: &[u8],
        buffer: SendBuffer,
        length: usize,
        class: u8,
    ) -> Result<Ticket, (SendError, SendBuffer)> {
        let checked = self.check_buffer(&buffer).and_then(|()| {
            let payload = buffer
                .get(..length)
                .filter(|payload| !payload.is_empty())
                .ok_or(SendError::Length { bytes: length, buffer: buffer.len() })?;
            if user_header.len() > USER_HEADER_MAX {
                return Err(SendError::UserHeader { bytes: user_header.len(), max: USER_HEADER_MAX });
            }
            let now_ns = self.driver.now_ns();
            let (index, sequence) = self.driver.protocol.submit_large(length as u64, now_ns)?;
            Ok((index, sequence, now_ns, self.checksum(payload)))
        });
        let (index, sequence, now_ns, crc32c) = match checked {
            Ok(taken) => taken,
            Err(error) => return Err((error, buffer)),
        };
        if user_header.len() > REQUEST_INLINE_USER_HEADER_MAX {
            self.driver.copy_area.write(index, user_header);
        }
        let fields = Fields { tag, class, large: true, length: length as u64, crc32c, user_header };
        self.keep(index, now_ns, &fields, Some(buffer));
        self.driver.transmit();
        Ok(Ticket(sequence))
    }

    /// The next end, if there is one. Makes progress; never waits.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.driver.take_end() {
            return Some(completion);
        }
        self.driver.drive();
        self.driver.take_end()
    }

    /// Waits for the next end, without limit or at most so long. `None`: nothing is in flight, or not in time.
    ///
    /// # Errors
    /// [`WaitError`]: the system refuses to wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Completion>, WaitError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(completion) = self.poll() {
                return Ok(Some(completion));
            }
            if self.driver.protocol.in_flight() == 0 {
                return Ok(None);
            }
            let mut spin = self.spin;
            let found = spin.until(left_until(deadline), || self.poll());
            self.spin = spin;
            if found.is_some() {
                return Ok(found);
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.sleep(left)?;
        }
    }

    /// Waits for the next end. `None`: nothing is in flight. Cancelling it loses nothing. The runtime needs its I/O driver
    /// (`enable_io`), and no timers.
    ///
    /// # Errors
    /// [`WaitError`]: the system refuses to wait.
    #[cfg(feature = "tokio")]
    pub async fn wait_async(&mut self) -> Result<Option<Completion>, WaitError> {
        use tokio::io::{Interest, unix::AsyncFd};
        loop {
            if let Some(completion) = self.poll() {
                return Ok(Some(completion));
            }
            if self.driver.protocol.in_flight() == 0 {
                return Ok(None);
            }
            let mut spin = self.spin;
            let found = spin.until(None, || self.poll());
            self.spin = spin;
            if found.is_some() {
                return Ok(found);
            }
            if !self.driver.arm() {
                continue;
            }
            // A clock of its own: a runtime need not have one.
            let timer = self.timer.set(self.driver.until_timeout())?;
            let watch = |fd| {
                // SAFETY: the borrowed descriptors stay open, because the NIC and the timer outlive their registrations.
                unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
                    .map_err(|error| WaitError(error.into()))
            };
            let (nic, timer) = (watch(self.driver.nic.wait_fd())?, timer.map(watch).transpose()?);
            std::future::poll_fn(|context| {
                if timer.as_ref().is_some_and(|timer| timer.poll_read_ready(context).is_ready()) {
                    return Poll::Ready(Ok(()));
                }
                nic.poll_read_ready(context).map_ok(drop)
            })
            .await
            .map_err(WaitError)?;
        }
    }

    /// Sends what was accepted, now.
    pub fn flush(&mut self) {
        self.driver.drive();
    }

    /// Waits, at most so long ([`Duration::MAX`]: without limit), until every message has its end; the ends are then there to
    /// [`Self::poll`]. `false`: not in time.
    ///
    /// # Errors
    /// [`WaitError`]: the system refuses to wait.
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, WaitError> {
        self.drive_until(timeout, |driver| driver.protocol.unfinished() == 0)
    }

    /// Takes nothing new, waits, at most so long, until every message has its end, and disconnects; the ends are then
    /// there to [`Self::poll`]. `false`: not in time.
    ///
    /// # Errors
    /// [`WaitError`]: the system refuses to wait.
    pub fn close(&mut self, timeout: Duration) -> Result<bool, WaitError> {
        self.driver.protocol.close();
        self.drive_until(timeout, |driver| driver.protocol.is_closed())
    }

    /// Whether a connection stands.
    pub fn is_connected(&self) -> bool {
        self.driver.protocol.is_connected()
    }

    /// Why the receiver said that it ended the last connection, if it said so.
    pub fn farewell(&self) -> Option<ByeReason> {
        self.driver.protocol.farewell()
    }

    /// The sender's identity, which the application sees with every message.
    pub fn id(&self) -> u64 {
        self.driver.sender_id
    }

    /// What it counted.
    pub fn stats(&self) -> SenderStats {
        SenderStats {
            protocol: self.driver.protocol.stats(),
            nic: self.driver.nic.counters(),
            in_flight: self.driver.protocol.in_flight(),
            window_permille: self.driver.protocol.window_permille(),
            unchecked: self.unchecked,
        }
    }

    fn check_buffer(&self, buffer: &SendBuffer) -> Result<(), SendError> {
        if self.driver.buffers.owns(buffer) { Ok(()) } else { Err(SendError::ForeignBuffer) }
    }

    fn keep(&mut self, index: u32, submitted_ns: u64, fields: &Fields<'_>, buffer: Option<SendBuffer>) {
        let pending = &mut self.driver.pending[index as usize];
        pending.tag = fields.tag;
        pending.class = fields.class;
        pending.large = fields.large;
        pending.length = fields.length;
        pending.crc32c = fields.crc32c;
        pending.submitted_ns = submitted_ns;
        pending.buffer = buffer;
        pending.user_header_bytes = fields.user_header.len();
        if let Some(kept) = pending.user_header.get_mut(..fields.user_header.len()) {
            kept.copy_from_slice(fields.user_header);
        }
    }

    fn drive_until(&mut self, timeout: Duration, done: impl Fn(&Driver) -> bool) -> Result<bool, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            self.driver.drive();
            if done(&self.driver) {
                return Ok(true);
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            self.sleep(left)?;
        }
    }

    /// Sleeps until the NIC has something, the protocol's time has come, or so long.
    fn sleep(&mut self, left: Option<Duration>) -> Result<(), WaitError> {
        if !self.driver.arm() {
            return Ok(());
        }
        let left = [left, self.driver.until_timeout()].into_iter().flatten().min();
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::from_borrowed_fd(self.driver.nic.wait_fd(), PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(WaitError(error.into())),
        }
    }
}

/// How long until then; `None`: without limit.
fn left_until(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

struct Fields<'a> {
    tag: u64,
    class: u8,
    large: bool,
    length: u64,
    crc32c: Option<u32>,
    user_header: &'a [u8],
}

fn small_length(user_header: &[u8], bytes: usize) -> Result<u32, SendError> {
    if user_header.len() > SMALL_USER_HEADER_MAX {
        return Err(SendError::UserHeader { bytes: user_header.len(), max: SMALL_USER_HEADER_MAX });
    }
    match u32::try_from(bytes) {
        Ok(length) if bytes <= SLAB_BYTES => Ok(length),
        _ => Err(SendError::NotSmall { bytes }),
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("id", &self.driver.sender_id).finish_non_exhaustive()
    }
}
