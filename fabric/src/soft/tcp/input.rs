//! State of a connection's reading side between two reads: the frame whose bytes arrive, and bytes that could
//! not be used yet.

/// Bytes of the staging buffer: some 280 messages of 64 bytes in one read.
pub(super) const STAGING_BYTES: usize = 64 << 10;
/// Bytes that one read puts into the staging buffer while READs are outstanding, at most. More of an answer's
/// bytes would be copied twice.
pub(super) const STAGED_WITH_READS: usize = 4 << 10;
/// Bytes read from one connection before another has its turn: one fragment.
pub(super) const RECEIVE_BYTES_PER_TURN: usize = 256 << 10;

/// Body of the frame whose bytes arrive now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// No body: a header is next.
    None,
    /// A piece of the answer to this end's oldest READ, or pushed bytes that a READ waits for.
    Read { left: u32 },
    /// A piece that has arrived in full; the frame that ends it is next.
    ReadWhole,
    /// Bytes that are no longer wanted.
    Discard { left: u32 },
}

/// Reading side of a connection.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) body: Body,
    /// Bytes that were read and not used yet. The unused ones begin at `carried_from`.
    pub(super) carried: Vec<u8>,
    pub(super) carried_from: usize,
    /// Whether the socket may have bytes.
    pub(super) readable: bool,
    /// Whether the peer closed or the socket failed. Nothing more arrives than the socket has now.
    pub(super) hung_up: bool,
    /// Whether a SEND waits for an SRQ entry. Nothing is read meanwhile.
    pub(super) rnr: bool,
    /// Whether pushed bytes wait for their READ. Nothing is read meanwhile.
    pub(super) push_waits: bool,
    /// Whether `carried` begins with a SEND whose rest has not arrived.
    pub(super) cut_send: bool,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            body: Body::None,
            carried: Vec::with_capacity(STAGING_BYTES),
            carried_from: 0,
            readable: false,
            hung_up: false,
            rnr: false,
            push_waits: false,
            cut_send: false,
        }
    }

    pub(super) fn clear(&mut self) {
        self.carried.clear();
        (self.body, self.carried_from) = (Body::None, 0);
        (self.readable, self.hung_up, self.rnr, self.cut_send) = (false, false, false, false);
        self.push_waits = false;
    }

    /// Whether nothing is read, because the bytes that were read last cannot be used yet.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.rnr || self.push_waits
    }

    /// Gives up the READ that an arriving frame was to fill. The rest of the frame's bytes is discarded.
    pub(super) fn abandon(&mut self) {
        self.body = match self.body {
            Body::Read { left } => Body::Discard { left },
            Body::ReadWhole => Body::None,
            body => body,
        };
    }

    /// Returns how many bytes the body still needs.
    pub(super) fn missing_bytes(&self) -> usize {
        match self.body {
            Body::None | Body::ReadWhole => 0,
            Body::Read { left } | Body::Discard { left } => left as usize,
        }
    }
}
