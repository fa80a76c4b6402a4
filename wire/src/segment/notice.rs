//! The notice: it tells an application that it holds all that it may, and that nothing more arrives before it
//! gives something back.
//!
//! It is one word, which the daemon writes and the application reads when it is about to wait.
//!
//! | bits | meaning |
//! |---|---|
//! | 48..64 | number: it changes with each notice, so that two can be told apart |
//! | 40 | lasting: the application was told before, and gave nothing back since |
//! | 32..40 | the limit; 0: there is no notice |
//! | 0..32 | release entries that the daemon had taken when it wrote this |
//!
//! An application that has written more release entries since knows by their count that the notice is out of
//! date.
//!
//! Orderings, by label: *notice*: the daemon's Release in [`NoticeWord::put`] pairs with the Acquire in
//! [`NoticeWord::read`]: an application that saw the notice sees in the ring what was delivered before it.
//! The application never sleeps without seeing a notice. The daemon writes the notice before it asks whether
//! the application sleeps, and the application reads it after it announced its sleep (label *sleep*, see
//! [`crate::sleep`]).

use crate::ring::{Item, Producer};
use crate::sync::{AtomicU64, Ordering};

const LASTING: u64 = 1 << 40;

/// The limit that an application has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum HeldLimit {
    /// The pool has no room for more.
    Pool = 1,
    /// The session's small messages hold as much of the SRQ share as one session may.
    Small = 2,
    /// The session has as much escape memory as one session may.
    Memory = 3,
    /// The session has the most runs that may be delivered and not given back.
    Slots = 4,
    /// The session has the most messages that may be delivered and not finished.
    Messages = 5,
    /// The receiver's records of messages are nearly used up, and the session has more than its share of
    /// them.
    Records = 6,
}

impl HeldLimit {
    const ALL: [Self; 6] =
        [Self::Pool, Self::Small, Self::Memory, Self::Slots, Self::Messages, Self::Records];

    /// Returns the key of the daemon's configuration that sets the limit.
    pub fn key(self) -> &'static str {
        match self {
            Self::Pool => "pool.bytes",
            Self::Small => "pool.srq_bytes",
            Self::Memory => "escape.session_memory_bytes",
            Self::Slots => "session.slots",
            Self::Messages => "session.messages",
            Self::Records => "limits.messages",
        }
    }
}

impl core::fmt::Display for HeldLimit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let what = match self {
            Self::Pool => "the pool has no room for more",
            Self::Small => "it holds as much as one application may of what small messages have",
            Self::Memory => "it holds as much memory outside the cache as one application may",
            Self::Slots => "it holds as many runs of slabs as one application may",
            Self::Messages => "it has as many unfinished messages as one application may",
            Self::Records => {
                "it has more than its share of all messages that may be unfinished, of which few are left"
            }
        };
        write!(f, "{what} ({})", self.key())
    }
}

/// The notice to an application that nothing more arrives before it gives something back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The limit that the application has reached.
    pub limit: HeldLimit,
    /// Whether the application was told before, and gave nothing back since.
    pub lasting: bool,
    /// Number that tells this notice from the ones before.
    pub number: u16,
    /// Release entries that the daemon had taken when it wrote the notice.
    pub releases: u32,
}

/// The shared word of the notice.
#[derive(Clone, Copy)]
pub struct NoticeWord<'a>(pub(super) &'a AtomicU64);

impl NoticeWord<'_> {
    /// Writes a notice, or clears it with `None` (daemon's side).
    pub fn put(self, notice: Option<Notice>) {
        let word = notice.map_or(0, |notice| {
            let lasting = if notice.lasting { LASTING } else { 0 };
            u64::from(notice.number) << 48
                | lasting
                | (notice.limit as u64) << 32
                | u64::from(notice.releases)
        });
        self.0.store(word, Ordering::Release); // label: notice
    }

    /// Publishes the deliveries first, and then writes or clears the notice (daemon's side). An application
    /// that sees the notice sees those deliveries, too.
    pub fn put_behind<T: Item>(self, deliveries: &mut Producer<T>, notice: Option<Notice>) {
        deliveries.publish();
        self.put(notice);
    }

    /// Reads the notice (application's side). A word that was scribbled over gives `None`.
    pub fn read(self) -> Option<Notice> {
        let word = self.0.load(Ordering::Acquire); // label: notice
        let limit = HeldLimit::ALL.into_iter().find(|limit| *limit as u64 == word >> 32 & 0xff)?;
        #[allow(clippy::cast_possible_truncation)] // the low half, and what is left of the high one
        let (number, releases) = ((word >> 48) as u16, word as u32);
        Some(Notice { limit, lasting: word & LASTING != 0, number, releases })
    }
}

#[cfg(all(test, loom))]
mod loom;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_as_it_was_put() {
        let shared = AtomicU64::new(0);
        let word = NoticeWord(&shared);
        assert_eq!(word.read(), None);
        for (number, limit) in (u16::MAX - 2..=u16::MAX).chain(0..2).zip(HeldLimit::ALL) {
            for lasting in [false, true] {
                let notice = Notice { limit, lasting, number, releases: u32::MAX - u32::from(number) };
                word.put(Some(notice));
                assert_eq!(word.read(), Some(notice));
            }
        }
        word.put(None);
        assert_eq!(word.read(), None);
    }

    #[test]
    fn what_was_scribbled_is_no_notice() {
        for scribbled in [1, u64::from(u32::MAX), 7 << 32, 0xff << 32, u64::MAX] {
            assert_eq!(NoticeWord(&AtomicU64::new(scribbled)).read(), None, "{scribbled:x}");
        }
    }
}
