//! Tests of what may go wrong in a simulated network. What holds on every fabric is in the conformance suite.

use super::{Conditions, Network, NicId, SimNic, SimOptions};
use crate::Address;
use crate::limits::{CompletionQueues, Profile, Requirements};
use crate::memory::SharedMemory;
use crate::nic::{
    Access, Completion, DisconnectReason, Event, MemoryKey, Nic, Payload, PostError, PrivateData, Qp,
    ReadRequest, SendRequest, Sge, SrqEntry, Status, Work,
};
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::sync::Arc;

const MS: u64 = 1_000_000;
const PAGE: usize = 4096;

/// Something that an end has seen, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Completed(Work, Status),
    Ended(DisconnectReason),
    Gone,
}

/// One NIC, with memory for headers, slabs and READs.
struct End {
    nic: SimNic,
    key: MemoryKey,
    memory: Arc<SharedMemory>,
    qp: Option<Qp>,
    seen: Vec<(u64, Seen)>,
}

impl End {
    fn new(network: &Network, options: SimOptions) -> Self {
        let mut nic = network.nic(options).unwrap();
        let memory = Arc::new(SharedMemory::new("test-sim", 64 * PAGE, false).unwrap());
        let key = nic.register(&memory, Access::RemoteRead).unwrap();
        Self { nic, key, memory, qp: None, seen: Vec::new() }
    }

    fn sge(&self, page: usize, bytes: usize) -> Sge {
        Sge { key: self.key, offset: (page * PAGE) as u64, bytes: u32::try_from(bytes).unwrap() }
    }

    fn post_entry(&mut self, id: u32) {
        let header = self.sge(id as usize, HEADER_BYTES);
        self.nic.post_srq(SrqEntry { id, header, payload: None }).unwrap();
    }

    fn send(&mut self, id: u64) {
        let mut header = HeaderBytes([0; HEADER_BYTES]);
        header.0[..8].copy_from_slice(&id.to_le_bytes());
        let request = SendRequest { id, header: &header, payload: Payload::None };
        self.nic.post_send(self.qp.unwrap(), request).unwrap();
        self.nic.flush();
    }

    /// Returns the number of the SEND that arrived in an entry.
    fn arrived(&self, entry: u32) -> u64 {
        // SAFETY: within the mapping; the test has polled what was written there.
        let bytes = unsafe { self.memory.base().add(entry as usize * PAGE).cast::<[u8; 8]>().read() };
        u64::from_le_bytes(bytes)
    }

    fn poll(&mut self, now_ns: u64) {
        let mut completions = [Completion::UNUSED; 8];
        loop {
            let count = self.nic.poll(now_ns, &mut completions);
            let done = completions[..count].iter().map(|done| Seen::Completed(done.work, done.status));
            self.seen.extend(done.map(|seen| (now_ns, seen)));
            if count < completions.len() {
                break;
            }
        }
        while let Some(event) = self.nic.poll_event(now_ns) {
            match event {
                Event::ConnectRequest { qp, .. } => {
                    self.nic.accept(qp, &PrivateData::new(&[]).unwrap()).unwrap();
                }
                Event::Connected { qp, .. } => self.qp = Some(qp),
                Event::Disconnected { reason, .. } => self.seen.push((now_ns, Seen::Ended(reason))),
                Event::Rejected { .. } => panic!("nobody refuses"),
                Event::Gone => self.seen.push((now_ns, Seen::Gone)),
            }
        }
    }

    fn end(&self) -> Option<(u64, DisconnectReason)> {
        self.seen.iter().find_map(|(at_ns, seen)| match seen {
            Seen::Ended(reason) => Some((*at_ns, *reason)),
            _ => None,
        })
    }

    /// Returns the SRQ entries in which something arrived, in the order of their completions.
    fn entries(&self) -> Vec<u32> {
        let entry = |(_, seen): &(u64, Seen)| match seen {
            Seen::Completed(Work::Receive { entry, .. }, Status::Success) => Some(*entry),
            _ => None,
        };
        self.seen.iter().filter_map(entry).collect()
    }

    fn outcomes(&self) -> Vec<(Work, Status)> {
        let outcome = |(_, seen): &(u64, Seen)| match seen {
            Seen::Completed(work @ (Work::Send { .. } | Work::Read { .. }), status) => Some((*work, *status)),
            _ => None,
        };
        self.seen.iter().filter_map(outcome).collect()
    }
}

fn options() -> SimOptions {
    let requirements = Requirements {
        qps: 8,
        srq_entries: 32,
        reads: 8,
        reads_per_qp: 8,
        reads_answered_per_qp: 8,
        sends: 32,
        sends_per_qp: 16,
        scatter: 4,
        ..Requirements::SOFTWARE_DAEMON
    };
    SimOptions::new(Profile::CONNECTX_6, requirements)
}

/// Two ends of a network.
struct Pair {
    network: Network,
    a: End,
    b: End,
}

impl Pair {
    fn unconnected(conditions: Conditions, options: SimOptions) -> Self {
        let network = Network::new(conditions);
        let (a, mut b) = (End::new(&network, options), End::new(&network, options));
        b.nic.listen(&Address::Rdma("b:1".to_owned())).unwrap();
        Self { network, a, b }
    }

    fn connect(&mut self) {
        self.a.nic.connect(&Address::Rdma("b:1".to_owned()), &PrivateData::new(&[]).unwrap()).unwrap();
    }

    fn new(conditions: Conditions, options: SimOptions) -> Self {
        let mut pair = Self::unconnected(conditions, options);
        pair.connect();
        pair.run_for(MS);
        assert!(pair.a.qp.is_some() && pair.b.qp.is_some());
        pair
    }

    /// Lets time pass, and both ends poll whenever something has happened.
    fn run_for(&mut self, span_ns: u64) {
        let end_ns = self.network.now_ns() + span_ns;
        loop {
            let now_ns = self.network.next_ns().unwrap_or(end_ns).min(end_ns).max(self.network.now_ns());
            self.network.advance(now_ns);
            self.a.poll(now_ns);
            self.b.poll(now_ns);
            if now_ns == end_ns && self.network.next_ns().is_none_or(|next_ns| next_ns > end_ns) {
                return;
            }
        }
    }

    fn ids(&self) -> (NicId, NicId) {
        (self.a.nic.id(), self.b.nic.id())
    }
}

fn quiet() -> Conditions {
    Conditions { silence_ns: 10 * MS, ..Conditions::quiet(7) }
}

const TIMED_OUT: DisconnectReason = DisconnectReason::Transport(libc::ETIMEDOUT);

#[test]
fn a_cut_connection_brings_nothing_and_each_end_notices_in_time() {
    let mut pair = Pair::new(quiet(), options());
    (0..8).for_each(|id| pair.b.post_entry(id));
    let (cut_ns, id) = (pair.network.now_ns(), pair.ids().0);
    pair.network.cut(id, pair.a.qp.unwrap());
    pair.a.send(1);
    pair.run_for(20 * MS);
    assert_eq!(pair.b.entries(), [0; 0]);
    assert!(matches!(pair.a.outcomes()[..], [(Work::Send { id: 1 }, Status::Other(12))]));
    let (at_a, at_b) = (pair.a.end().unwrap(), pair.b.end().unwrap());
    assert_eq!((at_a.1, at_b.1), (TIMED_OUT, TIMED_OUT));
    for at_ns in [at_a.0, at_b.0] {
        assert!((cut_ns..=cut_ns + 11 * MS).contains(&at_ns), "{at_ns} after {cut_ns}");
    }
    assert_ne!(at_a.0, at_b.0, "each notices at a time of its own");
}

#[test]
fn what_is_cut_while_it_is_made_is_never_made() {
    for cut_after_ns in [0, 20_000, 60_000, 100_000] {
        let mut pair = Pair::unconnected(quiet(), options());
        pair.connect();
        pair.run_for(cut_after_ns);
        let connections = pair.network.connections(pair.a.nic.id());
        pair.network.cut(pair.a.nic.id(), connections[0]);
        pair.run_for(10_000 * MS);
        assert!(pair.network.connections(pair.a.nic.id()).is_empty(), "cut after {cut_after_ns} ns");
        assert!(pair.network.connections(pair.b.nic.id()).is_empty(), "cut after {cut_after_ns} ns");
    }
}

#[test]
fn a_host_without_power_sends_nothing_and_its_peer_notices() {
    let mut pair = Pair::new(quiet(), options());
    pair.b.post_entry(0);
    pair.a.send(1);
    pair.network.lose(pair.a.nic.id());
    pair.run_for(20 * MS);
    assert_eq!(pair.b.end().map(|(_, reason)| reason), Some(TIMED_OUT));
    assert!(pair.network.connections(pair.b.nic.id()).is_empty());
}

#[test]
fn who_goes_while_its_answers_are_on_their_way_is_a_peer_that_went() {
    const LATENCY: u64 = 20_000;
    let mut completed = 0;
    for after_ns in (0..4 * LATENCY).step_by(1_000) {
        let mut pair = Pair::new(Conditions { latency_ns: LATENCY, ..quiet() }, options());
        let (address, key) = (pair.b.nic.remote_address(pair.b.key, 0), pair.b.key.0);
        let scatter = [pair.a.sge(40, PAGE)];
        let qp = pair.a.qp.unwrap();
        pair.a.nic.post_read(qp, ReadRequest { id: 9, address, key, scatter: &scatter }).unwrap();
        pair.a.nic.flush();
        pair.run_for(after_ns);
        let Pair { network, mut a, b } = pair;
        drop(b);
        let now_ns = network.now_ns() + 100 * MS;
        network.advance(now_ns);
        a.poll(now_ns);
        let [(Work::Read { id: 9 }, status)] = a.outcomes()[..] else { panic!("{:?}", a.outcomes()) };
        assert_eq!(a.end().map(|(_, reason)| reason), Some(DisconnectReason::Peer), "after {after_ns} ns");
        assert!(matches!(status, Status::Success | Status::Flushed), "after {after_ns} ns: {status:?}");
        completed += usize::from(status == Status::Success);
    }
    assert!((1..80).contains(&completed), "{completed} of 80");
}

#[test]
fn what_is_due_at_a_frozen_device_happens_afterwards_in_its_order() {
    let mut pair = Pair::new(quiet(), options());
    (0..6).for_each(|id| pair.b.post_entry(id));
    let begin_ns = pair.network.now_ns();
    let id = pair.ids().1;
    pair.network.freeze(id, begin_ns + 3 * MS);
    for number in 1..=3 {
        pair.a.send(number);
        pair.run_for(MS / 2);
    }
    // A shorter time changes nothing, a longer one does.
    pair.network.freeze(id, begin_ns + 2 * MS);
    pair.network.freeze(id, begin_ns + 5 * MS);
    for number in 4..=6 {
        pair.a.send(number);
        pair.run_for(MS / 2);
    }
    pair.run_for(begin_ns + 5 * MS - 1 - pair.network.now_ns());
    assert_eq!(pair.b.entries(), [0; 0], "it is frozen");
    pair.run_for(MS);
    let arrived: Vec<_> = pair.b.entries().into_iter().map(|entry| pair.b.arrived(entry)).collect();
    assert_eq!(arrived, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_device_that_is_removed_is_told_of_and_its_connections_end() {
    let mut pair = Pair::new(quiet(), options());
    pair.a.send(1);
    pair.network.remove(pair.a.nic.id());
    pair.run_for(20 * MS);
    assert!(pair.a.seen.iter().any(|(_, seen)| *seen == Seen::Gone));
    let no_device = DisconnectReason::Transport(libc::ENODEV);
    assert_eq!(pair.a.end().map(|(_, reason)| reason), Some(no_device));
    assert_eq!(pair.a.outcomes().len(), 1, "what was posted completes all the same");
    assert_eq!(pair.b.end().map(|(_, reason)| reason), Some(TIMED_OUT));
    let again = pair.a.nic.connect(&Address::Rdma("b:1".to_owned()), &PrivateData::new(&[]).unwrap());
    assert!(again.is_err(), "there is no device any more");
}

#[test]
fn a_send_without_an_entry_fails_once_its_time_is_over_and_otherwise_waits() {
    let limited = SimOptions { rnr_timeout_ns: Some(5 * MS), ..options() };
    let mut pair = Pair::new(quiet(), limited);
    pair.a.send(1);
    pair.run_for(4 * MS);
    assert_eq!((pair.a.outcomes().len(), pair.b.nic.counters().rnr), (0, 1));
    pair.run_for(4 * MS);
    assert_eq!(pair.a.outcomes(), [(Work::Send { id: 1 }, Status::RnrExhausted)]);

    let mut pair = Pair::new(quiet(), options());
    pair.a.send(1);
    pair.run_for(100 * MS);
    assert_eq!(pair.a.outcomes(), []);
    pair.b.post_entry(0);
    pair.run_for(MS);
    assert_eq!(pair.a.outcomes(), [(Work::Send { id: 1 }, Status::Success)]);
}

/// Disconnects while SENDs and a READ are under way. Returns what each end saw.
fn hang_up(seed: u64) -> [Vec<(u64, Seen)>; 2] {
    let mut pair = Pair::new(Conditions { jitter_ns: 5_000, ..Conditions::quiet(seed) }, options());
    (0..8).for_each(|id| pair.b.post_entry(id));
    (1..=4).for_each(|number| pair.a.send(number));
    let (address, key) = (pair.b.nic.remote_address(pair.b.key, 0), pair.b.key.0);
    let scatter = [pair.a.sge(40, 8 * PAGE)];
    let qp = pair.a.qp.unwrap();
    pair.a.nic.post_read(qp, ReadRequest { id: 9, address, key, scatter: &scatter }).unwrap();
    pair.a.nic.flush();
    pair.b.nic.disconnect(pair.b.qp.unwrap());
    pair.run_for(100 * MS);
    [pair.a.seen, pair.b.seen]
}

#[test]
fn the_same_seed_gives_the_same_results_and_others_give_others() {
    assert_eq!(hang_up(1), hang_up(1));
    assert!((2..10).any(|seed| hang_up(seed) != hang_up(1)));
}

#[test]
fn a_send_that_was_flushed_may_have_arrived() {
    let mut late = 0;
    for seed in 0..40 {
        let conditions = Conditions { latency_ns: 200_000, ..Conditions::quiet(seed) };
        let mut pair = Pair::unconnected(conditions, SimOptions { farewell_ns: 1_000, ..options() });
        pair.connect();
        pair.run_for(5 * MS);
        (0..8).for_each(|id| pair.b.post_entry(id));
        (1..=4).for_each(|number| pair.a.send(number));
        pair.a.nic.disconnect(pair.a.qp.unwrap());
        pair.run_for(100 * MS);
        let flushed = pair.a.outcomes().iter().filter(|(_, status)| *status == Status::Flushed).count();
        let arrived: Vec<_> = pair.b.entries().into_iter().map(|entry| pair.b.arrived(entry)).collect();
        assert_eq!(flushed, 4, "seed {seed}: no acknowledgement came");
        assert!(arrived.iter().copied().eq(1..=arrived.len() as u64), "seed {seed}: {arrived:?}");
        late += usize::from(!arrived.is_empty());
    }
    assert!((1..40).contains(&late), "{late} of 40");
}

#[test]
fn a_read_of_a_connection_that_ended_may_write_until_it_is_flushed() {
    let (mut wrote, page) = (0, 40);
    for seed in 0..40 {
        let conditions = Conditions { latency_ns: 20_000, flush_ns: 50 * MS, ..Conditions::quiet(seed) };
        let mut pair = Pair::new(conditions, options());
        // SAFETY: within the mapping, and only the simulated device beside this thread uses it.
        unsafe { pair.b.memory.base().write_bytes(0xab, PAGE) };
        let (address, key) = (pair.b.nic.remote_address(pair.b.key, 0), pair.b.key.0);
        let scatter = [pair.a.sge(page, PAGE)];
        let qp = pair.a.qp.unwrap();
        pair.a.nic.post_read(qp, ReadRequest { id: 9, address, key, scatter: &scatter }).unwrap();
        pair.a.nic.disconnect(qp);
        let memory = Arc::clone(&pair.a.memory);
        // SAFETY: as above.
        let to = unsafe { std::slice::from_raw_parts_mut(memory.base().add(page * PAGE), PAGE) };
        while pair.a.outcomes().is_empty() {
            // What was written before is not what this is about.
            to.fill(0);
            pair.run_for(MS);
        }
        assert_eq!(pair.a.outcomes(), [(Work::Read { id: 9 }, Status::Flushed)]);
        wrote += usize::from(to[0] == 0xab);
    }
    assert!(wrote >= 30, "{wrote} of 40");
}

#[test]
fn all_that_has_completed_waits_until_it_is_polled() {
    const READS: u32 = 16;
    let SimOptions { requirements, profile, .. } = options();
    let requirements = Requirements {
        reads: READS,
        reads_per_qp: READS,
        reads_answered_per_qp: READS,
        // Fewer SENDs than READs: each kind has places of its own.
        sends: 4,
        sends_per_qp: 4,
        completion_queues: CompletionQueues::Apart,
        ..requirements
    };
    let mut pair = Pair::new(quiet(), SimOptions::new(profile, requirements));
    let (address, key) = (pair.b.nic.remote_address(pair.b.key, 0), pair.b.key.0);
    let entries = u64::from(requirements.srq_entries);
    for id in 0..requirements.srq_entries {
        pair.a.post_entry(id);
    }
    for id in 0..u64::from(READS) {
        let scatter = [pair.a.sge(40, 8)];
        pair.a
            .nic
            .post_read(pair.a.qp.unwrap(), ReadRequest { id, address, key, scatter: &scatter })
            .unwrap();
    }
    pair.a.nic.flush();
    for id in 0..entries {
        pair.b.send(id);
        let end_ns = pair.network.now_ns() + MS;
        while let Some(now_ns) = pair.network.next_ns().filter(|next_ns| *next_ns <= end_ns) {
            pair.network.advance(now_ns);
            // Only one end polls.
            pair.b.poll(now_ns);
        }
        pair.network.advance(end_ns);
    }
    assert_eq!(pair.b.outcomes().len() as u64, entries);
    pair.a.poll(pair.network.now_ns());
    assert_eq!((pair.a.entries().len() as u64, pair.a.outcomes().len() as u64), (entries, u64::from(READS)));
}

#[test]
fn a_connection_that_is_half_open_stands_at_one_end_and_ends_there_in_time() {
    let mut pair = Pair::unconnected(quiet(), options());
    pair.network.halve_next(true);
    pair.connect();
    pair.run_for(MS);
    assert!(pair.a.qp.is_some() && pair.b.qp.is_none(), "only who asked knows that it stands");
    pair.a.send(1);
    pair.run_for(20 * MS);
    assert_eq!(pair.a.end().map(|(_, reason)| reason), Some(TIMED_OUT));
    assert!(pair.network.connections(pair.b.nic.id()).is_empty(), "it never stood there");
    assert_eq!(pair.network.happened().half_open, 1);
    // The one after it is whole.
    pair.connect();
    pair.run_for(MS);
    assert!(pair.b.qp.is_some());
}

#[test]
fn a_queue_refuses_requests_only_where_a_completion_says_when_to_try_again() {
    let mut pair = Pair::new(Conditions { refusals_permille: 1000, ..quiet() }, options());
    (0..8).for_each(|id| pair.b.post_entry(id));
    let qp = pair.a.qp.unwrap();
    for number in 1..=3 {
        pair.a.send(number);
        let header = HeaderBytes([0; HEADER_BYTES]);
        let another = SendRequest { id: 9, header: &header, payload: Payload::None };
        assert_eq!(pair.a.nic.post_send(qp, another), Err(PostError::QueueFull), "one is outstanding");
        let (address, key, scatter) =
            (pair.b.nic.remote_address(pair.b.key, 0), pair.b.key.0, [pair.a.sge(40, PAGE)]);
        let read = ReadRequest { id: 100 + number, address, key, scatter: &scatter };
        pair.a.nic.post_read(qp, read).expect("no READ is outstanding");
        pair.run_for(MS);
    }
    assert_eq!((pair.a.outcomes().len(), pair.network.happened().refusals), (6, 3));
}

#[test]
fn who_polls_with_a_clock_that_is_ahead_sees_what_has_happened_and_nothing_to_come() {
    let mut pair = Pair::new(quiet(), options());
    pair.b.post_entry(0);
    pair.network.set_clock_ahead(pair.a.nic.id(), 5_000 * MS);
    pair.a.send(1);
    let now_ns = pair.network.now_ns();
    pair.a.poll(now_ns + 5_000 * MS);
    assert_eq!((pair.a.outcomes(), pair.network.now_ns()), (Vec::new(), now_ns), "nothing has arrived yet");
    pair.run_for(MS);
    pair.a.poll(pair.network.now_ns() + 5_000 * MS);
    assert_eq!(pair.a.outcomes(), [(Work::Send { id: 1 }, Status::Success)]);
}

#[test]
fn entries_that_ended_connections_took_come_back_without_a_send() {
    let mut pair = Pair::new(Conditions { entries_taken_max: 4, ..quiet() }, options());
    (0..8).for_each(|id| pair.b.post_entry(id));
    // Each end draws how many: of this many none is left.
    for _ in 0..32 {
        let qp = pair.a.qp.expect("it is connected");
        pair.a.nic.disconnect(qp);
        pair.run_for(MS);
        pair.connect();
        pair.run_for(MS);
    }
    let back = |taken: fn(&Work) -> Option<u32>| {
        let entry = |(_, seen): &(u64, Seen)| match seen {
            Seen::Completed(work, Status::Flushed) => taken(work),
            _ => None,
        };
        pair.b.seen.iter().filter_map(entry).collect::<Vec<_>>()
    };
    let with_it = back(|work| match work {
        Work::Receive { entry, .. } => Some(*entry),
        _ => None,
    });
    let after_it = back(|work| match work {
        Work::SrqFlush { entry } => Some(*entry),
        _ => None,
    });
    assert!(!with_it.is_empty() && !after_it.is_empty(), "{with_it:?} {after_it:?}");
    let mut all = [with_it, after_it].concat();
    all.sort_unstable();
    assert_eq!(all, (0..8).collect::<Vec<_>>(), "each comes back once");
}
