//! The records of a connection: sealed and opened in the caller's memory.
//!
//! A record is a header of five bytes, and a body: the sealed data, its type, and a tag of sixteen bytes.
//! After so many records as a key may seal, a record follows that changes the key.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 5;
/// Bytes of data in a record, at most.
pub const PLAIN_BYTES_MAX: usize = 1 << 14;
/// Bytes of a record's body, at most, as the standard has it.
pub const RECORD_BODY_BYTES_MAX: usize = PLAIN_BYTES_MAX + 256;
/// Bytes that [`Records::seal`] needs for so many bytes of data as a record has at most: header, data, type,
/// tag, and a record that changes the key.
pub const SEALED_BYTES_MAX: usize = PLAIN_BYTES_MAX + OVERHEAD_BYTES + KEY_UPDATE_RECORD_BYTES;

const TAG_BYTES: usize = 16;
/// Bytes of a record beside its data: header, type and tag.
const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
const VERSION: [u8; 2] = [3, 3];
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const CLOSE_NOTIFY: u8 = 0;
/// Handshake message by which the sender of it changes its key, and asks for nothing.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// The same that asks the other end to change its key, too.
const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];
const KEY_UPDATE_RECORD_BYTES: usize = KEY_UPDATE.len() + OVERHEAD_BYTES;
/// Records that one key of AES-GCM seals, at most (RFC 8446, section 5.5).
const RECORDS_PER_KEY: u64 = 1 << 24;
/// Records without data that may follow each other. Each costs the reader as much as one with data.
const WITHOUT_DATA_MAX: u32 = 32;

/// What rustls keeps to make further keys.
pub(crate) enum Keys {
    Client(Box<KernelConnection<ClientConnectionData>>),
    Server(Box<KernelConnection<ServerConnectionData>>),
}

/// One direction of a connection.
struct Direction {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    /// Number of the next record under this key.
    number: u64,
}

impl Direction {
    fn new((number, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, rustls::Error> {
        let unusable = || rustls::Error::General("a cipher that was not offered".to_owned());
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { return Err(unusable()) };
        let key = UnboundKey::new(&AES_128_GCM, key.as_ref()).map_err(|_| unusable())?;
        let iv = iv.as_ref().try_into().map_err(|_| unusable())?;
        Ok(Self { key: LessSafeKey::new(key), iv, number })
    }

    /// Returns the next record's nonce, which is never used again under this key.
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Reason why nothing was sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The caller's memory is too short, or the data too long for a record.
    #[error(
        "{plain_bytes} bytes of data do not fit a record, or {room_bytes} bytes of memory not what seals them"
    )]
    Room {
        /// Bytes of data.
        plain_bytes: usize,
        /// Bytes of the caller's memory.
        room_bytes: usize,
    },
    /// There is no further key.
    #[error("no further key: {0}")]
    Key(#[from] rustls::Error),
}

/// Reason why a record was not opened. The connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The header is none of sealed records, or its body too long or too short.
    #[error("the peer sent what is no sealed record")]
    Header,
    /// The record was changed, left out, repeated, moved, or sealed by another key.
    #[error("a record is not what the peer sealed, or not in its place")]
    Seal,
    /// The record holds what has no place on a connection.
    #[error("the peer sent a record of type {0}, or with another content than it has to have")]
    Content(u8),
    /// Too many records without data.
    #[error("the peer sent {WITHOUT_DATA_MAX} records without data")]
    WithoutData,
    /// The peer ends the connection for a fault.
    #[error("the peer ends the connection: alert {0}")]
    Alert(u8),
    /// There is no further key.
    #[error("no further key: {0}")]
    Key(#[from] rustls::Error),
}

/// What an opened record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// So many bytes of data, at the body's beginning.
    Data(usize),
    /// The peer seals by another key from here on.
    NewKey,
    /// The peer sends nothing more.
    Closed,
}

/// What seals and opens a connection's records.
pub struct Records {
    keys: Keys,
    sealing: Direction,
    opening: Direction,
    records_per_key: u64,
    /// The peer asked for another key.
    owes_key: bool,
    without_data: u32,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Records({} sealed, {} opened by their keys)", self.sealing.number, self.opening.number)
    }
}

impl Records {
    pub(crate) fn new(keys: Keys, secrets: ExtractedSecrets) -> Result<Self, rustls::Error> {
        Ok(Self {
            keys,
            sealing: Direction::new(secrets.tx)?,
            opening: Direction::new(secrets.rx)?,
            records_per_key: RECORDS_PER_KEY,
            owes_key: false,
            without_data: 0,
        })
    }

    #[cfg(test)]
    pub(crate) fn set_records_per_key(&mut self, records: u64) {
        self.records_per_key = records;
    }

    /// Seals data where it lies: `plain_bytes` of it behind the first [`HEADER_BYTES`] of the memory. Returns
    /// how many bytes of the memory are to be sent.
    ///
    /// # Errors
    /// [`SealError`]; nothing is to be sent.
    pub fn seal(&mut self, memory: &mut [u8], plain_bytes: usize) -> Result<usize, SealError> {
        let needed_bytes = plain_bytes + OVERHEAD_BYTES + KEY_UPDATE_RECORD_BYTES;
        if plain_bytes > PLAIN_BYTES_MAX || memory.len() < needed_bytes {
            return Err(SealError::Room { plain_bytes, room_bytes: memory.len() });
        }
        let sealed = self.seal_record(DATA, memory, plain_bytes);
        // The change of keys takes the last number that the key has.
        if self.sealing.number + 1 < self.records_per_key && !self.owes_key {
            return Ok(sealed);
        }
        let memory = &mut memory[sealed..];
        memory[HEADER_BYTES..HEADER_BYTES + KEY_UPDATE.len()].copy_from_slice(&KEY_UPDATE);
        let sealed = sealed + self.seal_record(HANDSHAKE, memory, KEY_UPDATE.len());
        self.sealing = Direction::new(match &mut self.keys {
            Keys::Client(keys) => keys.update_tx_secret()?,
            Keys::Server(keys) => keys.update_tx_secret()?,
        })?;
        self.owes_key = false;
        Ok(sealed)
    }

    /// Seals the note that this end sends nothing more. Returns how many bytes of the memory are to be sent.
    ///
    /// # Errors
    /// [`SealError::Room`].
    pub fn seal_end(&mut self, memory: &mut [u8]) -> Result<usize, SealError> {
        /// A warning, as the standard calls it.
        const LEVEL: u8 = 1;
        let alert = [LEVEL, CLOSE_NOTIFY];
        if memory.len() < alert.len() + OVERHEAD_BYTES {
            return Err(SealError::Room { plain_bytes: alert.len(), room_bytes: memory.len() });
        }
        memory[HEADER_BYTES..HEADER_BYTES + alert.len()].copy_from_slice(&alert);
        Ok(self.seal_record(ALERT, memory, alert.len()))
    }

    fn seal_record(&mut self, kind: u8, memory: &mut [u8], plain_bytes: usize) -> usize {
        let body_bytes = plain_bytes + 1 + TAG_BYTES;
        let [high, low] = u16::try_from(body_bytes).expect("a record is short").to_be_bytes();
        let header = [DATA, VERSION[0], VERSION[1], high, low];
        memory[..HEADER_BYTES].copy_from_slice(&header);
        let (sealed, rest) = memory[HEADER_BYTES..].split_at_mut(plain_bytes + 1);
        sealed[plain_bytes] = kind;
        let nonce = self.sealing.next_nonce();
        let tag = self
            .sealing
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(header), sealed)
            .expect("a record is shorter than what AES-GCM seals");
        rest[..TAG_BYTES].copy_from_slice(tag.as_ref());
        HEADER_BYTES + body_bytes
    }

    /// Returns how many bytes follow a header.
    ///
    /// # Errors
    /// [`OpenError::Header`].
    pub fn body_bytes(header: [u8; HEADER_BYTES]) -> Result<usize, OpenError> {
        let [kind, major, minor, high, low] = header;
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        let fits = (TAG_BYTES + 1..=RECORD_BODY_BYTES_MAX).contains(&bytes);
        if kind == DATA && [major, minor] == VERSION && fits { Ok(bytes) } else { Err(OpenError::Header) }
    }

    /// Opens the body of a record where it lies.
    ///
    /// # Errors
    /// [`OpenError`]; the peer is to blame, or whoever is between. The connection is of no more use.
    pub fn open(&mut self, header: [u8; HEADER_BYTES], body: &mut [u8]) -> Result<Opened, OpenError> {
        if Self::body_bytes(header)? != body.len() {
            return Err(OpenError::Header);
        }
        let (sealed, tag) = body.split_last_chunk_mut::<TAG_BYTES>().ok_or(OpenError::Header)?;
        let nonce = self.opening.next_nonce();
        let opened = self
            .opening
            .key
            .open_in_place_separate_tag(nonce, Aad::from(header), Tag::from(*tag), sealed, 0..)
            .map_err(|_| OpenError::Seal)?;
        // Behind the data stand its type, and zeros as the peer likes.
        let end = opened.iter().rposition(|byte| *byte != 0).ok_or(OpenError::Content(0))?;
        let (content, kind) = (&opened[..end], opened[end]);
        if content.len() > PLAIN_BYTES_MAX {
            return Err(OpenError::Content(kind));
        }
        if kind == DATA && !content.is_empty() {
            self.without_data = 0;
            return Ok(Opened::Data(content.len()));
        }
        self.without_data += 1;
        if self.without_data > WITHOUT_DATA_MAX {
            return Err(OpenError::WithoutData);
        }
        match (kind, content) {
            (DATA, _) => Ok(Opened::Data(0)),
            (HANDSHAKE, message) if message == KEY_UPDATE || message == KEY_UPDATE_REQUESTED => {
                self.owes_key |= message == KEY_UPDATE_REQUESTED;
                self.opening = Direction::new(match &mut self.keys {
                    Keys::Client(keys) => keys.update_rx_secret()?,
                    Keys::Server(keys) => keys.update_rx_secret()?,
                })?;
                Ok(Opened::NewKey)
            }
            (ALERT, [_, CLOSE_NOTIFY]) => Ok(Opened::Closed),
            (ALERT, [_, alert]) => Err(OpenError::Alert(*alert)),
            (kind, _) => Err(OpenError::Content(kind)),
        }
    }
}
