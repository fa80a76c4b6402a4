//! Tests of what is particular to `shm:`: the handshake, staging, keys, sleep, ends. Peers that break the
//! protocol are in [`hostile`], those that say nothing in [`strangers`], files that do not close in
//! [`files`], deadlines in [`deadlines`], regions with holes in [`sparse`], messages without end in
//! [`turns`].

mod deadlines;
mod files;
mod hostile;
mod sparse;
mod strangers;
mod turns;

use super::connection::Connection;
use super::control::{Control, Received, receive, send_control};
use super::link::Link;
use super::listener::connect_to;
use crate::address::Address;
use crate::memory::SharedMemory;
use crate::nic::{
    Access, Completion, DisconnectReason, Event, MemoryKey, Nic, Payload, PostError, PrivateData, Qp,
    ReadRequest, SendRequest, Sge, SrqEntry, Status, Work,
};
use crate::soft::{SoftNic, SoftOptions};
use jet_wire::message::HeaderBytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a test fails; long enough for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
const ENTRY_BYTES: u64 = 4096;

/// NIC with a pool, a header area, and all that was polled from it.
struct Host {
    nic: SoftNic,
    pool: Arc<SharedMemory>,
    headers: Arc<SharedMemory>,
    pool_key: MemoryKey,
    header_key: MemoryKey,
    completions: Vec<Completion>,
    events: Vec<Event>,
    /// Time in nanoseconds, which does not change unless a test changes it.
    now_ns: u64,
}

impl Host {
    fn new(options: SoftOptions) -> Self {
        let mut nic = SoftNic::new(options).unwrap();
        let pool = Arc::new(SharedMemory::new("jet-test-pool", 64 << 12, false).unwrap());
        let headers = Arc::new(SharedMemory::new("jet-test-headers", 64 << 7, false).unwrap());
        let pool_key = nic.register(&pool, Access::LocalWrite).unwrap();
        let header_key = nic.register(&headers, Access::LocalWrite).unwrap();
        Self {
            nic,
            pool,
            headers,
            pool_key,
            header_key,
            completions: Vec::new(),
            events: Vec::new(),
            now_ns: 0,
        }
    }

    fn entry(&self, id: u32) -> SrqEntry {
        let header = Sge { key: self.header_key, offset: u64::from(id) * 128, bytes: 128 };
        SrqEntry { id, header, payload: Some(self.slab(id)) }
    }

    fn slab(&self, id: u32) -> Sge {
        Sge { key: self.pool_key, offset: u64::from(id) * ENTRY_BYTES, bytes: 4096 }
    }

    fn post_entries(&mut self, ids: std::ops::Range<u32>) {
        for id in ids {
            let entry = self.entry(id);
            self.nic.post_srq(entry).unwrap();
        }
    }

    fn bytes_in_slab(&self, id: u32, bytes: usize) -> Vec<u8> {
        read_memory(&self.pool, id as usize * 4096, bytes)
    }

    fn turn(&mut self) {
        let mut found = [Completion::UNUSED; 16];
        let count = self.nic.poll(self.now_ns, &mut found);
        self.completions.extend_from_slice(&found[..count]);
        self.events.extend(self.nic.poll_event(self.now_ns));
    }

    fn send(&mut self, qp: Qp, id: u64, payload: Payload<'_>) -> Result<(), PostError> {
        let mut header = HeaderBytes::ZERO;
        header.0[..8].copy_from_slice(&id.to_le_bytes());
        self.nic.post_send(qp, SendRequest { id, header: &header, payload })
    }

    fn statuses(&self) -> Vec<(Work, Status)> {
        self.completions.iter().map(|completion| (completion.work, completion.status)).collect()
    }

    fn ended(&self, qp: Qp) -> Option<DisconnectReason> {
        self.events.iter().find_map(|event| match event {
            Event::Disconnected { qp: found, reason } if *found == qp => Some(*reason),
            _ => None,
        })
    }
}

fn read_memory(memory: &SharedMemory, from: usize, bytes: usize) -> Vec<u8> {
    assert!(from + bytes <= memory.bytes());
    // SAFETY: within the memory, and the NICs that write it are polled by this thread only.
    unsafe { std::slice::from_raw_parts(memory.base().add(from), bytes).to_vec() }
}

fn write_memory(memory: &SharedMemory, from: usize, bytes: &[u8]) {
    assert!(from + bytes.len() <= memory.bytes());
    // SAFETY: as for reading.
    unsafe { memory.base().add(from).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "this did not happen: {what}");
    }
}

fn nothing() -> PrivateData {
    PrivateData::new(&[]).unwrap()
}

/// Makes the connect message of a peer that the test plays itself, and that answers so many READs.
fn connect_control(reads_answered: u32) -> Control {
    Control::Connect { private_data: nothing(), reads_answered }
}

/// Listening host, and its path.
struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
    host: Host,
}

impl Place {
    fn new(options: SoftOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nic.sock");
        let mut host = Host::new(options);
        host.nic.listen(&Address::Shm(path.clone())).unwrap();
        Self { _folder: folder, path, host }
    }

    /// Connects a host. Returns its QP and the listening host's QP.
    fn connect(&mut self, client: &mut Host) -> (Qp, Qp) {
        let data = PrivateData::new(b"hello").unwrap();
        let ours = client.nic.connect(&Address::Shm(self.path.clone()), &data).unwrap();
        let mut theirs = None;
        until("connected", || {
            client.turn();
            self.host.turn();
            if let Some(Event::ConnectRequest { qp, private_data, .. }) = self.host.events.pop() {
                assert_eq!(private_data, data);
                self.host.nic.accept(qp, &PrivateData::new(b"welcome").unwrap()).unwrap();
                theirs = Some(qp);
            }
            match client.events.pop() {
                Some(Event::Connected { qp, private_data, .. }) => {
                    assert_eq!((qp, private_data.as_slice()), (ours, &b"welcome"[..]));
                    true
                }
                _ => false,
            }
        });
        self.host.events.clear();
        (ours, theirs.unwrap())
    }

    /// Connects a peer that the test plays itself. Returns its socket, its link, and the listening host's QP.
    fn raw_peer(&mut self) -> (OwnedFd, Link, Qp) {
        let socket = connect_to(&self.path).unwrap();
        let link = Link::make().unwrap();
        assert!(send_control(&socket, connect_control(32), Some(link.file().unwrap().as_fd())).unwrap());
        let mut found = None;
        until("a request", || {
            self.host.turn();
            if let Some(Event::ConnectRequest { qp, .. }) = self.host.events.pop() {
                found = Some(qp);
            }
            found.is_some()
        });
        self.host.nic.accept(found.unwrap(), &nothing()).unwrap();
        assert!(matches!(receive(&socket), Received::Control(Control::Accept { .. }, None)));
        self.host.turn();
        self.host.events.clear();
        (socket, link, found.unwrap())
    }
}

#[test]
fn sends_of_every_payload_arrive_in_order() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let memory = Arc::new(SharedMemory::new("jet-test", 8192, false).unwrap());
    write_memory(&memory, 5000, &[9; 3000]);
    let (ours, _) = place.connect(&mut client);
    // Registered after the connection was made.
    let key = client.nic.register(&memory, Access::RemoteRead).unwrap();
    write_memory(&client.pool, 0, &[8; 4096]);
    place.host.post_entries(0..8);
    let local = client.slab(0);
    client.send(ours, 0, Payload::None).unwrap();
    client.send(ours, 1, Payload::Inline(&[5; 104])).unwrap();
    client.send(ours, 2, Payload::Inline(&[6; 105])).unwrap();
    client.send(ours, 3, Payload::Inline(&[7; 4096])).unwrap();
    client.send(ours, 4, Payload::Registered(Sge { key, offset: 5000, bytes: 3000 })).unwrap();
    client.send(ours, 5, Payload::Registered(local)).unwrap();
    client.send(ours, 6, Payload::Registered(Sge { offset: 10, bytes: 1, ..local })).unwrap();
    client.send(ours, 7, Payload::Registered(Sge { offset: 20, bytes: 104, ..local })).unwrap();
    assert_eq!(client.send(ours, 8, Payload::Inline(&[0; 4097])), Err(PostError::Limit));
    until("all sent", || {
        client.turn();
        place.host.turn();
        client.completions.len() == 8
    });
    let sent = [(0, 0), (5, 104), (6, 105), (7, 4096), (9, 3000), (8, 4096), (8, 1), (8, 104)];
    for (id, (byte, bytes)) in sent.into_iter().enumerate() {
        let entry = u32::try_from(id).unwrap();
        assert_eq!(place.host.bytes_in_slab(entry, bytes), vec![byte; bytes]);
        assert_eq!(read_memory(&place.host.headers, id * 128, 8), (id as u64).to_le_bytes());
        let payload_bytes = u32::try_from(bytes).unwrap();
        assert_eq!(place.host.statuses()[id], (Work::Receive { entry, payload_bytes }, Status::Success));
        assert_eq!(client.statuses()[id], (Work::Send { id: id as u64 }, Status::Success));
    }
}

#[test]
fn staged_payloads_wait_for_room_and_come_round() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, theirs) = place.connect(&mut client);
    for (client_sends, qp) in [(true, ours), (false, theirs)] {
        let (from, to) =
            if client_sends { (&mut client, &mut place.host) } else { (&mut place.host, &mut client) };
        from.completions.clear();
        to.completions.clear();
        let (mut sent, mut free) = (0u64, (0..32).rev().collect::<Vec<u32>>());
        until("300 staged payloads went", || {
            let mut payload = vec![u8::try_from(sent % 251).unwrap(); 4000];
            payload[0] = 0xee;
            while sent < 300 && from.send(qp, sent, Payload::Inline(&payload)).is_ok() {
                sent += 1;
                payload[1..].fill(u8::try_from(sent % 251).unwrap());
            }
            while let Some(id) = free.pop() {
                let entry = to.entry(id);
                to.nic.post_srq(entry).unwrap();
            }
            from.turn();
            to.turn();
            for completion in to.completions.drain(..) {
                let Work::Receive { entry, payload_bytes: 4000 } = completion.work else {
                    panic!("{completion:?}")
                };
                let id =
                    u64::from_le_bytes(read_memory(&to.headers, entry as usize * 128, 8).try_into().unwrap());
                let bytes = read_memory(&to.pool, entry as usize * 4096, 4000);
                assert!(bytes[1..].iter().all(|byte| u64::from(*byte) == id % 251), "message {id}");
                free.push(entry);
            }
            from.completions.len() == 300
        });
    }
}

#[test]
fn a_refused_connection_is_stale_at_both_ends() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let qp = client.nic.connect(&Address::Shm(place.path.clone()), &nothing()).unwrap();
    let no = PrivateData::new(b"no").unwrap();
    until("refused", || {
        client.turn();
        place.host.turn();
        if let Some(Event::ConnectRequest { qp, .. }) = place.host.events.pop() {
            place.host.nic.reject(qp, &no);
            assert_eq!(place.host.nic.accept(qp, &no), Err(PostError::Stale));
        }
        client.events.pop() == Some(Event::Rejected { qp, private_data: no })
    });
    assert_eq!(client.send(qp, 0, Payload::None), Err(PostError::Stale));
    assert!(client.events.is_empty() && place.host.events.is_empty());
}

#[test]
fn a_refusal_comes_to_one_whose_last_words_were_not_read() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let qp = client.nic.connect(&Address::Shm(place.path.clone()), &nothing()).unwrap();
    let mut request = None;
    until("the request", || {
        place.host.turn();
        request = place.host.events.pop();
        request.is_some()
    });
    let Some(Event::ConnectRequest { qp: asked, .. }) = request else { panic!("{request:?}") };
    // It announces memory, which nobody looks at any more.
    let memory = Arc::new(SharedMemory::new("jet-test", 1 << 16, false).unwrap());
    client.nic.register(&memory, Access::RemoteRead).unwrap();
    let no = PrivateData::new(b"no").unwrap();
    place.host.nic.reject(asked, &no);
    drop(place);
    until("an end", || {
        client.turn();
        !client.events.is_empty()
    });
    assert_eq!(client.events, [Event::Rejected { qp, private_data: no }]);
}

#[test]
fn nobody_listening_and_a_listener_that_stops_are_told_at_once() {
    let mut client = Host::new(SoftOptions::default());
    let mut place = Place::new(SoftOptions::default());
    place.host.nic.stop_listening();
    let refused = client.nic.connect(&Address::Shm(place.path.clone()), &nothing());
    assert!(refused.unwrap_err().to_string().contains("is jetd running there?"));
    // Listening again at the same path works.
    place.host.nic.listen(&Address::Shm(place.path.clone())).unwrap();
    place.connect(&mut client);
}

#[test]
fn reads_are_scattered_and_bounded() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let memory = Arc::new(SharedMemory::new("jet-test", 1 << 18, false).unwrap());
    let content: Vec<u8> = (0..memory.bytes()).map(|at| u8::try_from(at * 7 % 253).unwrap()).collect();
    write_memory(&memory, 0, &content);
    let key = client.nic.register(&memory, Access::RemoteRead).unwrap();
    let (ours, theirs) = place.connect(&mut client);
    let host = &mut place.host;
    let scatter: Vec<Sge> = (0..48).rev().map(|id| host.slab(id)).collect();
    let address = client.nic.remote_address(key, 1000);
    host.nic.post_read(theirs, ReadRequest { id: 1, address, key: key.0, scatter: &scatter }).unwrap();
    until("read", || {
        host.turn();
        !host.completions.is_empty()
    });
    assert_eq!(host.statuses(), [(Work::Read { id: 1 }, Status::Success)]);
    let expected = content[1000..1000 + 48 * 4096].chunks(4096);
    for (id, bytes) in (0..48).rev().zip(expected) {
        assert_eq!(host.bytes_in_slab(id, 4096), bytes);
    }
    // One byte too far: nothing changes, the QP ends, and the READ behind it is flushed.
    host.completions.clear();
    write_memory(&host.pool, 0, &[0xaa; 8192]);
    let two = [host.slab(0), host.slab(1)];
    let beyond = (1 << 18) - 8191;
    host.nic.post_read(theirs, ReadRequest { id: 2, address: beyond, key: key.0, scatter: &two }).unwrap();
    host.nic.post_read(theirs, ReadRequest { id: 3, address: 0, key: key.0, scatter: &two }).unwrap();
    let denied = DisconnectReason::WorkRequest(Status::RemoteAccess);
    until("both ends ended", || {
        host.turn();
        client.turn();
        host.ended(theirs) == Some(denied) && client.ended(ours) == Some(denied)
    });
    let ends = [(Work::Read { id: 2 }, Status::RemoteAccess), (Work::Read { id: 3 }, Status::Flushed)];
    assert_eq!(host.statuses(), ends);
    assert_eq!(host.bytes_in_slab(0, 4096), [0xaa; 4096]);
    let again = ReadRequest { id: 4, address: 0, key: key.0, scatter: &two };
    assert_eq!(host.nic.post_read(theirs, again), Err(PostError::Stale));
}

#[test]
fn a_key_that_was_taken_back_reads_nothing_from_that_moment() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let memory = Arc::new(SharedMemory::new("jet-test", 4096, false).unwrap());
    let key = client.nic.register(&memory, Access::RemoteRead).unwrap();
    let (_, theirs) = place.connect(&mut client);
    let host = &mut place.host;
    let scatter = [host.slab(0)];
    let request = ReadRequest { id: 1, address: 0, key: key.0, scatter: &scatter };
    host.nic.post_read(theirs, request).unwrap();
    until("read", || {
        host.turn();
        host.statuses() == [(Work::Read { id: 1 }, Status::Success)]
    });
    host.completions.clear();
    client.nic.deregister(key);
    host.nic.post_read(theirs, request).unwrap();
    until("refused", || {
        host.turn();
        host.statuses() == [(Work::Read { id: 1 }, Status::RemoteAccess)]
    });
}

#[test]
fn a_send_without_an_entry_waits_and_is_counted_once() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, _) = place.connect(&mut client);
    client.send(ours, 1, Payload::None).unwrap();
    for _ in 0..10_000 {
        client.turn();
        place.host.turn();
    }
    assert_eq!(place.host.nic.counters().rnr, 1);
    assert!(client.completions.is_empty());
    // Neither end has work, so both may sleep.
    until("asleep", || place.host.nic.arm(0) && client.nic.arm(0));
    place.host.post_entries(0..1);
    assert!(!place.host.nic.arm(0), "the waiting SEND can be taken now");
    until("arrived", || {
        client.turn();
        place.host.turn();
        client.statuses() == [(Work::Send { id: 1 }, Status::Success)]
    });
}

#[test]
fn who_sleeps_while_a_send_waits_for_an_entry_is_woken_when_its_own_sends_are_taken() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, theirs) = place.connect(&mut client);
    client.send(ours, 1, Payload::None).unwrap();
    place.host.send(theirs, 2, Payload::None).unwrap();
    until("both wait", || {
        client.turn();
        place.host.turn();
        place.host.nic.counters().rnr == 1 && client.nic.counters().rnr == 1 && place.host.nic.arm(0)
    });
    client.post_entries(0..1);
    until("woken", || {
        client.turn();
        let fd = place.host.nic.wait_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    });
    until("completed", || {
        place.host.turn();
        place.host.statuses() == [(Work::Send { id: 2 }, Status::Success)]
    });
}

#[test]
fn a_send_longer_than_its_entry_ends_both_qps() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, theirs) = place.connect(&mut client);
    place.host.post_entries(0..1);
    let short = SrqEntry { payload: None, ..place.host.entry(1) };
    place.host.nic.post_srq(short).unwrap();
    for id in 0..3 {
        client.send(ours, id, Payload::Inline(&[1; 16])).unwrap();
    }
    let length = DisconnectReason::WorkRequest(Status::Length);
    until("both ends ended", || {
        client.turn();
        place.host.turn();
        client.ended(ours) == Some(length) && place.host.ended(theirs) == Some(length)
    });
    let statuses: Vec<_> = client.completions.iter().map(|completion| completion.status).collect();
    assert_eq!(statuses, [Status::Success, Status::Length, Status::Flushed]);
    let (entry, payload_bytes) = (1, 0);
    assert_eq!(place.host.statuses()[1], (Work::Receive { entry, payload_bytes }, Status::Length));
}

#[test]
fn sleepers_are_woken_by_sends_and_by_their_own_sends_being_taken() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, theirs) = place.connect(&mut client);
    let ready = |nic: &SoftNic, wait: Timespec| {
        poll(&mut [PollFd::from_borrowed_fd(nic.wait_fd(), PollFlags::IN)], Some(&wait)).unwrap() == 1
    };
    let (at_once, patiently) = (Timespec { tv_sec: 0, tv_nsec: 0 }, Timespec { tv_sec: 60, tv_nsec: 0 });
    for id in 0..20u32 {
        let sleeps = |host: &mut Host| {
            until("asleep", || {
                host.turn();
                host.nic.arm(0)
            });
        };
        sleeps(&mut place.host);
        sleeps(&mut client);
        assert!(!ready(&place.host.nic, at_once));
        client.send(ours, u64::from(id), Payload::None).unwrap();
        client.nic.flush();
        // The sender sleeps until its SEND is taken, and the receiver is woken by it.
        sleeps(&mut client);
        assert!(ready(&place.host.nic, patiently));
        assert!(!ready(&client.nic, at_once));
        place.host.post_entries(id..id + 1);
        until("arrived", || {
            place.host.turn();
            place.host.completions.len() == id as usize + 1
        });
        assert!(ready(&client.nic, patiently));
        until("completed", || {
            client.turn();
            client.completions.len() == id as usize + 1
        });
    }
    // The end of a peer wakes, too.
    until("asleep", || {
        place.host.turn();
        place.host.nic.arm(0)
    });
    drop(client);
    assert!(ready(&place.host.nic, patiently));
    until("ended", || {
        place.host.turn();
        place.host.ended(theirs) == Some(DisconnectReason::Peer)
    });
}

#[test]
fn an_idle_connection_goes_cold_and_still_hears() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, theirs) = place.connect(&mut client);
    place.host.post_entries(0..2);
    until("both cold", || {
        client.turn();
        place.host.turn();
        client.nic.shm.hot.is_empty() && place.host.nic.shm.hot.is_empty()
    });
    client.send(ours, 1, Payload::None).unwrap();
    until("arrived", || {
        client.turn();
        place.host.turn();
        client.statuses() == [(Work::Send { id: 1 }, Status::Success)]
    });
    assert_eq!(place.host.nic.shm.hot, [theirs.index]);
}

#[test]
fn a_peer_that_dies_leaves_flushed_work_and_a_place_for_the_next() {
    let mut place = Place::new(SoftOptions { qps_max: 1, ..SoftOptions::default() });
    let mut client = Host::new(SoftOptions::default());
    let (_, theirs) = place.connect(&mut client);
    let scatter = [place.host.slab(0)];
    place.host.send(theirs, 1, Payload::None).unwrap();
    drop(client);
    // The peer is gone, but this end has not noticed: posting is still allowed.
    place.host.send(theirs, 2, Payload::None).unwrap();
    place.host.nic.post_read(theirs, ReadRequest { id: 3, address: 0, key: 1, scatter: &scatter }).unwrap();
    until("ended", || {
        place.host.turn();
        place.host.ended(theirs).is_some()
    });
    let works: Vec<_> = place.host.completions.iter().map(|completion| completion.work).collect();
    assert_eq!(works.len(), 3, "{works:?}");
    assert!(place.host.completions.iter().all(|completion| completion.status != Status::Success));
    let mut next = Host::new(SoftOptions::default());
    let (_, reused) = place.connect(&mut next);
    assert_eq!(reused.index, theirs.index);
    assert_ne!(reused, theirs);
    assert_eq!(place.host.send(theirs, 4, Payload::None), Err(PostError::Stale));
}

#[test]
fn a_full_table_turns_a_peer_away() {
    let mut place = Place::new(SoftOptions { qps_max: 1, ..SoftOptions::default() });
    let mut client = Host::new(SoftOptions::default());
    place.connect(&mut client);
    let second = client.nic.connect(&Address::Shm(place.path.clone()), &nothing()).unwrap();
    until("turned away", || {
        client.turn();
        place.host.turn();
        client.ended(second) == Some(DisconnectReason::Peer)
    });
}
