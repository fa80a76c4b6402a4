//! Watch of the connection to a receiver, for the events of a sender that waits.

use super::Link;
use std::time::{Duration, Instant};

/// Time for which messages must be refused before the refusals are reported. Shorter refusals are normal: an
/// overloaded receiver answers busy and takes the next message.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Counts of a sender so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Connections that were made.
    pub connections: u64,
    /// Messages that were sent again because of the end that they had.
    pub retried: u64,
    /// Messages that were consumed.
    pub consumed: u64,
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
            tell(Link::Lost);
        }
        if connected {
            if self.lost {
                self.lost = false;
                tell(Link::Back);
            }
            self.connections = counts.connections;
        }
        let (since, retried) = *self.moved.get_or_insert((now, counts.retried));
        if counts.consumed > self.consumed {
            self.consumed = counts.consumed;
            self.moved = Some((now, counts.retried));
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(watch: &mut Watch, connected: bool, counts: (u64, u64, u64), at: Instant) -> Vec<Link> {
        let (connections, retried, consumed) = counts;
        let mut links = Vec::new();
        watch.check(connected, Counts { connections, retried, consumed }, at, |link| links.push(link));
        links
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
