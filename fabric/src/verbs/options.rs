//! Options with which a NIC on verbs is built.

use crate::limits::{CompletionQueues, Profile, Requirements};
use crate::networks::Networks;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Scatter entries of one READ that this crate makes use of.
///
/// Every place of a send queue is as large as the largest request. With 19 entries that is 512 bytes, on mlx5
/// (192 and 16 each, in steps of 64: `mlx5_calc_send_wqe`) as with rxe (208 and 16 each, a power of two:
/// `rxe_qp_init_req`). A fragment of 256 KiB (Jet §3.2) is 64 slabs, in a few runs most often. A fragment in
/// more than 19 runs is read in parts.
pub(super) const SCATTER_WANTED: u32 = 19;
/// Most READs of a peer that one QP answers at once: the most that RDMA CM can express.
const READS_ANSWERED_MAX: u32 = 255;
/// Requests of this NIC's own on a QP: a probe.
const PROBES_PER_QP: u32 = 1;
/// Most bytes of a SEND's payload: one slab.
pub(super) const PAYLOAD_BYTES_MAX: u32 = jet_wire::SLAB_BYTES_U32;

/// Resolves `host:port`, and returns the first address.
pub(super) fn resolve(host_and_port: &str) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    host_and_port.to_socket_addrs()?.next().ok_or_else(none)
}

/// Choice of a device, of those that RDMA CM knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Device of a name, as `rdma link` shows it. Where `gid_index` is given, connections leave from that
    /// GID's address.
    Named {
        /// Name of the device.
        device: String,
        /// Port of the device, from 1.
        port: u8,
        /// Index in the table of the port's GIDs. `None` leaves the choice to the kernel's routes.
        gid_index: Option<u8>,
    },
    /// Device that has this address, or from which it is reached.
    Reaching(IpAddr),
}

/// Sizes and times of a [`super::VerbsNic`]. Memory for these sizes is allocated once, when the NIC is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsOptions {
    /// Device that the NIC uses.
    pub device: DeviceChoice,
    /// Local address that connections leave from. `None` leaves the choice to `gid_index`, or to the kernel's
    /// routes.
    pub source: Option<IpAddr>,
    /// Networks whose hosts may connect (default all).
    pub networks: Networks,
    /// Limits that the NIC keeps to beside the device's. `None`: the device's limits alone.
    pub profile: Option<Profile>,
    /// Connections, including those that are being set up (default 1,024).
    pub qps_max: u32,
    /// SRQ entries that are posted, or completed but not polled (default 4,096).
    pub srq_entries_max: u32,
    /// Outstanding READs of all QPs together (default 256).
    pub reads_max: u32,
    /// Outstanding READs of one QP, or as many as the device allows if that is fewer (default 16: what
    /// ConnectX-6 and -7 allow; 4 MiB of fragments).
    ///
    /// 0 means that this end makes none, and reserves nothing at its peers for answering them.
    pub reads_per_qp_max: u32,
    /// READs of a peer that one QP answers at once, or as many as the device answers if that is fewer
    /// (default 255, which is the most that RDMA CM can express).
    ///
    /// 0 means that this end answers none: its QPs refuse READs, whatever is registered.
    pub reads_answered_per_qp_max: u32,
    /// Outstanding SENDs of one QP (default 128). A connection's queues have a place for each SEND, for each
    /// READ, and for a probe.
    pub sends_per_qp_max: u32,
    /// Outstanding SENDs of all QPs together (default 4,096). Each has a place for its header, 128 bytes.
    pub sends_max: u32,
    /// Places of 4 KiB for payloads of SENDs that are copied, [`crate::nic::Payload::Inline`] (default 256).
    pub inline_places: u32,
    /// Further such places on a device that gathers only one stretch: there registered payloads are copied
    /// behind their headers, too (default 0).
    pub one_stretch_places: u32,
    /// Regions that can be registered (default 64).
    pub regions_max: u32,
    /// NUMA node for queues and staged bytes. `None` (the default): the device's, where it has one.
    pub numa_node: Option<u32>,
    /// Processor of the thread that sleeps on this NIC, if that is always the same. Completions then
    /// interrupt that processor.
    pub cpu: Option<usize>,
    /// Whether the slow calls of accepting and ending connections are made on a thread of their own (default
    /// no). Useful with many connections.
    pub set_up_thread: bool,
    /// Times that a SEND which finds no SRQ entry is tried again before its QP fails: 0 to 6, or 7 for ever
    /// (default 7).
    pub rnr_retry: u8,
    /// Time that a peer waits after it found no SRQ entry, in the InfiniBand specification's code (default 7:
    /// 0.12 ms). RDMA CM's own value, 0, is 655 ms.
    pub rnr_timer: u8,
    /// Times that a packet without an acknowledgement is sent again before its QP fails: 0 to 7 (default 6).
    ///
    /// Soft-RoCE takes 7 as for ever, and then never notices a peer that is gone without a message.
    pub retry: u8,
    /// Time that an acknowledgement may take before the packet is sent again: 4.096 us x 2^this, 1 to 31
    /// (default 16: 268 ms).
    ///
    /// A peer that is gone without a message is noticed after seven times as long.
    pub ack_timeout: u8,
    /// Type of service of this end's packets, as in IP (RFC 2474): the code point, and two bits below it.
    ///
    /// With `None`, a connection that this end asks for has the kernel's value for RDMA CM
    /// (`default_roce_tos`). One that this end accepts has the peer's value.
    pub tos: Option<u8>,
    /// Time for which [`crate::Nic::disconnect`] waits until posted SENDs are taken (default 1 s).
    pub farewell: Duration,
    /// Time in which a connection must be set up (default 20 s: RDMA CM sends a lost request again after 4.3
    /// s).
    pub handshake: Duration,
    /// Span in which each connection is checked once (default 5 s).
    ///
    /// A connection on which nothing happened since the last check is probed with a WRITE of no bytes. The
    /// message of a peer that went may have been lost, and RC has no other way to notice. Work that does not
    /// end for four such spans ends its connection. That happens not before the device had time for its
    /// retries (`ack_timeout`, `retry`).
    pub keep_alive: Duration,
    /// Time between two surveys of the port without an event of the device, while the NIC listens (default 10
    /// s).
    ///
    /// Most devices do not report a new MTU. Changes that the device reports do not wait for such a survey.
    pub survey_every: Duration,
    /// Time for which a QP in the error state may keep its work (default 1 s). After it the QP is destroyed
    /// all the same, and counted.
    pub drain: Duration,
    /// Time that the device may take to report that a QP in the error state takes no SRQ entry any more
    /// ("last WQE reached"; default 20 ms).
    ///
    /// Some devices never report it. QPs without that report are counted.
    pub last_wqe: Duration,
}

impl VerbsOptions {
    /// Returns the default options, for the device that has the address of `host:port`, or from which that is
    /// reached.
    ///
    /// # Errors
    /// What the resolver says of the host.
    pub fn reaching(host_and_port: &str) -> io::Result<Self> {
        Ok(Self::on(DeviceChoice::Reaching(resolve(host_and_port)?.ip())))
    }

    /// Returns the default options for this device.
    pub fn on(device: DeviceChoice) -> Self {
        Self {
            device,
            source: None,
            networks: Networks::default(),
            profile: None,
            qps_max: 1024,
            srq_entries_max: 4096,
            reads_max: 256,
            reads_per_qp_max: 16,
            reads_answered_per_qp_max: READS_ANSWERED_MAX,
            sends_per_qp_max: 128,
            sends_max: 4096,
            inline_places: 256,
            one_stretch_places: 0,
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
            survey_every: Duration::from_secs(10),
            drain: Duration::from_secs(1),
            last_wqe: Duration::from_millis(20),
        }
    }

    /// Returns how long a packet without an acknowledgement is sent again before its QP fails: `ack_timeout`,
    /// once and for each `retry`.
    ///
    /// A device may take up to four times as long (InfiniBand specification, 9.7.6.1.3).
    pub fn sent_again_for(&self) -> Duration {
        Duration::from_nanos(4096 << self.ack_timeout.min(31)) * (u32::from(self.retry) + 1)
    }

    /// Returns what the NIC asks of its device.
    pub fn requirements(&self) -> Requirements {
        Requirements {
            qps: self.qps_max,
            srq_entries: self.srq_entries_max,
            reads: self.reads_max,
            // The most that RDMA CM can express.
            reads_per_qp: self.reads_per_qp_max.min(u8::MAX.into()),
            reads_answered_per_qp: self.reads_answered_per_qp_max.min(READS_ANSWERED_MAX),
            sends: self.sends_max,
            sends_per_qp: self.sends_per_qp_max,
            scatter: SCATTER_WANTED,
            probes_per_qp: PROBES_PER_QP,
            completion_queues: CompletionQueues::Apart,
        }
    }

    /// Describes what is wrong with these numbers; `None` where nothing is.
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
        // 0 would mean for ever.
        if !(1..=31).contains(&self.ack_timeout) {
            return Some("ack_timeout must be 1 to 31");
        }
        (self.rnr_retry > 7 || self.retry > 7).then_some("rnr_retry and retry must be 0 to 7")
    }
}
