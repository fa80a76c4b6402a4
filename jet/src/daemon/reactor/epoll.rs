//! What the reactor sleeps on: the NIC, the applications' doorbells, the command queue.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

const NIC: u64 = u64::MAX;
const COMMANDS: u64 = u64::MAX - 1;
const EVENTS: usize = 64;

/// The reactor's epoll.
pub struct Epoll {
    epoll: OwnedFd,
}

/// What woke the reactor, besides the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The command queue's bell.
    Commands,
    /// A session's doorbell.
    Session(u32),
}

impl Epoll {
    /// Watches the NIC and the command bell.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(nic: &impl AsFd, commands: &impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, nic, EventData::new_u64(NIC), EventFlags::IN)?;
        epoll::add(&epoll, commands, EventData::new_u64(COMMANDS), EventFlags::IN)?;
        Ok(Self { epoll })
    }

    /// Watches a session's doorbell.
    ///
    /// # Errors
    /// What the system says.
    pub fn add_session(&self, doorbell: &impl AsFd, session: u32) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, doorbell, EventData::new_u64(u64::from(session)), EventFlags::IN)?)
    }

    /// Watches it no longer.
    pub fn remove(&self, doorbell: &impl AsFd) {
        // It was added before, and closing it would take it out as well.
        let _ = epoll::delete(&self.epoll, doorbell);
    }

    /// Sleeps until something happens or the span is over; tells each bell that rang.
    ///
    /// # Errors
    /// What the system says; never "interrupted".
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
