//! Options with which a software NIC is built.

use crate::limits::{CompletionQueues, DeviceAttributes, LimitError, NicLimits, Profile, Requirements};
use std::time::Duration;

/// Most scatter entries of one READ: a fragment of 256 KiB in slabs of 4 KiB (Jet §3.2).
pub const SCATTER_MAX: usize = 64;
const SCATTER_MAX_U32: u32 = 64;
/// Most bytes of a SEND's payload: one slab.
pub const PAYLOAD_BYTES_MAX: u32 = jet_wire::SLAB_BYTES_U32;
/// Most SENDs that one QP may have outstanding.
pub const SENDS_PER_QP_MAX: u32 = 128;
/// Most READs of a peer that one QP answers at once.
pub const READS_ANSWERED_MAX: u32 = 256;
/// Number of low bits of a region's key that are the region's place in the table.
pub const REGION_INDEX_BITS: u32 = 12;

/// Sizes and times of a software NIC. Memory for these sizes is allocated once, when the NIC is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftOptions {
    /// Connections, including those that are being set up (default 1,024).
    pub qps_max: u32,
    /// Accepted connections of each transport that have not said all of their request (default 1,024). Each
    /// costs a descriptor and no QP.
    ///
    /// One source, which is a host over `tcp:` and a process over `shm:`, has at most half of them. A
    /// newcomer beyond that takes the place of the one of its source that has waited longest. A newcomer that
    /// finds all places taken takes the place of the one that has waited longest of all.
    pub strangers_max: u32,
    /// SRQ entries that are posted, or completed but not polled (default 4,096: more than a 12 MiB pool has
    /// slabs).
    pub srq_entries_max: u32,
    /// Outstanding READs of all QPs together (default 256).
    pub reads_max: u32,
    /// Outstanding READs of one QP (default 32, Jet §3.2). 0 means that this end makes no READs.
    pub reads_per_qp_max: u32,
    /// READs of a peer that one QP answers at once (default 256, which is the most). 0 means that this end
    /// answers no READs.
    pub reads_answered_per_qp_max: u32,
    /// Outstanding SENDs of one QP (default 128, which is the most).
    pub sends_per_qp_max: u32,
    /// Places in the completion queue (default 16,384).
    ///
    /// The places that `srq_entries_max` and `reads_max` leave are the number of SENDs that may be
    /// outstanding altogether. Nothing is posted that could not complete.
    pub completions: u32,
    /// Regions that this NIC registers (default 64, as many as a peer takes).
    pub regions_max: u32,
    /// Regions of one peer that this end may read, over `shm:` (default 64). One more ends that peer's
    /// connection.
    ///
    /// A sender has few and large regions: 64 of 8 MiB hold 512 MiB.
    pub peer_regions_max: u32,
    /// Bytes that the regions of one peer may have together, over `shm:` (default 64 GiB). At most 1 GiB of
    /// them is mapped.
    pub peer_bytes_max: u64,
    /// Regions that this end may read of all peers together, over `shm:` (default 16,384: a quarter of what
    /// `vm.max_map_count` allows a process). Those of which not every page is known to be there hold a
    /// descriptor each, and may have half of what `RLIMIT_NOFILE` allows.
    ///
    /// One process has at most three quarters of either. The peer whose region is one too many is cut off
    /// with [`crate::nic::DisconnectReason::Transport`], `EDQUOT` where its process has its share and
    /// `ENOMEM` otherwise. It hears [`crate::nic::RegionError::Share`] or
    /// [`crate::nic::RegionError::ReceiverFull`]. The other peers keep their regions.
    pub mapped_regions_max: u32,
    /// Time that an arrived SEND may wait for an SRQ entry. After it the QP fails with
    /// [`crate::nic::Status::RnrExhausted`].
    ///
    /// `None` means without limit (the default, `rnr_retry = 7` in verbs' terms).
    pub rnr_timeout: Option<Duration>,
    /// Time for which [`crate::Nic::disconnect`] waits until posted SENDs are taken (default 1 s).
    pub farewell: Duration,
    /// Time in which a connection must be set up (default 5 s); otherwise it ends with `ETIMEDOUT`.
    ///
    /// At the accepting end the peer's request must arrive by then. At the connecting end the other end's
    /// user must have answered.
    pub handshake: Duration,
    /// Options of the sockets under `tcp:`.
    pub tcp: TcpOptions,
    /// Device whose limits this NIC keeps to. With a profile, a SEND also completes only after the READs
    /// before it, as on a device.
    ///
    /// With `None` the only limits are the numbers here, and a SEND completes when the peer has taken it,
    /// whatever READs are under way.
    pub profile: Option<Profile>,
}

impl Default for SoftOptions {
    fn default() -> Self {
        Self {
            qps_max: 1024,
            strangers_max: 1024,
            srq_entries_max: 4096,
            reads_max: 256,
            reads_per_qp_max: 32,
            reads_answered_per_qp_max: READS_ANSWERED_MAX,
            sends_per_qp_max: SENDS_PER_QP_MAX,
            completions: 16_384,
            regions_max: 64,
            peer_regions_max: 64,
            peer_bytes_max: 64 << 30,
            mapped_regions_max: 16_384,
            rnr_timeout: None,
            farewell: Duration::from_secs(1),
            handshake: Duration::from_secs(5),
            tcp: TcpOptions::default(),
            profile: None,
        }
    }
}

/// Options of the sockets under `tcp:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// Time for which a peer's host may give no sign of life before its connection ends (default 10 s).
    ///
    /// Keepalive probes detect this while nothing is sent, `TCP_USER_TIMEOUT` while something is. A peer
    /// without an SRQ entry for longer than this, whose socket buffers are full, looks the same to the
    /// kernel. Its connection ends, too.
    pub peer_timeout: Duration,
    /// Time for which a peer may bring no byte of any outstanding READ (default 10 s; [`Duration::MAX`]:
    /// without limit).
    ///
    /// After it the QP fails with [`crate::nic::DisconnectReason::Transport`]`(ETIMEDOUT)`, and its READs
    /// complete flushed. This finds a peer whose kernel acknowledges everything while its process answers
    /// nothing.
    ///
    /// The time begins when a READ is posted and none was outstanding. It begins anew whenever bytes of any
    /// READ arrive, or one completes. It stops while this end reads nothing from the peer because a SEND of
    /// the peer waits for an SRQ entry; after that it begins anew. Bytes that arrived before the time was up
    /// count, however late this NIC is polled. Time in which the peer cannot answer counts, even if the peer
    /// only lacks SRQ entries.
    pub read_timeout: Duration,
    /// Time from the frame header of a SEND until all of it must have arrived (default 10 s). After it the QP
    /// fails with [`crate::nic::DisconnectReason::Transport`]`(ETIMEDOUT)`.
    ///
    /// While a READ of this end is outstanding on the connection, `read_timeout` applies instead.
    pub send_timeout: Duration,
    /// Bytes of the kernel's send buffer. `None` lets the kernel choose.
    pub send_buffer_bytes: Option<usize>,
    /// Bytes of the kernel's receive buffer. `None` lets the kernel choose.
    pub receive_buffer_bytes: Option<usize>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            peer_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(10),
            send_timeout: Duration::from_secs(10),
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }
}

impl SoftOptions {
    /// Returns what the NIC asks of its device.
    pub fn requirements(&self) -> Requirements {
        Requirements {
            qps: self.qps_max,
            srq_entries: self.srq_entries_max,
            reads: self.reads_max,
            reads_per_qp: self.reads_per_qp_max,
            reads_answered_per_qp: self.reads_answered_per_qp_max.min(READS_ANSWERED_MAX),
            sends: self.sends_max(),
            sends_per_qp: self.sends_per_qp_max.min(SENDS_PER_QP_MAX),
            scatter: SCATTER_MAX_U32,
            probes_per_qp: 0,
            completion_queues: CompletionQueues::One,
        }
    }

    /// Derives the limits that a NIC with these options keeps to.
    pub(super) fn limits(&self) -> Result<NicLimits, LimitError> {
        let device = self.profile.as_ref().map_or(&DeviceAttributes::UNLIMITED, Profile::attributes);
        NicLimits::derive(device, &self.requirements())
    }

    /// Returns these options with every number lowered to the NIC's limits, for the sizes of its tables.
    pub(super) fn within(&self, limits: &NicLimits) -> Self {
        Self {
            qps_max: limits.reported.qps_max,
            reads_max: limits.reported.reads_max,
            reads_per_qp_max: limits.reported.reads_per_qp_max,
            reads_answered_per_qp_max: limits.reads_answered_per_qp,
            completions: limits.completions,
            ..*self
        }
    }

    /// Returns how many SENDs may be outstanding on all QPs together.
    pub(super) fn sends_max(&self) -> u32 {
        self.completions.saturating_sub(self.srq_entries_max).saturating_sub(self.reads_max)
    }

    /// Describes what is wrong with these numbers; `None` where nothing is.
    pub(super) fn problem(&self) -> Option<String> {
        let sizes =
            [self.qps_max, self.srq_entries_max, self.reads_max, self.sends_per_qp_max, self.regions_max];
        if sizes.contains(&0) {
            return Some(
                "qps_max, srq_entries_max, reads_max, sends_per_qp_max and regions_max must be at least 1"
                    .to_owned(),
            );
        }
        if self.regions_max > 1 << REGION_INDEX_BITS {
            return Some(format!("regions_max is {}, the most is 4096", self.regions_max));
        }
        if self.tcp.send_timeout.is_zero() {
            return Some("tcp.send_timeout is 0: no SEND could arrive; the default is 10 s".to_owned());
        }
        if self.tcp.read_timeout.is_zero() {
            return Some("tcp.read_timeout is 0: no READ could be answered; the default is 10 s".to_owned());
        }
        (self.sends_max() == 0).then(|| {
            format!(
                "completions is {}, which leaves no place for SENDs: make it more than srq_entries_max + \
                 reads_max = {}",
                self.completions,
                u64::from(self.srq_entries_max) + u64::from(self.reads_max)
            )
        })
    }
}

const _: () = assert!(SCATTER_MAX == SCATTER_MAX_U32 as usize);
