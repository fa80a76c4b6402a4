//! What senders are to be told: how their messages ended, and that the receiver is there.
//!
//! A sender's ends wait in ranges of consecutive sequences, as many as one header carries; those beyond wait
//! in their messages' records. Whoever is to be looked at by the next flush is in one list.

use crate::effects::{Commands, PeerId};
use crate::messages::{Life, MessageList, Messages};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::message::{ACK_RANGES_MAX, AckHeader, AckRange, AckStatus, HeaderBytes};

/// Between two congestion signals to one sender: the first must have had time to show, a few round trips.
const SIGNAL_NS: u64 = 1_000_000;
/// A sender whose ends wait, and whose NIC took nothing for so long, does not listen. READs take no such
/// time.
const UNRESPONSIVE_NS: u64 = 5_000_000_000;

/// A connection, as far as it can be spoken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// There is none.
    Gone,
    /// It is being made: nothing can be sent on it yet.
    Asked,
    /// The driver said that it stands.
    Stands,
    /// Nothing from its sender counts any more, and nothing is said to it. Whether it stood.
    Leaving { stood: bool },
}

/// The time of a turn, also by the clock that stands still while nobody looks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    pub now_ns: u64,
    pub attended_ns: u64,
}

/// One sender's line.
#[derive(Clone, Copy, Debug)]
struct Line {
    link: Link,
    /// The version of the wire that it has.
    version: u8,
    /// It is in the list of those to be looked at by the next flush.
    dirty: bool,
    /// It understands congestion signals; the last one went out then.
    signals: bool,
    signalled_ns: u64,
    /// SENDs to it that have not completed, and the most of them: no more than it has receive entries for.
    sends_in_flight: u32,
    sends_max: u32,
    /// When something was said to it last.
    spoken: Moment,
    /// Messages without an end.
    unfinished: u32,
    ranges: [AckRange; ACK_RANGES_MAX],
    range_count: usize,
    /// Ended messages that found no room in `ranges`; the records keep their ends.
    overflow: MessageList,
}

impl Line {
    const GONE: Self = Self {
        link: Link::Gone,
        version: 0,
        dirty: false,
        signals: false,
        signalled_ns: 0,
        sends_in_flight: 0,
        sends_max: 0,
        spoken: Moment { now_ns: 0, attended_ns: 0 },
        unfinished: 0,
        ranges: [AckRange { first: 0, count: 0, status: AckStatus::Consumed }; ACK_RANGES_MAX],
        range_count: 0,
        overflow: MessageList::EMPTY,
    };

    #[inline]
    fn may_hear(&self) -> bool {
        self.link == Link::Stands && self.sends_in_flight < self.sends_max
    }

    /// Adds an end to the pending ranges, as the sender's version has it; `false` where they are full.
    #[inline]
    fn add_end(&mut self, sequence: u64, status: AckStatus) -> bool {
        let status = status.known_in(self.version);
        if let Some(last) = self.range_count.checked_sub(1).map(|last| &mut self.ranges[last])
            && last.status == status
            && last.first.wrapping_add(u64::from(last.count)) == sequence
            && last.count < u16::MAX
        {
            last.count += 1;
            return true;
        }
        if self.range_count == ACK_RANGES_MAX {
            return false;
        }
        self.ranges[self.range_count] = AckRange { first: sequence, count: 1, status };
        self.range_count += 1;
        true
    }
}

/// What every sender is to be told.
#[derive(Debug)]
pub(crate) struct Ends {
    lines: Box<[Line]>,
    dirty: Vec<u32>,
    heartbeat_ns: u64,
    /// When senders are looked at next that wait for a word.
    next_heartbeat_ns: u64,
    /// When the receiver was last asked to speak.
    moment: Moment,
}

impl Ends {
    /// For so many senders; one that waits and was told nothing for `heartbeat_ns` is to hear something.
    pub fn new(peers: u32, heartbeat_ns: u64) -> Self {
        Self {
            lines: vec![Line::GONE; peers as usize].into_boxed_slice(),
            dirty: Vec::with_capacity(peers as usize),
            heartbeat_ns,
            next_heartbeat_ns: 0,
            moment: Moment::default(),
        }
    }

    #[inline]
    fn line(&self, peer: u32) -> &Line {
        &self.lines[peer as usize]
    }

    #[inline]
    fn line_mut(&mut self, peer: u32) -> &mut Line {
        &mut self.lines[peer as usize]
    }

    /// What is said from now on is said then.
    #[inline]
    pub fn set_moment(&mut self, moment: Moment) {
        self.moment = moment;
    }

    /// When the receiver was last asked to speak.
    #[inline]
    pub fn spoke_ns(&self) -> u64 {
        self.moment.now_ns
    }

    /// A sender was let in, with this version of the wire.
    pub fn join(&mut self, peer: u32, sends_max: u32, signals: bool, version: u8) {
        let spoken = self.moment;
        *self.line_mut(peer) = Line { link: Link::Asked, version, sends_max, signals, spoken, ..Line::GONE };
    }

    /// Its connection stands: it is looked at.
    pub fn stand(&mut self, peer: u32) {
        let line = self.line_mut(peer);
        line.link = match line.link {
            Link::Leaving { .. } => Link::Leaving { stood: true },
            Link::Gone | Link::Asked | Link::Stands => Link::Stands,
        };
        self.mark_dirty(peer);
    }

    /// Nothing from it counts any more. `false`: that is so already.
    pub fn leave(&mut self, peer: u32) -> bool {
        let line = self.line_mut(peer);
        let stood = match line.link {
            Link::Gone | Link::Leaving { .. } => return false,
            Link::Asked => false,
            Link::Stands => true,
        };
        line.link = Link::Leaving { stood };
        true
    }

    /// It is gone: its ends, which nobody hears any more, count as told.
    pub fn lose(&mut self, peer: u32, messages: &mut Messages) {
        while let Some(message) = self.line_mut(peer).overflow.pop(messages) {
            messages.forget_sender(message);
            messages.told(message);
        }
    }

    /// Its place is another's.
    pub fn forget(&mut self, peer: u32) {
        *self.line_mut(peer) = Line::GONE;
        self.dirty.retain(|&dirty| dirty != peer);
    }

    /// How its connection stands.
    pub fn link(&self, peer: u32) -> Link {
        self.line(peer).link
    }

    /// Whether there is a connection.
    pub fn is_connected(&self, peer: u32) -> bool {
        self.line(peer).link != Link::Gone
    }

    /// The version of the wire that its connection has.
    pub fn version(&self, peer: u32) -> u8 {
        self.line(peer).version
    }

    /// The version of the wire in which what comes from it is written; `None`: nothing from it counts.
    #[inline]
    pub fn heard_in(&self, peer: u32) -> Option<u8> {
        let line = self.line(peer);
        matches!(line.link, Link::Asked | Link::Stands).then_some(line.version)
    }

    /// It may be spoken to, and a SEND to it has a place.
    #[inline]
    pub fn may_hear(&self, peer: u32) -> bool {
        self.line(peer).may_hear()
    }

    /// It is looked at by the next flush. What is on every message's way looks at `dirty` first, without a
    /// call: nearly always it is.
    #[inline]
    pub fn mark_dirty(&mut self, peer: u32) {
        let line = self.line_mut(peer);
        if line.link != Link::Gone && !line.dirty {
            line.dirty = true;
            self.dirty.push(peer);
        }
    }

    /// Who is to be looked at now: the last that was marked first.
    #[inline]
    pub fn next_dirty(&mut self) -> Option<u32> {
        let peer = self.dirty.pop()?;
        self.line_mut(peer).dirty = false;
        Some(peer)
    }

    /// A message of it arrived, and is to have its end: it is looked at by the next flush.
    #[inline(always)] // on every message's way
    pub fn begin(&mut self, peer: u32) {
        let line = self.line_mut(peer);
        line.unfinished += 1;
        if !line.dirty {
            self.mark_dirty(peer);
        }
    }

    /// A message of it ended like this.
    #[inline(always)] // on every message's way
    pub fn end(&mut self, peer: u32, message: u32, status: AckStatus, messages: &mut Messages) {
        let line = self.line_mut(peer);
        line.unfinished -= 1;
        // What waits in the overflow goes first.
        let record = &mut messages[message];
        if line.overflow.len() == 0 && line.add_end(record.sequence, status) {
            record.life.tell();
        } else {
            record.life = Life::Ended(status);
            line.overflow.push(messages, message);
        }
        if !line.dirty {
            self.mark_dirty(peer);
        }
    }

    /// Whether ends wait for it.
    #[inline]
    pub fn has_ranges(&self, peer: u32) -> bool {
        self.line(peer).range_count > 0
    }

    /// Sends it the ends that wait, with the limit of its credit; those that waited in message records are
    /// next.
    pub fn acknowledge(
        &mut self,
        peer: u32,
        credit_limit: u64,
        messages: &mut Messages,
        effects: &mut impl Commands,
    ) {
        let line = self.line_mut(peer);
        let (ranges, count) = (line.ranges, core::mem::take(&mut line.range_count));
        let header = AckHeader::encode(credit_limit, &ranges[..count]);
        self.say(peer, &header, effects);
        let line = self.line_mut(peer);
        while let Some(message) = line.overflow.head() {
            let record = &messages[message];
            let Life::Ended(status) = record.life else {
                unreachable!("a message in the overflow list keeps its end")
            };
            if !line.add_end(record.sequence, status) {
                return;
            }
            let popped = line.overflow.pop(messages);
            debug_assert_eq!(popped, Some(message), "the head is what is popped");
            messages.told(message);
        }
    }

    /// Sends a header to a peer that may hear it, in the version of its connection.
    pub fn say(&mut self, peer: u32, header: &HeaderBytes, effects: &mut impl Commands) {
        let spoken = self.moment;
        let line = self.line_mut(peer);
        line.sends_in_flight += 1;
        line.spoken = spoken;
        let mut header = *header;
        header.set_version(line.version);
        effects.send(PeerId(peer), &header);
    }

    /// A SEND to it was taken by its NIC.
    pub fn sent(&mut self, peer: u32) {
        let line = self.line_mut(peer);
        line.sends_in_flight = line.sends_in_flight.saturating_sub(1);
    }

    /// Whether senders that wait for a word are to be looked at now, which is done once in a while.
    pub fn is_heartbeat_due(&mut self, now_ns: u64) -> bool {
        let due = now_ns >= self.next_heartbeat_ns;
        if due {
            self.next_heartbeat_ns = now_ns + self.heartbeat_ns;
        }
        due
    }

    /// Whether it may be told something, and was told nothing for a heartbeat.
    pub fn hears_nothing(&self, peer: u32, now_ns: u64) -> bool {
        let line = self.line(peer);
        line.may_hear() && now_ns.saturating_sub(line.spoken.now_ns) >= self.heartbeat_ns
    }

    /// Whether it waits for an end.
    pub fn waits(&self, peer: u32) -> bool {
        self.unfinished(peer) > 0
    }

    /// Its messages without an end.
    pub fn unfinished(&self, peer: u32) -> u32 {
        self.line(peer).unfinished
    }

    /// The sender with the most ends waiting in records, of those that took nothing for long.
    pub fn most_unresponsive(&self, attended_ns: u64) -> Option<u32> {
        let is_unresponsive = |line: &Line| {
            matches!(line.link, Link::Asked | Link::Stands)
                && !line.may_hear()
                && line.overflow.len() > 0
                && attended_ns.saturating_sub(line.spoken.attended_ns) >= UNRESPONSIVE_NS
        };
        (0u32..)
            .zip(self.lines.iter())
            .filter(|(_, line)| is_unresponsive(line))
            .max_by_key(|(_, line)| line.overflow.len())
            .map(|(peer, _)| peer)
    }

    /// Whether every end is on its way.
    pub fn are_told(&self) -> bool {
        let is_told = |line: &Line| line.range_count == 0 && line.overflow.len() == 0;
        self.lines.iter().all(|line| line.link == Link::Gone || is_told(line))
    }

    /// Whether it may be sent a congestion signal now.
    pub fn may_signal(&self, peer: u32, now_ns: u64) -> bool {
        let line = self.line(peer);
        line.signals && line.may_hear() && now_ns.saturating_sub(line.signalled_ns) >= SIGNAL_NS
    }

    /// Sends it a congestion signal.
    pub fn signal(&mut self, peer: u32, now_ns: u64, header: &HeaderBytes, effects: &mut impl Commands) {
        self.line_mut(peer).signalled_ns = now_ns;
        self.say(peer, header, effects);
    }
}

#[cfg(test)]
impl Ends {
    /// SENDs to it that have not completed.
    pub fn sends_in_flight(&self, peer: u32) -> u32 {
        self.line(peer).sends_in_flight
    }
}
