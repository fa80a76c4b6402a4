//! Registration over a control socket.

use super::{RegisterError, RegisterOptions, Session};
use crate::registration::{ControlRequest, ControlResponse, ErrorCode, FrameDecoder, encode_frame};
use jet_fabric::unix::{receive_with_fds, send_with_fds};
use jet_wire::SLAB_BYTES_U32;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

#[test]
fn an_application_registers_over_the_control_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jetd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let daemon = std::thread::spawn(move || {
        let answers = [
            ControlResponse::Error { code: ErrorCode::NameTaken, message: "'store' is registered".into() },
            ControlResponse::Draining,
            ControlResponse::Registered {
                session: 9,
                slab_bytes: SLAB_BYTES_U32,
                pool_bytes: 8192,
                pool_slabs: 2,
                segment_bytes: 4096,
                incarnation: 1,
            },
        ];
        for answer in answers {
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
            let ControlRequest::Register { app, class, .. } = request else { panic!("{request:?}") };
            assert_eq!((app.as_str(), class), ("store", 2));
            let frame = encode_frame(&answer).unwrap();
            send_with_fds(stream.as_fd(), &frame, &[stream.as_fd()]).unwrap();
        }
    });
    let options = RegisterOptions { control_socket: path, class: 2, ..RegisterOptions::new("store") };
    let refused = Session::register(&options).unwrap_err();
    assert!(refused.to_string().contains("'store' is registered"), "{refused}");
    assert!(matches!(Session::register(&options), Err(RegisterError::Answer(_))));
    // One descriptor instead of three.
    assert!(matches!(Session::register(&options), Err(RegisterError::Answer(_))));
    daemon.join().unwrap();
    assert!(matches!(Session::register(&options), Err(RegisterError::Control(_))));
}
