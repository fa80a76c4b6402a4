//! Fuzzing of a connection of the software NIC over `tcp:`. The fuzzer plays the other end: it connects to
//! the NIC or is connected to, speaks valid frames of every kind, changes them, cuts them anywhere, says
//! anything else, and hangs up. Between its words it lets the NIC's user post work, and time pass.
//!
//! The NIC must not panic, take more memory than a connection has, or work without an end. Memory that was
//! not given to it stays as it was. Each SEND that arrives is one of the peer's, whole and in order. Memory
//! that the NIC lets be read is answered as it is, and no other. Work completes once. The connection ends,
//! and a peer that kept the protocol is never blamed for breaking it.
//!
//! The bytes go through sockets of this host, where what was written is there at once: nothing waits.

#![no_main]

mod host;
mod stream;

use host::{Host, SLAB, SOURCE_BYTES, answer_byte, source_byte};
use jet_fabric::address::Address;
use jet_fabric::nic::{Nic, PRIVATE_DATA_MAX, PrivateData, Qp};
use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use rustix::net::sockopt::set_socket_linger;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::time::Duration;
use stream::{FRAME_BYTES, HEADER_BYTES, Head, kind};

/// Where the NIC connects to.
static LISTENER: LazyLock<TcpListener> = LazyLock::new(|| TcpListener::bind("127.0.0.1:0").expect("a port"));

/// Address in the list of the peer's READs for those that must not be answered.
const FORBIDDEN: u64 = u64::MAX;

/// READ that the NIC asked the peer for.
struct Asked {
    id: u64,
    bytes: u32,
    done: u32,
}

/// The fuzzer's end.
struct Peer {
    socket: TcpStream,
    /// All that the peer says; `said[written..]` waits.
    said: Vec<u8>,
    written: usize,
    /// Where the last frame begins in `said`.
    last: usize,
    heard: Vec<u8>,
    asked: VecDeque<Asked>,
    /// READs that the peer asked for: address and bytes, and how much was answered.
    reads: VecDeque<(u64, u32, u32)>,
    reads_begun: u64,
    sends_heard: u64,
    sends_acknowledged: u64,
    /// Whether both ends have agreed to connect.
    connected: bool,
    /// Whether the peer is to answer a request to connect.
    is_asked: bool,
    /// Whether the peer said that nothing follows, or the NIC did.
    ended: bool,
    /// Whether the peer keeps the protocol.
    honest: bool,
    hung_up: bool,
    /// Whether the peer asked for room, and the bytes that the NIC lets it offer.
    asked_room: bool,
    room: u64,
    /// Piece of an answer that awaits its `ReadEnd`.
    piece: Option<Vec<u8>>,
}

impl Peer {
    fn new(socket: TcpStream) -> Self {
        socket.set_nonblocking(true).expect("a flag");
        socket.set_nodelay(true).expect("an option");
        // The socket's end leaves nothing behind in the kernel: there are thousands a second.
        set_socket_linger(&socket, Some(Duration::ZERO)).expect("an option");
        Self {
            socket,
            said: Vec::new(),
            written: 0,
            last: 0,
            heard: Vec::new(),
            asked: VecDeque::new(),
            reads: VecDeque::new(),
            reads_begun: 0,
            sends_heard: 0,
            sends_acknowledged: 0,
            connected: false,
            is_asked: false,
            ended: false,
            honest: true,
            hung_up: false,
            asked_room: false,
            room: 0,
            piece: None,
        }
    }

    fn say(&mut self, head: Head, body: &[u8]) {
        self.last = self.said.len();
        self.said.extend(head.to_bytes());
        self.said.extend(body);
    }

    /// Writes so many of the bytes that wait, as far as the socket takes them.
    fn write(&mut self, bytes: usize) {
        let until = (self.written + bytes).min(self.said.len());
        while self.written < until && !self.hung_up {
            match self.socket.write(&self.said[self.written..until]) {
                Ok(taken) => self.written += taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.hung_up = true,
            }
        }
    }

    /// Reads what the NIC said, and checks it.
    fn hear(&mut self) {
        let mut bytes = [0; 16 << 10];
        while let Ok(got @ 1..) = self.socket.read(&mut bytes) {
            self.heard.extend(&bytes[..got]);
        }
        let heard = std::mem::take(&mut self.heard);
        let mut rest = &heard[..];
        while let Some((head, body, behind)) = stream::first(rest).expect("the NIC speaks in frames") {
            self.understand(head, body);
            rest = behind;
        }
        self.heard = rest.to_vec();
    }

    fn understand(&mut self, head: Head, body: &[u8]) {
        match head.kind {
            kind::CONNECT => self.is_asked = true,
            kind::ACCEPT => self.connected = true,
            kind::ASKED => {}
            kind::SEND => {
                self.sends_heard += 1;
                assert!((HEADER_BYTES..=HEADER_BYTES + SLAB as usize).contains(&body.len()));
            }
            kind::READ_REQUEST => self.asked.push_back(Asked { id: head.id, bytes: head.length, done: 0 }),
            kind::READ_RESPONSE => {
                assert!(self.piece.is_none(), "the piece before has no end");
                self.piece = Some(body.to_vec());
            }
            kind::READ_END => {
                let piece = self.piece.take().expect("the end of a piece");
                // What a peer reads that does not keep the protocol is not known here.
                if let Some((address, bytes, done)) = self.reads.front_mut().filter(|_| self.honest) {
                    assert_ne!(*address, FORBIDDEN, "memory was read that no peer may read");
                    for (at, byte) in (*address + u64::from(*done)..).zip(&piece) {
                        assert_eq!(*byte, source_byte(at), "byte {at} of what may be read");
                    }
                    *done += u32::try_from(piece.len()).expect("short");
                    assert!(*done <= *bytes);
                    if done == bytes {
                        self.reads.pop_front();
                    }
                }
            }
            kind::REJECT | kind::BYE | kind::SEND_ERROR | kind::READ_ERROR => self.ended = true,
            kind::SEND_ACK => {}
            kind::ROOM => {
                assert!(head.id > self.room, "room for no more than before");
                self.room = head.id;
            }
            kind => panic!("the NIC says a frame of kind {kind}"),
        }
    }

    /// Says one more piece of the answer to the oldest READ.
    fn answer(&mut self, bytes_max: u32) {
        let Some(asked) = self.asked.front_mut() else { return };
        let (id, from) = (asked.id, asked.done as usize);
        let left = asked.bytes - asked.done;
        let length = left.min(bytes_max.max(1));
        asked.done += length;
        if asked.done == asked.bytes {
            self.asked.pop_front();
        }
        let body: Vec<u8> = (from..from + length as usize).map(|at| answer_byte(id, at)).collect();
        self.say(Head { id, length, ..Head::of(kind::READ_RESPONSE) }, &body);
        self.say(Head { id, ..Head::of(kind::READ_END) }, &[]);
    }
}

/// Makes a frame that may be anything.
fn any_frame(u: &mut Unstructured<'_>) -> arbitrary::Result<Head> {
    let number = |u: &mut Unstructured<'_>| -> arbitrary::Result<u64> {
        Ok(if u.ratio(3, 4)? { u.int_in_range(0..=8)? } else { u64::arbitrary(u)? })
    };
    let kind = u.int_in_range(0..=kind::NONE)?;
    let length = match u.int_in_range(0..=3)? {
        0 => 0,
        1 => u.int_in_range(0..=5000)?,
        2 => u.int_in_range(0..=300_000)?,
        _ => u32::arbitrary(u)?,
    };
    let (address, key, status) = match u.int_in_range(0..=2)? {
        0 => (0, 0, 0),
        1 => (0, 0, u.int_in_range(0..=4)?),
        _ => (number(u)?, u32::arbitrary(u)?, u.int_in_range(0..=4)?),
    };
    Ok(Head { kind, length, id: number(u)?, address, key, status })
}

/// Changes one field of the last frame, with as many bytes behind it as it then says, or as there were.
fn lie(peer: &mut Peer, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    if peer.last < peer.written || peer.last >= peer.said.len() {
        return Ok(());
    }
    let last = peer.said.split_off(peer.last);
    let Ok(Some((mut head, body, _))) = stream::first(&last) else { return Ok(()) };
    let delta = u.int_in_range(0..=16u32)?.wrapping_sub(8);
    match u.int_in_range(0..=5)? {
        0 | 1 => head.length = head.length.wrapping_add(delta),
        2 => head.length = u32::arbitrary(u)? % (300 << 10),
        3 => head.id = head.id.wrapping_add(u64::from(delta)),
        4 => head.kind = u.int_in_range(0..=kind::NONE)?,
        _ => (head.address, head.key) = (head.address.wrapping_add(u64::arbitrary(u)?), head.key ^ delta),
    }
    let mut body = body.to_vec();
    if bool::arbitrary(u)? {
        body.resize(head.length as usize % (300 << 10), 1);
    }
    peer.honest = false;
    peer.say(head, &body);
    Ok(())
}

/// Connects the two ends. Returns the peer, and the NIC's handle where the NIC connects.
fn meet(host: &mut Host, nic_connects: bool) -> (Peer, Option<Qp>) {
    if nic_connects {
        let address = Address::Tcp(LISTENER.local_addr().expect("it listens").to_string());
        let qp =
            host.nic(|nic| nic.connect(&address, &PrivateData::new(b"hello").expect("short"))).expect("a QP");
        host.qps.insert(qp, None);
        let (socket, _) = LISTENER.accept().expect("a connection that waits");
        (Peer::new(socket), Some(qp))
    } else {
        let address = host.nic(|nic| nic.listen(&Address::Tcp("127.0.0.1:0".to_owned()))).expect("a port");
        let Address::Tcp(host_port) = &address else { unreachable!("an address of the same kind") };
        (Peer::new(TcpStream::connect(host_port).expect("the NIC listens")), None)
    }
}

/// What the peer does next. `false`: it does nothing more.
fn step(host: &mut Host, peer: &mut Peer, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let may_speak = peer.connected && !peer.ended;
    match u.int_in_range(0..=28)? {
        0 | 1 if may_speak => {
            let bytes = *u.choose(&[0, 1, 64, 1000, 4095, SLAB])?;
            let fill = u8::arbitrary(u)?;
            let body = vec![fill; HEADER_BYTES + bytes as usize];
            peer.say(Head { length: HEADER_BYTES as u32 + bytes, ..Head::of(kind::SEND) }, &body);
        }
        2 if may_speak && peer.sends_heard > peer.sends_acknowledged => {
            peer.sends_acknowledged += 1;
            peer.say(Head { id: peer.sends_acknowledged, ..Head::of(kind::SEND_ACK) }, &[]);
        }
        3 | 4 if may_speak => peer.answer(u.int_in_range(0..=9000)?),
        5 | 6 if may_speak && peer.reads.len() < 60 => {
            let bytes = *u.choose(&[0, 1, 100, SLAB, SOURCE_BYTES])?;
            let address = u64::from(u.int_in_range(0..=SOURCE_BYTES - bytes)?);
            let id = peer.reads_begun;
            peer.reads_begun += 1;
            peer.reads.push_back((address, bytes, 0));
            let read =
                Head { length: bytes, id, address, key: host.source.0, ..Head::of(kind::READ_REQUEST) };
            peer.say(read, &[]);
        }
        // Of memory that no peer may read, or beyond the end.
        7 if may_speak && peer.reads.len() < 60 => {
            let (key, address) =
                if bool::arbitrary(u)? { (host.pool.0, 0) } else { (host.source.0, u64::from(SOURCE_BYTES)) };
            let id = peer.reads_begun;
            peer.reads_begun += 1;
            peer.say(Head { length: 1, id, address, key, ..Head::of(kind::READ_REQUEST) }, &[]);
            // It is not answered, and neither are those behind it.
            peer.reads.push_back((FORBIDDEN, 1, 0));
        }
        26 if may_speak && !peer.asked_room => {
            peer.asked_room = true;
            peer.say(Head::of(kind::ASK_ROOM), &[]);
        }
        // Which READ takes what is pushed is not known here.
        27 if may_speak && peer.room > 0 => {
            peer.honest = false;
            let length = *u.choose(&[1, 100, SLAB, 2 * SLAB, 60_000])?;
            peer.say(Head { length, address: 0x1000, key: 99, ..Head::of(kind::OFFER) }, &[]);
            let has_bytes = !u.ratio(1, 8)?;
            if has_bytes {
                peer.say(Head { length, ..Head::of(kind::PUSH) }, &vec![9; length as usize]);
            }
            let status = u8::from(!has_bytes || u.ratio(1, 8)?);
            peer.say(Head { status, ..Head::of(kind::PUSH_END) }, &[]);
        }
        28 => {
            let (slabs, last) = *u.choose(&[(1, 1), (1, 100), (1, SLAB), (2, SLAB)])?;
            host.post_read(slabs, last, 0x1000, 99);
        }
        8 if may_speak => {
            peer.ended = true;
            peer.say(Head::of(kind::BYE), &[]);
        }
        9 => {
            peer.honest = false;
            let head = any_frame(u)?;
            let body = vec![7; (head.length as usize).min(usize::from(u16::arbitrary(u)?))];
            peer.say(head, &body);
        }
        10 if peer.said.len() > peer.written => {
            peer.honest = false;
            let at = u.int_in_range(peer.written..=peer.said.len() - 1)?;
            peer.said[at] ^= u.int_in_range(1..=255)?;
        }
        11 => {
            peer.honest = false;
            let bytes = Vec::<u8>::arbitrary(u)?;
            peer.said.extend(bytes);
        }
        12 if peer.said.len() > peer.written => {
            peer.honest = false;
            let at = u.int_in_range(peer.written..=peer.said.len() - 1)?;
            peer.said.truncate(at);
        }
        13 | 14 => host.post_srq(!u.ratio(1, 16)?),
        15 => {
            let bytes = *u.choose(&[0, 1, 500, 4096])?;
            host.post_send(&vec![3; bytes]);
        }
        16 => host.post_read(u.int_in_range(0..=4)?, u.int_in_range(0..=SLAB)?, 0x1000, 99),
        17 => {
            if let Some(qp) = host.connected {
                host.nic(|nic| nic.disconnect(qp));
            }
        }
        18 => {
            let bytes = u.int_in_range(1..=FRAME_BYTES * 8)?;
            peer.write(bytes);
            host.work(peer.honest);
        }
        19 | 20 => {
            peer.write(usize::MAX - peer.written);
            host.work(peer.honest);
            peer.hear();
        }
        21 => {
            host.now_ns += u64::from(u32::arbitrary(u)?);
            host.work(peer.honest);
        }
        22 if u.ratio(1, 4)? => {
            let _ = peer.socket.shutdown(Shutdown::Write);
            peer.ended = true;
        }
        23 if u.ratio(1, 8)? => {
            let key = if bool::arbitrary(u)? { host.source } else { host.pool };
            host.nic(|nic| nic.deregister(key));
        }
        24 | 25 => lie(peer, u)?,
        _ => {}
    }
    if host.connected.is_none() {
        agree(host, peer, u)?;
    }
    Ok(())
}

/// Lets whoever is asked to connect answer.
fn agree(host: &mut Host, peer: &mut Peer, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    if let Some((qp, private_data)) = host.requested.take() {
        if let Ok(Some((head, body, _))) = stream::first(&peer.said) {
            assert_eq!((head.kind, body), (kind::CONNECT, private_data.as_slice()), "the peer's request");
        }
        if u.ratio(1, 16)? {
            host.nic(|nic| nic.reject(qp, &private_data));
            host.qps.remove(&qp);
        } else if host.nic(|nic| nic.accept(qp, &private_data)).is_err() {
            host.gave_up(qp);
        }
    }
    if std::mem::take(&mut peer.is_asked) {
        let private = vec![5; u.int_in_range(0..=PRIVATE_DATA_MAX)?];
        if u.ratio(3, 4)? {
            peer.say(Head::of(kind::ASKED), &[]);
        }
        let is_accepted = !u.ratio(1, 16)?;
        let length = private.len() as u32;
        let (answer, id) =
            if is_accepted { (kind::ACCEPT, u.int_in_range(1..=300)?) } else { (kind::REJECT, 0) };
        peer.say(Head { length, id, ..Head::of(answer) }, &private);
        (peer.connected, peer.ended) = (is_accepted, !is_accepted);
    }
    Ok(())
}

/// Ends both, and checks what is left.
fn finish(mut host: Host, mut peer: Peer) {
    peer.write(usize::MAX - peer.written);
    host.work(peer.honest);
    peer.hear();
    let said = peer.said[..peer.written].to_vec();
    let honest = peer.honest;
    // From here on the peer is gone.
    drop(peer);
    host.work(honest);
    if let Some((qp, private_data)) = host.requested.take() {
        host.nic(|nic| nic.reject(qp, &private_data));
        host.qps.remove(&qp);
    }
    // SENDs that wait for an entry, farewells and the like have their time.
    for _ in 0..3 {
        host.now_ns += 3_600_000_000_000;
        host.work(honest);
    }
    for (qp, ended) in &host.qps {
        assert!(ended.is_some(), "{qp:?} never ended");
    }
    host.check(&stream::sends(&said));
}

fn play(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let nic_connects = bool::arbitrary(u)?;
    let mut host = Host::new(if u.ratio(1, 4)? { Some(500) } else { None });
    let (mut peer, _) = meet(&mut host, nic_connects);
    host.work(true);
    peer.hear();
    if !nic_connects && !u.ratio(1, 16)? {
        let private = vec![9; u.int_in_range(0..=PRIVATE_DATA_MAX)?];
        let length = private.len() as u32;
        let reads_answered = u.int_in_range(1..=300)?;
        peer.say(Head { length, id: reads_answered, ..Head::of(kind::CONNECT) }, &private);
    }
    for _ in 0..80 {
        if u.is_empty() || step(&mut host, &mut peer, u).is_err() {
            break;
        }
    }
    finish(host, peer);
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    let _ = play(&mut Unstructured::new(bytes));
});
