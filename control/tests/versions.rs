//! Compatibility of ends of different builds.
//!
//! `recorded/protocol-N.jsonl` has the frames that ends of version N exchanged: one on each line, as
//! `{"client": ...}` or `{"daemon": ...}`. The last frame shows what needs a device, a cache reservation or a
//! fault. A recorded file is never changed (`.ci/layout` looks into the history). Additions to the protocol
//! are recorded in the file of the next version.

use jet_control::protocol::PROTOCOL_VERSION;
use jet_control::status::{
    ActuatorState, CountersStatus, LinkLayer, Occupancy, Pages, PortState, Pressure, Reserve, SettingStatus,
    WarmerStatus,
};
use jet_control::{ControlRequest, ControlResponse, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

const RECORDED: &str = include_str!("recorded/protocol-4.jsonl");

/// Returns the recorded frames of one end.
fn recorded(end: &str) -> Vec<Value> {
    let frames =
        RECORDED.lines().map(|line| serde_json::from_str::<Map<String, Value>>(line).expect("an object"));
    let frames: Vec<_> = frames.filter_map(|mut frame| frame.remove(end)).collect();
    assert!(frames.len() >= 5, "{end} says something");
    frames
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

#[test]
fn what_an_older_build_of_this_version_says_is_understood_and_said_again_in_full() {
    assert_eq!(PROTOCOL_VERSION, 4, "a new version has a recorded exchange of its own");
    for frame in recorded("client") {
        assert_eq!(written(&read::<ControlRequest>(&frame)), frame);
    }
    for frame in recorded("daemon") {
        // A field that is added from now on, and has a default, has to be taken away from what is written.
        assert_eq!(written(&read::<ControlResponse>(&frame)), frame);
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

#[test]
fn what_was_always_there_is_not_read_as_0_where_it_is_missing() {
    let status =
        recorded("daemon").into_iter().find(|frame| frame.get("status").is_some()).expect("a status");
    let mut missing = 0;
    for section in ["pool", "reads", "messages", "ends", "escape", "faults", "nic"] {
        let fields = status["status"]["status"][section].as_object().expect("a section").clone();
        for (name, value) in fields {
            let mut without = status.clone();
            without["status"]["status"][section].as_object_mut().expect("a section").remove(&name);
            // A field that may be null may also be left out.
            if !value.is_null() && !["numa_node", "footprint_window_bytes"].contains(&name.as_str()) {
                let read = serde_json::from_value::<ControlResponse>(without);
                assert!(read.is_err_and(|error| error.to_string().contains(&name)), "{section}.{name}");
                missing += 1;
            }
        }
    }
    assert!(missing > 50, "{missing}");
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
