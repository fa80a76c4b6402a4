//! Tokens that the epoll carries for each descriptor: they tell whose descriptor is ready.

/// Transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Same host, `shm:`.
    Shm = 1,
    /// Any host, `tcp:`.
    Tcp = 2,
}

/// Part of a transport that a descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Connection of the QP with this index.
    Connection(u32),
    /// Listener of the transport, counted from 0.
    Listener(u32),
    /// Accepted connection that has not said all of its request, by its place in
    /// [`crate::soft::strangers::Strangers`], and by its number. An event for a stranger that has just made
    /// room for another names the place, but not the other's number.
    Stranger {
        /// Place in the table.
        place: u32,
        /// Low bits of the number, within [`NUMBER_MASK`].
        number: u32,
    },
    /// Connections of the transport that wait for a turn. They have a deadline, and no descriptor.
    Turns,
}

/// Owner of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Transport that watches the descriptor.
    pub(crate) kind: Kind,
    /// Part of that transport.
    pub(crate) place: Place,
}

const KIND_SHIFT: u32 = 56;
const IS_LISTENER: u64 = 1 << 32;
const IS_STRANGER: u64 = 1 << 33;
const IS_TURNS: u64 = IS_LISTENER | IS_STRANGER;
const NUMBER_SHIFT: u32 = 34;
/// Bits of a stranger's number that fit between the flags and the kind.
pub(crate) const NUMBER_MASK: u32 = (1 << (KIND_SHIFT - NUMBER_SHIFT)) - 1;

impl Token {
    /// Returns the token as the epoll carries it. The kind makes it differ from [`crate::readiness::TIMER`].
    pub(crate) fn to_u64(self) -> u64 {
        let place = match self.place {
            Place::Connection(index) => u64::from(index),
            Place::Listener(listener) => IS_LISTENER | u64::from(listener),
            Place::Stranger { place, number } => {
                IS_STRANGER | u64::from(number & NUMBER_MASK) << NUMBER_SHIFT | u64::from(place)
            }
            Place::Turns => IS_TURNS,
        };
        (self.kind as u64) << KIND_SHIFT | place
    }

    /// Returns the token that the epoll gave back. `None` stands for the timer.
    pub(crate) fn from_u64(bits: u64) -> Option<Self> {
        let kind = match bits >> KIND_SHIFT {
            1 => Kind::Shm,
            2 => Kind::Tcp,
            _ => return None,
        };
        let index = u32::try_from(bits & u64::from(u32::MAX)).expect("masked to 32 bits");
        let place = match bits & (IS_LISTENER | IS_STRANGER) {
            IS_LISTENER => Place::Listener(index),
            IS_STRANGER => {
                let number = u32::try_from(bits >> NUMBER_SHIFT & u64::from(NUMBER_MASK)).expect("masked");
                Place::Stranger { place: index, number }
            }
            IS_TURNS => Place::Turns,
            _ => Place::Connection(index),
        };
        Some(Self { kind, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::TIMER;

    #[test]
    fn tokens_come_back_as_they_were() {
        for kind in [Kind::Shm, Kind::Tcp] {
            for index in [0, 7, u32::MAX] {
                for place in [
                    Place::Connection(index),
                    Place::Listener(index),
                    Place::Stranger { place: index, number: index & NUMBER_MASK },
                    Place::Turns,
                ] {
                    let token = Token { kind, place };
                    assert_eq!(Token::from_u64(token.to_u64()), Some(token));
                }
            }
        }
        assert_eq!(Token::from_u64(TIMER), None);
    }
}
