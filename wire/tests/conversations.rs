//! Recorded conversations between hosts: each line is read as the values beside it, and written as the same
//! bytes.
//!
//! `conversations/version-1.txt` explains the lines. A recording is never changed, for hosts in the field
//! speak its version.

use jet_wire::message::hello::{Hello, Refusal, Welcome};
use jet_wire::message::{
    AckRange, FromReceiver, FromSender, HEADER_BYTES, HeaderBytes, Versions, parse_from_receiver,
    parse_from_sender,
};

const RECORDED: [(u8, &str); 2] =
    [(1, include_str!("conversations/version-1.txt")), (2, include_str!("conversations/version-2.txt"))];

/// A line of a recording that has bytes.
struct Said<'a> {
    at: usize,
    who: &'a str,
    what: &'a str,
    values: &'a str,
    bytes: Vec<u8>,
}

fn said(recording: &str) -> Vec<Said<'_>> {
    let lines = recording.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    let said = lines.filter_map(|(at, line)| {
        let mut parts = line.split(" | ");
        let (who, what) = parts.next()?.split_once(' ')?;
        Some(Said { at: at + 1, who, what, values: parts.next()?, bytes: bytes(parts.next()?) })
    });
    said.collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// Reads a line's bytes. Returns their values in words, and the bytes that the same values are written as.
fn read(version: u8, said: &Said<'_>) -> Result<(String, Vec<u8>), &'static str> {
    const REFUSED: &str = "refused";
    match (said.who, said.what) {
        ("sender", "hello") => {
            let hello = Hello::decode(&said.bytes).map_err(|_| REFUSED)?;
            let Hello { versions, features, sender_id, receive_entries, app } = hello;
            let words = format!(
                "speaks {versions}, features {features}, id {sender_id:#x}, {receive_entries} entries, for \
                 {app}"
            );
            Ok((words, hello.encode().to_vec()))
        }
        ("receiver", "welcome") => {
            let welcome = Welcome::decode(&said.bytes).map_err(|_| REFUSED)?;
            let Welcome {
                versions,
                features,
                incarnation,
                credit_limit,
                message_bytes_max,
                requests_max,
                heartbeat_ms,
            } = welcome;
            let words = format!(
                "speaks {versions}, features {features}, incarnation {incarnation:#x}, credit \
                 {credit_limit}, at most {message_bytes_max} bytes, {requests_max} requests, heartbeat \
                 {heartbeat_ms} ms"
            );
            Ok((words, welcome.encode().to_vec()))
        }
        ("receiver", "refusal") => {
            let refusal = Refusal::decode(&said.bytes).ok_or(REFUSED)?;
            let words = match refusal {
                Refusal::Version(versions) => format!("Version, speaks {versions}"),
                other => format!("{other:?}"),
            };
            Ok((words, refusal.encode().to_vec()))
        }
        ("sender", _) => {
            let header = HeaderBytes::from_front(&said.bytes).unwrap();
            let payload = &said.bytes[HEADER_BYTES..];
            let read = parse_from_sender(version, &header, payload.len()).map_err(|_| REFUSED)?;
            let mut header = read.encode();
            header.set_version(version);
            Ok((from_sender(read, payload), [&header.0[..], payload].concat()))
        }
        _ => {
            let header = HeaderBytes::from_front(&said.bytes).unwrap();
            let read = parse_from_receiver(version, &header, said.bytes.len() - HEADER_BYTES)
                .map_err(|_| REFUSED)?;
            let mut header = read.encode().expect("recorded was what there is");
            header.set_version(version);
            Ok((from_receiver(read), header.0.to_vec()))
        }
    }
}

fn from_sender(read: FromSender<'_>, payload: &[u8]) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match read {
        FromSender::Small(small) => format!(
            "number {}, tag {}, {} bytes, crc {:x?}, redelivered {}, user header '{}', payload '{}'",
            small.sequence,
            small.tag,
            small.payload_bytes,
            small.crc32c(),
            small.redelivered(),
            text(small.user_header()),
            text(payload)
        ),
        FromSender::Request(request) => format!(
            "number {}, tag {}, {} bytes at {:#x} by key {:#x}, class {}, crc {:x?}, redelivered {}, user \
             header '{}'",
            request.sequence,
            request.tag,
            request.length,
            request.address,
            request.key,
            request.class,
            request.crc32c(),
            request.redelivered(),
            text(request.inline_user_header().unwrap_or(payload))
        ),
        FromSender::CreditReturn(answer) => format!("credit {}", answer.credit_limit),
        FromSender::Cancel(cancel) => format!("takes {} back", cancel.sequence),
    }
}

fn from_receiver(read: FromReceiver<'_>) -> String {
    match read {
        FromReceiver::Ack(ack) => {
            let ends = ack
                .ranges()
                .map(|AckRange { first, count, status }| format!(", {count} from {first}: {status:?}"));
            format!("credit {}{}", ack.credit_limit, ends.collect::<String>())
        }
        FromReceiver::Credit(credit) => {
            format!("credit {}, recall {}", credit.credit_limit, credit.recall())
        }
        FromReceiver::Reply(reply) => format!(
            "credit {}, {} ended {:?}, reply of {} bytes",
            reply.credit_limit,
            reply.sequence(),
            reply.status(),
            reply.payload_bytes
        ),
        FromReceiver::Congestion(signal) => format!("{} thousandths", signal.window_permille),
        FromReceiver::Bye(bye) => {
            format!("{:?}", bye.reason().expect("recorded were reasons that there are"))
        }
    }
}

#[test]
fn recorded_conversations_are_read_and_written_as_they_were() {
    for (version, recording) in RECORDED {
        let said = said(recording);
        for said in &said {
            let at = format!("version {version}, line {}: {} {}", said.at, said.who, said.what);
            match read(version, said) {
                Ok((words, bytes)) => {
                    assert_eq!(words, said.values, "{at}");
                    assert_eq!(bytes, said.bytes, "{at}");
                }
                Err(words) => assert_eq!(words, said.values, "{at}"),
            }
        }
    }
}

#[test]
fn there_is_a_recording_of_every_version_that_is_spoken() {
    let spoken = Versions::SUPPORTED.lowest()..=Versions::SUPPORTED.highest();
    assert!(RECORDED.iter().map(|(version, _)| *version).eq(spoken));
}

/// Checks that no kind is missing in a recording.
#[test]
fn a_recording_has_every_kind_of_words_every_end_and_every_reason() {
    for (version, recording) in RECORDED {
        let said = said(recording);
        for what in [
            "hello",
            "welcome",
            "refusal",
            "small",
            "request",
            "credit-return",
            "ack",
            "credit",
            "congestion",
            "bye",
        ] {
            assert!(said.iter().any(|said| said.what == what), "version {version} says no {what}");
        }
        let ends = "Consumed Rejected(28) Busy NoApp Denied TooLarge Corrupt AppGone Draining";
        for end in ends.split(' ') {
            let with = |said: &Said<'_>| said.what == "ack" && said.values.ends_with(&format!(": {end}"));
            assert!(said.iter().any(with), "version {version} has no end {end}");
        }
        for reason in ["Draining", "Malformed", "Version", "CreditExceeded", "BadMemory", "Unresponsive"] {
            let with = |said: &Said<'_>| said.what == "bye" && said.values == reason;
            assert!(said.iter().any(with), "version {version} ends for no {reason}");
        }
        for refusal in ["Malformed", "Version", "TooManyPeers", "Draining"] {
            let with = |said: &Said<'_>| said.what == "refusal" && said.values.starts_with(refusal);
            assert!(said.iter().any(with), "version {version} refuses for no {refusal}");
        }
    }
}
