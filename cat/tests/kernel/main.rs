//! Tests against the kernel's own resctrl, in guests that have it (deploy/vm/check, stages `cache-...`). They
//! change the cache of the machine that they run on, so all of them are ignored elsewhere.
//!
//! The module `everywhere` holds in each guest whose last-level cache can be allocated. The module `special`
//! has what is special to some guests.

mod adjusted;
mod children;
mod crashes;
mod everywhere;
mod forgotten;
mod mounted;
mod repair;
mod special;
