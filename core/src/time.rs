//! The time of a turn.

/// The time of a turn, by two clocks. `stall_free_ns` is the clock that stands still while nobody calls the
/// receiver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TurnTime {
    pub now_ns: u64,
    pub stall_free_ns: u64,
}
