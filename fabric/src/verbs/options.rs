//! What a NIC on verbs is built with.

use crate::limits::{CompletionQueues, Profile, Wants};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Scatter entries of one READ that this crate makes use of. Every place of a send queue is as large as the
/// largest request: with 19 of them 512 bytes, on mlx5 (192 and 16 each, in steps of 64:
/// `mlx5_calc_send_wqe`) as with rxe (208 and 16 each, a power of two: `rxe_qp_init_req`). A fragment of 256
/// KiB (Jet §3.2) is 64 slabs, in a few runs most often; where it is in more than 19, it is read in parts.
pub(super) const SCATTER_WANTED: u32 = 19;
/// READs of a peer that are answered at once on one QP: what RDMA CM can say.
const READS_ANSWERED_MAX: u32 = 255;
/// Work of this NIC's own on a QP: a probe.
const PROBES_PER_QP: u32 = 1;
/// Bytes of a SEND's payload: one slab.
pub(super) const PAYLOAD_BYTES_MAX: u32 = jet_wire::SLAB_BYTES_U32;

/// The first address of `host:port`.
pub(super) fn resolve(host_and_port: &str) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    host_and_port.to_socket_addrs()?.next().ok_or_else(none)
}

/// Which device, of those that RDMA CM knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// By name, as `rdma link` shows it; connections leave from the address of its GID `gid_index`, where one
    /// is given.
    Named {
        /// The device's name.
        device: String,
        /// Its port, from 1.
        port: u8,
        /// Index in the table of the port's GIDs; none: as the kernel routes.
        gid_index: Option<u8>,
    },
    /// The one that has this address, or from which it is reached.
    Reaching(IpAddr),
}

/// Sizes and times of a [`super::VerbsNic`]. Everything is allocated once, by these numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsOptions {
    /// The device.
    pub device: DeviceChoice,
    /// The local address that connections leave from; none: as the kernel routes, or as `gid_index` says.
    pub source: Option<IpAddr>,
    /// Limits that are kept to beside the device's; `None`: the device's alone.
    pub profile: Option<Profile>,
    /// Connections, those in the making counted (1,024).
    pub qps_max: u32,
    /// SRQ entries, posted or completed but not polled (4,096).
    pub srq_entries_max: u32,
    /// Outstanding READs altogether (256).
    pub reads_max: u32,
    /// Outstanding READs of one QP, or as many as the device has (16: what ConnectX-6 and -7 have; 4 MiB of
    /// fragments). 0: this end makes none, and asks its peers for no place to answer them in.
    pub reads_per_qp_max: u32,
    /// READs of a peer that are answered at once on one QP, or as many as the device answers (255, which is
    /// the most that RDMA CM can say). 0: this end answers none; its QPs refuse them, whatever is registered.
    pub reads_answered_per_qp_max: u32,
    /// Outstanding SENDs of one QP (128). A connection's queues have a place for each, for each READ, and for
    /// a probe.
    pub sends_per_qp_max: u32,
    /// Outstanding SENDs altogether (4,096); each has a place for its header, 128 bytes.
    pub sends_max: u32,
    /// Places of 4 KiB for payloads of SENDs that are copied, [`crate::nic::Payload::Inline`] (256).
    pub inline_places: u32,
    /// Regions that can be registered (64).
    pub regions_max: u32,
    /// The NUMA node that queues and staging lie on (none: the device's, where it has one).
    pub numa_node: Option<u32>,
    /// The processor on which who sleeps on this NIC runs, if that is always the same: completions then ring
    /// there.
    pub cpu: Option<usize>,
    /// Whether the slow calls of accepting and ending connections are made on a thread of their own (no): for
    /// who has many.
    pub set_up_thread: bool,
    /// How often a SEND that finds no SRQ entry is tried again before its QP fails: 0 to 6 times, 7 for ever
    /// (7).
    pub rnr_retry: u8,
    /// How long a peer waits that found no SRQ entry, in the InfiniBand specification's code: 7 is 0.12 ms
    /// (7). What RDMA CM leaves it at, 0, is 655 ms.
    pub rnr_timer: u8,
    /// How often a packet that is not acknowledged is sent again before its QP fails: 0 to 7 times (6).
    /// Soft-RoCE takes 7 as for ever, and a peer that is gone without a word is then never noticed.
    pub retry: u8,
    /// How long an acknowledgement may take before that: 4.096 us x 2^this, 1 to 31 (16: 268 ms). A peer that
    /// is gone without a word is noticed after seven times as long.
    pub ack_timeout: u8,
    /// The type of service of this end's packets, as in IP (RFC 2474): the code point, and two bits below it.
    /// None: as the kernel has it for RDMA CM (`default_roce_tos`) where this end asks, and as the peer has
    /// it where this end accepts.
    pub tos: Option<u8>,
    /// How long [`crate::Nic::disconnect`] waits for posted SENDs to be taken (1 s).
    pub farewell: Duration,
    /// How long a connection may take to come about (20 s: RDMA CM sends a request that was lost again after
    /// 4.3 s).
    pub handshake: Duration,
    /// Each connection is looked at once in this span (5 s). One on which nothing happened since the last
    /// look is probed with a WRITE of no bytes: the word of a peer that went may have been lost, and RC has
    /// no other way to notice. Work that does not end for four such spans ends its connection, but not before
    /// the device had time for its retries (`ack_timeout`, `retry`).
    pub keep_alive: Duration,
    /// Between two looks at the port, while the NIC listens, that the device did not ask for (10 s): most
    /// devices say nothing of a new MTU. Of what it does say nothing waits for such a look.
    pub look_every: Duration,
    /// How long a QP in the error state may take to give back its work (1 s); then it is destroyed all the
    /// same, and counted.
    pub drain: Duration,
    /// How long the device's word may take that such a QP takes no SRQ entry any more ("last WQE reached", 20
    /// ms). Some never give it; that is counted, too.
    pub last_wqe: Duration,
}

impl VerbsOptions {
    /// The defaults, on the device that has the address of `host:port`, or from which it is reached.
    ///
    /// # Errors
    /// What the resolver says of the host.
    pub fn reaching(host_and_port: &str) -> io::Result<Self> {
        Ok(Self::on(DeviceChoice::Reaching(resolve(host_and_port)?.ip())))
    }

    /// The defaults, on this device.
    pub fn on(device: DeviceChoice) -> Self {
        Self {
            device,
            source: None,
            profile: None,
            qps_max: 1024,
            srq_entries_max: 4096,
            reads_max: 256,
            reads_per_qp_max: 16,
            reads_answered_per_qp_max: READS_ANSWERED_MAX,
            sends_per_qp_max: 128,
            sends_max: 4096,
            inline_places: 256,
            regions_max: 64,
            numa_node: None,
            cpu: None,
            set_up_thread: false,
            rnr_retry: 7,
            rnr_timer: 7,
            retry: 6,
            ack_timeout: 16,
            tos: None,
            farewell: Duration::from_secs(1),
            handshake: Duration::from_secs(20),
            keep_alive: Duration::from_secs(5),
            look_every: Duration::from_secs(10),
            drain: Duration::from_secs(1),
            last_wqe: Duration::from_millis(20),
        }
    }

    /// How long a packet that nobody acknowledges is sent again before its QP fails: `ack_timeout`, once and
    /// for each `retry`. A device may take up to four times as long (InfiniBand specification, 9.7.6.1.3).
    pub fn sent_again_for(&self) -> Duration {
        Duration::from_nanos(4096 << self.ack_timeout.min(31)) * (u32::from(self.retry) + 1)
    }

    /// What is asked of the device.
    pub fn wants(&self) -> Wants {
        Wants {
            qps: self.qps_max,
            srq_entries: self.srq_entries_max,
            reads: self.reads_max,
            // What RDMA CM can say.
            reads_per_qp: self.reads_per_qp_max.min(u8::MAX.into()),
            reads_answered_per_qp: self.reads_answered_per_qp_max.min(READS_ANSWERED_MAX),
            sends: self.sends_max,
            sends_per_qp: self.sends_per_qp_max,
            scatter: SCATTER_WANTED,
            probes_per_qp: PROBES_PER_QP,
            completion_queues: CompletionQueues::Apart,
        }
    }

    /// Says what is wrong with these numbers, if anything is.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let sizes = [
            self.qps_max,
            self.srq_entries_max,
            self.reads_max,
            self.sends_per_qp_max,
            self.sends_max,
            self.regions_max,
        ];
        if sizes.contains(&0) {
            return Some(
                "qps_max, srq_entries_max, reads_max, sends_per_qp_max, sends_max and regions_max must be at \
                 least 1",
            );
        }
        if self.rnr_timer > 31 {
            return Some("rnr_timer must be 0 to 31");
        }
        // 0 would be for ever.
        if !(1..=31).contains(&self.ack_timeout) {
            return Some("ack_timeout must be 1 to 31");
        }
        (self.rnr_retry > 7 || self.retry > 7).then_some("rnr_retry and retry must be 0 to 7")
    }
}
