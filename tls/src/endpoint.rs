//! What all handshakes of an end have in common: its key, and how TLS is spoken.

use crate::{Handshake, HandshakeError};
use jet_identity::{PUBLIC_KEY_BYTES, PublicKey, SecretKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureAlgorithm, SignatureScheme, version,
};
use std::sync::Arc;

/// What stands before the 32 bytes of a public key in its usual form in TLS (RFC 8410).
const SPKI_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// Key of an end, ready for handshakes.
///
/// TLS 1.3 alone is spoken, with X25519 for the keys of a connection and AES-128-GCM for its records. No
/// session is resumed and no data goes with the first bytes: either could be replayed.
#[derive(Clone, Debug)]
pub struct Endpoint {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Endpoint {
    /// Makes one of an end's secret key.
    ///
    /// # Panics
    /// Never: what rustls refuses, like a provider without ciphers, is fixed here.
    pub fn new(secret: SecretKey) -> Self {
        let mut provider = ring::default_provider();
        provider.cipher_suites = vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
        provider.kx_groups = vec![ring::kx_group::X25519];
        let provider = Arc::new(provider);
        let peers = Arc::new(RawKeys { provider: Arc::clone(&provider) });
        let spki = spki_of(&secret.public());
        let key = CertifiedKey::new(vec![CertificateDer::from(spki)], Arc::new(Key(Arc::new(secret))));
        let key = Arc::new(key);
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .expect("the provider has a cipher of TLS 1.3")
            .with_client_cert_verifier(Arc::clone(&peers) as Arc<dyn ClientCertVerifier>)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&key))));
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.enable_secret_extraction = true;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .expect("the provider has a cipher of TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(peers)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)));
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.enable_secret_extraction = true;
        Self { server: Arc::new(server), client: Arc::new(client) }
    }

    /// Begins a handshake as the end that was connected to.
    ///
    /// # Errors
    /// [`HandshakeError`]: the system gives no random numbers.
    pub fn accept(&self) -> Result<Handshake, HandshakeError> {
        Handshake::accept(Arc::clone(&self.server))
    }

    /// Begins a handshake as the end that connected.
    ///
    /// # Errors
    /// [`HandshakeError`]: the system gives no random numbers.
    pub fn connect(&self) -> Result<Handshake, HandshakeError> {
        // Nobody is told this name: peers are known by their keys.
        let name = ServerName::try_from("jet").expect("a name");
        Handshake::connect(Arc::clone(&self.client), name)
    }
}

fn spki_of(key: &PublicKey) -> Vec<u8> {
    [&SPKI_HEAD[..], key.as_bytes()].concat()
}

/// Returns the key that a peer showed; `None` where it is none of Ed25519 in its one form, or a weak one.
pub(crate) fn shown_key(certificate: &CertificateDer<'_>) -> Option<PublicKey> {
    let key: [u8; PUBLIC_KEY_BYTES] = certificate.strip_prefix(&SPKI_HEAD)?.try_into().ok()?;
    PublicKey::from_bytes(key).ok()
}

/// Secret key, as rustls asks for it.
#[derive(Clone, Debug)]
struct Key(Arc<SecretKey>);

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let is_offered = offered.contains(&SignatureScheme::ED25519);
        is_offered.then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(spki_of(&self.0.public())))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.0.sign(message).to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

/// Takes any peer that signs with the raw Ed25519 key that it shows.
#[derive(Debug)]
struct RawKeys {
    provider: Arc<CryptoProvider>,
}

impl RawKeys {
    fn is_key(shown: &CertificateDer<'_>, more: &[CertificateDer<'_>]) -> Result<(), Error> {
        match shown_key(shown) {
            Some(_) if more.is_empty() => Ok(()),
            _ => Err(CertificateError::BadEncoding.into()),
        }
    }

    fn has_signed(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }
}

const NO_TLS12: Error = Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered);

impl ServerCertVerifier for RawKeys {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Self::is_key(shown, more).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(NO_TLS12)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.has_signed(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for RawKeys {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Self::is_key(shown, more).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(NO_TLS12)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.has_signed(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Makes a client that is rustls whole, which signs with one key and shows another.
#[cfg(test)]
pub(crate) fn tests_only_client(signs: SecretKey, shows: PublicKey) -> rustls::ClientConnection {
    /// Signs with one key, and says that it is the other.
    #[derive(Debug)]
    struct Pretender(Key, PublicKey);
    impl SigningKey for Pretender {
        fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
            self.0.choose_scheme(offered)
        }
        fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
            Some(SubjectPublicKeyInfoDer::from(spki_of(&self.1)))
        }
        fn algorithm(&self) -> SignatureAlgorithm {
            SignatureAlgorithm::ED25519
        }
    }
    let provider = Arc::new(ring::default_provider());
    let key = Pretender(Key(Arc::new(signs)), shows);
    let key = CertifiedKey::new(vec![CertificateDer::from(spki_of(&shows))], Arc::new(key));
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&version::TLS13])
        .expect("the provider has a cipher of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(RawKeys { provider }))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(key))));
    config.resumption = Resumption::disabled();
    rustls::ClientConnection::new(Arc::new(config), ServerName::try_from("jet").expect("a name"))
        .expect("a client")
}
