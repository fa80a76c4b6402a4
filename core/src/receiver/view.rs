//! Admission's view of the other mechanisms.

use crate::admission::View;
use crate::credit::Credit;
use crate::delivery::Delivery;
use crate::escape::Escape;
use crate::registry::Registry;
use crate::releases::Releases;
use crate::slots::Slots;
use jet_escape::Pressure;

/// The mechanisms that answer admission's questions about sessions and the pool.
pub(super) struct Mechanisms<'a> {
    pub delivery: &'a Delivery,
    pub slots: &'a Slots,
    pub registry: &'a Registry,
    pub escape: &'a Escape,
    pub releases: &'a Releases,
    pub credit: &'a Credit,
    pub fragment_slabs: u32,
    pub srq_needed: u32,
}

/// Builds a [`Mechanisms`] from fields of a receiver. It borrows these fields alone, so that others can be
/// changed meanwhile.
macro_rules! mechanisms_of {
    ($receiver:expr) => {
        crate::receiver::view::Mechanisms {
            fragment_slabs: $receiver.admission.fragment_slabs(),
            srq_needed: $receiver.srq_needed(),
            delivery: &$receiver.delivery,
            slots: &$receiver.slots,
            registry: &$receiver.registry,
            escape: &$receiver.escape,
            releases: &$receiver.releases,
            credit: &$receiver.credit,
        }
    };
}

impl View for Mechanisms<'_> {
    #[inline]
    fn oldest_incomplete(&self, session: u32) -> Option<u32> {
        self.delivery.oldest_incomplete(session)
    }

    #[inline]
    fn slots_left(&self, session: u32) -> u32 {
        self.delivery.slots_left(session, self.slots)
    }

    #[inline]
    fn has_slots_for_fragment(&self, session: u32) -> bool {
        self.delivery.has_slots_for_fragment(session, self.fragment_slabs, self.slots)
    }

    #[inline]
    fn has_number(&self, session: u32) -> bool {
        self.delivery.numbers_left(session) > 0
    }

    #[inline]
    fn has_backlog(&self, session: u32) -> bool {
        self.delivery.backlog(session) > 0
    }

    #[inline]
    fn takes_memory(&self, session: u32) -> bool {
        self.registry.takes_memory(session)
    }

    #[inline]
    fn holds_its_memory(&self, session: u32) -> bool {
        self.escape.holds_its_memory(session)
    }

    #[inline]
    fn held_in_cache(&self, session: u32) -> u32 {
        self.escape.held_in_cache(session)
    }

    #[inline]
    fn holds_anything(&self, session: u32) -> bool {
        self.awaits_reads(session) || self.escape.held_slabs(session) > 0
    }

    #[inline]
    fn awaits_reads(&self, session: u32) -> bool {
        self.delivery.promised_slots(session) > 0
    }

    fn refuses_credit_to(&self, session: u32, is_chosen: impl Fn(u32) -> bool) -> bool {
        let is_of_session = |peer: u32| self.registry.session_of(peer) == Some(session);
        self.credit.refused().iter().any(|&peer| is_of_session(peer) && is_chosen(peer))
    }

    fn gives_nothing_back_ns(&self, session: u32) -> u64 {
        self.releases.idle_ns(session)
    }

    #[inline]
    fn has_given_back(&self, session: u32) -> bool {
        self.releases.has_given_back(session)
    }

    #[inline]
    fn is_slow(&self, session: u32) -> bool {
        self.escape.is_slow(session)
    }

    #[inline]
    fn bytes_per_ms(&self, session: u32) -> u64 {
        self.releases.bytes_per_ms(session)
    }

    #[inline]
    fn post_nic_ns(&self, session: u32) -> u64 {
        self.releases.post_nic_ns(session)
    }

    fn open_sessions(&self) -> u32 {
        self.registry.open_count()
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
