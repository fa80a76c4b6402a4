//! One run of an application: what came is taken, what is read to its end is given back, and the next is
//! read.

use super::session::{Message, Reading, Run, Session, Unfinished};
use crate::event::{Event, Life, MessageName};
use crate::observer::Observer;
use crate::payload::{find_damage, is_user_header};
use crate::scenario::{ApplicationPlan, Habit};
use fastrand::Rng;
use jet_wire::SLAB_BYTES;
use jet_wire::segment::{DELIVERY_USER_HEADER_MAX, Delivery, delivery_flags, delivery_kind};

/// Of a thousand writes to a disk, how many fail, and how many are late.
const FAILS_PERMILLE: u32 = 4;
const LATE_PERMILLE: u32 = 5;
/// Code with which messages are rejected.
const REJECTION: u32 = 28;
/// Nanoseconds for which a stalling application does nothing.
const STALL_NS: u64 = 30_000_000;
/// Of a thousand runs, after how many a stalling application stalls.
const STALLS_PERMILLE: u32 = 20;

/// One run of an application.
pub struct Worker<'a> {
    pub plan: &'a ApplicationPlan,
    pub life: Life,
    pub random: &'a mut Rng,
    pub now_ns: u64,
    pub observer: &'a mut Observer,
}

impl Worker<'_> {
    fn note(&mut self, event: &Event) {
        self.observer.note(self.now_ns, event);
    }

    fn fail(&mut self, what: String) {
        self.observer.fail("application", format!("application {}: {what}", self.plan.name));
    }

    /// Takes what the receiver has written to the ring.
    pub fn take_deliveries(&mut self, session: &mut Session) {
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
            if message.delivery > 0 && message.generation == delivery.message_generation() {
                return self.fail(format!("number {} begins again, with its generation", delivery.message));
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
                wants_reply: delivery.flags & delivery_flags::WANTS_REPLY != 0,
                is_collected: self.plan.habit == Habit::Collecting,
                waiting: std::mem::take(&mut message.waiting),
            };
            if delivery.tag != delivery.sequence && !message.name.is_of_cheat() {
                let (tag, sequence) = (delivery.tag, delivery.sequence);
                self.fail(format!("message {sequence} came with the tag {tag}"));
            }
            session.order.push_back(delivery.message);
            self.check_user_header(session, delivery);
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
        let Some(before) = session.slots.get_mut(delivery.slot as usize) else {
            return self.fail(format!("slot {} is beyond the segment's", delivery.slot));
        };
        if before.replace(generation) == Some(generation) {
            return self.fail(format!("slot {} has another run, with its generation", delivery.slot));
        }
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

    /// Compares the user header of a message that begins to arrive.
    fn check_user_header(&mut self, session: &Session, delivery: &Delivery) {
        let name = MessageName { sender: delivery.sender, sequence: delivery.sequence };
        let bytes = usize::from(delivery.user_header_bytes);
        let long = session.end.read_user_header(delivery.message);
        let header = match &long {
            Some(long) if bytes > DELIVERY_USER_HEADER_MAX => long.get(..bytes),
            _ => delivery.user_header.get(..bytes),
        };
        if !header.is_some_and(|header| is_user_header(name, header)) {
            self.fail(format!("{name} came with another user header, of {bytes} bytes"));
        }
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

    /// Reads, or begins to read, as many runs as the plan allows.
    pub fn begin_reading(&mut self, session: &mut Session) {
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
            let (mut fails, delivery) = (false, message.delivery);
            let span_ns = match self.plan.habit {
                Habit::Disk => {
                    fails = self.random.u32(..1000) < FAILS_PERMILLE;
                    let is_late = self.random.u32(..1000) < LATE_PERMILLE;
                    self.plan.run_ns.max(10_000) * if is_late { 300 } else { 1 }
                }
                Habit::Pinning => self.plan.run_ns.max(1_000_000) * 10,
                // The low bits of an identity count the senders.
                Habit::Choosy if name.sender.is_multiple_of(2) => self.plan.run_ns.max(1_000_000) * 50,
                Habit::Choosy => 0,
                _ => self.plan.run_ns,
            };
            let until_ns = match span_ns {
                0 => self.now_ns,
                _ => self.now_ns + self.random.u64(span_ns / 2..=span_ns),
            };
            let mut reading = Reading { until_ns, run, place, name, delivery, fails, early: (0, 0) };
            if span_ns == 0 {
                self.read(session, reading);
            } else {
                self.read_early(session, &mut reading);
                session.reading.push(reading);
            }
        }
    }

    /// Now and then reads some slices of a run at once, and gives them back before the others.
    fn read_early(&mut self, session: &mut Session, reading: &mut Reading) {
        let slices = reading.run.slices();
        if slices < 2 || self.random.u8(..8) > 0 {
            return;
        }
        let first = self.random.u16(..slices);
        let end = self.random.u16(first + 1..=slices);
        if (first, end) == (0, slices) {
            return;
        }
        let bytes = reading.run.bytes as usize;
        let at = |slice: u16| (usize::from(slice) * SLAB_BYTES).min(bytes);
        self.check_bytes(session, reading, (at(first), at(end)));
        session.give_back(&reading.run, first, end - first);
        reading.early = (first, end);
    }

    /// Compares a stretch of a run's bytes, from the first one to the one behind the last.
    fn check_bytes(&mut self, session: &Session, reading: &Reading, (first, end): (usize, usize)) {
        let Reading { run, place, name, .. } = *reading;
        let offset = run.offset + first as u64;
        match session.bytes(&run, place).map(|bytes| find_damage(name, offset, &bytes[first..end])) {
            Some(None) => {}
            Some(Some(at)) => {
                let bytes = end - first;
                self.fail(format!(
                    "{name}: of {bytes} bytes from {offset} the word at {at} is wrong, {place:?}"
                ));
            }
            None => self.fail(format!("{name}: {place:?} is outside of the memory")),
        }
    }

    /// Ends what was read until now.
    pub fn end_reading(&mut self, session: &mut Session) {
        let mut at = 0;
        while let Some(reading) = session.reading.get(at) {
            if reading.until_ns > self.now_ns {
                at += 1;
                continue;
            }
            let reading = session.reading.swap_remove(at);
            self.read(session, reading);
        }
    }

    /// Reads a run's bytes and gives them back. The message's last run ends the message.
    fn read(&mut self, session: &mut Session, reading: Reading) {
        let Reading { run, place, name, delivery, fails, early, .. } = reading;
        let message = &mut session.messages[run.message as usize];
        let is_open = message.is_open && message.delivery == delivery;
        message.read += if is_open { u64::from(run.bytes) } else { 0 };
        let ends = is_open && message.complete && message.read == message.whole_bytes;
        for stretch in reading.rest().into_iter().filter(|(first, end)| first < end || run.bytes == 0) {
            self.check_bytes(session, &reading, stretch);
        }
        if let Some(word) = session.end.slot(run.slot) {
            word.unpin(run.generation);
        }
        let slices = run.slices();
        let is_split = early.1 == 0 && slices > 1 && self.random.u8(..8) == 0;
        let split = if is_split { self.random.u16(1..slices) } else { slices };
        let (first, end) = if early.1 > 0 { early } else { (split, split) };
        let finishes = ends || (fails && is_open);
        let code = if fails { REJECTION } else { 0 };
        let parts = [(end, slices), (0, first)].into_iter().filter(|(first, end)| first < end);
        // The last one may say that the message is finished, too.
        let is_late = ends && !fails && self.plan.late_ns > 0;
        let merged = parts.clone().next_back().filter(|_| finishes && self.random.bool() && !is_late);
        for (first, end) in parts.filter(|part| Some(*part) != merged) {
            session.give_back(&run, first, end - first);
        }
        let (life, bytes, escaped) = (self.life, run.bytes, place.escaped);
        self.note(&Event::Read { life, message: name, delivery, bytes, escaped });
        if is_late {
            let until_ns = self.now_ns + self.random.u64(1..=self.plan.late_ns);
            session.unfinished.push(Unfinished { until_ns, message: run.message, delivery });
            self.observer.counts().add("finished later");
        } else if finishes {
            match merged {
                Some((first, end)) => session.give_back_and_finish(&run, first, end - first, code),
                None => session.finish(run.message, code),
            }
            self.note(&Event::Finished { life, message: name, delivery, code });
        }
    }

    /// Finishes the messages whose time has come, where they were not withdrawn.
    pub fn finish_due(&mut self, session: &mut Session) {
        let mut at = 0;
        while let Some(&Unfinished { until_ns, message: number, delivery }) = session.unfinished.get(at) {
            if until_ns > self.now_ns {
                at += 1;
                continue;
            }
            session.unfinished.swap_remove(at);
            let message = &session.messages[number as usize];
            if message.is_open && message.delivery == delivery {
                let (life, name) = (self.life, message.name);
                session.finish(number, 0);
                self.note(&Event::Finished { life, message: name, delivery, code: 0 });
            }
        }
    }

    /// Returns until when it stalls; 0: it does not.
    pub fn stall(&mut self) -> u64 {
        let stalls = self.plan.habit == Habit::Stalling && self.random.u32(..1000) < STALLS_PERMILLE;
        if stalls { self.now_ns + self.random.u64(..STALL_NS) } else { 0 }
    }
}
