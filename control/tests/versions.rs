//! Compatibility of ends of different builds.
//!
//! `recorded/protocol-N.jsonl` has the frames that ends of version N exchanged: one on each line, as
//! `{"client": ...}` or `{"daemon": ...}`. They were taken from a daemon of that version that had a stopped
//! `jet recv` and a `jet send`. The last frame was written by hand, and shows what needs a device, a cache
//! reservation or a fault. A recorded file is never changed or removed (`.ci/layout` looks into the history).
//! Additions to the protocol are recorded in the file of the next version.
//!
//! An end of this build does not talk with an end of another version. What the older recordings are for: such
//! an end must hear which end to update.

use jet_control::connection::StatusError;
use jet_control::frame::encode_frame;
use jet_control::protocol::PROTOCOL_VERSION;
use jet_control::status::{
    ActuatorState, CountersStatus, LinkLayer, Occupancy, Pages, PortState, Pressure, Reserve, SettingStatus,
    WarmerStatus,
};
use jet_control::{ControlConnection, ControlRequest, ControlResponse, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The recorded exchange of each version, oldest first.
const RECORDED: [(u32, &str); 3] = [
    (3, include_str!("recorded/protocol-3.jsonl")),
    (4, include_str!("recorded/protocol-4.jsonl")),
    (5, include_str!("recorded/protocol-5.jsonl")),
];

/// Returns the recorded frames of one end of a version.
fn recorded_of(version: u32, end: &str) -> Vec<Value> {
    let (_, text) = RECORDED.iter().find(|(recorded, _)| *recorded == version).expect("it is recorded");
    let frames =
        text.lines().map(|line| serde_json::from_str::<Map<String, Value>>(line).expect("an object"));
    let frames: Vec<_> = frames.filter_map(|mut frame| frame.remove(end)).collect();
    assert!(frames.len() >= 5, "{end} says something");
    frames
}

/// Returns the recorded frames of one end of this build's version.
fn recorded(end: &str) -> Vec<Value> {
    recorded_of(PROTOCOL_VERSION, end)
}

fn read<T: DeserializeOwned>(frame: &Value) -> T {
    serde_json::from_value(frame.clone()).unwrap_or_else(|error| panic!("{error}: {frame:#}"))
}

fn written(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("JSON")
}

/// Returns the frame with one more field in every struct, as a newer build may send it.
fn from_a_newer_build(frame: &Value) -> Value {
    match frame {
        // A frame is an enum: an object with the variant's name and its fields.
        Value::Object(frame) => frame.iter().map(|(name, value)| (name.clone(), with_more(value))).collect(),
        word => word.clone(),
    }
}

fn with_more(value: &Value) -> Value {
    match value {
        Value::Array(values) => values.iter().map(with_more).collect(),
        Value::Object(fields) => {
            let known = fields.iter().map(|(name, value)| {
                // Two objects are not structs: a map with arbitrary names, and an enum.
                let is_struct = !["throttle", "occupancy"].contains(&name.as_str());
                (name.clone(), if is_struct { with_more(value) } else { value.clone() })
            });
            let more = ("what_a_newer_build_adds".to_owned(), json!([1, {"a": "b"}]));
            known.chain([more]).collect()
        }
        other => other.clone(),
    }
}

/// Takes away the fields that this version got after its exchange was recorded. All of them have defaults.
fn without_later_fields(mut frame: Value) -> Value {
    match &mut frame {
        Value::Array(values) => {
            values.iter_mut().for_each(|value| *value = without_later_fields(value.take()))
        }
        Value::Object(fields) => {
            // A sender's row; other structs have a `share` or a `session`, too.
            if fields.contains_key("reads_max") {
                fields.remove("share");
                fields.remove("session");
            }
            for later in [
                "stalled_peers",
                "wait_for",
                "longest_turn_ns",
                "shares_name",
                "senders",
                "replies",
                "reply_bytes",
                "cancelled",
                "networks_refused",
            ] {
                fields.remove(later);
            }
            fields.values_mut().for_each(|value| *value = without_later_fields(value.take()));
        }
        _ => {}
    }
    frame
}

#[test]
fn what_an_older_build_of_this_version_says_is_understood_and_said_again_in_full() {
    let newest = RECORDED.last().map(|(version, _)| *version);
    assert_eq!(newest, Some(PROTOCOL_VERSION), "a new version has a recorded exchange of its own");
    for frame in recorded("client") {
        assert_eq!(written(&read::<ControlRequest>(&frame)), frame);
    }
    for frame in recorded("daemon") {
        assert_eq!(without_later_fields(written(&read::<ControlResponse>(&frame))), frame);
    }
}

#[test]
fn what_a_newer_build_of_this_version_adds_is_passed_over() {
    for frame in recorded("client") {
        let newer = from_a_newer_build(&frame);
        assert_eq!(read::<ControlRequest>(&newer), read::<ControlRequest>(&frame));
        assert!(frame.is_string() || newer != frame, "{frame}");
    }
    for frame in recorded("daemon") {
        let newer = from_a_newer_build(&frame);
        assert_ne!(newer, frame);
        assert_eq!(read::<ControlResponse>(&newer), read::<ControlResponse>(&frame));
    }
}

/// Paths of all fields of the structs in a frame, each as a JSON pointer to the struct and the field's name.
fn fields(at: &str, value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                fields(&format!("{at}/{index}"), value, found);
            }
        }
        Value::Object(members) => {
            for (name, value) in members {
                found.push((at.to_owned(), name.clone()));
                // Two objects are not structs: a map with arbitrary names, and an enum.
                if !["throttle", "occupancy"].contains(&name.as_str()) {
                    fields(&format!("{at}/{name}"), value, found);
                }
            }
        }
        _ => {}
    }
}

/// Takes away each field of each frame in turn. Returns how many fields the frames cannot be read without.
/// Every other field must be read as absent.
fn needed<T: DeserializeOwned + Serialize>(frames: &[Value]) -> usize {
    let mut needed = 0;
    for frame in frames.iter().filter(|frame| frame.is_object()) {
        let (variant, value) = frame.as_object().and_then(|frame| frame.iter().next()).expect("a variant");
        let mut all = Vec::new();
        fields(&format!("/{variant}"), value, &mut all);
        for (at, name) in all {
            let mut without = frame.clone();
            let holder = without.pointer_mut(&at).and_then(Value::as_object_mut).expect("a struct");
            holder.remove(&name);
            match serde_json::from_value::<T>(without) {
                Err(error) => {
                    assert!(error.to_string().contains(&name), "{at}/{name}: {error}");
                    needed += 1;
                }
                Ok(read) => {
                    let again = written(&read);
                    let value = again.pointer(&at).and_then(|holder| holder.get(&name));
                    assert!(value.is_none_or(Value::is_null), "{at}/{name} is read as {value:?}");
                }
            }
        }
    }
    needed
}

#[test]
fn what_was_always_there_is_not_read_as_0_where_it_is_missing() {
    let [requests, responses] =
        [needed::<ControlRequest>(&recorded("client")), needed::<ControlResponse>(&recorded("daemon"))];
    assert!(requests >= 10 && responses > 400, "{requests} and {responses}");
}

/// Returns the error of a client that asks for the status and gets this answer.
fn status_error(answer: &Value) -> StatusError {
    let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
    far.write_all(&encode_frame(answer).expect("a frame")).expect("the socket has room for it");
    let mut client = ControlConnection::from_stream(near, Duration::from_secs(10)).expect("a connection");
    client.status().expect_err("another version")
}

#[test]
fn ends_of_older_versions_hear_which_end_to_update() {
    for (version, _) in RECORDED.iter().filter(|(version, _)| *version < PROTOCOL_VERSION) {
        // The daemon can read which version an older client has, and so refuses it for that reason.
        let registers = recorded_of(*version, "client").into_iter().filter(|frame| frame.is_object());
        let versions: Vec<u32> = registers
            .filter_map(|frame| match read::<ControlRequest>(&frame) {
                ControlRequest::Register(register) => Some(register.protocol),
                _ => None,
            })
            .collect();
        assert_eq!(versions, [*version, *version, version - 1]);
        let daemon = recorded_of(*version, "daemon");
        for status in daemon.iter().filter(|frame| frame.get("status").is_some()) {
            let error = status_error(status);
            assert!(matches!(error, StatusError::Version { daemon: None }), "{error}");
        }
    }
}

#[test]
fn the_recorded_refusal_of_another_version_names_both_versions() {
    for (version, _) in RECORDED {
        let daemon = recorded_of(version, "daemon");
        let refusals: Vec<&str> = daemon
            .iter()
            .filter(|frame| frame.pointer("/error/code") == Some(&json!("version")))
            .filter_map(|frame| frame.pointer("/error/message")?.as_str())
            .collect();
        let [refusal] = refusals[..] else { panic!("{version}: {refusals:?}") };
        let digits = refusal.split(|letter: char| !letter.is_ascii_digit());
        let mut numbers: Vec<u32> = digits.filter_map(|number| number.parse().ok()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [version - 1, version], "{refusal}");
    }
}

#[test]
fn words_of_a_newer_build_are_unknown_and_no_error() {
    let word = json!("a_new_word");
    assert_eq!(read::<ErrorCode>(&word), ErrorCode::Unknown);
    assert_eq!(read::<Pressure>(&word), Pressure::Unknown);
    assert_eq!(read::<Pages>(&word), Pages::Unknown);
    assert_eq!(read::<ActuatorState>(&word), ActuatorState::Unknown);
    assert_eq!(read::<LinkLayer>(&word), LinkLayer::Unknown);
    assert_eq!(read::<PortState>(&word), PortState::Unknown);
    assert_eq!(read::<Reserve>(&word), Reserve::Unknown);
    for more in [word, json!({"a_new_word": 5}), json!([1])] {
        assert_eq!(read::<Occupancy>(&more), Occupancy::Unknown);
    }
    assert_eq!(read::<Occupancy>(&json!({"bytes": 5})), Occupancy::Bytes(5));
    let state = json!({"state": "a_new_word", "more": 1});
    assert_eq!(read::<SettingStatus>(&state), SettingStatus::Unknown);
    assert_eq!(read::<CountersStatus>(&state), CountersStatus::Unknown);
    assert_eq!(read::<WarmerStatus>(&state), WarmerStatus::Unknown);
}

#[test]
fn a_question_of_a_newer_build_is_an_error_that_names_it() {
    let error = serde_json::from_value::<ControlRequest>(json!({"a_new_question": {}})).unwrap_err();
    assert!(error.to_string().contains("a_new_question"), "{error}");
}
