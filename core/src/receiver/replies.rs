//! Replies of applications, in the order of their lives: promised when the message arrives, checked, taken,
//! sent with the message's end, and gone from their slots.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, PeerId, ReleaseError, SessionId};
use jet_wire::SLAB_BYTES;
use jet_wire::message::AckStatus;
use jet_wire::segment::Release;

impl<P: GrantPolicy> Receiver<P> {
    /// Promises memory for the reply to a message that arrived, unless it is refused anyway. Returns why it
    /// is refused, if it is.
    #[cold]
    pub(super) fn promise_reply(
        &mut self,
        (peer, session): (u32, u32),
        message: u32,
        refused: Option<AckStatus>,
    ) -> Option<AckStatus> {
        let has_memory = refused.is_none() && self.replies.promise(peer, session, message);
        refused.or((!has_memory).then_some(AckStatus::Busy))
    }

    /// Checks whether a message may have a reply of that length.
    #[cold]
    pub(super) fn check_reply(&self, message: u32, release: &Release) -> Result<(), ReleaseError> {
        let Release { index, first: bytes, count, .. } = *release;
        let is_wanted = self.messages[message].wants_reply && usize::from(bytes) <= SLAB_BYTES && count == 0;
        if is_wanted { Ok(()) } else { Err(ReleaseError::Reply { message: index, bytes }) }
    }

    /// Takes the reply to a message that its application has finished.
    #[cold]
    pub(super) fn take_reply(
        &mut self,
        session: u32,
        message: u32,
        release: &Release,
        effects: &mut impl Effects,
    ) -> Result<(), ReleaseError> {
        let Release { index, first: bytes, .. } = *release;
        // Without a slot its sender is gone, or has heard its end: nobody would hear the reply.
        let Some(slot) = self.replies.give(message, u32::from(bytes)) else { return Ok(()) };
        if !effects.take_reply(SessionId(session), index, slot, u32::from(bytes)) {
            let peer = self.messages[message].peer;
            self.replies.forget(peer, message);
            return Err(ReleaseError::Reply { message: index, bytes });
        }
        self.stats.replies += 1;
        Ok(())
    }

    /// Ends a message with its reply. Returns `false` if it has none; then its promise is over.
    #[cold]
    pub(super) fn end_with_reply(&mut self, peer: u32, message: u32, status: AckStatus) -> bool {
        let is_the_applications = matches!(status, AckStatus::Consumed | AckStatus::Rejected(_));
        if is_the_applications && self.replies.has(message) {
            // A message in use has ticks: the last flush is not long ago.
            self.replies.end(peer, message, self.outbox.flushed_stall_free_ns());
            self.outbox.end_with_reply(peer, message, status, &mut self.messages);
            return true;
        }
        self.replies.forget(peer, message);
        false
    }

    /// Handles a reply whose SEND has ended: its slot may have another one.
    pub fn handle_reply_sent(&mut self, peer: PeerId, slot: u32) {
        self.replies.sent(peer.0, slot);
    }
}
