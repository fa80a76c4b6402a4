use super::*;
use jet_identity::SecretKey;
use proptest::prelude::*;

/// Most bytes of memory that sealing a record takes.
const MEMORY: usize = SEALED_BYTES_MAX;

fn key() -> SecretKey {
    SecretKey::generate().unwrap()
}

/// Gives each end the other one's bytes until neither has more, a piece of so many bytes at a time.
fn exchange(client: &mut Handshake, server: &mut Handshake, piece: usize) -> Result<(), HandshakeError> {
    loop {
        let (to_server, to_client) = (client.take_outgoing(), server.take_outgoing());
        if to_server.is_empty() && to_client.is_empty() {
            return Ok(());
        }
        for bytes in to_server.chunks(piece) {
            assert_eq!(server.read(bytes)?, bytes.len());
        }
        for bytes in to_client.chunks(piece) {
            assert_eq!(client.read(bytes)?, bytes.len());
        }
    }
}

/// Makes a connection of a new client and a new server.
fn connected() -> (Records, Records) {
    let (client, server) = (Endpoint::new(key()), Endpoint::new(key()));
    let (mut client, mut server) = (client.connect().unwrap(), server.accept().unwrap());
    exchange(&mut client, &mut server, usize::MAX).unwrap();
    (client.finish().unwrap().records, server.finish().unwrap().records)
}

/// Seals data, and returns the records that are to be sent.
fn seal(records: &mut Records, data: &[u8]) -> Vec<u8> {
    let mut memory = vec![0; MEMORY];
    memory[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
    let bytes = records.seal(&mut memory, data.len()).unwrap();
    memory.truncate(bytes);
    memory
}

/// Opens all records in these bytes, and returns their data.
fn open(records: &mut Records, bytes: &[u8]) -> Result<Vec<u8>, OpenError> {
    let (mut rest, mut data) = (bytes, Vec::new());
    while let Some((header, after)) = rest.split_first_chunk() {
        let (body, after) = after.split_at(Records::body_bytes(*header)?);
        let mut body = body.to_vec();
        if let Opened::Data(bytes) = records.open(*header, &mut body)? {
            data.extend_from_slice(&body[..bytes]);
        }
        rest = after;
    }
    Ok(data)
}

#[test]
fn each_end_learns_the_others_key_however_the_bytes_are_cut() {
    let (client_key, server_key) = (key(), key());
    let (client_public, server_public) = (client_key.public(), server_key.public());
    let (client_end, server_end) = (Endpoint::new(client_key), Endpoint::new(server_key));
    for piece in [1, 2, 5, 6, 100, usize::MAX] {
        let (mut client, mut server) = (client_end.connect().unwrap(), server_end.accept().unwrap());
        assert!(!client.is_done() && !server.is_done());
        exchange(&mut client, &mut server, piece).unwrap();
        assert!(client.is_done() && server.is_done());
        let (client, server) = (client.finish().unwrap(), server.finish().unwrap());
        assert_eq!((client.peer, server.peer), (server_public, client_public));
    }
}

#[test]
fn what_follows_the_handshake_is_left_to_the_records() {
    let (mut client, mut server) =
        (Endpoint::new(key()).connect().unwrap(), Endpoint::new(key()).accept().unwrap());
    server.read(&client.take_outgoing()).unwrap();
    client.read(&server.take_outgoing()).unwrap();
    let mut bytes = client.take_outgoing();
    let handshake_bytes = bytes.len();
    let mut client = client.finish().unwrap().records;
    bytes.extend(seal(&mut client, b"at once"));
    assert_eq!(server.read(&bytes).unwrap(), handshake_bytes);
    let mut server = server.finish().unwrap().records;
    assert_eq!(open(&mut server, &bytes[handshake_bytes..]).unwrap(), b"at once");
}

#[test]
fn a_handshake_that_is_not_done_has_no_outcome() {
    let (mut client, mut server) =
        (Endpoint::new(key()).connect().unwrap(), Endpoint::new(key()).accept().unwrap());
    server.read(&client.take_outgoing()).unwrap();
    // The server has answered, and has not heard who the client is.
    assert!(!server.is_done());
    assert!(matches!(server.finish(), Err(HandshakeError::NotDone)));
    assert!(matches!(client.finish(), Err(HandshakeError::NotDone)));
}

#[test]
fn who_shows_anothers_key_is_found_out() {
    // Its certificate is the victim's key, and it signs with its own.
    let victim = key();
    let (client, mut server) = (rustls_client(key(), &victim), Endpoint::new(key()).accept().unwrap());
    let mut client = client;
    let error = converse(&mut client, &mut server).unwrap_err();
    assert!(matches!(error, HandshakeError::Peer(_)), "{error}");
    // It is told nothing, and gets no second try.
    assert!(server.take_outgoing().is_empty());
    assert!(matches!(server.read(b"more"), Err(HandshakeError::Failed)));
    assert!(matches!(server.finish(), Err(HandshakeError::NotDone)));
}

#[test]
fn a_reflected_handshake_proves_nothing() {
    // Whoever sends an end its own bytes back does not become its peer.
    let end = Endpoint::new(key());
    let mut client = end.connect().unwrap();
    let hello = client.take_outgoing();
    assert!(client.read(&hello).is_err());
}

#[test]
fn a_relayed_handshake_ends_with_the_relays_key_or_not_at_all() {
    // Between the two is one with a key of its own: each end sees that key, and not the other end's.
    let relay = key();
    let relay_public = relay.public();
    let relay = Endpoint::new(relay);
    let (mut client, mut as_server) = (Endpoint::new(key()).connect().unwrap(), relay.accept().unwrap());
    exchange(&mut client, &mut as_server, usize::MAX).unwrap();
    assert_eq!(client.finish().unwrap().peer, relay_public);
    // Or it carries what it hears to the other end, changed: no changed byte goes unnoticed.
    let (client_end, server_end) = (Endpoint::new(key()), Endpoint::new(key()));
    let flights = {
        let (mut client, mut server) = (client_end.connect().unwrap(), server_end.accept().unwrap());
        let first = client.take_outgoing();
        server.read(&first).unwrap();
        let second = server.take_outgoing();
        client.read(&second).unwrap();
        [first, second, client.take_outgoing()]
    };
    let mut unnoticed = Vec::new();
    for (flight, bytes) in flights.iter().enumerate() {
        for at in 0..bytes.len() {
            let (mut client, mut server) = (client_end.connect().unwrap(), server_end.accept().unwrap());
            let change = |of: usize, mut bytes: Vec<u8>| {
                if let Some(byte) = bytes.get_mut(at).filter(|_| of == flight) {
                    *byte ^= 0x40;
                }
                bytes
            };
            let both = server
                .read(&change(0, client.take_outgoing()))
                .and_then(|_| client.read(&change(1, server.take_outgoing())))
                .and_then(|_| server.read(&change(2, client.take_outgoing())));
            if both.is_ok() && server.is_done() && !is_version_of_a_record(bytes, at) {
                unnoticed.push((flight, at));
            }
        }
    }
    assert_eq!(unnoticed, []);
}

/// Whether the byte is part of the version in a record's header, which the standard lets nobody look at.
fn is_version_of_a_record(mut bytes: &[u8], mut at: usize) -> bool {
    while let Some(([.., high, low], rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let whole = HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low]));
        if at < whole {
            return (1..3).contains(&at);
        }
        at -= whole;
        bytes = &rest[whole - HEADER_BYTES..];
    }
    false
}

#[test]
fn half_a_handshake_keeps_little() {
    let mut server = Endpoint::new(key()).accept().unwrap();
    // A record of the greatest length, of which not all comes.
    let header = [22, 3, 1, 0x40, 0];
    let error = (0..2 * HANDSHAKE_BYTES_MAX).try_for_each(|at| {
        server.read(&[header.get(at).copied().unwrap_or(0)]).map(|taken| assert_eq!(taken, 1))
    });
    assert!(matches!(error, Err(HandshakeError::TooLong)));
}

#[test]
fn data_comes_in_the_same_order_both_ways() {
    let (mut client, mut server) = connected();
    for bytes in [0, 1, 100, PLAIN_BYTES_MAX] {
        let data: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let sealed = seal(&mut client, &data);
        assert_eq!(sealed.len(), bytes + 22);
        assert_eq!(open(&mut server, &sealed).unwrap(), data);
        let sealed = seal(&mut server, &data);
        assert_eq!(open(&mut client, &sealed).unwrap(), data);
    }
}

#[test]
fn what_does_not_fit_is_not_sealed() {
    let (mut client, _server) = connected();
    let mut memory = vec![0; MEMORY];
    let too_long = client.seal(&mut memory, PLAIN_BYTES_MAX + 1);
    assert!(matches!(too_long, Err(SealError::Room { .. })));
    let too_short = client.seal(&mut memory[..MEMORY - 1], PLAIN_BYTES_MAX);
    assert!(matches!(too_short, Err(SealError::Room { .. })));
    assert!(matches!(client.seal_end(&mut memory[..23]), Err(SealError::Room { .. })));
}

#[test]
fn changed_left_out_repeated_and_moved_records_are_seen() {
    let (mut client, _) = connected();
    let bytes = seal(&mut client, b"some data").len();
    for bit in 0..bytes * 8 {
        let (mut client, mut server) = connected_again();
        let mut sealed = seal(&mut client, b"some data");
        sealed[bit / 8] ^= 1 << (bit % 8);
        let header = *sealed.first_chunk().unwrap();
        let found = server.open(header, &mut sealed[HEADER_BYTES..]);
        assert!(matches!(found, Err(OpenError::Header | OpenError::Seal)), "bit {bit}: {found:?}");
    }
    let is_seal = |found: Result<Vec<u8>, OpenError>| matches!(found, Err(OpenError::Seal));
    let (mut client, mut server) = connected();
    let (first, second) = (seal(&mut client, b"first"), seal(&mut client, b"second"));
    assert!(is_seal(open(&mut server, &second)), "left out, or moved");
    let (mut client, mut server) = connected();
    let once = seal(&mut client, b"once");
    assert_eq!(open(&mut server, &once).unwrap(), b"once");
    assert!(is_seal(open(&mut server, &once)), "repeated");
    let (mut client, mut server) = connected();
    assert!(is_seal(open(&mut server, &first)), "of another connection");
    let own = seal(&mut client, b"own");
    assert!(is_seal(open(&mut client, &own)), "reflected");
}

/// A connection of ends that are made once: what is tried for each bit need not make keys.
fn connected_again() -> (Records, Records) {
    static ENDS: std::sync::LazyLock<(Endpoint, Endpoint)> =
        std::sync::LazyLock::new(|| (Endpoint::new(key()), Endpoint::new(key())));
    let (mut client, mut server) = (ENDS.0.connect().unwrap(), ENDS.1.accept().unwrap());
    exchange(&mut client, &mut server, usize::MAX).unwrap();
    (client.finish().unwrap().records, server.finish().unwrap().records)
}

#[test]
fn keys_change_before_they_have_sealed_too_much_and_data_goes_on() {
    let (mut client, mut server) = connected();
    client.set_records_per_key(4);
    let lengths: Vec<usize> = (0..9_u8)
        .map(|number| {
            let sealed = seal(&mut client, &[number]);
            assert_eq!(open(&mut server, &sealed).unwrap(), [number]);
            sealed.len()
        })
        .collect();
    // Three records with data and the one that changes the key are four.
    assert_eq!(lengths, [23, 23, 50, 23, 23, 50, 23, 23, 50]);
    assert_eq!(open(&mut client, &seal(&mut server, b"back")).unwrap(), b"back");
}

#[test]
fn an_end_is_told_from_a_cut() {
    let (mut client, mut server) = connected();
    let mut memory = vec![0; MEMORY];
    let bytes = client.seal_end(&mut memory).unwrap();
    let header = *memory.first_chunk().unwrap();
    assert_eq!(server.open(header, &mut memory[HEADER_BYTES..bytes]).unwrap(), Opened::Closed);
}

#[test]
fn records_without_data_come_in_small_number() {
    let (mut client, mut server) = connected();
    for _ in 0..32 {
        assert_eq!(open(&mut server, &seal(&mut client, b"")).unwrap(), b"");
    }
    // Data in between counts anew.
    assert_eq!(open(&mut server, &seal(&mut client, b"x")).unwrap(), b"x");
    for _ in 0..32 {
        assert_eq!(open(&mut server, &seal(&mut client, b"")).unwrap(), b"");
    }
    assert!(matches!(open(&mut server, &seal(&mut client, b"")), Err(OpenError::WithoutData)));
}

#[test]
fn headers_of_other_records_are_refused() {
    for (header, is_good) in [
        ([23, 3, 3, 0, 17], true),
        ([23, 3, 3, 0x41, 0], true),
        ([23, 3, 3, 0x41, 1], false),
        ([23, 3, 3, 0, 16], false),
        ([22, 3, 3, 0, 17], false),
        ([20, 3, 3, 0, 17], false),
        ([23, 3, 1, 0, 17], false),
    ] {
        assert_eq!(Records::body_bytes(header).is_ok(), is_good, "{header:?}");
    }
    let (mut client, mut server) = connected();
    let mut sealed = seal(&mut client, b"data");
    let header = *sealed.first_chunk().unwrap();
    let bytes = sealed.len();
    let short = server.open(header, &mut sealed[HEADER_BYTES..bytes - 1]);
    assert!(matches!(short, Err(OpenError::Header)));
}

/// An end that is rustls whole, records too: what Jet's records are compared with.
fn rustls_client(signs: SecretKey, shows: &SecretKey) -> rustls::ClientConnection {
    endpoint::tests_only_client(signs, shows.public())
}

/// Lets a client that is rustls whole and a handshake talk until the handshake is done or fails.
fn converse(client: &mut rustls::ClientConnection, server: &mut Handshake) -> Result<(), HandshakeError> {
    loop {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read(&bytes)?;
        let answer = server.take_outgoing();
        if bytes.is_empty() && answer.is_empty() {
            return Ok(());
        }
        let mut answer = &answer[..];
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            client.process_new_packets().map_err(HandshakeError::Peer)?;
        }
    }
}

/// What passes between Jet's records and rustls's.
#[derive(Clone, Debug)]
enum Step {
    ToJet(usize),
    FromJet(usize),
    PeerChangesItsKey,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..60_000_usize).prop_map(Step::ToJet),
        4 => (1..=PLAIN_BYTES_MAX).prop_map(Step::FromJet),
        1 => Just(Step::PeerChangesItsKey),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Jet's records and rustls's are each other's, over changes of keys on both sides.
    #[test]
    fn another_implementation_understands_the_records(
        steps in prop::collection::vec(step(), 1..40),
        records_per_key in 2..20_u64,
    ) {
        use std::io::{Read as _, Write as _};
        let own = key();
        let shown = SecretKey::from_text(&own.to_text()).unwrap();
        let mut client = rustls_client(own, &shown);
        client.set_buffer_limit(None);
        let mut server = Endpoint::new(key()).accept().unwrap();
        converse(&mut client, &mut server).unwrap();
        let secured = server.finish().unwrap();
        prop_assert_eq!(secured.peer, shown.public());
        let mut jet = secured.records;
        jet.set_records_per_key(records_per_key);
        let data = |bytes: usize| (0..bytes).map(|at| u8::try_from(at % 253).unwrap()).collect::<Vec<u8>>();
        for step in steps {
            match step {
                Step::ToJet(bytes) => {
                    client.writer().write_all(&data(bytes)).unwrap();
                    let mut sealed = Vec::new();
                    while client.wants_write() {
                        client.write_tls(&mut sealed).unwrap();
                    }
                    prop_assert_eq!(open(&mut jet, &sealed).unwrap(), data(bytes));
                }
                Step::FromJet(bytes) => {
                    let sealed = seal(&mut jet, &data(bytes));
                    let mut rest = &sealed[..];
                    let mut found = vec![0; bytes + 1];
                    let mut got = 0;
                    while !rest.is_empty() {
                        client.read_tls(&mut rest).unwrap();
                        client.process_new_packets().unwrap();
                        got += client.reader().read(&mut found[got..]).unwrap_or(0);
                    }
                    prop_assert_eq!(&found[..got], &data(bytes)[..]);
                }
                Step::PeerChangesItsKey => client.refresh_traffic_keys().unwrap(),
            }
        }
    }

    /// Whatever a stranger says, the handshake ends or waits, and keeps little.
    #[test]
    fn any_bytes_are_taken_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..6000),
        as_records in any::<bool>(),
    ) {
        let mut server = ANY_END.accept().unwrap();
        if as_records {
            let mut framed = Vec::new();
            for chunk in bytes.chunks(500) {
                let [high, low] = u16::try_from(chunk.len()).unwrap().to_be_bytes();
                framed.extend([22, 3, 1, high, low]);
                framed.extend(chunk);
            }
            let _ = server.read(&framed);
        } else {
            let _ = server.read(&bytes);
        }
        prop_assert!(!server.is_done());
    }

    /// A hello of which something is changed, cut or repeated leads to no connection and no panic.
    #[test]
    fn changed_hellos_are_taken_without_a_panic(
        at in any::<prop::sample::Index>(),
        by in 1..=255_u8,
        cut in any::<prop::sample::Index>(),
    ) {
        let mut hello = ANY_END.connect().unwrap().take_outgoing();
        let at = at.index(hello.len());
        hello[at] ^= by;
        let mut server = ANY_END.accept().unwrap();
        let _ = server.read(&hello[..cut.index(hello.len())]);
        prop_assert!(!server.is_done());
    }
}

static ANY_END: std::sync::LazyLock<Endpoint> = std::sync::LazyLock::new(|| Endpoint::new(key()));
