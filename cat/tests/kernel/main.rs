//! Against the kernel's own resctrl, in guests that have it (deploy/vm/check, stages `cache-...`): everything
//! here changes the cache of the machine that it runs on, so all of it is ignored elsewhere.
//!
//! Modules are for guests: `everywhere` holds in each that shares out its last-level cache, the others name
//! what is special.

mod adjusted;
mod children;
mod crashes;
mod everywhere;
mod forgotten;
mod mounted;
mod special;
mod undone;
