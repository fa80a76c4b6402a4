//! Tests of a sender against a receiver's end on a software NIC, over `shm:` and over `tcp:`.

use crate::send::{
    AckStatus, Completion, Envelope, NotSent, RetryPolicy, SendConnectError, SendError, Sender, SenderOptions,
};
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{
    Access, Completion as NicCompletion, MemoryKey, Payload, PrivateData, ReadRequest, SendRequest, Sge,
    SrqEntry, Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_fabric::{Address, Clock, Event, Nic, Qp};
use jet_wire::message::hello::{Hello, Refusal, Welcome, features};
use jet_wire::message::{
    AckHeader, AckRange, FromSender, HEADER_BYTES, HeaderBytes, Versions, WIRE_VERSION, parse_from_sender,
};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender as Outbox, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const ENTRIES: u32 = 32;
const READ_BYTES: usize = 256 << 10;
pub(super) const LONG: Duration = Duration::from_secs(30);

/// A message that arrived.
#[derive(Debug, PartialEq, Eq)]
struct Arrived {
    sequence: u64,
    tag: u64,
    redelivered: bool,
    user_header: Vec<u8>,
    bytes: Vec<u8>,
    crc32c: Option<u32>,
}

/// Behaviour of the receiver for one message. Later messages, for which the test gives none, are consumed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behaviour {
    Answer(AckStatus),
    /// Keeps the message, and never answers.
    Keep,
    /// Disconnects instead of answering.
    HangUp,
}

struct FakeReceiver {
    nic: SoftNic,
    pool: Arc<SharedMemory>,
    pool_key: MemoryKey,
    headers: Arc<SharedMemory>,
    headers_key: MemoryKey,
    reads: HashMap<u64, Arrived>,
    behaviours: std::vec::IntoIter<Behaviour>,
    refusal: Option<Refusal>,
    /// Features that the receiver's welcomes offer.
    features: u32,
    arrived: Outbox<Arrived>,
}

pub(super) struct Running {
    address: Address,
    arrived: Inbox<Arrived>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn start(address: &Address, behaviours: Vec<Behaviour>, refusal: Option<Refusal>) -> Running {
    start_with(address, behaviours, refusal, features::ALL)
}

fn start_with(
    address: &Address,
    behaviours: Vec<Behaviour>,
    refusal: Option<Refusal>,
    features: u32,
) -> Running {
    let mut nic = SoftNic::new(SoftOptions::default()).unwrap();
    let slabs = ENTRIES as usize * SLAB_BYTES + READ_BYTES;
    let pool = Arc::new(SharedMemory::new("jet-test", slabs, false).unwrap());
    let headers = Arc::new(SharedMemory::new("jet-test", ENTRIES as usize * HEADER_BYTES, false).unwrap());
    let pool_key = nic.register(&pool, Access::LocalWrite).unwrap();
    let headers_key = nic.register(&headers, Access::LocalWrite).unwrap();
    let address = nic.listen(address).unwrap();
    let (outbox, arrived) = channel();
    let mut receiver = FakeReceiver {
        nic,
        pool,
        pool_key,
        headers,
        headers_key,
        reads: HashMap::new(),
        behaviours: behaviours.into_iter(),
        refusal,
        features,
        arrived: outbox,
    };
    (0..ENTRIES).for_each(|entry| receiver.post(entry));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || receiver.run(&stopped));
    Running { address, arrived, stop, thread: Some(thread) }
}

impl FakeReceiver {
    fn run(&mut self, stop: &AtomicBool) {
        let mut completions = [NicCompletion::UNUSED; 16];
        let clock = Clock::start();
        while !stop.load(Ordering::Relaxed) {
            let now_ns = clock.now_ns();
            let taken = self.nic.poll(now_ns, &mut completions);
            for completion in &completions[..taken] {
                self.handle(*completion);
            }
            while let Some(event) = self.nic.poll_event(now_ns) {
                self.handle_event(event);
            }
            self.nic.flush();
            if taken == 0 && self.nic.arm(now_ns) {
                let bound = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                poll(&mut [PollFd::from_borrowed_fd(self.nic.wait_fd(), PollFlags::IN)], Some(&bound))
                    .unwrap();
            }
        }
    }

    fn post(&mut self, entry: u32) {
        let header_offset = u64::from(entry) * HEADER_BYTES as u64;
        let header =
            Sge { key: self.headers_key, offset: header_offset, bytes: u32::try_from(HEADER_BYTES).unwrap() };
        let offset = u64::from(entry) * SLAB_BYTES as u64;
        let payload = Some(Sge { key: self.pool_key, offset, bytes: SLAB_BYTES_U32 });
        self.nic.post_srq(SrqEntry { id: entry, header, payload }).unwrap();
    }

    fn handle_event(&mut self, event: Event) {
        let Event::ConnectRequest { qp, private_data, .. } = event else { return };
        let hello = Hello::decode(private_data.as_slice()).unwrap();
        assert_eq!(hello.app.as_str(), "store");
        if let Some(refusal) = self.refusal {
            return self.nic.reject(qp, &PrivateData::new(&refusal.encode()).unwrap());
        }
        let welcome = Welcome {
            versions: Versions::SUPPORTED,
            features: self.features,
            incarnation: 1,
            credit_limit: 8,
            message_bytes_max: READ_BYTES as u64,
            requests_max: 1,
            heartbeat_ms: 0,
        };
        // A sender that gave up meanwhile leaves a stale connection, which is no error here.
        let _ = self.nic.accept(qp, &PrivateData::new(&welcome.encode()).unwrap());
    }

    fn handle(&mut self, completion: NicCompletion) {
        match completion.work {
            Work::Receive { entry, payload_bytes } if completion.status == Status::Success => {
                self.receive(completion.qp, entry, payload_bytes as usize);
            }
            Work::Read { id } if completion.status == Status::Success => {
                let mut arrived = self.reads.remove(&id).unwrap();
                arrived.bytes = self.bytes(ENTRIES as usize * SLAB_BYTES, arrived.bytes.len());
                self.answer(completion.qp, arrived);
            }
            _ => {}
        }
    }

    fn receive(&mut self, qp: Qp, entry: u32, payload_bytes: usize) {
        // SAFETY: the NIC completed the entry and leaves it alone until it is posted again.
        let header = unsafe { self.headers.base().cast::<HeaderBytes>().add(entry as usize).read_volatile() };
        let payload = self.bytes(entry as usize * SLAB_BYTES, payload_bytes);
        self.post(entry);
        match parse_from_sender(WIRE_VERSION, &header, payload_bytes).unwrap() {
            FromSender::Small(small) => {
                let arrived = Arrived {
                    sequence: small.sequence.get(),
                    tag: small.tag.get(),
                    redelivered: small.redelivered(),
                    user_header: small.user_header().to_vec(),
                    bytes: payload,
                    crc32c: small.crc32c(),
                };
                self.answer(qp, arrived);
            }
            FromSender::Request(request) => {
                let length = u32::try_from(request.length.get()).unwrap();
                let arrived = Arrived {
                    sequence: request.sequence.get(),
                    tag: request.tag.get(),
                    redelivered: request.redelivered(),
                    user_header: request.inline_user_header().map_or(payload, <[u8]>::to_vec),
                    bytes: vec![0; length as usize],
                    crc32c: request.crc32c(),
                };
                let offset = u64::from(ENTRIES) * SLAB_BYTES as u64;
                let scatter = [Sge { key: self.pool_key, offset, bytes: length }];
                let (address, key) = (request.address.get(), request.key.get());
                let id = arrived.sequence;
                self.reads.insert(id, arrived);
                // The connection may have ended meanwhile; then the request is sent again.
                let _ = self.nic.post_read(qp, ReadRequest { id, address, key, scatter: &scatter });
            }
            FromSender::CreditReturn(_) => panic!("nobody recalled"),
            FromSender::Cancel(_) => panic!("nobody took anything back"),
        }
    }

    fn bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: within the pool, and the work that wrote it has completed.
        unsafe { std::slice::from_raw_parts(self.pool.base().add(offset), bytes).to_vec() }
    }

    fn answer(&mut self, qp: Qp, arrived: Arrived) {
        let sequence = arrived.sequence;
        let behaviour = self.behaviours.next().unwrap_or(Behaviour::Answer(AckStatus::Consumed));
        let _ = self.arrived.send(arrived);
        match behaviour {
            Behaviour::HangUp => self.nic.disconnect(qp),
            Behaviour::Keep => {}
            Behaviour::Answer(status) => {
                // Credit is not tested here: there is always enough.
                let header = AckHeader::encode(u64::MAX, &[AckRange { first: sequence, count: 1, status }]);
                let request = SendRequest { id: 0, header: &header, payload: Payload::None };
                // A connection that hung up meanwhile needs no answer.
                let _ = self.nic.post_send(qp, request);
            }
        }
    }
}

/// Runs a test over both transports.
pub(super) fn over_both(behaviours: &[Behaviour], test: impl Fn(&Running, SenderOptions)) {
    let folder = tempfile::tempdir().unwrap();
    let shm = Address::Shm(folder.path().join("nic.sock"));
    for address in [shm, Address::Tcp("127.0.0.1:0".to_owned())] {
        let running = start(&address, behaviours.to_vec(), None);
        test(&running, SenderOptions::new(running.address.clone(), "store"));
    }
}

fn wait(sender: &mut Sender) -> Completion {
    sender.wait_timeout(LONG).unwrap().expect("an end within half a minute")
}

#[test]
fn small_and_large_messages_arrive_as_they_were_and_end_once() {
    over_both(&[], |running, options| {
        let mut sender = Sender::connect(&options.crc(true)).unwrap();
        let page: Vec<u8> = (0..=255).rev().cycle().take(SLAB_BYTES).collect();
        sender.send_small(Envelope::new(1).user_header(b"empty"), b"").unwrap();
        sender.send_small(Envelope::new(2).user_header(&[9; 96]), &page).unwrap();
        let mut buffer = sender.buffer(100_000).unwrap();
        for (byte, value) in buffer.iter_mut().zip((0..=250u8).cycle()) {
            *byte = value;
        }
        let large = buffer.to_vec();
        let long_header = [5; 256];
        let ticket = sender.send(Envelope::new(3).user_header(&long_header).class(2), buffer).unwrap();
        let mut buffer = sender.buffer(64).unwrap();
        buffer.copy_from_slice(&[1; 64]);
        buffer.set_length(60);
        sender.send_small_buffer(4, buffer).unwrap();
        let mut ends = Vec::new();
        while let Some(completion) = sender.wait_timeout(LONG).unwrap() {
            assert_eq!(completion.status, AckStatus::Consumed);
            assert_eq!(completion.buffer.is_some(), completion.ticket >= ticket);
            ends.push(completion.ticket.0);
        }
        ends.sort_unstable();
        assert_eq!(ends, [1, 2, 3, 4]);
        let mut arrived: Vec<_> = running.arrived.try_iter().collect();
        arrived.sort_by_key(|arrived| arrived.sequence);
        let expected = [
            (1, b"empty".to_vec(), Vec::new()),
            (2, vec![9; 96], page.clone()),
            (3, long_header.to_vec(), large),
            (4, Vec::new(), vec![1; 60]),
        ];
        assert_eq!(arrived.len(), 4);
        for (arrived, (sequence, user_header, bytes)) in arrived.into_iter().zip(expected) {
            assert_eq!((arrived.sequence, arrived.tag, arrived.redelivered), (sequence, sequence, false));
            assert_eq!(arrived.user_header, user_header);
            assert_eq!(arrived.crc32c, Some(crc32c::crc32c(&bytes)));
            assert!(arrived.bytes == bytes, "message {sequence} arrived changed");
        }
        sender.close_timeout(LONG).unwrap();
        assert!(matches!(sender.send_small(1, b""), Err(SendError::Submit(_))));
    });
}

#[test]
fn where_the_receiver_checks_none_no_checksum_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Shm(folder.path().join("nic.sock"));
    for offered in [features::CRC32C, features::CONGESTION] {
        let running = start_with(&address, Vec::new(), None, offered);
        let options = SenderOptions::new(running.address.clone(), "store").crc(true);
        let mut sender = Sender::connect(&options).unwrap();
        let checks = offered == features::CRC32C;
        assert_eq!(sender.sends_checksums(), checks);
        sender.send_small(1, b"bytes").unwrap();
        assert_eq!(wait(&mut sender).status, AckStatus::Consumed);
        let arrived = running.arrived.recv_timeout(LONG).unwrap();
        assert_eq!(arrived.crc32c, checks.then(|| crc32c::crc32c(b"bytes")));
        assert_eq!(sender.stats().unchecked, u64::from(!checks));
    }
}

#[test]
fn who_polls_rarely_learns_of_an_end_by_the_next_polls() {
    // A software NIC over `shm:` looks at its sockets once in 64 polls, and the test begins at a random one
    // of them. Six runs are enough not to depend on that.
    (0..6).for_each(|_| over_both(&[], who_polls_rarely));
}

fn who_polls_rarely(running: &Running, options: SenderOptions) {
    let mut sender = Sender::connect(&options).unwrap();
    sender.send_small(1, b"bytes").unwrap();
    assert_eq!(wait(&mut sender).status, AckStatus::Consumed);
    // These polls include the look that follows a sleep.
    (0..3).for_each(|_| assert!(sender.poll().is_none()));
    running.stop.store(true, Ordering::Relaxed);
    while running.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
        std::thread::yield_now();
    }
    // The receiver's NIC is gone with its thread. An end that is under way takes a moment more, and over
    // `tcp:` a turn of this end's helper. Without regard to the time between polls, `shm:` would look in
    // one poll of 64. So few polls must be enough. The pause between them grows to what a busy machine may
    // need: 16 polls take more than half a minute.
    let mut pause = Duration::from_millis(2);
    let mut polls = 0;
    while sender.is_connected() {
        polls += 1;
        assert!(polls <= 16, "the polls after a pause see nothing of it");
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_secs(8));
        assert!(sender.poll().is_none());
    }
}

#[test]
fn many_in_flight_keep_their_order_and_buffers_are_used_again() {
    over_both(&[], |running, options| {
        let mut sender = Sender::connect(&options.in_flight_max(16)).unwrap();
        let mut sent = 0u64;
        let mut ended = 0;
        while ended < 500 {
            while sent < 500 {
                match sender.send_small(sent, &sent.to_le_bytes()) {
                    Ok(_) => sent += 1,
                    Err(error) if error.is_would_block() => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(wait(&mut sender).status, AckStatus::Consumed);
            ended += 1;
        }
        let tags: Vec<_> = running.arrived.try_iter().map(|arrived| arrived.tag).collect();
        assert_eq!(tags, (0..500).collect::<Vec<_>>());
        let first = sender.buffer(5000).unwrap();
        let place = first.as_ptr();
        drop(first);
        assert_eq!(sender.buffer(8000).unwrap().as_ptr(), place);
    });
}

#[test]
fn a_lost_connection_is_made_again_and_the_message_is_marked() {
    let behaviours = [Behaviour::HangUp, Behaviour::HangUp];
    over_both(&behaviours, |running, options| {
        let mut sender = Sender::connect(&options).unwrap();
        let mut buffer = sender.buffer(10_000).unwrap();
        buffer.fill(3);
        sender.send(7, buffer).unwrap();
        assert_eq!(wait(&mut sender).status, AckStatus::Consumed);
        let marks: Vec<_> =
            running.arrived.try_iter().map(|arrived| (arrived.sequence, arrived.redelivered)).collect();
        assert_eq!(marks, [(1, false), (1, true), (1, true)]);
        assert_eq!(sender.stats().protocol.connections, 3);
    });
}

#[test]
fn rejections_are_told_and_busy_is_retried() {
    let behaviours = [
        Behaviour::Answer(AckStatus::Rejected(28)),
        Behaviour::Answer(AckStatus::Busy),
        Behaviour::Answer(AckStatus::NoApp),
    ];
    over_both(&behaviours, |_, options| {
        let retry = RetryPolicy::default().on_no_app(false);
        let mut sender = Sender::connect(&options.retry(retry)).unwrap();
        sender.send_small(1, b"a").unwrap();
        assert_eq!(wait(&mut sender).status, AckStatus::Rejected(28));
        sender.send_small(1, b"b").unwrap();
        assert_eq!(wait(&mut sender).status, AckStatus::NoApp);
        assert_eq!(sender.stats().protocol.retried, 1);
        assert!(sender.wait().unwrap().is_none(), "nothing is in flight");
    });
}

#[test]
fn a_receiver_that_is_gone_for_good_ends_everything_with_peer_lost() {
    over_both(&[Behaviour::HangUp; 1000], |_, options| {
        let mut sender = Sender::connect(&options.reconnect_for(Duration::from_millis(50))).unwrap();
        let buffer = sender.buffer(10).unwrap();
        sender.send(1, buffer).unwrap();
        let completion = wait(&mut sender);
        assert_eq!(completion.status, AckStatus::PeerLost);
        assert_eq!(completion.buffer.map(|buffer| buffer.len()), Some(10));
    });
}

#[test]
fn what_cannot_be_sent_is_refused_with_its_buffer() {
    over_both(&[], |_, options| {
        let mut sender = Sender::connect(&options.clone()).unwrap();
        assert!(matches!(
            sender.send_small(Envelope::new(0).user_header(&[0; 97]), b""),
            Err(SendError::UserHeader { bytes: 97, max: 96 })
        ));
        let refused = sender.send_small(0, &[0; 4097]).unwrap_err();
        assert!(matches!(refused, SendError::NotSmall { bytes: 4097 }));
        let buffer = sender.buffer(4097).unwrap();
        let NotSent { error, mut buffer } = sender.send_small_buffer(0, buffer).unwrap_err();
        assert!(matches!(error, SendError::NotSmall { bytes: 4097 }));
        buffer.set_length(0);
        let NotSent { error, mut buffer } = sender.send(0, buffer).unwrap_err();
        assert!(matches!(error, SendError::Empty));
        buffer.set_length(1);
        let long_header = Envelope::new(0).user_header(&[0; 257]);
        let NotSent { error, buffer } = sender.send(long_header, buffer).unwrap_err();
        assert!(matches!(error, SendError::UserHeader { bytes: 257, max: 256 }));
        let mut other = Sender::connect(&options).unwrap();
        assert!(matches!(other.send(0, buffer).unwrap_err().error, SendError::ForeignBuffer));
        let buffer = sender.buffer(READ_BYTES + 1).unwrap();
        let not_sent = sender.send(0, buffer).unwrap_err();
        assert!(not_sent.to_string().contains("message_bytes_max"), "{not_sent}");
        assert_eq!(sender.stats().in_flight, 0);
    });
}

/// Returns a socket, and its port on which nobody listens while the socket lives.
fn silent_port() -> (std::os::fd::OwnedFd, std::net::SocketAddr) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

/// Makes a listener at this path with room for one connection that waits, and connections until there is no
/// more room.
fn full_listener(path: &std::path::Path) -> (std::os::fd::OwnedFd, Vec<std::os::fd::OwnedFd>) {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen};
    let socket = || {
        let flags = SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    };
    let (listener, name) = (socket(), SocketAddrUnix::new(path).unwrap());
    bind(&listener, &name).unwrap();
    listen(&listener, 1).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = socket();
        match connect(&client, &name) {
            Ok(()) => waiting.push(client),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN);
                return (listener, waiting);
            }
        }
    }
}

#[test]
fn a_receiver_with_a_full_queue_is_busy_and_not_absent_and_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic.sock");
    let (listener, waiting) = full_listener(&path);
    let options = SenderOptions::new(Address::Shm(path), "store").connect_timeout(Duration::from_millis(50));
    let begin = std::time::Instant::now();
    let error = Sender::connect(&options.clone()).unwrap_err();
    assert!(begin.elapsed() >= options.connect_timeout, "it goes on until its time is over");
    assert!(matches!(error, SendConnectError::Busy(_)) && error.is_passing(), "{error:?}");
    assert!(!error.to_string().contains("jet daemon"), "{error}");
    // As soon as there is room, the sender's request comes by itself.
    let sender =
        std::thread::spawn(move || Sender::connect(&options.connect_timeout(Duration::from_secs(60))));
    let mut accepted = Vec::new();
    while accepted.len() <= waiting.len() {
        assert!(!sender.is_finished(), "it goes on");
        match rustix::net::accept(&listener) {
            Ok(socket) => accepted.push(socket),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    let mut request = [0; 16];
    rustix::io::read(accepted.last().unwrap(), &mut request).unwrap();
    assert_eq!(&request[..4], b"JSHM");
    drop((listener, accepted));
    sender.join().unwrap().unwrap_err();
}

#[test]
fn who_cannot_connect_hears_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let shm = Address::Shm(folder.path().join("nic.sock"));
    // The test holds this port, so no other process listens there.
    let (socket, closed) = silent_port();
    for address in [shm.clone(), Address::Tcp(closed.to_string())] {
        let error = Sender::connect(&SenderOptions::new(address, "store")).unwrap_err();
        assert!(matches!(error, SendConnectError::Nobody { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("is jetd running there?") && text.contains("jet daemon"), "{text}");
    }
    drop(socket);
    let running = start(&shm, Vec::new(), Some(Refusal::TooManyPeers));
    let error = Sender::connect(&SenderOptions::new(running.address.clone(), "store")).unwrap_err();
    assert!(error.to_string().contains("limits.peers"), "{error}");
    let error = Sender::connect(&SenderOptions::new(running.address.clone(), "no name")).unwrap_err();
    assert!(matches!(error, SendConnectError::App(_)), "{error}");
    #[cfg(not(feature = "verbs"))]
    {
        let rdma = Address::Rdma("10.0.0.1:7471".to_owned());
        let error = Sender::connect(&SenderOptions::new(rdma, "store")).unwrap_err();
        assert!(matches!(error, SendConnectError::WrongFabric { .. }), "{error}");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn ends_are_awaited() {
    over_both(&[Behaviour::HangUp, Behaviour::HangUp], |_, options| {
        // The runtime has no timers, although lost connections are made again after waits.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let mut sender = Sender::connect(&options.spin_max(Duration::ZERO)).unwrap();
        sender.send_small(1, b"a").unwrap();
        let completion = runtime.block_on(sender.wait_async()).unwrap().expect("one is in flight");
        assert_eq!(completion.status, AckStatus::Consumed);
        assert!(runtime.block_on(sender.wait_async()).unwrap().is_none());
    });
}

#[test]
fn times_without_an_end_are_no_limit() {
    over_both(&[], |_, options| {
        let forever = Duration::MAX;
        let options = options.connect_timeout(forever).reconnect_for(forever).receiver_timeout(forever);
        let options = options.spin_max(forever).retry(RetryPolicy::all_for(forever));
        let mut sender = Sender::connect(&options).unwrap();
        sender.send_small(1, b"a").unwrap();
        // The end arrives during the wait: nothing was polled before.
        let end = sender.wait_timeout(forever).unwrap().expect("one is in flight");
        assert_eq!(end.status, AckStatus::Consumed);
        sender.send_small(2, b"b").unwrap();
        sender.drain_timeout(forever).unwrap();
        assert!(sender.poll().is_some());
        // A long limit for spinning does not prolong the wait.
        sender.send_small(3, b"c").unwrap();
        sender.close_timeout(forever).unwrap();
        assert!(sender.poll().is_some());
    });
}
