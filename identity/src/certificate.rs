//! Certificates: an authority says which name a key has, and for how long.

use crate::{
    NAME_MAX, Name, NameError, PUBLIC_KEY_BYTES, PublicKey, PublicKeyError, SIGNATURE_BYTES, SecretKey,
    Timestamp, pem,
};

/// Bytes of the longest certificate.
pub const CERTIFICATE_BYTES_MAX: usize = HEAD_BYTES + NAME_MAX + SIGNATURE_BYTES;

const MAGIC: [u8; 4] = *b"JETc";
const VERSION: u8 = 1;
/// Bytes before the name.
const HEAD_BYTES: usize = 6 + 2 * PUBLIC_KEY_BYTES + 16;
/// What stands before a certificate when it is signed, so that its signature is one of nothing else.
const PURPOSE: &[u8] = b"jet certificate 1\0";

/// Time in which a certificate holds: from `from` on, until before `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First second.
    pub from: Timestamp,
    /// First second after it.
    pub until: Timestamp,
}

impl Validity {
    /// Whether this is within it.
    pub fn has(&self, time: Timestamp) -> bool {
        self.from <= time && time < self.until
    }
}

/// Statement of an authority that a key has a name, and for how long.
///
/// One that was read has the right form. Whether its authority is trusted and signed it is asked of
/// [`crate::Trust`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    key: PublicKey,
    authority: PublicKey,
    validity: Validity,
    name: Name,
    signature: [u8; SIGNATURE_BYTES],
}

/// Reason why a certificate could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The text is none.
    #[error("it holds no certificate; make one with jet keys sign")]
    Text,
    /// The bytes are not those of a certificate, or not all of them, or more.
    #[error("{0} bytes are no certificate")]
    Form(usize),
    /// The certificate is of a later version.
    #[error("the certificate is of version {0}, and this build reads version {VERSION}; update it")]
    Version(u8),
    /// The name is none.
    #[error("the certificate's name is none: {0}")]
    Name(#[from] NameError),
    /// One of its keys is none.
    #[error("a key in the certificate is none: {0}")]
    Key(#[from] PublicKeyError),
    /// It begins after it ends, or the times cannot be written.
    #[error("the certificate holds at no time")]
    Validity,
}

impl Certificate {
    pub(crate) const PEM_LABEL: &str = "JET CERTIFICATE";

    /// Makes a certificate: the authority says that the key has the name.
    ///
    /// # Errors
    /// [`CertificateError::Validity`].
    pub fn issue(
        authority: &SecretKey,
        key: PublicKey,
        name: Name,
        validity: Validity,
    ) -> Result<Self, CertificateError> {
        if validity.from >= validity.until {
            return Err(CertificateError::Validity);
        }
        let mut certificate =
            Self { key, authority: authority.public(), validity, name, signature: [0; SIGNATURE_BYTES] };
        certificate.signature = authority.sign(&certificate.signed());
        Ok(certificate)
    }

    /// Returns the key that it is for.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Returns the key of the authority that is said to have signed it.
    pub fn authority(&self) -> PublicKey {
        self.authority
    }

    /// Returns when it holds.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Returns the name that it gives.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Whether the authority that it names signed it.
    pub fn is_signed(&self) -> bool {
        self.authority.has_signed(&self.signed(), &self.signature)
    }

    fn body(&self) -> Vec<u8> {
        let name = self.name.as_str().as_bytes();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + name.len() + SIGNATURE_BYTES);
        bytes.extend(MAGIC);
        bytes.push(VERSION);
        bytes.push(u8::try_from(name.len()).expect("a name has 255 bytes at most"));
        bytes.extend(self.key.as_bytes());
        bytes.extend(self.authority.as_bytes());
        bytes.extend(self.validity.from.seconds().to_le_bytes());
        bytes.extend(self.validity.until.seconds().to_le_bytes());
        bytes.extend(name);
        bytes
    }

    fn signed(&self) -> Vec<u8> {
        [PURPOSE, &self.body()].concat()
    }

    /// Returns its bytes, [`CERTIFICATE_BYTES_MAX`] at most.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.body();
        bytes.extend(self.signature);
        bytes
    }

    /// Reads the bytes of a certificate, all of them.
    ///
    /// # Errors
    /// [`CertificateError`]; whoever presents it is to blame.
    pub fn decode(bytes: &[u8]) -> Result<Self, CertificateError> {
        let form = || CertificateError::Form(bytes.len());
        let mut rest = bytes;
        if *take::<4>(&mut rest).ok_or_else(form)? != MAGIC {
            return Err(form());
        }
        let [version, name_bytes] = *take::<2>(&mut rest).ok_or_else(form)?;
        if version != VERSION {
            return Err(CertificateError::Version(version));
        }
        let key = PublicKey::from_bytes(*take(&mut rest).ok_or_else(form)?)?;
        let authority = PublicKey::from_bytes(*take(&mut rest).ok_or_else(form)?)?;
        let from_s = u64::from_le_bytes(*take(&mut rest).ok_or_else(form)?);
        let until_s = u64::from_le_bytes(*take(&mut rest).ok_or_else(form)?);
        let (name, rest) = rest.split_at_checked(usize::from(name_bytes)).ok_or_else(form)?;
        let signature = rest.try_into().map_err(|_| form())?;
        if from_s >= until_s || until_s > Timestamp::MAX.seconds() {
            return Err(CertificateError::Validity);
        }
        let name = std::str::from_utf8(name).map_err(|_| form())?.parse()?;
        let validity =
            Validity { from: Timestamp::from_seconds(from_s), until: Timestamp::from_seconds(until_s) };
        Ok(Self { key, authority, validity, name, signature })
    }

    /// Returns the text of a certificate's file.
    pub fn to_text(&self) -> String {
        pem::encode(Self::PEM_LABEL, &self.encode())
    }

    /// Reads the text of a certificate's file.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn from_text(text: &str) -> Result<Self, CertificateError> {
        Self::decode(&pem::decode(Self::PEM_LABEL, text).ok_or(CertificateError::Text)?)
    }
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn validity(from_s: u64, until_s: u64) -> Validity {
        Validity { from: Timestamp::from_seconds(from_s), until: Timestamp::from_seconds(until_s) }
    }

    fn certificate() -> Certificate {
        let (authority, key) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        Certificate::issue(&authority, key.public(), "web-1".parse().unwrap(), validity(10, 20)).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let (authority, key) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        for name in ["w", "spiffe://example.org/web-1", &"x".repeat(NAME_MAX)] {
            let (name, validity): (Name, _) = (name.parse().unwrap(), validity(0, u64::MAX));
            let certificate = Certificate::issue(&authority, key.public(), name.clone(), validity).unwrap();
            assert!(certificate.encode().len() <= CERTIFICATE_BYTES_MAX);
            let read = Certificate::from_text(&certificate.to_text()).unwrap();
            assert_eq!(read, certificate);
            assert!(read.is_signed());
            assert_eq!((read.key(), read.authority()), (key.public(), authority.public()));
            assert_eq!((read.name(), read.validity()), (&name, validity));
        }
    }

    #[test]
    fn the_form_of_a_certificate_is_what_it_was() {
        // Secret keys whose bytes are all 1 and all 2: signatures of Ed25519 are not by chance.
        let key = |byte: u8| {
            let text = pem::encode(
                SecretKey::PEM_LABEL,
                &[
                    &data_encoding::HEXLOWER.decode(b"302e020100300506032b657004220420").unwrap()[..],
                    &[byte; 32],
                ]
                .concat(),
            );
            SecretKey::from_text(&text).unwrap()
        };
        let certificate =
            Certificate::issue(&key(1), key(2).public(), "web-1".parse().unwrap(), validity(10, 600))
                .unwrap();
        let recorded = include_str!("certificate/recorded.txt").trim_end();
        assert_eq!(data_encoding::HEXLOWER.encode(&certificate.encode()), recorded);
        assert!(certificate.is_signed());
    }

    #[test]
    fn a_change_of_any_bit_is_seen() {
        let bytes = certificate().encode();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let read = Certificate::decode(&changed);
            assert!(!read.is_ok_and(|read| read.is_signed()), "bit {bit}");
        }
    }

    #[test]
    fn half_a_certificate_and_more_than_one_are_none() {
        let mut bytes = certificate().encode();
        for end in 0..bytes.len() {
            assert_eq!(Certificate::decode(&bytes[..end]), Err(CertificateError::Form(end)));
        }
        bytes.push(0);
        assert_eq!(Certificate::decode(&bytes), Err(CertificateError::Form(bytes.len())));
    }

    #[test]
    fn what_holds_at_no_time_is_none() {
        let (authority, name) = (SecretKey::generate().unwrap(), "web".parse::<Name>().unwrap());
        for (from_s, until_s) in [(5, 5), (6, 5)] {
            let issued =
                Certificate::issue(&authority, authority.public(), name.clone(), validity(from_s, until_s));
            assert_eq!(issued, Err(CertificateError::Validity));
        }
        let mut certificate = certificate();
        certificate.validity = validity(20, 10);
        assert_eq!(Certificate::decode(&certificate.encode()), Err(CertificateError::Validity));
        let mut bytes = certificate.encode();
        let until = HEAD_BYTES - 8;
        bytes[until..HEAD_BYTES].fill(0xff);
        assert_eq!(Certificate::decode(&bytes), Err(CertificateError::Validity));
    }

    #[test]
    fn a_later_version_and_a_bad_name_are_told() {
        let mut bytes = certificate().encode();
        bytes[HEAD_BYTES] = b' ';
        assert!(matches!(Certificate::decode(&bytes), Err(CertificateError::Name(_))));
        bytes[4] = 2;
        assert_eq!(Certificate::decode(&bytes), Err(CertificateError::Version(2)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let _ = Certificate::decode(&bytes);
            let _ = Certificate::decode(&[&MAGIC[..], &[VERSION], &bytes].concat());
        }
    }
}
