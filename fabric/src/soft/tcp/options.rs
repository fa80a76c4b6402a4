//! What the TCP transport can be told.

use std::time::Duration;

/// Options of the sockets under `tcp:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// How long a peer's host may be silent before its connection ends (10 s): keepalive probes while nothing is
    /// sent, `TCP_USER_TIMEOUT` while something is. A peer that has no SRQ entry for longer than this and whose
    /// socket buffers are full looks the same to the kernel, and ends the same.
    pub peer_silence_max: Duration,
    /// Bytes of the kernel's send buffer; `None` lets the kernel size it.
    pub send_buffer_bytes: Option<usize>,
    /// Bytes of the kernel's receive buffer; `None` lets the kernel size it.
    pub receive_buffer_bytes: Option<usize>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            peer_silence_max: Duration::from_secs(10),
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }
}
