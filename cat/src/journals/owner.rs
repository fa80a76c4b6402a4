//! Who made a change, so that a process that ends is told from one that lives, even where a lock's file is
//! gone.

use serde::{Deserialize, Serialize};
use std::fs;

/// A process, told from later ones of its number by when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pid: u32,
    /// Clock ticks after the boot.
    began: u64,
}

/// How a process is, as far as can be told from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It runs.
    Living,
    /// It ends: its locks are about to be given up.
    Ending,
    /// There is no such process here; in another container there may be.
    Unseen,
}

/// `PF_EXITING` of the kernel's linux/sched.h.
const EXITING: u64 = 0x4;

impl Owner {
    /// The process that asks.
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

/// Of proc_pid_stat(5): the name, in parentheses, may hold anything; the state follows, the flags, and when
/// it began.
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
        // A zombie until it is waited for.
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
