//! What a message's bytes lie in, from its submission to its end.

use super::buffer::SendBuffer;
#[cfg(feature = "bytes")]
use super::buffer::SharedBytes;
use super::memory::Arena;
use std::sync::Arc;

/// What a message's bytes lie in.
#[derive(Debug, Default)]
pub(super) enum Held {
    /// The message's place of the copy area.
    #[default]
    Copied,
    Buffer(SendBuffer),
    /// Several buffers, in the order of the message's bytes.
    Pieces(Vec<SendBuffer>),
    /// Bytes that others have, too. They are only read.
    #[cfg(feature = "bytes")]
    Bytes(SharedBytes),
}

impl Held {
    /// Whether any byte lies in this memory of the program.
    pub(super) fn is_of(&self, arena: &Arc<Arena>) -> bool {
        match self {
            Self::Copied => false,
            Self::Buffer(buffer) => buffer.is_of(arena),
            Self::Pieces(pieces) => pieces.iter().any(|piece| piece.is_of(arena)),
            #[cfg(feature = "bytes")]
            Self::Bytes(bytes) => bytes.is_of(arena),
        }
    }

    /// Returns what the program gets back.
    #[inline]
    pub(super) fn given_back(self) -> GivenBack {
        match self {
            Self::Copied => GivenBack::default(),
            Self::Buffer(buffer) => GivenBack { buffer: Some(buffer), ..GivenBack::default() },
            Self::Pieces(pieces) => GivenBack { pieces, ..GivenBack::default() },
            #[cfg(feature = "bytes")]
            Self::Bytes(bytes) => GivenBack { bytes: Some(bytes.into_bytes()), ..GivenBack::default() },
        }
    }
}

/// What the program gets back with a message's end.
#[derive(Debug, Default)]
pub(super) struct GivenBack {
    pub buffer: Option<SendBuffer>,
    pub pieces: Vec<SendBuffer>,
    #[cfg(feature = "bytes")]
    pub bytes: Option<bytes::Bytes>,
}
