//! Routing: a message comes to the application that its sender named, and to no other.

use super::Checker;
use crate::event::{Event, MessageName};
use std::collections::BTreeMap;

/// Applications' names by sender, and by life.
#[derive(Debug, Default)]
pub struct Routing {
    named: BTreeMap<u64, Option<u32>>,
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
            Event::Delivered { app, message, .. } => match self.named.get(&message.sender) {
                Some(named) if *named == Some(app) => Ok(()),
                Some(named) => Err(format!("{message} is for application {named:?}, and came to {app}")),
                None => Err(format!("{message} came, and its sender sent nothing")),
            },
            _ => Ok(()),
        }
    }
}
