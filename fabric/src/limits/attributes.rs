//! A device's own words.

/// What a device reports of itself: the fields of `ibv_device_attr` that matter to Jet, under their names
/// there and with their type. They are not to be believed: drivers leave fields at 0, and a limit beyond an
/// `int` comes out negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Queue pairs.
    pub max_qp: i32,
    /// Work requests that are outstanding on one queue.
    pub max_qp_wr: i32,
    /// Scatter or gather entries of one work request that is no READ.
    pub max_sge: i32,
    /// Scatter entries of one READ. Some drivers leave it at 0; one is always there.
    pub max_sge_rd: i32,
    /// Completion queues.
    pub max_cq: i32,
    /// Completions that one of them holds.
    pub max_cqe: i32,
    /// READs of a peer that one QP answers at once.
    pub max_qp_rd_atom: i32,
    /// READs of peers that the device answers at once, those of all QPs together. Some drivers leave it at 0
    /// (irdma and qedr do), so 0 says nothing.
    pub max_res_rd_atom: i32,
    /// READs that one QP has outstanding at once.
    pub max_qp_init_rd_atom: i32,
    /// Shared receive queues. 0 where the device has none, whatever the other two say.
    pub max_srq: i32,
    /// Entries of one SRQ.
    pub max_srq_wr: i32,
    /// Scatter entries of one SRQ entry.
    pub max_srq_sge: i32,
    /// Bytes of a SEND that travel in its work request. `ibv_query_device` has no field for it, a QP that is
    /// made tells: `None` where it is not known before.
    pub max_inline_data: Option<u32>,
}

impl DeviceAttributes {
    /// No limits: what the software NIC has without a profile.
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

    /// Of each the lower one: a device that keeps to a profile as well.
    #[must_use]
    pub fn at_most(self, other: &Self) -> Self {
        let both = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        // A device that says nothing, by 0 or by what cannot be, is not lower for it.
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
