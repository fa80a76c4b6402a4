//! Fuzzing of the control socket. An input is a stream: frames as they are, or frames that are made of
//! recorded ones by changing values, fields, lengths and bytes. The stream is read by the daemon's end or by
//! the client's, in pieces of any length.
//!
//! Reading must not panic, and must not take more memory than the limits allow. It must give what the whole
//! text of each frame gives, wherever the stream is cut. What was read must be read again as it was after it
//! is written.

#![no_main]

use jet_control::frame::{FRAME_BYTES_MAX, FrameDecoder, FrameError, REQUEST_BYTES_MAX, encode_frame};
use jet_control::{ControlConnection, ControlRequest, ControlResponse};
use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};
use std::fmt::Debug;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use std::time::Duration;

/// Recorded frames of this version of the protocol: those of clients, and those of the daemon.
static RECORDED: LazyLock<[Vec<Value>; 2]> = LazyLock::new(|| {
    let text = include_str!("../../tests/recorded/protocol-5.jsonl");
    ["client", "daemon"].map(|end| {
        let lines =
            text.lines().map(|line| serde_json::from_str::<Map<String, Value>>(line).expect("an object"));
        lines.filter_map(|mut frame| frame.remove(end)).collect()
    })
});

/// Makes a value: a number of any size, any fraction, any text, a word of the protocol, or a collection.
fn any_value(u: &mut Unstructured<'_>) -> arbitrary::Result<Value> {
    const WORDS: [&str; 11] =
        ["unknown", "status", "failed", "running", "error", "ok", "ffffffffffffffff", "", "-1", "+1", "0x1"];
    Ok(match u.int_in_range(0..=9)? {
        0 => Value::Null,
        1 => bool::arbitrary(u)?.into(),
        2 => u64::arbitrary(u)?.into(),
        3 => i64::arbitrary(u)?.into(),
        4 => u8::arbitrary(u)?.into(),
        5 => Number::from_f64(f64::arbitrary(u)?).map_or(Value::Null, Value::Number),
        // Fractions as measurements are.
        6 => (f64::from(u32::arbitrary(u)?) / f64::from(u16::arbitrary(u)?.max(1))).into(),
        7 => String::arbitrary(u)?.into(),
        8 => (*u.choose(&WORDS)?).into(),
        _ => match u.int_in_range(0..=2)? {
            0 => Value::Array(vec![]),
            1 => vec![Value::Null; usize::from(u8::arbitrary(u)?)].into(),
            _ => Value::Object(Map::new()),
        },
    })
}

/// How many values there are in a value, with itself.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// Returns the value with this number within `value`.
fn at(value: &mut Value, mut number: usize) -> &mut Value {
    if number == 0 {
        return value;
    }
    number -= 1;
    let within: Box<dyn Iterator<Item = &mut Value>> = match value {
        Value::Array(values) => Box::new(values.iter_mut()),
        Value::Object(fields) => Box::new(fields.values_mut()),
        _ => unreachable!("a value that has none within has one number"),
    };
    for value in within {
        let values = count(value);
        if number < values {
            return at(value, number);
        }
        number -= values;
    }
    unreachable!("a number below the count")
}

fn change(frame: &mut Value, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let number = u.int_in_range(0..=count(frame) - 1)?;
    let place = at(frame, number);
    match u.int_in_range(0..=3)? {
        0 | 1 => *place = any_value(u)?,
        2 => match place {
            Value::Object(fields) if !fields.is_empty() => {
                let gone = u.int_in_range(0..=fields.len() - 1)?;
                let name = fields.keys().nth(gone).expect("a field").clone();
                fields.remove(&name);
            }
            Value::Array(values) => drop(values.pop()),
            _ => *place = Value::Null,
        },
        _ => match place {
            Value::Object(fields) => drop(fields.insert(String::arbitrary(u)?, any_value(u)?)),
            // Rows that come twice, and as many as a page has.
            Value::Array(values) => {
                if let Some(first) = values.first().cloned() {
                    values.resize(usize::from(u8::arbitrary(u)? / 4), first);
                }
            }
            _ => *place = any_value(u)?,
        },
    }
    Ok(())
}

/// Makes a stream of recorded frames that are changed.
fn changed_frames(end: usize, u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let mut stream = Vec::new();
    for _ in 0..u.int_in_range(1..=6)? {
        // Now and then a frame of the other end.
        let end = if u.ratio(1, 16)? { 1 - end } else { end };
        let mut frame = u.choose(&RECORDED[end])?.clone();
        for _ in 0..u.int_in_range(0..=4)? {
            change(&mut frame, u)?;
        }
        let text = frame.to_string().into_bytes();
        let length = u32::try_from(text.len()).expect("short");
        let lie = if u.ratio(1, 16)? { u32::arbitrary(u)? } else { length };
        let from = stream.len();
        stream.extend(lie.to_le_bytes());
        stream.extend(text);
        if u.ratio(1, 8)? {
            let at = u.int_in_range(from..=stream.len() - 1)?;
            let bytes = u.int_in_range(0..=4)?.min(stream.len() - at);
            stream.splice(at..at + bytes, Vec::<u8>::arbitrary(u)?);
        }
    }
    Ok(stream)
}

/// What reading a stream ended with.
#[derive(Debug, PartialEq)]
enum End {
    /// The stream is at an end between two frames, or within one.
    Open {
        midway: bool,
    },
    TooLong,
    Json(String),
}

/// Reads a stream as the protocol says, without the decoder: it has no state.
fn plain<T: DeserializeOwned>(mut stream: &[u8], bytes_max: usize) -> (Vec<T>, End) {
    let mut read = Vec::new();
    loop {
        let Some((length, behind)) = stream.split_first_chunk() else {
            return (read, End::Open { midway: !stream.is_empty() });
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > bytes_max {
            return (read, End::TooLong);
        }
        let Some((text, behind)) = behind.split_at_checked(length) else {
            return (read, End::Open { midway: true });
        };
        match parse(text) {
            Ok(frame) => read.push(frame),
            Err(end) => return (read, end),
        }
        stream = behind;
    }
}

fn next<T: DeserializeOwned>(decoder: &mut FrameDecoder) -> Result<Option<T>, End> {
    decoder.next_frame().map_err(|error| {
        assert!(!error.to_string().is_empty());
        match error {
            FrameError::TooLong { .. } => End::TooLong,
            FrameError::Json(error) => End::Json(error.to_string()),
        }
    })
}

/// Cuts a stream into pieces of these lengths, repeated.
fn pieces<'a>(mut stream: &'a [u8], lengths: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    lengths.iter().cycle().map_while(move |length| {
        let length = usize::from(*length).saturating_mul(7).max(1).min(stream.len());
        let (piece, behind) = stream.split_at(length);
        stream = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Reads a stream in pieces. Each time the decoder must know whether it is within a frame.
fn in_pieces<T: DeserializeOwned>(mut decoder: FrameDecoder, stream: &[u8], lengths: &[u8]) -> (Vec<T>, End) {
    let mut read = Vec::new();
    let (mut pushed, mut used) = (0, 0);
    for piece in pieces(stream, lengths) {
        decoder.push(piece);
        pushed += piece.len();
        loop {
            match next(&mut decoder) {
                Ok(Some(frame)) => {
                    read.push(frame);
                    let length = stream[used..].first_chunk().expect("a frame was read");
                    used += 4 + u32::from_le_bytes(*length) as usize;
                }
                Ok(None) => break,
                Err(end) => return (read, end),
            }
            assert_eq!(decoder.is_midway(), used < pushed, "{used} of {pushed} bytes");
        }
        assert_eq!(decoder.is_midway(), used < pushed, "{used} of {pushed} bytes");
    }
    let midway = decoder.is_midway();
    (read, End::Open { midway })
}

/// Checks how much memory a stream takes: a frame's, as soon as its length is there, and what came behind it.
fn memory(mut decoder: FrameDecoder, stream: &[u8], lengths: &[u8], bytes_max: usize) {
    let ((), _, bytes) = jet_fuzz_memory::of(|| {
        for piece in pieces(stream, lengths) {
            decoder.push(piece);
            loop {
                match decoder.next_json() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
        }
    });
    let piece_max = 7 * 255;
    // A buffer that grows has up to twice what it must have, and is there beside the one before for a moment.
    let most = 3 * (bytes_max + piece_max) + 4096;
    assert!(bytes <= most.cast_signed(), "{bytes} bytes for frames of at most {bytes_max}");
}

/// Reads a frame's text, and checks how much memory that takes.
fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, End> {
    let (parsed, _, bytes) = jet_fuzz_memory::of(|| serde_json::from_slice(text));
    // A field that is not at once known to be of one struct or another is kept in 32 bytes or more, in a list
    // that grows by doubling.
    assert!(bytes <= (64 * text.len() + 4096).cast_signed(), "a text of {} bytes took {bytes}", text.len());
    parsed.map_err(|error| End::Json(error.to_string()))
}

/// Checks one end's reading of a stream.
fn check<T>(decoder: fn() -> FrameDecoder, bytes_max: usize, stream: &[u8], lengths: &[u8])
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let expected = plain::<T>(stream, bytes_max);
    assert_eq!(in_pieces::<T>(decoder(), stream, &[255]), expected);
    assert_eq!(in_pieces::<T>(decoder(), stream, lengths), expected);
    memory(decoder(), stream, lengths, bytes_max);
    for frame in &expected.0 {
        let Ok(written) = encode_frame(frame) else {
            assert!(stream.len() > FRAME_BYTES_MAX / 8, "{frame:?} is too long to be written");
            continue;
        };
        let mut decoder = FrameDecoder::default();
        decoder.push(&written);
        let again = decoder.next_frame::<T>().expect("it was written by this end").expect("it is whole");
        assert_eq!(&again, frame);
        assert!(!decoder.is_midway());
    }
}

/// Lets a client ask for the status of a daemon that has answered with this stream already, and says nothing
/// more. The client must come to an end, with a status or an error.
fn ask(stream: &[u8]) {
    let (near, mut far) = UnixStream::pair().expect("sockets");
    far.set_nonblocking(true).expect("a flag");
    if !far.write(stream).is_ok_and(|written| written == stream.len()) {
        return;
    }
    far.shutdown(Shutdown::Write).expect("connected");
    // Nothing waits: whatever is to come is there, and so is its end.
    let mut client = ControlConnection::from_stream(near, Duration::from_secs(60)).expect("a timeout");
    match client.status() {
        Ok(status) => assert!(status.rows.rest.is_none_or(|rest| rest.is_nothing())),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let _ = client.look();
}

fuzz_target!(|bytes: &[u8]| {
    let [kind, cuts @ ..] = bytes else { return };
    let Some((lengths, rest)) = cuts.split_at_checked(3) else { return };
    let end = usize::from(kind & 1);
    let stream = if kind & 2 == 0 {
        rest.to_vec()
    } else {
        let Ok(stream) = changed_frames(end, &mut Unstructured::new(rest)) else { return };
        stream
    };
    match end {
        0 => check::<ControlRequest>(FrameDecoder::of_requests, REQUEST_BYTES_MAX, &stream, lengths),
        _ => {
            check::<ControlResponse>(FrameDecoder::default, FRAME_BYTES_MAX, &stream, lengths);
            ask(&stream);
        }
    }
});
