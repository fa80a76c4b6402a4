//! A modelled application: it takes deliveries off its ring, reads the bytes where they lie, and gives them
//! back as its habit is.

use crate::event::{Event, Life, MessageName};
use crate::ghosts::Ghost;
use crate::observer::Observer;
use crate::payload::Payload;
use crate::receiver::Opened;
use crate::scenario::{ApplicationPlan, Habit};
use fastrand::Rng;
use jet_fabric::memory::SharedMemory;
use jet_reactor::SessionTicket;
use jet_wire::ring::PushError;
use jet_wire::segment::{AppEnd, Delivery, Place, Release, delivery_flags, delivery_kind, release_kind};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::collections::VecDeque;
use std::sync::Arc;

/// Code with which messages are rejected.
const REJECTION: u32 = 28;
/// Nanoseconds until an application tries again to write to a full ring.
const FULL_RING_NS: u64 = 10_000;
/// Nanoseconds for which a stalling application does nothing.
const STALL_NS: u64 = 30_000_000;
/// Of a thousand runs, after how many a stalling application stalls.
const STALLS_PERMILLE: u32 = 20;

/// A run that was delivered and not given back.
#[derive(Clone, Copy, Debug)]
struct Run {
    slot: u32,
    generation: u16,
    message: u32,
    offset: u64,
    bytes: u32,
}

impl Run {
    fn slices(&self) -> u16 {
        u16::try_from(self.bytes.div_ceil(SLAB_BYTES_U32).max(1)).expect("a fragment at most")
    }
}

/// A run that is being read.
#[derive(Clone, Copy, Debug)]
struct Reading {
    until_ns: u64,
    run: Run,
    place: Place,
}

/// What the application knows of a message number.
#[derive(Clone, Debug)]
struct Message {
    generation: u16,
    name: MessageName,
    /// Number of its delivery.
    delivery: u32,
    whole_bytes: u64,
    /// Bytes that were delivered, and that were read.
    delivered: u64,
    read: u64,
    complete: bool,
    is_open: bool,
    is_rejected: bool,
    /// Whether its runs wait until all of them are there.
    is_collected: bool,
    waiting: VecDeque<Run>,
}

/// What one session shares with the receiver.
struct Session {
    ticket: SessionTicket,
    end: AppEnd,
    segment: Arc<SharedMemory>,
    pool: Arc<SharedMemory>,
    escape: Option<Arc<SharedMemory>>,
    messages: Vec<Message>,
    /// Messages that began to arrive.
    begun: u32,
    /// Open messages in the order in which they began to arrive.
    order: VecDeque<u32>,
    reading: Vec<Reading>,
    /// Releases that found the ring full.
    unwritten: VecDeque<Release>,
}

/// An application.
pub struct ApplicationProcess {
    plan: ApplicationPlan,
    life: Life,
    random: Rng,
    session: Option<Session>,
    stalled_until_ns: u64,
    /// Whether it wrote what it likes to what it shares. It does nothing more until it is killed.
    is_wild: bool,
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
    pub fn new(plan: ApplicationPlan, life: Life, random: Rng) -> Self {
        Self { plan, life, random, session: None, stalled_until_ns: 0, is_wild: false }
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

    /// Makes it a fast application.
    pub fn calm(&mut self) {
        let Self { plan, session, .. } = self;
        *plan = ApplicationPlan { habit: Habit::Fast, run_ns: 0, parallel: 64, rejects_permille: 0, ..*plan };
        self.stalled_until_ns = 0;
        for message in session.iter_mut().flat_map(|session| &mut session.messages) {
            message.is_collected = false;
        }
        for reading in session.iter_mut().flat_map(|session| &mut session.reading) {
            reading.until_ns = 0;
        }
    }

    /// Takes what it got when its session was opened.
    pub fn open(&mut self, opened: Opened) {
        let Opened { ticket, end, segment, pool, escape } = opened;
        let nobody = MessageName { sender: 0, sequence: 0 };
        let message = Message {
            generation: 0,
            name: nobody,
            delivery: 0,
            whole_bytes: 0,
            delivered: 0,
            read: 0,
            complete: false,
            is_open: false,
            is_rejected: false,
            is_collected: false,
            waiting: VecDeque::new(),
        };
        let messages = vec![message; end.shape().messages as usize];
        self.session = Some(Session {
            ticket,
            end,
            segment,
            pool,
            escape,
            messages,
            begun: 0,
            order: VecDeque::new(),
            reading: Vec::new(),
            unwritten: VecDeque::new(),
        });
    }

    /// Returns whether it wrote what it likes, and does nothing more.
    pub fn is_wild(&self) -> bool {
        self.is_wild
    }

    /// Forgets its session. Returns what it was reading: its I/O may go on.
    pub fn close(&mut self) -> Vec<Ghost> {
        let Some(session) = self.session.take().filter(|_| !self.is_wild) else { return Vec::new() };
        let ghost = |reading: &Reading| {
            let Reading { run, place, .. } = *reading;
            let message = session.messages[run.message as usize].name;
            let (memory, from) = session.place(&run, place)?;
            let (bytes, offset) = (run.bytes as usize, run.offset);
            Some(Ghost { life: self.life, message, memory: Arc::clone(memory), from, bytes, offset })
        };
        session.reading.iter().filter_map(ghost).collect()
    }

    /// Returns whether it waits to be woken though there is something for it.
    pub fn oversleeps(&self) -> bool {
        let is_waiting = self.session.as_ref().is_some_and(|session| !session.end.deliveries.is_empty());
        is_waiting && !self.is_wild && self.stalled_until_ns == 0
    }

    /// Returns whether the receiver has something of it to take.
    pub fn has_unread_releases(&mut self) -> bool {
        let unread = self.session.as_mut().map(|session| session.end.releases.unread());
        !self.is_wild && matches!(unread, Some(Ok(1..)))
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

    /// Writes what it likes into what it shares with the receiver.
    pub fn scribble(&mut self) {
        let Some(session) = &mut self.session else { return };
        self.is_wild = true;
        // Often releases of what it holds, or does not hold, in any form.
        for _ in 0..self.random.usize(..16) {
            let known = session.messages.iter().flat_map(|message| &message.waiting).next().copied();
            let index = known.map_or_else(|| self.random.u32(..2000), |run| run.slot);
            let generation = known.map_or_else(|| self.random.u16(..4), |run| run.generation);
            let (first, count, kind) = (self.random.u16(..70), self.random.u16(..70), self.random.u8(..4));
            // Whether there is room makes no difference.
            let _ = session.end.releases.push(Release {
                index,
                generation,
                first,
                count,
                kind,
                reserved: self.random.u8(..2),
                code: self.random.u32(..3),
            });
        }
        session.end.releases.publish();
        let words = session.segment.bytes() / 8;
        // Often in the rings' indices, which lie near the beginning.
        let near = words.min(64);
        for _ in 0..self.random.usize(1..64) {
            let at = if self.random.bool() { self.random.usize(..near) } else { self.random.usize(..words) };
            let word = if self.random.bool() { self.random.u64(..) } else { self.random.u64(..300) };
            // SAFETY: within the mapping, and aligned. The other end reads each word once and checks it.
            unsafe { session.segment.base().cast::<u64>().add(at).write_volatile(word) };
        }
    }

    /// Runs once.
    pub fn run(&mut self, now_ns: u64, observer: &mut Observer) -> Ran {
        if self.is_wild {
            return Ran { again_ns: None, wakes_receiver: false };
        }
        if self.stalled_until_ns > now_ns {
            return Ran { again_ns: Some(self.stalled_until_ns), wakes_receiver: false };
        }
        let Self { plan, life, random, session, stalled_until_ns, .. } = self;
        let Some(session) = session else { return Ran { again_ns: None, wakes_receiver: false } };
        let mut worker = Worker { plan, life: *life, random, now_ns, observer };
        worker.end_reading(session);
        worker.take_deliveries(session);
        if session.end.deliveries.is_empty() && session.end.notice().is_some() {
            // Nothing more comes before something was given back.
            session.messages.iter_mut().for_each(|message| message.is_collected = false);
        }
        worker.begin_reading(session);
        *stalled_until_ns = worker.stall();
        session.write_unwritten();
        session.end.releases.publish();
        let wakes_receiver = session.end.releases.wake_needed();
        let due_ns = session.reading.iter().map(|reading| reading.until_ns).min();
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

impl Session {
    fn write(&mut self, release: Release) {
        self.unwritten.push_back(release);
        self.write_unwritten();
    }

    fn write_unwritten(&mut self) {
        while let Some(release) = self.unwritten.front() {
            match self.end.releases.push(*release) {
                Ok(()) => drop(self.unwritten.pop_front()),
                Err(PushError::Full) => return,
                // The application itself broke the ring, or the receiver is wrong; its session ends then.
                Err(PushError::Broken(_)) => return self.unwritten.clear(),
            }
        }
    }

    fn give_back(&mut self, run: &Run, first: u16, count: u16) {
        let (index, generation, kind) = (run.slot, run.generation, release_kind::SLICES);
        self.write(Release { index, generation, first, count, kind, reserved: 0, code: 0 });
    }

    /// Ends a message, and gives what waits of it back.
    fn finish(&mut self, message: u32, code: u32) {
        let known = &mut self.messages[message as usize];
        known.is_open = false;
        let (generation, waiting) = (known.generation, std::mem::take(&mut known.waiting));
        for run in &waiting {
            self.give_back(run, 0, run.slices());
        }
        self.messages[message as usize].waiting = waiting;
        self.messages[message as usize].waiting.clear();
        self.order.retain(|open| *open != message);
        let kind = release_kind::FINISH;
        self.write(Release { index: message, generation, first: 0, count: 0, kind, reserved: 0, code });
    }

    /// Returns the memory and the place of a run; `None` where that lies outside of what it shares.
    fn place(&self, run: &Run, place: Place) -> Option<(&Arc<SharedMemory>, usize)> {
        let memory = if place.escaped { self.escape.as_ref()? } else { &self.pool };
        let from = place.slab as usize * SLAB_BYTES;
        (from + run.bytes as usize <= memory.bytes()).then_some((memory, from))
    }

    /// Returns the bytes of a run at its place; `None` where that lies outside of what it shares.
    fn bytes(&self, run: &Run, place: Place) -> Option<&[u8]> {
        let (memory, from) = self.place(run, place)?;
        let bytes = run.bytes as usize;
        // SAFETY: within the mapping, as just checked. While the run is pinned, nobody writes its bytes; that
        // they do not is what the simulation checks.
        Some(unsafe { std::slice::from_raw_parts(memory.base().add(from), bytes) })
    }
}

/// One run of an application.
struct Worker<'a> {
    plan: &'a ApplicationPlan,
    life: Life,
    random: &'a mut Rng,
    now_ns: u64,
    observer: &'a mut Observer,
}

impl Worker<'_> {
    fn note(&mut self, event: &Event) {
        self.observer.note(self.now_ns, event);
    }

    fn fail(&mut self, what: String) {
        self.observer.fail("application", format!("application {}: {what}", self.plan.name));
    }

    fn take_deliveries(&mut self, session: &mut Session) {
        loop {
            match session.end.deliveries.pop() {
                Ok(Some(delivery)) => match delivery.kind {
                    delivery_kind::SLICES => self.take_run(session, &delivery),
                    delivery_kind::WITHDRAWN => self.take_withdrawal(session, &delivery),
                    kind => self.fail(format!("a delivery of kind {kind}")),
                },
                Ok(None) => return session.end.deliveries.advance(),
                // It broke the ring itself. Its session ends soon.
                Err(_) => return,
            }
        }
    }

    fn take_run(&mut self, session: &mut Session, delivery: &Delivery) {
        let first = delivery.flags & delivery_flags::FIRST != 0;
        let last = delivery.flags & delivery_flags::LAST != 0;
        let redelivered = delivery.flags & delivery_flags::REDELIVERED != 0;
        let Some(message) = session.messages.get_mut(delivery.message as usize) else {
            return self.fail(format!("message number {} is beyond the segment's", delivery.message));
        };
        if first {
            if message.is_open {
                return self.fail(format!("number {} begins while it is in use", delivery.message));
            }
            session.begun += 1;
            *message = Message {
                delivery: session.begun,
                generation: delivery.message_generation(),
                name: MessageName { sender: delivery.sender, sequence: delivery.sequence },
                whole_bytes: delivery.message_bytes,
                delivered: 0,
                read: 0,
                complete: false,
                is_open: true,
                is_rejected: self.random.u32(..1000) < self.plan.rejects_permille,
                is_collected: self.plan.habit == Habit::Collecting,
                waiting: std::mem::take(&mut message.waiting),
            };
            if delivery.tag != delivery.sequence {
                let (tag, sequence) = (delivery.tag, delivery.sequence);
                self.fail(format!("message {sequence} came with the tag {tag}"));
            }
            session.order.push_back(delivery.message);
        }
        let message = &mut session.messages[delivery.message as usize];
        if message.generation != delivery.message_generation() {
            return self.fail(format!("a run of a message that number {} is not", delivery.message));
        }
        let (name, whole_bytes, delivered) = (message.name, message.whole_bytes, message.delivered);
        let number = message.delivery;
        let (offset, bytes) = (delivery.offset, delivery.bytes);
        if offset != delivered || message.complete || last != (offset + u64::from(bytes) == whole_bytes) {
            return self.fail(format!(
                "{name}: {bytes} bytes from {offset} of {whole_bytes}, last {last}, after {delivered}"
            ));
        }
        message.delivered += u64::from(bytes);
        message.complete = last;
        let is_open = message.is_open;
        let generation = delivery.slot_generation();
        let run = Run { slot: delivery.slot, generation, message: delivery.message, offset, bytes };
        if is_open {
            message.waiting.push_back(run);
        } else {
            session.give_back(&run, 0, run.slices());
        }
        let app = self.plan.name;
        let life = self.life;
        let event = Event::Delivered {
            life,
            app,
            message: name,
            delivery: number,
            offset,
            bytes,
            whole_bytes,
            first,
            last,
            redelivered,
        };
        self.note(&event);
    }

    fn take_withdrawal(&mut self, session: &mut Session, delivery: &Delivery) {
        let Some(message) = session.messages.get(delivery.message as usize) else {
            return self.fail(format!("message number {} is beyond the segment's", delivery.message));
        };
        if message.generation != delivery.message_generation() || !message.is_open {
            return;
        }
        let (life, name) = (self.life, message.name);
        self.note(&Event::Withdrawn { life, message: name });
        session.finish(delivery.message, 0);
    }

    /// Returns the number of the message whose run is read next.
    fn next(&self, session: &Session) -> Option<u32> {
        let readable = |message: &&u32| {
            let message = &session.messages[**message as usize];
            !message.waiting.is_empty() && (!message.is_collected || message.complete)
        };
        match self.plan.habit {
            Habit::OneByOne => session.order.front().filter(readable).copied(),
            _ => session.order.iter().find(readable).copied(),
        }
    }

    fn begin_reading(&mut self, session: &mut Session) {
        while session.reading.len() < self.plan.parallel as usize {
            let Some(number) = self.next(session) else { return };
            let message = &mut session.messages[number as usize];
            if message.is_rejected {
                let (life, name, code, delivery) = (self.life, message.name, REJECTION, message.delivery);
                session.finish(number, code);
                self.note(&Event::Finished { life, message: name, delivery, code });
                continue;
            }
            let run = message.waiting.pop_front().expect("it has one");
            let name = message.name;
            let pinned = session.end.slot(run.slot).map(|word| word.pin(run.generation));
            let place = match pinned {
                Some(Ok(place)) => place,
                other => {
                    self.fail(format!("{name}: the run at {} cannot be pinned: {other:?}", run.offset));
                    return;
                }
            };
            let span_ns = match self.plan.habit {
                Habit::Pinning => self.plan.run_ns.max(1_000_000) * 10,
                // The low bits of an identity count the senders.
                Habit::Choosy if name.sender.is_multiple_of(2) => self.plan.run_ns.max(1_000_000) * 50,
                Habit::Choosy => 0,
                _ => self.plan.run_ns,
            };
            if span_ns == 0 {
                self.read(session, run, place);
            } else {
                let until_ns = self.now_ns + self.random.u64(span_ns / 2..=span_ns);
                session.reading.push(Reading { until_ns, run, place });
            }
        }
    }

    fn end_reading(&mut self, session: &mut Session) {
        let mut at = 0;
        while let Some(reading) = session.reading.get(at) {
            if reading.until_ns > self.now_ns {
                at += 1;
                continue;
            }
            let Reading { run, place, .. } = session.reading.swap_remove(at);
            self.read(session, run, place);
        }
    }

    /// Reads a run's bytes and gives them back. The message's last run ends the message.
    fn read(&mut self, session: &mut Session, run: Run, place: Place) {
        let message = &mut session.messages[run.message as usize];
        let (name, delivery) = (message.name, message.delivery);
        message.read += u64::from(run.bytes);
        let ends = message.is_open && message.complete && message.read == message.whole_bytes;
        match session
            .bytes(&run, place)
            .map(|bytes| Payload::of(name.sender, name.sequence).find_damage(run.offset, bytes))
        {
            Some(None) => {}
            Some(Some(at)) => {
                let (offset, bytes) = (run.offset, run.bytes);
                self.fail(format!(
                    "{name}: of {bytes} bytes from {offset} the word at {at} is wrong, {place:?}"
                ));
            }
            None => self.fail(format!("{name}: {place:?} is outside of the memory")),
        }
        if let Some(word) = session.end.slot(run.slot) {
            word.unpin(run.generation);
        }
        let slices = run.slices();
        let split = if slices > 1 && self.random.u8(..8) == 0 { self.random.u16(1..slices) } else { slices };
        if split < slices {
            session.give_back(&run, split, slices - split);
        }
        session.give_back(&run, 0, split);
        let (life, bytes, escaped) = (self.life, run.bytes, place.escaped);
        self.note(&Event::Read { life, message: name, delivery, bytes, escaped });
        if ends {
            session.finish(run.message, 0);
            self.note(&Event::Finished { life, message: name, delivery, code: 0 });
        }
    }

    /// Returns until when it stalls; 0: it does not.
    fn stall(&mut self) -> u64 {
        let stalls = self.plan.habit == Habit::Stalling && self.random.u32(..1000) < STALLS_PERMILLE;
        if stalls { self.now_ns + self.random.u64(..STALL_NS) } else { 0 }
    }
}
