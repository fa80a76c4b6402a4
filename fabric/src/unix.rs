//! Unix sockets: sending and receiving bytes with file descriptors, who is at the other end, and doorbells.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    shutdown, socketpair, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Most descriptors that one message carries.
pub const FDS_MAX: usize = 8;

const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));
/// Sends bytes with descriptors in one call, and returns how many bytes were taken. The descriptors go with
/// the first byte.
///
/// # Errors
/// What the system says; `WouldBlock` where the socket is non-blocking and full.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than 8 descriptors in one message"));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and the descriptors that came with them (close-on-exec). 0 bytes mean that the other end
/// closed.
///
/// # Errors
/// What the system says; `InvalidData` where more descriptors came than [`FDS_MAX`], and `EMFILE` where this
/// process has none left for those that came (all are closed).
pub fn receive_with_fds(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let fds = fds_of(&mut ancillary);
    let is_cut = got.flags.contains(ReturnFlags::CTRUNC);
    // The kernel stops at the first descriptor that it cannot make, and at the end of the space.
    if is_cut && fds.len() < FDS_MAX {
        return Err(Errno::MFILE.into());
    }
    // The space may have padding, where one more fits.
    if is_cut || fds.len() > FDS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other end sent more than 8 descriptors"));
    }
    Ok((got.bytes, fds))
}

fn fds_of(ancillary: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    fds
}

/// Message that was looked at or received.
#[derive(Debug)]
pub(crate) struct Received {
    /// Number of its bytes. 0 without descriptors: the other end closed.
    pub(crate) bytes: usize,
    /// The descriptors that came with it (close-on-exec), four at most. Their close may wait.
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether there are more descriptors than space for them, or this process has too few left. Then the
    /// message was not taken: the kernel would close the others, which may wait.
    pub(crate) is_left: bool,
}

/// Receives a message that comes with one descriptor at most, from a socket with one reader.
///
/// # Errors
/// What the system says.
pub(crate) fn receive_with_one_fd(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut *bytes)], &mut ancillary, flags) {
            Err(error) if hides_messages(error) => {}
            other => break other?,
        }
    };
    let fds = fds_of(&mut ancillary);
    let is_left = got.flags.contains(ReturnFlags::CTRUNC);
    if !is_left {
        // The kernel lets go of its own copies of the files: these are others, so nothing is closed.
        while recv(socket, &mut bytes[..0], RecvFlags::DONTWAIT).is_err_and(hides_messages) {}
    }
    Ok(Received { bytes: got.bytes, fds, is_left })
}

/// Returns whether there may be messages in a socket for packets that answered so. An end that is closed
/// with something unread makes the kernel tell the other end of a reset, once, before the messages that were
/// sent to it.
fn hides_messages(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::CONNRESET)
}

/// Messages that [`shut_down`] takes out of a socket, at most.
const TAKEN_MAX: usize = 64;

/// Ends a Unix socket both ways, and returns whether nothing waits unread in it that may carry files. `false`
/// where that cannot be told.
pub(crate) fn shut_down(socket: BorrowedFd<'_>) -> bool {
    // With credentials, each message has something beside its bytes. That tells a message without bytes from
    // none. There is space for the credentials, and for no files.
    if sockopt::set_socket_passcred(socket, true).is_err() || shutdown(socket, Shutdown::Both).is_err() {
        return false;
    }
    for _ in 0..TAKEN_MAX {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
            Ok(found) if found.flags.contains(ReturnFlags::CTRUNC) => return false,
            Ok(_) if ancillary.drain().next().is_none() => return true,
            Ok(_) => {}
            Err(error) if hides_messages(error) => continue,
            Err(_) => return false,
        }
        if recv(socket, &mut byte[..], RecvFlags::DONTWAIT).is_err() {
            return false;
        }
    }
    false
}

/// Socket option that says whether descriptors may be sent to a Unix socket, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Forbids sending descriptors to this Unix socket, and to connections that a listening one accepts: the
/// sending end gets `EPERM`. Whoever takes a message out of the socket then never closes a file that the
/// other end chose, which could wait.
///
/// # Errors
/// What the system says: `ENOPROTOOPT` before Linux 6.16, which cannot do this.
pub fn refuse_fds(socket: BorrowedFd<'_>) -> io::Result<()> {
    let refused: libc::c_int = 0;
    let bytes = libc::socklen_t::try_from(size_of_val(&refused)).expect("a few bytes");
    // SAFETY: the kernel reads `bytes` bytes of `refused`, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const refused).cast(),
            bytes,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Process that connected a Unix socket, as the kernel saw it when it did so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Number of the process; 0 where it is in another pid namespace.
    pub process: u32,
    /// Number of the process's user.
    pub user: u32,
}

/// Returns the process at the other end of a connected Unix socket.
///
/// # Errors
/// What the system says.
pub fn peer_of(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    // rustix's call expects a process number that is not 0.
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("a few bytes");
    // SAFETY: the kernel writes at most `bytes` bytes to `found`, and the number of bytes to `bytes`. Both
    // outlive the call, and every value of the bytes is a valid `ucred`.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials { process: found.pid.unsigned_abs(), user: found.uid })
}

/// State of a doorbell when it is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The bell did not ring.
    No,
    /// The bell rang; it is silent again.
    Yes,
    /// The other end is closed: its process is gone, or dropped it.
    Closed,
}

/// One end of a pair of doorbells. An end can ring the other end, and wait for a ring itself.
///
/// Doorbells are a socket pair and not an eventfd, because both ends of an eventfd are one open file. A
/// hostile peer could fill its counter, clear `O_NONBLOCK`, and block the process that rings next. Sending
/// with `MSG_DONTWAIT` never blocks, whatever the peer does. Besides, a socket shows that its other end is
/// closed, which an eventfd cannot.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// Makes a pair of doorbells, and returns both ends.
    ///
    /// # Errors
    /// What the system says: out of file descriptors (raise `ulimit -n`).
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for end in [&a, &b] {
            // Before Linux 6.16 a ring may carry a file, and whoever clears the bell closes it.
            let _ = refuse_fds(end.as_fd());
        }
        Ok((Self(a), Self(b)))
    }

    /// Makes an end of a descriptor that came from another process.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Rings the other end. Nothing happens where the other end rings already, or is closed.
    pub fn ring(&self) {
        ring(self.0.as_fd());
    }

    /// Takes all rings at this end, and returns whether there were any.
    pub fn clear(&self) -> Rung {
        clear(self.0.as_fd())
    }
}

/// Rings the other end of any connected Unix socket; see [`Doorbell::ring`].
pub fn ring(socket: BorrowedFd<'_>) {
    // A full socket means that rings wait there already. A closed one is noticed when the socket is polled.
    let _ = send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Rings that are taken at once. There is seldom more than one: an end rings when the other one sleeps.
const RINGS_AT_ONCE: usize = 4;

fn clear(socket: BorrowedFd<'_>) -> Rung {
    let mut rung = Rung::No;
    let mut bytes = [0u8; 64];
    // Bounded: a peer that rings without end must not hold this thread here.
    for _ in 0..RINGS_AT_ONCE {
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Rung::Closed,
            Ok(_) => rung = Rung::Yes,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(_) => return Rung::Closed,
        }
    }
    rung
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    fn take(socket: &OwnedFd) -> Received {
        receive_with_one_fd(socket.as_fd(), &mut [0; 8]).unwrap()
    }

    #[test]
    fn a_message_with_more_files_than_one_may_have_stays_with_them() {
        let (near, far) = pair();
        for files in [0, 1, 2, FDS_MAX] {
            let is_left = files == FDS_MAX;
            send_with_fds(far.as_fd(), b"hello", &vec![far.as_fd(); files]).unwrap();
            let received = take(&near);
            assert_eq!((received.bytes, received.is_left), (5, is_left), "{files}");
            assert_eq!(received.fds.len() == files, !is_left, "{files}: {received:?}");
            assert!(received.fds.len() <= 4, "{received:?}");
            // What was left is there yet, and may be taken.
            match receive_with_fds(near.as_fd(), &mut [0; 8]) {
                Ok((got, fds)) => assert!(is_left && got == 5 && fds.len() == files),
                Err(error) => assert!(!is_left && error.kind() == io::ErrorKind::WouldBlock, "{error}"),
            }
        }
        drop(far);
        let received = take(&near);
        assert!(received.bytes == 0 && received.fds.is_empty() && !received.is_left);
    }

    #[test]
    fn a_socket_is_drained_where_no_message_with_a_file_waits() {
        for messages in [&[][..], &[&b"x"[..]], &[b""], &[b"", b"", b"x"]] {
            let (near, far) = pair();
            for message in messages {
                send(&far, message, SendFlags::empty()).unwrap();
            }
            assert!(shut_down(near.as_fd()), "{messages:?}");
            // From then on, nothing can be sent.
            assert_eq!(send(&far, b"x", SendFlags::NOSIGNAL), Err(Errno::PIPE));
            drop(far);
            assert!(shut_down(near.as_fd()));
            // With a file, behind these. It stays in its message.
            let (near, far) = pair();
            for message in messages {
                send(&far, message, SendFlags::empty()).unwrap();
            }
            send_with_fds(far.as_fd(), b"", &[far.as_fd()]).unwrap();
            assert!(!shut_down(near.as_fd()), "{messages:?}");
            assert!(!shut_down(near.as_fd()), "it is there yet");
        }
        // Its other end was closed before it had read what came, and the system tells that as an error.
        let (near, far) = pair();
        send(&near, b"x", SendFlags::empty()).unwrap();
        drop(far);
        assert!(shut_down(near.as_fd()));
        // More than is looked at.
        let (near, far) = pair();
        rustix::net::sockopt::set_socket_send_buffer_size(&far, 1 << 20).unwrap();
        let many = (0..=TAKEN_MAX).take_while(|_| send(&far, b"x", SendFlags::DONTWAIT).is_ok()).count();
        assert_eq!(shut_down(near.as_fd()), many < TAKEN_MAX, "{many}");
    }

    #[test]
    fn a_doorbell_takes_no_files() {
        let (near, far) = Doorbell::pair().unwrap();
        let sent = send_with_fds(far.as_fd(), b"x", &[far.as_fd()]);
        let (a, _b) = pair();
        match refuse_fds(a.as_fd()) {
            Ok(()) => assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EPERM)),
            // Before Linux 6.16.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
        }
        far.ring();
        assert_eq!(near.clear(), Rung::Yes);
    }

    #[test]
    fn descriptors_travel_with_their_bytes() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .expect("a socket pair");
        let memory = crate::memory::SharedMemory::new("jet-test", 4096, false).unwrap();
        assert_eq!(send_with_fds(a.as_fd(), b"hello", &[memory.as_fd(), a.as_fd()]).unwrap(), 5);
        let mut bytes = [0; 16];
        let (got, fds) = receive_with_fds(b.as_fd(), &mut bytes).unwrap();
        assert_eq!((&bytes[..got], fds.len()), (&b"hello"[..], 2));
    }

    #[test]
    fn the_process_at_the_other_end_is_known() {
        let (a, _b) = Doorbell::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(peer_of(a.as_fd()).unwrap(), PeerCredentials { process: std::process::id(), user });
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer_of(file.as_fd()).is_err());
    }

    #[test]
    fn a_doorbell_rings_once_and_tells_a_closed_end() {
        let (a, b) = Doorbell::pair().unwrap();
        assert_eq!(b.clear(), Rung::No);
        (0..100_000).for_each(|_| a.ring());
        while b.clear() == Rung::Yes {}
        a.ring();
        assert_eq!(b.clear(), Rung::Yes);
        assert_eq!(b.clear(), Rung::No);
        drop(a);
        assert_eq!(b.clear(), Rung::Closed);
        b.ring();
    }
}
