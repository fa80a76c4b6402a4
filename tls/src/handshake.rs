//! The handshake of a connection: bytes in, bytes out, until both ends have proven their keys.

use crate::Records;
use crate::endpoint::shown_key;
use crate::records::{HEADER_BYTES, Keys};
use jet_identity::PublicKey;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ServerConfig};
use std::sync::Arc;

/// Bytes of a peer that a handshake keeps at once, at most. What an end of Jet says takes some 350.
pub const HANDSHAKE_BYTES_MAX: usize = 4096;

/// Reason why a handshake ends without a connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer did not keep to TLS 1.3 with raw Ed25519 keys, or proved nothing.
    #[error("the peer does not speak TLS 1.3 with an Ed25519 key, as Jet does: {0}")]
    Peer(#[from] rustls::Error),
    /// The peer said more than a handshake needs.
    #[error("the peer's handshake is longer than {HANDSHAKE_BYTES_MAX} bytes at once")]
    TooLong,
    /// The peer closed the connection.
    #[error("the peer ended its handshake")]
    Closed,
    /// The handshake had failed before.
    #[error("the handshake has failed already")]
    Failed,
    /// The handshake was asked for its outcome before it was done.
    #[error("the handshake is not done")]
    NotDone,
}

enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Connection {
    /// What both ends have in common.
    fn state(&self) -> &CommonState {
        match self {
            Self::Client(connection) => connection,
            Self::Server(connection) => connection,
        }
    }
}

/// Handshake that goes on.
pub struct Handshake {
    connection: Connection,
    /// Bytes of the peer that were taken and not used.
    incoming: Vec<u8>,
    /// Bytes that the record lacks which arrives now; its header first.
    missing: usize,
    /// Whether the header of that record has arrived.
    has_header: bool,
    outgoing: Vec<u8>,
    done: bool,
    /// rustls is not asked again after an error.
    failed: bool,
}

/// What a handshake leads to.
#[derive(Debug)]
pub struct Secured {
    /// Key that the peer has proven to have.
    pub peer: PublicKey,
    /// What seals and opens the connection's records.
    pub records: Records,
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { incoming, outgoing, done, .. } = self;
        write!(f, "Handshake({} in, {} out, done: {done})", incoming.len(), outgoing.len())
    }
}

/// What is to be done after a step.
enum Step {
    Again,
    Wait,
}

impl Handshake {
    pub(crate) fn accept(config: Arc<ServerConfig>) -> Result<Self, HandshakeError> {
        Ok(Self::new(Connection::Server(UnbufferedServerConnection::new(config)?)))
    }

    pub(crate) fn connect(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, HandshakeError> {
        let connection = UnbufferedClientConnection::new(config, name)?;
        let mut handshake = Self::new(Connection::Client(connection));
        handshake.advance()?;
        Ok(handshake)
    }

    fn new(connection: Connection) -> Self {
        Self {
            connection,
            incoming: Vec::new(),
            missing: HEADER_BYTES,
            has_header: false,
            outgoing: Vec::new(),
            done: false,
            failed: false,
        }
    }

    /// Takes bytes of the peer, until the handshake is done. Returns how many were taken: the rest are
    /// records for [`Records::open`].
    ///
    /// # Errors
    /// [`HandshakeError`]; the peer is to blame. It is told nothing: its connection is to be closed.
    pub fn read(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError> {
        if self.failed {
            return Err(HandshakeError::Failed);
        }
        let mut taken = 0;
        while !self.done && taken < bytes.len() {
            let now = self.missing.min(bytes.len() - taken);
            if self.incoming.len() + self.missing > HANDSHAKE_BYTES_MAX {
                self.failed = true;
                return Err(HandshakeError::TooLong);
            }
            self.incoming.extend_from_slice(&bytes[taken..taken + now]);
            (taken, self.missing) = (taken + now, self.missing - now);
            if self.missing > 0 {
                break;
            }
            if !self.has_header {
                let [.., high, low] = self.incoming[..] else { unreachable!("a header has five bytes") };
                (self.has_header, self.missing) = (true, usize::from(u16::from_be_bytes([high, low])));
            }
            if self.missing == 0 {
                (self.has_header, self.missing) = (false, HEADER_BYTES);
                // One record at a time: those behind the handshake are not touched.
                self.advance()?;
            }
        }
        Ok(taken)
    }

    /// Returns the bytes that the peer has to get, and forgets them.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Whether both ends have proven their keys.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Ends the handshake.
    ///
    /// # Errors
    /// [`HandshakeError::NotDone`].
    pub fn finish(self) -> Result<Secured, HandshakeError> {
        if !self.done {
            return Err(HandshakeError::NotDone);
        }
        let shown = self.connection.state().peer_certificates().and_then(|shown| shown.first());
        let peer = shown.and_then(shown_key).ok_or(rustls::Error::NoCertificatesPresented)?;
        let (secrets, keys) = match self.connection {
            Connection::Client(connection) => {
                let (secrets, kernel) = connection.dangerous_into_kernel_connection()?;
                (secrets, Keys::Client(Box::new(kernel)))
            }
            Connection::Server(connection) => {
                let (secrets, kernel) = connection.dangerous_into_kernel_connection()?;
                (secrets, Keys::Server(Box::new(kernel)))
            }
        };
        Ok(Secured { peer, records: Records::new(keys, secrets)? })
    }

    /// Goes as far as the bytes that have arrived allow.
    fn advance(&mut self) -> Result<(), HandshakeError> {
        loop {
            let (incoming, outgoing) = (&mut self.incoming, &mut self.outgoing);
            let (discard, step) = match &mut self.connection {
                Connection::Client(connection) => {
                    let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(incoming);
                    (discard, state.map_err(HandshakeError::from).and_then(|state| act(state, outgoing)))
                }
                Connection::Server(connection) => {
                    let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(incoming);
                    (discard, state.map_err(HandshakeError::from).and_then(|state| act(state, outgoing)))
                }
            };
            self.incoming.drain(..discard);
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Wait) => break,
                Err(error) => {
                    self.failed = true;
                    return Err(error);
                }
            }
        }
        self.done = !self.connection.state().is_handshaking();
        Ok(())
    }
}

fn act<Data>(state: ConnectionState<'_, '_, Data>, outgoing: &mut Vec<u8>) -> Result<Step, HandshakeError> {
    match state {
        ConnectionState::EncodeTlsData(mut encode) => {
            let at = outgoing.len();
            if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) =
                encode.encode(&mut [])
            {
                outgoing.resize(at + required_size, 0);
                encode.encode(&mut outgoing[at..]).expect("there is room");
            }
            Ok(Step::Again)
        }
        ConnectionState::TransmitTlsData(transmit) => {
            // The bytes are in the caller's hands from here on.
            transmit.done();
            Ok(Step::Again)
        }
        ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => Ok(Step::Wait),
        ConnectionState::PeerClosed | ConnectionState::Closed => Err(HandshakeError::Closed),
        // Data before the end of the handshake is none that Jet sends.
        _ => Err(HandshakeError::Peer(rustls::Error::HandshakeNotComplete)),
    }
}
