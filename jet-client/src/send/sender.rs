//! A sender as programs use it: a driver with a clock, a NIC by address, and sleeping.

use super::buffer::SendBuffer;
use super::driver::{Driver, Ended, NicSource};
use super::error::{SendConnectError, WaitError};
use super::exchange::ProtocolStats;
use super::nic::ByAddress;
use super::options::SenderOptions;
use super::replies::Reply;
use super::submission::Ticket;
#[cfg(feature = "tokio")]
use crate::spin::FUTURE_SPIN_MAX;
use crate::spin::Spin;
#[cfg(feature = "tokio")]
use crate::timer::Timer;
use jet_fabric::nic::Counters;
use jet_fabric::{Clock, Nic};
use jet_wire::message::{AckStatus, ByeReason, WaitsFor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
#[cfg(feature = "tokio")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(feature = "tokio")]
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::Poll;
use std::time::{Duration, Instant};

/// A message's end. Each message has exactly one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// Ticket of the message.
    pub ticket: Ticket,
    /// Tag of the message.
    pub tag: u64,
    /// Status that the message ended with.
    pub status: AckStatus,
    /// The message's buffer, as long as it was sent, to be used again. `None` for a message that was copied.
    pub buffer: Option<SendBuffer>,
    /// The buffers of a message in pieces ([`Sender::send_gathered`]), as they were sent, to be used again.
    pub pieces: Vec<SendBuffer>,
    /// The bytes of a message that [`Sender::send_bytes`] sent from where they lie.
    #[cfg(feature = "bytes")]
    pub bytes: Option<bytes::Bytes>,
    /// The application's reply. `None` where the message wanted none, the application gave none, the receiver
    /// passes none on, or the message ended neither consumed nor rejected.
    pub reply: Option<Reply>,
    /// Time from the submission until the end was polled.
    pub latency: Duration,
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SenderStats {
    /// Counters of the sender's protocol.
    pub protocol: ProtocolStats,
    /// Counters of the sender's NIC.
    pub nic: Counters,
    /// Messages whose end was not polled yet.
    pub in_flight: usize,
    /// Share of its windows that the sender may use after congestion signals, in thousandths.
    pub window_permille: u32,
    /// Messages that were submitted without a checksum though one was asked for, because the receiver checks
    /// none.
    pub unchecked: u64,
}

/// A connection to one application behind one daemon. One thread uses it at a time.
///
/// Dropping it ends the connection: of messages without an end nobody hears any more, and some may not even
/// have been sent. [`Self::drain`] and [`Self::close`] wait for their ends.
///
/// Accepted messages are sent at the latest by the next [`Self::poll`], [`Self::wait`] or [`Self::flush`].
/// The caller's thread is the NIC over `shm:` and `tcp:`: poll or wait while messages are in flight. Over
/// `tcp:` a helper serves the receiver's READs while the caller does something else, the first of them within
/// 4 milliseconds.
pub struct Sender {
    pub(super) driver: Driver,
    pub(super) clock: Clock,
    spin: Spin,
    #[cfg(feature = "tokio")]
    timer: Option<Timer>,
}

impl Sender {
    /// Connects to the receiver. Blocks until the receiver answers, at most for
    /// [`SenderOptions::connect_timeout`].
    ///
    /// # Errors
    /// [`SendConnectError`], for this first connection only: a connection that is lost later is made again.
    pub fn connect(options: &SenderOptions) -> Result<Self, SendConnectError> {
        let nic = ByAddress::new(options).open()?;
        Self::connect_with(options, nic)
    }

    /// Connects over a NIC that the caller made.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(options: &SenderOptions, nic: Box<dyn Nic>) -> Result<Self, SendConnectError> {
        // `RandomState` has random keys, so this is a random number. It need not be secure.
        let id = RandomState::new().build_hasher().finish();
        let nics = Box::new(ByAddress::new(options));
        let mut sender = Self {
            driver: Driver::new(options, id, nic, nics)?,
            clock: Clock::start(),
            spin: Spin::new(options.spin_max),
            #[cfg(feature = "tokio")]
            timer: None,
        };
        let timeout = options.connect_timeout;
        let deadline = Instant::now().checked_add(timeout);
        let mut busy = None;
        loop {
            sender.drive();
            // It may have ended already. It is made again when there is something to send.
            if sender.driver.stats().connections > 0 {
                return Ok(sender);
            }
            match sender.driver.take_failure() {
                // The driver tries again: over the other fabrics, too, a connection waits for its turn.
                Some(failure @ SendConnectError::Busy(_)) if !sender.driver.has_given_up() => {
                    busy = Some(failure);
                }
                Some(failure) => return Err(failure),
                None => {}
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                let timed_out = SendConnectError::TimedOut { address: options.address.clone(), timeout };
                return Err(busy.unwrap_or(timed_out));
            }
            sender.sleep(left)?;
        }
    }

    /// Takes the reason why the newest attempt to connect failed, or why the receiver does not take this
    /// sender's memory. `None` where nothing was wrong since the last call.
    pub fn take_failure(&mut self) -> Option<SendConnectError> {
        self.driver.take_failure()
    }

    /// Whether messages that are submitted now carry a checksum. They do where the options ask for checksums,
    /// unless a connected receiver checks none.
    pub fn sends_checksums(&self) -> bool {
        self.driver.sends_checksums()
    }

    /// Returns the next message's end, if there is one. Sends and receives what can be sent and received now,
    /// and never waits for a message. Over `tcp:`, after a while without a poll, it may wait for the end of
    /// what the helper is about to write.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.take_end() {
            return Some(completion);
        }
        self.drive();
        self.take_end()
    }

    /// Waits for the next message's end, without limit. Returns `None` where nothing is in flight.
    ///
    /// # Errors
    /// [`WaitError::System`]: the system refuses to wait.
    pub fn wait(&mut self) -> Result<Option<Completion>, WaitError> {
        self.wait_until(None)
    }

    /// Waits for the next message's end, at most for `timeout` ([`Duration::MAX`]: without limit). Returns
    /// `None` where nothing is in flight.
    ///
    /// # Errors
    /// [`WaitError::NotYet`]: no end arrived in time. [`WaitError::System`]: the system refuses to wait.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Completion>, WaitError> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<Option<Completion>, WaitError> {
        loop {
            let found = self.spin(left_until(deadline));
            if found.is_some() || self.driver.in_flight() == 0 {
                return Ok(found);
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                return Err(WaitError::NotYet);
            }
            self.sleep(left)?;
        }
    }

    /// Polls until a message ended, or the budget for spinning is spent. Polls once where nothing is in
    /// flight.
    fn spin(&mut self, left: Option<Duration>) -> Option<Completion> {
        if self.driver.in_flight() == 0 {
            return self.poll();
        }
        let mut spin = self.spin;
        let found = spin.until(left, || self.poll());
        self.spin = spin;
        found
    }

    /// Waits for the next message's end. Returns `None` where nothing is in flight. Cancelling the future
    /// loses nothing. The runtime needs its I/O driver (`enable_io`), and no timers. Before it sleeps the
    /// future spins, at most for [`SenderOptions::spin_max`].
    ///
    /// # Errors
    /// [`WaitError::System`]: the system refuses to wait.
    ///
    /// # Panics
    /// Where it has to wait and there is no tokio runtime, or one without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub async fn wait_async(&mut self) -> Result<Option<Completion>, WaitError> {
        use tokio::io::{Interest, unix::AsyncFd};
        loop {
            let found = self.spin(Some(FUTURE_SPIN_MAX));
            if found.is_some() || self.driver.in_flight() == 0 {
                return Ok(found);
            }
            let now_ns = self.clock.now_ns();
            if !self.driver.nic().arm(now_ns) {
                continue;
            }
            // The timer is our own, because the runtime may have none.
            let timer = self.set_timer().map_err(WaitError::System)?;
            // SAFETY: the borrowed descriptor stays open, because the NIC outlives its registration.
            let nic =
                unsafe { AsyncFd::register_with_interest(self.driver.nic().wait_fd(), Interest::READABLE) }
                    .map_err(|error| WaitError::System(error.into()))?;
            // SAFETY: the registration has its share of the descriptor, which is open until it ends.
            let watch = |timer| unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) };
            let timer = timer.map(watch).transpose().map_err(|error| WaitError::System(error.into()))?;
            std::future::poll_fn(|context| {
                if timer.as_ref().is_some_and(|timer| timer.poll_read_ready(context).is_ready()) {
                    return Poll::Ready(Ok(()));
                }
                nic.poll_read_ready(context).map_ok(drop)
            })
            .await
            .map_err(WaitError::System)?;
        }
    }

    /// Sets the timer to when the driver must be called again, if it must, and returns its descriptor.
    #[cfg(feature = "tokio")]
    fn set_timer(&mut self) -> io::Result<Option<Arc<OwnedFd>>> {
        let Some(left) = self.until_timeout() else { return Ok(None) };
        let timer = match self.timer.take() {
            Some(timer) => timer,
            None => Timer::new()?,
        };
        timer.set(Some(left))?;
        Ok(Some(self.timer.insert(timer).descriptor()))
    }

    /// Sends messages that were accepted, without waiting for the next poll, as far as the daemon has given
    /// credit. What has no credit yet goes with a later flush, poll or wait: a sender that sleeps wakes when
    /// credit comes.
    pub fn flush(&mut self) {
        self.drive();
    }

    /// Waits until every message has its end, without limit. [`Self::poll`] returns the ends afterwards.
    ///
    /// # Errors
    /// [`WaitError::System`]: the system refuses to wait.
    pub fn drain(&mut self) -> Result<(), WaitError> {
        self.drive_until(None, |driver| driver.unfinished() == 0)
    }

    /// Waits until every message has its end, at most for `timeout` ([`Duration::MAX`]: without limit).
    /// [`Self::poll`] returns the ends afterwards.
    ///
    /// # Errors
    /// [`WaitError::NotYet`]: some have none in time. [`WaitError::System`]: the system refuses to wait.
    pub fn drain_timeout(&mut self, timeout: Duration) -> Result<(), WaitError> {
        self.drive_until(Instant::now().checked_add(timeout), |driver| driver.unfinished() == 0)
    }

    /// Accepts no further messages, waits until every message has its end, and disconnects. It waits without
    /// limit. [`Self::poll`] returns the ends afterwards.
    ///
    /// # Errors
    /// [`WaitError::System`]: the system refuses to wait.
    pub fn close(&mut self) -> Result<(), WaitError> {
        self.begin_to_close();
        self.drive_until(None, |driver| driver.is_closed())
    }

    /// Accepts no further messages, waits until every message has its end, and disconnects; at most for
    /// `timeout` ([`Duration::MAX`]: without limit). [`Self::poll`] returns the ends afterwards.
    ///
    /// # Errors
    /// [`WaitError::NotYet`]: it is not closed in time. [`WaitError::System`]: the system refuses to wait.
    pub fn close_timeout(&mut self, timeout: Duration) -> Result<(), WaitError> {
        self.begin_to_close();
        self.drive_until(Instant::now().checked_add(timeout), |driver| driver.is_closed())
    }

    /// Accepts no further messages, and disconnects when every message has its end.
    pub(super) fn begin_to_close(&mut self) {
        self.driver.close();
    }

    /// Returns whether it has disconnected after it was to.
    pub(super) fn is_closed(&self) -> bool {
        self.driver.is_closed()
    }

    /// Prepares to sleep, for a program with an event loop of its own. Call it after [`Self::poll`] had
    /// nothing more.
    ///
    /// `true`: sleep until the sender's descriptor is readable, at most for [`Self::next_timeout`]; then poll
    /// again. `false`: there is something, so poll now. Whoever uses the sender after `true` calls this
    /// function again before it sleeps.
    pub fn prepare_sleep(&mut self) -> bool {
        let now_ns = self.clock.now_ns();
        // What was taken back may have ended without the NIC. A message that was submitted since may want a
        // connection, of which the NIC knows nothing yet.
        !self.has_ended() && !self.driver.has_action() && self.driver.nic().arm(now_ns)
    }

    /// Returns the time after which the sender must be polled even if nothing comes; `None`: never.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.until_timeout()
    }

    /// Returns how often the sender's descriptor became another one, because its device was removed.
    pub fn devices(&self) -> u32 {
        self.driver.devices()
    }

    /// Returns the most messages that may be without an end at once.
    pub(super) fn in_flight_max(&self) -> usize {
        self.driver.pending.len()
    }

    /// Returns the time by which the sender must be polled, in nanoseconds of its clock.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.driver.next_timeout_ns()
    }

    /// Returns the time until `due_ns`.
    pub(super) fn until(&self, due_ns: u64) -> Duration {
        Duration::from_nanos(due_ns.saturating_sub(self.clock.now_ns()))
    }

    /// Whether a message has an end that was not polled.
    pub(super) fn has_ended(&self) -> bool {
        self.driver.in_flight() > self.driver.unfinished() as usize
    }

    pub(super) fn in_flight(&self) -> usize {
        self.driver.in_flight()
    }

    /// Whether another message would be accepted, as far as room is concerned.
    pub(super) fn has_room(&self) -> bool {
        self.driver.has_room()
    }

    pub(super) fn spin_max(&self) -> Duration {
        self.spin.max()
    }

    /// Whether the sender is connected.
    pub fn is_connected(&self) -> bool {
        self.driver.is_connected()
    }

    /// Returns the reason that the receiver gave for ending the last connection, if it gave one.
    pub fn farewell(&self) -> Option<ByeReason> {
        self.driver.farewell()
    }

    /// Returns what the messages wait for at the receiver, as its last heartbeat said it. `None`: nothing
    /// waits, something ended since, there was no heartbeat yet, or the receiver never says it.
    pub fn waits_for(&self) -> Option<WaitsFor> {
        self.driver.waits_for()
    }

    /// Returns the sender's identity, which the application sees with every message.
    pub fn id(&self) -> u64 {
        self.driver.id()
    }

    /// Returns the sender's counters.
    pub fn stats(&self) -> SenderStats {
        SenderStats {
            protocol: self.driver.stats(),
            nic: self.driver.nic.counters(),
            in_flight: self.driver.in_flight(),
            window_permille: self.driver.window_permille(),
            unchecked: self.driver.unchecked,
        }
    }

    #[inline]
    fn drive(&mut self) {
        self.driver.drive(self.clock.now_ns());
    }

    #[inline]
    fn take_end(&mut self) -> Option<Completion> {
        let ended = self.driver.poll_end()?;
        let Ended { ticket, tag, status, buffer, pieces, reply, submitted_ns, .. } = ended;
        let latency = Duration::from_nanos(self.clock.now_ns().saturating_sub(submitted_ns));
        Some(Completion {
            ticket,
            tag,
            status,
            buffer,
            pieces,
            #[cfg(feature = "bytes")]
            bytes: ended.bytes,
            reply,
            latency,
        })
    }

    /// Returns the time until the driver must be called again.
    fn until_timeout(&self) -> Option<Duration> {
        let at_ns = self.driver.next_timeout_ns()?;
        Some(Duration::from_nanos(at_ns.saturating_sub(self.clock.now_ns())))
    }

    fn drive_until(
        &mut self,
        deadline: Option<Instant>,
        done: impl Fn(&Driver) -> bool,
    ) -> Result<(), WaitError> {
        loop {
            self.drive();
            if done(&self.driver) {
                return Ok(());
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                return Err(WaitError::NotYet);
            }
            self.sleep(left)?;
        }
    }

    /// Sleeps until the NIC has something, the driver must be called, or `left` is over.
    fn sleep(&mut self, left: Option<Duration>) -> io::Result<()> {
        let now_ns = self.clock.now_ns();
        if !self.driver.nic().arm(now_ns) {
            return Ok(());
        }
        let left = [left, self.until_timeout()].into_iter().flatten().min();
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::from_borrowed_fd(self.driver.nic().wait_fd(), PollFlags::IN)], left.as_ref())
        {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the time until the deadline; `None`: without limit.
fn left_until(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Descriptor that is readable when there is something to poll, after [`Sender::prepare_sleep`] returned
/// `true`. It becomes another one where the device is removed ([`Sender::devices`]).
impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.nic.wait_fd()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("id", &self.driver.id()).finish_non_exhaustive()
    }
}
