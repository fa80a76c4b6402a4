//! Bugs that are planted on purpose, so that the simulator can show that it finds them. They are compiled
//! only with `--cfg jet_planted`, which no build that ships has: [`planted!`](crate::planted!) is `false`
//! there.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Planted {
    /// A slab of a large message is given back twice.
    SlabFreedTwice = 1,
    /// READs that were flushed stay in the count of those in flight.
    WindowKeptOnFlush,
    /// A message is acknowledged before its application gave its last slice back.
    EarlyAcknowledgement,
    /// A copy is put in the place of a run that its application reads.
    PinIgnored,
    /// A message that waits has no end when its session ends.
    RequestLost,
    /// Less urgent classes never age.
    AgingSkipped,
    /// A sender's window never grows again.
    CongestionKept,
    /// Credit is lost on its way to the sender.
    CreditLeaked,
    /// A READ beyond what the peer takes at once ends the connection.
    DepthIsDeath,
    /// A sender that was refused credit is never asked again.
    BarredForEver,
    /// A sender of which nothing was measured waits for others' READs.
    UnmeasuredWaits,
    /// Any class that a request names is taken.
    AnyClass,
    /// Any answer to a recall of credit is taken, also where nothing was recalled.
    AnyCreditReturn,
    /// The length that a small message's header states is believed, whatever arrived.
    StatedPayload,
    /// Senders get credit for more SENDs than the receive queue has entries for.
    CreditUnbounded,
    /// Now and then a small message ends as if its application were not there.
    AppForgotten,
    /// A sender moves to another consumer of its name while the first one has messages of it.
    MovesAtOnce,
    /// A message that its application has whole is taken back.
    CancelledWhenWhole,
}

impl Planted {
    /// All bugs.
    pub const ALL: [Self; 18] = [
        Self::SlabFreedTwice,
        Self::WindowKeptOnFlush,
        Self::EarlyAcknowledgement,
        Self::PinIgnored,
        Self::RequestLost,
        Self::AgingSkipped,
        Self::CongestionKept,
        Self::CreditLeaked,
        Self::DepthIsDeath,
        Self::BarredForEver,
        Self::UnmeasuredWaits,
        Self::AnyClass,
        Self::AnyCreditReturn,
        Self::StatedPayload,
        Self::CreditUnbounded,
        Self::AppForgotten,
        Self::MovesAtOnce,
        Self::CancelledWhenWhole,
    ];
}

/// Number of the bug that is planted in this process; 0: none.
#[cfg(jet_planted)]
static NOW: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Plants a bug in this process, instead of the one that was planted; `None`: none.
#[cfg(jet_planted)]
pub fn plant(bug: Option<Planted>) {
    NOW.store(bug.map_or(0, |bug| bug as u32), core::sync::atomic::Ordering::SeqCst);
}

/// Returns whether a bug is planted.
#[cfg(jet_planted)]
pub fn is_planted(bug: Planted) -> bool {
    NOW.load(core::sync::atomic::Ordering::Relaxed) == bug as u32
}

/// Whether a bug is planted; see [`mod@crate::planted`]. The crate that asks must be built with the same
/// `--cfg`.
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(jet_planted)]
        let is_planted = $crate::planted::is_planted($crate::planted::Planted::$bug);
        #[cfg(not(jet_planted))]
        let is_planted = false;
        is_planted
    }};
}
