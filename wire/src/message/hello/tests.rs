use super::*;
use proptest::prelude::*;
use std::string::ToString;

fn a_hello() -> Hello {
    Hello {
        versions: Versions::SUPPORTED,
        features: 3,
        sender_id: 1 << 60,
        receive_entries: 64,
        app: AppName::new("store/0").unwrap(),
    }
}

const WELCOME: Welcome = Welcome {
    versions: Versions::SUPPORTED,
    features: 1,
    incarnation: 9,
    credit_limit: 32,
    message_bytes_max: 1 << 30,
    requests_max: 64,
    heartbeat_ms: 5000,
};

#[test]
fn first_words_read_as_they_were_written() {
    let bytes = a_hello().encode();
    assert_eq!(Hello::decode(&bytes), Ok(a_hello()));
    let mut padded = bytes.to_vec();
    padded.resize(196, 0);
    assert_eq!(Hello::decode(&padded), Ok(a_hello()));
    assert_eq!(Welcome::decode(&WELCOME.encode()), Ok(WELCOME));
    for refusal in [Refusal::Malformed, Refusal::TooManyPeers, Refusal::Draining] {
        assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
    }
    for (lowest, highest) in [(1, 1), (1, 2), (3, 3), (7, 255)] {
        let versions = Versions::new(lowest, highest).unwrap();
        let refusal = Refusal::Version(versions);
        assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
        let hello = Hello { versions, ..a_hello() };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let welcome = Welcome { versions, ..WELCOME };
        let read = Welcome::decode(&welcome.encode());
        // This build accepts no welcome of a receiver with which it has no version in common.
        assert_eq!(
            read,
            if lowest > 2 { Err(HelloError::NoVersion { theirs: versions }) } else { Ok(welcome) }
        );
    }
}

#[test]
fn a_welcome_says_the_version_of_the_connection() {
    for ((lowest, highest), agreed) in [((1, 1), 1), ((1, 2), 2), ((2, 2), 2), ((2, 9), 2)] {
        let welcome = Welcome { versions: Versions::new(lowest, highest).unwrap(), ..WELCOME };
        assert_eq!(welcome.agreed_version(), agreed);
    }
}

/// Checks that builds of version 1 can read these first words. They look at no other bytes for versions than
/// these, and refuse any other value than 1 there.
#[test]
fn the_first_builds_read_the_first_words_of_those_that_speak_their_version_too() {
    assert_eq!(a_hello().encode()[4], 1);
    assert_eq!(WELCOME.encode()[4], 1);
    assert_eq!(Refusal::Version(Versions::SUPPORTED).encode()[5], 2);
}

/// Checks where first words can be extended. They are sent before a version is agreed on, so they keep their
/// places for ever (see docs/wire.md).
#[test]
fn unknown_bytes_of_first_words_are_skipped_or_refused_as_the_rules_say() {
    let mut hello = a_hello().encode();
    (hello[54], hello[55]) = (1, 255);
    assert_eq!(Hello::decode(&hello), Ok(a_hello()), "skipped");
    hello[53] = 1;
    assert_eq!(Hello::decode(&hello), Err(HelloError::Unknown), "must be understood");
    let mut welcome = WELCOME.encode().to_vec();
    welcome.extend([0xa5; HELLO_BYTES - WELCOME_BYTES]);
    assert_eq!(Welcome::decode(&welcome), Ok(WELCOME), "skipped");
    let mut refusal = Refusal::Version(Versions::SUPPORTED).encode();
    refusal[7] = 0xa5;
    assert_eq!(Refusal::decode(&refusal), Some(Refusal::Version(Versions::SUPPORTED)), "skipped");
}

#[test]
fn no_version_in_common_is_said_with_both_ranges_and_whom_to_update() {
    let newer = Refusal::Version(Versions::new(7, 9).unwrap()).to_string();
    for part in ["7 to 9", "1 to 2", "update this end's Jet"] {
        assert!(newer.contains(part), "{newer}");
    }
    let error = HelloError::NoVersion { theirs: Versions::new(7, 7).unwrap() }.to_string();
    assert!(error.contains("speaks 7, this end 1 to 2; update this end's"), "{error}");
}

#[test]
fn bad_first_words_are_refused() {
    let (hello, welcome) = (a_hello().encode(), WELCOME.encode());
    for bytes in 0..hello.len() {
        assert_eq!(Hello::decode(&hello[..bytes]), Err(HelloError::Truncated { bytes }));
    }
    for bytes in 0..WELCOME_BYTES {
        assert_eq!(Welcome::decode(&welcome[..bytes]), Err(HelloError::Truncated { bytes }));
    }
    for at in 0..4 {
        let (mut hello, mut welcome) = (hello, welcome);
        (hello[at], welcome[at]) = (0, 0);
        assert_eq!(Hello::decode(&hello), Err(HelloError::Magic));
        assert_eq!(Welcome::decode(&welcome), Err(HelloError::Magic));
    }
    for (lowest, highest) in [(0, 0), (0, 2), (3, 2), (255, 1)] {
        let (mut hello, mut welcome) = (hello, welcome);
        (hello[4], hello[52], welcome[4], welcome[5]) = (lowest, highest, lowest, highest);
        assert_eq!(Hello::decode(&hello), Err(HelloError::Versions { lowest, highest }));
        assert_eq!(Welcome::decode(&welcome), Err(HelloError::Versions { lowest, highest }));
    }
    for (at, byte) in [(5, 0), (5, 33), (5, 255), (5, 8), (20, b' '), (20, 0xff)] {
        let mut hello = hello;
        hello[at] = byte;
        assert_eq!(Hello::decode(&hello), Err(HelloError::App), "byte {at} = {byte}");
    }
}

#[test]
fn bad_refusals_are_none_and_other_versions_are_understood() {
    let good = Refusal::Version(Versions::SUPPORTED).encode();
    assert_eq!(Refusal::decode(&good[..5]), None);
    assert_eq!(Refusal::decode(&[0; REFUSAL_BYTES]), None);
    for reason in [0, 5, 255] {
        let mut bad = good;
        bad[5] = reason;
        assert_eq!(Refusal::decode(&bad), None);
    }
    // The first builds send one version, and nothing behind it.
    let first = [b'J', b'E', b'T', b'h', 99, 2];
    assert_eq!(Refusal::decode(&first), Some(Refusal::Version(Versions::new(99, 99).unwrap())));
}

#[test]
fn every_error_says_its_value() {
    let texts = [
        HelloError::Versions { lowest: 77, highest: 3 }.to_string(),
        HelloError::Versions { lowest: 99, highest: 77 }.to_string(),
        HelloError::Truncated { bytes: 77 }.to_string(),
    ];
    for text in texts {
        assert!(text.contains("77"), "{text}");
    }
}

#[test]
fn only_names_are_names() {
    for name in ["a", "jet.recv_1-x/y:z", "12345678901234567890123456789012"] {
        assert_eq!(AppName::new(name).unwrap().as_str(), name);
    }
    for name in ["", "123456789012345678901234567890123", "with space", "null\0", "ü"] {
        assert_eq!(AppName::new(name), Err(AppNameError), "{name:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_first_words_never_panic_and_what_parses_encodes_the_same(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        name in 0usize..40,
    ) {
        for pass in 0..2 {
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
                prop_assert_eq!(&hello.encode()[..20], &bytes[..20]);
            }
            if let Ok(welcome) = Welcome::decode(&bytes) {
                prop_assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
            }
            if let Some(refusal) = Refusal::decode(&bytes) {
                prop_assert_eq!(refusal.encode()[5], bytes[5]);
            }
            if pass == 0 && bytes.len() >= 6 {
                bytes[..6].copy_from_slice(&[b'J', b'E', b'T', b'h', 1, u8::try_from(name).unwrap()]);
                bytes.iter_mut().skip(53).take(1).for_each(|byte| *byte = 0);
                bytes.iter_mut().skip(20).take(32).for_each(|byte| *byte = b'a' + (*byte % 26));
            }
        }
    }
}
