//! A session as an end that is shared.

use crate::receive::error::ReceiveError;
use crate::receive::session::Session;
use crate::shared::sleepers::Sleepers;
use crate::shared::{End, Prepared};
use jet_wire::segment::Notice;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// What one waits for on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// The next message.
    Message,
    /// The next slice of the message at that place of the table.
    Slice { message: u32 },
}

impl End for Session {
    type Wants = Wants;
    /// Notice that was reported before the wait began.
    type Memory = Option<Notice>;
    type Error = ReceiveError;

    fn sleepers(&self) -> &Sleepers<Wants> {
        &self.sleepers
    }

    fn descriptor(&mut self) -> (BorrowedFd<'_>, u32) {
        (<Self as AsFd>::as_fd(self), 0)
    }

    fn begin_wait(&mut self) -> Option<Notice> {
        self.reported_notice.get()
    }

    fn prepare_sleep(&mut self, reported_before: &Option<Notice>) -> Result<Prepared, ReceiveError> {
        if !self.prepare_sleep_on_ring()? {
            return Ok(Prepared::LookAgain);
        }
        self.check_held(true, *reported_before)?;
        Ok(Prepared::Sleep(None))
    }

    fn settle(&mut self) -> Result<(), ReceiveError> {
        self.handle_descriptor()
    }

    fn note_sleep(&mut self) {
        self.stats.sleeps.set(self.stats.sleeps.get() + 1);
    }

    fn hand_on(&self, wants: Wants) {
        if wants == Wants::Message && self.table.has_ready() {
            self.sleepers.wake_one(Wants::Message);
        }
    }

    fn refused(error: io::Error) -> ReceiveError {
        ReceiveError::Wait(error)
    }
}

impl Session {
    /// Shows the daemon what was given back, where nobody is about to look and would show it.
    #[inline]
    pub(super) fn show_if_nobody_looks(&self) {
        if self.sleepers.any() {
            self.show_releases();
        }
    }
}
