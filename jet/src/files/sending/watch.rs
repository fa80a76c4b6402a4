//! What a sender that waits is told about its receiver.

use super::Link;
use std::time::{Duration, Instant};

/// Refusals that pass sooner are not worth a word: an overloaded receiver says busy and takes the next.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// What a sender counted so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Connections that stood.
    pub connections: u64,
    /// Messages that were sent again because of their end.
    pub retried: u64,
    /// Messages that were consumed.
    pub consumed: u64,
}

/// What was seen at the last look.
#[derive(Debug, Default)]
pub(super) struct Watch {
    connections: u64,
    lost: bool,
    refused: bool,
    consumed: u64,
    /// Of the last look at which messages were consumed or nothing had been refused since.
    moved: Option<(Instant, u64)>,
}

impl Watch {
    /// Looks at what the sender counted, and tells each change once.
    pub(super) fn look(&mut self, connected: bool, counts: Counts, now: Instant, mut tell: impl FnMut(Link)) {
        // Lost and made again between two looks is a loss, too.
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
        watch.look(connected, Counts { connections, retried, consumed }, at, |link| links.push(link));
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
        // Busy, and yet taken: nothing to tell.
        assert_eq!(seen(&mut watch, true, (1, 6, 1), later), []);
        assert_eq!(seen(&mut watch, true, (1, 9, 1), later), []);
        assert_eq!(seen(&mut watch, true, (1, 9, 1), later + REFUSED_FOR), [Link::Refused]);
        assert_eq!(seen(&mut watch, true, (1, 12, 1), later + REFUSED_FOR * 2), []);
        assert_eq!(seen(&mut watch, true, (1, 12, 2), later + REFUSED_FOR * 2), [Link::Consumed]);
        // Slow, and not refused.
        assert_eq!(seen(&mut watch, true, (1, 12, 2), later + REFUSED_FOR * 9), []);
    }
}
