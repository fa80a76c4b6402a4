//! Options of a simulated NIC, and of the network between NICs.

use crate::limits::{Profile, Requirements};

/// Sizes and times of a simulated NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Device whose limits the NIC keeps to.
    pub profile: Profile,
    /// What the NIC's user asks of the device.
    pub requirements: Requirements,
    /// Regions that the NIC registers, at most.
    pub regions_max: u32,
    /// Nanoseconds that a SEND of this NIC may wait for an SRQ entry. After them its connection fails with
    /// [`crate::nic::Status::RnrExhausted`]. `None`: without limit.
    pub rnr_timeout_ns: Option<u64>,
    /// Nanoseconds for which [`crate::Nic::disconnect`] waits until posted SENDs are taken.
    pub farewell_ns: u64,
    /// Nanoseconds in which a connection must be set up. After them it ends with `ETIMEDOUT`.
    pub handshake_ns: u64,
    /// Bytes that leave this NIC's port in a microsecond, where it is slower than the network.
    pub bytes_per_us: Option<u64>,
    /// Whether headers of posted SENDs are kept for [`crate::sim::Network::take_posted`].
    pub keeps_headers: bool,
}

impl SimOptions {
    /// Options of a NIC on this device, with the times that a NIC on verbs has.
    pub fn new(profile: Profile, requirements: Requirements) -> Self {
        Self {
            profile,
            requirements,
            regions_max: 64,
            rnr_timeout_ns: None,
            farewell_ns: 1_000_000_000,
            handshake_ns: 5_000_000_000,
            bytes_per_us: None,
            keeps_headers: false,
        }
    }
}

/// Conditions of a network. All times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Seed of everything that is left to chance.
    pub seed: u64,
    /// Time on the way from one NIC to another, at the least.
    pub latency_ns: u64,
    /// Time by which the way may take longer. Each arrival has its own part of it.
    pub jitter_ns: u64,
    /// Bytes that leave a NIC's port in a microsecond. 12,500 are 100 Gbit/s.
    pub bytes_per_us: u64,
    /// Pause after which a SEND that found no SRQ entry is tried again.
    pub rnr_ns: u64,
    /// Time by which a message of connection management may take longer than others: connection requests,
    /// their answers, and hang-ups go through the hosts' kernels.
    pub kernel_ns: u64,
    /// Time from the end of a connection until its work is flushed, at most.
    pub flush_ns: u64,
    /// Time from then until the device takes no SRQ entry for it any more, at most.
    pub last_wqe_ns: u64,
    /// Of 1000 connections that end, for how many the device never says so. The NIC waits no longer than the
    /// one on verbs does.
    pub last_wqe_missing_permille: u32,
    /// Time until an end notices that the other one is silent, at most.
    pub silence_ns: u64,
    /// Of 1000 requests, how many a queue refuses though it has room. That is so only where requests of the
    /// same kind are outstanding on the connection, so that a completion says when to try again.
    pub refusals_permille: u32,
    /// SRQ entries, at most, that a device takes for a connection that ended until its work is flushed. After
    /// that it takes as many again, which come back as [`Work::SrqFlush`](crate::nic::Work).
    pub entries_taken_max: u32,
}

impl Conditions {
    /// A quiet network of 100 Gbit/s in one rack, in which nothing takes long.
    pub fn quiet(seed: u64) -> Self {
        Self {
            seed,
            latency_ns: 1_000,
            jitter_ns: 200,
            bytes_per_us: 12_500,
            rnr_ns: 20_000,
            kernel_ns: 50_000,
            flush_ns: 5_000,
            last_wqe_ns: 5_000,
            last_wqe_missing_permille: 0,
            silence_ns: 2_000_000_000,
            refusals_permille: 0,
            entries_taken_max: 0,
        }
    }
}
