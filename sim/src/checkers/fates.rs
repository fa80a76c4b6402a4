//! Fates: every message has exactly one end, `Consumed` means that the application had every byte, and each
//! other end has its reason.

use super::Checker;
use super::connections::all_last;
use super::open::Open;
use crate::event::{Broke, Event, Fault, Life, MessageName};
use crate::scenario::{ApplicationPlan, Kind, Scenario};
use jet_wire::message::AckStatus;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A life that a message was delivered to, and how far it came with that.
#[derive(Clone, Copy, Debug)]
struct Delivered {
    life: Life,
    /// Number of the delivery.
    number: u32,
    read_bytes: u64,
}

/// What is known of a message.
#[derive(Clone, Debug, Default)]
struct Known {
    bytes: u64,
    large: bool,
    app: u32,
    delivered: Option<Delivered>,
    /// Deliveries before that one. Most messages have none.
    before: Vec<Delivered>,
    consumed: bool,
    rejected: Option<u32>,
    /// Whether it was sent again.
    redelivers: bool,
    /// Whether its sender takes it back, or has done so.
    taken_back: bool,
    /// Whether it was delivered to somebody who wrote what it liked to the receiver.
    is_scribbled: bool,
    reasons: Reasons,
    /// The reasons of earlier times that it was sent. An application may have had it then, so it may end for
    /// one of these where it is taken back.
    earlier: Reasons,
}

/// What happened while a message was under way that may end it before its application does.
#[derive(Clone, Copy, Debug, Default)]
struct Reasons {
    /// A life of its application ended.
    app_ended: bool,
    /// Nobody had its application's name.
    name_free: bool,
    /// The receiver drained.
    drained: bool,
}

impl Known {
    /// Returns whether the message may end for such a reason.
    fn may_end_for(&self, reason: impl Fn(&Reasons) -> bool) -> bool {
        reason(&self.reasons) || (self.taken_back && reason(&self.earlier))
    }

    /// Forgets the reasons of the time before, as the message is sent now.
    fn is_sent(&mut self, reasons: Reasons) {
        let before = std::mem::replace(&mut self.reasons, reasons);
        self.earlier.app_ended |= before.app_ended;
        self.earlier.drained |= before.drained;
    }
}

/// In words, without the deliveries before the last one: of those there may be thousands.
impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, app, delivered, before, consumed, rejected, redelivers, taken_back, .. } = self;
        let Self { is_scribbled, reasons, .. } = self;
        write!(f, "{bytes} bytes for application {app}, last {delivered:?}, {} before that, ", before.len())?;
        write!(f, "consumed {consumed}, rejected {rejected:?}, sent again {redelivers}, ")?;
        write!(f, "taken back {taken_back}, ")?;
        write!(f, "scribbled {is_scribbled}, {reasons:?}")
    }
}

impl Known {
    /// Returns a delivery of the message.
    fn delivery(&mut self, life: Life, number: u32) -> Option<&mut Delivered> {
        let mut all = self.delivered.iter_mut().chain(&mut self.before);
        all.find(|delivered| (delivered.life, delivered.number) == (life, number))
    }
}

/// Nanoseconds for which the receiver may not know that an application ended, in a stall.
const UNKNOWN_NS: u64 = 2_000_000_000;

/// Fates of messages. Of those whose ends are known little is kept.
#[derive(Debug)]
pub struct Fates {
    /// Whether applications are fast, and nothing fails: no small message ends `Busy`.
    is_fast: bool,
    /// Whether there is room for all requests, too.
    is_easy: bool,
    drains: bool,
    /// Whether anything but its sender ends a connection.
    connections_end: bool,
    /// When the last life of each name ended.
    ended_ns: BTreeMap<u32, u64>,
    open: Open<Known>,
    /// Messages that have their ends, and may come again all the same: they were sent again, or their
    /// application did not decide their end.
    may_come_again: BTreeSet<MessageName>,
    scribbled: BTreeSet<Life>,
    /// Messages that ended because they were taken back: nobody consumes one afterwards.
    cancelled: BTreeSet<MessageName>,
    /// Names of the applications, by their lives.
    apps: BTreeMap<Life, u32>,
}

impl Fates {
    pub fn new(scenario: &Scenario) -> Self {
        let all_fast = scenario.applications.iter().all(ApplicationPlan::is_fast);
        Self {
            is_fast: scenario.faults.is_empty()
                && scenario.cheats.is_empty()
                && all_fast
                && !scenario.has_few_replies(),
            is_easy: scenario.kind == Kind::Contended,
            drains: false,
            connections_end: !all_last(scenario),
            ended_ns: BTreeMap::new(),
            open: Open::default(),
            may_come_again: BTreeSet::new(),
            scribbled: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            apps: BTreeMap::new(),
        }
    }

    /// Returns what may end a message of an application from now on, whatever the application does.
    fn reasons(&self, now_ns: u64, app: u32) -> Reasons {
        Reasons {
            app_ended: self.ended_ns.get(&app).is_some_and(|ended| now_ns - ended < UNKNOWN_NS),
            name_free: !self.has_name(app),
            drained: self.drains,
        }
    }

    fn has_name(&self, app: u32) -> bool {
        self.apps.values().any(|&named| named == app)
    }

    fn end_of(&mut self, message: MessageName, status: AckStatus, retries: bool) -> Result<(), String> {
        let Some(known) = self.open.remove(message) else {
            let which =
                if self.open.was_added(message) { "a second time" } else { "though it was never submitted" };
            return Err(format!("{message} ended {which}: {status:?}"));
        };
        let is_decided = matches!(status, AckStatus::Consumed | AckStatus::Rejected(_));
        if known.redelivers || known.is_scribbled || !is_decided {
            self.may_come_again.insert(message);
        }
        if status == AckStatus::Cancelled && !known.is_scribbled {
            self.cancelled.insert(message);
        }
        let passes = matches!(status, AckStatus::Busy | AckStatus::AppGone | AckStatus::Draining);
        if retries && passes && !known.taken_back {
            return Err(format!("{message} ended {status:?} in calm, after it was sent again and again"));
        }
        match status {
            AckStatus::Cancelled if !known.taken_back => {
                Err(format!("{message} ended {status:?}, and nobody took it back: {known}"))
            }
            AckStatus::Cancelled if known.consumed && !known.is_scribbled => {
                Err(format!("{message} ended {status:?}, and its application consumed it: {known}"))
            }
            AckStatus::Cancelled => Ok(()),
            // It may have come to an application over a connection that ended.
            AckStatus::PeerLost if known.taken_back && self.connections_end => Ok(()),
            AckStatus::Consumed if !known.consumed && !known.is_scribbled => {
                Err(format!("{message} is said to be consumed, and no application consumed it: {known}"))
            }
            AckStatus::Rejected(code) if known.rejected != Some(code) && !known.is_scribbled => {
                Err(format!("{message} is said to be rejected with {code}, and nobody did: {known}"))
            }
            AckStatus::Corrupt => Err(format!("{message} is said to be corrupt, and nothing corrupts bytes")),
            AckStatus::Denied | AckStatus::TooLarge => Err(format!("{message} ended {status:?}")),
            AckStatus::Consumed | AckStatus::Rejected(_) => Ok(()),
            // Who loses its connection has the patience for all faults there are.
            AckStatus::PeerLost => Err(format!("{message} ended {status:?}: {known}")),
            AckStatus::Busy if self.is_easy || (self.is_fast && !known.large) => {
                Err(format!("{message} ended {status:?}, and there is room"))
            }
            AckStatus::AppGone if !known.may_end_for(|it| it.app_ended) && !known.is_scribbled => {
                Err(format!("{message} ended {status:?}, and no application did: {known}"))
            }
            AckStatus::NoApp if !known.reasons.name_free && !known.is_scribbled => {
                Err(format!("{message} ended {status:?}, and its application was there: {known}"))
            }
            AckStatus::Draining if !known.may_end_for(|it| it.drained) => {
                Err(format!("{message} ended {status:?}, and nobody drained: {known}"))
            }
            AckStatus::Busy | AckStatus::AppGone | AckStatus::NoApp | AckStatus::Draining => Ok(()),
            _ => Err(format!("{message} ended {status:?}, of which this checker knows nothing")),
        }
    }
}

impl Checker for Fates {
    fn name(&self) -> &'static str {
        "fates"
    }

    fn note(&mut self, now_ns: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Opened { life, app } => {
                self.apps.insert(life, app);
            }
            Event::Closed { life } => {
                let Some(app) = self.apps.remove(&life) else { return Ok(()) };
                self.ended_ns.insert(app, now_ns);
                let name_free = !self.has_name(app);
                for known in self.open.values_mut().filter(|known| known.app == app) {
                    known.reasons.app_ended = true;
                    known.reasons.name_free |= name_free;
                }
            }
            Event::Fault(Fault::Drain) => {
                self.drains = true;
                self.open.values_mut().for_each(|known| known.reasons.drained = true);
            }
            Event::ReceiverBegan { .. } => self.drains = false,
            Event::Submitted { message, app, bytes, large } => {
                let is_of_app = |life: &Life| self.apps.get(life) == Some(&app);
                // The one who wrote what it liked may have named any message that it is still to get.
                let is_scribbled = self.scribbled.iter().any(is_of_app);
                let reasons = self.reasons(now_ns, app);
                self.open
                    .add(message, Known { bytes, large, app, is_scribbled, reasons, ..Known::default() });
            }
            Event::Sent { message, redelivered } => {
                let Some(app) = self.open.get_mut(message).map(|known| known.app) else { return Ok(()) };
                // What was a reason before is none for what is sent now.
                let reasons = self.reasons(now_ns, app);
                if let Some(known) = self.open.get_mut(message) {
                    known.is_sent(reasons);
                    known.redelivers |= redelivered;
                }
            }
            Event::Delivered { life, message, delivery, whole_bytes, first, redelivered, .. } => {
                let was_added = self.open.was_added(message);
                let Some(known) = self.open.get_mut(message) else {
                    let is_wrong = first && was_added && !self.may_come_again.contains(&message);
                    return if is_wrong {
                        Err(format!("{message} came again after its end"))
                    } else {
                        Ok(())
                    };
                };
                if known.bytes != whole_bytes {
                    return Err(format!("{message} has {} bytes, and came with {whole_bytes}", known.bytes));
                }
                // Who wrote what it liked has no more to say about what comes to another life, unless what
                // comes was sent before that.
                known.is_scribbled &= !(first && redelivered == known.redelivers);
                if redelivered && !known.redelivers {
                    return Err(format!("{message} is marked as sent again, and was sent once: {known}"));
                }
                if first {
                    if !redelivered && known.delivered.is_some() {
                        return Err(format!("{message} came a second time, and is not marked so"));
                    }
                    let new = Delivered { life, number: delivery, read_bytes: 0 };
                    known.before.extend(known.delivered.replace(new));
                }
            }
            Event::Read { life, message, delivery, bytes, .. } => {
                if let Some(known) = self.open.get_mut(message)
                    && let Some(delivered) = known.delivery(life, delivery)
                {
                    delivered.read_bytes += u64::from(bytes);
                }
            }
            Event::Finished { life, message, delivery, code } => {
                let Some(known) = self.open.get_mut(message) else {
                    let is_wrong =
                        code == 0 && self.cancelled.contains(&message) && !self.scribbled.contains(&life);
                    return if is_wrong {
                        Err(format!("{message} was consumed after it was taken back"))
                    } else {
                        Ok(())
                    };
                };
                if code > 0 {
                    known.rejected = Some(code);
                    return Ok(());
                }
                let read = known.delivery(life, delivery).map_or(0, |delivered| delivered.read_bytes);
                if read != known.bytes {
                    return Err(format!("{message} was consumed after {read} of {} bytes", known.bytes));
                }
                known.consumed = true;
            }
            Event::Ended { message, status, retries } => {
                self.end_of(message, status, retries)?;
            }
            Event::TakenBack { message } => {
                if let Some(known) = self.open.get_mut(message) {
                    known.taken_back = true;
                }
            }
            Event::SenderLost { sender } => {
                self.open.remove_sender(sender);
            }
            Event::Broke { life, what: Broke::Anything } => {
                self.scribbled.insert(life);
                let app = self.apps.get(&life);
                for known in self.open.values_mut() {
                    known.is_scribbled |= Some(&known.app) == app;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        match self.open.first() {
            Some(message) => Err(format!("{} messages have no end, {message} first", self.open.count())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_fabric::sim::NicId;

    const MESSAGE: MessageName = MessageName { sender: 7, sequence: 1 };
    const LIFE: Life = Life(1);

    fn delivered(delivery: u32, redelivered: bool) -> Event {
        Event::Delivered {
            life: LIFE,
            app: 0,
            message: MESSAGE,
            delivery,
            offset: 0,
            bytes: 5,
            whole_bytes: 5,
            first: true,
            last: true,
            redelivered,
        }
    }

    /// Lets a message be sent, delivered and consumed, and hear its end.
    fn consumed(sendings: &[bool]) -> Fates {
        let mut fates = Fates::new(&Scenario::of(1));
        let mut events = vec![
            Event::Opened { life: LIFE, app: 0 },
            Event::Submitted { message: MESSAGE, app: 0, bytes: 5, large: true },
        ];
        events.extend(sendings.iter().map(|&redelivered| Event::Sent { message: MESSAGE, redelivered }));
        events.extend([
            delivered(1, sendings.len() > 1),
            Event::Read { life: LIFE, message: MESSAGE, delivery: 1, bytes: 5, escaped: false },
            Event::Finished { life: LIFE, message: MESSAGE, delivery: 1, code: 0 },
            Event::Ended { message: MESSAGE, status: AckStatus::Consumed, retries: false },
        ]);
        for event in events {
            fates.note(0, &event).unwrap_or_else(|what| panic!("{event:?}: {what}"));
        }
        fates
    }

    #[test]
    fn a_message_that_was_sent_once_does_not_come_again_after_its_end() {
        for redelivered in [false, true] {
            let found = consumed(&[false]).note(0, &delivered(2, redelivered));
            assert!(found.is_err_and(|what| what.contains("came again after its end")));
        }
    }

    /// Lets a message be sent to a receiver that drains, and again to the next one.
    fn ended_after_a_drain(taken_back: bool) -> Result<(), String> {
        let mut fates = Fates::new(&Scenario::of(1));
        let sent = |redelivered| Event::Sent { message: MESSAGE, redelivered };
        let mut events = vec![
            Event::Submitted { message: MESSAGE, app: 0, bytes: 5, large: false },
            sent(false),
            Event::Fault(Fault::Drain),
            Event::ReceiverBegan { nic: NicId(2) },
            sent(true),
        ];
        events.extend(taken_back.then_some(Event::TakenBack { message: MESSAGE }));
        for event in events {
            fates.note(0, &event).unwrap_or_else(|what| panic!("{event:?}: {what}"));
        }
        fates.note(0, &Event::Ended { message: MESSAGE, status: AckStatus::Draining, retries: false })
    }

    #[test]
    fn only_a_message_that_is_taken_back_ends_for_what_happened_before_it_was_sent_again() {
        assert_eq!(ended_after_a_drain(true), Ok(()));
        assert!(ended_after_a_drain(false).is_err_and(|what| what.contains("nobody drained")));
    }

    #[test]
    fn a_message_that_was_sent_twice_may_come_once_more() {
        assert_eq!(consumed(&[false, true]).note(0, &delivered(2, true)), Ok(()));
    }
}
