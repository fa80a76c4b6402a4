//! Checking and measuring of what applications give back.
//!
//! Every value comes from a program that is not trusted. How much comes back, and how long it was held, tells
//! what a session's messages will need.

use crate::effects::ReleaseError;
use crate::histogram::Histogram;
use crate::messages::{AppState, Messages};
use crate::slots::{ReleasedSlices, Slots};
use alloc::boxed::Box;
use alloc::vec;
use core::cell::Cell;
use jet_wire::SLAB_BYTES;
use jet_wire::segment::{Release, release_kind};

/// The meaning of an entry in the release ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Whether slices are given back; if not, the entry names a message.
    pub slices: bool,
    /// Whether the message is finished.
    pub finishes: bool,
    /// Whether the message has a reply.
    pub replies: bool,
}

/// Measurements of one session.
#[derive(Clone, Debug, Default)]
struct SessionRates {
    released_since_tick_bytes: u64,
    /// Nanoseconds of ticks in which nothing came back, since something did.
    idle_ns: u64,
    bytes_per_ms: u64,
    post_nic_ns: u64,
    post_nic: Histogram,
    /// Quantiles of the post-NIC time, with the number of spans they were computed from. They are kept until
    /// the histogram changes, for they are read often and take a pass through the histogram.
    quantiles: Cell<(u64, [u64; 4])>,
}

/// Measurements of the slabs that every session gives back.
#[derive(Debug)]
pub(crate) struct Releases {
    sessions: Box<[SessionRates]>,
}

impl Releases {
    /// Creates measurements for `sessions` sessions.
    pub fn new(sessions: u32) -> Self {
        Self { sessions: vec![SessionRates::default(); sessions as usize].into_boxed_slice() }
    }

    /// Decodes a release entry.
    ///
    /// # Errors
    /// [`ReleaseError::Kind`]: there is no such kind of entry.
    #[inline]
    pub fn read(release: &Release) -> Result<Entry, ReleaseError> {
        let (slices, finishes, replies) = match release.kind {
            _ if release.reserved != 0 => return Err(ReleaseError::Kind { found: release.kind }),
            release_kind::SLICES => (true, false, false),
            release_kind::SLICES_AND_FINISH => (true, true, false),
            release_kind::FINISH => (false, true, false),
            release_kind::REPLY => (false, true, true),
            found => return Err(ReleaseError::Kind { found }),
        };
        Ok(Entry { slices, finishes, replies })
    }

    /// Takes slices back from a session. Also returns whether their message may come to its end now.
    ///
    /// # Errors
    /// [`ReleaseError`] if the session does not hold the slices.
    #[inline(always)] // on every message's way
    pub fn take_back(
        session: u32,
        release: &Release,
        slots: &mut Slots,
        messages: &mut Messages,
    ) -> Result<(ReleasedSlices, bool), ReleaseError> {
        let released = slots.release(session, release)?;
        let record = &mut messages[released.message];
        record.held -= released.run.count;
        // While slices are held, whatever could be decided was decided, when the message was finished or its
        // last READ ended. The rest waits for the last slice.
        let settles = record.held == 0 && (record.app_state.is_finished() || record.state.has_failed());
        Ok((released, settles))
    }

    /// Finishes a message for its application. Returns whether part of the message has not arrived yet, which
    /// is not wanted any more.
    ///
    /// # Errors
    /// [`ReleaseError`] if the message was finished before, or cannot be consumed yet.
    #[inline]
    pub fn finish(message: u32, code: u32, messages: &mut Messages) -> Result<bool, ReleaseError> {
        let record = &mut messages[message];
        let AppState::Open { number } = record.app_state else {
            return Err(ReleaseError::Message { message: record.app_state.number() });
        };
        let comes = record.arrived < record.length;
        if code == 0 && comes && !record.state.has_failed() {
            return Err(ReleaseError::Early { message: u32::from(number) });
        }
        record.app_state = AppState::Finished { number, code };
        Ok(comes)
    }

    /// Notes that all of a run came back `span_ns` after its delivery. Returns the run's bytes.
    #[inline]
    pub fn note(&mut self, session: u32, slabs: u32, span_ns: u64) -> u64 {
        let rates = &mut self.sessions[session as usize];
        let bytes = u64::from(slabs) * SLAB_BYTES as u64;
        rates.released_since_tick_bytes += bytes;
        rates.post_nic.add(span_ns);
        rates.post_nic_ns =
            if rates.post_nic_ns == 0 { span_ns.max(1) } else { (rates.post_nic_ns * 15 + span_ns) / 16 };
        bytes
    }

    /// Updates the throughput with the bytes that the session gave back since the last tick, as an average
    /// with weight 1/8.
    pub fn tick(&mut self, session: u32, span_ns: u64) {
        let rates = &mut self.sessions[session as usize];
        let bytes = core::mem::take(&mut rates.released_since_tick_bytes);
        rates.idle_ns = if bytes > 0 { 0 } else { rates.idle_ns.saturating_add(span_ns) };
        let now = bytes.saturating_mul(1_000_000) / span_ns.max(1);
        rates.bytes_per_ms = if rates.bytes_per_ms == 0 { now } else { (rates.bytes_per_ms * 7 + now) / 8 };
    }

    /// Returns whether the session has given anything back.
    pub fn has_given_back(&self, session: u32) -> bool {
        self.sessions[session as usize].post_nic.spans() > 0
    }

    /// Returns for how many nanoseconds nothing has come back.
    pub fn idle_ns(&self, session: u32) -> u64 {
        self.sessions[session as usize].idle_ns
    }

    /// Returns the measured throughput in bytes per millisecond.
    pub fn bytes_per_ms(&self, session: u32) -> u64 {
        self.sessions[session as usize].bytes_per_ms
    }

    /// Returns the mean of the measured post-NIC time in nanoseconds.
    pub fn post_nic_ns(&self, session: u32) -> u64 {
        self.sessions[session as usize].post_nic_ns
    }

    /// Returns the median, 99 % and 99.9 % of the post-NIC time, and the longest, in nanoseconds.
    pub fn post_nic_quantiles_ns(&self, session: u32) -> [u64; 4] {
        let SessionRates { post_nic, quantiles, .. } = &self.sessions[session as usize];
        if quantiles.get().0 != post_nic.spans() {
            let [median_ns, p99_ns, p999_ns] = post_nic.quantiles_ns([500, 990, 999]);
            quantiles.set((post_nic.spans(), [median_ns, p99_ns, p999_ns, post_nic.max_ns()]));
        }
        quantiles.get().1
    }

    /// Makes the session's number ready for another application.
    pub fn reset(&mut self, session: u32) {
        self.sessions[session as usize] = SessionRates::default();
    }
}
