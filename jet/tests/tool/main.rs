//! The command-line tool from end to end: daemon, receivers and senders as processes of their own, in a
//! directory of each test's own (`host.rs`).
//!
//! The tests share one process and may run side by side. What would touch another one (limits, the current
//! directory, signals) is changed in processes that they start, never in this one.

mod advice;
mod fsync;
mod full_disk;
mod gibibyte;
mod giving_up;
mod host;
mod kills;
mod logs;
mod lost_parts;
mod notices;
mod parts;
mod places;
mod refusals;
mod round_trip;
mod slow;
mod sources;
mod storm;
mod syncs;
