//! What a message says beside its bytes.

/// What a message says beside its bytes. A tag alone is an envelope too: `send_small(7, b"bytes")`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Envelope<'a> {
    /// Number for the application, which Jet does not read.
    pub tag: u64,
    /// Bytes for the application, which Jet does not read: at most 96 with a small message, 256 with a large
    /// one. Default: none.
    pub user_header: &'a [u8],
    /// Admission class of a large message; 0, the default, is the most urgent. Small messages have no class.
    pub class: u8,
}

impl<'a> Envelope<'a> {
    /// Returns an envelope with this tag, without a user header, in class 0.
    pub const fn new(tag: u64) -> Self {
        Self { tag, user_header: &[], class: 0 }
    }

    /// Sets [`Self::user_header`].
    #[must_use]
    pub const fn user_header(mut self, user_header: &'a [u8]) -> Self {
        self.user_header = user_header;
        self
    }

    /// Sets [`Self::class`].
    #[must_use]
    pub const fn class(mut self, class: u8) -> Self {
        self.class = class;
        self
    }
}

impl From<u64> for Envelope<'_> {
    fn from(tag: u64) -> Self {
        Self::new(tag)
    }
}
