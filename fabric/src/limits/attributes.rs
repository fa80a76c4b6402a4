//! Limits as a device itself reports them.

/// Limits that a device reports: the fields of `ibv_device_attr` that matter to Jet.
///
/// Names and types are those of `ibv_device_attr`. The values are not to be trusted: drivers leave fields at
/// 0, and a limit beyond an `int` comes out negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Queue pairs of the device, at most.
    pub max_qp: i32,
    /// Work requests that may be outstanding on one queue.
    pub max_qp_wr: i32,
    /// Scatter or gather entries of one work request other than a READ.
    pub max_sge: i32,
    /// Scatter entries of one READ. Some drivers leave it at 0, though every device takes one.
    pub max_sge_rd: i32,
    /// Completion queues of the device, at most.
    pub max_cq: i32,
    /// Completions that one completion queue holds, at most.
    pub max_cqe: i32,
    /// READs of a peer that one QP answers at once.
    pub max_qp_rd_atom: i32,
    /// READs of peers that the device answers at once, over all its QPs.
    ///
    /// Some drivers (irdma, qedr) leave it at 0. So 0 means that the number is not known.
    pub max_res_rd_atom: i32,
    /// READs that one QP has outstanding at once, at most.
    pub max_qp_init_rd_atom: i32,
    /// Shared receive queues of the device, at most. 0 where the device has none, whatever the other two
    /// `max_srq_` fields say.
    pub max_srq: i32,
    /// Entries of one SRQ, at most.
    pub max_srq_wr: i32,
    /// Scatter entries of one SRQ entry, at most.
    pub max_srq_sge: i32,
    /// Bytes of a SEND that can travel in its work request. `None` where the number is not known beforehand.
    ///
    /// `ibv_query_device` has no field for it; only a QP reports it, once it is made.
    pub max_inline_data: Option<u32>,
}

impl DeviceAttributes {
    /// Attributes without limits: those of a software NIC that is given no profile.
    pub const UNLIMITED: Self = Self {
        max_qp: i32::MAX,
        max_qp_wr: i32::MAX,
        max_sge: i32::MAX,
        max_sge_rd: i32::MAX,
        max_cq: i32::MAX,
        max_cqe: i32::MAX,
        max_qp_rd_atom: i32::MAX,
        max_res_rd_atom: i32::MAX,
        max_qp_init_rd_atom: i32::MAX,
        max_srq: i32::MAX,
        max_srq_wr: i32::MAX,
        max_srq_sge: i32::MAX,
        max_inline_data: None,
    };

    /// Returns the lower of two values for each attribute, for a NIC that keeps to a profile beside its own
    /// device.
    #[must_use]
    pub fn at_most(self, other: &Self) -> Self {
        let both = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        // A value of 0 or below says nothing, so the other device's value counts.
        let spoken = |a: i32, b: i32| if a <= 0 || b <= 0 { a.max(b) } else { a.min(b) };
        Self {
            max_qp: self.max_qp.min(other.max_qp),
            max_qp_wr: self.max_qp_wr.min(other.max_qp_wr),
            max_sge: self.max_sge.min(other.max_sge),
            max_sge_rd: self.max_sge_rd.min(other.max_sge_rd),
            max_cq: self.max_cq.min(other.max_cq),
            max_cqe: self.max_cqe.min(other.max_cqe),
            max_qp_rd_atom: self.max_qp_rd_atom.min(other.max_qp_rd_atom),
            max_res_rd_atom: spoken(self.max_res_rd_atom, other.max_res_rd_atom),
            max_qp_init_rd_atom: self.max_qp_init_rd_atom.min(other.max_qp_init_rd_atom),
            max_srq: self.max_srq.min(other.max_srq),
            max_srq_wr: self.max_srq_wr.min(other.max_srq_wr),
            max_srq_sge: self.max_srq_sge.min(other.max_srq_sge),
            max_inline_data: both(self.max_inline_data, other.max_inline_data),
        }
    }
}
