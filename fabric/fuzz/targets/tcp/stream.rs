//! Frames as `fabric/src/soft/tcp/frame.rs` describes them, written anew: what the NIC is compared with.

pub const FRAME_BYTES: usize = 32;
pub const HEADER_BYTES: usize = 128;

pub mod kind {
    pub const CONNECT: u8 = 1;
    pub const ACCEPT: u8 = 2;
    pub const REJECT: u8 = 3;
    pub const SEND: u8 = 4;
    pub const SEND_ACK: u8 = 5;
    pub const SEND_ERROR: u8 = 6;
    pub const READ_REQUEST: u8 = 7;
    pub const READ_RESPONSE: u8 = 8;
    pub const READ_ERROR: u8 = 9;
    pub const BYE: u8 = 10;
    pub const READ_END: u8 = 11;
    pub const ASKED: u8 = 12;
    pub const ASK_ROOM: u8 = 13;
    pub const ROOM: u8 = 14;
    pub const OFFER: u8 = 15;
    pub const PUSH: u8 = 16;
    pub const PUSH_END: u8 = 17;
    /// No frame has this kind, or a higher one.
    pub const NONE: u8 = 18;
}

/// Header of a frame, not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Head {
    pub kind: u8,
    pub length: u32,
    pub id: u64,
    pub address: u64,
    pub key: u32,
    pub status: u8,
}

impl Head {
    pub fn of(kind: u8) -> Self {
        Self { kind, ..Self::default() }
    }

    pub fn to_bytes(self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[..4].copy_from_slice(&[b'J', b'F', 2, self.kind]);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.key.to_le_bytes());
        bytes[28] = self.status;
        bytes
    }

    fn from_bytes(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8"));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4"));
        let head = Self {
            kind: bytes[3],
            length: u32_at(4),
            id: u64_at(8),
            address: u64_at(16),
            key: u32_at(24),
            status: bytes[28],
        };
        (head.to_bytes() == *bytes).then_some(head)
    }

    /// Bytes behind the header.
    fn behind(&self) -> usize {
        match self.kind {
            kind::CONNECT | kind::ACCEPT | kind::REJECT | kind::SEND | kind::READ_RESPONSE | kind::PUSH => {
                self.length as usize
            }
            _ => 0,
        }
    }
}

/// Takes the first frame of a stream, if all of it is there. The second value is what is behind its header,
/// the third what is behind the frame. `Err`: no frame begins here.
#[expect(clippy::type_complexity, reason = "one use")]
pub fn first(stream: &[u8]) -> Result<Option<(Head, &[u8], &[u8])>, ()> {
    let Some((head, behind)) = stream.split_first_chunk::<FRAME_BYTES>() else { return Ok(None) };
    let head = Head::from_bytes(head).ok_or(())?;
    Ok(behind.split_at_checked(head.behind()).map(|(body, rest)| (head, body, rest)))
}

/// Returns the bodies of all SENDs of a stream, as far as the stream consists of frames.
pub fn sends(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut sends = Vec::new();
    while let Ok(Some((head, body, rest))) = first(stream) {
        if head.kind == kind::SEND {
            sends.push(body);
        }
        stream = rest;
    }
    sends
}
