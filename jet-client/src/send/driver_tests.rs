//! The driver over a NIC whose completions and events come in an order that a test chooses.

use super::buffer::BufferPool;
use super::driver::Driver;
use super::error::BufferError;
use super::sender::SenderOptions;
use jet_fabric::memory::{Mapping, Protection, SharedMemory};
use jet_fabric::nic::{
    Access, Completion, ConnectError, Counters, DisconnectReason, Limits, ListenError, MemoryKey, PostError,
    PrivateData, ReadRequest, RegisterError, SendRequest, SrqEntry, Status, Work,
};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_fabric::unix::Doorbell;
use jet_fabric::{Address, Event, Nic, Qp};
use jet_wire::message::hello::{Refusal, Welcome};
use jet_wire::message::{CreditHeader, HEADER_BYTES, HeaderBytes, Versions};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Default)]
struct Script {
    completions: VecDeque<Completion>,
    events: VecDeque<Event>,
    srq: VecDeque<SrqEntry>,
    registered: Vec<Arc<SharedMemory>>,
    /// Of them: what the peer may READ, and may be given.
    shown: Vec<Arc<SharedMemory>>,
    connects: u16,
    /// The headers of its SENDs.
    sent: Vec<HeaderBytes>,
    /// What every SEND is refused with.
    refuses: Option<PostError>,
    disconnected: Vec<Qp>,
}

impl Script {
    /// A header lands in the next entry of the SRQ.
    fn receive(&mut self, qp: Qp, header: &HeaderBytes) {
        let entry = self.srq.pop_front().expect("an entry");
        let memory = &self.registered[entry.header.key.0 as usize];
        let offset = usize::try_from(entry.header.offset).unwrap();
        assert!(offset + HEADER_BYTES <= memory.bytes());
        // SAFETY: within the header area (checked above), whose entry the driver gave away.
        unsafe { memory.base().add(offset).cast::<HeaderBytes>().write(*header) };
        let work = Work::Receive { entry: entry.id, payload_bytes: 0 };
        self.completions.push_back(Completion { qp, work, status: Status::Success });
    }
}

struct ScriptedNic {
    script: Arc<Mutex<Script>>,
    limits: Limits,
    bell: Doorbell,
}

impl ScriptedNic {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }
}

impl Nic for ScriptedNic {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn register(&mut self, memory: &Arc<SharedMemory>, access: Access) -> Result<MemoryKey, RegisterError> {
        let mut script = self.script();
        if access == Access::RemoteRead {
            script.shown.push(Arc::clone(memory));
        }
        script.registered.push(Arc::clone(memory));
        Ok(MemoryKey(u32::try_from(script.registered.len() - 1).unwrap()))
    }

    fn deregister(&mut self, _: MemoryKey) {}

    fn remote_address(&self, _: MemoryKey, offset: u64) -> u64 {
        offset
    }

    fn listen(&mut self, address: &Address) -> Result<Address, ListenError> {
        panic!("a sender listens at {address}")
    }

    fn stop_listening(&mut self) {}

    fn connect(&mut self, _: &Address, _: &PrivateData) -> Result<Qp, ConnectError> {
        self.script().connects += 1;
        Ok(qp(self.script().connects))
    }

    fn accept(&mut self, qp: Qp, _: &PrivateData) -> Result<(), PostError> {
        panic!("a sender accepts {qp:?}")
    }

    fn reject(&mut self, _: Qp, _: &PrivateData) {}

    fn disconnect(&mut self, qp: Qp) {
        self.script().disconnected.push(qp);
    }

    fn post_srq(&mut self, entry: SrqEntry) -> Result<(), PostError> {
        self.script().srq.push_back(entry);
        Ok(())
    }

    fn post_send(&mut self, _: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        let mut script = self.script();
        script.refuses.map_or(Ok(()), Err)?;
        script.sent.push(*request.header);
        Ok(())
    }

    fn post_read(&mut self, qp: Qp, _: ReadRequest<'_>) -> Result<(), PostError> {
        panic!("a sender reads from {qp:?}")
    }

    fn flush(&mut self) {}

    fn poll(&mut self, _: u64, completions: &mut [Completion]) -> usize {
        let mut script = self.script();
        let taken = completions.len().min(script.completions.len());
        completions.iter_mut().zip(script.completions.drain(..taken)).for_each(|(to, from)| *to = from);
        taken
    }

    fn poll_event(&mut self, _: u64) -> Option<Event> {
        self.script().events.pop_front()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn arm(&mut self, _: u64) -> bool {
        true
    }
}

/// The connection of the n-th attempt.
fn qp(attempt: u16) -> Qp {
    Qp { index: 0, generation: attempt.into() }
}

/// A driver that has not begun, to that address.
fn made(address: Address) -> (Driver, Arc<Mutex<Script>>) {
    let script = Arc::new(Mutex::new(Script::default()));
    let limits = SoftNic::new(SoftOptions::default()).unwrap().limits();
    let (bell, _) = Doorbell::pair().unwrap();
    let nic = ScriptedNic { script: Arc::clone(&script), limits, bell };
    let options = SenderOptions::new(address, "store");
    (Driver::new(&options, Box::new(nic)).unwrap(), script)
}

/// A driver that is connecting, on `qp(1)`, with one small message to send.
fn connecting() -> (Driver, Arc<Mutex<Script>>) {
    let (mut driver, script) = made(Address::Tcp("127.0.0.1:1".to_owned()));
    driver.protocol.submit_small(0, 0).unwrap();
    driver.drive();
    assert_eq!(script.lock().unwrap().connects, 1);
    (driver, script)
}

/// The connection stands, and there is no credit.
fn connected(qp: Qp) -> Event {
    connected_to(qp, Versions::SPOKEN)
}

/// The same to a receiver that speaks these versions.
fn connected_to(qp: Qp, versions: Versions) -> Event {
    let welcome = Welcome {
        versions,
        features: 0,
        incarnation: 1,
        credit_limit: 0,
        message_bytes_max: 1 << 20,
        requests_max: 1,
        heartbeat_ms: 0,
    };
    Event::Connected { qp, private_data: PrivateData::new(&welcome.encode()).unwrap(), reads_max: 0 }
}

fn credit() -> HeaderBytes {
    CreditHeader::encode(1, false)
}

#[test]
fn nobody_else_can_write_what_the_peer_is_shown() {
    let (mut driver, script) = made(Address::Shm("/nowhere/nic.sock".into()));
    let buffer = driver.buffers.get(driver.nic.as_mut(), 10_000).unwrap();
    // Copied payloads and long user headers, and a buffer's region.
    let shown = std::mem::take(&mut script.lock().unwrap().shown);
    assert_eq!(shown.len(), 2);
    for memory in shown {
        let writing = Mapping::of_stranger(memory.as_fd(), Protection::ReadWrite, 1 << 30);
        assert!(writing.is_err(), "{memory:?} can be mapped for writing");
        Mapping::of_stranger(memory.as_fd(), Protection::Read, 1 << 30).unwrap();
    }
    // Its owner can.
    driver.copy_area.write(0, b"a payload");
    drop(buffer);
}

#[test]
fn pieces_beyond_all_memory_are_refused() {
    let (mut driver, _script) = made(Address::Tcp("127.0.0.1:1".to_owned()));
    let nic = driver.nic.as_mut();
    let first = driver.buffers.get(nic, 4096).unwrap();
    let second = driver.buffers.get(nic, 4096).unwrap();
    // With what is cut already these would be a whole number of turns around the address space.
    let all = [(4096, usize::MAX / 4096), (8192, usize::MAX / 8192), (1 << 51, 8191), (4096, 1 << 52)];
    for (bytes, count) in all {
        let error = driver.buffers.get_row(nic, bytes, count).expect_err("nobody has so much");
        assert!(matches!(error, BufferError::Memory { .. }), "{bytes} x {count}: {error}");
    }
    drop((first, second));
    for region_bytes in [0, 1, usize::MAX] {
        let mut pool = BufferPool::new(region_bytes);
        assert_eq!(pool.get(nic, 5000).is_ok(), region_bytes < 2);
    }
}

#[test]
fn credit_that_comes_together_with_the_welcome_is_used() {
    let (mut driver, script) = connecting();
    let entries = script.lock().unwrap().srq.len();
    script.lock().unwrap().receive(qp(1), &credit());
    script.lock().unwrap().events.push_back(connected(qp(1)));
    driver.drive();
    let script = script.lock().unwrap();
    assert_eq!((script.sent.len(), script.srq.len()), (1, entries));
    assert_eq!(driver.protocol.stats().headers_stray, 0);
}

#[test]
fn headers_that_come_before_the_welcome_is_told_wait_for_it_in_their_order() {
    let (mut driver, script) = connecting();
    let entries = script.lock().unwrap().srq.len();
    // A recall of what the first one gave: it counts only after it, and is then answered.
    script.lock().unwrap().receive(qp(1), &CreditHeader::encode(9, false));
    script.lock().unwrap().receive(qp(1), &CreditHeader::encode(2, true));
    driver.drive();
    assert_eq!(script.lock().unwrap().srq.len(), entries - 2, "their entries are kept");
    assert_eq!(script.lock().unwrap().sent.len(), 0);
    script.lock().unwrap().events.push_back(connected(qp(1)));
    driver.drive();
    let script = script.lock().unwrap();
    assert_eq!((script.sent.len(), script.srq.len()), (2, entries), "the recall's answer and the message");
    let stats = driver.protocol.stats();
    assert_eq!((stats.recalls, stats.headers_stray), (1, 0));
}

#[test]
fn headers_that_no_welcome_follows_are_counted_and_their_entries_come_back() {
    let refusal = PrivateData::new(&Refusal::TooManyPeers.encode()).unwrap();
    for end in [
        Event::Rejected { qp: qp(1), private_data: refusal },
        Event::Disconnected { qp: qp(1), reason: DisconnectReason::Peer },
    ] {
        let (mut driver, script) = connecting();
        let entries = script.lock().unwrap().srq.len();
        script.lock().unwrap().receive(qp(1), &credit());
        driver.drive();
        assert_eq!(driver.protocol.stats().headers_stray, 0);
        script.lock().unwrap().events.push_back(end);
        driver.drive();
        assert_eq!(driver.protocol.stats().headers_stray, 1);
        assert_eq!(script.lock().unwrap().srq.len(), entries);
    }
}

#[test]
fn headers_of_another_connection_give_this_one_nothing() {
    let (mut driver, script) = connecting();
    script.lock().unwrap().events.push_back(connected(qp(1)));
    driver.drive();
    script.lock().unwrap().receive(qp(7), &credit());
    driver.drive();
    assert_eq!(script.lock().unwrap().sent.len(), 0);
    assert_eq!(driver.protocol.stats().headers_stray, 1);
}

#[test]
fn a_nic_that_refuses_a_message_for_good_ends_the_connection_and_the_message_goes_again() {
    for (error, ends) in [
        (PostError::LocalProtection, true),
        (PostError::Limit, true),
        // These pass, or the connection is over anyway.
        (PostError::QueueFull, false),
        (PostError::Stale, false),
    ] {
        let (mut driver, script) = connecting();
        script.lock().unwrap().refuses = Some(error);
        script.lock().unwrap().receive(qp(1), &credit());
        script.lock().unwrap().events.push_back(connected(qp(1)));
        driver.drive();
        let disconnected: &[Qp] = if ends { &[qp(1)] } else { &[] };
        assert_eq!(script.lock().unwrap().disconnected, disconnected, "{error}");
        let over = Event::Disconnected { qp: qp(1), reason: DisconnectReason::Local };
        script.lock().unwrap().events.push_back(over);
        driver.drive();
        assert_eq!(script.lock().unwrap().connects, 2, "{error}: it connects again");
        // The next connection's NIC takes it.
        script.lock().unwrap().refuses = None;
        script.lock().unwrap().receive(qp(2), &credit());
        script.lock().unwrap().events.push_back(connected(qp(2)));
        driver.drive();
        assert_eq!(script.lock().unwrap().sent.len(), 1, "{error}: the message goes again");
    }
}

#[test]
fn what_is_sent_has_the_version_that_was_agreed_on() {
    for ((lowest, highest), agreed) in [((1, 1), 1), ((1, 2), 2), ((2, 9), 2)] {
        let (mut driver, script) = connecting();
        let mut recall = CreditHeader::encode(2, true);
        let mut credit = CreditHeader::encode(9, false);
        credit.set_version(agreed);
        recall.set_version(agreed);
        script.lock().unwrap().events.push_back(connected_to(qp(1), Versions::new(lowest, highest).unwrap()));
        script.lock().unwrap().receive(qp(1), &credit);
        script.lock().unwrap().receive(qp(1), &recall);
        driver.drive();
        let sent: Vec<_> = script.lock().unwrap().sent.iter().map(HeaderBytes::version).collect();
        assert_eq!(sent, [agreed, agreed], "the recall's answer and the message");
        assert_eq!(driver.protocol.stats().malformed, 0);
    }
}

#[test]
fn a_receiver_without_a_version_in_common_is_not_spoken_with() {
    let theirs = Versions::new(7, 9).unwrap();
    let refusal = PrivateData::new(&Refusal::Version(theirs).encode()).unwrap();
    for event in [Event::Rejected { qp: qp(1), private_data: refusal }, connected_to(qp(1), theirs)] {
        let (mut driver, script) = connecting();
        script.lock().unwrap().events.push_back(event);
        script.lock().unwrap().receive(qp(1), &credit());
        driver.drive();
        let failure = driver.take_failure().expect("it fails").to_string();
        assert!(failure.contains("speaks 7 to 9, this end 1 to 2"), "{failure}");
        assert!(script.lock().unwrap().sent.is_empty());
    }
}
