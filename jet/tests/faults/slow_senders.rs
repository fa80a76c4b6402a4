//! Senders that are slow, or stop in the middle of what they send. Others' messages arrive meanwhile, over
//! both fabrics.

use crate::children::Role;
use crate::raw_peer::{REQUEST, RawPeer, hello};
use crate::rig::{Rig, nic_threads, random_for};
use crate::traffic::{Traffic, fill};
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_client::send::AckStatus;
use jet_control::status::{PeerStatus, Status};
use jet_fabric::Address;
use jet_test_support::folder::Folder;
use jet_test_support::waiting::WAIT_LIMIT;
use jet_wire::message::{RequestFields, RequestHeader};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Large messages of the bad sender, together of three times as many fragments as there are READs at once.
const REQUESTS: u32 = 6;
const REQUEST_BYTES: usize = 4 << 20;
/// Large messages of each good sender, and how many of them are under way at once.
const MESSAGES: usize = 60;
const AT_ONCE: usize = 4;
const MESSAGE_BYTES: usize = 300_000;
/// Length of the file that a program sends: pieces of many slabs, and an end that is none.
const FILE_BYTES: usize = 3_000_001;
/// Time between two bytes of a sender that trickles.
const BETWEEN_BYTES: Duration = Duration::from_millis(5);

/// Returns where the daemon listens for `tcp:`.
fn tcp_of(rig: &Rig) -> SocketAddr {
    let of_tcp = |address: Address| match address {
        Address::Tcp(text) => Some(text.parse().expect("a number")),
        _ => None,
    };
    rig.addresses().into_iter().find_map(of_tcp).expect("it listens there")
}

/// A link between a sender and the daemon. It passes everything, until it lets the sender's bytes trickle.
struct Link {
    address: Address,
    trickle: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    fn to(daemon: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = Address::Tcp(listener.local_addr().expect("bound").to_string());
        let (trickle, told) = channel();
        let thread = std::thread::spawn(move || {
            let (sender, _) = listener.accept().expect("the sender comes");
            let daemon = TcpStream::connect(daemon).expect("it listens");
            let (mut from, mut to) =
                (daemon.try_clone().expect("a socket"), sender.try_clone().expect("a socket"));
            let down = std::thread::spawn(move || {
                // The end of one side is the end of the other.
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            pass(sender, &daemon, &told);
            let _ = daemon.shutdown(Shutdown::Both);
            down.join().expect("no panic");
        });
        Self { address, trickle: Some(trickle), thread: Some(thread) }
    }

    /// Lets the sender's bytes trickle from now on.
    fn trickle(&self) {
        self.trickle.as_ref().expect("it stands").send(()).expect("the link stands");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.trickle.take());
        // A test that failed may have left it waiting for its sender.
        if !std::thread::panicking() {
            let ended = self.thread.take().map(JoinHandle::join);
            assert!(ended.is_none_or(|ended| ended.is_ok()), "the link broke");
        }
    }
}

/// Passes bytes from the sender until `trickle` says something, then byte by byte until it is dropped.
fn pass(mut from: TcpStream, mut to: &TcpStream, trickle: &Receiver<()>) {
    let mut bytes = [0; 4096];
    from.set_read_timeout(Some(BETWEEN_BYTES)).expect("a time");
    while trickle.try_recv().is_err() {
        match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => to.write_all(&bytes[..count]).expect("the daemon takes it"),
            Err(_) => {}
        }
    }
    while trickle.recv_timeout(BETWEEN_BYTES) == Err(RecvTimeoutError::Timeout) {
        // What the daemon no longer takes it has no use for.
        if from.read(&mut bytes[..1]).is_ok_and(|count| count == 1) && to.write_all(&bytes[..1]).is_err() {
            return;
        }
    }
}

/// Connects a sender to the application "slow" and lets it ask for its large messages. It answers no READ
/// before it has a turn.
fn slow_sender(rig: &Rig, address: &Address) -> RawPeer {
    let mut peer = RawPeer::connect(address, "slow", REQUEST_BYTES);
    for sequence in 1..=REQUESTS {
        let fields = RequestFields {
            sequence: sequence.into(),
            length: REQUEST_BYTES as u64,
            address: peer.address(),
            key: peer.key.0,
            ..REQUEST
        };
        peer.send(&RequestHeader::encode(&fields), &[]);
    }
    peer.turn();
    rig.wait_status("its READs", |status| slow_peer(status).is_some_and(|peer| reads_of(peer) > 0));
    peer
}

fn slow_peer(status: &Status) -> Option<&PeerStatus> {
    status.rows.peers.iter().find(|peer| peer.app == "slow")
}

fn reads_of(peer: &PeerStatus) -> u32 {
    peer.share.as_ref().map_or(0, |share| share.reads)
}

/// Lets good senders have large messages consumed. `meanwhile` is called before each of them.
#[track_caller]
fn others_go_on(good: &mut [Traffic], mut meanwhile: impl FnMut()) {
    for traffic in good {
        let mut under_way = 0;
        for _ in 0..MESSAGES {
            meanwhile();
            if under_way == AT_ONCE {
                assert_eq!(traffic.ends(1), [AckStatus::Consumed]);
                under_way -= 1;
            }
            traffic.send(MESSAGE_BYTES).expect("taken");
            under_way += 1;
        }
        assert_eq!(traffic.ends(under_way), [AckStatus::Consumed; AT_ONCE]);
        // Small ones, too.
        traffic.round();
    }
}

/// Runs good senders to another application beside a slow one, which is there all the time.
fn beside(seed: u64, mut bad: impl FnMut(&Rig) -> (RawPeer, Option<Link>)) {
    let mut random = random_for("slow-senders", seed);
    for &threads in nic_threads() {
        let rig = Rig::start_on_software(&[threads]);
        let applications = ["store", "slow"].map(|app| rig.application(Role::Consumer, app));
        let mut good = Traffic::to_each(&rig.addresses(), "store", &mut random);
        let (mut peer, link) = bad(&rig);
        others_go_on(&mut good, || {
            // Who is behind a link answers.
            if link.is_some() {
                peer.turn();
            }
        });
        let status = rig.status();
        let slow = slow_peer(&status).expect("it was there all the time");
        assert!(slow.unfinished == REQUESTS && reads_of(slow) > 0, "{slow:?}");
        assert_eq!(status.faults.stalled_peers, 0, "nobody had to wait for it");
        assert!(applications.iter().all(|application| application.reported("wrong") == 0));
        drop((peer, link, good));
        rig.wait_whole();
    }
}

#[test]
fn a_sender_that_stopped_answering_holds_up_nobodys_large_messages() {
    let frozen = |rig: &Rig| (slow_sender(rig, &Address::Tcp(tcp_of(rig).to_string())), None);
    beside(1, frozen);
}

#[test]
fn a_sender_whose_bytes_trickle_holds_up_nobodys_large_messages() {
    let trickling = |rig: &Rig| {
        let link = Link::to(tcp_of(rig));
        let peer = slow_sender(rig, &link.address);
        link.trickle();
        (peer, Some(link))
    };
    beside(2, trickling);
}

/// Kinds of frames on a `tcp:` connection.
const CONNECT: u8 = 1;
const ACCEPT: u8 = 2;
const SEND: u8 = 4;
const ASKED: u8 = 12;

/// As much of the framing of `tcp:` as a stranger needs (`fabric/src/soft/tcp/frame.rs`).
fn frame(kind: u8, length: usize, id: u64) -> Vec<u8> {
    let mut bytes = [b'J', b'F', 2, kind].to_vec();
    bytes.extend(u32::try_from(length).expect("short").to_le_bytes());
    bytes.extend(id.to_le_bytes());
    bytes.resize(32, 0);
    bytes
}

/// Connects, and sends a part of a SEND.
fn half_sent(daemon: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(daemon).expect("it listens");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a time");
    let words = hello("store").encode();
    stream.write_all(&[frame(CONNECT, words.len(), 32), words.to_vec()].concat()).expect("taken");
    let mut answer = [0; 32];
    while answer[3] != ACCEPT {
        stream.read_exact(&mut answer).expect("it is let in");
        assert!([ASKED, ACCEPT].contains(&answer[3]), "{answer:?}");
    }
    stream.write_all(&[frame(SEND, 128 + 4096, 0), vec![0; 1000]].concat()).expect("taken");
    stream
}

/// Returns whether the daemon has not hung up.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let mut bytes = [0; 64];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Sends a file with `jet send` to a `jet recv` of its own, and compares what came.
fn send_file(rig: &Rig, to: &Address) {
    let folder = Folder::new();
    let (file, out) = (folder.join("file"), folder.join("out"));
    let mut bytes = vec![0; FILE_BYTES];
    fill(1, &mut bytes);
    fs::write(&file, &bytes).expect("a file");
    let jet = || Command::new(env!("CARGO_BIN_EXE_jet"));
    let (mut recv, mut send) = (jet(), jet());
    recv.args(["recv", "--app", "files", "--once", "--json", "--out"]).arg(&out);
    recv.arg("--control-socket").arg(rig.control());
    let recv = folder.start("recv", recv);
    rig.wait_status("the receiver", |status| status.session("files").is_some());
    send.args(["send", "--app", "files", "--json", "--to", &to.to_string()]).arg(&file);
    folder.start("send", send).succeed::<SendReport>();
    recv.succeed::<ReceiveReport>();
    assert!(
        fs::read(out.join("file")).is_ok_and(|came| came == bytes),
        "{to}: the file is not what was sent"
    );
}

#[test]
fn half_sent_sends_hold_up_nobodys_small_messages() {
    // The smallest device takes so many connections.
    const HALF_SENT: u32 = 40;
    let mut random = random_for("slow-senders", 3);
    for &threads in nic_threads() {
        // As many entries as there are half-sent SENDs: each would have one.
        let bytes = u64::from(HALF_SENT) * 4096;
        let sizes = [format!("pool.srq_bytes={bytes}"), format!("pool.srq_floor_bytes={bytes}")];
        let credit = format!("limits.credit_per_peer={HALF_SENT}");
        let reserve = "pool.srq_reserve_entries=8";
        let rig = Rig::start_on_software(&[threads, &sizes[0], &sizes[1], &credit, reserve]);
        let _application = rig.application(Role::Consumer, "store");
        let mut good = Traffic::to_each(&rig.addresses(), "store", &mut random);
        let strangers: Vec<_> = (0..HALF_SENT).map(|_| half_sent(tcp_of(&rig))).collect();
        rig.wait_status("all of them", |status| status.peer_count == HALF_SENT + 2);
        for traffic in &mut good {
            (0..5).for_each(|_| traffic.round());
        }
        // The program, too, which once waited without an end and in silence.
        for address in rig.addresses() {
            send_file(&rig, &address);
        }
        assert!(strangers.iter().all(is_open), "they were there all the time");
        drop((strangers, good));
        rig.wait_whole();
    }
}
