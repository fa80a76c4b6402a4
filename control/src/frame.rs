//! Frames on the control socket: the length of the JSON text as a little-endian `u32`, at most
//! [`FRAME_BYTES_MAX`], and then the text.

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec, LengthDelimitedCodecError};

/// Longest frame that either end may send, in bytes of JSON.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Longest frame that a client may send, in bytes of JSON. The limit is small because a frame's memory is
/// allocated as soon as its length is read.
pub const REQUEST_BYTES_MAX: usize = 4096;

/// Reason why a frame cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is longer than [`FRAME_BYTES_MAX`] or [`REQUEST_BYTES_MAX`].
    #[error("a frame exceeds the {bytes_max} bytes that one may have")]
    TooLong {
        /// Longest frame that is allowed, in bytes of JSON.
        bytes_max: usize,
    },
    /// The text is not the JSON that is expected here.
    #[error("a frame cannot be read: {0}; use the same build of Jet at both ends")]
    Json(#[from] serde_json::Error),
}

fn codec(bytes_max: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().little_endian().max_frame_length(bytes_max).new_codec()
}

/// Converts an error of the codec to an error of a frame: every error of the codec is about a length.
fn too_long(codec: &LengthDelimitedCodec, error: &io::Error) -> FrameError {
    debug_assert!(error.get_ref().is_some_and(|inner| inner.is::<LengthDelimitedCodecError>()), "{error}");
    FrameError::TooLong { bytes_max: codec.max_frame_length() }
}

/// Encodes a request or a response as a frame.
///
/// # Errors
/// [`FrameError`].
pub fn encode_frame<T: Serialize>(value: &T) -> Result<Bytes, FrameError> {
    let (mut codec, mut frame) = (codec(FRAME_BYTES_MAX), BytesMut::new());
    let encoded = codec.encode(serde_json::to_vec(value)?.as_slice(), &mut frame);
    encoded.map_err(|error| too_long(&codec, &error))?;
    Ok(frame.freeze())
}

/// Decoder of frames from a stream that arrives in pieces. Holds at most one frame and the bytes that came
/// behind it.
#[derive(Debug)]
pub struct FrameDecoder {
    codec: LengthDelimitedCodec,
    arrived: BytesMut,
    /// Whether the codec has taken a frame's length, and waits for the rest.
    midway: bool,
}

impl Default for FrameDecoder {
    /// Makes a decoder of the daemon's responses.
    fn default() -> Self {
        Self::new(FRAME_BYTES_MAX)
    }
}

impl FrameDecoder {
    /// Makes a decoder of clients' requests.
    pub fn of_requests() -> Self {
        Self::new(REQUEST_BYTES_MAX)
    }

    fn new(bytes_max: usize) -> Self {
        Self { codec: codec(bytes_max), arrived: BytesMut::new(), midway: false }
    }

    /// Appends bytes that arrived, to be decoded by [`Self::next_frame`].
    pub fn push(&mut self, bytes: &[u8]) {
        self.arrived.extend_from_slice(bytes);
    }

    /// Returns the next frame, if it is complete.
    ///
    /// # Errors
    /// [`FrameError`], which is always the other end's fault. The stream cannot be read any further.
    pub fn next_frame<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let json = self.next_json()?;
        json.map(|json| serde_json::from_slice(&json)).transpose().map_err(FrameError::Json)
    }

    /// Returns the JSON text of the next frame, if the frame is complete.
    ///
    /// # Errors
    /// [`FrameError::TooLong`]. The stream cannot be read any further.
    pub fn next_json(&mut self) -> Result<Option<BytesMut>, FrameError> {
        self.midway |= !self.arrived.is_empty();
        let decoded = self.codec.decode(&mut self.arrived);
        let json = decoded.map_err(|error| too_long(&self.codec, &error))?;
        if json.is_some() {
            self.midway = !self.arrived.is_empty();
        }
        Ok(json)
    }

    /// Whether a frame has begun and not ended: a hang-up now cuts it off.
    pub fn is_midway(&self) -> bool {
        self.midway
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ControlRequest, ControlResponse, Register};
    use crate::status::{ResidentShare, WarmerReadings, WarmerStatus};

    #[test]
    fn frames_are_read_out_of_any_pieces() {
        let request = ControlRequest::Register(Register { class: 1, ..Register::new("store") });
        let mut stream = encode_frame(&request).unwrap().to_vec();
        stream.extend(encode_frame(&ControlRequest::Status).unwrap());
        let mut decoder = FrameDecoder::default();
        let mut read = Vec::new();
        for byte in stream {
            decoder.push(&[byte]);
            read.extend(decoder.next_frame::<ControlRequest>().unwrap());
            assert_eq!(decoder.is_midway(), decoder.midway);
        }
        assert_eq!(read, [request, ControlRequest::Status]);
        assert!(!decoder.is_midway());
        for byte in [7, 0, 0, 0, b'"'] {
            decoder.push(&[byte]);
            assert!(decoder.next_frame::<ControlRequest>().unwrap().is_none() && decoder.is_midway());
        }
    }

    #[test]
    fn frames_that_come_together_are_read_one_by_one() {
        let mut decoder = FrameDecoder::default();
        let frame = encode_frame(&ControlRequest::Status).unwrap();
        decoder.push(&frame.repeat(3));
        for left in [true, true, false] {
            assert_eq!(decoder.next_frame::<ControlRequest>().unwrap(), Some(ControlRequest::Status));
            assert_eq!(decoder.is_midway(), left);
        }
        assert_eq!(&frame[..], b"\x08\0\0\0\"status\"");
    }

    #[test]
    fn fractions_are_read_as_they_were_written() {
        // The fuzzer found the first, of which serde_json without `float_roundtrip` reads a neighbour.
        let found = 4.396_125_649_636_577_3e18;
        for rate_hz in
            [found, f64::MIN_POSITIVE, f64::MAX].into_iter().chain((1..500).map(|n| f64::from(n).sqrt()))
        {
            let resident = Some(ResidentShare { share: rate_hz, ..Default::default() });
            let status = WarmerStatus::Running(WarmerReadings { resident, rate_hz, ..Default::default() });
            let mut decoder = FrameDecoder::default();
            decoder.push(&encode_frame(&status).unwrap());
            assert_eq!(decoder.next_frame().unwrap(), Some(status));
        }
    }

    #[test]
    fn a_length_that_lies_and_json_that_is_none_are_errors() {
        let mut decoder = FrameDecoder::default();
        decoder.push(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next_frame::<ControlRequest>(), Err(FrameError::TooLong { .. })));
        // A client's frames have a lower limit.
        let mut decoder = FrameDecoder::of_requests();
        decoder.push(&4097u32.to_le_bytes());
        let refused = decoder.next_frame::<ControlRequest>();
        assert!(matches!(refused, Err(FrameError::TooLong { bytes_max: 4096 })), "{refused:?}");
        let mut decoder = FrameDecoder::default();
        decoder.push(&[2, 0, 0, 0, b'{', b'!']);
        assert!(matches!(decoder.next_frame::<ControlRequest>(), Err(FrameError::Json(_))));
        let long =
            ControlResponse::Error { code: crate::ErrorCode::Internal, message: "x".repeat(FRAME_BYTES_MAX) };
        assert!(matches!(encode_frame(&long), Err(FrameError::TooLong { .. })));
    }
}
