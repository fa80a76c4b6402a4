//! Measurement of how much of a memory region lies in the cache. It times memory accesses, and needs neither
//! privileges nor hardware counters.
//!
//! The [`Warmer`] touches the lines of a [`Region`] in random order at a low rate, and times each touch. That
//! keeps the region in the cache, and the share of touches that the cache served is the metric `resident`
//! (Jet §5). A [`Calibration`], measured on the spot, gives the number of ticks from which on a touch counts
//! as served by memory, and how often that judgement is wrong. [`WarmerThread`] runs a warmer in a thread of
//! its own, at a cost that [`Pace`] keeps within a budget.
//!
//! # What counts as resident
//! A touch is judged by its duration on the warmer's own core. It counts as resident if that core's private
//! caches or the last-level cache served it. Where the last-level cache is not inclusive (Intel since
//! Skylake-SP), a line that lies only in the private cache of *another* core takes nearly as long as memory,
//! and is judged to be in memory.
//!
//! So the reading is a lower bound: it misses what other cores' private caches hold of the region at the
//! time, 2 MiB each on Intel since Sapphire Rapids. Of a pool of 12 MiB that is a sixth for each busy core. A
//! region of 1 MiB that only another core works on reads as not resident at all. To measure from that core's
//! view, run the warmer there: [`WarmerOptions::cpu`].
//!
//! A touch brings the line into the cache. But each line is touched only once a cycle, and a cycle takes
//! lines / rate seconds. So the warmer meets its own earlier touch of a line one cycle later on average, if
//! nobody has driven the line out by then.
//!
//! # What disturbs a touch, and the remedies
//! - A TLB miss: another line of the same 4 KiB page, the anchor, is read first, untimed, and waited for.
//! - Prefetchers: the anchor is at least 16 lines away from the timed line, on either side of it. So it is
//!   not in the same pair of 128 bytes (the adjacent-line prefetcher), nor a step of a stream towards the
//!   timed line. Anchors are read 32 times as often as other lines, so anchors and the other line of their
//!   pair (4 lines of 64) are touched in their turn but never judged. The order is random and changes with
//!   each cycle, so there is no stride to learn.
//! - Cold code: the first touches after a sleep go to a line of the warmer's own, and are not judged.
//! - Interrupts: a touch that is interrupted is judged to be in memory. That is rare, and the calibration's
//!   error rates include it.

mod cache_sizes;
mod calibration;
mod estimate;
mod order;
mod pace;
mod readings;
mod region;
mod thread;
mod touch;
mod warmer;

pub use cache_sizes::CacheSizes;
pub use calibration::{Calibration, CalibrationError, CalibrationOptions, Spread};
pub use estimate::{ErrorRates, Judged, Resident, Window};
pub use order::Order;
pub use pace::{BatchCost, Pace, PaceError, PaceOptions, Step};
pub use readings::Readings;
pub use region::{LINE_BYTES, PAGE_BYTES, Region, RegionError};
pub use thread::{StartError, WarmerThread};
pub use warmer::{Warmer, WarmerError, WarmerOptions};
