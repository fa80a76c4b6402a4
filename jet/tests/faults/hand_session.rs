//! Session of an application that follows no rules: the test registers by hand, and writes whatever it wants
//! into the segment.

use crate::traffic::Traffic;
use jet_control::frame::FrameDecoder;
use jet_control::protocol::Register;
use jet_control::{ControlConnection, ControlRequest, ControlResponse, ErrorCode};
use jet_fabric::memory::{Mapping, Protection};
use jet_fabric::unix::{Doorbell, receive_with_fds};
use jet_test_support::waiting::until;
use jet_wire::segment::{AppEnd, Delivery, Release, app_end};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Control connection, descriptors and mapping that the daemon gave to a registered application.
pub struct HandSession {
    connection: ControlConnection,
    decoder: FrameDecoder,
    pub pool: OwnedFd,
    pub segment: OwnedFd,
    pub bell: Doorbell,
    pub mapping: Mapping,
}

impl HandSession {
    /// Registers with the daemon, and does not try again if it refuses.
    ///
    /// # Errors
    /// The code and the words of the daemon's refusal.
    pub fn try_register(control: &Path, app: &str) -> Result<Self, (ErrorCode, String)> {
        let mut connection = ControlConnection::connect(control).expect("the daemon listens");
        let request = ControlRequest::Register(Register::new(app));
        match connection.request(&request).expect("an answer") {
            (ControlResponse::Registered(_), fds) => {
                let [pool, segment, bell, _escape] = <[OwnedFd; 4]>::try_from(fds).expect("four descriptors");
                let mapping = Mapping::map_received(segment.as_fd(), Protection::ReadWrite, 1 << 30)
                    .expect("a sealed segment");
                let (decoder, bell) = (FrameDecoder::default(), Doorbell::from_fd(bell));
                Ok(Self { connection, decoder, pool, segment, bell, mapping })
            }
            (ControlResponse::Error { code, message }, _) => Err((code, message)),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// Registers as soon as the name is free and the slabs that this process held before are back.
    pub fn register(control: &Path, app: &str) -> Self {
        until("the name to be free", || match Self::try_register(control, app) {
            Ok(session) => Some(session),
            Err((ErrorCode::NameTaken | ErrorCode::Quarantined, _)) => None,
            Err(refused) => panic!("{refused:?}"),
        })
    }

    /// Returns the application's end of the segment.
    pub fn end(&self) -> AppEnd {
        // SAFETY: the mapping is page-aligned, and callers keep the session as long as the end. A second end
        // would only spoil this session, which is what these tests are about.
        unsafe { app_end(self.mapping.base(), self.mapping.bytes()) }.expect("a segment")
    }

    /// Sends bytes on the control connection.
    pub fn say(&self, bytes: &[u8]) {
        let said = jet_fabric::unix::send_with_fds(self.connection.as_fd(), bytes, &[]).expect("it listens");
        assert_eq!(said, bytes.len());
    }

    /// Returns `None` while the daemon has not hung up. Then returns the error that it sent before, if it
    /// sent one. Never waits.
    pub fn hung_up(&mut self) -> Option<Option<(ErrorCode, String)>> {
        let fd = self.connection.as_fd();
        let mut said = None;
        loop {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).expect("poll") == 0 {
                assert!(said.is_none() || !self.decoder.is_midway(), "a frame was cut");
                return said.map(Some);
            }
            let mut bytes = [0; 4096];
            match receive_with_fds(fd, &mut bytes) {
                Ok((0, _)) | Err(_) => return Some(said),
                Ok((got, _)) => self.decoder.push(&bytes[..got]),
            }
            match self.decoder.next_frame().expect("a frame") {
                Some(ControlResponse::Error { code, message }) => said = Some((code, message)),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }

    /// Waits until the daemon ends the session, and returns the error that it sent.
    #[track_caller]
    pub fn wait_ended(&mut self) -> (ErrorCode, String) {
        until("the session to be ended", || self.hung_up()).expect("it says why")
    }
}

/// Waits for the next delivery, while its sender gets its turns. The sender needs them to learn of new credit
/// and to send.
#[track_caller]
pub fn wait_delivery(end: &mut AppEnd, from: &mut Traffic) -> Delivery {
    until("a delivery", || {
        from.sender.flush();
        end.deliveries.pop().expect("a sound ring")
    })
}

/// Writes release entries, shows them to the daemon, and rings if the daemon sleeps.
pub fn release(session: &HandSession, end: &mut AppEnd, releases: &[Release]) {
    for release in releases {
        end.releases.push(*release).expect("room");
    }
    end.releases.publish();
    if end.releases.wake_needed() {
        session.bell.ring();
    }
}
