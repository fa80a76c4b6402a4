//! Whose fault it is where descriptors that came over a socket cannot be had. The test uses up the
//! descriptors of its process, so it is alone in it.

use jet_fabric::unix::{FDS_MAX, receive_with_fds, send_with_fds};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};
use rustix::net::{SocketType, sendmsg, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

#[test]
fn too_many_descriptors_are_the_senders_fault_and_none_left_is_the_receivers() {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let many = vec![a.as_fd(); FDS_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX + 1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
    sendmsg(&a, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
    let error = receive_with_fds(b.as_fd(), &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    // With 4 descriptors left, 8 cannot be had, and 4 can.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let mut taken = Vec::new();
    while let Ok(fd) = a.try_clone() {
        taken.push(fd);
    }
    taken.truncate(taken.len() - 4);
    for (count, is_enough) in [(FDS_MAX, false), (4, true)] {
        assert_eq!(send_with_fds(a.as_fd(), b"x", &many[..count]).unwrap(), 1);
        let received = receive_with_fds(b.as_fd(), &mut [0; 8]);
        match received {
            Ok((_, fds)) => assert!(is_enough && fds.len() == count),
            Err(error) => {
                assert!(!is_enough && error.raw_os_error() == Some(libc::EMFILE), "{error}");
            }
        }
    }
    setrlimit(Resource::Nofile, limit).unwrap();
}
