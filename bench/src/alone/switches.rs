//! How often threads left their core: by sleeping, or otherwise.

use std::io;

/// How often threads left their core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Switches {
    /// They slept until something woke them.
    pub sleeps: u64,
    /// They gave the core to another thread, or the kernel took it.
    pub others: u64,
}

impl Switches {
    /// Returns the switches of this thread so far.
    pub(super) fn own() -> io::Result<Self> {
        of_status(&std::fs::read_to_string("/proc/thread-self/status")?)
    }

    /// Returns the switches so far of those threads of a process whose names begin with `name`.
    pub(super) fn of_threads(pid: u32, name: &str) -> io::Result<Self> {
        let mut all = Self::default();
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let folder = task?.path();
            if std::fs::read_to_string(folder.join("comm"))?.starts_with(name) {
                let one = of_status(&std::fs::read_to_string(folder.join("status"))?)?;
                all = Self { sleeps: all.sleeps + one.sleeps, others: all.others + one.others };
            }
        }
        Ok(all)
    }

    /// Returns the switches since an earlier time.
    pub(super) fn since(self, before: Self) -> Self {
        Self { sleeps: self.sleeps - before.sleeps, others: self.others - before.others }
    }
}

fn of_status(text: &str) -> io::Result<Switches> {
    let number = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
        found.ok_or_else(|| io::Error::other(format!("a thread's status without {key}")))
    };
    Ok(Switches {
        sleeps: number("voluntary_ctxt_switches:")?,
        others: number("nonvoluntary_ctxt_switches:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn sleeps_are_counted_of_the_threads_that_are_asked_for() {
        let before = Switches::own().unwrap();
        (0..20).for_each(|_| std::thread::sleep(Duration::from_micros(50)));
        assert!(Switches::own().unwrap().since(before).sleeps >= 20);
        let none = Switches::of_threads(std::process::id(), "no such thread").unwrap();
        assert_eq!(none, Switches::default());
        let all = Switches::of_threads(std::process::id(), "").unwrap();
        assert!(all.sleeps >= 20);
    }
}
