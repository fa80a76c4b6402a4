//! A connection's QP: made, brought to work, taken to the error state, destroyed.
//!
//! RDMA CM only carries what two ends agree on. Its own way to make a QP (`rdma_create_qp`) puts it where all users of RDMA CM
//! in the process have theirs ([`super::context`]), and leaves the accepting end no choice of retries and timeouts: those are
//! then what the other end asked for. So a QP is made and brought to work here, with the attributes that RDMA CM has for it.

use super::connection_manager::ConnectionId;
use super::regions::Domain;
use super::shared_receive_queue::SharedReceiveQueue;
use rdma_sys::{
    ibv_access_flags, ibv_cq, ibv_create_qp, ibv_destroy_qp, ibv_ece, ibv_modify_qp, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_query_ece, ibv_set_ece,
};
use std::io;
use std::rc::Rc;

/// What a QP is made of.
pub(super) struct Parts<'a> {
    pub domain: &'a Rc<Domain>,
    /// Where what it posts completes, and where what arrives does; both must live longer.
    pub send_completions: *mut ibv_cq,
    pub receive_completions: *mut ibv_cq,
    pub receives: &'a SharedReceiveQueue,
    pub send_entries: u32,
    pub send_sges: u32,
    /// Bytes that it is to send inline; if it cannot, half of it, or none.
    pub inline: u32,
}

/// How a QP is to work, beside what RDMA CM knows: the other end, and the way to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpAttributes {
    /// READs that it answers at once; 0: it refuses them.
    pub reads_answered: u8,
    /// READs that it makes at once.
    pub reads_made: u8,
    pub retry: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub ack_timeout: u8,
    pub tos: Option<u8>,
}

/// A QP, destroyed when dropped.
#[derive(Debug)]
pub(super) struct QueuePair {
    qp: *mut ibv_qp,
    number: u32,
    inline_bytes: u32,
    _domain: Rc<Domain>,
}

impl QueuePair {
    pub fn new(parts: &Parts<'_>) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::InvalidInput);
        for inline in [parts.inline, parts.inline / 2, 0] {
            let mut attributes = ibv_qp_init_attr {
                qp_context: std::ptr::null_mut(),
                send_cq: parts.send_completions,
                recv_cq: parts.receive_completions,
                srq: parts.receives.as_ptr(),
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
            // SAFETY: the parts outlive the QP: the domain is kept here, the NIC drops its queues after its connections.
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
                _domain: Rc::clone(parts.domain),
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

    /// Bytes that it sends inline.
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

    /// Brings it to work with the other end that its identifier knows.
    pub fn begin_work(&self, id: &ConnectionId, wanted: &QpAttributes) -> io::Result<()> {
        let (mut attributes, mask) = id.qp_attributes(ibv_qp_state::IBV_QPS_INIT)?;
        // A WRITE of no bytes is how the other end asks whether this one is there; no region can be written by a peer.
        let mut allowed = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        if wanted.reads_answered > 0 {
            allowed |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        }
        attributes.qp_access_flags = allowed;
        self.modify(&mut attributes, mask)?;

        let (mut attributes, mask) = id.qp_attributes(ibv_qp_state::IBV_QPS_RTR)?;
        attributes.max_dest_rd_atomic = wanted.reads_answered;
        attributes.min_rnr_timer = wanted.rnr_timer;
        if let Some(tos) = wanted.tos
            && attributes.ah_attr.is_global != 0
        {
            attributes.ah_attr.grh.traffic_class = tos;
        }
        self.modify(&mut attributes, mask)?;

        let (mut attributes, mask) = id.qp_attributes(ibv_qp_state::IBV_QPS_RTS)?;
        attributes.max_rd_atomic = wanted.reads_made;
        attributes.retry_cnt = wanted.retry;
        attributes.rnr_retry = wanted.rnr_retry;
        attributes.timeout = wanted.ack_timeout;
        self.modify(&mut attributes, mask)
    }

    /// What its device can do with another of its maker.
    pub fn ece(&self) -> ibv_ece {
        let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the QP lives. Where the device knows nothing of that, the structure stays empty.
        unsafe { ibv_query_ece(self.qp, &mut ece) };
        ece
    }

    /// Before it begins to work.
    pub fn set_ece(&self, mut ece: ibv_ece) {
        // SAFETY: as above. Where it fails the device does what the specification says, as with any other.
        unsafe { ibv_set_ece(self.qp, &mut ece) };
    }

    /// Takes it to the error state, so that all its work comes back.
    pub fn fail(&self) {
        // SAFETY: every bit pattern is a value of the structure, of which one field is read.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        // Where it fails, the device is gone.
        let _ = self.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed());
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: ours, and no call is under way with it.
        unsafe { ibv_destroy_qp(self.qp) };
    }
}
