//! The notice: that an application holds all that it may, and that nothing more comes before it gives
//! something back.
//!
//! One word, which the daemon writes and the application reads when it is about to wait.
//!
//! | bits | meaning |
//! |---|---|
//! | 48..64 | number: it changes with each notice, so that one is told from the next |
//! | 40 | lasting: it stands for long already |
//! | 32..40 | the limit; 0: there is no notice |
//! | 0..32 | release entries that the daemon had taken when it wrote this |
//!
//! An application that wrote more release entries since knows by their count that the notice is of the past.
//!
//! Orderings, by label: *notice*: the daemon's Release in [`NoticeWord::put`] pairs with the Acquire in
//! [`NoticeWord::read`]: what was delivered before the notice is seen in the ring by whoever saw the notice.
//! Nobody sleeps beside a notice: the daemon writes it before it asks whether the application sleeps, the
//! application reads it after it said so (label *sleep*, see [`crate::sleep`]).

use crate::ring::{Item, Producer};
use crate::sync::{AtomicU64, Ordering};

const LASTING: u64 = 1 << 40;

/// What an application has used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HeldLimit {
    /// The pool has no room for more.
    Pool = 1,
    /// Small messages: one session may have so much of their share of the pool.
    Small = 2,
    /// It has as much escape memory as one session may.
    Memory = 3,
    /// Runs that were delivered and not given back.
    Slots = 4,
    /// Messages that were delivered and not finished.
    Messages = 5,
    /// Messages known to the receiver are nearly used up, and it has more than its share of them.
    Records = 6,
}

impl HeldLimit {
    const ALL: [Self; 6] =
        [Self::Pool, Self::Small, Self::Memory, Self::Slots, Self::Messages, Self::Records];

    /// The key of the daemon's configuration that sets it.
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

/// Nothing more comes before the application gives something back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it has used up.
    pub limit: HeldLimit,
    /// It was told before, and gave nothing back since.
    pub lasting: bool,
    /// Tells this notice from the ones before.
    pub number: u16,
    /// Release entries that the daemon had taken.
    pub releases: u32,
}

/// The shared word.
#[derive(Clone, Copy)]
pub struct NoticeWord<'a>(pub(super) &'a AtomicU64);

impl NoticeWord<'_> {
    /// Daemon: from now on this holds.
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

    /// Daemon: likewise, behind what was delivered: that is shown first, so that who sees the notice sees it
    /// too.
    pub fn put_behind<T: Item>(self, deliveries: &mut Producer<T>, notice: Option<Notice>) {
        deliveries.publish();
        self.put(notice);
    }

    /// Application: what holds. A word that was scribbled over is no notice.
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
