//! Completion statuses of verbs, each mapped to one of [`crate::nic::Status`]. An unknown status maps to a
//! value, too.

use crate::nic::{DisconnectReason, Status};
use rdma_sys::ibv_wc_status::{
    IBV_WC_LOC_ACCESS_ERR, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, Type,
};

/// Maps a completion's status to that of [`crate::Nic`].
pub(super) fn status_of(status: Type) -> Status {
    match status {
        IBV_WC_SUCCESS => Status::Success,
        IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR => Status::LocalProtection,
        // The receiver's status says that its entry was too short, the sender's that its request was invalid.
        IBV_WC_LOC_LEN_ERR | IBV_WC_REM_INV_REQ_ERR => Status::Length,
        IBV_WC_RNR_RETRY_EXC_ERR => Status::RnrExhausted,
        other => Status::Other(other),
    }
}

/// Returns why a connection ends whose work completed with this status; `None` where the status is no reason
/// to end it.
pub(super) fn reason_of(status: Status) -> Option<DisconnectReason> {
    match status {
        Status::Success | Status::Flushed => None,
        Status::Other(IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR) => {
            Some(DisconnectReason::Transport(libc::ETIMEDOUT))
        }
        status => Some(DisconnectReason::WorkRequest(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_value_and_only_success_is_success() {
        for status in 0..300 {
            let mapped = status_of(status);
            assert_eq!(mapped == Status::Success, status == IBV_WC_SUCCESS, "{status}");
            let harmless = matches!(mapped, Status::Success | Status::Flushed);
            assert_eq!(reason_of(mapped).is_none(), harmless, "{status}: {mapped:?}");
        }
        assert_eq!(status_of(777), Status::Other(777));
        let lost = reason_of(status_of(IBV_WC_RETRY_EXC_ERR));
        assert_eq!(lost, Some(DisconnectReason::Transport(libc::ETIMEDOUT)));
    }
}
