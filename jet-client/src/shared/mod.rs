//! Ends that threads and tasks share: a session, a sender.
//!
//! A [`Hub`](hub::Hub) has the end behind a lock, which is held for single steps only: to take something, to
//! give something back, to fall asleep. Nobody sleeps or spins while holding it, except to give something
//! back where the ring for that is full, and to resolve the name of a host to which a sender connects.
//!
//! One thread, the leader, waits for the end's descriptor. It wakes whoever waits for what it finds, and
//! hands the lead on when it leaves. Tasks do not lead, because a task may be left unpolled for long. The
//! runtime watches the descriptor for them ([`watch`]). What an end has to do at times of its own is arranged
//! with each of them: the leader and the watches of all runtimes.

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
    /// What is to be dropped without the lock.
    type Unheard;
    /// Whether the end has something to do at times of its own.
    const HAS_TIMES: bool;

    /// Takes what nobody will hear of, and whose drop may run the program's own code. It is dropped after the
    /// lock was given back.
    fn take_unheard(&mut self) -> Self::Unheard;

    /// Returns those who sleep.
    fn sleepers(&self) -> &Sleepers<Self::Wants>;

    /// Returns the descriptor that is readable when there is something, and how often it became another one.
    fn descriptor(&mut self) -> (BorrowedFd<'_>, u32);

    /// Begins a wait.
    fn begin_wait(&mut self) -> Self::Memory;

    /// Prepares to sleep: from here on whatever comes makes the descriptor readable. `false`: something came,
    /// look again; what was prepared for others before does not hold any more.
    ///
    /// # Errors
    /// The end is over.
    fn prepare_sleep(&mut self) -> Result<bool, Self::Error>;

    /// Checks before a sleep whether the wait would be in vain.
    ///
    /// # Errors
    /// It would.
    fn check_wait(&mut self, memory: &Self::Memory) -> Result<(), Self::Error>;

    /// Handles what the descriptor has and what the time asks for, and wakes those who wait for what came.
    ///
    /// # Errors
    /// The end is over. All who sleep were woken.
    fn settle(&mut self) -> Result<(), Self::Error>;

    /// Is called before the lock is given back while somebody sleeps. An end that was used does not keep what
    /// it had prepared: it prepares again here, or wakes those who sleep.
    fn prepare_for_others(&mut self);

    /// Returns the time by which the end must be settled if nothing comes, in nanoseconds of its own clock;
    /// `None`: there is none.
    fn due_ns(&self) -> Option<u64>;

    /// Returns the time until `due_ns`.
    fn until(&self, due_ns: u64) -> Duration;

    /// Notes that somebody falls asleep.
    fn note_sleep(&mut self);

    /// Wakes another one, in the place of one that was woken, waited for `wants`, and left.
    fn hand_on(&self, wants: Self::Wants);

    /// Returns the error for what the system refused.
    fn refused(error: io::Error) -> Self::Error;
}
