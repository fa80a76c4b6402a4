//! Starvation: where nobody but a slow sender holds anything up, no sender that asked for a READ waits long
//! while others get READs. What is admitted of its class goes first. Of a class that is not the most urgent
//! one, that is one fragment each time that the class has aged.

use super::Checker;
use crate::event::{Event, MessageName};
use crate::scenario::{Scenario, SenderPlan};
use std::collections::BTreeMap;

/// Aging bounds for which a sender may wait: each class may have one before it, and senders of one class take
/// turns.
const BOUNDS: u64 = 20;
/// Nanoseconds that everything else may take: ways, turns, copies, checks, and a slow sender's fragments.
const SLACK_NS: u64 = 100_000_000;

/// What a sender waits for.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Requests that were sent and of which nothing has come.
    requests: u32,
    /// Time since which nothing came though something was asked for.
    since_ns: u64,
    /// Runs that others got since then.
    others: u64,
}

/// Senders that asked for READs. Only of scenarios in which no receiver, application or connection fails.
#[derive(Debug)]
pub struct Starvation {
    is_watched: bool,
    /// Nanoseconds that each sender may wait, in the order in which they begin.
    bounds_ns: Vec<u64>,
    begun: Vec<u64>,
    /// Runs that others may get meanwhile, whatever the time.
    runs: u64,
    large: BTreeMap<MessageName, bool>,
    waiting: BTreeMap<u64, Waiting>,
}

/// Returns how many nanoseconds each sender may wait.
fn bounds_ns(scenario: &Scenario) -> Vec<u64> {
    let config = &scenario.config;
    let class_of = |sender: &SenderPlan| {
        let to = scenario.applications.iter().filter(|application| application.name == sender.app);
        to.map(|application| application.class).max().unwrap_or(0).max(sender.class)
    };
    let classes: Vec<_> = scenario.senders.iter().map(class_of).collect();
    let fragments = |sender: &SenderPlan| {
        u64::from(sender.depth) * sender.large_bytes.div_ceil(config.fragment_bytes.into())
    };
    let bound_ns = |class: &u8| {
        let is_urgent = classes.iter().all(|other| other >= class);
        let of_class = scenario.senders.iter().zip(&classes).filter(|(_, of)| *of == class);
        let before = if is_urgent { 0 } else { of_class.map(|(sender, _)| fragments(sender)).sum() };
        config.aging_ns * (BOUNDS + before) + SLACK_NS
    };
    classes.iter().map(bound_ns).collect()
}

impl Starvation {
    pub fn new(scenario: &Scenario) -> Self {
        let config = &scenario.config;
        Self {
            // Where an application is left out, messages to it wait at their senders.
            is_watched: scenario.contended && scenario.applications.iter().all(|one| !one.is_absent),
            bounds_ns: bounds_ns(scenario),
            begun: Vec::new(),
            runs: u64::from(config.reads_max) * 4 + 64,
            large: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
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
            Event::SenderBegan { sender } => self.begun.push(sender),
            Event::Submitted { message, large: true, .. } => {
                self.large.insert(message, false);
            }
            Event::Sent { message, .. } => {
                if let Some(is_sent @ false) = self.large.get_mut(&message) {
                    *is_sent = true;
                    let none = Waiting { requests: 0, since_ns: now_ns, others: 0 };
                    let waiting = self.waiting.entry(message.sender).or_insert(none);
                    if waiting.requests == 0 {
                        *waiting = none;
                    }
                    waiting.requests += 1;
                }
            }
            Event::Ended { message, .. } => {
                if self.large.remove(&message) == Some(true)
                    && let Some(waiting) = self.waiting.get_mut(&message.sender)
                {
                    (waiting.requests, waiting.since_ns, waiting.others) = (waiting.requests - 1, now_ns, 0);
                }
            }
            Event::Delivered { message, .. } if self.large.contains_key(&message) => {
                for (sender, waiting) in &mut self.waiting {
                    if *sender == message.sender {
                        (waiting.since_ns, waiting.others) = (now_ns, 0);
                    } else if waiting.requests > 0 {
                        waiting.others += 1;
                        let span_ns = now_ns - waiting.since_ns;
                        let place = self.begun.iter().position(|begun| begun == sender);
                        let bound_ns = place.map_or(u64::MAX, |place| self.bounds_ns[place]);
                        if span_ns > bound_ns && waiting.others > self.runs {
                            return Err(format!(
                                "sender {sender:x} got nothing for {span_ns} ns, and others got {} runs",
                                waiting.others
                            ));
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
