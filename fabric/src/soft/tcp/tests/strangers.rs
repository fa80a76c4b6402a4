//! Tests of connections over `tcp:` that say nothing. The time is a number that the tests set.

use super::*;
use crate::networks::Networks;
use crate::soft::accepting::Accepting;
use crate::soft::strangers::{NEWCOMERS_PER_PAUSE, PAUSE};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Time that passes with each turn, in nanoseconds.
const STEP_NS: u64 = 100_000;

fn port(address: &Address) -> SocketAddr {
    let Address::Tcp(host_port) = address else { panic!("a tcp address") };
    host_port.parse().unwrap()
}

/// Opens a stream to the NIC from another address of this host.
fn raw_from(host: [u8; 4], address: &Address) -> TcpStream {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddr::new(IpAddr::V4(Ipv4Addr::from(host)), 0)).unwrap();
    connect(&fd, &port(address)).unwrap();
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = (&mut &*stream).read(&mut [0; 8]);
    stream.set_nonblocking(false).unwrap();
    match read {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn turn_and_step(server: &mut Host) {
    server.turn();
    server.now_ns += STEP_NS;
}

/// Polls until as many strangers wait.
fn until_waiting(server: &mut Host, count: usize) {
    let deadline = Instant::now() + DEADLINE;
    while server.nic.tcp.strangers.count() != count {
        assert!(Instant::now() < deadline, "{} wait, not {count}", server.nic.tcp.strangers.count());
        turn_and_step(server);
    }
}

/// Polls until a request arrives, while `meanwhile` goes on, and returns how much time passed.
fn until_request(server: &mut Host, mut meanwhile: impl FnMut(&mut Host)) -> Duration {
    let (begin_ns, deadline) = (server.now_ns, Instant::now() + DEADLINE);
    while server.requested().is_none() {
        assert!(Instant::now() < deadline, "no request");
        turn_and_step(server);
        meanwhile(server);
    }
    Duration::from_nanos(server.now_ns - begin_ns)
}

/// Silent connections that connect again as soon as they are closed.
struct Crowd {
    streams: Vec<TcpStream>,
    closed: usize,
}

impl Crowd {
    fn new(count: usize, address: &Address) -> Self {
        Self { streams: (0..count).map(|_| raw(address)).collect(), closed: 0 }
    }

    fn come_back(&mut self, address: &Address) {
        for stream in &mut self.streams {
            if is_closed(stream) {
                *stream = raw(address);
                self.closed += 1;
            }
        }
    }
}

#[test]
fn who_says_nothing_has_no_qp() {
    let options = SoftOptions { qps_max: 1, ..SoftOptions::default() };
    let (mut server, address) = listening(options);
    let silent: Vec<_> = (0..100).map(|_| raw(&address)).collect();
    until_waiting(&mut server, silent.len());
    assert!(server.nic.tcp.spare.is_empty() && server.nic.tcp.open == 0, "nothing is allocated for them");
    still_serves(&mut server, &address);
    assert!(silent.iter().all(|stream| !is_closed(stream)));
}

#[test]
fn who_comes_while_hundreds_say_nothing_waits_for_none_of_them() {
    let (mut server, address) = listening(SoftOptions::default());
    let mut crowd = Crowd::new(384, &address);
    let mut stream = raw(&address);
    stream.write_all(&connect_frame(0).to_bytes()).unwrap();
    let waited = until_request(&mut server, |_| crowd.come_back(&address));
    assert!(waited <= Duration::from_millis(100), "{waited:?}");
    until_waiting(&mut server, 384);
}

#[test]
fn who_is_in_no_allowed_network_is_closed_and_takes_no_place() {
    let options = SoftOptions { strangers_max: 8, qps_max: 1, ..SoftOptions::default() };
    let (mut server, address) = listening(options);
    server.nic.accept_from(Networks::only(["127.0.0.1".parse().unwrap(), "192.0.2.0/24".parse().unwrap()]));
    // All of the request is there when they are accepted.
    let others: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = raw_from([127, 0, 0, 2], &address);
            stream.write_all(&connect_frame(0).to_bytes()).unwrap();
            stream
        })
        .collect();
    let refused = |server: &Host| server.nic.counters().networks_refused;
    let deadline = Instant::now() + DEADLINE;
    while refused(&server) < 40 {
        assert!(Instant::now() < deadline, "{} are refused", refused(&server));
        let before = refused(&server);
        turn_and_step(&mut server);
        assert_eq!(server.nic.tcp.strangers.count(), 0);
        assert!(server.requested().is_none() && server.nic.tcp.open == 0);
        assert!(
            refused(&server) - before <= u64::from(NEWCOMERS_PER_PAUSE),
            "they take no more time than others"
        );
    }
    until(&mut [&mut server], "closed", |_| others.iter().all(is_closed));
    assert_eq!(server.nic.counters().protocol_errors, 0);
    server.now_ns += u64::try_from(PAUSE.as_nanos()).unwrap();
    still_serves(&mut server, &address);
    assert_eq!(refused(&server), 40);
}

#[test]
fn a_source_that_has_its_share_makes_room_for_itself() {
    let options = SoftOptions { strangers_max: 8, ..SoftOptions::default() };
    let (mut server, address) = listening(options);
    let mut own: Vec<_> = Vec::new();
    for count in 1..=4 {
        own.push(raw(&address));
        until_waiting(&mut server, count);
    }
    let other = raw_from([127, 0, 0, 2], &address);
    until_waiting(&mut server, 5);
    // The others of this source go in the order in which they came, and no other source loses anything.
    for gone in 0..4 {
        own.push(raw(&address));
        until(&mut [&mut server], "closed", |_| is_closed(&own[gone]));
        assert!(own[gone + 1..].iter().chain([&other]).all(|stream| !is_closed(stream)));
        assert_eq!(server.nic.tcp.strangers.count(), 5);
        server.now_ns += STEP_NS;
    }
}

#[test]
fn a_crowd_that_comes_back_drives_nobody_else_away() {
    let options = SoftOptions { strangers_max: 8, ..SoftOptions::default() };
    let (mut server, address) = listening(options);
    let mut late = raw_from([127, 0, 0, 2], &address);
    until_waiting(&mut server, 1);
    let mut crowd = Crowd::new(40, &address);
    let deadline = Instant::now() + DEADLINE;
    while crowd.closed < 400 {
        assert!(Instant::now() < deadline, "only {} were closed", crowd.closed);
        turn_and_step(&mut server);
        crowd.come_back(&address);
    }
    // Accepting pauses, so a crowd does not take all of the NIC's time.
    let pauses = server.now_ns / 1_000_000;
    let most = (pauses + 2) * u64::from(NEWCOMERS_PER_PAUSE);
    assert!(crowd.closed as u64 <= most, "{} in {pauses} ms", crowd.closed);
    late.write_all(&connect_frame(0).to_bytes()).unwrap();
    until_request(&mut server, |_| crowd.come_back(&address));
    // One of the crowd's own host that has its request ready comes in, too.
    server.events.clear();
    let mut stream = raw(&address);
    stream.write_all(&connect_frame(0).to_bytes()).unwrap();
    let waited = until_request(&mut server, |_| crowd.come_back(&address));
    assert!(waited <= Duration::from_millis(100), "{waited:?}");
}

#[test]
fn who_has_said_all_is_let_in_when_its_place_is_wanted() {
    let (mut server, address) = listening(SoftOptions::default());
    let mut streams = [raw(&address), raw(&address)];
    until_waiting(&mut server, 2);
    let frame = connect_frame(3).to_bytes();
    streams[0].write_all(&[&frame[..], b"abc"].concat()).unwrap();
    streams[1].write_all(&[&frame[..], b"ab"].concat()).unwrap();
    // The NIC has not been told that bytes arrived.
    let nic = &mut server.nic;
    nic.tables.deadlines.begin_poll(server.now_ns);
    for _ in 0..2 {
        let first = nic.tcp.strangers.first().unwrap();
        nic.tcp.look_at_stranger(&mut nic.tables, first, true);
    }
    nic.tables.deadlines.end_poll();
    server.turn();
    assert!(is_closed(&streams[1]), "a part is not enough");
    let [Event::ConnectRequest { private_data, .. }] = server.events[..] else {
        panic!("{:?}", server.events);
    };
    assert_eq!(private_data.as_slice(), b"abc");
}

#[test]
fn who_hangs_up_gives_its_place_back_at_once_and_parts_of_a_request_keep_it() {
    let (mut server, address) = listening(SoftOptions::default());
    let mut halting = raw(&address);
    let gone = [raw(&address), raw(&address)];
    (&gone[1]).write_all(&connect_frame(0).to_bytes()[..31]).unwrap();
    until_waiting(&mut server, 3);
    drop(gone);
    until_waiting(&mut server, 1);
    let frame = connect_frame(1).to_bytes();
    for byte in &frame {
        halting.write_all(&[*byte]).unwrap();
        turn_and_step(&mut server);
    }
    assert_eq!((server.nic.tcp.strangers.count(), server.requested()), (1, None));
    halting.write_all(b"x").unwrap();
    until_request(&mut server, |_| ());
    assert_eq!(server.nic.tcp.strangers.count(), 0);
    assert_eq!(server.nic.counters().protocol_errors, 0);
}

#[test]
fn a_crowd_at_one_address_holds_up_nobody_at_another() {
    let (mut server, crowded) = listening(SoftOptions::default());
    let quiet = server.nic.listen(&"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
    // More than the NIC accepts in 20 pauses.
    let _crowd = Crowd::new(400, &crowded);
    for _ in 0..3 {
        let mut stream = raw(&quiet);
        stream.write_all(&connect_frame(0).to_bytes()).unwrap();
        let waited = until_request(&mut server, |_| ());
        assert!(waited <= 2 * PAUSE, "{waited:?}");
        server.events.clear();
    }
    assert!(server.nic.tcp.strangers.count() < 200, "the crowd waits yet");
}

fn take_request(server: &mut Host) -> Option<Qp> {
    let qp = server.requested();
    server
        .events
        .retain(|event| !matches!(event, Event::ConnectRequest { qp: found, .. } if Some(*found) == qp));
    qp
}

#[test]
fn requests_that_are_refused_count_against_the_pause_and_those_that_are_accepted_do_not() {
    let (mut server, address) = listening(SoftOptions::default());
    for accepts in [false, true] {
        let streams: Vec<_> = (0..100)
            .map(|_| {
                let mut stream = raw(&address);
                stream.write_all(&connect_frame(0).to_bytes()).unwrap();
                stream
            })
            .collect();
        // The time stands still, so a pause does not end.
        let mut answered = 0;
        for _ in 0..1000 {
            server.turn();
            while let Some(qp) = take_request(&mut server) {
                answered += 1;
                if accepts {
                    server.nic.accept(qp, &nothing()).unwrap();
                } else {
                    server.nic.reject(qp, &nothing());
                }
            }
        }
        let expected = if accepts { streams.len() } else { NEWCOMERS_PER_PAUSE as usize };
        assert_eq!(answered, expected, "accepts: {accepts}");
        // The others are refused in their turn.
        while answered < streams.len() {
            turn_and_step(&mut server);
            while let Some(qp) = take_request(&mut server) {
                answered += 1;
                server.nic.reject(qp, &nothing());
            }
        }
        server.now_ns += SECOND_NS;
        server.turn();
    }
}
