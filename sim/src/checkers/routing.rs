//! Routing: a message comes to the application that its sender named, and to no other. Where checksums are
//! made, no message comes whole whose checksum is wrong.

use super::Checker;
use crate::event::{Event, MessageName, WRONG_CHECKSUM};
use crate::scenario::Scenario;
use jet_core::Checksums;
use std::collections::BTreeMap;

/// Applications' names by sender, and by life.
#[derive(Debug)]
pub struct Routing {
    named: BTreeMap<u64, Option<u32>>,
    makes_checksums: bool,
}

impl Routing {
    pub fn new(scenario: &Scenario) -> Self {
        Self { named: BTreeMap::new(), makes_checksums: scenario.config.checksums != Checksums::Off }
    }
}

impl Checker for Routing {
    fn name(&self) -> &'static str {
        "routing"
    }

    fn note(&mut self, _now_ns: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Submitted { message: MessageName { sender, .. }, app, .. } => {
                self.named.insert(sender, Some(app));
                Ok(())
            }
            Event::CheatBegan { sender, app } => {
                self.named.insert(sender, app);
                Ok(())
            }
            Event::Delivered { message, last: true, .. }
                if self.makes_checksums
                    && message.is_of_cheat()
                    && message.sequence >> 32 == WRONG_CHECKSUM >> 32 =>
            {
                Err(format!("{message} came whole, and its checksum is wrong"))
            }
            Event::Delivered { app, message, .. } => match self.named.get(&message.sender) {
                Some(named) if *named == Some(app) => Ok(()),
                Some(named) => Err(format!("{message} is for application {named:?}, and came to {app}")),
                None => Err(format!("{message} came, and its sender sent nothing")),
            },
            _ => Ok(()),
        }
    }
}
