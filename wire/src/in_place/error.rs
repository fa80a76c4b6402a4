//! Errors of in-place messages, and who is to blame for them.

/// The party to blame for a [`DecodeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The writer of the bytes, or what carried them: no version of Jet writes such a message.
    Writer,
    /// Neither end alone: a sound message that this reader does not know. Reader and writer do not fit each
    /// other.
    Mismatch,
}

/// The reason why a message was not read. Fields are named as `Message.field`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// There are fewer bytes than a head has.
    Truncated {
        /// Name of the message that was to be read.
        message: &'static str,
        /// Bytes that arrived.
        bytes: usize,
    },
    /// The message is of another kind.
    Kind {
        /// Name of the message that was to be read.
        message: &'static str,
        /// Kind that the message to be read has.
        expected: u8,
        /// Kind that the head states.
        found: u8,
    },
    /// The version is 0, which does not exist.
    Version {
        /// Name of the message.
        message: &'static str,
    },
    /// The stated length is wrong: less than the fixed part has, or not what arrived.
    Length {
        /// Name of the message.
        message: &'static str,
        /// Bytes stated in the head.
        stated: u32,
        /// Bytes that arrived.
        arrived: usize,
    },
    /// The fixed part has a length that the version cannot have.
    Fixed {
        /// Name of the message.
        message: &'static str,
        /// Version found.
        version: u8,
        /// Bytes of the fixed part, as stated.
        stated: u16,
        /// Bytes that the version's fixed part has; for a version newer than the reader's, the least that it
        /// has.
        expected: u16,
    },
    /// The field's bytes are not a value of its type.
    Value {
        /// Name of the field.
        field: &'static str,
        /// First of the field's bytes.
        first_byte: u8,
    },
    /// An element's bytes are not a value of the list's type.
    Element {
        /// Name of the field.
        field: &'static str,
        /// Index of the element.
        index: usize,
    },
    /// The field needs more bytes than are left of the message.
    Range {
        /// Name of the field.
        field: &'static str,
        /// Stated number of bytes, or of elements of a list.
        count: u32,
        /// Bytes that are left.
        left: usize,
    },
    /// The text is not UTF-8.
    Utf8 {
        /// Name of the field.
        field: &'static str,
        /// Bytes before the first wrong one.
        valid_bytes: usize,
    },
    /// Bytes are left behind the last field.
    Unclaimed {
        /// Name of the message.
        message: &'static str,
        /// Number of the bytes that are left.
        bytes: usize,
    },
}

impl DecodeError {
    /// Returns who is to blame.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Kind { .. } => Blame::Mismatch,
            Self::Truncated { .. }
            | Self::Version { .. }
            | Self::Length { .. }
            | Self::Fixed { .. }
            | Self::Value { .. }
            | Self::Element { .. }
            | Self::Range { .. }
            | Self::Utf8 { .. }
            | Self::Unclaimed { .. } => Blame::Writer,
        }
    }
}

impl core::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Truncated { message, bytes } => {
                write!(f, "{message}: {bytes} bytes are too short for the head of a message")
            }
            Self::Kind { message, expected, found } => {
                write!(f, "{message}: a message of kind {found}, not {expected}; read it as what it is")
            }
            Self::Version { message } => {
                write!(f, "{message}: version 0 does not exist; its writer is broken")
            }
            Self::Length { message, stated, arrived } => {
                write!(f, "{message}: its head says {stated} bytes, {arrived} arrived")
            }
            Self::Fixed { message, version, stated, expected } => {
                write!(
                    f,
                    "{message}: version {version} with a fixed part of {stated} bytes instead of {expected}; \
                     its writer is broken, or has changed the message without a new version"
                )
            }
            Self::Value { field, first_byte } => {
                write!(f, "{field}: no value of its type begins like this (first byte {first_byte:#04x})")
            }
            Self::Element { field, index } => write!(f, "{field}: element {index} is no value of its type"),
            Self::Range { field, count, left } => {
                write!(
                    f,
                    "{field}: {count} bytes or elements do not fit the {left} bytes left of the message"
                )
            }
            Self::Utf8 { field, valid_bytes } => {
                write!(f, "{field}: no UTF-8 after the first {valid_bytes} bytes")
            }
            Self::Unclaimed { message, bytes } => {
                write!(f, "{message}: {bytes} bytes behind its last field")
            }
        }
    }
}

impl core::error::Error for DecodeError {}

/// The reason why a message was not written. The caller is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The place to write to is too short.
    Room {
        /// Name of the message.
        message: &'static str,
        /// Bytes that the message takes.
        needed: usize,
        /// Bytes that the place has.
        room: usize,
    },
    /// The message is longer than the longest possible one: 4 GiB, less one byte.
    TooLong {
        /// Name of the message.
        message: &'static str,
        /// Bytes that the message would take.
        bytes: usize,
    },
}

impl core::fmt::Display for EncodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Room { message, needed, room } => {
                write!(f, "{message}: takes {needed} bytes, there is room for {room}")
            }
            Self::TooLong { message, bytes } => {
                write!(f, "{message}: {bytes} bytes are more than a message can have (4294967295)")
            }
        }
    }
}

impl core::error::Error for EncodeError {}
