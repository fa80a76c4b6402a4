//! Whether a region of memory is in the cache: told by how long it takes to touch it, without any privilege
//! or counter.
//!
//! The [`Warmer`] touches the lines of a [`Region`] in random order at a low rate and times each touch. That
//! keeps the region warm, and the share of touches that came from the cache is the metric `resident` (Jet
//! §5). A [`Calibration`] measured on the spot says from how many ticks on a touch came from memory, and how
//! often that is wrong. [`WarmerThread`] runs a warmer in a thread of its own, at a cost that [`Pace`] keeps
//! within a budget.
//!
//! # What counts as resident
//! A touch is judged by its time as the warmer's own core sees it: a hit in that core's private caches or in
//! the last-level cache. A line that lies only in the private cache of *another* core takes nearly as long as
//! memory where the last-level cache is not inclusive (Intel since Skylake-SP), and is judged to be memory.
//! So the reading is a lower bound: it misses what other cores' private caches hold of the region at the
//! time, 2 MiB each on that Intel. Of a pool of 12 MiB that is a sixth for each core at work; 1 MiB that
//! another core alone works on reads as nothing. To see with that core's eyes run the warmer there:
//! [`WarmerOptions::cpu`].
//!
//! A touch brings the line in, but each line is touched once a cycle only, and a cycle takes lines / rate
//! seconds: the warmer sees its own earlier touch of a line one cycle later on average, if nobody has driven
//! the line out by then.
//!
//! # What spoils a touch, and what is done about it
//! - A TLB miss: another line of the same 4 KiB page, the anchor, is read first, untimed, and waited for.
//! - Prefetchers: the anchor is at least 16 lines away from what is timed, and on either side of it, so that
//!   it is no part of its pair of 128 bytes (the adjacent-line prefetcher), nor a step of a stream towards
//!   it. Anchors are read 32 times as often as others, so they and their pair (4 lines of 64) are touched in
//!   their turn but never judged. The order is random and changes with each cycle, so that there is no stride
//!   to learn.
//! - Cold code: the first touches after a sleep are made on a line of the warmer's own and not judged.
//! - Interrupts: a touch with one in it is judged to be memory. It is rare, and the calibration's error rates
//!   have it.

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
