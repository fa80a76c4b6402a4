//! A connected sender: its credit and the acknowledgements that wait for it.

use crate::message::{MessageList, NONE};
use jet_wire::message::{ACK_RANGES_MAX, AckRange, AckStatus};

/// One sender.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub connected: bool,
    /// The driver said that its connection stands. Before that nothing can be sent to it.
    pub stands: bool,
    /// A farewell was sent; nothing from it counts any more.
    pub leaving: bool,
    /// It understands congestion signals; the last one went out then.
    pub signals: bool,
    pub signalled_ns: u64,
    pub sender: u64,
    /// Index of the application that its messages are for.
    pub app: u32,
    /// SENDs that arrived.
    pub arrived: u64,
    /// SENDs that it may have made, all told.
    pub credit_limit: u64,
    /// Credit that it should have: follows its rate.
    pub credit_target: u32,
    /// Its outstanding credit counts in the budget (it sent lately).
    pub active: bool,
    /// A recall down to `recall_limit` is under way: no new credit until its answer.
    pub recalling: bool,
    pub recall_limit: u64,
    /// Ticks since the recall went out.
    pub recall_ticks: u32,
    /// It waits in the list of those without credit.
    pub hungry: bool,
    /// It is in the list of those to be looked at by the next flush.
    pub dirty: bool,
    /// `arrived` at the last tick.
    pub arrived_at_tick: u64,
    pub idle_ticks: u32,
    /// SENDs to it that have not completed, and the most of them: no more than it has receive entries for.
    pub sends_in_flight: u32,
    pub sends_max: u32,
    /// When something was said to it last.
    pub spoken_ns: u64,
    /// The same by the clock that stands still while nobody looks.
    pub spoken_attended_ns: u64,
    /// READs of its memory in flight, and how many its connection takes.
    pub reads: u32,
    pub reads_max: u32,
    /// Requests for large messages without an end.
    pub requests: u32,
    /// Unfinished messages of both kinds.
    pub unfinished: u32,
    pub ranges: [AckRange; ACK_RANGES_MAX],
    pub range_count: usize,
    /// Ended messages that found no room in `ranges`; the records keep their ends.
    pub overflow: MessageList,
}

const NO_RANGE: AckRange = AckRange { first: 0, count: 0, status: AckStatus::Consumed };

impl Peer {
    pub const GONE: Self = Self {
        connected: false,
        stands: false,
        leaving: false,
        signals: false,
        signalled_ns: 0,
        sender: 0,
        app: NONE,
        arrived: 0,
        credit_limit: 0,
        credit_target: 0,
        active: false,
        recalling: false,
        recall_limit: 0,
        recall_ticks: 0,
        hungry: false,
        dirty: false,
        arrived_at_tick: 0,
        idle_ticks: 0,
        sends_in_flight: 0,
        sends_max: 0,
        spoken_ns: 0,
        spoken_attended_ns: 0,
        reads: 0,
        reads_max: 0,
        requests: 0,
        unfinished: 0,
        ranges: [NO_RANGE; ACK_RANGES_MAX],
        range_count: 0,
        overflow: MessageList::EMPTY,
    };

    /// It may be spoken to, and a SEND to it has a place.
    #[inline]
    pub fn may_hear(&self) -> bool {
        self.connected && self.stands && !self.leaving && self.sends_in_flight < self.sends_max
    }

    /// It waits for a word of the receiver: an end, or credit.
    pub fn waits(&self) -> bool {
        self.unfinished > 0 || self.outstanding() == 0
    }

    /// Its connection takes another READ.
    #[inline]
    pub fn takes_read(&self) -> bool {
        self.reads < self.reads_max
    }

    /// Credit that it has and has not used.
    pub fn outstanding(&self) -> u64 {
        self.credit_limit - self.arrived
    }

    /// The limit to tell it: while a recall is under way nothing above the recalled one, or an acknowledgement that
    /// crosses its answer would give back what it gave up.
    pub fn limit_to_tell(&self) -> u64 {
        if self.recalling { self.recall_limit } else { self.credit_limit }
    }

    /// Adds an end to the pending ranges; `false` where they are full.
    #[inline]
    pub fn add_end(&mut self, sequence: u64, status: AckStatus) -> bool {
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

    pub fn has_ranges(&self) -> bool {
        self.range_count > 0
    }

    /// The pending ranges, which are empty afterwards.
    pub fn take_ranges(&mut self) -> ([AckRange; ACK_RANGES_MAX], usize) {
        let taken = (self.ranges, self.range_count);
        self.range_count = 0;
        taken
    }
}
