//! Session whose daemon is the test.

use jet_client::receive::{Session, SessionParts};
use jet_control::ControlConnection;
use jet_control::connection::ANSWER_TIMEOUT;
use jet_fabric::memory::SharedMemory;
use jet_fabric::unix::Doorbell;
use jet_wire::SLAB_BYTES;
use jet_wire::segment::{DaemonEnd, SegmentLayout, SegmentShape, daemon_end};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Daemon's side of a session. The session lasts as long as this value is kept.
pub(super) struct DaemonSide {
    /// Daemon's end of the rings. This end points into the segment, which must live as long.
    pub end: DaemonEnd,
    pub pool: SharedMemory,
    _segment: SharedMemory,
    _control: UnixStream,
    _doorbell: Doorbell,
}

/// Makes a session on a pool of `slabs` slabs, with as many slots and as many messages.
pub(super) fn session(slabs: u32) -> (DaemonSide, Session) {
    let shape = SegmentShape::new(slabs, slabs);
    let segment = SharedMemory::new("jet-test", SegmentLayout::new(shape).total_bytes(), false).unwrap();
    let pool = SharedMemory::new("jet-test", slabs as usize * SLAB_BYTES, false).unwrap();
    // SAFETY: the segment is kept beside the end, and this is the only daemon's end.
    let end = unsafe { daemon_end(segment.base(), segment.bytes(), shape) }.unwrap();
    let (near_bell, far_bell) = Doorbell::pair().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let owned = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    let parts = SessionParts {
        number: 1,
        pool: owned(pool.as_fd()),
        pool_bytes: pool.bytes() as u64,
        pool_slabs: slabs,
        segment: owned(segment.as_fd()),
        doorbell: owned(near_bell.as_fd()),
        escape: None,
    };
    let control = ControlConnection::from_stream(near, ANSWER_TIMEOUT).unwrap();
    let session = Session::assemble(control, parts, Duration::ZERO).unwrap();
    (DaemonSide { end, pool, _segment: segment, _control: far, _doorbell: far_bell }, session)
}
