//! TCP sockets for this transport: non-blocking, gathering and scattering straight from and to registered
//! memory.

use crate::memory::touch;
use crate::soft::options::TcpOptions;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Connections that the kernel may hold until they are accepted. A thousand senders may start at once.
const BACKLOG: i32 = 4096;
/// Unanswered probes after which an idle connection counts as dead. Where the kernel has `TCP_USER_TIMEOUT`,
/// that decides.
const KEEPALIVE_PROBES: u32 = 3;
/// Congestion control of connections within a host: the kernel's simplest, which every kernel has. Users may
/// choose it unless the system leaves it out of `net.ipv4.tcp_allowed_congestion_control`. Between two
/// processes of one host no network is congested. What the system uses may send by a timer, as BBR does: the
/// timer of each 64 KiB then costs as much as copying them.
const WITHIN_HOST: &str = "reno";

/// Stretch of memory of a gather or scatter list.
pub(super) type IoVec = libc::iovec;

/// Outcome of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoOutcome {
    /// So many bytes were moved, at least one.
    Bytes(usize),
    /// No bytes can be moved now; the epoll reports when that changes.
    Blocked,
    /// The peer has closed the connection (reads only).
    End,
    /// The connection failed with this errno.
    Failed(i32),
}

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn open(address: &SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family(address), SocketType::STREAM, flags, Some(ipproto::TCP))?)
}

/// Resolves `host:port` to all its addresses. The call may wait for a name server.
pub(super) fn resolve(host_port: &str) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<_> = host_port.to_socket_addrs()?.collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

/// Makes a listening socket, and returns its real address, too.
pub(super) fn listen(address: &SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = open(address)?;
    if address.ip().is_loopback() {
        // Those that are accepted inherit it.
        leave_out_pacing(&socket);
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, bound))
}

/// Takes the next connection that waits to be accepted, and returns its peer's address.
pub(super) fn accept(listener: BorrowedFd<'_>) -> Result<(OwnedFd, IpAddr), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, address) = rustix::net::acceptfrom_with(listener, flags)?;
    // A peer that has gone already may have no address.
    let address = address.ok_or(Errno::CONNABORTED)?;
    Ok((socket, SocketAddr::try_from(address)?.ip()))
}

/// Copies the bytes that wait in a socket, as many as fit, and leaves them there.
pub(super) fn peek(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> IoOutcome {
    loop {
        match rustix::net::recv(socket, &mut *bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => return IoOutcome::End,
            Ok((got, _)) => return IoOutcome::Bytes(got),
            Err(Errno::AGAIN) => return IoOutcome::Blocked,
            Err(Errno::INTR) => {}
            Err(error) => return IoOutcome::Failed(error.raw_os_error()),
        }
    }
}

/// Makes a socket that begins to connect. It becomes writable, or fails, when the connect is done.
pub(super) fn connect(address: &SocketAddr, options: &TcpOptions) -> io::Result<OwnedFd> {
    let socket = open(address)?;
    if is_own(address) {
        // Before it is connected: a kernel that has begun to send by a timer goes on with it.
        leave_out_pacing(&socket);
    }
    prepare(&socket, options)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether the address is one of this host's.
fn is_own(address: &SocketAddr) -> bool {
    address.ip().is_loopback() || own_address_towards(address).is_ok_and(|own| own == address.ip())
}

/// Returns the address that this host uses to reach another one. Nothing is sent.
fn own_address_towards(address: &SocketAddr) -> io::Result<IpAddr> {
    let probe = rustix::net::socket_with(
        family(address),
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(ipproto::UDP),
    )?;
    rustix::net::connect(&probe, address)?;
    Ok(SocketAddr::try_from(rustix::net::getsockname(&probe)?)?.ip())
}

/// Chooses a congestion control without pacing for a connection within this host.
fn leave_out_pacing(socket: &OwnedFd) {
    // Where it cannot be had the system's own one serves: only speed depends on it.
    let _ = sockopt::set_tcp_congestion(socket, WITHIN_HOST);
}

/// Sets the options that every connection has. Called before the handshake's first byte.
pub(super) fn prepare(socket: &OwnedFd, options: &TcpOptions) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    if let Some(bytes) = options.send_buffer_bytes {
        sockopt::set_socket_send_buffer_size(socket, bytes)?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    }
    let limit = options.peer_timeout;
    // The kernel's limits: 24 days here, and 9 hours for the spans below.
    const MILLIS_MAX: u32 = i32::MAX.unsigned_abs();
    const SECONDS_MAX: u64 = 32_767;
    let millis = u32::try_from(limit.as_millis()).unwrap_or(MILLIS_MAX).min(MILLIS_MAX);
    sockopt::set_tcp_user_timeout(socket, millis)?;
    // Unacknowledged data is covered by the user timeout; an idle connection needs probes.
    let idle = Duration::from_secs((limit.as_secs() / 2).clamp(1, SECONDS_MAX));
    let between = limit.as_secs() / (2 * u64::from(KEEPALIVE_PROBES));
    let between = Duration::from_secs(between.clamp(1, SECONDS_MAX));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, between)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    Ok(())
}

/// Returns how a connect that was begun has ended; `ENOTCONN` where it has not ended.
pub(super) fn outcome(socket: BorrowedFd<'_>) -> Result<(), i32> {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) => rustix::net::getpeername(socket).map(drop).map_err(Errno::raw_os_error),
        Ok(Err(error)) | Err(error) => Err(error.raw_os_error()),
    }
}

fn io_outcome(result: isize) -> Option<IoOutcome> {
    match usize::try_from(result) {
        Ok(0) => Some(IoOutcome::End),
        Ok(bytes) => Some(IoOutcome::Bytes(bytes)),
        Err(_) => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => None,
            Some(libc::EAGAIN) => Some(IoOutcome::Blocked),
            code => Some(IoOutcome::Failed(code.unwrap_or(libc::EIO))),
        },
    }
}

/// Reads into the stretches, in their order.
///
/// Memory that the kernel cannot write is touched once, and the read tried again ([`touch`]).
///
/// # Safety
/// Every stretch is memory that this process may read and write for the length of the call, and that nobody
/// holds a reference into.
pub(super) unsafe fn read(socket: BorrowedFd<'_>, stretches: &[IoVec]) -> IoOutcome {
    let count = i32::try_from(stretches.len()).expect("few stretches");
    let mut touched = false;
    loop {
        // SAFETY: the caller answers for the stretches; the array itself is a live slice.
        let result = unsafe { libc::readv(socket.as_raw_fd(), stretches.as_ptr(), count) };
        match io_outcome(result) {
            Some(IoOutcome::Failed(libc::EFAULT)) if !touched => {
                touched = true;
                // SAFETY: the caller answers for the stretches.
                unsafe { touch(stretches) };
            }
            Some(outcome) => return outcome,
            None => {}
        }
    }
}

/// Writes the stretches, in their order.
///
/// # Safety
/// Every stretch is memory that this process may read for the length of the call. Other processes and threads
/// may change it meanwhile.
pub(super) unsafe fn write(socket: BorrowedFd<'_>, stretches: &mut [IoVec]) -> IoOutcome {
    // SAFETY: all zero is a valid msghdr: no name, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = stretches.as_mut_ptr();
    message.msg_iovlen = stretches.len();
    loop {
        // SAFETY: the caller answers for the stretches; the message outlives the call.
        let result = unsafe {
            libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        };
        if let Some(outcome) = io_outcome(result) {
            return outcome;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn connections_within_a_host_are_not_paced_at_either_end() {
        let (listener, address) = listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let connecting = connect(&address, &TcpOptions::default()).unwrap();
        let mut ready = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut ready, None), Ok(1));
        let (accepted, _) = accept(listener.as_fd()).unwrap();
        for socket in [&connecting, &accepted] {
            assert_eq!(sockopt::tcp_congestion(socket).unwrap(), WITHIN_HOST);
        }
    }

    #[test]
    fn own_addresses_are_told_from_others() {
        assert!(is_own(&"127.0.0.1:1".parse().unwrap()));
        assert!(is_own(&"[::1]:1".parse().unwrap()));
        // An address for documents (RFC 5737), which no host has.
        let other = "192.0.2.1:1".parse().unwrap();
        assert!(!is_own(&other));
        // Without a route there is no other own address to try.
        if let Ok(own) = own_address_towards(&other) {
            assert!(is_own(&SocketAddr::new(own, 1)));
        }
    }
}
