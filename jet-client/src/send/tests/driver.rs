//! Tests of the driver over a NIC whose completions and events come in an order that a test chooses.

use super::scripted_nic::{Script, ScriptedNic, qp};
use crate::send::buffer::BufferPool;
use crate::send::driver::{Driver, NicSource};
use crate::send::error::{BufferError, SendConnectError};
use crate::send::options::SenderOptions;
use jet_fabric::memory::{Mapping, Protection};
use jet_fabric::nic::{DisconnectReason, Payload, PostError, PrivateData, RegionError};
use jet_fabric::{Address, Event, Nic, Qp};
use jet_wire::message::hello::{Refusal, Welcome, features};
use jet_wire::message::{CreditHeader, FromSender, HeaderBytes, Versions};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

/// A source of NICs without any: the first device stays.
struct NoOther;

impl NicSource for NoOther {
    fn open(&mut self) -> Result<Box<dyn Nic>, SendConnectError> {
        panic!("the device is there")
    }

    fn stand_in(&mut self) -> io::Result<Box<dyn Nic>> {
        panic!("the device is there")
    }
}

/// Makes a driver for this address that has not begun to connect.
pub(super) fn made(address: Address) -> (Driver, Arc<Mutex<Script>>) {
    let script = Arc::new(Mutex::new(Script::default()));
    let nic = Box::new(ScriptedNic::new(&script));
    let options = SenderOptions::new(address, "store");
    (Driver::new(&options, 1, nic, Box::new(NoOther)).unwrap(), script)
}

/// Makes a driver that is connecting, on `qp(1)`, with one small message to send.
fn connecting() -> (Driver, Arc<Mutex<Script>>) {
    let (mut driver, script) = made(Address::Tcp("127.0.0.1:1".to_owned()));
    driver.protocol.submit_small(0, 0).unwrap();
    driver.drive(0);
    assert_eq!(script.lock().unwrap().connects, 1);
    (driver, script)
}

/// Returns the event of an established connection without credit.
fn connected(qp: Qp) -> Event {
    connected_to(qp, Versions::SUPPORTED)
}

/// Returns the welcome of a receiver that speaks these versions and gives no credit.
fn welcome(versions: Versions) -> Welcome {
    Welcome {
        versions,
        features: 0,
        incarnation: 1,
        credit_limit: 0,
        message_bytes_max: 1 << 20,
        requests_max: 1,
        heartbeat_ms: 0,
    }
}

/// Returns the event of an established connection, to a receiver that speaks these versions.
fn connected_to(qp: Qp, versions: Versions) -> Event {
    let welcome = welcome(versions);
    Event::Connected { qp, private_data: PrivateData::new(&welcome.encode()).unwrap(), reads_max: 0 }
}

#[test]
fn a_large_message_that_is_not_too_long_is_offered_where_the_receiver_knows_of_it_and_few_are_under_way() {
    for features in [0, features::PUSH] {
        let (mut driver, script) = made(Address::Tcp("127.0.0.1:1".to_owned()));
        let send = |driver: &mut Driver, bytes: usize| {
            let mut buffer = driver.buffers.get(driver.nic.as_mut(), bytes).unwrap();
            buffer.fill(1);
            driver.send(0, 1, buffer).unwrap();
            driver.drive(1);
        };
        // With the first message it begins to connect.
        send(&mut driver, 64 << 10);
        let welcome =
            Welcome { credit_limit: 64, requests_max: 64, features, ..welcome(Versions::SUPPORTED) };
        let private_data = PrivateData::new(&welcome.encode()).unwrap();
        script.lock().unwrap().events.push_back(Event::Connected { qp: qp(1), private_data, reads_max: 0 });
        // Longer ones are not offered.
        for bytes in [5000, (64 << 10) + 1, 1 << 20] {
            send(&mut driver, bytes);
        }
        let requests: Vec<(u32, u64, u64)> = script
            .lock()
            .unwrap()
            .sent
            .iter()
            .map(|(header, payload)| {
                let version = Versions::SUPPORTED.highest();
                let parsed = jet_wire::message::parse_from_sender(version, header, payload.len());
                let Ok(FromSender::Request(request)) = parsed else { panic!("a request: {parsed:?}") };
                (request.key.get(), request.address.get(), request.length.get())
            })
            .collect();
        assert_eq!(requests.len(), 4);
        let offered = script.lock().unwrap().offered.clone();
        let offered: Vec<_> =
            offered.into_iter().map(|(key, address, bytes)| (key, address, u64::from(bytes))).collect();
        assert_eq!(offered, if features == 0 { &[] } else { &requests[..2] });
        // The eighth that is under way is the last one.
        (0..10).for_each(|_| send(&mut driver, 5000));
        assert_eq!(script.lock().unwrap().offered.len(), if features == 0 { 0 } else { 6 });
    }
}

fn credit() -> HeaderBytes {
    CreditHeader::encode(1, false)
}

#[test]
fn nobody_else_can_write_what_the_peer_is_shown() {
    let (mut driver, script) = made(Address::Shm("/nowhere/nic.sock".into()));
    let buffer = driver.buffers.get(driver.nic.as_mut(), 10_000).unwrap();
    let _ = driver.copy_area.payload(driver.nic.as_mut(), 0, 4096);
    // One memory holds copied payloads and long user headers, the other one the buffer.
    let shown = std::mem::take(&mut script.lock().unwrap().shown);
    assert_eq!(shown.len(), 2);
    for memory in shown {
        let writing = Mapping::map_received(memory.as_fd(), Protection::ReadWrite, 1 << 30);
        assert!(writing.is_err(), "{memory:?} can be mapped for writing");
        Mapping::map_received(memory.as_fd(), Protection::Read, 1 << 30).unwrap();
    }
    // The owner of the memory can write.
    driver.copy_area.write(0, 0, b"a payload");
    drop(buffer);
}

#[test]
fn what_is_copied_is_shown_when_it_is_needed_and_not_again_where_the_receiver_refused_it() {
    let (mut driver, script) = made(Address::Shm("/nowhere/nic.sock".into()));
    let shown = || script.lock().unwrap().shown.len();
    let payload = |driver: &mut Driver, bytes| match driver.copy_area.payload(driver.nic.as_mut(), 0, bytes) {
        Payload::None => "none",
        Payload::Inline(inline) => {
            assert_eq!(inline.len(), bytes as usize);
            "inline"
        }
        Payload::Registered(_) => "registered",
    };
    assert_eq!((payload(&mut driver, 0), payload(&mut driver, 512), shown()), ("none", "inline", 0));
    assert_eq!((payload(&mut driver, 513), shown()), ("registered", 1));
    assert_eq!((payload(&mut driver, 4096), shown()), ("registered", 1));
    driver.protocol.submit_small(600, 0).unwrap();
    driver.drive(0);
    script.lock().unwrap().events.push_back(connected(qp(1)));
    driver.drive(1);
    let reason = DisconnectReason::Region(RegionError::ReceiverFull);
    script.lock().unwrap().events.push_back(Event::Disconnected { qp: qp(1), reason });
    driver.drive(2);
    assert_eq!((payload(&mut driver, 4096), shown()), ("inline", 1));
    assert!(driver.take_failure().is_none(), "the next connection has one region less");
    // What else is too many is told.
    let again = driver.next_timeout_ns().unwrap();
    driver.drive(again);
    assert_eq!(script.lock().unwrap().connects, 2);
    script.lock().unwrap().events.push_back(Event::Disconnected { qp: qp(2), reason });
    driver.drive(again + 1);
    assert!(matches!(driver.take_failure(), Some(SendConnectError::Region { .. })));
}

#[test]
fn pieces_beyond_all_memory_are_refused() {
    let (mut driver, _script) = made(Address::Tcp("127.0.0.1:1".to_owned()));
    let nic = driver.nic.as_mut();
    let first = driver.buffers.get(nic, 4096).unwrap();
    let second = driver.buffers.get(nic, 4096).unwrap();
    // With the bytes that are cut already, these lengths would wrap around the address space and fit.
    let all = [(4096, usize::MAX / 4096), (8192, usize::MAX / 8192), (1 << 51, 8191), (4096, 1 << 52)];
    for (bytes, count) in all {
        let error = driver.buffers.get_row(nic, bytes, count).expect_err("nobody has so much");
        assert!(matches!(error, BufferError::Memory { .. }), "{bytes} x {count}: {error}");
    }
    drop((first, second));
    for region_bytes in [0, 1, usize::MAX] {
        assert!(BufferPool::new(region_bytes).get(nic, 5000).is_ok());
    }
}

#[test]
fn regions_are_as_large_as_those_before_up_to_what_the_options_say() {
    const KIB: usize = 1 << 10;
    let (mut driver, _script) = made(Address::Tcp("127.0.0.1:1".to_owned()));
    let nic = driver.nic.as_mut();
    let mut sizes_of = |region_bytes, pieces: &[usize]| {
        let mut pool = BufferPool::new(region_bytes).on_small_pages();
        let held: Vec<_> = pieces.iter().map(|bytes| pool.get(nic, *bytes).unwrap()).collect();
        drop(held);
        pool.region_sizes().map(|bytes| bytes / KIB).collect::<Vec<_>>()
    };
    assert_eq!(sizes_of(2048 * KIB, &[4 * KIB; 64]), [256], "none before the first is full");
    assert_eq!(sizes_of(2048 * KIB, &[64 * KIB; 96]), [256, 256, 512, 1024, 2048, 2048]);
    // A buffer that is larger has a region for itself, and the next one is as large as all before.
    assert_eq!(sizes_of(2048 * KIB, &[1024 * KIB; 4]), [1024, 1024, 2048]);
    assert_eq!(sizes_of(8 * KIB, &[4 * KIB; 5]), [8, 8, 8]);
    assert_eq!(sizes_of(0, &[4 * KIB; 2]), [4, 4]);
}

#[test]
fn credit_that_comes_together_with_the_welcome_is_used() {
    let (mut driver, script) = connecting();
    let entries = script.lock().unwrap().srq.len();
    script.lock().unwrap().receive(qp(1), &credit());
    script.lock().unwrap().events.push_back(connected(qp(1)));
    driver.drive(0);
    let script = script.lock().unwrap();
    assert_eq!((script.sent.len(), script.srq.len()), (1, entries));
    assert_eq!(driver.protocol.stats().headers_stray, 0);
}

#[test]
fn headers_that_come_before_the_welcome_is_told_wait_for_it_in_their_order() {
    let (mut driver, script) = connecting();
    let entries = script.lock().unwrap().srq.len();
    // A recall of the credit that the first header gave. It counts only after that header, and is then
    // answered.
    script.lock().unwrap().receive(qp(1), &CreditHeader::encode(9, false));
    script.lock().unwrap().receive(qp(1), &CreditHeader::encode(2, true));
    driver.drive(0);
    assert_eq!(script.lock().unwrap().srq.len(), entries - 2, "their entries are kept");
    assert_eq!(script.lock().unwrap().sent.len(), 0);
    script.lock().unwrap().events.push_back(connected(qp(1)));
    driver.drive(0);
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
        driver.drive(0);
        assert_eq!(driver.protocol.stats().headers_stray, 0);
        script.lock().unwrap().events.push_back(end);
        driver.drive(0);
        assert_eq!(driver.protocol.stats().headers_stray, 1);
        assert_eq!(script.lock().unwrap().srq.len(), entries);
    }
}

#[test]
fn a_region_that_the_receiver_does_not_take_is_named_as_the_reason() {
    let (mut driver, script) = connecting();
    let reason = DisconnectReason::Region(RegionError::NotSealed);
    script.lock().unwrap().events.push_back(Event::Disconnected { qp: qp(1), reason });
    driver.drive(0);
    let failure = driver.take_failure().expect("it says why");
    assert!(matches!(failure, SendConnectError::Region { source: RegionError::NotSealed, .. }), "{failure}");
    assert!(failure.to_string().contains("F_SEAL_SHRINK") && !failure.is_passing(), "{failure}");
}

#[test]
fn a_region_that_is_not_taken_is_named_though_an_earlier_attempt_failed() {
    let (mut driver, script) = connecting();
    for (number, reason) in
        [DisconnectReason::Peer, DisconnectReason::Region(RegionError::Share)].into_iter().enumerate()
    {
        let at_ns = u64::try_from(number).unwrap() * 60_000_000_000;
        driver.drive(at_ns);
        let qp = driver.qp.expect("it connects again");
        script.lock().unwrap().events.push_back(Event::Disconnected { qp, reason });
        driver.drive(at_ns + 1);
    }
    let failure = driver.take_failure().expect("it says why");
    assert!(matches!(failure, SendConnectError::Region { source: RegionError::Share, .. }), "{failure}");
}

#[test]
fn a_region_that_is_not_taken_later_is_named_too_and_no_other_end_of_a_connection_that_stood() {
    for (reason, is_named) in [
        (DisconnectReason::Region(RegionError::Share), true),
        (DisconnectReason::Peer, false),
        (DisconnectReason::Protocol, false),
    ] {
        let (mut driver, script) = connecting();
        script.lock().unwrap().events.push_back(connected(qp(1)));
        driver.drive(0);
        script.lock().unwrap().events.push_back(Event::Disconnected { qp: qp(1), reason });
        driver.drive(0);
        let found = driver.take_failure();
        let region = matches!(found, Some(SendConnectError::Region { source: RegionError::Share, .. }));
        assert_eq!((region, found.is_some()), (is_named, is_named), "{reason:?}: {found:?}");
    }
}

#[test]
fn headers_of_another_connection_give_this_one_nothing() {
    let (mut driver, script) = connecting();
    script.lock().unwrap().events.push_back(connected(qp(1)));
    driver.drive(0);
    script.lock().unwrap().receive(qp(7), &credit());
    driver.drive(0);
    assert_eq!(script.lock().unwrap().sent.len(), 0);
    assert_eq!(driver.protocol.stats().headers_stray, 1);
}

#[test]
fn a_nic_that_refuses_a_message_for_good_ends_the_connection_and_the_message_goes_again() {
    for (error, ends) in [
        (PostError::LocalProtection, true),
        (PostError::Limit, true),
        // These errors pass, or the connection is over anyway.
        (PostError::QueueFull, false),
        (PostError::Stale, false),
    ] {
        let (mut driver, script) = connecting();
        script.lock().unwrap().refuses = Some(error);
        script.lock().unwrap().receive(qp(1), &credit());
        script.lock().unwrap().events.push_back(connected(qp(1)));
        driver.drive(0);
        let disconnected: &[Qp] = if ends { &[qp(1)] } else { &[] };
        assert_eq!(script.lock().unwrap().disconnects, disconnected, "{error}");
        let over = Event::Disconnected { qp: qp(1), reason: DisconnectReason::Local };
        script.lock().unwrap().events.push_back(over);
        driver.drive(0);
        assert_eq!(script.lock().unwrap().connects, 2, "{error}: it connects again");
        // The next connection's NIC takes the SEND.
        script.lock().unwrap().refuses = None;
        script.lock().unwrap().receive(qp(2), &credit());
        script.lock().unwrap().events.push_back(connected(qp(2)));
        driver.drive(0);
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
        driver.drive(0);
        let sent: Vec<_> = script.lock().unwrap().sent.iter().map(|(header, _)| header.version()).collect();
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
        driver.drive(0);
        let failure = driver.take_failure().expect("it fails").to_string();
        assert!(failure.contains("speaks 7 to 9, this end 1 to 2"), "{failure}");
        assert!(script.lock().unwrap().sent.is_empty());
    }
}
