//! What a sender, and the protocol in it, is configured with.

use crate::spin::SPIN_MAX;
use jet_fabric::Address;
use jet_wire::message::AckStatus;
use std::net::IpAddr;
use std::time::Duration;

const MILLISECOND_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000 * MILLISECOND_NS;

/// How to connect, and how much may be in flight.
#[derive(Clone, Debug)]
pub struct SenderOptions {
    /// Where the receiver's daemon listens.
    pub address: Address,
    /// The address of this host that an `rdma:` connection leaves from, and so its device; default: as the
    /// kernel routes.
    pub source: Option<IpAddr>,
    /// How an `rdma:` connection works; other addresses take the defaults only.
    pub rdma: RdmaOptions,
    /// The application that the messages are for.
    pub app: String,
    /// Messages that may be without an end at once, 1 to 65,536; default 256. Each takes 4 KiB here.
    pub in_flight_max: u32,
    /// Bytes of large messages that may be requested and without an end at once; default 64 MiB.
    pub window_bytes: u64,
    /// How long the first connection may take; default 5 s.
    pub connect_timeout: Duration,
    /// How long a lost connection is tried again before its messages end `PeerLost`; default 30 s.
    pub reconnect_for: Duration,
    /// How long the receiver may say nothing while a message waits for its end before the connection is taken
    /// for lost; default 30 s. A receiver says every few seconds that it is there, and is given three times
    /// as long at the least. It is noticed within a quarter of that time more.
    pub silence_max: Duration,
    /// Between attempts to connect again.
    pub backoff: Backoff,
    /// Which ends are retried; by default `Busy`, for 30 s.
    pub retry: RetryPolicy,
    /// Whether messages carry a CRC32C that the receiver checks; default no: the transports have checks of
    /// their own. Where the receiver says that it checks none, none is made
    /// ([`super::Sender::sends_checksums`]). A message keeps what it was submitted with.
    pub crc: bool,
    /// The longest that a wait spins before it sleeps; default 50 us. Zero never spins.
    pub spin_max: Duration,
    /// Bytes that are registered at once for send buffers; default 8 MiB.
    pub region_bytes: usize,
}

impl SenderOptions {
    /// The defaults.
    pub fn new(address: Address, app: impl Into<String>) -> Self {
        Self {
            address,
            source: None,
            rdma: RdmaOptions::default(),
            app: app.into(),
            in_flight_max: 256,
            window_bytes: 64 << 20,
            connect_timeout: Duration::from_secs(5),
            reconnect_for: Duration::from_secs(30),
            silence_max: Duration::from_secs(30),
            backoff: Backoff::default(),
            retry: RetryPolicy::default(),
            crc: false,
            spin_max: SPIN_MAX,
            region_bytes: 8 << 20,
        }
    }
}

/// How an `rdma:` connection works, as far as its sender says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaOptions {
    /// The type of service of its packets, as in IP (RFC 2474): 104 is DSCP 26; default: as the kernel has it
    /// for RDMA CM (`default_roce_tos`).
    pub tos: Option<u8>,
    /// How long an acknowledgement may take before its packet is sent again: 4.096 us x 2^this, 1 to 31;
    /// default 16, 268 ms.
    pub ack_timeout: u8,
    /// How often it is sent again before the connection counts as lost, 0 to 7; default 6. Soft-RoCE takes 7
    /// as for ever.
    pub retry: u8,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self { tos: None, ack_timeout: 16, retry: 6 }
    }
}

/// How long to wait between attempts: doubling from `first_ns` to `max_ns`, spread by up to a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the second attempt (the first is made at once), in nanoseconds.
    pub first_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first_ns: 2 * MILLISECOND_NS, max_ns: SECOND_NS }
    }
}

impl Backoff {
    /// The wait before attempt `attempt` (0 is the first), spread by `seed`, so that senders that failed
    /// together do not come back together. The same seed gives the same waits.
    pub fn wait_ns(&self, attempt: u32, seed: u64) -> u64 {
        if attempt == 0 {
            return 0;
        }
        let full =
            self.first_ns.saturating_mul(1u64.checked_shl(attempt - 1).unwrap_or(u64::MAX)).min(self.max_ns);
        let half = full / 2;
        fastrand::Rng::with_seed(seed ^ u64::from(attempt)).u64(half..=full)
    }
}

/// Which ends are not taken for final, and for how long the message is sent again.
///
/// A message that is sent again for such an end keeps its sequence but not its place among the small ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Counted from the submission, in nanoseconds; 0 never retries. Then the last end is reported.
    pub retry_for_ns: u64,
    /// Between attempts.
    pub backoff: Backoff,
    /// Retry [`AckStatus::Busy`].
    pub on_busy: bool,
    /// Retry [`AckStatus::NoApp`].
    pub on_no_app: bool,
    /// Retry [`AckStatus::AppGone`], as redelivered: the application may have seen it.
    pub on_app_gone: bool,
    /// Retry [`AckStatus::Draining`], as redelivered.
    pub on_draining: bool,
}

impl RetryPolicy {
    /// Every end is final.
    pub const NEVER: Self = Self {
        retry_for_ns: 0,
        backoff: Backoff { first_ns: 0, max_ns: 0 },
        on_busy: false,
        on_no_app: false,
        on_app_gone: false,
        on_draining: false,
    };

    /// Retries every end that may pass, for so long.
    pub fn all_for_ns(retry_for_ns: u64) -> Self {
        Self {
            retry_for_ns,
            backoff: Backoff::default(),
            on_busy: true,
            on_no_app: true,
            on_app_gone: true,
            on_draining: true,
        }
    }

    /// Whether an end is to be retried.
    pub(super) fn covers(&self, status: AckStatus) -> bool {
        match status {
            AckStatus::Busy => self.on_busy,
            AckStatus::NoApp => self.on_no_app,
            AckStatus::AppGone => self.on_app_gone,
            AckStatus::Draining => self.on_draining,
            _ => false,
        }
    }
}

impl Default for RetryPolicy {
    /// Busy is retried for 30 s; the other ends are the caller's business.
    fn default() -> Self {
        Self {
            retry_for_ns: 30 * SECOND_NS,
            backoff: Backoff::default(),
            on_busy: true,
            on_no_app: false,
            on_app_gone: false,
            on_draining: false,
        }
    }
}

/// Sizes and times of a [`super::protocol::Protocol`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolOptions {
    /// The sender's identity; also spreads its waits.
    pub sender_id: u64,
    /// Messages that may be without an end at once, 1 to 65,536.
    pub in_flight_max: u32,
    /// SENDs that may be without a completion at once: what the NIC takes.
    pub sends_max: u32,
    /// Bytes of large messages that may be requested and without an end at once, while there is no
    /// congestion. A longer message goes alone.
    pub window_bytes: u64,
    /// After a congestion signal, which cuts what is left of the windows, they grow again by so many
    /// thousandths of the full ones, 1 to 1000 ...
    pub recovery_permille: u32,
    /// ... every so many nanoseconds, counted from the newest signal.
    pub recovery_interval_ns: u64,
    /// How long without a connection, or with connections that bring nothing about, before everything ends
    /// `PeerLost`.
    pub reconnect_for_ns: u64,
    /// How long a receiver may say nothing while a message waits for its end, or for credit, before its
    /// connection is ended and made again. No less than three of the heartbeats that it promised; one that
    /// promised none is waited for.
    pub silence_ns: u64,
    /// Between attempts to connect.
    pub backoff: Backoff,
    /// Which ends are retried.
    pub retry: RetryPolicy,
}

impl Default for ProtocolOptions {
    fn default() -> Self {
        Self {
            sender_id: 0,
            in_flight_max: 256,
            sends_max: 128,
            window_bytes: 64 << 20,
            recovery_permille: 50,
            recovery_interval_ns: MILLISECOND_NS,
            reconnect_for_ns: 30 * SECOND_NS,
            silence_ns: 30 * SECOND_NS,
            backoff: Backoff::default(),
            retry: RetryPolicy::default(),
        }
    }
}

/// A span as a number; the longest that there is, where it is longer.
pub(super) fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempt_is_made_at_once_and_waits_double_up_to_the_limit() {
        let backoff = Backoff { first_ns: 1000, max_ns: 16_000 };
        assert_eq!(backoff.wait_ns(0, 7), 0);
        for (attempt, full) in [(1, 1000), (2, 2000), (3, 4000), (5, 16_000), (6, 16_000), (200, 16_000)] {
            let wait = backoff.wait_ns(attempt, 7);
            assert!((full / 2..=full).contains(&wait), "attempt {attempt}: {wait}");
            assert_eq!(wait, backoff.wait_ns(attempt, 7));
        }
        assert_ne!(backoff.wait_ns(6, 1), backoff.wait_ns(6, 2));
    }
}
