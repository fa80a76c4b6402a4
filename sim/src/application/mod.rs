//! A modelled application: it takes deliveries off its ring, reads the bytes where they lie, and gives them
//! back as its habit is.

mod breaks;
mod session;
mod worker;

use crate::event::{Broke, Life};
use crate::ghosts::Ghost;
use crate::observer::Observer;
use crate::receiver::Opened;
use crate::scenario::{ApplicationPlan, Habit};
use fastrand::Rng;
use jet_reactor::SessionTicket;
use session::{Reading, Session};
use std::sync::Arc;
use worker::Worker;

/// Nanoseconds until an application tries again to write to a full ring.
const FULL_RING_NS: u64 = 10_000;
/// Notices of standstills after which an application collects no more, where it does so in the calm.
const NOTICES_HEEDED: u32 = 3;
/// Turns after which an application that breaks its session does so, at most.
const TURNS_UNBROKEN: u32 = 64;

/// An application.
pub struct ApplicationProcess {
    plan: ApplicationPlan,
    life: Life,
    random: Rng,
    session: Option<Session>,
    stalled_until_ns: u64,
    /// Turns until it breaks its session, where it is to do so. It holds something then.
    breaks_after: Option<u32>,
    /// What it broke. It does nothing more until it is killed.
    broke: Option<Broke>,
    /// Notices after which it collects no more, where it does so in the calm.
    notices_left: Option<u32>,
}

/// What a run of an application leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Time at which it must run again though nothing happens.
    pub again_ns: Option<u64>,
    /// Whether the receiver is to be woken.
    pub wakes_receiver: bool,
}

impl ApplicationProcess {
    /// Makes an application without a session.
    pub fn new(plan: ApplicationPlan, life: Life, mut random: Rng) -> Self {
        let breaks_after = plan.breaks.then(|| random.u32(..TURNS_UNBROKEN));
        Self {
            plan,
            life,
            random,
            session: None,
            stalled_until_ns: 0,
            breaks_after,
            broke: None,
            notices_left: None,
        }
    }

    /// Returns its plan.
    pub fn plan(&self) -> &ApplicationPlan {
        &self.plan
    }

    /// Returns which life it is.
    pub fn life(&self) -> Life {
        self.life
    }

    /// Returns the ticket of its session.
    pub fn ticket(&self) -> Option<SessionTicket> {
        self.session.as_ref().map(|session| session.ticket)
    }

    /// Makes it a fast application. One of ten that collect does so until the receiver has told it a few
    /// times that nothing more comes.
    pub fn calm(&mut self) {
        let Self { plan, session, random, notices_left, .. } = self;
        let collects = plan.habit == Habit::Collecting && random.u8(..10) == 0;
        if collects {
            *notices_left = Some(NOTICES_HEEDED);
        }
        let habit = if collects { Habit::Collecting } else { Habit::Fast };
        *plan = ApplicationPlan { habit, run_ns: 0, parallel: 64, late_ns: 0, rejects_permille: 0, ..*plan };
        (self.stalled_until_ns, self.breaks_after) = (0, None);
        let cured = session.iter_mut().filter(|_| !collects);
        for message in cured.flat_map(|session| &mut session.messages) {
            message.is_collected = false;
        }
        for reading in session.iter_mut().flat_map(|session| &mut session.reading) {
            reading.until_ns = 0;
        }
        for message in session.iter_mut().flat_map(|session| &mut session.unfinished) {
            message.until_ns = 0;
        }
    }

    /// Takes what it got when its session was opened.
    pub fn open(&mut self, opened: Opened) {
        self.session = Some(Session::new(opened));
    }

    /// Forgets its session. Returns what it was reading: its I/O may go on.
    pub fn close(&mut self) -> Vec<Ghost> {
        let Some(session) = self.session.take().filter(|_| !self.has_scribbled()) else { return Vec::new() };
        let ghosts = |reading: &Reading| {
            let Reading { run, place, name: message, .. } = *reading;
            let (memory, from) = session.place(&run, place)?;
            let stretches = reading.rest().into_iter().filter(|(first, end)| first < end);
            let life = self.life;
            Some(stretches.map(move |(first, end)| Ghost {
                life,
                message,
                memory: Arc::clone(memory),
                from: from + first,
                bytes: end - first,
                offset: run.offset + first as u64,
            }))
        };
        session.reading.iter().filter_map(ghosts).flatten().collect()
    }

    /// Returns whether it waits to be woken though there is something for it.
    pub fn oversleeps(&self) -> bool {
        let is_waiting = self.session.as_ref().is_some_and(|session| !session.end.deliveries.is_empty());
        is_waiting && self.broke.is_none() && self.stalled_until_ns == 0
    }

    /// Returns whether the receiver has something of it to take.
    pub fn has_unread_releases(&mut self) -> bool {
        let unread = self.session.as_mut().map(|session| session.end.releases.unread());
        self.broke.is_none() && matches!(unread, Some(Ok(1..)))
    }

    /// Returns what it has in hand, in words.
    pub fn state(&self) -> String {
        let Self { life, plan, session, .. } = self;
        match session {
            None => format!("application {} ({:?}): no session", plan.name, life),
            Some(session) => {
                let open = session.messages.iter().filter(|message| message.is_open).count();
                let waiting: usize = session.messages.iter().map(|message| message.waiting.len()).sum();
                let reading = session.reading.len();
                format!(
                    "application {} ({life:?}): {open} messages open, {waiting} runs waiting, {reading} \
                     being read",
                    plan.name
                )
            }
        }
    }

    /// Runs once.
    pub fn run(&mut self, now_ns: u64, observer: &mut Observer) -> Ran {
        if self.broke.is_some() {
            return Ran { again_ns: None, wakes_receiver: false };
        }
        if self.stalled_until_ns > now_ns {
            return Ran { again_ns: Some(self.stalled_until_ns), wakes_receiver: false };
        }
        if self.notices_left == Some(0) {
            (self.plan.habit, self.notices_left) = (Habit::Fast, None);
        }
        let Self { plan, life, random, session, stalled_until_ns, breaks_after, notices_left, .. } = self;
        let Some(session) = session else { return Ran { again_ns: None, wakes_receiver: false } };
        let mut worker = Worker { plan, life: *life, random, now_ns, observer };
        worker.end_reading(session);
        worker.finish_due(session);
        worker.take_deliveries(session);
        if session.end.deliveries.is_empty() && session.end.notice().is_some() {
            // Nothing more comes before something was given back.
            worker.observer.counts().add("told of a standstill");
            session.messages.iter_mut().for_each(|message| message.is_collected = false);
            *notices_left = notices_left.map(|left| left.saturating_sub(1));
        }
        worker.begin_reading(session);
        match breaks_after {
            Some(0) if session.runs().next().is_some() => {
                self.break_session(now_ns, observer);
                return Ran { again_ns: None, wakes_receiver: true };
            }
            Some(turns) => *turns = turns.saturating_sub(1),
            None => {}
        }
        *stalled_until_ns = worker.stall();
        session.write_unwritten();
        session.end.releases.publish();
        let wakes_receiver = session.end.releases.wake_needed();
        let reads = session.reading.iter().map(|reading| reading.until_ns);
        let due_ns = reads.chain(session.unfinished.iter().map(|message| message.until_ns)).min();
        let mut again_ns = due_ns;
        if !session.unwritten.is_empty() {
            let full_ns = now_ns + FULL_RING_NS;
            again_ns = Some(again_ns.map_or(full_ns, |at_ns| at_ns.min(full_ns)));
        }
        if *stalled_until_ns > now_ns {
            again_ns = Some(*stalled_until_ns);
        } else if !session.end.deliveries.prepare_sleep() {
            again_ns = Some(now_ns);
        } else if session.end.notice().is_some()
            && session.messages.iter().any(|message| message.is_collected && message.is_open)
        {
            // The notice came while it ran.
            again_ns = Some(now_ns);
        }
        Ran { again_ns, wakes_receiver }
    }
}
