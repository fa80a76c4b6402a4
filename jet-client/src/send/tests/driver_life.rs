//! Tests of a sender's life over a NIC in memory, with time as a number: no thread, no socket, no clock.

use super::scripted_nic::{Script, ScriptedNic, qp};
use crate::send::driver::{Driver, Ended, NicSource, RECEIVE_ENTRIES};
use crate::send::envelope::Envelope;
use crate::send::error::SendConnectError;
use crate::send::options::SenderOptions;
use jet_fabric::nic::{PrivateData, Status, Work};
use jet_fabric::{Address, Event, Nic};
use jet_wire::message::hello::Welcome;
use jet_wire::message::{
    AckHeader, AckRange, AckStatus, CreditHeader, FromSender, HeaderBytes, Versions, WIRE_VERSION,
    parse_from_sender,
};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const HEARTBEAT: u64 = 5 * SECOND;

/// Devices that exist one after the other, each with a script of its own.
#[derive(Clone, Default)]
struct Devices {
    scripts: Arc<Mutex<Vec<Arc<Mutex<Script>>>>>,
    /// Number of the next attempts to open a device that fail.
    absent: Arc<Mutex<u32>>,
}

impl Devices {
    fn next(&self) -> Box<dyn Nic> {
        let script = Arc::new(Mutex::new(Script::default()));
        self.scripts.lock().unwrap().push(Arc::clone(&script));
        Box::new(ScriptedNic::new(&script))
    }

    fn count(&self) -> usize {
        self.scripts.lock().unwrap().len()
    }
}

impl NicSource for Devices {
    fn open(&mut self) -> Result<Box<dyn Nic>, SendConnectError> {
        let mut absent = self.absent.lock().unwrap();
        if *absent > 0 {
            *absent -= 1;
            return Err(SendConnectError::Option("no device"));
        }
        Ok(self.next())
    }

    fn stand_in(&mut self) -> io::Result<Box<dyn Nic>> {
        Ok(self.next())
    }
}

/// A sender, and its receiver as the test plays it.
struct Life {
    driver: Driver,
    devices: Devices,
    now_ns: u64,
}

impl Life {
    fn new() -> Self {
        let devices = Devices::default();
        let options = SenderOptions::new(Address::Tcp("nowhere:1".to_owned()), "store");
        let driver = Driver::new(&options, 9, devices.next(), Box::new(devices.clone())).unwrap();
        Self { driver, devices, now_ns: 0 }
    }

    /// Makes a sender whose first connection is established.
    fn connected() -> Self {
        let mut life = Self::new();
        life.drive();
        life.accept(1);
        assert!(life.driver.is_connected());
        life
    }

    /// Calls `act` on the script of the newest device.
    fn script<T>(&self, act: impl FnOnce(MutexGuard<'_, Script>) -> T) -> T {
        let script = Arc::clone(self.devices.scripts.lock().unwrap().last().unwrap());
        act(script.lock().unwrap())
    }

    fn drive(&mut self) {
        self.driver.drive(self.now_ns);
    }

    /// Advances the time to the driver's timeout, and drives. What the driver does then may be due at once
    /// again, but not for ever.
    fn sleep(&mut self) {
        let at_ns = self.driver.next_timeout_ns().expect("something is due");
        self.now_ns = self.now_ns.max(at_ns);
        for _ in 0..3 {
            self.drive();
            if self.driver.next_timeout_ns().is_none_or(|next_ns| next_ns > at_ns) {
                return;
            }
        }
        panic!("what was due is still to be done");
    }

    /// Accepts the device's attempt number `attempt` to connect, as the receiver.
    fn accept(&mut self, attempt: u16) {
        let welcome = Welcome {
            versions: Versions::SUPPORTED,
            features: 0,
            incarnation: 1,
            credit_limit: 8,
            message_bytes_max: 1 << 20,
            requests_max: 4,
            heartbeat_ms: u16::try_from(HEARTBEAT / MS).unwrap(),
        };
        let private_data = PrivateData::new(&welcome.encode()).unwrap();
        let event = Event::Connected { qp: qp(attempt), private_data, reads_max: 0 };
        self.script(|mut script| script.events.push_back(event));
        self.drive();
    }

    fn say(&mut self, attempt: u16, header: &HeaderBytes) {
        self.script(|mut script| script.receive(qp(attempt), header));
        self.drive();
    }

    fn acknowledge(&mut self, attempt: u16, first: u64, count: u16) {
        self.script(|mut script| script.complete_sends(Status::Success));
        let range = AckRange { first, count, status: AckStatus::Consumed };
        self.say(attempt, &AckHeader::encode(8, &[range]));
    }

    /// Takes what was sent since the last call: each message's number, whether it is marked redelivered, and
    /// its payload.
    fn sent(&mut self) -> Vec<(u64, bool, Vec<u8>)> {
        let sent = self.script(|mut script| std::mem::take(&mut script.sent));
        let read = sent.into_iter().map(|(header, payload)| {
            match parse_from_sender(WIRE_VERSION, &header, payload.len()).unwrap() {
                FromSender::Small(small) => (small.sequence.get(), small.redelivered(), payload),
                FromSender::Request(request) => (request.sequence.get(), request.redelivered(), payload),
                FromSender::CreditReturn(_) => panic!("nobody recalled"),
                FromSender::Cancel(_) => panic!("nobody took anything back"),
            }
        });
        read.collect()
    }

    fn ends(&mut self) -> Vec<(u64, AckStatus)> {
        let mut ends = Vec::new();
        while let Some(Ended { ticket, status, .. }) = self.driver.poll_end() {
            ends.push((ticket.0, status));
        }
        ends
    }
}

#[test]
fn a_message_is_sent_and_ends_when_it_is_acknowledged() {
    let mut life = Life::new();
    life.drive();
    assert_eq!(life.script(|script| (script.connects, script.srq.len())), (1, usize::from(RECEIVE_ENTRIES)));
    assert!(!life.driver.is_connected());
    life.now_ns = 3 * MS;
    life.accept(1);
    assert!(life.driver.is_connected());
    life.now_ns = 4 * MS;
    let ticket =
        life.driver.send_small(life.now_ns, Envelope::new(7).user_header(b"user"), b"a payload").unwrap();
    assert_eq!(life.sent(), [(ticket.0, false, b"a payload".to_vec())]);
    assert!(life.driver.poll_end().is_none());
    life.now_ns = 9 * MS;
    life.acknowledge(1, ticket.0, 1);
    let end = life.driver.poll_end().expect("it ended");
    assert_eq!((end.ticket, end.status, end.submitted_ns), (ticket, AckStatus::Consumed, 4 * MS));
    assert!(life.driver.poll_end().is_none());
    life.driver.close();
    life.drive();
    assert_eq!(life.script(|script| script.disconnects.clone()), [qp(1)]);
    life.script(|mut script| script.lose(qp(1)));
    life.drive();
    assert!(life.driver.is_closed());
}

#[test]
fn what_was_not_acknowledged_is_sent_again_on_the_next_connection() {
    let mut life = Life::connected();
    let mut buffer = life.driver.buffer(8192).unwrap();
    buffer.fill(7);
    life.driver.send_small(0, 1, b"one").unwrap();
    life.driver.send(0, 2, buffer).unwrap();
    life.driver.send_small(0, 3, b"three").unwrap();
    let numbers: Vec<_> =
        life.sent().iter().map(|(number, redelivered, _)| (*number, *redelivered)).collect();
    assert_eq!(numbers, [(1, false), (2, false), (3, false)]);
    life.acknowledge(1, 1, 1);
    assert_eq!(life.ends(), [(1, AckStatus::Consumed)]);

    // The connection is lost. The first attempt is made at once, the next ones after waits.
    life.script(|mut script| script.lose(qp(1)));
    life.drive();
    assert!(!life.driver.is_connected());
    assert_eq!(life.script(|script| script.connects), 2);
    life.script(|mut script| script.lose(qp(2)));
    life.drive();
    let due_ns = life.driver.next_timeout_ns().expect("another attempt");
    life.now_ns = due_ns - 1;
    life.drive();
    assert_eq!(life.script(|script| script.connects), 2, "not before its time");
    life.sleep();
    assert_eq!((life.now_ns, life.script(|script| script.connects)), (due_ns, 3));
    assert!(life.sent().is_empty());

    life.accept(3);
    let mut sent = life.sent();
    sent.sort_unstable();
    assert_eq!(sent, [(2, true, vec![]), (3, true, b"three".to_vec())]);
    life.acknowledge(3, 2, 2);
    let mut ends = life.ends();
    ends.sort_unstable_by_key(|(number, _)| *number);
    assert_eq!(ends, [(2, AckStatus::Consumed), (3, AckStatus::Consumed)]);
    assert_eq!((life.driver.stats().redelivered, life.driver.stats().connections), (2, 2));
}

#[test]
fn a_receiver_that_says_nothing_is_left_and_one_that_says_a_word_is_not() {
    let mut life = Life::connected();
    life.driver.send_small(0, 1, b"one").unwrap();
    assert_eq!(life.sent().len(), 1);
    // An hour of heartbeats: each repeats the credit that the sender knows of.
    while life.now_ns < 3600 * SECOND {
        life.now_ns += HEARTBEAT;
        life.say(1, &CreditHeader::encode(8, false));
    }
    assert!(life.script(|script| script.disconnects.is_empty()));
    let silent_since = life.now_ns;
    while life.script(|script| script.disconnects.is_empty()) {
        life.sleep();
        assert!(life.now_ns < silent_since + 60 * SECOND, "it waits for ever");
    }
    assert!(life.now_ns >= silent_since + 30 * SECOND, "{}", life.now_ns - silent_since);
    assert_eq!(life.driver.stats().receiver_timeouts, 1);
    life.script(|mut script| script.lose(qp(1)));
    life.drive();
    assert_eq!(life.script(|script| script.connects), 2, "another connection");
    life.accept(2);
    assert_eq!(life.sent(), [(1, true, b"one".to_vec())]);
    life.acknowledge(2, 1, 1);
    assert_eq!(life.ends(), [(1, AckStatus::Consumed)]);
}

#[test]
fn without_a_connection_everything_ends_in_time() {
    let mut life = Life::connected();
    life.driver.send_small(0, 1, b"one").unwrap();
    life.script(|mut script| script.lose(qp(1)));
    life.drive();
    while life.driver.unfinished() > 0 {
        assert!(life.now_ns <= 31 * SECOND, "it tries for ever");
        let attempt = life.script(|script| script.connects);
        life.script(|mut script| script.lose(qp(attempt)));
        life.drive();
        if life.driver.next_timeout_ns().is_some() {
            life.sleep();
        }
    }
    assert_eq!(life.ends(), [(1, AckStatus::PeerLost)]);
    assert!(life.now_ns >= 30 * SECOND);
    // A new message: the sender connects again.
    let attempts = life.script(|script| script.connects);
    life.driver.send_small(life.now_ns, 2, b"two").unwrap();
    life.drive();
    assert_eq!(life.script(|script| script.connects), attempts + 1);
}

#[test]
fn another_device_is_taken_when_the_first_was_removed() {
    let mut life = Life::connected();
    let mut buffer = life.driver.buffer(4096).unwrap();
    buffer.fill(7);
    life.driver.send(0, 1, buffer).unwrap();
    *life.devices.absent.lock().unwrap() = 2;
    life.script(|mut script| {
        script.events.push_back(Event::Gone);
        script.lose(qp(1));
    });
    life.drive();
    // A stand-in took the device's place, and the first two attempts to open a device find none.
    assert_eq!(life.devices.count(), 2);
    while life.devices.count() == 2 {
        life.sleep();
    }
    assert_eq!(*life.devices.absent.lock().unwrap(), 0);
    // Everything is registered with the new device: headers, copies, and the buffer's region. All entries are
    // posted.
    let (registered, entries, connects) =
        life.script(|script| (script.registered.len(), script.srq.len(), script.connects));
    assert_eq!((registered, entries, connects), (3, usize::from(RECEIVE_ENTRIES), 1));
    life.accept(1);
    assert_eq!(life.sent(), [(1, true, vec![])]);
    life.acknowledge(1, 1, 1);
    let end = life.driver.poll_end().expect("it ended");
    assert_eq!(end.status, AckStatus::Consumed);
    assert!(end.buffer.expect("it comes back").iter().all(|byte| *byte == 7));
}

#[test]
fn entries_that_an_ended_connection_took_are_posted_again() {
    let mut life = Life::connected();
    life.script(|mut script| {
        script.lose(qp(1));
        script.flush_entry(qp(1), |entry| Work::Receive { entry, payload_bytes: 0 });
        script.flush_entry(qp(1), |entry| Work::SrqFlush { entry });
        assert_eq!(script.srq.len(), usize::from(RECEIVE_ENTRIES) - 2);
    });
    life.drive();
    let mut posted = life.script(|script| script.srq.iter().map(|entry| entry.id).collect::<Vec<_>>());
    posted.sort_unstable();
    assert_eq!(posted, (0..u32::from(RECEIVE_ENTRIES)).collect::<Vec<_>>());
}
