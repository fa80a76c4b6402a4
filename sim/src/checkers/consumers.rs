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
}

impl Consumers {
    pub fn new(scenario: &Scenario) -> Self {
        let shares = scenario.applications.iter().any(|application| application.shares_name);
        Self { is_watched: shares && connections::all_last(scenario), had: BTreeMap::new() }
    }

    /// Forgets what a life has.
    fn forget(&mut self, life: Life) {
        self.had.values_mut().for_each(|had| had.retain(|(of, ..)| *of != life));
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
                if last {
                    had.insert((life, message, delivery));
                }
            }
            Event::Finished { life, message, delivery, .. } => {
                if let Some(had) = self.had.get_mut(&message.sender) {
                    had.remove(&(life, message, delivery));
                }
            }
            // The receiver ends the session of one that breaks it, before the simulation does.
            Event::Closed { life } | Event::Broke { life, .. } => self.forget(life),
            _ => {}
        }
        Ok(())
    }
}
