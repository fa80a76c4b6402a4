//! The runs of senders as the receiving host sees them: which messages arrived of each, and the processor
//! time that they took on this host.
//!
//! Processor time belongs to a run while only that run's messages arrive. While messages of several runs
//! arrive, the time cannot be divided, and none of these runs gets any.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

/// Limit of the runs that are counted apart. Messages of later runs count as messages of no run.
const RUNS_MAX: usize = 4096;

/// Identity of a run: its sender and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The sender's identity.
    pub sender: u64,
    /// The run's number at its sender.
    pub run: u32,
}

/// Processor time of this process, and of the daemon where that is known (else zero).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Processor time of this process, the receiving application.
    pub application: Duration,
    /// Processor time of the daemon.
    pub daemon: Duration,
}

/// Messages of a run that arrived, and the processor time that they took.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Identity of the run.
    pub key: Key,
    /// Number of the run's messages that arrived whole.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Time at which the run's first message arrived.
    pub first: Instant,
    /// Time at which the run's last message so far arrived.
    pub last: Instant,
    /// Processor time that the run took; `None`: another run's messages arrived at the same time.
    pub spent: Option<Spent>,
}

/// Runs of all senders, in the order of their first messages.
pub struct Runs<F> {
    /// Function that reads the processor time spent so far by this process and the daemon.
    read: F,
    all: Vec<Arrived>,
    places: HashMap<Key, usize>,
    /// Index of the run whose messages arrive now, and the processor time spent before these messages.
    open: Option<(usize, Spent)>,
    /// Number of messages that belong to no run, and their bytes.
    pub others: (u64, u64),
}

impl<F: FnMut() -> io::Result<Spent>> Runs<F> {
    /// Makes an empty list of runs.
    pub fn new(read: F) -> Self {
        Self { read, all: Vec::new(), places: HashMap::new(), open: None, others: (0, 0) }
    }

    /// Returns the runs in the order of their first messages.
    pub fn all(&self) -> &[Arrived] {
        &self.all
    }

    /// Counts a message that arrived whole: for the run `key`, or as one of no run.
    ///
    /// # Errors
    /// An error of reading the times.
    #[inline]
    pub fn take(&mut self, key: Option<Key>, bytes: u64, now: Instant) -> io::Result<()> {
        let at = match self.open {
            Some((at, _)) if Some(self.all[at].key) == key => at,
            _ => match self.change_to(key, now)? {
                Some(at) => at,
                None => {
                    self.others = (self.others.0 + 1, self.others.1 + bytes);
                    return Ok(());
                }
            },
        };
        let run = &mut self.all[at];
        run.messages += 1;
        run.bytes += bytes;
        run.last = now;
        Ok(())
    }

    /// Counts processor time for the run `key` from now on. Returns the run's index, if the run is counted
    /// apart.
    fn change_to(&mut self, key: Option<Key>, now: Instant) -> io::Result<Option<usize>> {
        let before = self.open.map(|(at, _)| at);
        let known = key.and_then(|key| self.places.get(&key).copied());
        if let (Some(at), Some(before)) = (known, before) {
            // A run that continues after another one's messages: both send at the same time.
            self.all[at].spent = None;
            self.all[before].spent = None;
        }
        self.close()?;
        let Some(key) = key.filter(|_| known.is_some() || self.all.len() < RUNS_MAX) else { return Ok(None) };
        let at = known.unwrap_or_else(|| {
            let spent = Some(Spent::default());
            self.all.push(Arrived { key, messages: 0, bytes: 0, first: now, last: now, spent });
            self.places.insert(key, self.all.len() - 1);
            self.all.len() - 1
        });
        // Where the time belongs to no run, reading it for each message would only cost more.
        let spent = if self.all[at].spent.is_some() { (self.read)()? } else { Spent::default() };
        self.open = Some((at, spent));
        Ok(Some(at))
    }

    /// Stops counting processor time for a run, since no message arrives for now.
    ///
    /// # Errors
    /// An error of reading the times.
    pub fn close(&mut self) -> io::Result<()> {
        let Some((at, before)) = self.open.take() else { return Ok(()) };
        if let Some(spent) = &mut self.all[at].spent {
            let now = (self.read)()?;
            spent.application += now.application - before.application;
            spent.daemon += now.daemon - before.daemon;
        }
        Ok(())
    }

    /// Returns whether processor time is being counted for a run now.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const MS: Duration = Duration::from_millis(1);

    /// Makes an empty list of runs. Each reading of the processor time adds a millisecond to this process's,
    /// and ten to the daemon's.
    fn runs() -> Runs<impl FnMut() -> io::Result<Spent>> {
        let readings = Cell::new(0);
        Runs::new(move || {
            readings.set(readings.get() + 1);
            Ok(Spent { application: MS * readings.get(), daemon: MS * 10 * readings.get() })
        })
    }

    fn key(sender: u64, run: u32) -> Option<Key> {
        (run > 0).then_some(Key { sender, run })
    }

    #[test]
    fn runs_that_follow_each_other_have_their_own_counts_and_time() {
        let (mut runs, now) = (runs(), Instant::now());
        for (run, messages) in [(0, 2), (1, 3), (0, 1), (2, 4)] {
            for _ in 0..messages {
                runs.take(key(9, run), 100, now).unwrap();
            }
        }
        assert!(runs.is_open());
        runs.close().unwrap();
        assert!(!runs.is_open());
        // The same run continues after a pause.
        runs.take(key(9, 2), 100, now).unwrap();
        runs.close().unwrap();
        let seen: Vec<_> = runs.all().iter().map(|run| (run.key.run, run.messages, run.bytes)).collect();
        assert_eq!(seen, [(1, 3, 300), (2, 5, 500)]);
        assert_eq!(runs.others, (3, 300));
        let spent = |n: u32| Some(Spent { application: MS * n, daemon: MS * 10 * n });
        assert_eq!(runs.all()[0].spent, spent(1));
        assert_eq!(runs.all()[1].spent, spent(2));
    }

    #[test]
    fn runs_that_mix_are_counted_and_have_no_time() {
        let (mut runs, now) = (runs(), Instant::now());
        for sender in [1, 2, 1] {
            runs.take(key(sender, 1), 10, now).unwrap();
        }
        runs.take(key(3, 1), 10, now).unwrap();
        runs.close().unwrap();
        let seen: Vec<_> = runs.all().iter().map(|run| (run.messages, run.spent.is_some())).collect();
        assert_eq!(seen, [(2, false), (1, false), (1, true)]);
    }

    #[test]
    fn runs_without_end_do_not_fill_memory() {
        let (mut runs, now) = (runs(), Instant::now());
        for run in 1..=5000 {
            runs.take(key(1, run), 1, now).unwrap();
        }
        assert_eq!((runs.all().len(), runs.others), (RUNS_MAX, (904, 904)));
    }
}
