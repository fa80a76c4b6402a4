//! Tests of senders that break the protocol, and of messages that cannot be delivered.

use crate::children::Role;
use crate::raw_peer::{REQUEST, RawPeer, SMALL, hello};
use crate::rig::{Actor, NIC_THREAD, NO_NIC_THREAD, Rig, nic_threads, random_for};
use crate::traffic::{Traffic, fill};
use jet_client::send::{AckStatus, RetryPolicy, SendError, Sender};
use jet_control::status::Status;
use jet_fabric::Address;
use jet_test_support::random::Random;
use jet_test_support::waiting::until;
use jet_wire::message::hello::{HELLO_BYTES, Refusal};
use jet_wire::message::{
    AckHeader, ByeReason, CreditReturn, HeaderBytes, RequestFields, RequestHeader, SmallFields, SmallHeader,
    Versions, WIRE_VERSION,
};
use serde_json::Value;
use std::io::{Read, Write};

/// Correct application and senders over both fabrics. They must not notice the faulty ones.
struct Bystanders {
    traffic: Vec<Traffic>,
    application: Actor,
    rig: Rig,
}

impl Bystanders {
    fn new(random: &mut Random, settings: &[&str]) -> Self {
        Self::of(Rig::start(settings), random)
    }

    fn of(rig: Rig, random: &mut Random) -> Self {
        let application = rig.application(Role::Consumer, "store");
        let traffic = Traffic::to_each(&rig.addresses(), "store", random);
        Self { rig, application, traffic }
    }

    #[track_caller]
    fn continue_traffic(&mut self) {
        self.traffic.iter_mut().for_each(Traffic::round);
    }

    #[track_caller]
    fn finish(mut self) {
        self.continue_traffic();
        let peers = u32::try_from(self.traffic.len()).expect("few");
        self.rig.wait_status("the bad peers to be gone", |status| status.peer_count == peers);
        self.rig.wait_whole();
        assert!(self.application.process.is_running());
        assert_eq!(self.application.reported("registered"), 1, "{:?}", self.application.report());
        assert_eq!(self.application.reported("wrong"), 0, "{:?}", self.application.report());
    }
}

fn small(fields: SmallFields<'_>) -> HeaderBytes {
    SmallHeader::encode(&fields)
}

/// Returns a header with some bytes changed, given as (index, value).
fn with(mut header: HeaderBytes, changes: &[(usize, u8)]) -> HeaderBytes {
    for &(at, byte) in changes {
        header.0[at] = byte;
    }
    header
}

#[test]
fn headers_that_cannot_be_cost_their_sender_its_connection_and_nobody_else_anything() {
    let mut random = random_for("headers", 1);
    let mut bystanders = Bystanders::new(&mut random, &[]);
    let (small, request) = (small(SMALL), RequestHeader::encode(&REQUEST));
    let stated = |bytes| SmallHeader::encode(&SmallFields { payload_bytes: bytes, ..SMALL });
    let malformed = ByeReason::Malformed;
    // Byte 0 is the version, 1 the kind, 2-3 the flags, 4-5 a count (here of the user header's bytes), and
    // 6-7 are reserved. The rest depends on the kind.
    let mut cases: Vec<(&str, HeaderBytes, Vec<u8>, ByeReason)> = vec![
        ("nothing at all", HeaderBytes::ZERO, vec![], ByeReason::Version),
        ("the next version", with(small, &[(0, WIRE_VERSION + 1)]), vec![], ByeReason::Version),
        ("no kind", with(small, &[(1, 0)]), vec![], malformed),
        ("an unknown kind", with(small, &[(1, 200)]), vec![], malformed),
        ("a receiver's kind", AckHeader::encode(100, &[]), vec![], malformed),
        ("an unknown flag", with(small, &[(2, 0x80)]), vec![], malformed),
        ("a misplaced flag", with(small, &[(2, 4)]), vec![], malformed),
        ("reserved bytes", with(small, &[(6, 1)]), vec![], malformed),
        ("a checksum without its flag", with(small, &[(12, 1)]), vec![], malformed),
        ("a user header too long for a small message", with(small, &[(4, 97)]), vec![], malformed),
        ("a user header too long for any", with(request, &[(4, 1), (5, 1)]), vec![7; 257], malformed),
        ("a user header cut off", with(request, &[(4, 100)]), vec![7; 50], malformed),
        ("a payload that was not announced", small, vec![7; 10], malformed),
        ("a payload cut off", stated(100), vec![7; 50], malformed),
        ("a payload that is not there", stated(4096), vec![], malformed),
        ("a payload larger than a slab", with(small, &[(8, 1), (9, 0x10)]), vec![7; 4096], malformed),
        (
            "a length of nearly everything",
            with(small, &[(8, 255), (9, 255), (10, 255), (11, 255)]),
            vec![],
            malformed,
        ),
        (
            "a request for nothing",
            RequestHeader::encode(&RequestFields { length: 0, ..REQUEST }),
            vec![],
            malformed,
        ),
        (
            "a request beyond the address space",
            RequestHeader::encode(&RequestFields { address: u64::MAX - 10, ..REQUEST }),
            vec![],
            malformed,
        ),
        ("a request with reserved bytes", with(request, &[(50, 1)]), vec![], malformed),
        ("a credit return below what was sent", CreditReturn::encode(0), vec![], malformed),
        ("a credit return of everything", CreditReturn::encode(u64::MAX), vec![], malformed),
    ];
    for _ in 0..20 {
        let mut header = HeaderBytes::ZERO;
        header.0.fill_with(|| random.next().to_le_bytes()[0]);
        // The version is one that is never right by chance.
        header.0[0] = header.0[0].max(WIRE_VERSION + 1);
        let payload = vec![9; random.size_below(4097)];
        cases.push(("random bytes", header, payload, ByeReason::Version));
        header.set_version(WIRE_VERSION);
        header.0[7] |= 1;
        cases.push(("random bytes of this version", header, vec![], malformed));
    }
    for address in bystanders.rig.fabrics() {
        for (what, header, payload, reason) in &cases {
            let before = bystanders.rig.status().faults.peers;
            let mut peer = RawPeer::connect(&address, "store", 4096);
            peer.send(header, payload);
            assert_eq!(peer.wait_ended(), Some(*reason), "{what} over {address}");
            assert_eq!(bystanders.rig.status().faults.peers, before + 1, "{what} over {address}");
        }
        bystanders.continue_traffic();
    }
    bystanders.finish();
}

#[test]
fn a_sender_that_is_cut_off_is_named_in_the_log() {
    let mut rig = Rig::start(&["log.form=json"]);
    let address = &rig.fabrics()[0];
    let line_of = |rig: &mut Rig, reason: &str| {
        until("the line about it", || {
            let said = rig.daemon().stderr_text();
            let whole = said.rfind('\n').map_or("", |end| &said[..end]);
            let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
            lines.into_iter().find(|line| line["reason"] == reason)
        })
    };
    let mut rude = RawPeer::connect(address, "rude", 4096);
    rude.send(&HeaderBytes::ZERO, &[]);
    rude.wait_ended();
    let line = line_of(&mut rig, "Version");
    assert_eq!((&line["level"], &line["application"]), (&"warn".into(), &"rude".into()), "{line}");
    assert!(line["peer"].is_u64() && line["message_id"].is_null(), "{line}");
    let _application = rig.application(Role::Consumer, "store");
    let mut wrong = RawPeer::connect(address, "store", 4096);
    wrong.send(&RequestHeader::encode(&RequestFields { sequence: 1, key: 0, ..REQUEST }), &[]);
    wrong.wait_ended();
    let line = line_of(&mut rig, "BadMemory");
    assert_eq!((&line["message_id"], &line["application"]), (&1.into(), &"store".into()), "{line}");
}

#[test]
fn memory_that_cannot_be_read_costs_its_sender_its_connection() {
    const REGION: usize = 512 << 10;
    let mut random = random_for("memory", 2);
    for &thread in nic_threads() {
        let mut bystanders = Bystanders::new(&mut random, &[thread]);
        for address in bystanders.rig.fabrics() {
            for what in [
                "an unknown key",
                "a guessed key",
                "no byte within",
                "a length that lies",
                "another's address",
            ] {
                let before = bystanders.rig.status().faults.peers;
                let cut = bystanders.application.reported("withdrawn");
                let mut peer = RawPeer::connect(&address, "store", REGION);
                let good = RequestFields {
                    length: REGION as u64,
                    address: peer.address(),
                    key: peer.key.0,
                    ..REQUEST
                };
                let fields = match what {
                    "an unknown key" => RequestFields { key: 0, ..good },
                    "a guessed key" => RequestFields { key: peer.key.0 ^ 0x0101_0101, ..good },
                    "no byte within" => RequestFields { address: good.address + (1 << 40), ..good },
                    "a length that lies" => RequestFields { length: REGION as u64 * 2, ..good },
                    _ => RequestFields { address: good.address + REGION as u64 - 100, ..good },
                };
                peer.send(&RequestHeader::encode(&fields), &[]);
                // A READ that fails ends the connection, as with verbs. Where a reason still reaches the
                // sender, it is BadMemory.
                let reason = peer.wait_ended();
                assert!(
                    matches!(reason, None | Some(ByeReason::BadMemory)),
                    "{what} over {address}: {reason:?}"
                );
                bystanders.rig.wait_status(what, |status| status.faults.peers == before + 1);
                // The bytes within the region had reached the application, and are withdrawn.
                if what == "a length that lies" {
                    bystanders.application.wait_reported("withdrawn", cut + 1);
                }
            }
            bystanders.continue_traffic();
        }
        bystanders.finish();
    }
}

#[test]
fn more_sends_than_the_credit_cost_their_sender_its_connection() {
    let mut random = random_for("credit", 3);
    for &thread in nic_threads() {
        let mut bystanders = Bystanders::new(&mut random, &[thread]);
        for address in bystanders.rig.fabrics() {
            let before = bystanders.rig.status().faults.peers;
            let mut peer = RawPeer::connect(&address, "store", 4096);
            let mut sequence = 0;
            // The peer sends more than its credit, whatever credit it gets meanwhile.
            while peer.is_connected() {
                for _ in 0..100 {
                    if peer.try_send(&small(SmallFields { sequence: sequence + 1, ..SMALL }), &[]).is_ok() {
                        sequence += 1;
                    }
                }
                peer.turn();
            }
            let reason = peer.wait_ended();
            assert_eq!(reason, Some(ByeReason::CreditExceeded), "over {address} after {sequence}");
            assert_eq!(bystanders.rig.status().faults.peers, before + 1);
            bystanders.continue_traffic();
        }
        bystanders.finish();
    }
}

#[test]
fn first_words_that_cannot_be_are_refused() {
    let mut random = random_for("hello", 4);
    let mut bystanders = Bystanders::new(&mut random, &[]);
    let good = hello("store").encode();
    let changed = |at: usize, byte: u8| {
        let mut words = good;
        words[at] = byte;
        words.to_vec()
    };
    let versions = |lowest: u8, highest: u8| {
        let mut words = good;
        (words[4], words[52]) = (lowest, highest);
        words.to_vec()
    };
    let mut cases = vec![
        (vec![], Refusal::Malformed),
        (good[..HELLO_BYTES - 1].to_vec(), Refusal::Malformed),
        (changed(0, b'X'), Refusal::Malformed),
        (changed(4, 9), Refusal::Malformed),
        (versions(9, 9), Refusal::Version(Versions::SUPPORTED)),
        (versions(3, 255), Refusal::Version(Versions::SUPPORTED)),
        (versions(0, 2), Refusal::Malformed),
        (changed(53, 1), Refusal::Malformed),
        (changed(5, 0), Refusal::Malformed),
        (changed(5, 33), Refusal::Malformed),
        (changed(20, b' '), Refusal::Malformed),
    ];
    for _ in 0..10 {
        cases.push(((0..HELLO_BYTES).map(|_| random.next().to_le_bytes()[0]).collect(), Refusal::Malformed));
    }
    for address in bystanders.rig.fabrics() {
        for (words, refusal) in &cases {
            // RDMA CM pads with zeros, and a hello ends in zeros.
            if matches!(address, Address::Rdma(_)) && words.len() == HELLO_BYTES - 1 {
                continue;
            }
            let mut peer = RawPeer::knock(&address, words, 4096);
            assert_eq!(peer.wait_refused(), Some(*refusal), "{words:?} over {address}");
        }
        bystanders.continue_traffic();
    }
    bystanders.finish();
}

#[test]
fn who_is_no_sender_at_all_is_cut_off_at_the_nic() {
    let mut random = random_for("strangers", 5);
    for thread in [NO_NIC_THREAD, NIC_THREAD] {
        // Only the software NIC reads the sockets, so these tests run on it alone.
        strangers_are_cut_off(Bystanders::of(Rig::start_on_software(&[thread]), &mut random), &mut random);
    }
}

fn strangers_are_cut_off(mut bystanders: Bystanders, random: &mut Random) {
    let addresses = bystanders.rig.addresses();
    let [Address::Shm(path), Address::Tcp(host)] = &addresses[..] else { panic!("{addresses:?}") };
    let shm = || {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        std::os::unix::net::UnixStream::from(socket)
    };
    let tcp = || std::net::TcpStream::connect(host).unwrap();
    // These connections send nothing, or begin and stop, until the handshake's time limit.
    let mut silent = (shm(), tcp());
    let mut halting = tcp();
    halting.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let errors = |status: &Status| status.nic.protocol_errors;
    let before = errors(&bystanders.rig.status());
    // The NIC's thread counts an error after it hung up.
    let counted = |bystanders: &Bystanders, count: u64, what: &str| {
        let status = bystanders.rig.wait_status(what, |status| errors(status) >= before + count);
        assert_eq!(errors(&status), before + count, "{what}");
    };
    let mut garbage: Vec<Vec<u8>> = vec![vec![0xff; 8000], vec![0; 8000]];
    garbage.extend((0..10).map(|_| (0..8000).map(|_| random.next().to_le_bytes()[0]).collect()));
    let mut bytes = [0; 64];
    for (count, said) in (0..).zip(&garbage) {
        let mut stranger = tcp();
        // The daemon may hang up before it has read everything.
        let _ = stranger.write_all(said);
        assert!(matches!(stranger.read(&mut bytes), Ok(0) | Err(_)), "{:?}", &said[..16]);
        counted(&bystanders, 2 * count + 1, &format!("tcp {:?} to be counted", &said[..16]));
        let mut stranger = shm();
        let _ = stranger.write_all(&said[..1000.min(said.len())]);
        assert!(matches!(stranger.read(&mut bytes), Ok(0) | Err(_)), "{:?}", &said[..16]);
        counted(&bystanders, 2 * count + 2, &format!("shm {:?} to be counted", &said[..16]));
    }
    bystanders.continue_traffic();
    assert!(matches!(silent.0.read(&mut bytes), Ok(0) | Err(_)));
    assert!(matches!(silent.1.read(&mut bytes), Ok(0) | Err(_)));
    assert!(matches!(halting.read(&mut bytes), Ok(0) | Err(_)));
    bystanders.finish();
}

#[test]
fn messages_that_cannot_be_delivered_end_with_the_reason() {
    cannot_be_delivered("inline");
}

#[test]
fn messages_that_cannot_be_delivered_end_with_the_reason_where_workers_check() {
    cannot_be_delivered("workers");
}

fn cannot_be_delivered(checksums: &str) {
    let mut random = random_for("ends", 6);
    let checksums = format!("read.checksums={checksums}");
    let mut bystanders =
        Bystanders::new(&mut random, &["read.message_bytes_max=1000000", "admission.classes=2", &checksums]);
    for address in bystanders.rig.fabrics() {
        let options = Rig::sender_options(&address, "nobody").retry(RetryPolicy::NEVER);
        let mut stray = Traffic::over(Sender::connect(&options).unwrap(), random.fork());
        for bytes in [0, 100, 4096, 4097, 300_000] {
            stray.send(bytes).unwrap();
        }
        assert_eq!(stray.ends(5), [AckStatus::NoApp; 5]);
        // The sender's library refuses the message before a byte moves ...
        let large = stray.send(1_000_001).unwrap_err();
        assert!(matches!(large, SendError::Submit(_)) && large.to_string().contains("1000000"), "{large}");
        // ... and the daemon refuses it from a sender that does not.
        let mut peer = RawPeer::connect(&address, "store", 1 << 20);
        let good = RequestFields { length: 600_000, address: peer.address(), key: peer.key.0, ..REQUEST };
        let requests = [
            (RequestFields { length: 1_000_001, ..good }, AckStatus::TooLarge),
            (RequestFields { length: 1 << 60, address: 0, ..good }, AckStatus::TooLarge),
            (RequestFields { class: 2, ..good }, AckStatus::Denied),
            (RequestFields { crc32c: Some(0x1234_5678), ..good }, AckStatus::Corrupt),
        ];
        let corrupt = bystanders.application.reported("corrupt");
        for (sequence, (fields, status)) in (1..).zip(requests) {
            peer.send(&RequestHeader::encode(&RequestFields { sequence, ..fields }), &[]);
            assert_eq!(peer.wait_end(sequence), status, "over {address}");
        }
        bystanders.application.wait_reported("corrupt", corrupt + 1);
        // Of two small messages with a checksum, the one with the wrong checksum is not delivered.
        let mut payload = [0; 1000];
        fill(7, &mut payload);
        let checked = |sequence, crc| {
            small(SmallFields { sequence, tag: 7, payload_bytes: 1000, crc32c: Some(crc), ..SMALL })
        };
        let begun = bystanders.application.reported("begun");
        let crc = crc32c::crc32c(&payload);
        peer.send(&checked(5, crc ^ 1), &payload);
        assert_eq!(peer.wait_end(5), AckStatus::Corrupt);
        peer.send(&checked(6, crc), &payload);
        assert_eq!(peer.wait_end(6), AckStatus::Consumed);
        assert_eq!(bystanders.application.reported("begun"), begun + 1);
        // A large message of the same peer with the right checksum is delivered, too.
        // SAFETY: this is the process's own mapping, and nothing reads it now.
        let region = unsafe { std::slice::from_raw_parts_mut(peer.memory.base(), 600_000) };
        fill(8, region);
        let crc32c = Some(crc32c::crc32c(region));
        peer.send(&RequestHeader::encode(&RequestFields { sequence: 7, tag: 8, crc32c, ..good }), &[]);
        assert_eq!(peer.wait_end(7), AckStatus::Consumed);
        bystanders.continue_traffic();
    }
    bystanders.finish();
}

#[test]
fn where_nobody_checks_a_wrong_checksum_is_delivered_and_senders_make_none() {
    let mut random = random_for("unchecked", 7);
    let mut bystanders = Bystanders::new(&mut random, &["read.checksums=off"]);
    for address in bystanders.rig.fabrics() {
        let sender = Sender::connect(&Rig::sender_options(&address, "store").crc(true)).unwrap();
        assert!(!sender.sends_checksums(), "over {address}");
        let mut peer = RawPeer::connect(&address, "store", 1 << 20);
        let mut payload = [0; 1000];
        fill(7, &mut payload);
        let fields =
            SmallFields { sequence: 1, tag: 7, payload_bytes: 1000, crc32c: Some(0x1234_5678), ..SMALL };
        peer.send(&small(fields), &payload);
        assert_eq!(peer.wait_end(1), AckStatus::Consumed);
        // SAFETY: this is the process's own mapping, and nobody reads it meanwhile.
        let region = unsafe { std::slice::from_raw_parts_mut(peer.memory.base(), 600_000) };
        fill(8, region);
        let (address, key) = (peer.address(), peer.key.0);
        let crc32c = Some(0x1234_5678);
        let fields = RequestFields { sequence: 2, tag: 8, length: 600_000, address, key, crc32c, ..REQUEST };
        peer.send(&RequestHeader::encode(&fields), &[]);
        assert_eq!(peer.wait_end(2), AckStatus::Consumed);
        bystanders.continue_traffic();
    }
    bystanders.finish();
}
