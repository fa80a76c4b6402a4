//! Turns of the processes whose messages wait in the sockets of their connections.
//!
//! A message on a socket costs this end as much as whoever sends it: system calls, and for a region a
//! descriptor and later a mapping. Who sends nothing else must not have the thread that polls. The rules:
//! * A message costs 1, which stands for 2 us, and a region [`REGION_COST`]. A bell that this end asked for
//!   costs nothing.
//! * A source spends at most [`OF_SOURCE`], and all sources together at most [`OF_ALL`]. What is not spent is
//!   saved up to a bound, so that a sender's first regions wait for nothing.
//! * A connection whose message finds nothing left to spend stands in line, and its socket is not watched
//!   meanwhile. So it wakes nobody.
//! * Those in line have turns every [`TURNS_EVERY`]. Sources take turns, and so do the connections of one
//!   source. A turn ends after [`TURN_COST`]. One that is cut short for want of what all spend goes on first.
//! * Nobody goes past who stands in line of the same source, or for what all sources spend together.
//! * What a source has spent is not forgotten when its last connection ends.

use crate::source::Source;
use std::collections::VecDeque;
use std::time::Duration;

/// Cost of taking a region, of mapping it and of freeing it. Other messages cost 1.
pub(crate) const REGION_COST: u32 = 8;
/// Cost after which a turn ends.
pub(crate) const TURN_COST: u32 = 16;
/// Time between the turns of those in line.
pub(crate) const TURNS_EVERY: Duration = Duration::from_micros(500);

/// How much may be spent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Time in which 1 may be spent, in nanoseconds.
    pub(crate) unit_ns: u64,
    /// What is saved at most.
    pub(crate) saved: u32,
}

/// What one source spends: 20 in 1 ms, which take 4 % of the time. It saves what 64 regions cost.
pub(crate) const OF_SOURCE: Rate = Rate { unit_ns: 50_000, saved: 64 * REGION_COST };
/// What all sources spend: 50 in 1 ms, which take 10 % of the time. What they save takes less than 1 ms.
pub(crate) const OF_ALL: Rate = Rate { unit_ns: 20_000, saved: 48 * REGION_COST };

/// What was spent.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// Time at which it will have been earned, in nanoseconds.
    earned_ns: u64,
}

impl Spent {
    /// Whether there is anything left to spend.
    fn leaves(self, rate: Rate, now_ns: u64) -> bool {
        self.earned_ns < now_ns.saturating_add(u64::from(rate.saved) * rate.unit_ns)
    }

    fn add(&mut self, rate: Rate, cost: u32, now_ns: u64) {
        self.earned_ns = self.earned_ns.max(now_ns).saturating_add(u64::from(cost) * rate.unit_ns);
    }
}

/// Number of a source that has connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceNumber(u32);

#[derive(Debug)]
struct Entry {
    source: Source,
    connections: u32,
    spent: Spent,
    /// Connections in line, by the index of their QP.
    waiting: VecDeque<u32>,
}

/// Turn of a connection in line.
#[derive(Clone, Copy, Debug)]
struct Turn {
    number: SourceNumber,
    connection: u32,
    /// What it may cost yet.
    left: u32,
}

/// Turns of all sources.
#[derive(Debug, Default)]
pub(crate) struct SocketTurns {
    spent: Spent,
    entries: Vec<Option<Entry>>,
    /// Sources with connections in line, in the order of their turns.
    line: VecDeque<SourceNumber>,
    /// Turn that is under way.
    turn: Option<Turn>,
    /// Turn that was cut short.
    cut: Option<Turn>,
    /// Whether those in line wait for what all sources spend together.
    is_crowded: bool,
    /// Time of the newest call in nanoseconds.
    latest_ns: u64,
}

impl SocketTurns {
    /// Notes a connection of this source.
    pub(crate) fn join(&mut self, source: Source) -> SourceNumber {
        let latest_ns = self.latest_ns;
        for place in &mut self.entries {
            place.take_if(|entry| entry.connections == 0 && entry.spent.earned_ns <= latest_ns);
        }
        let is_of = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.source == source);
        let known = self.entries.iter().position(is_of);
        let place = known.or_else(|| self.entries.iter().position(Option::is_none)).unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        let entry = self.entries[place].get_or_insert_with(|| Entry {
            source,
            connections: 0,
            spent: Spent::default(),
            waiting: VecDeque::new(),
        });
        entry.connections += 1;
        SourceNumber(u32::try_from(place).expect("connections are few"))
    }

    /// Notes that a connection has ended, which may stand in line.
    pub(crate) fn leave(&mut self, number: SourceNumber, connection: u32) {
        self.stand_down(number, connection);
        self.entry(number).connections -= 1;
    }

    fn entry(&mut self, SourceNumber(place): SourceNumber) -> &mut Entry {
        self.entries[place as usize].as_mut().expect("a source with connections has its entry")
    }

    /// Whether a message of this source may be taken, of a connection that does not stand in line.
    pub(crate) fn may_take(&mut self, number: SourceNumber, now_ns: u64) -> bool {
        !self.is_crowded && self.entry(number).waiting.is_empty() && self.leaves(number, now_ns)
    }

    /// Whether one more message may be taken in the turn that is under way, of a connection of this source.
    pub(crate) fn may_go_on(&mut self, number: SourceNumber, now_ns: u64) -> bool {
        self.turn.is_some_and(|turn| turn.left > 0) && self.leaves(number, now_ns)
    }

    fn leaves(&mut self, number: SourceNumber, now_ns: u64) -> bool {
        self.spent.leaves(OF_ALL, now_ns) && self.entry(number).spent.leaves(OF_SOURCE, now_ns)
    }

    /// Notes the cost of a message that was taken.
    pub(crate) fn spend(&mut self, number: SourceNumber, cost: u32, now_ns: u64) {
        self.latest_ns = self.latest_ns.max(now_ns);
        self.spent.add(OF_ALL, cost, now_ns);
        self.entry(number).spent.add(OF_SOURCE, cost, now_ns);
        if let Some(turn) = &mut self.turn {
            turn.left = turn.left.saturating_sub(cost);
        }
    }

    /// Puts a connection that does not stand in line at the end of its source's line.
    pub(crate) fn stand_in_line(&mut self, number: SourceNumber, connection: u32) {
        let is_first = self.entry(number).waiting.is_empty();
        match self.turn {
            Some(turn) if turn.connection == connection && turn.left > 0 && self.is_spent() => {
                self.line.retain(|other| *other != number);
                self.line.push_front(number);
                self.entry(number).waiting.push_front(connection);
                self.cut = Some(turn);
            }
            _ => {
                self.entry(number).waiting.push_back(connection);
                if is_first {
                    self.line.push_back(number);
                }
            }
        }
    }

    /// Whether nothing is left of what all sources spend.
    fn is_spent(&self) -> bool {
        !self.spent.leaves(OF_ALL, self.latest_ns)
    }

    /// Takes a connection out of the line, if it stands there.
    pub(crate) fn stand_down(&mut self, number: SourceNumber, connection: u32) {
        let waiting = &mut self.entry(number).waiting;
        if waiting.is_empty() {
            return;
        }
        // These searches are rare, and the lines are short.
        waiting.retain(|other| *other != connection);
        if waiting.is_empty() {
            self.line.retain(|other| *other != number);
        }
        self.is_crowded &= !self.line.is_empty();
    }

    /// Takes the connection out of the line that has the next turn. `None` where nobody has one now.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<u32> {
        self.latest_ns = self.latest_ns.max(now_ns);
        self.turn = None;
        self.is_crowded = !self.line.is_empty() && self.is_spent();
        if self.is_crowded {
            return None;
        }
        for _ in 0..self.line.len() {
            let number = self.line.pop_front()?;
            let entry = self.entry(number);
            let has_turn = entry.spent.leaves(OF_SOURCE, now_ns);
            let connection = if has_turn { entry.waiting.pop_front() } else { None };
            if !entry.waiting.is_empty() {
                self.line.push_back(number);
            }
            if let Some(connection) = connection {
                let cut = self.cut.take().filter(|cut| cut.connection == connection && cut.number == number);
                self.turn = Some(cut.unwrap_or(Turn { number, connection, left: TURN_COST }));
                return Some(connection);
            }
        }
        None
    }

    /// Whether anybody stands in line.
    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }
}

#[cfg(test)]
mod tests;
