//! Options of a sender, and of the protocol in it.

use crate::backoff::Backoff;
use crate::setters::setters;
use crate::spin::SPIN_MAX;
use jet_fabric::Address;
use jet_wire::message::AckStatus;
use std::net::IpAddr;
use std::time::Duration;

const HALF_A_MINUTE: Duration = Duration::from_secs(30);

/// Options of a sender: how to connect, and how much may be in flight.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SenderOptions {
    /// Address where the receiver's daemon listens.
    pub address: Address,
    /// Address of this host that an `rdma:` connection leaves from, which also selects the device. Default:
    /// as the kernel routes.
    pub source: Option<IpAddr>,
    /// Settings of an `rdma:` connection. Other addresses accept the defaults only.
    pub rdma: RdmaOptions,
    /// Application that the messages are for.
    pub app: String,
    /// Messages that may be without an end at once, 1 to 65,536; default 256. Each takes 4 KiB at the sender.
    pub in_flight_max: u32,
    /// Bytes of large messages that may be requested and without an end at once; default 64 MiB.
    pub window_bytes: u64,
    /// Longest time for the first connection; default 5 s.
    pub connect_timeout: Duration,
    /// Time for which a lost connection is tried again before its messages end `PeerLost`; default 30 s.
    pub reconnect_for: Duration,
    /// Longest time in which nothing moves on while a message waits for its end. After it the connection
    /// counts as lost; default 30 s. A receiver sends a heartbeat every few seconds, and the timeout is at
    /// least three times that interval. A heartbeat that says what the message waits for begins the timeout
    /// anew: an application may take its time ([`super::Sender::waits_for`]). The loss is noticed at most a
    /// quarter of the timeout after its end.
    pub receiver_timeout: Duration,
    /// Waits between attempts to connect again.
    pub backoff: Backoff,
    /// Ends after which a message is sent again. By default every end that may pass, for 30 s: `Busy`,
    /// `NoApp`, `AppGone` and `Draining`. What is sent again after `AppGone` or `Draining` is marked
    /// redelivered, because the application may have seen it.
    pub retry: RetryPolicy,
    /// Whether messages carry a CRC32C that the receiver checks; default no, because the transports have
    /// checks of their own. Where the receiver says that it checks none, none is made
    /// ([`super::Sender::sends_checksums`]). A message keeps the checksum that it was submitted with.
    pub crc: bool,
    /// Identity that the sender keeps over its restarts. `None`, the default, is a number by chance, and
    /// messages are numbered from 1.
    pub identity: Option<Identity>,
    /// Whether messages may want replies ([`super::Envelope::wants_reply`]); default no. It takes 256 KiB,
    /// and 4 KiB for each of `in_flight_max` messages, 1024 at most. The receiver has memory for so many of a
    /// sender's messages at a time (`limits.replies_per_peer` there, 256 by default, and fewer where many
    /// ask); others end `Busy`, and are sent again.
    pub replies: bool,
    /// Longest time that a wait spins before it sleeps; default 200 us. Zero never spins. A future
    /// spins for 50 us at most.
    pub spin_max: Duration,
    /// Bytes of memory that are registered at a time, from which send buffers are cut; default 8 MiB. The
    /// first registrations are smaller: 256 KiB, or the first buffer's length, and then as much as there is
    /// already. The program waits for the system's fresh memory when it asks for a buffer that does not fit.
    pub region_bytes: usize,
}

impl SenderOptions {
    /// Returns the default options for an application behind the daemon at `address`.
    pub fn new(address: Address, app: impl Into<String>) -> Self {
        Self {
            address,
            source: None,
            rdma: RdmaOptions::default(),
            app: app.into(),
            in_flight_max: 256,
            window_bytes: 64 << 20,
            connect_timeout: Duration::from_secs(5),
            reconnect_for: HALF_A_MINUTE,
            receiver_timeout: HALF_A_MINUTE,
            backoff: Backoff::default(),
            retry: RetryPolicy::default(),
            crc: false,
            identity: None,
            replies: false,
            spin_max: SPIN_MAX,
            region_bytes: 8 << 20,
        }
    }

    /// Sets [`Self::identity`].
    #[must_use]
    pub fn identity(mut self, identity: impl Into<Option<Identity>>) -> Self {
        self.identity = identity.into();
        self
    }

    /// Sets [`Self::source`].
    #[must_use]
    pub fn source(mut self, source: impl Into<Option<IpAddr>>) -> Self {
        self.source = source.into();
        self
    }

    setters! {
        rdma: RdmaOptions,
        in_flight_max: u32,
        window_bytes: u64,
        connect_timeout: Duration,
        reconnect_for: Duration,
        receiver_timeout: Duration,
        backoff: Backoff,
        retry: RetryPolicy,
        crc: bool,
        replies: bool,
        spin_max: Duration,
        region_bytes: usize,
    }
}

/// Who a sender is, also after a restart of its program, and which of its messages come next:
/// [`exactly_once`](crate::exactly_once) says how that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Identity of the sender, which the application sees with every message. No two senders have the same
    /// one at a time.
    pub id: u64,
    /// Sequence number of the first message, 1 to 2^62; default 1. Its ticket is this number, too.
    pub first_sequence: u64,
}

impl Identity {
    /// Returns an identity whose first message has the sequence number 1.
    pub const fn new(id: u64) -> Self {
        Self { id, first_sequence: 1 }
    }

    /// Sets [`Self::first_sequence`].
    #[must_use]
    pub const fn first_sequence(mut self, first_sequence: u64) -> Self {
        self.first_sequence = first_sequence;
        self
    }
}

/// Settings of an `rdma:` connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaOptions {
    /// Type of service of the packets, as in IP (RFC 2474): 104 is DSCP 26. Default: as the kernel has it for
    /// RDMA CM (`default_roce_tos`).
    pub tos: Option<u8>,
    /// Time for an acknowledgement before its packet is sent again, as an exponent: 4.096 us x 2^this, 1 to
    /// 31. Default 16, which is 268 ms.
    pub ack_timeout: u8,
    /// Number of times that a packet is sent again before the connection counts as lost, 0 to 7; default 6.
    /// Soft-RoCE takes 7 as for ever.
    pub retry: u8,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self { tos: None, ack_timeout: 16, retry: 6 }
    }
}

impl RdmaOptions {
    /// Sets [`Self::tos`].
    #[must_use]
    pub fn tos(mut self, tos: impl Into<Option<u8>>) -> Self {
        self.tos = tos.into();
        self
    }

    setters! {
        ack_timeout: u8,
        retry: u8,
    }
}

/// Ends that are not final: a message with such an end is sent again, for a limited time. By default every
/// end that may pass is retried, for 30 s.
///
/// A message that is sent again for such an end keeps its sequence number, but not its place among the small
/// messages. After [`AckStatus::AppGone`] and [`AckStatus::Draining`] it is marked redelivered, because the
/// application may have seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Time for which messages are sent again, counted from the submission. After this time the message's
    /// last end is reported. Zero never retries.
    pub retry_for: Duration,
    /// Waits between attempts.
    pub backoff: Backoff,
    /// Whether [`AckStatus::Busy`] is retried.
    pub on_busy: bool,
    /// Whether [`AckStatus::NoApp`] is retried.
    pub on_no_app: bool,
    /// Whether [`AckStatus::AppGone`] is retried. The message is marked redelivered.
    pub on_app_gone: bool,
    /// Whether [`AckStatus::Draining`] is retried. The message is marked redelivered.
    pub on_draining: bool,
}

impl RetryPolicy {
    /// Policy that retries nothing: every end is final.
    pub const NEVER: Self = Self {
        retry_for: Duration::ZERO,
        backoff: Backoff::DEFAULT,
        on_busy: false,
        on_no_app: false,
        on_app_gone: false,
        on_draining: false,
    };

    /// Returns the policy that retries every end that may pass, for this time.
    pub const fn all_for(retry_for: Duration) -> Self {
        Self {
            retry_for,
            backoff: Backoff::DEFAULT,
            on_busy: true,
            on_no_app: true,
            on_app_gone: true,
            on_draining: true,
        }
    }

    setters! {
        retry_for: Duration,
        backoff: Backoff,
        on_busy: bool,
        on_no_app: bool,
        on_app_gone: bool,
        on_draining: bool,
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
    /// Returns the policy that retries every end that may pass, for 30 s.
    fn default() -> Self {
        Self::all_for(HALF_A_MINUTE)
    }
}

/// Options of a [`super::protocol::Protocol`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProtocolOptions {
    /// Identity of the sender. It also spreads the sender's waits.
    pub sender_id: u64,
    /// Sequence number of the first message.
    pub first_sequence: u64,
    /// Sequence numbers from the oldest message whose end was not polled to the newest one, at most.
    pub sequence_span: u64,
    /// Messages that may be without an end at once, 1 to 65,536.
    pub in_flight_max: u32,
    /// SENDs that may be without a completion at once: as many as the NIC takes.
    pub sends_max: u32,
    /// Bytes of large messages that may be requested and without an end at once, while there is no
    /// congestion. A longer message is sent while no other large message is under way.
    pub window_bytes: u64,
    /// Step by which windows that a congestion signal cut grow again, in thousandths of the full windows, 1
    /// to 1000.
    pub recovery_permille: u32,
    /// Time between two steps by which the windows grow again, and between the newest congestion signal and
    /// the first step.
    pub recovery_interval: Duration,
    /// Time without a connection that makes progress, after which every message ends `PeerLost`.
    pub reconnect_for: Duration,
    /// Longest time in which nothing moves on while a message waits for its end, or for credit, and the
    /// receiver does not say what for. After it the connection is ended and made again. The time is at least
    /// three of the receiver's heartbeats. A receiver that announced none has no limit.
    pub receiver_timeout: Duration,
    /// Waits between attempts to connect.
    pub backoff: Backoff,
    /// Ends after which a message is sent again.
    pub retry: RetryPolicy,
}

impl Default for ProtocolOptions {
    fn default() -> Self {
        Self {
            sender_id: 0,
            first_sequence: 1,
            sequence_span: u64::MAX,
            in_flight_max: 256,
            sends_max: 128,
            window_bytes: 64 << 20,
            recovery_permille: 50,
            recovery_interval: Duration::from_millis(1),
            reconnect_for: HALF_A_MINUTE,
            receiver_timeout: HALF_A_MINUTE,
            backoff: Backoff::default(),
            retry: RetryPolicy::default(),
        }
    }
}

impl ProtocolOptions {
    setters! {
        sender_id: u64,
        first_sequence: u64,
        sequence_span: u64,
        in_flight_max: u32,
        sends_max: u32,
        window_bytes: u64,
        recovery_permille: u32,
        recovery_interval: Duration,
        reconnect_for: Duration,
        receiver_timeout: Duration,
        backoff: Backoff,
        retry: RetryPolicy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_every_end_that_may_pass_is_retried_and_no_other() {
        let policy = RetryPolicy::default();
        assert_eq!(
            (policy, policy.retry_for),
            (RetryPolicy::all_for(HALF_A_MINUTE), Duration::from_secs(30))
        );
        for status in [AckStatus::Busy, AckStatus::NoApp, AckStatus::AppGone, AckStatus::Draining] {
            assert!(policy.covers(status) && !RetryPolicy::NEVER.covers(status), "{status}");
        }
        for status in [AckStatus::Consumed, AckStatus::Rejected(1), AckStatus::Denied, AckStatus::PeerLost] {
            assert!(!policy.covers(status), "{status}");
        }
    }
}
