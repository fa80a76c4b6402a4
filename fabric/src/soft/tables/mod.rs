//! Tables of a software NIC: all its state that does not depend on the transport.

mod closing;
pub(crate) mod disposal;
pub(crate) mod qps;
pub(crate) mod queues;
pub(crate) mod reads;
pub(crate) mod region_places;
pub(crate) mod regions;
pub(crate) mod send_order;
pub(crate) mod socket_turns;

use super::deadlines::Deadlines;
use super::options::SoftOptions;
use super::token::{Kind, Place, Token};
use crate::nic::{Completion, Counters, DisconnectReason, Event, PrivateData, Qp, Status, Work};
use crate::readiness::Readiness;
use disposal::Disposal;
use qps::{QpState, Qps};
use queues::{Completions, EVENTS_PER_QP, Events, QueuedEvent, Srq};
use reads::Reads;
use region_places::RegionPlaces;
use regions::Regions;
use send_order::SendOrder;
use socket_turns::SocketTurns;
use std::io;

/// Number of transports.
const KINDS: u32 = 2;

/// Returns how many descriptors the files of peers' regions may take: half of what the process may have. The
/// other half is for connections.
fn descriptors_for_regions() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(u32::MAX, |limit| u32::try_from(limit / 2).unwrap_or(u32::MAX))
}

/// Tables of one NIC.
#[derive(Debug)]
pub(crate) struct Tables {
    /// Options of the NIC, lowered to its limits.
    pub(crate) options: SoftOptions,
    /// Registered memory.
    pub(crate) regions: Regions,
    /// Connections.
    pub(crate) qps: Qps,
    /// Posted SRQ entries. Call [`Self::complete_receive`] for each entry that is popped.
    pub(crate) srq: Srq,
    /// Outstanding READs.
    pub(crate) reads: Reads,
    /// Counters of the NIC. Transports count `bytes_in`, `rnr` and `protocol_errors`; the tables count the
    /// rest.
    pub(crate) counters: Counters,
    /// Places for regions of all connections' peers that this process may read. Files are open for regions
    /// of which some pages may be holes.
    pub(crate) region_places: RegionPlaces,
    /// Whose messages on sockets over `shm:` are taken next.
    pub(crate) socket_turns: SocketTurns,
    /// Frees what peers leave behind, and closes the files that they sent.
    pub(crate) disposal: Disposal,
    /// Descriptors that the NIC waits for.
    pub(crate) epoll: Readiness,
    /// Deadlines of connections, by the QP's index; of each transport's listeners, by
    /// [`Self::place_of_listeners`]; of each transport's strangers, by [`Self::place_of_strangers`]; and of
    /// those in line, by [`Self::place_of_turns`].
    pub(crate) deadlines: Deadlines,
    completions: Completions,
    /// Keeps completed SENDs until the READs before them are done. `None` unless SENDs complete as on a
    /// device.
    order: Option<SendOrder>,
    events: Events,
    completions_polled: u64,
    /// SENDs that are outstanding, or completed but not polled. Each holds a place in the completion queue.
    /// `reads_held` and `receives` count likewise.
    sends: u32,
    reads_held: u32,
    receives: u32,
}

impl Tables {
    pub(crate) fn new(options: SoftOptions) -> io::Result<Self> {
        Ok(Self {
            options,
            regions: Regions::new(options.regions_max),
            qps: Qps::new(options.qps_max),
            srq: Srq::new(options.srq_entries_max as usize),
            reads: Reads::new(options.reads_max),
            counters: Counters::default(),
            region_places: RegionPlaces::new(options.mapped_regions_max, descriptors_for_regions()),
            socket_turns: SocketTurns::default(),
            disposal: Disposal::new(options.mapped_regions_max as usize),
            epoll: Readiness::new()?,
            deadlines: Deadlines::new(options.qps_max + 2 * KINDS + 1),
            completions: Completions::new(options.completions as usize),
            order: options.profile.map(|_| SendOrder::new(options.qps_max, options.sends_max())),
            events: Events::new(options.qps_max as usize * EVENTS_PER_QP),
            completions_polled: 0,
            sends: 0,
            reads_held: 0,
            receives: 0,
        })
    }

    /// Whether one more SEND has a place for its completion.
    #[inline]
    pub(crate) fn room_for_send(&self) -> bool {
        self.sends < self.options.sends_max()
    }

    /// Whether one more SRQ entry has a place for its completion.
    #[inline]
    pub(crate) fn room_for_receive(&self) -> bool {
        self.receives < self.options.srq_entries_max && !self.srq.is_full()
    }

    /// Whether one more READ has a place for its completion.
    pub(crate) fn room_for_read(&self) -> bool {
        self.reads_held < self.options.reads_max
    }

    /// Counts a READ as outstanding.
    pub(crate) fn read_posted(&mut self, qp: Qp) {
        self.reads_held += 1;
        self.qps.get_mut(qp).expect("checked before posting").reads += 1;
        if let Some(order) = &mut self.order {
            order.read_posted(qp.index);
        }
    }

    /// Counts a SEND as outstanding.
    #[inline]
    pub(crate) fn send_posted(&mut self, qp: Qp, id: u64) {
        self.sends += 1;
        self.qps.get_mut(qp).expect("checked before posting").sends += 1;
        if let Some(order) = &mut self.order {
            order.send_posted(qp.index, id);
        }
    }

    /// Counts an SRQ entry as outstanding.
    #[inline]
    pub(crate) fn receive_posted(&mut self) {
        self.receives += 1;
    }

    #[inline]
    fn complete(&mut self, qp: Qp, work: Work, status: Status) {
        if status == Status::Flushed {
            self.counters.flushed += 1;
        }
        self.completions.push(Completion { qp, work, status });
    }

    /// Completes a SEND of this end, or keeps its completion until the READs before it are done.
    #[inline]
    pub(crate) fn complete_send(&mut self, qp: Qp, id: u64, status: Status) {
        let Some(order) = &mut self.order else { return self.show_send(qp, id, status) };
        order.send_done(qp.index, id, status);
        self.show_sends(qp);
    }

    /// Completes the READ in `slot`, and frees the slot.
    pub(crate) fn complete_read(&mut self, slot: u32, status: Status) {
        let read = self.reads.get(slot);
        let (qp, id) = (read.qp, read.id);
        self.qps.get_mut(qp).expect("a QP outlives its work").reads -= 1;
        self.counters.reads += u64::from(status == Status::Success);
        self.complete(qp, Work::Read { id }, status);
        self.reads.release(slot);
        if let Some(order) = &mut self.order {
            order.read_done(qp.index);
            self.show_sends(qp);
        }
    }

    /// Shows the completed SENDs of a QP that wait for no READ any more.
    fn show_sends(&mut self, qp: Qp) {
        while let Some((id, status)) = self.order.as_mut().and_then(|order| order.take_done(qp.index)) {
            self.show_send(qp, id, status);
        }
    }

    #[inline]
    fn show_send(&mut self, qp: Qp, id: u64, status: Status) {
        self.qps.get_mut(qp).expect("a QP outlives its work").sends -= 1;
        self.counters.sends += u64::from(status == Status::Success);
        self.complete(qp, Work::Send { id }, status);
    }

    /// Completes an SRQ entry that was popped, in which a SEND has arrived.
    #[inline]
    pub(crate) fn complete_receive(&mut self, qp: Qp, entry: u32, payload_bytes: u32, status: Status) {
        self.counters.receives += u64::from(status == Status::Success);
        self.complete(qp, Work::Receive { entry, payload_bytes }, status);
    }

    /// Takes completions, at most as many as fit, and returns how many.
    pub(crate) fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut taken = 0;
        for place in completions {
            let Some(completion) = self.completions.pop() else { break };
            match completion.work {
                Work::Send { .. } => self.sends -= 1,
                Work::Receive { .. } | Work::SrqFlush { .. } => self.receives -= 1,
                Work::Read { .. } => self.reads_held -= 1,
            }
            *place = completion;
            taken += 1;
        }
        self.completions_polled += taken as u64;
        taken
    }

    /// Queues an event for the user. For `Disconnected` use [`Self::finish`].
    pub(crate) fn push_event(&mut self, event: Event) {
        let after_completions = self.completions_polled + self.completions.len() as u64;
        self.events.push(QueuedEvent { event, after_completions });
    }

    /// Reports the end of a connection, all of whose work must have completed.
    pub(crate) fn finish(&mut self, qp: Qp, reason: DisconnectReason) {
        let entry = self.qps.get_mut(qp).expect("a connection ends once");
        assert!(entry.sends == 0 && entry.reads == 0, "work completes before its connection ends");
        entry.state = QpState::Ended;
        if reason == DisconnectReason::Protocol {
            self.counters.protocol_errors += 1;
        }
        self.push_event(Event::Disconnected { qp, reason });
    }

    /// Returns how many READs this end may have on a connection to a peer that answers so many.
    ///
    /// `None` where this end makes READs and the peer answers none: they would wait for ever.
    pub(crate) fn agree_on_reads(&self, answered_by_peer: u32) -> Option<u32> {
        let made = self.options.reads_per_qp_max;
        let agreed = made.min(answered_by_peer);
        (agreed > 0 || made == 0).then_some(agreed)
    }

    /// Reports that a connection is ready, and sets how many READs it may have.
    pub(crate) fn connected(&mut self, qp: Qp, private_data: PrivateData, reads_max: u32) {
        let entry = self.qps.get_mut(qp).expect("a QP lives until its last event was polled");
        (entry.state, entry.reads_max) = (QpState::Connected, reads_max);
        self.push_event(Event::Connected { qp, private_data, reads_max });
    }

    /// Reports that the peer refused a connection.
    pub(crate) fn rejected(&mut self, qp: Qp, private_data: PrivateData) {
        self.qps.set_state(qp, QpState::Ended);
        self.push_event(Event::Rejected { qp, private_data });
    }

    /// Takes the next event. The end of a connection is shown after its last completion was polled, and makes
    /// the QP stale.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let front = self.events.front()?;
        let event = front.event;
        match event {
            Event::Disconnected { .. } if front.after_completions > self.completions_polled => return None,
            Event::Disconnected { qp, .. } | Event::Rejected { qp, .. } => self.qps.release(qp),
            Event::ConnectRequest { .. } | Event::Connected { .. } | Event::Gone => {}
        }
        self.events.pop();
        Some(event)
    }

    /// Whether completions or events wait for the user's poll.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.completions.is_empty() || !self.events.is_empty()
    }

    /// Returns the place in [`Self::deadlines`] of a transport's listeners.
    pub(crate) fn place_of_listeners(&self, kind: Kind) -> u32 {
        self.options.qps_max + kind as u32 - 1
    }

    /// Returns the place in [`Self::deadlines`] of a transport's strangers.
    pub(crate) fn place_of_strangers(&self, kind: Kind) -> u32 {
        self.place_of_listeners(kind) + KINDS
    }

    /// Returns the place in [`Self::deadlines`] of those in line of [`Self::socket_turns`].
    pub(crate) fn place_of_turns(&self) -> u32 {
        self.options.qps_max + 2 * KINDS
    }

    /// Returns the owner of the deadline at a place: a connection, a transport's listeners, its strangers, or
    /// those in line.
    pub(crate) fn whose_deadline(&self, place: u32) -> Token {
        match place.checked_sub(self.options.qps_max) {
            None => Token { kind: self.qps.kind_at(place), place: Place::Connection(place) },
            Some(0) => Token { kind: Kind::Shm, place: Place::Listener(0) },
            Some(1) => Token { kind: Kind::Tcp, place: Place::Listener(0) },
            Some(2) => Token { kind: Kind::Shm, place: Place::Stranger { place: 0, number: 0 } },
            Some(3) => Token { kind: Kind::Tcp, place: Place::Stranger { place: 0, number: 0 } },
            Some(_) => Token { kind: Kind::Shm, place: Place::Turns },
        }
    }
}
