//! What of a sender's large messages is under way.

/// One sender's connection, as READs see it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    /// READs of its memory in flight, and how many its connection takes.
    pub reads: u32,
    pub reads_max: u32,
    /// Requests for large messages without an end.
    pub requests: u32,
}

impl Peer {
    /// Its connection takes another READ.
    #[inline]
    pub fn takes_read(&self) -> bool {
        self.reads < self.reads_max
    }
}
