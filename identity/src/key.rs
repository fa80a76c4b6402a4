//! Key pairs: Ed25519 (RFC 8032).

use crate::pem;
use data_encoding::BASE64URL_NOPAD;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Bytes of a public key.
pub const PUBLIC_KEY_BYTES: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

const SEED_BYTES: usize = 32;
/// What stands before the 32 bytes of a secret key in PKCS #8 (RFC 8410).
const PKCS8_HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
const TEXT_HEAD: &str = "ed25519:";

/// Public key, by which peers know an identity. As text: `ed25519:` and 43 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; PUBLIC_KEY_BYTES]);

/// Reason why there is no public key. The text is not repeated: it may be a secret by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// The text is none.
    #[error("that is no public key; one is ed25519: and 43 characters, as jet keys show FILE prints it")]
    Text,
    /// The key is one of those by which anybody can sign, or is not written in its one form.
    #[error("that is a public key without a secret, by which anybody could sign; make one with jet keys new")]
    Weak,
}

/// The points of small order, without their signs, and the number of the field, as 32 bytes (RFC 7748, 8032).
///
/// Whoever has no secret can sign by such a key.
const SMALL_ORDER: [[u8; PUBLIC_KEY_BYTES]; 5] = [
    ends(0, 0, 0),
    ends(1, 0, 0),
    ends(0xec, 0xff, 0x7f),
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5,
        0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a,
        0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
    ],
];

/// Bytes of which the first, those in the middle, and the last are these.
const fn ends(first: u8, middle: u8, last: u8) -> [u8; PUBLIC_KEY_BYTES] {
    let mut bytes = [middle; PUBLIC_KEY_BYTES];
    bytes[0] = first;
    bytes[PUBLIC_KEY_BYTES - 1] = last;
    bytes
}

/// Whether anybody can sign by the key, or the point has another form, too.
fn is_weak(key: &[u8; PUBLIC_KEY_BYTES]) -> bool {
    const LAST: usize = PUBLIC_KEY_BYTES - 1;
    let mut point = *key;
    point[LAST] &= 0x7f;
    // From 2^255 - 19 on.
    let is_beyond =
        point[0] >= 0xed && point[1..LAST].iter().all(|byte| *byte == 0xff) && point[LAST] == 0x7f;
    is_beyond || SMALL_ORDER.contains(&point)
}

impl PublicKey {
    /// Makes one of its bytes.
    ///
    /// # Errors
    /// [`PublicKeyError::Weak`].
    pub fn from_bytes(bytes: [u8; PUBLIC_KEY_BYTES]) -> Result<Self, PublicKeyError> {
        if is_weak(&bytes) { Err(PublicKeyError::Weak) } else { Ok(Self(bytes)) }
    }

    /// Returns its bytes.
    pub fn as_bytes(&self) -> &[u8; PUBLIC_KEY_BYTES] {
        &self.0
    }

    /// Whether the owner of this key signed the message.
    pub fn has_signed(&self, message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TEXT_HEAD}{}", BASE64URL_NOPAD.encode_display(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<Self, PublicKeyError> {
        let bytes = text
            .strip_prefix(TEXT_HEAD)
            .and_then(|key| BASE64URL_NOPAD.decode(key.as_bytes()).ok()?.try_into().ok())
            .ok_or(PublicKeyError::Text)?;
        Self::from_bytes(bytes)
    }
}

impl TryFrom<String> for PublicKey {
    type Error = PublicKeyError;

    fn try_from(text: String) -> Result<Self, PublicKeyError> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

/// Secret key, by which its owner proves who it is. It is never printed.
pub struct SecretKey {
    pair: Ed25519KeyPair,
    pkcs8: Vec<u8>,
}

/// Reason why there is no secret key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretKeyError {
    /// The text is none.
    #[error("it holds no Ed25519 key in PKCS #8; make one with jet keys new FILE")]
    Text,
    /// The system gives no random numbers.
    #[error("the system gives no random numbers for a new key; see getrandom(2)")]
    Random,
}

impl SecretKey {
    pub(crate) const PEM_LABEL: &str = "PRIVATE KEY";

    /// Makes a new one.
    ///
    /// # Errors
    /// [`SecretKeyError::Random`].
    pub fn generate() -> Result<Self, SecretKeyError> {
        let seed: [u8; SEED_BYTES] = ring::rand::generate(&ring::rand::SystemRandom::new())
            .map_err(|_| SecretKeyError::Random)?
            .expose();
        Self::from_pkcs8([&PKCS8_HEAD[..], &seed].concat())
    }

    /// Reads the text of a key file, as [`Self::to_text`] and `openssl genpkey -algorithm ed25519` write it.
    ///
    /// # Errors
    /// [`SecretKeyError::Text`].
    pub fn from_text(text: &str) -> Result<Self, SecretKeyError> {
        Self::from_pkcs8(pem::decode(Self::PEM_LABEL, text).ok_or(SecretKeyError::Text)?)
    }

    fn from_pkcs8(pkcs8: Vec<u8>) -> Result<Self, SecretKeyError> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&pkcs8).map_err(|_| SecretKeyError::Text)?;
        Ok(Self { pair, pkcs8 })
    }

    /// Returns the text of a key file. It is the secret itself.
    pub fn to_text(&self) -> String {
        pem::encode(Self::PEM_LABEL, &self.pkcs8)
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        let bytes = self.pair.public_key().as_ref();
        PublicKey(bytes.try_into().expect("Ed25519's keys have 32 bytes"))
    }

    /// Signs a message.
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        self.pair.sign(message).as_ref().try_into().expect("Ed25519's signatures have 64 bytes")
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.public())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test 1 of RFC 8032, section 7.1: its secret key, its public key, and its signature of nothing.
    const SECRET: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    const PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    const SIGNATURE: &str = concat!(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155",
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    );

    fn hex(text: &str) -> Vec<u8> {
        data_encoding::HEXLOWER.decode(text.as_bytes()).unwrap()
    }

    #[test]
    fn keys_and_signatures_are_those_of_the_standard() {
        let key = SecretKey::from_pkcs8([&PKCS8_HEAD[..], &hex(SECRET)].concat()).unwrap();
        assert_eq!(key.public().as_bytes()[..], hex(PUBLIC));
        assert_eq!(key.sign(b"")[..], hex(SIGNATURE));
        assert!(key.public().has_signed(b"", &key.sign(b"")));
    }

    #[test]
    fn a_signature_is_of_one_message_and_one_key() {
        let (one, other) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        let signature = one.sign(b"message");
        assert!(one.public().has_signed(b"message", &signature));
        assert!(!one.public().has_signed(b"messagf", &signature));
        assert!(!other.public().has_signed(b"message", &signature));
        for bit in 0..SIGNATURE_BYTES * 8 {
            let mut changed = signature;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!one.public().has_signed(b"message", &changed), "{bit}");
        }
    }

    #[test]
    fn keys_are_written_and_read_as_text() {
        let key = SecretKey::generate().unwrap();
        let read = SecretKey::from_text(&key.to_text()).unwrap();
        assert_eq!(read.public(), key.public());
        let text = key.public().to_string();
        assert_eq!(text.len(), TEXT_HEAD.len() + 43);
        assert_eq!(text.parse(), Ok(key.public()));
    }

    #[test]
    fn keys_of_other_tools_are_read() {
        // The example of RFC 8410, section 10.3, as openssl writes such a file, too.
        let text = concat!(
            "-----BEGIN PRIVATE KEY-----\n",
            "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n",
            "-----END PRIVATE KEY-----\n"
        );
        let key = SecretKey::from_text(text).unwrap();
        let public = "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1";
        assert_eq!(key.public().as_bytes()[..], hex(public));
        assert_eq!(key.to_text(), text);
    }

    #[test]
    fn keys_by_which_anybody_could_sign_are_refused() {
        let mut beyond = ends(0xed, 0xff, 0x7f);
        let weak = SMALL_ORDER.into_iter().chain((0xed..=0xff).map(|first| {
            beyond[0] = first;
            beyond
        }));
        for mut bytes in weak {
            for _ in 0..2 {
                assert_eq!(PublicKey::from_bytes(bytes), Err(PublicKeyError::Weak), "{bytes:x?}");
                let text = PublicKey(bytes).to_string();
                assert_eq!(text.parse::<PublicKey>(), Err(PublicKeyError::Weak), "{text}");
                // The same point on the other side.
                bytes[PUBLIC_KEY_BYTES - 1] ^= 0x80;
            }
        }
        assert!(PublicKey::from_bytes(ends(2, 0, 0)).is_ok());
        assert!(PublicKey::from_bytes(ends(0xeb, 0xff, 0x7f)).is_ok());
    }

    #[test]
    fn a_secret_is_never_printed() {
        let key = SecretKey::generate().unwrap();
        let seed = data_encoding::HEXLOWER.encode(&key.pkcs8[PKCS8_HEAD.len()..]);
        let shown = format!("{key:?}");
        assert_eq!(shown, format!("SecretKey(of {})", key.public()));
        assert!(!shown.contains(&seed));
    }

    #[test]
    fn other_texts_are_no_keys() {
        let public = SecretKey::generate().unwrap().public().to_string();
        let text = SecretKey::generate().unwrap().to_text();
        let bad = [
            String::new(),
            "ed25519:".to_owned(),
            public.replace("ed25519:", ""),
            public.replace("ed25519:", "rsa:"),
            format!("{public}A"),
            format!("{public} "),
            public[..public.len() - 1].to_owned(),
        ];
        for text in bad {
            assert_eq!(text.parse::<PublicKey>(), Err(PublicKeyError::Text), "{text}");
        }
        for bad in [public, text.replace("PRIVATE", "PUBLIC"), text.replace("MC4", "MC5")] {
            assert_eq!(SecretKey::from_text(&bad).unwrap_err(), SecretKeyError::Text);
        }
        // A key of another kind: P-256, as openssl writes it, without its public part.
        let p256 = concat!(
            "-----BEGIN PRIVATE KEY-----\n",
            "MEECAQAwEwYHKoZIzj0CAQYIKoZIzj0DAQcEJzAlAgEBBCAAAAAAAAAAAAAAAAAA\n",
            "AAAAAAAAAAAAAAAAAAAAAAAAAQ==\n",
            "-----END PRIVATE KEY-----\n"
        );
        assert_eq!(SecretKey::from_text(p256).unwrap_err(), SecretKeyError::Text);
    }
}
