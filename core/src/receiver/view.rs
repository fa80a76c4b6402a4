//! What admission sees of the other mechanisms.

use crate::admission::{Claim, View};
use crate::delivery::Delivery;
use crate::escape::Escape;
use crate::recycling::Recycling;
use crate::registry::Registry;
use crate::slots::Slots;
use jet_escape::Pressure;

/// The mechanisms that say how a session stands.
pub(super) struct Look<'a> {
    pub delivery: &'a Delivery,
    pub slots: &'a Slots,
    pub registry: &'a Registry,
    pub escape: &'a Escape,
    pub recycling: &'a Recycling,
    pub fragment_slabs: u32,
    pub srq_needed: u32,
}

/// A [`Look`] at a receiver, of which other fields are changed meanwhile.
macro_rules! look_at {
    ($receiver:expr) => {
        crate::receiver::view::Look {
            fragment_slabs: $receiver.admission.fragment_slabs(),
            srq_needed: $receiver.srq_needed(),
            delivery: &$receiver.delivery,
            slots: &$receiver.slots,
            registry: &$receiver.registry,
            escape: &$receiver.escape,
            recycling: &$receiver.recycling,
        }
    };
}

impl View for Look<'_> {
    #[inline]
    fn session(&self, session: u32) -> Claim {
        let escaped = self.escape.escaped(session);
        Claim {
            oldest_incomplete: self.delivery.oldest_incomplete(session),
            slots_left: self.delivery.slots_left(session, self.slots),
            promised_slots: self.delivery.promised_slots(session),
            has_room_for_fragment: self.delivery.has_room_for_fragment(
                session,
                self.fragment_slabs,
                self.slots,
            ),
            has_backlog: self.delivery.backlog(session) > 0,
            takes_memory: self.registry.takes_memory(session),
            holds_its_memory: self.escape.holds_its_memory(session),
            held_in_cache: self.escape.held_in_cache(session),
            escaped_slabs: escaped.memory() + escaped.replaced,
            is_slow: self.escape.is_slow(session),
            bytes_per_ms: self.recycling.bytes_per_ms(session),
            post_nic_ns: self.recycling.post_nic_ns(session),
        }
    }

    #[inline]
    fn pressure(&self) -> Pressure {
        self.escape.pressure()
    }

    #[inline]
    fn srq_needed(&self) -> u32 {
        self.srq_needed
    }
}
