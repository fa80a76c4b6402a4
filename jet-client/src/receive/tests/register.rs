//! Tests of registration over a control socket.

use crate::receive::{RegisterError, RegisterOptions, Session};
use jet_control::frame::{FrameDecoder, encode_frame};
use jet_control::protocol::{PROTOCOL_VERSION, Register, Registered};
use jet_control::{ControlRequest, ControlResponse, ErrorCode};
use jet_fabric::memory::MapError;
use jet_fabric::unix::{receive_with_fds, send_with_fds};
use jet_wire::SLAB_BYTES_U32;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;

/// Answers every registration with the next answer and the number of descriptors given with it.
fn answer_each(listener: UnixListener, answers: Vec<(ControlResponse, usize)>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for (answer, descriptors) in answers {
            let stream = accept(&listener, 2);
            let frame = encode_frame(&answer).unwrap();
            send_with_fds(stream.as_fd(), &frame, &vec![stream.as_fd(); descriptors]).unwrap();
        }
    })
}

/// Accepts a connection, and reads from it the registration of `store` in a class.
pub(super) fn accept(listener: &UnixListener, expected_class: u8) -> UnixStream {
    let (stream, _) = listener.accept().unwrap();
    let mut decoder = FrameDecoder::default();
    let request = loop {
        let mut bytes = [0; 512];
        let (got, _) = receive_with_fds(stream.as_fd(), &mut bytes).unwrap();
        decoder.push(&bytes[..got]);
        if let Some(request) = decoder.next_frame().unwrap() {
            break request;
        }
    };
    let ControlRequest::Register(register) = request else { panic!("{request:?}") };
    let Register { protocol, app, class, .. } = register;
    assert_eq!((protocol, app.as_str(), class), (PROTOCOL_VERSION, "store", expected_class));
    stream
}

fn registered(escape_bytes: u64) -> ControlResponse {
    ControlResponse::Registered(Registered {
        session: 9,
        slab_bytes: SLAB_BYTES_U32,
        pool_bytes: 8192,
        pool_slabs: 2,
        escape_bytes,
        segment_bytes: 4096,
        class: 2,
        ..Registered::default()
    })
}

/// Makes a control socket, and the options to register there.
fn socket() -> (tempfile::TempDir, UnixListener, RegisterOptions) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jetd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let options = RegisterOptions { control_socket: path, class: 2, ..RegisterOptions::new("store") };
    (folder, listener, options)
}

#[test]
fn an_application_registers_over_the_control_socket() {
    let (_folder, listener, options) = socket();
    let refusal =
        ControlResponse::Error { code: ErrorCode::NameTaken, message: "'store' is registered".into() };
    let other = ControlResponse::Draining { deadline_ms: 0, again: false };
    let daemon = answer_each(listener, vec![(refusal, 0), (other, 0)]);
    let refused = Session::register(&options).unwrap_err();
    assert!(refused.to_string().contains("'store' is registered"), "{refused}");
    assert!(matches!(Session::register(&options), Err(RegisterError::Answer(_))));
    daemon.join().unwrap();
    assert!(matches!(Session::register(&options), Err(RegisterError::Control(_))));
}

#[test]
fn descriptors_come_as_announced_or_the_answer_is_refused() {
    let (_folder, listener, options) = socket();
    let announced = [(0, 0), (0, 1), (0, 2), (0, 4), (4096, 0), (4096, 3), (4096, 5)];
    let answers = announced.map(|(escape_bytes, descriptors)| (registered(escape_bytes), descriptors));
    let daemon = answer_each(listener, answers.to_vec());
    for (escape_bytes, descriptors) in announced {
        let refused = Session::register(&options).unwrap_err();
        let RegisterError::Descriptors { found, expected } = refused else { panic!("{refused}") };
        assert_eq!((found, expected), (descriptors, if escape_bytes > 0 { 4 } else { 3 }), "{refused}");
        let told =
            format!("passed {found} descriptors with its answer to the registration instead of {expected}");
        assert!(refused.to_string().contains(&told), "{refused}");
    }
    daemon.join().unwrap();
}

#[test]
fn what_is_passed_is_memory_or_the_answer_is_refused() {
    let (_folder, listener, options) = socket();
    // As many descriptors as announced, but all of them are sockets.
    let daemon = answer_each(listener, vec![(registered(0), 3), (registered(4096), 4)]);
    for _ in 0..2 {
        assert!(matches!(Session::register(&options), Err(RegisterError::Map(MapError::NotSealed))));
    }
    daemon.join().unwrap();
}

#[test]
fn options_that_the_daemon_does_not_repeat_are_noticed() {
    let (_folder, listener, options) = socket();
    let mut another_class = registered(0);
    let mut memory = registered(0);
    let mut shares = registered(0);
    if let ControlResponse::Registered(registered) = &mut another_class {
        registered.class = 0;
    }
    if let ControlResponse::Registered(registered) = &mut memory {
        registered.memory_instead_of_waiting = true;
    }
    if let ControlResponse::Registered(registered) = &mut shares {
        registered.shares_name = true;
    }
    let daemon = answer_each(listener, vec![(another_class, 3), (memory, 3), (shares, 3)]);
    for option in ["admission class", "memory_instead_of_waiting", "shares_name"] {
        let refused = Session::register(&options).unwrap_err();
        assert!(matches!(refused, RegisterError::Answer(text) if text.contains(option)), "{refused}");
    }
    daemon.join().unwrap();
}
