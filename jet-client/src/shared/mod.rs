//! Ends that threads and tasks share: a session, a sender.
//!
//! A [`Hub`](hub::Hub) has the end behind a lock, which is held for single steps only: to take something, to
//! give something back, to fall asleep. Nobody sleeps or spins while holding it, except to give something
//! back where the ring for that is full.
//!
//! One thread, the leader, waits for the end's descriptor. It wakes whoever waits for what it finds, and
//! hands the lead on when it leaves. Tasks do not lead, because a task may be left unpolled for long. The
//! runtime watches the descriptor for them ([`watch`]).

pub(crate) mod hub;
pub(crate) mod sleepers;
#[cfg(test)]
mod tests;
pub(crate) mod wait;
#[cfg(feature = "tokio")]
mod watch;

use sleepers::Sleepers;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An end that is shared.
pub(crate) trait End: Send + 'static {
    /// What one waits for.
    type Wants: Copy + PartialEq + Send;
    /// What a wait remembers of the time when it began.
    type Memory: Send;
    /// Why no wait is possible any more.
    type Error;

    /// Returns those who sleep.
    fn sleepers(&self) -> &Sleepers<Self::Wants>;

    /// Returns the descriptor that is readable when there is something, and how often it became another one.
    fn descriptor(&mut self) -> (BorrowedFd<'_>, u32);

    /// Begins a wait.
    fn begin_wait(&mut self) -> Self::Memory;

    /// Prepares to sleep: from here on whatever comes makes the descriptor readable. Where that is not so for
    /// those who sleep already, the caller wakes them.
    ///
    /// # Errors
    /// The end is over.
    fn prepare_sleep(&mut self) -> Result<Prepared, Self::Error>;

    /// Checks before a sleep whether the wait would be in vain.
    ///
    /// # Errors
    /// It would.
    fn check_wait(&mut self, memory: &Self::Memory) -> Result<(), Self::Error>;

    /// Handles what the descriptor has and what the time asks for, wakes those who wait for what came, and
    /// prepares for the others to sleep on. Returns after which time it must be called again, if it must.
    ///
    /// # Errors
    /// The end is over. All who sleep were woken.
    fn settle(&mut self) -> Result<Option<Duration>, Self::Error>;

    /// Is called before the lock is given back. An end that was used does not keep what it had prepared:
    /// where others sleep on it, it prepares again here, or wakes them.
    #[inline]
    fn prepare_for_others(&mut self) {}

    /// Notes that somebody falls asleep.
    fn note_sleep(&mut self);

    /// Wakes another one, in the place of one that was woken, waited for `wants`, and left.
    fn hand_on(&self, wants: Self::Wants);

    /// Returns the error for what the system refused.
    fn refused(error: io::Error) -> Self::Error;
}

/// Whether one may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// Something came: look again.
    LookAgain,
    /// Sleep, at most for so long (`None`: without limit).
    Sleep(Option<Duration>),
}
