//! Consumers: of several applications that share a name, one has a sender's messages at a time. No other one
//! gets a message of the sender before it has finished those that it has. Looks only where no connection is
//! lost: what is sent again after a loss may come to another application.

use super::{Checker, connections};
use crate::event::{Event, Life, MessageName};
use crate::scenario::Scenario;
use std::collections::{BTreeMap, BTreeSet};

/// The messages of each sender that applications have, whole and not finished.
#[derive(Debug, Default)]
pub struct Consumers {
    is_watched: bool,
    /// By sender: the life that has them, the message, and the number of the delivery.
    had: BTreeMap<u64, BTreeSet<(Life, MessageName, u32)>>,
    /// Messages that were finished before they were whole. Bytes that were under way may still arrive.
    finished_early: BTreeSet<(Life, MessageName, u32)>,
}

impl Consumers {
    pub fn new(scenario: &Scenario) -> Self {
        let shares = scenario.applications.iter().any(|application| application.shares_name);
        Self { is_watched: shares && connections::all_last(scenario), ..Self::default() }
    }

    /// Forgets what a life has.
    fn forget(&mut self, life: Life) {
        self.had.values_mut().for_each(|had| had.retain(|(of, ..)| *of != life));
        self.finished_early.retain(|(of, ..)| *of != life);
    }
}

impl Checker for Consumers {
    fn name(&self) -> &'static str {
        "consumers"
    }

    fn note(&mut self, _now_ns: u64, event: &Event) -> Result<(), String> {
        if !self.is_watched {
            return Ok(());
        }
        match *event {
            Event::Delivered { life, message, delivery, first, last, .. } if !message.is_of_cheat() => {
                let had = self.had.entry(message.sender).or_default();
                let other = had.iter().find(|(of, ..)| *of != life);
                if let Some((other, earlier, _)) = other.filter(|_| first) {
                    return Err(format!("{message} came to {life:?}, and {other:?} still has {earlier}"));
                }
                // Before its last bytes are there, a message may turn out to be wrong, and ends.
                if last && !self.finished_early.remove(&(life, message, delivery)) {
                    had.insert((life, message, delivery));
                }
            }
            Event::Finished { life, message, delivery, .. } => {
                let finished = (life, message, delivery);
                if !self.had.get_mut(&message.sender).is_some_and(|had| had.remove(&finished)) {
                    self.finished_early.insert(finished);
                }
            }
            // The receiver ends the session of one that breaks it, before the simulation does.
            Event::Closed { life } | Event::Broke { life, .. } => self.forget(life),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64) -> MessageName {
        MessageName { sender: 7, sequence }
    }

    /// A part of a message of two parts.
    fn delivered(life: u32, sequence: u64, is_last: bool) -> Event {
        Event::Delivered {
            life: Life(life),
            app: 0,
            message: message(sequence),
            delivery: 1,
            offset: if is_last { 5 } else { 0 },
            bytes: 5,
            whole_bytes: 10,
            first: !is_last,
            last: is_last,
            redelivered: false,
        }
    }

    fn finished(life: u32, sequence: u64) -> Event {
        Event::Finished { life: Life(life), message: message(sequence), delivery: 1, code: 28 }
    }

    fn check(events: &[Event]) -> Result<(), String> {
        let mut consumers = Consumers { is_watched: true, ..Consumers::default() };
        events.iter().try_for_each(|event| consumers.note(0, event))
    }

    #[test]
    fn another_one_gets_nothing_of_the_sender_before_what_somebody_has_is_finished() {
        let whole = [delivered(1, 1, false), delivered(1, 1, true)];
        let found = check(&[&whole[..], &[delivered(2, 2, false)]].concat());
        assert!(found.is_err_and(|what| what.contains("still has")));
        assert_eq!(check(&[&whole[..], &[finished(1, 1), delivered(2, 2, false)]].concat()), Ok(()));
    }

    #[test]
    fn bytes_that_come_after_a_message_was_finished_are_nobodys() {
        let late = [delivered(1, 1, false), finished(1, 1), delivered(1, 1, true)];
        assert_eq!(check(&[&late[..], &[delivered(2, 2, false)]].concat()), Ok(()));
    }
}
