//! What the TCP transport can be told.

use std::time::Duration;

/// Options of the sockets under `tcp:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// How long a peer's host may be silent before its connection ends (10 s): keepalive probes while nothing is
    /// sent, `TCP_USER_TIMEOUT` while something is. A peer that has no SRQ entry for longer than this and whose
    /// socket buffers are full looks the same to the kernel, and ends the same.
    pub peer_silence_max: Duration,
    /// How long a peer may bring no byte of any outstanding READ before its QP fails with
    /// [`crate::nic::DisconnectReason::Transport`]`(ETIMEDOUT)` and its READs complete flushed (10 s; [`Duration::MAX`]:
    /// for ever). It is for a peer whose kernel acknowledges everything while its process answers nothing.
    ///
    /// The time begins when a READ is posted and none was outstanding, and anew whenever bytes of any READ arrive, or
    /// one completes. It stands still while this end reads nothing from the peer because a SEND of it waits for an SRQ
    /// entry, and begins anew after that. What had arrived before the time was up counts, however late this NIC is
    /// polled. What keeps the peer from answering at its own end, a want of SRQ entries there included, counts.
    pub read_silence_max: Duration,
    /// Bytes of the kernel's send buffer; `None` lets the kernel size it.
    pub send_buffer_bytes: Option<usize>,
    /// Bytes of the kernel's receive buffer; `None` lets the kernel size it.
    pub receive_buffer_bytes: Option<usize>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            peer_silence_max: Duration::from_secs(10),
            read_silence_max: Duration::from_secs(10),
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }
}
