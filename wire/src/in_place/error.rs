//! What can be wrong with a message, and who did it.

/// Who is to blame for a [`DecodeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// Who wrote the bytes, or what carried them: no version of Jet writes such a message.
    Writer,
    /// Nobody alone: a sound message that this reader does not know. Reader and writer do not fit each other.
    Mismatch,
}

/// Why a message was not read. Fields are named as `Message.field`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Fewer bytes than a head has.
    Truncated {
        /// The message that was to be read.
        message: &'static str,
        /// Bytes that arrived.
        bytes: usize,
    },
    /// Another kind of message.
    Kind {
        /// The message that was to be read.
        message: &'static str,
        /// Its kind.
        expected: u8,
        /// The kind found.
        found: u8,
    },
    /// Version 0, which does not exist.
    Version {
        /// The message.
        message: &'static str,
    },
    /// A length that lies: less than the fixed part has, or another one than what arrived.
    Length {
        /// The message.
        message: &'static str,
        /// Bytes stated in the head.
        stated: u32,
        /// Bytes that arrived.
        arrived: usize,
    },
    /// A fixed part that the version cannot have.
    Fixed {
        /// The message.
        message: &'static str,
        /// The version found.
        version: u8,
        /// Bytes of the fixed part, as stated.
        stated: u16,
        /// Bytes that the version has; for a version newer than the reader's, at least.
        expected: u16,
    },
    /// Bytes that are no value of the field's type.
    Value {
        /// The field.
        field: &'static str,
        /// The first of its bytes.
        first_byte: u8,
    },
    /// Bytes that are no value of a list's type.
    Element {
        /// The field.
        field: &'static str,
        /// The element's position.
        index: usize,
    },
    /// More than is left of the message.
    Range {
        /// The field.
        field: &'static str,
        /// The number stated: bytes, or elements of a list.
        count: u32,
        /// Bytes that are left.
        left: usize,
    },
    /// Text that is no UTF-8.
    Utf8 {
        /// The field.
        field: &'static str,
        /// Bytes before the first that is wrong.
        valid_bytes: usize,
    },
    /// Bytes behind the last field that are no field's.
    Unclaimed {
        /// The message.
        message: &'static str,
        /// How many.
        bytes: usize,
    },
}

impl DecodeError {
    /// Who is to blame.
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

/// Why a message was not written. The caller is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The place is too short.
    Room {
        /// The message.
        message: &'static str,
        /// Bytes that it takes.
        needed: usize,
        /// Bytes that there are.
        room: usize,
    },
    /// Longer than a message can be: 4 GiB, less one byte.
    TooLong {
        /// The message.
        message: &'static str,
        /// Bytes that it would take.
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
