//! A connection's QP: how it is made, brought to work, taken to the error state, and destroyed.
//!
//! RDMA CM only carries what two ends agree on. Its own way to make a QP (`rdma_create_qp`) would put it into
//! the context that all users of RDMA CM in the process share ([`super::context`]). It would also leave the
//! accepting end no choice of retries and timeouts: they would be those that the other end asked for. So this
//! module makes QPs itself, and brings them to work with the attributes that RDMA CM has for them.

use super::completion_queue::QueueOnDemand;
use super::connection_manager::{ConnectionId, ReadDepth};
use super::port::{Port, Standing, mtu_bytes};
use super::regions::Domain;
use rdma_sys::{
    ibv_access_flags, ibv_cq, ibv_create_qp, ibv_destroy_qp, ibv_ece, ibv_modify_qp, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_query_ece, ibv_set_ece,
    ibv_srq,
};
use std::io;
use std::sync::Arc;

/// Objects that a QP is made of. The queues must live longer than the QP.
#[derive(Debug)]
pub(super) struct Parts {
    pub domain: Arc<Domain>,
    pub port: Port,
    pub send_completions: QueueOnDemand,
    pub receive_completions: *mut ibv_cq,
    pub receives: *mut ibv_srq,
    pub send_entries: u32,
    pub send_sges: u32,
    /// Bytes that the QP is to send inline. If it cannot, it is tried with half of them, then with none.
    pub inline: u32,
}

// SAFETY: verbs may be called by any thread, and by several at once.
unsafe impl Send for Parts {}

/// Attributes of a working QP, beside those that RDMA CM knows: the other end, and the path to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpAttributes {
    pub reads: ReadDepth,
    pub retry: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub ack_timeout: u8,
    pub tos: Option<u8>,
}

/// Properties of a QP's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Payload of the longest packet in bytes.
    pub bytes: u32,
    /// State of the port when the QP began to work, if the port reported it.
    pub standing: Option<Standing>,
}

/// Reason why a QP could not begin to work.
#[derive(Debug)]
pub(super) enum BeginError {
    /// The other end's packets are longer than this end's port takes. The port would drop each of them
    /// silently.
    Packets {
        /// Payload of the other end's longest packet in bytes.
        bytes: u32,
        /// State of this end's port, with its longest packet.
        standing: Standing,
    },
    /// A verb failed.
    System(io::Error),
}

impl From<io::Error> for BeginError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// QP of a connection, destroyed when dropped.
#[derive(Debug)]
pub(super) struct QueuePair {
    qp: *mut ibv_qp,
    number: u32,
    inline_bytes: u32,
    port: Port,
    /// Properties of the QP's packets. `None` until it begins to work.
    path: Option<Path>,
    _domain: Arc<Domain>,
}

// SAFETY: as above; requests are posted by one thread, and by none while another changes the QP's state.
unsafe impl Send for QueuePair {}

impl QueuePair {
    pub fn new(parts: &Parts) -> io::Result<Self> {
        let send_cq = parts.send_completions.make()?;
        let mut last = io::Error::from(io::ErrorKind::InvalidInput);
        for inline in [parts.inline, parts.inline / 2, 0] {
            let mut attributes = ibv_qp_init_attr {
                qp_context: std::ptr::null_mut(),
                send_cq,
                recv_cq: parts.receive_completions,
                srq: parts.receives,
                cap: ibv_qp_cap {
                    max_send_wr: parts.send_entries,
                    max_recv_wr: 0,
                    max_send_sge: parts.send_sges,
                    max_recv_sge: 0,
                    max_inline_data: inline,
                },
                qp_type: ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: the parts outlive the QP: the domain is kept here, the NIC drops its queues after its
            // connections and its thread for set-up.
            let qp = unsafe { ibv_create_qp(parts.domain.as_ptr(), &mut attributes) };
            if qp.is_null() {
                last = io::Error::last_os_error();
                continue;
            }
            // SAFETY: the QP was just made.
            let number = unsafe { (*qp).qp_num };
            return Ok(Self {
                qp,
                number,
                inline_bytes: attributes.cap.max_inline_data,
                port: parts.port.clone(),
                path: None,
                _domain: Arc::clone(&parts.domain),
            });
        }
        Err(last)
    }

    #[inline]
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.qp
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns how many bytes the QP sends inline.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: i32) -> io::Result<()> {
        // SAFETY: the QP lives, and the structure is whole.
        match unsafe { ibv_modify_qp(self.qp, attributes, mask) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Returns the properties of the QP's packets, once it works.
    pub fn path(&self) -> Option<Path> {
        self.path
    }

    /// Brings the QP to work with the other end that its identifier knows.
    pub fn begin_work(&mut self, id: &ConnectionId, wanted: &QpAttributes) -> Result<(), BeginError> {
        let (mut attributes, mask) = id.qp_attributes(ibv_qp_state::IBV_QPS_INIT)?;
        // The other end asks with a WRITE of no bytes whether this end is there. No region can be written by
        // a peer.
        let mut allowed = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        if wanted.reads.answers > 0 {
            allowed |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        }
        attributes.qp_access_flags = allowed;
        self.modify(&mut attributes, mask)?;

        let (mut attributes, mask) = id.qp_attributes(ibv_qp_state::IBV_QPS_RTR)?;
        // Both ends use the path MTU that the asking end chose. The accepting end cannot ask for less.
        let (standing, bytes) = (self.port.standing(), mtu_bytes(attributes.path_mtu));
        match standing {
            // If the port does not report its longest packet, the connection itself shows whether packets
            // arrive.
            Ok(standing) if standing.packet_bytes_max > 0 && bytes > standing.packet_bytes_max => {
                return Err(BeginError::Packets { bytes, standing });
            }
            _ => {}
        }
        self.path = Some(Path { bytes, standing: standing.ok() });
        attributes.max_dest_rd_atomic = wanted.reads.answers;
        attributes.min_rnr_timer = wanted.rnr_timer;
        if let Some(tos) = wanted.tos
            && attributes.ah_attr.is_global != 0
        {
            attributes.ah_attr.grh.traffic_class = tos;
        }
        self.modify(&mut attributes, mask)?;

        let (mut attributes, mask) = id.qp_attributes(ibv_qp_state::IBV_QPS_RTS)?;
        attributes.max_rd_atomic = wanted.reads.makes;
        attributes.retry_cnt = wanted.retry;
        attributes.rnr_retry = wanted.rnr_retry;
        attributes.timeout = wanted.ack_timeout;
        Ok(self.modify(&mut attributes, mask)?)
    }

    /// Returns the options that the QP's device can use with a device of the same maker (ECE).
    pub fn ece(&self) -> ibv_ece {
        let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the QP lives. Where the device knows nothing of ECE, the structure stays empty.
        unsafe { ibv_query_ece(self.qp, &mut ece) };
        ece
    }

    /// Sets the ECE options. To be called before the QP begins to work.
    pub fn set_ece(&self, mut ece: ibv_ece) {
        // SAFETY: as above. Where it fails the device does what the specification says, as with any other.
        unsafe { ibv_set_ece(self.qp, &mut ece) };
    }

    /// Takes the QP to the error state, so that all its work completes as flushed.
    pub fn fail(&self) {
        // SAFETY: every bit pattern is a value of the structure, of which one field is read.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        // The call fails only if the device is gone.
        let _ = self.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed());
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: ours, and no call is under way with it.
        unsafe { ibv_destroy_qp(self.qp) };
    }
}
