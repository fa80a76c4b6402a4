//! Tests of clients that do not follow the protocol of the control socket.

use crate::children::Role;
use crate::hand_session::HandSession;
use crate::rig::{Rig, random_for};
use crate::traffic::Traffic;
use jet_control::frame::{FRAME_BYTES_MAX, FrameDecoder};
use jet_control::protocol::{PROTOCOL_VERSION, Register};
use jet_control::{ControlConnection, ControlRequest, ControlResponse, ErrorCode};
use jet_fabric::unix::{refuse_fds, send_with_fds};
use jet_test_support::waiting::{WAIT_LIMIT, until};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sends bytes to the control socket, and returns the daemon's answer before it hung up, if there was one.
fn say(control: &Path, bytes: &[u8]) -> Option<ControlResponse> {
    let mut stream = UnixStream::connect(control).expect("the daemon listens");
    stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    // The daemon may hang up before it has read everything.
    let _ = stream.write_all(bytes);
    let mut heard = Vec::new();
    // A reset counts as a hang-up, too: the daemon hung up without reading everything.
    match stream.read_to_end(&mut heard) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the daemon does not hang up"),
        _ => {}
    }
    let mut decoder = FrameDecoder::default();
    decoder.push(&heard);
    decoder.next_frame().expect("a frame")
}

fn frame(json: &[u8]) -> Vec<u8> {
    [&u32::try_from(json.len()).expect("short").to_le_bytes()[..], json].concat()
}

#[test]
fn what_cannot_be_read_is_answered_and_hung_up_on() {
    let mut random = random_for("control", 20);
    let rig = Rig::start(&[]);
    let good = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::to_each(&rig.addresses(), "store", &mut random);
    let control = rig.control();
    // These connections send nothing, or stop in the middle, and stay open.
    let silent: Vec<_> = (0..50).map(|_| UnixStream::connect(&control).unwrap()).collect();
    let mut halting = UnixStream::connect(&control).unwrap();
    halting.write_all(&[9, 0, 0, 0, b'{']).unwrap();
    let bad_request = |said: &[u8]| {
        let answer = say(&control, said);
        let Some(ControlResponse::Error { code: ErrorCode::BadRequest, message }) = answer else {
            panic!("{answer:?} to {:?}", &said[..said.len().min(40)]);
        };
        message
    };
    for json in [
        &b"{!"[..],
        b"",
        b"null",
        b"[]",
        b"\"reboot\"",
        b"{\"register\":{}}",
        b"{\"status\":{\"of\":\"all\"}}",
    ] {
        assert!(bad_request(&frame(json)).contains("same build"), "{json:?}");
    }
    // The nesting is deep enough to overflow an unguarded stack.
    bad_request(&frame(&vec![b'['; 500_000]));
    for bytes in [u32::try_from(FRAME_BYTES_MAX).expect("short") + 1, u32::MAX] {
        let giant = [&bytes.to_le_bytes()[..], &[b' '; 10_000]].concat();
        assert!(bad_request(&giant).contains("exceeds"), "{bytes}");
    }
    // The frame is as long as a frame may be, and holds nothing.
    bad_request(&frame(&vec![b' '; FRAME_BYTES_MAX]));
    for _ in 0..20 {
        let mut noise: Vec<u8> = (0..2000).map(|_| random.next().to_le_bytes()[0]).collect();
        noise[3] |= 0x80;
        bad_request(&noise);
    }
    traffic.iter_mut().for_each(Traffic::round);
    drop((silent, halting));
    rig.wait_whole();
    assert_eq!((good.reported("registered"), good.reported("wrong")), (1, 0));
}

#[test]
fn a_file_that_a_client_sends_is_refused() {
    let rig = Rig::start(&[]);
    let stream = UnixStream::connect(rig.control()).expect("the daemon listens");
    let refused = refuse_fds(UnixStream::pair().unwrap().0.as_fd());
    let sent = send_with_fds(stream.as_fd(), b"?", &[stream.as_fd()]);
    match refused {
        Ok(()) => assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EPERM)),
        // Before Linux 6.16.
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
    }
}

#[test]
fn registrations_that_cannot_be_are_refused_in_words() {
    let rig = Rig::start(&["limits.sessions=4", "session.quarantine_ms=20"]);
    let _good = rig.application(Role::Consumer, "store");
    let refused = |protocol: u32, app: &str, class: u8| {
        let mut connection = ControlConnection::connect(&rig.control()).unwrap();
        let request = ControlRequest::Register(Register { protocol, class, ..Register::new(app) });
        match connection.request(&request).unwrap() {
            (ControlResponse::Error { code, message }, _) => (code, message),
            (other, _) => panic!("{other:?}"),
        }
    };
    let cases = [
        (refused(PROTOCOL_VERSION + 1, "a", 0), ErrorCode::Version, "same build"),
        (refused(PROTOCOL_VERSION, "", 0), ErrorCode::BadRequest, "1 to 32 characters"),
        (refused(PROTOCOL_VERSION, "with space", 0), ErrorCode::BadRequest, "1 to 32 characters"),
        (refused(PROTOCOL_VERSION, &"x".repeat(33), 0), ErrorCode::BadRequest, "1 to 32 characters"),
        (refused(PROTOCOL_VERSION, "a", 4), ErrorCode::BadRequest, "choose 0 to 3"),
        (refused(PROTOCOL_VERSION, "store", 0), ErrorCode::NameTaken, "choose another"),
    ];
    for ((code, message), expected, words) in cases {
        assert_eq!(code, expected, "{message}");
        assert!(message.contains(words), "{message}");
    }
    let others: Vec<_> = ["a", "b", "c"].map(|app| HandSession::register(&rig.control(), app)).into();
    let (code, message) = refused(PROTOCOL_VERSION, "d", 0);
    assert_eq!(code, ErrorCode::TooManySessions);
    assert!(message.contains("limits.sessions"), "{message}");
    drop(others);
    until("room for another", || HandSession::try_register(&rig.control(), "d").ok());
    rig.wait_whole();
}

#[test]
fn who_talks_in_a_session_loses_it() {
    let mut random = random_for("talk", 21);
    let rig = Rig::start(&["session.quarantine_ms=20"]);
    let _good = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::new(&rig.addresses()[0], "store", random.fork());
    let control = rig.control();
    let mut connection = ControlConnection::connect(&control).unwrap();
    let request = ControlRequest::Register(Register::new("talker"));
    assert!(matches!(connection.request(&request).unwrap().0, ControlResponse::Registered(_)));
    let answer = connection.request(&ControlRequest::Status).expect("it is told why").0;
    let ControlResponse::Error { code: ErrorCode::BadRequest, message } = answer else {
        panic!("a session is no place for questions: {answer:?}");
    };
    assert!(message.contains("spoke"), "{message}");
    rig.wait_status("one session", |status| status.rows.sessions.len() == 1);
    traffic.round();
    rig.wait_whole();
}

/// Registers more applications than a frame of the control socket holds rows: a row has about 400 bytes.
#[test]
fn thousands_of_applications_are_all_in_the_status() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const SESSIONS: usize = 3000;
    // A session takes four descriptors, and this process and the daemon have all of them.
    const DESCRIPTORS: u64 = 16_384;
    // The daemon inherits this process's limits, and root may raise them.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let enough = maximum.map(|most| most.max(DESCRIPTORS));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: enough, maximum: enough });
    raised.expect("this test wants ulimit -Hn of 16384, or root");
    let rig = Rig::start(&["limits.sessions=4096", "session.slots=128", "session.messages=128"]);
    // One process has at most three quarters of them. The connection keeps a session open. The session's
    // descriptors are not needed here.
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|n| {
            let mut connection = ControlConnection::connect(&rig.control()).unwrap();
            let request = ControlRequest::Register(Register::new(format!("store-of-objects-number-{n:08}")));
            let (answer, _fds) = connection.request(&request).unwrap();
            assert!(matches!(answer, ControlResponse::Registered(_)), "{n}: {answer:?}");
            connection
        })
        .collect();
    let status = rig.status();
    assert_eq!(status.session_count as usize, SESSIONS);
    let mut apps: Vec<_> = status.rows.sessions.iter().map(|row| row.app.as_str()).collect();
    apps.sort_unstable();
    apps.dedup();
    assert_eq!(apps.len(), SESSIONS);
    assert_eq!(status.rows.rest, None, "nothing is left over");
    drop(sessions);
    rig.wait_status("them to be gone", |status| status.session_count == 0);
}

/// Asks for the status while others do so, too. Each answer must have everything that happened before its
/// question.
#[test]
fn a_status_is_not_older_than_its_question() {
    const CROWD: usize = 4;
    const ROUNDS: u32 = 40;
    let rig = Rig::start(&[]);
    let (control, over) = (rig.control(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                scope.spawn(|| {
                    let mut asked = 0;
                    let mut connection = ControlConnection::connect(&control).unwrap();
                    while !over.load(Ordering::Relaxed) {
                        connection.status().unwrap();
                        asked += 1;
                    }
                    asked
                })
            })
            .collect();
        let over = SetWhenDropped(&over);
        let mut own = ControlConnection::connect(&rig.control()).unwrap();
        for round in 0..ROUNDS {
            let mut session = ControlConnection::connect(&rig.control()).unwrap();
            let request = ControlRequest::Register(Register::new(format!("round-{round}")));
            let (answer, _fds) = session.request(&request).unwrap();
            assert!(matches!(answer, ControlResponse::Registered(_)), "{answer:?}");
            let status = own.status().unwrap();
            assert!(status.session(&format!("round-{round}")).is_some(), "{status:#?}");
        }
        drop(over);
        for asked in crowd {
            assert!(asked.join().unwrap() > 0, "nobody else asked");
        }
    });
}

/// Guard that sets the flag when dropped, so that the other threads end also where the test fails.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn who_loses_one_session_after_the_other_keeps_nothing_of_the_daemon() {
    const ROUNDS: usize = 200;
    let mut rig = Rig::start(&[]);
    let daemon = rig.daemon().id();
    let descriptors = || fs::read_dir(format!("/proc/{daemon}/fd")).expect("it runs").count();
    rig.status();
    let before = descriptors();
    let lost: Vec<_> = (0..ROUNDS)
        .map(|round| {
            let name = format!("talker-{round}");
            let session = until("a number", || HandSession::try_register(&rig.control(), &name).ok());
            session.say(b"x");
            session
        })
        .collect();
    for mut session in lost {
        let (code, words) = session.wait_ended();
        assert!(code == ErrorCode::BadRequest && words.contains("spoke"), "{code:?} {words}");
        // The daemon has closed its end, though this one is open.
        std::mem::forget(session);
    }
    // Some more for connections that ask for the status.
    until("the daemon to have closed its ends", || (descriptors() <= before + 8).then_some(()));
    rig.wait_status("no session", |status| {
        status.rows.sessions.is_empty() && status.rows.quarantined.is_empty()
    });
}
