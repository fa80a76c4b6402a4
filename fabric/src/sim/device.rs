//! A simulated device: its tables and queues.

use super::network::Posted;
use super::options::SimOptions;
use super::queue_pair::{End, QueuePair, State};
use super::regions::Regions;
use super::schedule::What;
use crate::Qp;
use crate::limits::{CompletionQueues, LimitError, NicLimits};
use crate::nic::{Completion, Counters, DisconnectReason, Event, SrqEntry, Status, Work};
use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What has happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    There,
    /// Nothing happens at it before this time.
    Frozen {
        until_ns: u64,
    },
    /// Its host has no power: nothing comes from it any more.
    Lost,
    /// It was removed from its host, or its NIC was dropped.
    Removed,
}

/// A descriptor to sleep on, for NICs that are used in real time. It becomes readable at a time.
#[derive(Debug)]
pub(super) struct Bell {
    timer: OwnedFd,
}

impl Bell {
    pub fn new() -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { timer })
    }

    /// Rings after so many nanoseconds; `None`: not at all.
    pub fn ring_after(&self, span_ns: Option<u64>) {
        let at = span_ns.map_or(Timespec { tv_sec: 0, tv_nsec: 0 }, |span_ns| {
            let span_ns = span_ns.max(1);
            Timespec {
                tv_sec: i64::try_from(span_ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (span_ns % 1_000_000_000).try_into().expect("less than a second"),
            }
        });
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: never, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting).expect("a valid time");
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// A simulated device.
#[derive(Debug)]
pub(super) struct Device {
    pub options: SimOptions,
    pub limits: NicLimits,
    pub presence: Presence,
    /// What was due while the device was frozen, in its order.
    pub held: Vec<(End, What)>,
    pub regions: Regions,
    pub srq: VecDeque<SrqEntry>,
    /// SRQ entries that are posted, or completed and not polled.
    pub srq_used: u32,
    /// Completions of SRQ entries.
    pub received: VecDeque<Completion>,
    /// Completions of SENDs and READs.
    pub done: VecDeque<Completion>,
    pub events: VecDeque<Event>,
    pub qps: Vec<QueuePair>,
    free: Vec<u32>,
    /// READs and SENDs of all connections whose completions were not polled.
    pub reads: u32,
    pub sends: u32,
    /// QPs with requests that were posted since the doorbell was rung.
    pub rung: Vec<u32>,
    /// Headers of SENDs that were posted, for who watches them.
    pub posted: VecDeque<Posted>,
    /// Number of the address that it listens on.
    pub listens: Option<u32>,
    /// Time from which on its port is free.
    pub port_free_ns: u64,
    /// Nanoseconds by which its user's clock is ahead of the network's.
    pub clock_ahead_ns: u64,
    pub counters: Counters,
    /// Whether its user sleeps until it is woken.
    pub armed: bool,
    pub bell: Option<std::sync::Arc<Bell>>,
}

impl Device {
    pub fn new(options: SimOptions) -> Result<Self, LimitError> {
        let limits = NicLimits::derive(options.profile.attributes(), &options.requirements)?;
        Ok(Self {
            options,
            limits,
            presence: Presence::There,
            held: Vec::new(),
            regions: Regions::new(options.regions_max),
            srq: VecDeque::with_capacity(limits.reported.srq_entries_max as usize),
            srq_used: 0,
            received: VecDeque::new(),
            done: VecDeque::new(),
            events: VecDeque::new(),
            qps: Vec::new(),
            free: Vec::new(),
            reads: 0,
            sends: 0,
            rung: Vec::new(),
            posted: VecDeque::new(),
            listens: None,
            port_free_ns: 0,
            clock_ahead_ns: 0,
            counters: Counters::default(),
            armed: false,
            bell: None,
        })
    }

    /// Begins a connection; `None` where the table is full.
    pub fn begin(&mut self, state: State) -> Option<Qp> {
        let index = self.free.pop().or_else(|| {
            let index = u32::try_from(self.qps.len()).expect("connections are few");
            (index < self.limits.reported.qps_max).then(|| {
                self.qps.push(QueuePair::new());
                index
            })
        })?;
        let requests = self.limits.reported.sends_per_qp_max + self.limits.reported.reads_per_qp_max;
        let qp = &mut self.qps[index as usize];
        qp.begin(state, requests);
        Some(Qp { index, generation: qp.generation })
    }

    /// Returns the connection of this handle, if it has not been reported to have ended.
    pub fn qp(&mut self, qp: Qp) -> Option<&mut QueuePair> {
        let found = self.qps.get_mut(qp.index as usize)?;
        let is_meant = found.generation == qp.generation && found.state != State::Free;
        is_meant.then_some(found)
    }

    /// Adds a completion of a connection.
    pub fn complete(&mut self, qp: Qp, work: Work, status: Status) {
        if let Some(qp) = self.qp(qp) {
            qp.unpolled += 1;
        }
        self.counters.flushed += u64::from(status == Status::Flushed);
        let queue = match work {
            Work::Receive { .. } | Work::SrqFlush { .. } => &mut self.received,
            Work::Send { .. } | Work::Read { .. } => &mut self.done,
        };
        queue.push_back(Completion { qp, work, status });
        assert!(self.has_places(), "more completions than there are places");
    }

    /// Returns whether the completion queues have places for all that has completed and was not polled.
    fn has_places(&self) -> bool {
        let (received, done) = (self.received.len() as u64, self.done.len() as u64);
        let NicLimits { completions, shape, .. } = self.limits;
        match self.options.requirements.completion_queues {
            CompletionQueues::One => received + done <= u64::from(completions),
            CompletionQueues::Apart => {
                let places = u64::from(shape.queues) * u64::from(shape.places);
                received <= u64::from(completions) && done <= places
            }
        }
    }

    /// Takes a completion off the queue that `received` chooses, or off the other one.
    pub fn take_completion(&mut self, received: bool) -> Option<Completion> {
        let (first, second) = if received {
            (&mut self.received, &mut self.done)
        } else {
            (&mut self.done, &mut self.received)
        };
        let done = first.pop_front().or_else(|| second.pop_front())?;
        match done.work {
            Work::Receive { .. } | Work::SrqFlush { .. } => self.srq_used -= 1,
            Work::Send { .. } => self.sends -= 1,
            Work::Read { .. } => self.reads -= 1,
        }
        if let Some(qp) = self.qp(done.qp) {
            qp.unpolled -= 1;
            match done.work {
                Work::Send { .. } => qp.sends -= 1,
                Work::Read { .. } => qp.reads -= 1,
                Work::Receive { .. } | Work::SrqFlush { .. } => {}
            }
        }
        self.report_end(done.qp);
        Some(done)
    }

    /// Reports the end of a connection that is over, once its completions were polled.
    pub fn report_end(&mut self, qp: Qp) {
        if let Some(pair) = self.qp(qp)
            && let State::Over(reason) = pair.state
            && pair.unpolled == 0
        {
            self.report(qp, Event::Disconnected { qp, reason });
        }
    }

    /// Reports the end of a connection. Its place is free once the event was polled.
    pub fn report(&mut self, qp: Qp, event: Event) {
        if let Some(pair) = self.qp(qp) {
            pair.state = State::Reported;
        }
        self.events.push_back(event);
    }

    pub fn take_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Disconnected { qp, .. } | Event::Rejected { qp, .. } = event {
            self.release(qp);
        }
        Some(event)
    }

    /// Makes the place of a connection free.
    pub fn release(&mut self, qp: Qp) {
        if let Some(pair) = self.qp(qp) {
            pair.state = State::Free;
            pair.peer = None;
            self.free.push(qp.index);
        }
    }

    /// Returns the handles of all connections that stand, or are being set up.
    pub fn standing(&self) -> Vec<Qp> {
        let handle = |(index, pair): (u32, &QueuePair)| {
            pair.state.stands().then_some(Qp { index, generation: pair.generation })
        };
        (0..).zip(&self.qps).filter_map(handle).collect()
    }

    /// Returns whether there is something to poll.
    pub fn has_work(&self) -> bool {
        !(self.received.is_empty() && self.done.is_empty() && self.events.is_empty())
    }

    /// Whether something of this device happens now.
    pub fn is_there(&self) -> bool {
        matches!(self.presence, Presence::There | Presence::Frozen { .. })
    }
}

/// Reasons that a simulated NIC gives beside those of verbs.
pub(super) fn timed_out() -> DisconnectReason {
    DisconnectReason::Transport(libc::ETIMEDOUT)
}

/// Returns the two ends of a connection, as far as both are known.
pub(super) fn peer_of(devices: &mut [Device], end: End) -> Option<End> {
    devices[end.nic as usize].qp(end.qp)?.peer
}
