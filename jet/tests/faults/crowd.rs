//! A crowd of connections that say nothing and connect again as soon as they are closed.

use jet_fabric::Address;
use jet_test_support::pipe::pipe;
use jet_test_support::waiting::until;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv};
use rustix::net::{ipproto, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Socket that a crowd connects to.
#[derive(Clone)]
enum Door {
    Unix(PathBuf, SocketType),
    Tcp(SocketAddr),
}

impl Door {
    /// Returns the socket at an address where the daemon's software NIC listens.
    fn of(address: &Address) -> Self {
        match address {
            Address::Shm(path) => Self::Unix(path.clone(), SocketType::SEQPACKET),
            Address::Tcp(host_port) => Self::Tcp(host_port.parse().expect("a number")),
            Address::Rdma(_) => panic!("an address of the software NIC"),
        }
    }

    /// Connects. `None` where as many connections wait to be accepted as may wait.
    fn knock(&self) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, connected) = match self {
            Self::Unix(path, kind) => {
                let socket = socket_with(AddressFamily::UNIX, *kind, flags, None).expect("a socket");
                let connected = connect(&socket, &SocketAddrUnix::new(path).expect("a short path"));
                (socket, connected)
            }
            Self::Tcp(address) => {
                let kind = (AddressFamily::INET, SocketType::STREAM);
                let socket = socket_with(kind.0, kind.1, flags, Some(ipproto::TCP)).expect("a socket");
                let connected = connect(&socket, address);
                (socket, connected)
            }
        };
        match connected {
            Ok(()) | Err(Errno::INPROGRESS) => Some(socket),
            Err(Errno::AGAIN) => None,
            Err(error) => panic!("the daemon does not listen: {error}"),
        }
    }
}

/// Crowd that a thread keeps up until it is dropped.
pub struct Crowd {
    closed: Arc<AtomicU64>,
    stop: Option<File>,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Lets so many connections come to the daemon's control socket.
    pub fn at_control(path: &Path, count: usize) -> Self {
        Self::at(Door::Unix(path.to_owned(), SocketType::STREAM), count, true)
    }

    /// Lets so many connections come to an address where the daemon's software NIC listens.
    pub fn at_nic(address: &Address, count: usize) -> Self {
        Self::at(Door::of(address), count, true)
    }

    /// Lets so many connections come to such an address, which stay away once one of them was closed.
    pub fn once_at_nic(address: &Address, count: usize) -> Self {
        Self::at(Door::of(address), count, false)
    }

    fn at(door: Door, count: usize, comes_back: bool) -> Self {
        // Shells set a soft limit of 1,024 descriptors, and this process's tests share them.
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("it may be raised");
        let (stopped, stop) = pipe();
        let closed = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&closed);
        let mut sockets: Vec<_> = (0..count).filter_map(|_| door.knock()).collect();
        assert!(sockets.len() > count / 2, "the daemon takes connections");
        let thread = std::thread::spawn(move || {
            loop {
                let mut watched: Vec<_> = sockets.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
                watched.push(PollFd::new(&stopped, PollFlags::IN));
                poll(&mut watched, None).expect("sockets can be watched");
                let is_ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
                if is_ready[sockets.len()] {
                    return;
                }
                for (socket, _) in sockets.iter_mut().zip(is_ready).filter(|(_, is_ready)| *is_ready) {
                    let mut bytes = [0u8; 1024];
                    // What the daemon says before it hangs up is of no interest here.
                    let is_closed = match recv(&*socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                        Ok((got, _)) => got == 0,
                        Err(error) => error != Errno::AGAIN,
                    };
                    if is_closed && !comes_back {
                        counted.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                    if is_closed && let Some(again) = door.knock() {
                        *socket = again;
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        Self { closed, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns how many connections were closed.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Waits until so many connections were closed from now on.
    #[track_caller]
    pub fn wait_for_more(&self, count: u64) {
        let enough = self.closed() + count;
        until("connections to be closed", || (self.closed() >= enough).then_some(()));
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(), "the crowd broke");
    }
}
