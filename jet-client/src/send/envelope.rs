//! What a message says beside its bytes.

use std::time::Duration;

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
    /// Whether the application may reply; default no. The sender's options must say so, too
    /// ([`SenderOptions::replies`](super::SenderOptions::replies)).
    pub wants_reply: bool,
    /// Time from the submission after which the message is taken back
    /// ([`Sender::cancel`](super::Sender::cancel)) if it has no end; kept to a millisecond. `None`, the
    /// default, is without limit. A message with a deadline of zero is not sent.
    pub deadline: Option<Duration>,
}

impl<'a> Envelope<'a> {
    /// Returns an envelope with this tag, without a user header, in class 0.
    pub const fn new(tag: u64) -> Self {
        Self { tag, user_header: &[], class: 0, wants_reply: false, deadline: None }
    }

    /// Sets [`Self::user_header`].
    #[must_use]
    pub const fn user_header(mut self, user_header: &'a [u8]) -> Self {
        self.user_header = user_header;
        self
    }

    /// Sets [`Self::wants_reply`].
    #[must_use]
    pub const fn wants_reply(mut self, wants_reply: bool) -> Self {
        self.wants_reply = wants_reply;
        self
    }

    /// Sets [`Self::deadline`].
    #[must_use]
    pub const fn deadline(mut self, deadline: Option<Duration>) -> Self {
        self.deadline = deadline;
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
