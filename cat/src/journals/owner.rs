//! Identity of the process that made a change. It tells whether that process still lives, even where its lock
//! file was removed.

use serde::{Deserialize, Serialize};
use std::fs;

/// Process, identified by its number and its start time, so that a later process with the same number
/// differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pid: u32,
    /// Start time of the process, in clock ticks after boot.
    began: u64,
}

/// State of a process, as far as this process can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// The process runs.
    Living,
    /// The process is ending: its locks are about to be released.
    Ending,
    /// No such process is visible here. It may still run in another container.
    Unseen,
}

/// Flag `PF_EXITING` of the kernel's linux/sched.h, set while a process is ending.
const EXITING: u64 = 0x4;

impl Owner {
    /// Returns the identity of the calling process.
    pub fn this() -> Self {
        Self::of(std::process::id())
    }

    pub(super) fn of(pid: u32) -> Self {
        Self { pid, began: stat(pid).map_or(0, |stat| stat.began) }
    }

    pub fn life(self) -> Life {
        match stat(self.pid) {
            Some(stat) if stat.began != self.began => Life::Unseen,
            Some(stat) if stat.is_ending => Life::Ending,
            Some(_) => Life::Living,
            None => Life::Unseen,
        }
    }
}

struct Stat {
    is_ending: bool,
    began: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a line of proc_pid_stat(5). The name, in parentheses, may contain anything; the state, the flags
/// and the start time follow it.
fn parse(text: &str) -> Option<Stat> {
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let began = fields.nth(12)?.parse().ok()?;
    Some(Stat { is_ending: matches!(state, "Z" | "X") || flags & EXITING != 0, began })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_ends_and_is_gone() {
        let own = Owner::this();
        assert_eq!(own.life(), Life::Living);
        assert_eq!(Owner { began: own.began + 1, ..own }.life(), Life::Unseen, "a later one of its number");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let began = Owner::of(pid).began;
        // The child is a zombie until it is waited for.
        while (Owner { pid, began }).life() == Life::Living {
            std::thread::yield_now();
        }
        assert_eq!(Owner { pid, began }.life(), Life::Ending);
        child.wait().unwrap();
        assert_eq!(Owner { pid, began }.life(), Life::Unseen);
        let found = parse("1 (a) b (c) S 0 1 1 0 -1 4 9 9 9 9 9 9 9 9 9 9 9 0 77 9").unwrap();
        assert_eq!((found.is_ending, found.began), (true, 77));
    }
}
