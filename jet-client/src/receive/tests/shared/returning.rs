//! Shared sessions that come back to another daemon.

use super::super::register::accept;
use super::super::{Daemon, LONG, POOL_SLABS, daemon_with_parts, nothing, small};
use super::{check, half};
use crate::Backoff;
use crate::receive::{OwnedMessage, ReceiveError, RegisterError, RegisterOptions, SharedSession, SliceError};
use jet_control::frame::encode_frame;
use jet_control::protocol::Registered;
use jet_control::{ControlResponse, ErrorCode};
use jet_fabric::unix::send_with_fds;
use jet_wire::SLAB_BYTES_U32;
use jet_wire::segment::delivery_flags as flags;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

/// A control socket, with one daemon after the other.
struct Host {
    path: PathBuf,
    listener: Option<UnixListener>,
    _folder: tempfile::TempDir,
}

impl Host {
    fn new() -> (Self, RegisterOptions) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jetd.sock");
        let ms = Duration::from_millis;
        let options = RegisterOptions::new("store")
            .control_socket(&path)
            .spin_max(Duration::ZERO)
            .backoff(Backoff::new(ms(1), ms(5)));
        let mut host = Self { path, listener: None, _folder: folder };
        host.starts();
        (host, options)
    }

    fn starts(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        self.listener = Some(UnixListener::bind(&self.path).unwrap());
    }

    /// Nobody listens any more.
    fn stops(&mut self) {
        self.listener = None;
    }

    /// Takes a registration as a daemon.
    fn takes(&self) -> Daemon {
        let stream = accept(self.listener.as_ref().unwrap(), 0);
        let (daemon, parts) = daemon_with_parts(stream, 0);
        let answer = ControlResponse::Registered(Registered {
            session: 9,
            slab_bytes: SLAB_BYTES_U32,
            pool_bytes: parts.pool_bytes,
            pool_slabs: POOL_SLABS,
            segment_bytes: 4096,
            ..Registered::default()
        });
        let fds = [parts.pool.as_fd(), parts.segment.as_fd(), parts.doorbell.as_fd()];
        send_with_fds(daemon.control.as_fd(), &encode_frame(&answer).unwrap(), &fds).unwrap();
        daemon
    }

    /// Refuses a registration.
    fn refuses(&self, code: ErrorCode) {
        let mut stream = accept(self.listener.as_ref().unwrap(), 0);
        let refusal = ControlResponse::Error { code, message: "not now".into() };
        stream.write_all(&encode_frame(&refusal).unwrap()).unwrap();
    }
}

/// Registers with the first daemon.
fn registered() -> (Host, Daemon, SharedSession) {
    let (host, options) = Host::new();
    let registers = std::thread::spawn(move || SharedSession::register(&options).unwrap());
    let daemon = host.takes();
    (host, daemon, registers.join().unwrap())
}

/// Lets a message begin, whose first slice is held.
fn begin(daemon: &mut Daemon, session: &SharedSession) -> (OwnedMessage, super::OwnedSlice) {
    daemon.deliver(half(0, flags::FIRST));
    let mut message = session.try_receive().unwrap();
    let slice = message.next().unwrap().unwrap();
    (message, slice)
}

#[test]
fn whoever_waits_waits_on_for_the_next_daemon_and_slices_of_before_stay() {
    let (mut host, mut daemon, session) = registered();
    let (mut message, slice) = begin(&mut daemon, &session);
    let waiting = session.clone();
    let waits = std::thread::spawn(move || waiting.receive_timeout(LONG).unwrap());
    host.stops();
    drop(daemon);
    host.starts();
    // The next one is about to go as well, and says so.
    host.refuses(ErrorCode::Draining);
    let mut next = host.takes();
    next.deliver(small(3, 1, 100));
    next.doorbell.ring();
    let mut received = waits.join().unwrap();
    assert_eq!(received.tag(), 1001);
    check(&received.next().unwrap().unwrap(), 1);
    check(&slice, 0);
    assert!(matches!(message.next(), Err(SliceError::Receive(ReceiveError::DaemonGone))));
    // What is given back and ended of before goes nowhere.
    drop((slice, message, received));
    session.flush();
    let releases = next.releases();
    assert_eq!((releases.len(), releases[0].index), (1, 3), "{releases:?}");
}

#[test]
fn who_only_looks_comes_back_too() {
    let (host, daemon, session) = registered();
    drop(daemon);
    // The daemon is looked at now and then only.
    let tries = std::thread::spawn(move || {
        loop {
            match session.try_receive() {
                Err(ReceiveError::NotYet) => std::thread::yield_now(),
                received => return received.unwrap().tag(),
            }
        }
    });
    let mut next = host.takes();
    next.deliver(small(3, 1, 100));
    assert_eq!(tries.join().unwrap(), 1001);
}

#[test]
fn a_wait_is_over_in_time_though_the_daemon_is_away() {
    let (mut host, daemon, session) = registered();
    host.stops();
    drop(daemon);
    assert!(nothing(session.receive_timeout(Duration::from_millis(20))));
    assert!(nothing(session.try_receive()));
    host.starts();
    let mut next = host.takes();
    next.deliver(small(3, 1, 100));
    assert_eq!(session.receive_timeout(LONG).unwrap().tag(), 1001);
}

#[test]
fn everybody_hears_why_it_did_not_come_back_and_the_next_call_tries_again() {
    let (host, daemon, session) = registered();
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let session = session.clone();
            std::thread::spawn(move || session.receive_timeout(LONG).unwrap_err())
        })
        .collect();
    while session.stats().sleeps < 3 {
        std::thread::yield_now();
    }
    drop(daemon);
    // This refusal does not pass.
    host.refuses(ErrorCode::Version);
    let mut heard = 0;
    for waits in waits {
        match waits.join().unwrap() {
            ReceiveError::NotBack(error) => {
                assert!(
                    matches!(&*error, RegisterError::Refused { code: ErrorCode::Version, .. }),
                    "{error}"
                );
                heard += 1;
            }
            // Who began to wait later began another return, which the next daemon answers.
            error => panic!("{error}"),
        }
    }
    assert_eq!(heard, 3);
    let again = std::thread::spawn(move || session.receive_timeout(LONG).unwrap().tag());
    let mut next = host.takes();
    next.deliver(small(3, 1, 100));
    next.doorbell.ring();
    assert_eq!(again.join().unwrap(), 1001);
}

#[test]
fn the_time_for_coming_back_ends() {
    let (mut host, options) = Host::new();
    let options = options.reconnect_for(Duration::from_millis(30));
    let registers = std::thread::spawn(move || SharedSession::register(&options).unwrap());
    let daemon = host.takes();
    let session = registers.join().unwrap();
    host.stops();
    drop(daemon);
    let error = session.receive_timeout(LONG).unwrap_err();
    assert!(
        matches!(&error, ReceiveError::NotBack(why) if matches!(**why, RegisterError::Control(_))),
        "{error}"
    );
}

#[test]
fn who_never_comes_back_hears_that_the_daemon_is_gone() {
    let (host, options) = Host::new();
    let options = options.reconnect_for(Duration::ZERO);
    let registers = std::thread::spawn(move || SharedSession::register(&options).unwrap());
    drop(host.takes());
    assert!(matches!(registers.join().unwrap().receive_timeout(LONG), Err(ReceiveError::DaemonGone)));
}

#[test]
fn an_end_that_is_no_fault_of_the_daemon_is_told() {
    let (_host, mut daemon, session) = registered();
    let said = ControlResponse::Error { code: ErrorCode::BadRequest, message: "enough".into() };
    daemon.control.write_all(&encode_frame(&said).unwrap()).unwrap();
    let error = session.receive_timeout(LONG).unwrap_err();
    assert!(matches!(&error, ReceiveError::Ended { code: ErrorCode::BadRequest, .. }), "{error}");
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_wait_on_for_the_next_daemon() {
    let (mut host, daemon, session) = registered();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build().unwrap();
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let session = session.clone();
            runtime.spawn(async move { session.receive_async().await.unwrap().tag() })
        })
        .collect();
    host.stops();
    drop(daemon);
    host.starts();
    let mut next = host.takes();
    (1..4).for_each(|number| next.deliver(small(number, number, 100)));
    next.doorbell.ring();
    let mut tags: Vec<_> = waits.into_iter().map(|waits| runtime.block_on(waits).unwrap()).collect();
    tags.sort_unstable();
    assert_eq!(tags, [1001, 1002, 1003]);
}

#[test]
fn who_only_looks_hears_once_why_it_did_not_come_back() {
    let (host, daemon, session) = registered();
    drop(daemon);
    let tries = std::thread::spawn(move || {
        let hears = || loop {
            match session.try_receive() {
                Err(ReceiveError::NotYet) => std::thread::yield_now(),
                Err(error) => return error,
                Ok(message) => panic!("{message:?}"),
            }
        };
        (hears(), hears())
    });
    host.refuses(ErrorCode::Version);
    // It tries again, since it was told.
    host.refuses(ErrorCode::Internal);
    let (first, second) = tries.join().unwrap();
    assert!(matches!(&first, ReceiveError::NotBack(why) if why.to_string().contains("not now")), "{first}");
    let ReceiveError::NotBack(why) = &second else { panic!("{second}") };
    assert!(matches!(**why, RegisterError::Refused { code: ErrorCode::Internal, .. }), "{second}");
}
