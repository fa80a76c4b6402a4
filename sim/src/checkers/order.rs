//! Order: small messages of a sender arrive in the order in which they were sent.
//!
//! A message that is sent again, because its connection was lost or its end passes, keeps its number and not
//! its place. So the order is that of the SENDs: what arrives at one life of an application must be some of
//! the SENDs of small messages of one sender, in their order. A message is sent for the first time after the
//! small ones that were submitted before it.

use super::Checker;
use crate::event::{Event, Life, MessageName};
use std::collections::{BTreeMap, BTreeSet};

/// The SENDs of one sender's small messages, numbered from 1.
#[derive(Debug, Default)]
struct Sends {
    count: u64,
    /// Number of each message's first SEND, by the message's number; 0: none.
    first: Vec<u64>,
    /// Numbers of the further SENDs of a message.
    again: BTreeMap<u64, Vec<u64>>,
    /// Greatest number of a message that was sent.
    latest: u64,
}

impl Sends {
    /// Adds a SEND.
    ///
    /// # Errors
    /// It is the message's first one, and a later message was sent before.
    fn add(&mut self, sequence: u64) -> Result<(), String> {
        self.count += 1;
        let at = usize::try_from(sequence).expect("messages are few");
        if self.first.len() <= at {
            self.first.resize((at + 1).next_power_of_two(), 0);
        }
        match self.first[at] {
            0 if sequence < self.latest => {
                return Err(format!("message {sequence} was sent after message {}", self.latest));
            }
            0 => (self.first[at], self.latest) = (self.count, sequence),
            _ => self.again.entry(sequence).or_default().push(self.count),
        }
        Ok(())
    }

    /// Returns the number of a message's first SEND behind another one.
    fn behind(&self, sequence: u64, last: u64) -> Option<u64> {
        let first = self.first.get(usize::try_from(sequence).ok()?).copied().unwrap_or(0);
        let further = self.again.get(&sequence).map_or(&[][..], Vec::as_slice);
        [first].iter().chain(further).copied().find(|number| *number > last)
    }
}

/// The SENDs of each sender, and the last one of them that each life had.
#[derive(Debug, Default)]
pub struct Order {
    large: BTreeSet<MessageName>,
    sends: BTreeMap<u64, Sends>,
    last: BTreeMap<(Life, u64), (u64, u64)>,
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
            Event::Sent { message, .. } if !self.large.contains(&message) => {
                return self.sends.entry(message.sender).or_default().add(message.sequence);
            }
            Event::Delivered { life, message, first: true, .. }
                if !self.large.contains(&message) && !message.is_of_cheat() =>
            {
                let last = self.last.entry((life, message.sender)).or_insert((0, 0));
                let sends = self.sends.get(&message.sender);
                let Some(number) = sends.and_then(|sends| sends.behind(message.sequence, last.0)) else {
                    return Err(format!("{message} came after message {}, which was sent later", last.1));
                };
                *last = (number, message.sequence);
            }
            _ => {}
        }
        Ok(())
    }
}
