//! A session as an end that is shared.

use crate::receive::error::ReceiveError;
use crate::receive::session::Session;
use crate::shared::End;
use crate::shared::sleepers::Sleepers;
use jet_wire::segment::{Notice, release_kind};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

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
    type Unheard = ();
    const HAS_TIMES: bool = false;

    fn take_unheard(&mut self) {}

    fn sleepers(&self) -> &Sleepers<Wants> {
        &self.sleepers
    }

    fn descriptor(&mut self) -> (BorrowedFd<'_>, u32) {
        (<Self as AsFd>::as_fd(self), 0)
    }

    fn begin_wait(&mut self) -> Option<Notice> {
        self.reported_notice.get()
    }

    fn prepare_sleep(&mut self) -> Result<bool, ReceiveError> {
        let sleeps = self.prepare_sleep_on_ring()?;
        if !sleeps {
            // The sleeping word was taken back, on which they rely.
            self.sleepers.wake_all();
        }
        Ok(sleeps)
    }

    fn check_wait(&mut self, reported_before: &Option<Notice>) -> Result<(), ReceiveError> {
        self.show_releases();
        self.check_held(true, *reported_before)
    }

    fn settle(&mut self) -> Result<(), ReceiveError> {
        self.handle_descriptor()
    }

    /// Each step keeps the sleeping word, or sets it again, where others sleep.
    fn prepare_for_others(&mut self) {}

    fn due_ns(&self) -> Option<u64> {
        None
    }

    fn until(&self, _due_ns: u64) -> Duration {
        Duration::MAX
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
    /// Shows the daemon what was given back, where nobody is about to look and would show it, or where the
    /// end of a message is among it: its sender waits for it, and who ended it may be busy for long.
    #[inline]
    pub(super) fn show_what_is_waited_for(&self) {
        let has_end = self.held_release.get().is_some_and(|held| held.kind != release_kind::SLICES);
        if has_end || self.sleepers.any() {
            self.show_releases();
        }
    }
}
