//! Messages that the two ends exchange over the socket. Each packet is one message: a control message, or one
//! byte that rings the bell.
//!
//! | kind | sent by | descriptor that goes with it | fields |
//! |---|---|---|---|
//! | connect | connecting end, first | the link's memory file | private data, READs answered at once |
//! | accept | accepting end, first | | private data, READs answered at once |
//! | reject | accepting end, first | | private data |
//! | register | either | the region's memory file | key |
//! | deregister | either | | key |

use crate::nic::{PRIVATE_DATA_MAX, PrivateData};
use crate::soft::strangers::Said;
use crate::unix;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Version of the link's layout and of the control messages.
const VERSION: u16 = 2;
const MAGIC: [u8; 4] = *b"JSHM";

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct RawControl {
    magic: [u8; 4],
    version: u16,
    kind: u16,
    key: u32,
    reads_answered: u32,
    private_used: u32,
    private: [u8; PRIVATE_DATA_MAX],
}

const CONTROL_BYTES: usize = size_of::<RawControl>();
const BELL: [u8; 1] = [1];

mod kind {
    pub(super) const CONNECT: u16 = 1;
    pub(super) const ACCEPT: u16 = 2;
    pub(super) const REJECT: u16 = 3;
    pub(super) const REGISTER: u16 = 4;
    pub(super) const DEREGISTER: u16 = 5;
}

/// Control message, without the descriptor that may go with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Asks for a connection over the link whose memory file goes with the message.
    Connect {
        /// Private data of the connecting user.
        private_data: PrivateData,
        /// READs of its receiver that the sender of this message answers at once.
        reads_answered: u32,
    },
    /// Accepts the connection.
    Accept {
        /// Private data of the accepting user.
        private_data: PrivateData,
        /// READs of its receiver that the sender of this message answers at once.
        reads_answered: u32,
    },
    /// Refuses the connection, with the refusing user's private data.
    Reject(PrivateData),
    /// Announces that the region with this key may be read.
    Register(u32),
    /// Announces that the region with this key may no longer be read.
    Deregister(u32),
}

/// Outcome of taking a message from the socket.
#[derive(Debug)]
pub(super) enum Received {
    /// The peer rang the bell: there is something in the link.
    Bell,
    /// A control message, with the memory file where its kind has one.
    Control(Control, Option<OwnedFd>),
    /// No more messages for now.
    Nothing,
    /// The other end is closed.
    Closed,
    /// This is no message of this protocol. Files that came with it may wait when they are closed. The
    /// message may be in the socket yet.
    Malformed(Vec<OwnedFd>),
    /// This process has no descriptor left for the file that came. The message is in the socket yet.
    NoDescriptor,
}

/// Sends a control message. `false` where the socket is full.
pub(super) fn send_control(
    socket: &OwnedFd,
    control: Control,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<bool> {
    let (kind, key, reads_answered, private) = match control {
        Control::Connect { private_data, reads_answered } => {
            (kind::CONNECT, 0, reads_answered, Some(private_data))
        }
        Control::Accept { private_data, reads_answered } => {
            (kind::ACCEPT, 0, reads_answered, Some(private_data))
        }
        Control::Reject(data) => (kind::REJECT, 0, 0, Some(data)),
        Control::Register(key) => (kind::REGISTER, key, 0, None),
        Control::Deregister(key) => (kind::DEREGISTER, key, 0, None),
    };
    let mut raw = RawControl {
        magic: MAGIC,
        version: VERSION,
        kind,
        key,
        reads_answered,
        private_used: 0,
        private: [0; PRIVATE_DATA_MAX],
    };
    if let Some(data) = private {
        let data = data.as_slice();
        raw.private[..data.len()].copy_from_slice(data);
        raw.private_used = u32::try_from(data.len()).expect("at most 56 bytes");
    }
    let sent = match file {
        Some(file) => crate::unix::send_with_fds(socket.as_fd(), raw.as_bytes(), &[file]),
        None => {
            send(socket, raw.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map_err(io::Error::from)
        }
    };
    match sent {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Looks at what a peer has said, without taking it out of the socket. Whether the right file came with a
/// request is found out when it is taken.
pub(super) fn said(socket: &OwnedFd) -> Said {
    let mut bytes = [0u8; CONTROL_BYTES + 1];
    let got = loop {
        match recv(socket, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((got, _)) => break got,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Said::NotAll,
            Err(_) => return Said::Gone,
        }
    };
    match (got, parse(&bytes[..got])) {
        (0, _) => Said::Gone,
        (_, Some(Control::Connect { .. })) => Said::Request,
        _ => Said::Garbage,
    }
}

/// Takes one message from a socket, which must be non-blocking.
pub(super) fn receive(socket: &OwnedFd) -> Received {
    // One byte more than any message has, so that a longer one is noticed.
    let mut bytes = [0u8; CONTROL_BYTES + 1];
    let unix::Received { bytes: got, fds: mut files, is_left } =
        match unix::receive_with_one_fd(socket.as_fd(), &mut bytes) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Nothing,
            Err(_) => return Received::Closed,
        };
    match (is_left, &files[..]) {
        (true, []) => return Received::NoDescriptor,
        // No message has two files.
        (true, _) => return Received::Malformed(files),
        (false, _) => {}
    }
    let control = match (got, &files[..]) {
        (0, []) => return Received::Closed,
        (1, []) if bytes[..1] == BELL => return Received::Bell,
        (CONTROL_BYTES, _) => parse(&bytes[..CONTROL_BYTES]),
        _ => None,
    };
    match control {
        Some(control) if files.len() == usize::from(carries_file(control)) => {
            Received::Control(control, files.pop())
        }
        _ => Received::Malformed(files),
    }
}

fn carries_file(control: Control) -> bool {
    matches!(control, Control::Connect { .. } | Control::Register(_))
}

fn parse(bytes: &[u8]) -> Option<Control> {
    let raw = RawControl::read_from_bytes(bytes).ok()?;
    if raw.magic != MAGIC || raw.version != VERSION {
        return None;
    }
    let private = || PrivateData::new(raw.private.get(..raw.private_used as usize)?);
    let reads_answered = raw.reads_answered;
    match raw.kind {
        kind::CONNECT => Some(Control::Connect { private_data: private()?, reads_answered }),
        kind::ACCEPT => Some(Control::Accept { private_data: private()?, reads_answered }),
        kind::REJECT => Some(Control::Reject(private()?)),
        kind::REGISTER => Some(Control::Register(raw.key)),
        kind::DEREGISTER => Some(Control::Deregister(raw.key)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SharedMemory;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn messages_arrive_as_sent() {
        let (a, b) = pair();
        let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
        let data = PrivateData::new(b"hello").unwrap();
        for control in [
            Control::Connect { private_data: data, reads_answered: 16 },
            Control::Accept { private_data: data, reads_answered: u32::MAX },
            Control::Reject(PrivateData::new(&[7; PRIVATE_DATA_MAX]).unwrap()),
            Control::Register(9),
            Control::Deregister(u32::MAX),
        ] {
            let file = carries_file(control).then(|| memory.as_fd());
            assert!(send_control(&a, control, file).unwrap());
            match receive(&b) {
                Received::Control(found, file) => {
                    assert_eq!((found, file.is_some()), (control, carries_file(control)));
                }
                other => panic!("{other:?}"),
            }
        }
        crate::unix::ring(a.as_fd());
        assert!(matches!(receive(&b), Received::Bell));
        assert!(matches!(receive(&b), Received::Nothing));
        drop(a);
        assert!(matches!(receive(&b), Received::Closed));
    }

    #[test]
    fn who_closes_with_something_unread_takes_back_nothing_that_it_said() {
        let (a, b) = pair();
        let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
        assert!(send_control(&a, Control::Register(1), Some(memory.as_fd())).unwrap());
        let no = Control::Reject(PrivateData::new(b"no").unwrap());
        assert!(send_control(&b, no, None).unwrap());
        drop(b);
        assert!(matches!(receive(&a), Received::Control(found, None) if found == no));
        assert!(matches!(receive(&a), Received::Closed));
    }

    #[test]
    fn what_is_no_message_is_malformed() {
        let (a, b) = pair();
        let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
        let raw = RawControl {
            magic: MAGIC,
            version: VERSION,
            kind: kind::ACCEPT,
            key: 0,
            reads_answered: 1,
            private_used: 0,
            private: [0; PRIVATE_DATA_MAX],
        };
        let broken = [
            RawControl { magic: *b"HTTP", ..raw },
            RawControl { version: 1, ..raw },
            RawControl { kind: 99, ..raw },
            RawControl { private_used: 57, ..raw },
            // Its file is missing.
            RawControl { kind: kind::REGISTER, ..raw },
        ];
        for raw in broken {
            send(&a, raw.as_bytes(), SendFlags::empty()).unwrap();
            assert!(matches!(receive(&b), Received::Malformed(_)), "{raw:?}");
        }
        for length in [2, CONTROL_BYTES - 1, CONTROL_BYTES + 1, 500] {
            send(&a, &vec![1; length], SendFlags::empty()).unwrap();
            assert!(matches!(receive(&b), Received::Malformed(_)), "{length} bytes");
        }
        // A file with a message that has none, and two files with one that has one.
        assert!(send_control(&a, Control::Deregister(1), Some(memory.as_fd())).unwrap());
        assert!(matches!(receive(&b), Received::Malformed(_)));
        crate::unix::send_with_fds(a.as_fd(), raw.as_bytes(), &[memory.as_fd(), memory.as_fd()]).unwrap();
        assert!(matches!(receive(&b), Received::Malformed(_)));
    }

    #[test]
    fn a_full_socket_says_so() {
        let (a, _b) = pair();
        let sent =
            (0..10_000).take_while(|_| send_control(&a, Control::Deregister(1), None).unwrap()).count();
        assert!(sent < 10_000);
    }
}
