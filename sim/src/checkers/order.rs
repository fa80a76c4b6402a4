//! Order: small messages of a sender arrive in the order in which they were sent.

use super::Checker;
use crate::event::{Event, Life, MessageName};
use std::collections::{BTreeMap, BTreeSet};

/// The last small message that each life had of each sender.
#[derive(Debug, Default)]
pub struct Order {
    large: BTreeSet<MessageName>,
    last: BTreeMap<(Life, u64), u64>,
}

impl Checker for Order {
    fn name(&self) -> &'static str {
        "order"
    }

    fn note(&mut self, _now_ns: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Submitted { message, large: true, .. } => {
                self.large.insert(message);
            }
            Event::Ended { message, .. } => {
                self.large.remove(&message);
            }
            // A message that is sent again for an end that passed keeps its number, and not its place. It is
            // marked, unless no application can have seen it.
            Event::Delivered { life, message, first: true, redelivered: false, .. }
                if !self.large.contains(&message) =>
            {
                let last = self.last.entry((life, message.sender)).or_insert(0);
                if message.sequence <= *last {
                    return Err(format!("{message} came after message {last}"));
                }
                *last = message.sequence.max(*last);
            }
            _ => {}
        }
        Ok(())
    }
}
