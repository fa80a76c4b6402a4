//! Tests of the command-line tool from end to end. Daemon, receivers and senders are processes of their own,
//! in a directory of each test's own (`host.rs`).
//!
//! The tests share one process and may run side by side. Anything that would affect another test (limits, the
//! current directory, signals) is changed in processes that the tests start, never in this one.

mod advice;
mod fsync;
mod full_disk;
mod gibibyte;
mod giving_up;
mod host;
mod keys;
mod kills;
mod logs;
mod lost_parts;
mod notices;
mod panics;
mod parts;
mod places;
mod receiver_slow_on_purpose;
mod refusals;
mod regions;
mod round_trip;
mod sources;
mod storm;
mod syncs;
