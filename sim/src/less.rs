//! Less of a scenario: parts left out, so that what fails is seen in the smallest scenario that still fails.

use crate::checkers::Failure;
use crate::event::Fault;
use crate::scenario::{ApplicationPlan, Scenario};
use crate::simulation::{Outcome, Simulation};
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Something that is left out of a scenario. Everything else happens as it would, as far as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Less {
    /// The sender at this place sends nothing.
    Sender(usize),
    /// The application at this place never registers.
    Application(usize),
    /// Faults of this kind are not caused.
    Fault(Fault),
    /// At most so many faults are caused.
    Faults(u32),
    /// Each sender sends at most so many messages.
    Messages(u64),
    /// The cheat at this place does nothing.
    Cheat(usize),
}

impl fmt::Display for Less {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sender(index) => write!(f, "sender={index}"),
            Self::Application(index) => write!(f, "application={index}"),
            Self::Fault(fault) => write!(f, "fault={}", fault.name()),
            Self::Faults(count) => write!(f, "faults={count}"),
            Self::Messages(count) => write!(f, "messages={count}"),
            Self::Cheat(index) => write!(f, "cheat={index}"),
        }
    }
}

/// Error of reading what is to be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLess(String);

impl fmt::Display for NotLess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is none of sender=PLACE, application=PLACE, cheat=PLACE, fault=NAME, faults=COUNT, \
             messages=COUNT",
            self.0
        )
    }
}

impl Error for NotLess {}

impl FromStr for Less {
    type Err = NotLess;

    fn from_str(text: &str) -> Result<Self, NotLess> {
        let error = || NotLess(text.to_owned());
        let (what, value) = text.split_once('=').ok_or_else(error)?;
        let number = value.parse().map_err(|_| error());
        let small = |number: u64| u32::try_from(number).map_err(|_| error());
        match what {
            "sender" => Ok(Self::Sender(small(number?)? as usize)),
            "cheat" => Ok(Self::Cheat(small(number?)? as usize)),
            "application" => Ok(Self::Application(small(number?)? as usize)),
            "faults" => Ok(Self::Faults(small(number?)?)),
            "messages" => Ok(Self::Messages(number?)),
            "fault" => {
                let named = Fault::ALL.into_iter().find(|fault| fault.name() == value);
                named.map(Self::Fault).ok_or_else(error)
            }
            _ => Err(error()),
        }
    }
}

impl Scenario {
    /// Leaves something out.
    #[must_use]
    pub fn without(mut self, less: Less) -> Self {
        match less {
            Less::Sender(index) => {
                if let Some(sender) = self.senders.get_mut(index) {
                    sender.messages = 0;
                }
            }
            Less::Application(index) => {
                if let Some(application) = self.applications.get_mut(index) {
                    application.is_absent = true;
                }
                // Who sends to nobody would hear so all the time.
                for sender in &mut self.senders {
                    let has_name = |one: &ApplicationPlan| one.name == sender.app && !one.is_absent;
                    if !self.applications.iter().any(has_name) {
                        sender.messages = 0;
                    }
                }
            }
            Less::Cheat(index) => {
                if let Some(cheat) = self.cheats.get_mut(index) {
                    cheat.actions = 0;
                }
            }
            Less::Fault(fault) => {
                self.faults.retain(|one| *one != fault);
                let breaks = fault != Fault::Scribble;
                self.applications.iter_mut().for_each(|application| application.breaks &= breaks);
            }
            Less::Faults(count) => self.faults_max = self.faults_max.min(count),
            Less::Messages(count) => {
                self.senders.iter_mut().for_each(|sender| sender.messages = sender.messages.min(count));
            }
        }
        self
    }

    /// Returns what could be left out of it next, what leaves out most first.
    fn candidates(&self) -> Vec<Less> {
        let mut all = Vec::new();
        let most = self.senders.iter().map(|sender| sender.messages).max().unwrap_or(0);
        all.extend(
            [most / 8, most / 2, most * 7 / 8].into_iter().filter(|less| *less < most).map(Less::Messages),
        );
        all.extend((0..self.senders.len()).filter(|at| self.senders[*at].messages > 0).map(Less::Sender));
        let present = |at: &usize| !self.applications[*at].is_absent;
        all.extend((0..self.applications.len()).filter(present).map(Less::Application));
        all.extend((0..self.cheats.len()).filter(|at| self.cheats[*at].actions > 0).map(Less::Cheat));
        all.extend(self.faults.iter().copied().map(Less::Fault));
        if !self.faults.is_empty() {
            let most = self.faults_max;
            let fewer = [most / 2, most.saturating_sub(1)].into_iter().filter(|fewer| *fewer < most);
            all.extend(fewer.map(Less::Faults));
        }
        all
    }
}

/// A smaller scenario that fails as the whole one does.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// What was left out.
    pub left_out: Vec<Less>,
    /// What came of the rest.
    pub outcome: Outcome,
}

/// Leaves out of a scenario that failed what can be left out while the same checker finds something, for at
/// most a time. `None`: nothing could be left out.
///
/// # Errors
/// An error of the system.
pub fn shrink(
    scenario: &Scenario,
    failure: &Failure,
    longest: Duration,
) -> Result<Option<Shrunk>, Box<dyn Error>> {
    let begin = Instant::now();
    let (mut smallest, mut left_out, mut found) = (scenario.clone(), Vec::new(), None);
    'again: loop {
        for less in smallest.candidates() {
            if begin.elapsed() >= longest {
                break 'again;
            }
            let smaller = smallest.clone().without(less);
            let outcome = Simulation::new(smaller.clone())?.run()?;
            if outcome.failure.as_ref().is_some_and(|other| other.checker == failure.checker) {
                left_out.retain(|before| {
                    std::mem::discriminant(before) != std::mem::discriminant(&less)
                        || matches!(
                            less,
                            Less::Sender(_) | Less::Application(_) | Less::Cheat(_) | Less::Fault(_)
                        )
                });
                left_out.push(less);
                (smallest, found) = (smaller, Some(outcome));
                continue 'again;
            }
        }
        break;
    }
    Ok(found.map(|outcome| Shrunk { left_out, outcome }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_read_as_it_is_written() {
        let all = [
            Less::Sender(3),
            Less::Application(0),
            Less::Fault(Fault::RestartReceiver),
            Less::Faults(2),
            Less::Messages(70),
            Less::Cheat(1),
        ];
        for less in all {
            assert_eq!(less.to_string().parse(), Ok(less));
        }
        for wrong in ["", "sender", "sender=", "sender=x", "fault=none", "faults=-1", "nothing=1"] {
            assert!(
                wrong.parse::<Less>().unwrap_err().to_string().starts_with(&format!("{wrong:?} is none"))
            );
        }
    }
}
