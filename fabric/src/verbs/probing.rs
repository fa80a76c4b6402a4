//! Probing of connections, to find out whether silent peers are still there.
//!
//! Each connection is checked once in every span of `keep_alive`, a part of all connections at a time.
//! Probing all at once would send thousands of packets in one burst, and bring as many completions.

use super::VerbsNic;
use super::connections::{Posted, State};
use super::gather::Verb;
use crate::nic::DisconnectReason;
use std::time::{Duration, Instant};

/// Checks, one in each `keep_alive`, after which a connection is ended because its work does not end. There
/// are more checks where the device sends a packet again for longer.
const STALLED_CHECKS_MIN: u32 = 4;
/// Number of parts that connections are divided into.
const PARTS: usize = 64;

/// Shortest time between the checks of two parts.
const EVERY_MIN: Duration = Duration::from_micros(1);

/// Schedule of the checks of connections.
#[derive(Debug)]
pub(super) struct Probing {
    /// Number of ready connections in each part.
    standing: [u32; PARTS],
    /// Part that is next. `next` is its time.
    part: usize,
    next: Instant,
    every: Duration,
    /// Number of checks after which a connection whose work does not end is ended.
    stalled_checks: u32,
}

impl Probing {
    /// Makes a schedule. `sent_again_for` is how long the device sends a packet again that is not
    /// acknowledged.
    pub fn new(keep_alive: Duration, sent_again_for: Duration, now: Instant) -> Self {
        let every = (keep_alive / u32::try_from(PARTS).expect("parts are few")).max(EVERY_MIN);
        let checks = sent_again_for.as_nanos().div_ceil(keep_alive.max(EVERY_MIN).as_nanos());
        let stalled_checks = u32::try_from(checks).unwrap_or(u32::MAX).max(STALLED_CHECKS_MIN);
        Self { standing: [0; PARTS], part: 0, next: now + every, every, stalled_checks }
    }

    /// Counts a connection that is ready.
    pub fn begin(&mut self, index: u32) {
        self.standing[part_of(index)] += 1;
    }

    /// Stops counting a connection.
    pub fn end(&mut self, index: u32) {
        self.standing[part_of(index)] -= 1;
    }

    /// Returns how many parts lie before the next one that has connections.
    fn ahead(&self) -> Option<usize> {
        (0..PARTS).find(|ahead| self.standing[(self.part + ahead) % PARTS] > 0)
    }

    fn spans(&self, parts: usize) -> Duration {
        self.every * u32::try_from(parts).expect("parts are few")
    }

    /// Takes the part whose time has come, once. Parts without connections have no turn.
    fn take_due(&mut self, now: Instant) -> Option<usize> {
        let ahead = self.ahead()?;
        let late = now.checked_duration_since(self.next + self.spans(ahead))?;
        let part = (self.part + ahead) % PARTS;
        self.next += self.spans(ahead + 1);
        if late >= self.spans(PARTS) {
            // Nobody checked for a whole span: the missed checks are not made up for.
            self.next += late;
        }
        self.part = (part + 1) % PARTS;
        Some(part)
    }

    /// Returns the time of the next part with connections.
    pub fn next(&self) -> Option<Instant> {
        Some(self.next + self.spans(self.ahead()?))
    }
}

fn part_of(index: u32) -> usize {
    index as usize % PARTS
}

impl VerbsNic {
    /// Checks the connections of each part whose time has come.
    pub(super) fn probe_silent(&mut self, now: Instant) {
        while let Some(part) = self.probing.take_due(now) {
            for index in self.connections.indices().skip(part).step_by(PARTS) {
                self.probe(index);
            }
        }
    }

    /// Probes a connection on which nothing happened since the last check.
    fn probe(&mut self, index: u32) {
        if self.gathered.is_full() {
            self.give_gathered();
        }
        let (qp, connection) = self.connections.at(index);
        let was_active = std::mem::take(&mut connection.is_active);
        if was_active || connection.state != State::Connected {
            connection.stalled = 0;
            return;
        }
        if !connection.is_idle() {
            // Such work might never end: its peer asked for endless retries, or answers no READ.
            connection.stalled = connection.stalled.saturating_add(1);
            if connection.stalled >= self.probing.stalled_checks {
                self.fail(qp, DisconnectReason::Transport(libc::ETIMEDOUT));
            }
            return;
        }
        let position = connection.post(0, Posted::Probe, &mut self.send_completions);
        self.gathered.chain(qp, connection, position, &Verb::Probe, std::iter::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP_ALIVE: Duration = Duration::from_secs(5);
    const SENT_AGAIN_FOR: Duration = Duration::from_secs(2);

    /// Returns the parts whose turn comes within so many spans, each with its time and number of connections.
    /// Plays a user that polls at each time that `next` gives.
    fn turns(probing: &mut Probing, start: Instant, spans: u32) -> Vec<(Duration, u32)> {
        let mut turns = Vec::new();
        while let Some(next) = probing.next().filter(|next| *next <= start + KEEP_ALIVE * spans) {
            let part = probing.take_due(next).expect("woken for a part with connections");
            turns.push((next - start, probing.standing[part]));
            assert_eq!(probing.take_due(next), None, "one part at a time");
        }
        turns
    }

    #[test]
    fn a_thousand_are_looked_at_once_in_each_span_and_never_more_than_a_few_at_once() {
        let start = Instant::now();
        let mut probing = Probing::new(KEEP_ALIVE, SENT_AGAIN_FOR, start);
        (0..1000).for_each(|index| probing.begin(index));
        let turns = turns(&mut probing, start, 3);
        assert_eq!(turns.iter().map(|(_, count)| count).sum::<u32>(), 3 * 1000);
        assert!(turns.iter().all(|(_, count)| *count <= 16), "{turns:?}");
        let gaps = turns.windows(2).map(|pair| pair[1].0 - pair[0].0);
        assert!(gaps.into_iter().all(|gap| gap >= KEEP_ALIVE / 65), "in bursts: {turns:?}");
    }

    #[test]
    fn work_is_not_given_up_while_the_device_sends_it_again() {
        let checks = |keep_alive, sent_again_for| {
            Probing::new(keep_alive, sent_again_for, Instant::now()).stalled_checks
        };
        assert_eq!(checks(KEEP_ALIVE, Duration::from_secs(2)), 4);
        assert_eq!(checks(KEEP_ALIVE, Duration::from_secs(20)), 4);
        assert_eq!(checks(KEEP_ALIVE, Duration::from_secs(120)), 24);
        assert_eq!(checks(KEEP_ALIVE, Duration::from_secs(121)), 25);
        assert_eq!(checks(Duration::ZERO, Duration::from_secs(1 << 20)), u32::MAX);
    }

    #[test]
    fn one_wakes_nobody_more_often_than_it_is_looked_at() {
        let start = Instant::now();
        let mut probing = Probing::new(KEEP_ALIVE, SENT_AGAIN_FOR, start);
        assert_eq!(probing.next(), None);
        probing.begin(70);
        assert_eq!(turns(&mut probing, start, 4).len(), 4);
        probing.end(70);
        assert_eq!(probing.next(), None);
    }

    #[test]
    fn who_always_wakes_late_looks_at_each_in_each_span_all_the_same() {
        let start = Instant::now();
        let mut probing = Probing::new(KEEP_ALIVE, SENT_AGAIN_FOR, start);
        probing.begin(70);
        for _ in 0..10 {
            let woken = probing.next().expect("there is one") + KEEP_ALIVE / 32;
            assert!(probing.take_due(woken).is_some());
        }
        let passed = probing.next().expect("there is one") - start;
        assert!(passed <= KEEP_ALIVE * 11, "the eleventh look after {passed:?}");
    }

    #[test]
    fn who_did_not_look_for_long_makes_up_for_nothing() {
        let start = Instant::now();
        let mut probing = Probing::new(KEEP_ALIVE, SENT_AGAIN_FOR, start);
        (0..64).for_each(|index| probing.begin(index));
        let late = start + KEEP_ALIVE * 10;
        assert!(probing.take_due(late).is_some());
        assert_eq!(probing.take_due(late), None);
        assert!(probing.next().is_some_and(|next| next > late));
    }
}
