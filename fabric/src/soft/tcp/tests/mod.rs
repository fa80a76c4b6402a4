//! Tests of what is particular to `tcp:`: cut frames, short writes, farewells.
//!
//! Acknowledgements are in [`acks`], peers that break the protocol in [`hostile`], those that say nothing in
//! [`strangers`], deadlines in [`deadlines`] and [`read_timeout`]. What every transport must do is in the
//! conformance suite.

use super::TURNS_PER_POLL;
use super::frame::{FRAME_BYTES, Fault, Frame, READ_PIECE_MAX, SEND_BYTES_MAX};
use crate::address::Address;
use crate::memory::SharedMemory;
use crate::nic::{
    Access, Completion, DisconnectReason, Event, MemoryKey, Nic, Payload, PrivateData, Qp, ReadRequest,
    SendRequest, Sge, SrqEntry, Status, Work,
};
use crate::soft::{SoftNic, SoftOptions, TcpOptions};
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a test fails; long enough for the slowest machine.
const DEADLINE: Duration = Duration::from_secs(60);
const SLAB: u32 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

/// NIC with memory: `slabs` slabs, and a header area in front of them.
struct Host {
    nic: SoftNic,
    memory: Arc<SharedMemory>,
    pool: MemoryKey,
    completions: Vec<Completion>,
    events: Vec<Event>,
    /// Time in nanoseconds, which does not change unless a test changes it.
    now_ns: u64,
}

const HEADERS: u64 = 64 * HEADER_BYTES as u64;

impl Host {
    fn new(options: SoftOptions, slabs: u64) -> Self {
        let mut nic = SoftNic::new(options).unwrap();
        let bytes = usize::try_from(HEADERS + slabs * u64::from(SLAB)).unwrap();
        let memory = Arc::new(SharedMemory::new("jet-test", bytes, false).unwrap());
        let pool = nic.register(&memory, Access::LocalWrite).unwrap();
        Self { nic, memory, pool, completions: Vec::new(), events: Vec::new(), now_ns: 0 }
    }

    fn slab(&self, index: u32) -> Sge {
        Sge { key: self.pool, offset: HEADERS + u64::from(index) * u64::from(SLAB), bytes: SLAB }
    }

    fn post_srq(&mut self, entry: u32) {
        let header = Sge {
            key: self.pool,
            offset: u64::from(entry) * HEADER_BYTES as u64,
            bytes: u32::try_from(HEADER_BYTES).unwrap(),
        };
        let payload = Some(self.slab(entry));
        self.nic.post_srq(SrqEntry { id: entry, header, payload }).unwrap();
    }

    fn turn(&mut self) {
        let mut some = [Completion {
            qp: Qp { index: 0, generation: 0 },
            work: Work::Send { id: 0 },
            status: Status::Success,
        }; 32];
        let count = self.nic.poll(self.now_ns, &mut some);
        self.completions.extend_from_slice(&some[..count]);
        while let Some(event) = self.nic.poll_event(self.now_ns) {
            self.events.push(event);
        }
    }

    fn bytes(&self, place: Sge) -> Vec<u8> {
        assert!(place.offset + u64::from(place.bytes) <= self.memory.bytes() as u64);
        let offset = usize::try_from(place.offset).unwrap();
        // SAFETY: within the mapping; the NIC writes only while it is polled, by this thread.
        unsafe { std::slice::from_raw_parts(self.memory.base().add(offset), place.bytes as usize) }.to_vec()
    }

    fn fill(&self, place: Sge, byte: impl Fn(u32) -> u8) {
        let offset = usize::try_from(place.offset).unwrap();
        for at in 0..place.bytes {
            // SAFETY: as above.
            unsafe { self.memory.base().add(offset + at as usize).write(byte(at)) };
        }
    }

    fn ended(&self) -> Option<DisconnectReason> {
        self.events.iter().find_map(|event| match event {
            Event::Disconnected { reason, .. } => Some(*reason),
            _ => None,
        })
    }

    fn connected(&self) -> Option<Qp> {
        self.events.iter().find_map(|event| match event {
            Event::Connected { qp, .. } => Some(*qp),
            _ => None,
        })
    }

    fn requested(&self) -> Option<Qp> {
        self.events.iter().find_map(|event| match event {
            Event::ConnectRequest { qp, .. } => Some(*qp),
            _ => None,
        })
    }
}

/// Polls the ends until the condition holds.
fn until(ends: &mut [&mut Host], what: &str, mut so: impl FnMut(&mut [&mut Host]) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !so(ends) {
        assert!(Instant::now() < deadline, "never {what}");
        ends.iter_mut().for_each(|end| end.turn());
    }
}

fn listening(options: SoftOptions) -> (Host, Address) {
    let mut end = Host::new(options, 64);
    let address = end.nic.listen(&"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
    (end, address)
}

fn nothing() -> PrivateData {
    PrivateData::new(b"").unwrap()
}

/// Connects two ends. Returns the listening end, the connecting end, and their QPs.
fn pair(options: SoftOptions) -> (Host, Host, Qp, Qp) {
    let (mut server, address) = listening(options);
    let mut client = Host::new(options, 64);
    client.nic.connect(&address, &PrivateData::new(b"hello").unwrap()).unwrap();
    until(&mut [&mut server, &mut client], "a request", |ends| ends[0].requested().is_some());
    let at_server = server.requested().unwrap();
    server.nic.accept(at_server, &nothing()).unwrap();
    until(&mut [&mut server, &mut client], "connected", |ends| ends[1].connected().is_some());
    let at_client = client.connected().unwrap();
    (server, client, at_server, at_client)
}

/// Makes the first frame of a peer that the test plays itself, with so much private data to follow. The peer
/// answers as many READs as the NIC.
fn connect_frame(private_bytes: u32) -> Frame {
    Frame::Connect { private_bytes, reads_answered: READS_ANSWERED }
}

/// Makes the frame with which the NIC accepts.
fn accept_frame() -> Frame {
    Frame::Accept { private_bytes: 0, reads_answered: READS_ANSWERED }
}

/// READs that a NIC with default options answers at once.
const READS_ANSWERED: u64 = 256;

/// Opens a stream to the NIC, for a peer that the test plays itself.
fn raw(address: &Address) -> TcpStream {
    let Address::Tcp(host_port) = address else { panic!("a tcp address") };
    let stream = TcpStream::connect(host_port).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Opens a stream to the NIC and completes the handshake. Returns the stream and the NIC's QP.
fn raw_connected(server: &mut Host, address: &Address) -> (TcpStream, Qp) {
    let mut stream = raw(address);
    stream.write_all(&connect_frame(0).to_bytes()).unwrap();
    until(&mut [server], "a request", |ends| ends[0].requested().is_some());
    let qp = server.requested().unwrap();
    server.nic.accept(qp, &nothing()).unwrap();
    for expected in [Frame::Asked, accept_frame()] {
        assert_eq!(next_frame(server, &mut stream), expected);
    }
    server.events.clear();
    (stream, qp)
}

fn next_frame(server: &mut Host, stream: &mut TcpStream) -> Frame {
    server.turn();
    let mut bytes = [0; FRAME_BYTES];
    stream.set_nonblocking(true).unwrap();
    until(&mut [server], "a frame", |_| stream.peek(&mut bytes).is_ok_and(|got| got == FRAME_BYTES));
    stream.set_nonblocking(false).unwrap();
    stream.read_exact(&mut bytes).unwrap();
    Frame::parse(&bytes).unwrap()
}

/// Checks that the server still serves other connections.
fn still_serves(server: &mut Host, address: &Address) {
    server.events.clear();
    server.completions.clear();
    let (mut stream, _) = raw_connected(server, address);
    server.post_srq(9);
    stream.write_all(&Frame::Send { payload_bytes: 3 }.to_bytes()).unwrap();
    stream.write_all(&[5; HEADER_BYTES]).unwrap();
    stream.write_all(b"abc").unwrap();
    until(&mut [server], "a SEND", |ends| !ends[0].completions.is_empty());
    assert_eq!(server.completions[0].status, Status::Success);
    assert_eq!(server.bytes(Sge { bytes: 3, ..server.slab(9) }), b"abc");
}

#[test]
fn sends_cut_at_every_byte_arrive_whole() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, _) = raw_connected(&mut server, &address);
    let payload = |message: u8| (0..33 + message).map(move |i| i ^ message);
    let mut bytes = Vec::new();
    for message in 0..3u8 {
        let length = u32::try_from(payload(message).count()).unwrap();
        bytes.extend(Frame::Send { payload_bytes: length }.to_bytes());
        bytes.extend([message + 1; HEADER_BYTES]);
        bytes.extend(payload(message));
    }
    for round in 0..2u64 {
        (0..3).for_each(|entry| server.post_srq(entry));
        server.completions.clear();
        // One byte at a time, then all at once.
        let step = if round == 0 { 1 } else { bytes.len() };
        for part in bytes.chunks(step) {
            stream.write_all(part).unwrap();
            server.turn();
        }
        until(&mut [&mut server], "three SENDs", |ends| ends[0].completions.len() == 3);
        for message in 0..3u8 {
            let expected: Vec<u8> = payload(message).collect();
            let length = u32::try_from(expected.len()).unwrap();
            let entry = u32::from(message);
            let completion = server.completions[usize::from(message)];
            assert_eq!(completion.work, Work::Receive { entry, payload_bytes: length });
            assert_eq!(server.bytes(Sge { bytes: length, ..server.slab(entry) }), expected);
        }
        // The SENDs are acknowledged, in any number of frames, also where nothing else is written.
        let wanted = (round + 1) * 3;
        server.now_ns += 30_000;
        while next_frame(&mut server, &mut stream) != (Frame::SendAck { taken: wanted }) {}
    }
}

#[test]
fn a_piece_counts_only_once_its_end_came() {
    let (mut server, address) = listening(SoftOptions::default());
    let (mut stream, qp) = raw_connected(&mut server, &address);
    let scatter = [Sge { bytes: 10, ..server.slab(0) }, Sge { bytes: 20, ..server.slab(1) }];
    for id in [7, 8] {
        let request = ReadRequest { id, address: 0, key: 1, scatter: &scatter };
        server.nic.post_read(qp, request).unwrap();
    }
    for _ in 0..2 {
        next_frame(&mut server, &mut stream);
    }
    for bytes in [12, 18] {
        stream.write_all(&Frame::ReadResponse { id: 0, bytes }.to_bytes()).unwrap();
        stream.write_all(&vec![3; bytes as usize]).unwrap();
        stream.write_all(&Frame::ReadEnd { id: 0 }.to_bytes()).unwrap();
    }
    stream.write_all(&Frame::ReadResponse { id: 1, bytes: 30 }.to_bytes()).unwrap();
    stream.write_all(&[4; 30]).unwrap();
    until(&mut [&mut server], "the second's bytes", |ends| ends[0].nic.counters().bytes_in == 60);
    assert_eq!(server.completions.len(), 1);
    stream.write_all(&Frame::ReadError { id: 1, fault: Fault::RemoteAccess }.to_bytes()).unwrap();
    until(&mut [&mut server], "ended", |ends| ends[0].ended().is_some());
    let ends: Vec<_> = server.completions.iter().map(|c| (c.work, c.status)).collect();
    let expected = [(Work::Read { id: 7 }, Status::Success), (Work::Read { id: 8 }, Status::RemoteAccess)];
    assert_eq!(ends, expected);
    assert_eq!(server.ended(), Some(DisconnectReason::WorkRequest(Status::RemoteAccess)));
}

/// Returns options with socket buffers smaller than a piece, so that pieces are written and read in parts.
/// They are large enough that the windows of a loopback connection do not stall.
fn narrow() -> SoftOptions {
    let tcp = TcpOptions {
        send_buffer_bytes: Some(64 << 10),
        receive_buffer_bytes: Some(64 << 10),
        ..TcpOptions::default()
    };
    SoftOptions { tcp, farewell: DEADLINE, ..SoftOptions::default() }
}

#[test]
fn reads_longer_than_a_piece_arrive_through_narrow_sockets() {
    let (mut server, mut client, at_server, _) = pair(narrow());
    let bytes = READ_PIECE_MAX * 2 + 5000;
    let file = Arc::new(SharedMemory::new("jet-test", bytes as usize, false).unwrap());
    let key = client.nic.register(&file, Access::RemoteRead).unwrap();
    for at in 0..bytes as usize {
        // SAFETY: within the region.
        unsafe { file.base().add(at).write(u8::try_from(at % 253).unwrap()) };
    }
    let target = Arc::new(SharedMemory::new("jet-test", bytes as usize, false).unwrap());
    let place = server.nic.register(&target, Access::LocalWrite).unwrap();
    let scatter = [
        Sge { key: place, offset: 1, bytes: 3 },
        Sge { key: place, offset: 4, bytes: READ_PIECE_MAX },
        Sge { key: place, offset: u64::from(READ_PIECE_MAX) + 4, bytes: READ_PIECE_MAX + 4000 },
    ];
    let address = client.nic.remote_address(key, 1);
    server.nic.post_read(at_server, ReadRequest { id: 1, address, key: key.0, scatter: &scatter }).unwrap();
    until(&mut [&mut server, &mut client], "read", |ends| !ends[0].completions.is_empty());
    assert_eq!(server.completions[0].status, Status::Success);
    for at in 1..(READ_PIECE_MAX * 2 + 4004) as usize {
        // SAFETY: within the region.
        assert_eq!(unsafe { target.base().add(at).read() }, u8::try_from(at % 253).unwrap(), "at {at}");
    }
}

#[test]
fn memory_taken_back_half_way_fails_the_read_at_both_ends() {
    let (mut server, mut client, at_server, _) = pair(narrow());
    let bytes = READ_PIECE_MAX * 4;
    let file = Arc::new(SharedMemory::new("jet-test", bytes as usize, false).unwrap());
    let key = client.nic.register(&file, Access::RemoteRead).unwrap();
    let target = Arc::new(SharedMemory::new("jet-test", bytes as usize, false).unwrap());
    let place = server.nic.register(&target, Access::LocalWrite).unwrap();
    let scatter = [Sge { key: place, offset: 0, bytes }];
    for id in [1, 2] {
        server
            .nic
            .post_read(at_server, ReadRequest { id, address: 0, key: key.0, scatter: &scatter })
            .unwrap();
    }
    until(&mut [&mut server, &mut client], "begun", |ends| ends[0].nic.counters().bytes_in > 0);
    client.nic.deregister(key);
    until(&mut [&mut server, &mut client], "ended", |ends| ends.iter().all(|end| end.ended().is_some()));
    let statuses: Vec<_> = server.completions.iter().map(|c| c.status).collect();
    assert_eq!(statuses, [Status::RemoteAccess, Status::Flushed]);
    let reason = Some(DisconnectReason::WorkRequest(Status::RemoteAccess));
    assert_eq!((server.ended(), client.ended()), (reason, reason));
}

#[test]
fn sends_wait_for_entries_without_loss_and_a_farewell_waits_for_them() {
    let (mut server, mut client, _, at_client) = pair(narrow());
    for id in 0..40u64 {
        let header = HeaderBytes([u8::try_from(id).unwrap(); HEADER_BYTES]);
        let payload = vec![u8::try_from(id).unwrap(); 3000];
        let request = SendRequest { id, header: &header, payload: Payload::Inline(&payload) };
        client.nic.post_send(at_client, request).unwrap();
    }
    client.nic.disconnect(at_client);
    let mut entry = 0;
    until(&mut [&mut server, &mut client], "all taken", |ends| {
        // A new entry whenever the last one was used.
        if ends[0].completions.len() == entry && entry < 40 {
            ends[0].post_srq(u32::try_from(entry).unwrap());
            entry += 1;
        }
        ends.iter().all(|end| end.ended().is_some())
    });
    assert_eq!(server.completions.len(), 40);
    assert!(server.nic.counters().rnr > 0);
    for (id, completion) in (0..40u64).zip(&client.completions) {
        assert_eq!((completion.work, completion.status), (Work::Send { id }, Status::Success));
    }
    for slab in 0..40 {
        let place = Sge { bytes: 3000, ..server.slab(slab) };
        assert!(server.bytes(place).iter().all(|&byte| u32::from(byte) == slab));
    }
    assert_eq!(
        (client.ended(), server.ended()),
        (Some(DisconnectReason::Local), Some(DisconnectReason::Peer))
    );
}

#[test]
fn a_payload_whose_key_is_taken_back_before_it_left_fails_and_takes_no_entry() {
    let (mut server, mut client, _, at_client) = pair(SoftOptions::default());
    server.post_srq(0);
    let payload = Payload::Registered(Sge { bytes: 64, ..client.slab(3) });
    let request = SendRequest { id: 5, header: &HeaderBytes::ZERO, payload };
    client.nic.post_send(at_client, request).unwrap();
    client.nic.deregister(client.pool);
    until(&mut [&mut server, &mut client], "ended", |ends| ends.iter().all(|end| end.ended().is_some()));
    assert_eq!(client.completions[0].status, Status::LocalProtection);
    assert!(server.completions.is_empty());
}

#[test]
fn nobody_listening_and_a_refusal_are_told_apart() {
    let (mut server, address) = listening(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default(), 1);
    let qp = client.nic.connect(&address, &nothing()).unwrap();
    until(&mut [&mut server, &mut client], "a request", |ends| ends[0].requested().is_some());
    server.nic.reject(server.requested().unwrap(), &PrivateData::new(b"no").unwrap());
    until(&mut [&mut client], "rejected", |ends| !ends[0].events.is_empty());
    let private_data = PrivateData::new(b"no").unwrap();
    assert_eq!(client.events, [Event::Rejected { qp, private_data }]);
    client.events.clear();
    server.nic.stop_listening();
    // The connection is refused at once, or by an event.
    if let Ok(qp) = client.nic.connect(&address, &nothing()) {
        until(&mut [&mut client], "refused", |ends| !ends[0].events.is_empty());
        let reason = DisconnectReason::Transport(libc::ECONNREFUSED);
        assert_eq!(client.events, [Event::Disconnected { qp, reason }]);
    }
}

/// A user that sleeps by `arm` and `wait_fd` misses nothing that arrives.
#[test]
fn a_sleeper_is_woken_for_everything() {
    let (mut server, mut client, at_server, _) = pair(SoftOptions::default());
    client.fill(client.slab(1), |at| u8::try_from(at % 200).unwrap());
    let file = Arc::clone(&client.memory);
    let key = client.nic.register(&file, Access::RemoteRead).unwrap();
    let sleep = |end: &mut Host| {
        if end.nic.arm(0) {
            let fd = end.nic.wait_fd();
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "woken");
        }
        end.turn();
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while client.ended().is_none() {
                sleep(&mut client);
            }
        });
        for round in 0..200u32 {
            let scatter = [server.slab(round % 60)];
            let address = HEADERS + u64::from(SLAB);
            let request = ReadRequest { id: 1, address, key: key.0, scatter: &scatter };
            server.completions.clear();
            server.nic.post_read(at_server, request).unwrap();
            while server.completions.is_empty() {
                sleep(&mut server);
            }
            assert_eq!(server.bytes(scatter[0])[199], 199);
        }
        server.nic.disconnect(at_server);
        while server.ended().is_none() {
            sleep(&mut server);
        }
    });
}

#[test]
fn a_crowd_that_leaves_at_once_is_ended_a_few_in_each_turn() {
    let (mut server, address) = listening(SoftOptions::default());
    let crowd: Vec<TcpStream> = (0..100).map(|_| raw_connected(&mut server, &address).0).collect();
    drop(crowd);
    let (mut before, mut most) = (0, 0);
    until(&mut [&mut server], "all ended", |ends| {
        let ended = ends[0].events.len();
        most = most.max(ended - before);
        before = ended;
        ended == 100
    });
    assert!(most <= TURNS_PER_POLL, "{most} in one turn");
}

mod acks;
mod deadlines;
mod depth;
mod hostile;
pub(in crate::soft) mod lost_memory;
mod one_sge;
mod pushes;
mod read_timeout;
mod strangers;
