//! A file whose close waits: a TCP socket that lingers, and whose other end takes nothing.

use rustix::net::sockopt;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The other end of a socket whose close waits. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct Lingering {
    _far: TcpStream,
}

impl Lingering {
    /// Time that the close waits, unless this value is dropped.
    pub(crate) const SPAN: Duration = Duration::from_secs(20);

    /// Makes such a socket. Whoever drops the last copy of it waits.
    pub(crate) fn new() -> (Self, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // Small buffers: where TCP has much memory, the kernel cuts off connections that wait to be closed.
        sockopt::set_socket_recv_buffer_size(&listener, 1).expect("a socket");
        let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let (far, _) = listener.accept().expect("it has connected");
        near.set_nonblocking(true).expect("a socket");
        sockopt::set_socket_send_buffer_size(&near, 1).expect("a socket");
        sockopt::set_socket_linger(&near, Some(Self::SPAN)).expect("a socket");
        let mut bytes = [0; 1 << 16];
        bytes.fill(1);
        // Until the other end's buffer is full, and this end's, too.
        while rustix::io::write(&near, &bytes).is_ok() {}
        (Self { _far: far }, near.into())
    }
}
