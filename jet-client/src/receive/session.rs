//! An application's registration with the daemon.

use super::error::{Fault, ReceiveError, RegisterError};
use super::message::Message;
use super::shared::{Keeping, Wants};
use super::table::{Accepted, Table};
use crate::Backoff;
use crate::setters::setters;
use crate::shared::sleepers::Sleepers;
use crate::spin::{SPIN_MAX, Spin};
use jet_control::connection::Look;
use jet_control::protocol::{Register, Registered};
use jet_control::{CONTROL_SOCKET, ControlConnection, ControlRequest, ControlResponse, ErrorCode};
use jet_fabric::memory::{Mapping, Protection};
use jet_fabric::unix::{Doorbell, Rung};
use jet_wire::segment::{AppEnd, Notice, Place, Release, app_end};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use rustix::event::epoll;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The most bytes of a segment that are mapped: more than the largest shape needs.
const SEGMENT_BYTES_MAX: u64 = 512 << 20;
/// Upper bound for the excess length of a file on huge pages: it is longer than its used part by less than
/// one huge page.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Polls that find nothing between two checks whether the daemon still lives: a check is a system call.
const POLLS_PER_CHECK: u32 = 4096;

/// Options of a registration. [`Self::new`] has the defaults; each option has a method that sets it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegisterOptions {
    /// Path of the daemon's control socket; default [`CONTROL_SOCKET`].
    pub control_socket: PathBuf,
    /// Name that senders address: 1 to 32 characters out of `A-Z a-z 0-9 . _ - / :`.
    pub app: String,
    /// Admission class of the application's messages, 0 the most urgent; default 0. A daemon has 4 unless its
    /// `admission.classes` says otherwise, and refuses the registration for a class beyond.
    pub class: u8,
    /// Whether messages take escape memory instead of waiting for room in the pool; default no.
    pub memory_instead_of_waiting: bool,
    /// Whether the application shares its name with others: the consumers of the name, each with a session of
    /// its own. All of them say so, and run as the same user. Each sender's messages go to one of them, in
    /// their order. Default no: the application has the name for itself.
    pub shares_name: bool,
    /// Longest time that a wait spins before it sleeps; default 200 us. Zero never spins. A future
    /// spins for 50 us at most.
    pub spin_max: Duration,
    /// Time for which a [`SharedSession`](super::SharedSession) tries to register again when the daemon is
    /// gone; default 30 s. Zero never tries. A [`Session`] never does.
    pub reconnect_for: Duration,
    /// Waits between attempts to register again.
    pub backoff: Backoff,
}

impl RegisterOptions {
    /// Returns the default options for an application of that name.
    pub fn new(app: impl Into<String>) -> Self {
        Self {
            control_socket: CONTROL_SOCKET.into(),
            app: app.into(),
            class: 0,
            memory_instead_of_waiting: false,
            shares_name: false,
            spin_max: SPIN_MAX,
            reconnect_for: Duration::from_secs(30),
            backoff: Backoff::default(),
        }
    }

    /// Sets [`Self::control_socket`].
    #[must_use]
    pub fn control_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.control_socket = path.into();
        self
    }

    setters! {
        class: u8,
        memory_instead_of_waiting: bool,
        shares_name: bool,
        spin_max: Duration,
        reconnect_for: Duration,
        backoff: Backoff,
    }
}

/// Counters of a session since it was registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Messages that the application received.
    pub messages: u64,
    /// Runs of slabs that the application took.
    pub slices: u64,
    /// Bytes of the runs that the application took.
    pub bytes: u64,
    /// Entries written to the release ring.
    pub releases: u64,
    /// Times that the daemon had to be woken.
    pub rings: u64,
    /// Times that this end slept.
    pub sleeps: u64,
}

#[derive(Default)]
pub(super) struct Counts {
    pub messages: Cell<u64>,
    pub slices: Cell<u64>,
    pub bytes: Cell<u64>,
    pub releases: Cell<u64>,
    pub rings: Cell<u64>,
    pub sleeps: Cell<u64>,
}

#[derive(Clone, Copy)]
enum Health {
    Well,
    Gone,
    Broken(Fault),
}

/// An application's registration, by which it receives messages. One thread uses it at a time (`Send`, not
/// `Sync`), and messages and slices borrow it. Threads and tasks share a
/// [`SharedSession`](super::SharedSession). Dropping the session ends it: senders of unfinished messages hear
/// `AppGone`.
pub struct Session {
    pub(super) table: Table,
    pub(super) end: RefCell<AppEnd>,
    /// Newest release entry, which is held back because it may still grow.
    pub(super) held_release: Cell<Option<Release>>,
    /// Release entries, and their slabs, written to the ring since the daemon was last shown entries.
    pub(super) unpublished: Cell<(u32, u32)>,
    pub(super) doorbell: Doorbell,
    pub(super) stats: Counts,
    pub(super) spin: Cell<Spin>,
    /// Number that tells this process's sessions apart.
    pub(super) identity: u64,
    /// Whether the sleeping word is set: `prepare_sleep` returned `true`, and this was not taken back yet.
    pub(super) asleep: Cell<bool>,
    /// Messages that were consumed before all of them arrived, and that have no end yet.
    pub(super) draining: Cell<u32>,
    /// Number of deliveries read so far.
    pub(super) deliveries_read: Cell<u64>,
    /// Value of `deliveries_read` at the last `prepare_sleep`.
    pub(super) read_before: Cell<u64>,
    /// Threads and tasks that sleep on this session, where it is shared.
    pub(super) sleepers: Sleepers<Wants>,
    /// Messages and slices that keep this session, where it is shared.
    pub(super) keeping: Keeping,
    /// Newest notice that was reported to the application. A wait that began before the report reports it,
    /// too.
    pub(super) reported_notice: Cell<Option<Notice>>,
    /// Newest notice for which all sleepers were woken, whatever the doorbell said.
    wakened_notice: Cell<Option<Notice>>,
    pool: Slabs,
    /// Escape memory, where runs lie that escaped from the pool; none where the daemon has none.
    escape: Option<Slabs>,
    polls_in_vain: Cell<u32>,
    bell_is_closed: Cell<bool>,
    health: Cell<Health>,
    farewell: RefCell<Option<(ErrorCode, String)>>,
    control: RefCell<ControlConnection>,
    /// Descriptor that is readable when the doorbell rang or the daemon hung up.
    wait: OwnedFd,
    number: u32,
    /// Mapping of the segment, kept for as long as `end` points into it.
    _segment: Mapping,
}

/// Descriptors and numbers that the daemon handed over.
#[doc(hidden)]
#[derive(Debug)]
pub struct SessionParts {
    pub number: u32,
    pub pool: OwnedFd,
    pub pool_bytes: u64,
    pub pool_slabs: u32,
    pub segment: OwnedFd,
    pub doorbell: OwnedFd,
    /// Descriptor of escape memory, and its length in bytes.
    pub escape: Option<(OwnedFd, u64)>,
}

/// Memory of the daemon that is mapped read-only, and the number of its slabs.
struct Slabs {
    mapping: Mapping,
    count: u32,
}

impl Slabs {
    /// Maps memory that the daemon passed, with the length and the number of slabs that the daemon states.
    /// Fails with the text `too_small` where the memory is shorter than its slabs.
    fn map(fd: &OwnedFd, bytes: u64, count: u32, too_small: &'static str) -> Result<Self, RegisterError> {
        let bytes_max = bytes.saturating_add(HUGE_PAGE_BYTES);
        let mapping = Mapping::map_received(fd.as_fd(), Protection::Read, bytes_max)?;
        if (count as usize).saturating_mul(SLAB_BYTES) > mapping.bytes() {
            return Err(RegisterError::Answer(too_small));
        }
        Ok(Self { mapping, count })
    }

    /// Returns the address of a run, if all of the run lies in this memory.
    #[inline]
    fn locate(&self, slab: u32, slices: u16) -> Option<NonNull<u8>> {
        if slab.checked_add(u32::from(slices))? > self.count {
            return None;
        }
        // SAFETY: the slab lies within the mapping, which is as long as its slabs (checked by `map`).
        NonNull::new(unsafe { self.mapping.base().add(slab as usize * SLAB_BYTES) })
    }
}

impl Session {
    /// Registers an application with the daemon of this host. Blocks until the daemon answers.
    ///
    /// # Errors
    /// [`RegisterError`]: the daemon cannot be reached, or refuses (the name is taken, too many sessions,
    /// draining).
    pub fn register(options: &RegisterOptions) -> Result<Self, RegisterError> {
        let mut control = ControlConnection::connect(&options.control_socket)?;
        let request = ControlRequest::Register(Register {
            class: options.class,
            memory_instead_of_waiting: options.memory_instead_of_waiting,
            shares_name: options.shares_name,
            ..Register::new(&options.app)
        });
        let (response, mut fds) = control.request(&request)?;
        let registered = match response {
            ControlResponse::Registered(registered) => registered,
            ControlResponse::Error { code, message } => return Err(RegisterError::Refused { code, message }),
            _ => return Err(RegisterError::Answer("it has another type")),
        };
        if registered.class != options.class {
            return Err(RegisterError::Answer("it registered another admission class"));
        }
        if registered.memory_instead_of_waiting != options.memory_instead_of_waiting {
            return Err(RegisterError::Answer("it registered another memory_instead_of_waiting"));
        }
        if registered.shares_name != options.shares_name {
            return Err(RegisterError::Answer("it registered another shares_name, as older daemons do"));
        }
        if registered.slab_bytes != SLAB_BYTES_U32 {
            return Err(RegisterError::Answer("its slabs are not 4096 bytes"));
        }
        let Registered { session: number, pool_bytes, pool_slabs, escape_bytes, .. } = registered;
        let found = fds.len();
        let escape = if escape_bytes > 0 { fds.pop().map(|fd| (fd, escape_bytes)) } else { None };
        let Ok([pool, segment, doorbell]) = <[OwnedFd; 3]>::try_from(fds) else {
            let expected = if escape_bytes > 0 { 4 } else { 3 };
            return Err(RegisterError::Descriptors { found, expected });
        };
        let parts = SessionParts { number, pool, pool_bytes, pool_slabs, segment, doorbell, escape };
        Self::assemble(control, parts, options.spin_max)
    }

    /// Makes a session out of what came with the daemon's answer.
    #[doc(hidden)]
    pub fn assemble(
        control: ControlConnection,
        parts: SessionParts,
        spin_max: Duration,
    ) -> Result<Self, RegisterError> {
        static SESSIONS: AtomicU64 = AtomicU64::new(0);
        let pool = Slabs::map(
            &parts.pool,
            parts.pool_bytes,
            parts.pool_slabs,
            "its pool is smaller than its slabs",
        )?;
        let escape = parts.escape.map(|(fd, bytes)| {
            let too_small = "its escape memory is smaller than it says";
            // More slabs than a `u32` can count are more than any file has.
            let count = u32::try_from(bytes / SLAB_BYTES as u64).unwrap_or(u32::MAX);
            Slabs::map(&fd, bytes, count, too_small)
        });
        let escape = escape.transpose()?;
        let segment = Mapping::map_received(parts.segment.as_fd(), Protection::ReadWrite, SEGMENT_BYTES_MAX)?;
        // SAFETY: the mapping is page-aligned and moves into the session beside the end; the descriptor came
        // for this session alone, so this is the only application's end.
        let end = unsafe { app_end(segment.base(), segment.bytes())? };
        let doorbell = Doorbell::from_fd(parts.doorbell);
        let wait = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        for (fd, data) in [(doorbell.as_fd(), 0), (control.as_fd(), 1)] {
            epoll::add(&wait, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
                .map_err(std::io::Error::from)?;
        }
        Ok(Self {
            table: Table::new(end.shape()),
            end: RefCell::new(end),
            held_release: Cell::new(None),
            unpublished: Cell::new((0, 0)),
            doorbell,
            stats: Counts::default(),
            spin: Cell::new(Spin::new(spin_max)),
            // Relaxed is enough: only uniqueness matters.
            identity: SESSIONS.fetch_add(1, Ordering::Relaxed),
            asleep: Cell::new(false),
            draining: Cell::new(0),
            deliveries_read: Cell::new(0),
            read_before: Cell::new(0),
            sleepers: Sleepers::default(),
            keeping: Keeping::default(),
            reported_notice: Cell::new(None),
            wakened_notice: Cell::new(None),
            pool,
            escape,
            polls_in_vain: Cell::new(0),
            bell_is_closed: Cell::new(false),
            health: Cell::new(Health::Well),
            farewell: RefCell::new(None),
            control: RefCell::new(control),
            wait,
            number: parts.number,
            _segment: segment,
        })
    }

    /// Returns the daemon's number for this session, as `jet status` shows it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the next message, if one has begun to arrive.
    ///
    /// # Errors
    /// [`ReceiveError::NotYet`]: none has. Otherwise as [`Self::receive`].
    #[inline]
    pub fn try_receive(&self) -> Result<Message<'_>, ReceiveError> {
        self.next_message().map(|index| Message::new(self, index))
    }

    /// Takes the next message, if one has begun to arrive. Returns its place in the table.
    #[inline]
    pub(super) fn next_message(&self) -> Result<u32, ReceiveError> {
        self.check()?;
        loop {
            if let Some(index) = self.table.take_ready() {
                self.stats.messages.set(self.stats.messages.get() + 1);
                return Ok(index);
            }
            if !self.demultiplex()? {
                self.after_empty_poll()?;
                return Err(ReceiveError::NotYet);
            }
        }
    }

    /// Returns the session's counters.
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            messages: self.stats.messages.get(),
            slices: self.stats.slices.get(),
            bytes: self.stats.bytes.get(),
            releases: self.stats.releases.get(),
            rings: self.stats.rings.get(),
            sleeps: self.stats.sleeps.get(),
        }
    }

    /// Takes one delivery out of the ring and stores it. Returns `false` where there is none.
    #[inline]
    pub(super) fn demultiplex(&self) -> Result<bool, ReceiveError> {
        let mut end = self.end.borrow_mut();
        let accepted = match end.deliveries.pop() {
            Ok(None) => return Ok(false),
            Ok(Some(delivery)) => {
                self.table.accept(&delivery, &end).map(|accepted| (delivery.slot, delivery.message, accepted))
            }
            Err(error) => Err(Fault::Ring(error)),
        };
        drop(end);
        self.deliveries_read.set(self.deliveries_read.get() + 1);
        match accepted {
            Ok((_, message, Accepted::Stored { begins })) => {
                if self.sleepers.any() {
                    self.sleepers.wake_one(if begins { Wants::Message } else { Wants::Slice { message } });
                }
            }
            Ok((_, message, Accepted::Withdrawn)) => {
                self.finish_drained(message);
                self.sleepers.wake_one(Wants::Slice { message });
            }
            Ok((slot, message, Accepted::Late { slices })) => {
                debug_assert_eq!(self.table.slot(slot).slices_left.get(), slices);
                self.release_unread(slot);
                self.finish_drained(message);
            }
            Err(fault) => return Err(self.broken(fault)),
        }
        Ok(true)
    }

    /// Handles a poll that found nothing: shows the daemon what was given back, and checks now and then
    /// whether the daemon still lives.
    #[inline]
    pub(super) fn after_empty_poll(&self) -> Result<(), ReceiveError> {
        self.show_releases();
        self.end.borrow_mut().deliveries.advance();
        let polls = self.polls_in_vain.get() + 1;
        // Where others sleep, the sleeping word stays set and the doorbell is not cleared.
        if polls < POLLS_PER_CHECK && (!self.asleep.get() || self.sleepers.any()) {
            self.polls_in_vain.set(polls);
            return Ok(());
        }
        self.clear_sleep();
        self.check_daemon();
        self.check()
    }

    /// Handles what the session's descriptor has: reads what arrived, wakes those who wait for it, and clears
    /// the doorbell.
    pub(super) fn handle_descriptor(&self) -> Result<(), ReceiveError> {
        // The loop is bounded, because the daemon may use released slots for further deliveries meanwhile.
        for _ in 0..self.table.deliveries_max() {
            if !self.demultiplex()? {
                break;
            }
        }
        // What came for messages that were ended early was given back at once.
        self.show_releases();
        self.end.borrow_mut().deliveries.advance();
        // The bell may have rung when the sleeping word had been taken back already.
        self.asleep.set(true);
        self.clear_sleep();
        self.check_daemon();
        self.check()
    }

    /// Clears the doorbell, and takes the sleeping word back, unless others sleep on it.
    pub(super) fn clear_sleep(&self) {
        if self.asleep.replace(false) {
            self.end.borrow_mut().deliveries.awake();
            if self.doorbell.clear() == Rung::Closed && !self.bell_is_closed.replace(true) {
                // The daemon closes the bell before it says why on the control connection, or hangs up there.
                // A closed bell would be readable for ever.
                let _ = epoll::delete(&self.wait, self.doorbell.as_fd());
                self.check_daemon();
            }
            self.sleep_on_for_others();
        }
    }

    /// Sets the sleeping word again for those who still sleep. All who share the session share one word and
    /// one doorbell.
    ///
    /// They are woken where something came before the word was set again: a delivery, or a notice, which is
    /// in no ring. Each notice wakes them only once. It lasts until something is given back, and those who
    /// look in vain would wake each other for ever.
    fn sleep_on_for_others(&self) {
        if self.sleepers.any() {
            let mut end = self.end.borrow_mut();
            let sleep = end.deliveries.prepare_sleep();
            let notice = end.notice().filter(|notice| notice.lasting);
            drop(end);
            self.asleep.set(sleep);
            let is_new = notice.is_some() && notice != self.wakened_notice.get();
            if is_new {
                self.wakened_notice.set(notice);
            }
            if !sleep || is_new {
                self.sleepers.wake_all();
            }
        }
    }

    pub(super) fn check_daemon(&self) {
        self.polls_in_vain.set(0);
        if !self.is_well() {
            return;
        }
        let look = self.control.borrow_mut().look();
        match look {
            Look::Alive => {}
            Look::Gone => self.set_health(Health::Gone),
            Look::Ended { code, message } => {
                *self.farewell.borrow_mut() = Some((code, message));
                self.set_health(Health::Gone);
            }
        }
    }

    /// Sets the session's health, and wakes all who sleep. The cause may have been read from the descriptors
    /// already, so the descriptors would wake nobody else.
    ///
    /// Hangs up as well: as long as slices of the session are held, its name would stay taken otherwise.
    fn set_health(&self, health: Health) {
        self.health.set(health);
        let _ = rustix::net::shutdown(self.control.borrow().as_fd(), rustix::net::Shutdown::Both);
        self.sleepers.wake_all();
    }

    #[inline]
    pub(super) fn check(&self) -> Result<(), ReceiveError> {
        match self.health.get() {
            Health::Well => Ok(()),
            Health::Broken(fault) => Err(ReceiveError::Broken(fault)),
            Health::Gone => Err(match &*self.farewell.borrow() {
                Some((code, message)) => ReceiveError::Ended { code: *code, message: message.clone() },
                None => ReceiveError::DaemonGone,
            }),
        }
    }

    #[inline]
    pub(super) fn is_well(&self) -> bool {
        matches!(self.health.get(), Health::Well)
    }

    pub(super) fn break_down(&self, fault: Fault) {
        self.set_health(Health::Broken(fault));
    }

    /// Returns where a run lies in this process, if the pool or escape memory has it.
    #[inline]
    pub(super) fn locate(&self, place: Place, slices: u16) -> Option<NonNull<u8>> {
        let slabs = if place.escaped { self.escape.as_ref()? } else { &self.pool };
        slabs.locate(place.slab, slices)
    }
}

/// Descriptor that is readable when a message may have come or the daemon is gone. Valid after
/// [`Session::prepare_sleep`] returned `true`.
impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wait.as_fd()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.show_releases();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("number", &self.number).finish_non_exhaustive()
    }
}
