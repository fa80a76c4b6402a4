//! Each message's effect once, whatever dies in between.
//!
//! Jet delivers at least once: a message whose end its sender has not heard is sent again, marked
//! redelivered. An application makes that exactly once with two things that it and the sender keep:
//!
//! * **The sender** has an identity that it keeps over restarts
//!   ([`SenderOptions::identity`](crate::send::SenderOptions::identity)), and a log of what it sends. A
//!   message's sequence number names it for ever. A sender that comes back names its oldest message without a
//!   known end as the first one ([`Identity::first_sequence`](crate::send::Identity::first_sequence)), and
//!   submits from there on the same messages in the same order, also those whose ends it knew. A sender
//!   without a log begins above all numbers that it may have used.
//! * **The application** keeps a [`SeenWindow`] for each sender, and stores it with its data: in the same
//!   transaction. It asks [`SeenWindow::standing`] before it does what a message says, and marks the message
//!   ([`SeenWindow::mark`]) when it stores the effect. What it has seen it only ends, with the same reply.
//!   What is too old for the window it rejects: whether that had its effect is not known any more. A sender
//!   that keeps to the rules above sends no such message.
//!
//! An end that leaves open what became of a message (`PeerLost`, `AppGone`) must not lead to the same message
//! under a new number. So such a sender tries for ever (`reconnect_for` and `retry` of [`Duration::MAX`]), or
//! it comes back with that message as its first one.
//!
//! ```
//! use jet_client::exactly_once::{SeenWindow, Standing};
//!
//! /// What the application stores: its data, and beside it what it has seen.
//! #[derive(Default)]
//! struct Stored { sum: u64, seen: SeenWindow }
//!
//! /// Returns whether the message is consumed. Otherwise it is rejected.
//! fn add(stored: &mut Stored, sequence: u64, number: u64) -> bool {
//!     match stored.seen.standing(sequence) {
//!         Standing::New => {
//!             stored.sum += number;
//!             stored.seen.mark(sequence)
//!         }
//!         Standing::Seen => true,
//!         Standing::TooOld => false,
//!     }
//! }
//!
//! let mut stored = Stored::default();
//! for (sequence, number) in [(1, 10), (3, 30), (1, 10), (2, 20)] {
//!     assert!(add(&mut stored, sequence, number));
//! }
//! assert_eq!(stored.sum, 60);
//! ```
//!
//! [`Duration::MAX`]: std::time::Duration::MAX

/// Sequence numbers that a window tells apart. A sender with an identity has no message open that is this
/// much older than its newest one: it waits for the oldest one's end ([`SubmitError::WouldBlock`]). So what
/// lies below a window has its end.
///
/// [`SubmitError::WouldBlock`]: crate::send::SubmitError::WouldBlock
pub const SEQUENCE_SPAN: u64 = 1024;

const WORDS: usize = 16;
const _: () = assert!(WORDS as u64 * 64 == SEQUENCE_SPAN);

/// Which messages of one sender had their effect: the newest one, and which of the 1024 up to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenWindow {
    /// The highest number that was marked; 0: none.
    newest: u64,
    /// A bit for each number above `newest - SEQUENCE_SPAN`, at the number's remainder.
    bits: [u64; WORDS],
}

/// What a window knows of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was not marked: it has had no effect.
    New,
    /// It was marked: it has had its effect.
    Seen,
    /// It lies below the window. Its sender has had its end, or does not keep to the rules. Whether it had
    /// its effect is not known any more, so it must not be ended as consumed.
    TooOld,
}

/// Bytes that do not come from [`SeenWindow::to_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are no window of seen messages: {0}; are they what was stored?")]
pub struct NoSeenWindow(&'static str);

impl Default for SeenWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl SeenWindow {
    /// Bytes of a stored window.
    pub const BYTES: usize = 8 + 8 * WORDS;

    /// Returns a window in which nothing was seen.
    pub const fn new() -> Self {
        Self { newest: 0, bits: [0; WORDS] }
    }

    /// Returns what is known of the message with this number. No message has the number 0, which is always
    /// too old.
    pub fn standing(&self, sequence: u64) -> Standing {
        if sequence == 0 {
            Standing::TooOld
        } else if sequence > self.newest {
            Standing::New
        } else if self.newest - sequence >= SEQUENCE_SPAN {
            Standing::TooOld
        } else if self.bit(sequence) {
            Standing::Seen
        } else {
            Standing::New
        }
    }

    /// Whether the message with this number has no effect any more: it was marked, or is
    /// [too old](Standing::TooOld).
    pub fn has_seen(&self, sequence: u64) -> bool {
        self.standing(sequence) != Standing::New
    }

    /// Notes that the message with this number has had its effect. Returns whether it is the first time.
    pub fn mark(&mut self, sequence: u64) -> bool {
        if self.has_seen(sequence) {
            return false;
        }
        if sequence > self.newest {
            // The numbers in between are new, and have the places of numbers that leave the window.
            let passed = sequence - self.newest;
            if passed >= SEQUENCE_SPAN {
                self.bits = [0; WORDS];
            } else {
                (self.newest + 1..=sequence).for_each(|number| self.set(number, false));
            }
            self.newest = sequence;
        }
        self.set(sequence, true);
        true
    }

    /// Returns the window as bytes, to be stored with the application's data. The form does not change
    /// between versions.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip([self.newest].iter().chain(&self.bits)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a window that was stored.
    ///
    /// # Errors
    /// [`NoSeenWindow`]: no window has these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NoSeenWindow> {
        if bytes.len() != Self::BYTES {
            return Err(NoSeenWindow("there are not 136 of them"));
        }
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight")));
        let newest = words.next().expect("there are 17");
        let mut window = Self { newest, bits: [0; WORDS] };
        window.bits.iter_mut().zip(words).for_each(|(place, word)| *place = word);
        let is_possible = if newest == 0 {
            window.bits == [0; WORDS]
        } else {
            // Numbers from 1 on have bits, and the newest one was marked.
            let below = (newest.saturating_add(1)..=SEQUENCE_SPAN).all(|number| !window.bit(number));
            below && window.bit(newest)
        };
        if is_possible { Ok(window) } else { Err(NoSeenWindow("no messages could leave them")) }
    }

    fn place(sequence: u64) -> (usize, u64) {
        let at = sequence % SEQUENCE_SPAN;
        (usize::try_from(at / 64).expect("16 words"), 1 << (at % 64))
    }

    fn bit(&self, sequence: u64) -> bool {
        let (word, mask) = Self::place(sequence);
        self.bits[word] & mask != 0
    }

    fn set(&mut self, sequence: u64, on: bool) {
        let (word, mask) = Self::place(sequence);
        if on {
            self.bits[word] |= mask;
        } else {
            self.bits[word] &= !mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_below_the_window_was_seen_and_what_is_above_was_not() {
        let mut window = SeenWindow::new();
        assert!(window.has_seen(0) && !window.has_seen(1) && !window.has_seen(u64::MAX));
        assert!(window.mark(5000) && !window.mark(5000));
        assert!(window.has_seen(5000 - 1024) && !window.has_seen(5000 - 1023) && !window.has_seen(5001));
        assert!(!window.mark(0) && !window.mark(1), "they had their ends");
        let standings =
            [0, 1, 5000 - 1024, 5000 - 1023, 5000, 5001].map(|sequence| window.standing(sequence));
        use Standing::{New, Seen, TooOld};
        assert_eq!(standings, [TooOld, TooOld, TooOld, New, Seen, New]);
        assert!(window.mark(u64::MAX) && window.has_seen(5000));
        assert_eq!(SeenWindow::from_bytes(&window.to_bytes()), Ok(window));
    }

    #[test]
    fn no_other_bytes_are_a_window() {
        let mut window = SeenWindow::new();
        assert_eq!(SeenWindow::from_bytes(&window.to_bytes()), Ok(window.clone()));
        window.mark(3);
        let stored = window.to_bytes();
        assert_eq!(SeenWindow::from_bytes(&stored), Ok(window));
        for bytes in [0, 135, 137] {
            assert!(SeenWindow::from_bytes(&vec![0; bytes]).is_err());
        }
        // A newest one that was not marked, one above it, and one although there is none.
        for (at, byte) in [(0, 4), (8, 1 << 4 | 1 << 3), (0, 0), (8 + 127, 0x80)] {
            let mut other = stored;
            other[at] = byte;
            assert!(SeenWindow::from_bytes(&other).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn within_the_span_of_a_sender_each_message_is_new_once(
            // How far behind the newest one each message is, and how far ahead the newest one goes.
            steps in prop::collection::vec((0u64..SEQUENCE_SPAN, 0u64..2000, any::<bool>()), 1..300),
            first in 1u64..5000,
        ) {
            let (mut window, mut model) = (SeenWindow::new(), BTreeSet::new());
            let mut newest = first;
            for (behind, ahead, stores) in steps {
                newest += ahead.saturating_sub(SEQUENCE_SPAN);
                let sequence = newest.saturating_sub(behind).max(1);
                // The sender has none open that is so much older than one that was seen.
                let highest = model.last().copied().unwrap_or(0);
                if sequence + SEQUENCE_SPAN > highest {
                    prop_assert_eq!(window.has_seen(sequence), model.contains(&sequence));
                    prop_assert_eq!(window.mark(sequence), model.insert(sequence));
                }
                if stores {
                    window = SeenWindow::from_bytes(&window.to_bytes()).expect("it was stored");
                }
            }
        }
    }
}
