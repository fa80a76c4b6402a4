//! Limits of READs and bytes in flight, and what of them peers have that are not prompt.

use super::Standing;
use crate::config::Config;

/// Eighths of READs and bytes in flight that all slow peers together may have, and all new peers.
const KIND_EIGHTHS: u32 = 5;
/// Eighths that all peers together may have that are slow or new.
const UNPROVEN_EIGHTHS: u32 = 6;

/// READs and bytes of all peers that are in flight, or are being checked.
#[derive(Clone, Copy, Debug)]
pub(in crate::admission) struct InFlight {
    pub reads: u32,
    pub bytes: u64,
}

impl InFlight {
    pub(super) const NOTHING: Self = Self { reads: 0, bytes: 0 };

    /// Returns whether another READ of `bytes` bytes is more than `most`. The first one is not.
    #[inline]
    fn is_full(self, bytes: u64, most: Self) -> bool {
        self.reads > 0 && (self.reads >= most.reads || self.bytes + bytes > most.bytes)
    }
}

/// Limits of READs and bytes in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Whether peers have shares at all.
    pub(super) shared: bool,
    pub(super) fragment_bytes: u64,
    /// Nanoseconds after which a peer has waited too long.
    pub(super) aging_ns: u64,
    pub(super) reads: u32,
    pub(super) bytes: u64,
    /// The most of one peer.
    pub(super) peer_reads: u32,
    pub(super) peer_bytes: u64,
    /// The most of all slow peers together, and of all new ones.
    kind: InFlight,
    /// The most of all peers together that are slow or new.
    unproven: InFlight,
    /// What each of the two kinds may have whatever the other has.
    own: InFlight,
    /// What is kept for those that deliver most: half of what those with something in flight leave to the
    /// others. Nothing where the other half would be no fragment.
    kept: InFlight,
    /// What of it is not for peers that were chosen because they have waited long.
    kept_from_chosen: InFlight,
}

impl Limits {
    pub(super) fn new(config: &Config) -> Self {
        let fragment_bytes = u64::from(config.fragment_bytes);
        let reads_of = |part: u32, of: u32| (config.reads_max * part / of).max(1);
        let bytes_of = |part: u32, of: u32| {
            (config.in_flight_bytes * u64::from(part) / u64::from(of)).max(fragment_bytes)
        };
        let eighths = |part: u32| InFlight { reads: reads_of(part, 8), bytes: bytes_of(part, 8) };
        let own = eighths(UNPROVEN_EIGHTHS - KIND_EIGHTHS);
        let kept = if config.reads_max >= 16 && config.in_flight_bytes / 16 >= fragment_bytes {
            InFlight { reads: config.reads_max / 16, bytes: config.in_flight_bytes / 16 }
        } else {
            InFlight::NOTHING
        };
        Self {
            shared: config.peer_share_percent < 100,
            fragment_bytes,
            aging_ns: config.aging_ns,
            reads: config.reads_max,
            bytes: config.in_flight_bytes,
            peer_reads: reads_of(config.peer_share_percent, 100),
            peer_bytes: bytes_of(config.peer_share_percent, 100),
            kind: eighths(KIND_EIGHTHS),
            unproven: eighths(UNPROVEN_EIGHTHS),
            own,
            kept,
            kept_from_chosen: InFlight {
                reads: kept.reads.div_ceil(2),
                bytes: (kept.bytes / 2).max(fragment_bytes),
            },
        }
    }

    /// Returns whether another READ of `bytes` bytes would take what is kept for those that deliver most.
    #[inline]
    pub(super) fn are_nearly_full(&self, all: InFlight, bytes: u64) -> bool {
        self.kept.reads > 0 && !self.leave(self.kept, all, bytes)
    }

    /// Returns whether another READ of `bytes` bytes would take what only those may have that deliver most.
    pub(super) fn are_full_but_for_the_best(&self, all: InFlight, bytes: u64) -> bool {
        !self.leave(self.kept_from_chosen, all, bytes)
    }

    /// Returns whether another READ of `bytes` bytes would leave so much.
    #[inline]
    fn leave(&self, kept: InFlight, all: InFlight, bytes: u64) -> bool {
        all.reads + kept.reads < self.reads && all.bytes + bytes + kept.bytes <= self.bytes
    }
}

/// What peers that are not prompt have in flight, by kind.
#[derive(Clone, Copy, Debug)]
pub(in crate::admission) struct Unproven {
    pub(super) slow: InFlight,
    pub(super) new: InFlight,
}

impl Unproven {
    pub(super) const NOTHING: Self = Self { slow: InFlight::NOTHING, new: InFlight::NOTHING };

    #[inline]
    fn of(&mut self, kind: Standing) -> Option<&mut InFlight> {
        match kind {
            Standing::New | Standing::Silent => Some(&mut self.new),
            Standing::Slow => Some(&mut self.slow),
            Standing::Prompt => None,
        }
    }

    #[inline]
    pub(super) fn all(&self) -> InFlight {
        InFlight { reads: self.slow.reads + self.new.reads, bytes: self.slow.bytes + self.new.bytes }
    }

    /// Returns whether another READ of a peer of the kind has to wait for one of its kind. Some are its own,
    /// whatever the other kind has: a prompt peer that freezes with all its READs is slow then, with more
    /// than slow peers may have.
    #[inline]
    pub(super) fn is_full(&mut self, kind: Standing, bytes: u64, limits: &Limits) -> bool {
        let all = self.all();
        self.of(kind).is_some_and(|of_kind| {
            of_kind.is_full(bytes, limits.kind)
                || (all.is_full(bytes, limits.unproven) && of_kind.is_full(bytes, limits.own))
        })
    }

    #[inline]
    pub(super) fn add(&mut self, kind: Standing, reads: u32, bytes: u64) {
        if let Some(of_kind) = self.of(kind) {
            of_kind.reads += reads;
            of_kind.bytes += bytes;
        }
    }

    #[inline]
    pub(super) fn subtract(&mut self, kind: Standing, reads: u32, bytes: u64) {
        if let Some(of_kind) = self.of(kind) {
            of_kind.reads -= reads;
            of_kind.bytes -= bytes;
        }
    }
}
