//! As much of the framing of `tcp:` as this benchmark speaks by hand. A proxy tells frames apart, and a crowd
//! of strangers writes the beginning of a conversation. `fabric/src/soft/tcp/frame.rs` has the whole format.
//!
//! Where that format changes, the daemon refuses what is written here, and the benchmark ends with an error.

use std::io;

/// Bytes of a frame's header.
pub const FRAME_BYTES: usize = 32;
/// Version of the framing.
const VERSION: u8 = 2;
/// READs that a stranger says it answers at once.
const READS_ANSWERED: u64 = 32;

/// Kinds of frames that the benchmark tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The listening end takes the connection.
    Accept,
    /// A request to read memory.
    ReadRequest,
    /// Any other frame.
    Other,
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Kind of the frame.
    pub kind: Kind,
    /// Bytes on the stream behind the header.
    pub behind: usize,
}

impl Frame {
    /// Reads a header.
    ///
    /// # Errors
    /// The bytes are no header of this version.
    pub fn parse(bytes: &[u8; FRAME_BYTES]) -> io::Result<Self> {
        let [b'J', b'F', VERSION, kind, l0, l1, l2, l3, ..] = *bytes else {
            let text = format!("{bytes:02x?} is no frame of version {VERSION}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let (kind, behind) = match kind {
            2 => (Kind::Accept, length),
            // The length is that of the memory to be read.
            7 => (Kind::ReadRequest, 0),
            _ => (Kind::Other, length),
        };
        Ok(Self { kind, behind })
    }
}

fn header(kind: u8, length: usize, id: u64) -> [u8; FRAME_BYTES] {
    let length = u32::try_from(length).expect("some thousand bytes");
    let mut bytes = [0; FRAME_BYTES];
    bytes[..4].copy_from_slice(&[b'J', b'F', VERSION, kind]);
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    bytes
}

/// Returns the frame that asks for a connection.
pub fn connect(private_data: &[u8]) -> Vec<u8> {
    [&header(1, private_data.len(), READS_ANSWERED)[..], private_data].concat()
}

/// Returns the frame of a SEND.
pub fn send(message_header: &[u8], payload: &[u8]) -> Vec<u8> {
    let length = message_header.len() + payload.len();
    [&header(4, length, 0)[..], message_header, payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_behind_a_request_to_read() {
        let request = Frame::parse(&header(7, 256 << 10, 0)).unwrap();
        assert_eq!(request, Frame { kind: Kind::ReadRequest, behind: 0 });
        assert_eq!(Frame::parse(&header(2, 50, 0)).unwrap(), Frame { kind: Kind::Accept, behind: 50 });
    }
}
