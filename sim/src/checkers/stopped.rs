//! Stopped: an application that gives nothing back holds up nobody but its own senders. Of the others, none
//! waits long for anything.

use super::{Checker, Look};
use crate::event::{Event, MessageName};
use crate::scenario::{Kind, Scenario};
use std::collections::BTreeMap;

/// Nanoseconds for which a sender may get nothing while it waits.
const BOUND_NS: u64 = 1_000_000_000;

/// A sender to an application that does not stop.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    /// Messages without an end.
    open: u32,
    /// Time since which nothing has come of it, and none of its messages has ended.
    since_ns: u64,
}

/// Senders that wait. Only of scenarios in which an application stops, before the calm.
#[derive(Debug)]
pub struct Stopped {
    is_watched: bool,
    /// Names of the applications that stop.
    names: Vec<u32>,
    senders: BTreeMap<u64, Sender>,
}

impl Stopped {
    pub fn new(scenario: &Scenario) -> Self {
        let stop = scenario.applications.iter().filter(|application| application.stops());
        Self {
            is_watched: scenario.kind == Kind::Stopped,
            names: stop.map(|application| application.name).collect(),
            senders: BTreeMap::new(),
        }
    }

    /// Notes that something came of a message.
    fn moved(&mut self, now_ns: u64, message: MessageName) -> Option<&mut Sender> {
        let sender = self.senders.get_mut(&message.sender)?;
        sender.since_ns = now_ns;
        Some(sender)
    }
}

impl Checker for Stopped {
    fn name(&self) -> &'static str {
        "stopped"
    }

    fn note(&mut self, now_ns: u64, event: &Event) -> Result<(), String> {
        if !self.is_watched {
            return Ok(());
        }
        match *event {
            Event::Submitted { message, app, .. } if !self.names.contains(&app) => {
                let sender = self.senders.entry(message.sender).or_default();
                if sender.open == 0 {
                    sender.since_ns = now_ns;
                }
                sender.open += 1;
            }
            Event::Delivered { message, .. } => _ = self.moved(now_ns, message),
            Event::Ended { message, .. } => {
                if let Some(sender) = self.moved(now_ns, message) {
                    sender.open -= 1;
                }
            }
            Event::Calm => self.is_watched = false,
            _ => {}
        }
        Ok(())
    }

    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        let waits = |sender: &Sender| sender.open > 0 && look.now_ns - sender.since_ns > BOUND_NS;
        match self.senders.iter().find(|(_, sender)| self.is_watched && waits(sender)) {
            Some((id, Sender { open, since_ns })) => Err(format!(
                "nothing came of {open} messages of sender {id:x} for {} ns, beside an application that \
                 stopped: {:?}",
                look.now_ns - since_ns,
                look.stats
            )),
            None => Ok(()),
        }
    }
}
