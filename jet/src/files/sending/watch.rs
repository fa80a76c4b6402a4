//! Watch of the connection to a receiver, for the events of a sender that waits.

use super::Link;
use jet_client::send::WaitsFor;
use std::time::{Duration, Instant};

/// Time for which messages must be refused before the refusals are reported. Shorter refusals are normal: an
/// overloaded receiver answers busy and takes the next message.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Time without a consumed message after which it is reported what messages wait for. A slow application with
/// large pieces takes some seconds for each.
const WAITED_FOR: Duration = Duration::from_secs(10);
/// Time after which that is reported again, if it is another thing by then.
const TOLD_FOR: Duration = Duration::from_secs(60);

/// Counts of a sender so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Connections that were made.
    pub connections: u64,
    /// Messages that were sent again because of the end that they had.
    pub retried: u64,
    /// Messages that were consumed.
    pub consumed: u64,
    /// Connections that were left because nothing moved on.
    pub progress_timeouts: u64,
    /// What messages wait for, if the receiver said so.
    pub waits_for: Option<WaitsFor>,
}

/// Counts and events that were seen up to the last check.
#[derive(Debug, Default)]
pub(super) struct Watch {
    connections: u64,
    lost: bool,
    refused: bool,
    consumed: u64,
    /// Time, and count of retried messages, of the last check at which messages had been consumed or none had
    /// been refused.
    moved: Option<(Instant, u64)>,
    /// Time of the last check at which messages had been consumed, or the connection was made.
    consumed_at: Option<Instant>,
    /// What was reported of the wait since then, and when.
    waits_for: Option<(WaitsFor, Instant)>,
    progress_timeouts: u64,
    left_in_vain: bool,
}

impl Watch {
    /// Compares the sender's counts with those of the last check, and reports each change once.
    pub(super) fn check(
        &mut self,
        connected: bool,
        counts: Counts,
        now: Instant,
        mut tell: impl FnMut(Link),
    ) {
        // A connection that was lost and made again between two checks is reported as lost, too.
        let made_again = self.connections != 0 && counts.connections > self.connections;
        if (!connected || made_again) && !self.lost {
            self.lost = true;
            let in_vain = counts.progress_timeouts > self.progress_timeouts;
            self.progress_timeouts = counts.progress_timeouts;
            self.left_in_vain = in_vain;
            tell(if in_vain { Link::LeftInVain } else { Link::Lost });
        }
        if connected {
            if self.lost {
                self.lost = false;
                self.consumed_at = None;
                tell(Link::Back);
            }
            self.connections = counts.connections;
        }
        self.check_wait(counts, now, &mut tell);
        let (since, retried) = *self.moved.get_or_insert((now, counts.retried));
        if counts.consumed > self.consumed {
            self.consumed = counts.consumed;
            self.moved = Some((now, counts.retried));
            self.left_in_vain = false;
            if std::mem::take(&mut self.refused) {
                tell(Link::Consumed);
            }
        } else if counts.retried == retried {
            self.moved = Some((now, retried));
        } else if !self.refused && now.duration_since(since) >= REFUSED_FOR {
            self.refused = true;
            tell(Link::Refused);
        }
    }

    /// Reports what messages wait for, once nothing was consumed for long, and when that changes.
    fn check_wait(&mut self, counts: Counts, now: Instant, tell: &mut impl FnMut(Link)) {
        if counts.consumed > self.consumed || self.consumed_at.is_none() {
            self.consumed_at = Some(now);
            self.waits_for = None;
        }
        // READs that are under way take as long as the network does.
        let what = counts.waits_for.filter(|what| *what != WaitsFor::Reads);
        let long = self.consumed_at.is_some_and(|at| now.duration_since(at) >= WAITED_FOR);
        let is_news = |what: &WaitsFor| {
            self.waits_for.is_none_or(|(told, at)| told != *what && now.duration_since(at) >= TOLD_FOR)
        };
        if let Some(what) = what.filter(|what| long && is_news(what)) {
            self.waits_for = Some((what, now));
            tell(Link::Waits(what));
        }
    }

    /// Returns whether the last connection was left because nothing moved on, and nothing was consumed since.
    pub(super) fn was_left_in_vain(&self) -> bool {
        self.left_in_vain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(watch: &mut Watch, connected: bool, counts: (u64, u64, u64), at: Instant) -> Vec<Link> {
        let (connections, retried, consumed) = counts;
        let mut links = Vec::new();
        let counts = Counts { connections, retried, consumed, progress_timeouts: 0, waits_for: None };
        watch.check(connected, counts, at, |link| links.push(link));
        links
    }

    #[test]
    fn what_is_waited_for_is_told_once_nothing_was_consumed_for_long_and_when_it_changes() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        let mut seen = |waits_for, consumed, at| {
            let mut links = Vec::new();
            let counts = Counts { connections: 1, retried: 0, consumed, progress_timeouts: 0, waits_for };
            watch.check(true, counts, at, |link| links.push(link));
            links
        };
        let (held, turn) = (WaitsFor::Application, WaitsFor::Turn);
        assert_eq!(seen(Some(held), 0, now), []);
        assert_eq!(seen(Some(held), 1, now + WAITED_FOR), [], "one was consumed meanwhile");
        assert_eq!(seen(None, 1, now + WAITED_FOR * 2), [], "the receiver did not say");
        assert_eq!(seen(Some(held), 1, now + WAITED_FOR * 2), [Link::Waits(held)]);
        assert_eq!(seen(Some(held), 1, now + WAITED_FOR * 3), []);
        assert_eq!(seen(Some(turn), 1, now + WAITED_FOR * 3), [], "one a minute");
        let later = now + WAITED_FOR * 2 + TOLD_FOR;
        assert_eq!(seen(Some(held), 1, later), [], "it is known");
        assert_eq!(seen(Some(turn), 1, later), [Link::Waits(turn)]);
        assert_eq!(seen(Some(turn), 2, later), []);
        assert_eq!(seen(Some(WaitsFor::Reads), 2, later + WAITED_FOR), [], "a slow network is none's fault");
        assert_eq!(seen(Some(turn), 2, later + WAITED_FOR), [Link::Waits(turn)]);
    }

    #[test]
    fn a_connection_that_was_left_because_nothing_moved_on_is_told_as_such() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        let mut seen = |connected, connections, progress_timeouts| {
            let mut links = Vec::new();
            let counts = Counts { connections, retried: 0, consumed: 0, progress_timeouts, waits_for: None };
            watch.check(connected, counts, now, |link| links.push(link));
            links
        };
        assert_eq!(seen(true, 1, 0), []);
        assert_eq!(seen(true, 2, 1), [Link::LeftInVain, Link::Back]);
        assert_eq!(seen(false, 2, 1), [Link::Lost]);
    }

    #[test]
    fn a_connection_that_is_lost_is_told_once_and_so_is_the_next() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        assert_eq!(seen(&mut watch, true, (1, 0, 0), now), []);
        assert_eq!(seen(&mut watch, false, (1, 0, 0), now), [Link::Lost]);
        assert_eq!(seen(&mut watch, false, (1, 0, 0), now), []);
        assert_eq!(seen(&mut watch, true, (2, 0, 0), now), [Link::Back]);
        assert_eq!(seen(&mut watch, true, (2, 0, 0), now), []);
        assert_eq!(seen(&mut watch, true, (3, 0, 0), now), [Link::Lost, Link::Back]);
    }

    #[test]
    fn refusals_are_told_when_nothing_else_happens_for_a_while() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        let later = now + REFUSED_FOR;
        assert_eq!(seen(&mut watch, true, (1, 0, 0), now), []);
        assert_eq!(seen(&mut watch, true, (1, 5, 0), now), []);
        // Messages are refused and others consumed, so nothing is reported.
        assert_eq!(seen(&mut watch, true, (1, 6, 1), later), []);
        assert_eq!(seen(&mut watch, true, (1, 9, 1), later), []);
        assert_eq!(seen(&mut watch, true, (1, 9, 1), later + REFUSED_FOR), [Link::Refused]);
        assert_eq!(seen(&mut watch, true, (1, 12, 1), later + REFUSED_FOR * 2), []);
        assert_eq!(seen(&mut watch, true, (1, 12, 2), later + REFUSED_FOR * 2), [Link::Consumed]);
        // The receiver is slow and refuses nothing.
        assert_eq!(seen(&mut watch, true, (1, 12, 2), later + REFUSED_FOR * 9), []);
    }
}
