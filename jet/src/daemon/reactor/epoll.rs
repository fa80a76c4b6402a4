//! The reactor's epoll: it watches the NIC, the applications' doorbells, and the bell of the command queue.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

const NIC: u64 = u64::MAX;
const COMMANDS: u64 = u64::MAX - 1;
const EVENTS: usize = 64;

/// An epoll instance of the kernel, on which the reactor sleeps.
pub struct Epoll {
    epoll: OwnedFd,
}

/// Source of an event that woke the reactor. The NIC is no such source, since each turn of the driver looks
/// at the NIC anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The bell of the command queue rang.
    Commands,
    /// The doorbell of the session with this number rang.
    Session(u32),
}

impl Epoll {
    /// Creates an epoll that watches the NIC and the bell of the command queue.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new(nic: &impl AsFd, commands: &impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, nic, EventData::new_u64(NIC), EventFlags::IN)?;
        epoll::add(&epoll, commands, EventData::new_u64(COMMANDS), EventFlags::IN)?;
        Ok(Self { epoll })
    }

    /// Starts to watch a session's doorbell.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn add_session(&self, doorbell: &impl AsFd, session: u32) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, doorbell, EventData::new_u64(u64::from(session)), EventFlags::IN)?)
    }

    /// Stops watching a session's doorbell.
    pub fn remove(&self, doorbell: &impl AsFd) {
        // The doorbell was added before. Closing it would remove it as well, so an error does no harm.
        let _ = epoll::delete(&self.epoll, doorbell);
    }

    /// Sleeps until an event occurs or the span is over (`None`: until an event occurs). Calls `each` for
    /// every bell that rang.
    ///
    /// # Errors
    /// Returns the system's error. An interruption by a signal is no error.
    pub fn sleep(&self, span_ns: Option<u64>, mut each: impl FnMut(Woken)) -> io::Result<()> {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let timeout = span_ns.map(|ns| Timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
        });
        let (ready, _) = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            result => result?,
        };
        for event in ready {
            match event.data.u64() {
                NIC => {}
                COMMANDS => each(Woken::Commands),
                session => each(Woken::Session(u32::try_from(session).unwrap_or(u32::MAX))),
            }
        }
        Ok(())
    }
}
