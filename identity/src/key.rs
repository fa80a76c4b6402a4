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

/// The text is no public key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no public key; one is ed25519: and 43 characters, as jet keys show FILE prints it")]
pub struct PublicKeyError(String);

impl PublicKey {
    /// Makes one of its bytes.
    pub fn from_bytes(bytes: [u8; PUBLIC_KEY_BYTES]) -> Self {
        Self(bytes)
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
        text.strip_prefix(TEXT_HEAD)
            .and_then(|key| BASE64URL_NOPAD.decode(key.as_bytes()).ok()?.try_into().ok())
            .map(Self)
            .ok_or_else(|| PublicKeyError(text.to_owned()))
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
            assert_eq!(text.parse::<PublicKey>(), Err(PublicKeyError(text)));
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
