//! Message that ends only by an explicit call.

use jet_client::receive::Message;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};

/// Message that was neither consumed nor rejected yet. If an open message is dropped (on an error or a
/// panic), the message gets no end: its sender learns that the receiver is gone, and sends it again. A plain
/// [`Message`] would end as consumed when its slices were taken, whether they were written or not.
pub(super) struct OpenMessage<'s>(Option<Message<'s>>);

impl<'s> OpenMessage<'s> {
    pub(super) fn new(message: Message<'s>) -> Self {
        Self(Some(message))
    }

    fn message(mut self) -> Message<'s> {
        self.0.take().expect(THERE)
    }

    pub(super) fn consume(self) {
        self.message().consume();
    }

    pub(super) fn reject(self, code: NonZeroU32) {
        self.message().reject(code);
    }
}

const THERE: &str = "a message is there until it ends";

impl<'s> Deref for OpenMessage<'s> {
    type Target = Message<'s>;

    fn deref(&self) -> &Message<'s> {
        self.0.as_ref().expect(THERE)
    }
}

impl DerefMut for OpenMessage<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_mut().expect(THERE)
    }
}

impl Drop for OpenMessage<'_> {
    fn drop(&mut self) {
        if let Some(message) = self.0.take() {
            let _ = message.detach();
        }
    }
}
