//! Starvation: where nobody but a slow sender holds anything up, no sender that asked for READs waits long
//! while others get READs.
//!
//! A sender waits for more urgent classes, each of which leaves its class a fragment when that has aged, and
//! for what was asked for in its own class before. So three things are watched: that a class gets something
//! now and then, that less urgent classes get no more than their fragments while a sender waits, and that of
//! a class nobody is passed over.

use super::Checker;
use crate::event::{Event, MessageName};
use crate::scenario::{Kind, Scenario, SenderPlan};
use jet_wire::SLAB_BYTES_U32;
use std::collections::BTreeMap;

/// Aging bounds for which a sender may wait: each class may have one before it, and senders of one class take
/// turns.
const BOUNDS: u64 = 20;
/// Turns of a fragment each that others may have beside.
const TURNS: u64 = 16;
/// Nanoseconds that everything else may take: ways, turns, copies, and checks.
const SLACK_NS: u64 = 10_000_000;
/// Fragments below which an application is read a message at a time now and then.
const NARROW_FRAGMENTS: u32 = 4;
/// Nanoseconds that a slow sender's fragments may take.
const SLOW_NS: u64 = 100_000_000;

/// How long somebody has waited.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// Requests that were sent and have not ended.
    requests: u32,
    /// Time since which nothing came though something was asked for.
    since_ns: u64,
    /// Bytes that those got since then for whom it need not wait.
    passed_by: u64,
    /// As many of these bytes were asked for before, or may come whatever was asked for.
    may_pass: u64,
}

impl Wait {
    const NONE: Self = Self { requests: 0, since_ns: 0, passed_by: 0, may_pass: 0 };

    /// Begins anew: something came, or was asked for.
    fn begin(&mut self, now_ns: u64, may_pass: u64) {
        (self.since_ns, self.passed_by, self.may_pass) = (now_ns, 0, may_pass);
    }

    /// Counts bytes that passed by. Returns for how many nanoseconds nothing came, where that is too long.
    fn pass(&mut self, now_ns: u64, bytes: u64, bound_ns: u64) -> Option<u64> {
        if self.requests == 0 {
            return None;
        }
        self.passed_by += bytes;
        let span_ns = now_ns - self.since_ns;
        (span_ns > bound_ns && self.passed_by > self.may_pass).then_some(span_ns)
    }
}

/// A large message that has not ended.
#[derive(Clone, Copy, Debug)]
struct Large {
    is_sent: bool,
    bytes_left: u64,
}

/// A sender that began.
#[derive(Clone, Copy, Debug)]
struct Sender {
    id: u64,
    /// The class of its messages.
    class: u8,
    wait: Wait,
    /// Bytes that less urgent classes got since it waits.
    below_bytes: u64,
}

/// Senders that asked for READs. Only of scenarios in which no receiver, application or connection fails.
#[derive(Debug)]
pub struct Starvation {
    is_watched: bool,
    /// Nanoseconds for which a sender, or a class, may get nothing while others do.
    bound_ns: u64,
    /// Bytes that others may get meanwhile, whatever was asked for.
    bytes: u64,
    /// The same, of what all other classes may get while a class gets nothing.
    class_bytes: u64,
    aging_ns: u64,
    fragment_bytes: u64,
    /// Classes of the senders, in the order in which they begin.
    planned: Vec<u8>,
    senders: Vec<Sender>,
    classes: BTreeMap<u8, Wait>,
    large: BTreeMap<MessageName, Large>,
}

impl Starvation {
    pub fn new(scenario: &Scenario) -> Self {
        let config = &scenario.config;
        let class_of = |sender: &SenderPlan| {
            let to = scenario.applications.iter().filter(|application| application.name == sender.app);
            to.map(|application| application.class).max().unwrap_or(0).max(sender.class)
        };
        let planned: Vec<_> = scenario.senders.iter().map(class_of).collect();
        let is_slow = scenario.senders.iter().any(|sender| sender.bytes_per_us.is_some());
        // What was in flight when it asked comes first, and so does what was granted until then.
        let in_flight_ns = 2 * config.in_flight_bytes * 1000 / scenario.conditions.bytes_per_us;
        let bytes = 2 * config.in_flight_bytes + TURNS * u64::from(config.fragment_bytes);
        // Where there are few slabs or slots, an application is read a message at a time. Its other classes
        // may each have one before, and other applications as many READs meanwhile.
        let fragment_slabs = config.fragment_bytes / SLAB_BYTES_U32;
        let is_narrow = (config.pool_slabs - config.srq_slabs).min(config.session_slots)
            < NARROW_FRAGMENTS * fragment_slabs;
        let largest = scenario.senders.iter().map(|sender| sender.large_bytes);
        let others_bytes = if is_narrow { 2 * largest.sum::<u64>() } else { 0 };
        Self {
            // Where an application is left out, messages to it wait at their senders.
            is_watched: scenario.kind == Kind::Contended
                && scenario.applications.iter().all(|one| !one.is_absent),
            bound_ns: config.aging_ns * BOUNDS + in_flight_ns + SLACK_NS + if is_slow { SLOW_NS } else { 0 },
            aging_ns: config.aging_ns,
            fragment_bytes: config.fragment_bytes.into(),
            bytes,
            class_bytes: bytes + others_bytes,
            planned,
            senders: Vec::new(),
            classes: BTreeMap::new(),
            large: BTreeMap::new(),
        }
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.senders.iter().position(|sender| sender.id == id)
    }

    /// Returns how many bytes may pass by a sender from now on.
    fn may_pass(&self, place: usize) -> u64 {
        let Sender { id, class, .. } = self.senders[place];
        let is_before = |message: MessageName| {
            let of_class = |sender: &Sender| sender.id == message.sender && sender.class == class;
            message.sender != id && self.senders.iter().any(of_class)
        };
        let before = self.large.iter().filter(|(message, large)| large.is_sent && is_before(**message));
        self.bytes + before.map(|(_, large)| large.bytes_left).sum::<u64>()
    }

    /// Notes that a sender got something, or asks after it had asked for nothing.
    fn begin(&mut self, now_ns: u64, place: usize) {
        let may_pass = self.may_pass(place);
        let sender = &mut self.senders[place];
        sender.wait.begin(now_ns, may_pass);
        sender.below_bytes = 0;
    }

    fn sent(&mut self, now_ns: u64, message: MessageName) {
        let Some(large) = self.large.get_mut(&message).filter(|large| !large.is_sent) else { return };
        large.is_sent = true;
        let Some(place) = self.place(message.sender) else { return };
        let bytes = self.class_bytes;
        if self.senders[place].wait.requests == 0 {
            self.begin(now_ns, place);
        }
        let Sender { class, wait, .. } = &mut self.senders[place];
        wait.requests += 1;
        let of_class = self.classes.entry(*class).or_insert(Wait::NONE);
        if of_class.requests == 0 {
            of_class.begin(now_ns, bytes);
        }
        of_class.requests += 1;
    }

    fn ended(&mut self, now_ns: u64, message: MessageName) {
        let is_sent = self.large.remove(&message).is_some_and(|large| large.is_sent);
        let Some(place) = self.place(message.sender).filter(|_| is_sent) else { return };
        self.begin(now_ns, place);
        let Sender { class, wait, .. } = &mut self.senders[place];
        wait.requests -= 1;
        if let Some(of_class) = self.classes.get_mut(class) {
            of_class.begin(now_ns, self.class_bytes);
            of_class.requests -= 1;
        }
    }

    fn delivered(&mut self, now_ns: u64, message: MessageName, bytes: u64) -> Result<(), String> {
        let Some(large) = self.large.get_mut(&message) else { return Ok(()) };
        large.bytes_left = large.bytes_left.saturating_sub(bytes);
        let Some(place) = self.place(message.sender) else { return Ok(()) };
        self.begin(now_ns, place);
        let (may_pass, bound_ns) = (self.class_bytes, self.bound_ns);
        let Sender { id: served, class: of, .. } = self.senders[place];
        for (class, wait) in &mut self.classes {
            if *class == of {
                wait.begin(now_ns, may_pass);
            } else if let Some(span_ns) = wait.pass(now_ns, bytes, bound_ns) {
                let others = wait.passed_by;
                return Err(format!(
                    "class {class} got nothing for {span_ns} ns, and others got {others} bytes"
                ));
            }
        }
        // What all classes together may be granted, each for one time that it has aged.
        let fragments_bytes = self.fragment_bytes * self.classes.len() as u64;
        for Sender { id, class, wait, below_bytes } in &mut self.senders {
            if *class < of && wait.requests > 0 {
                *below_bytes += bytes;
                let span_ns = now_ns - wait.since_ns;
                let aged_bytes = (span_ns / self.aging_ns + 1) * fragments_bytes;
                if span_ns > bound_ns && *below_bytes > self.bytes + aged_bytes {
                    return Err(format!(
                        "sender {id:x} of class {class} got nothing for {span_ns} ns, and less urgent \
                         ones got {below_bytes} bytes, of which {aged_bytes} had aged"
                    ));
                }
            }
            let is_passed_by = *id != served && *class == of;
            if is_passed_by && let Some(span_ns) = wait.pass(now_ns, bytes, bound_ns) {
                let Wait { passed_by, may_pass, .. } = wait;
                return Err(format!(
                    "sender {id:x} of class {class} got nothing for {span_ns} ns, and others of it got \
                     {passed_by} bytes, where {may_pass} may come before"
                ));
            }
        }
        Ok(())
    }
}

impl Checker for Starvation {
    fn name(&self) -> &'static str {
        "starvation"
    }

    fn note(&mut self, now_ns: u64, event: &Event) -> Result<(), String> {
        if !self.is_watched {
            return Ok(());
        }
        match *event {
            Event::SenderBegan { sender: id } => {
                let class = self.planned.get(self.senders.len()).copied().unwrap_or(0);
                self.senders.push(Sender { id, class, wait: Wait::NONE, below_bytes: 0 });
            }
            Event::Submitted { message, large: true, bytes, .. } => {
                self.large.insert(message, Large { is_sent: false, bytes_left: bytes });
            }
            Event::Sent { message, .. } => self.sent(now_ns, message),
            Event::Ended { message, .. } => self.ended(now_ns, message),
            Event::Delivered { message, bytes, .. } => {
                return self.delivered(now_ns, message, bytes.into());
            }
            _ => {}
        }
        Ok(())
    }
}
