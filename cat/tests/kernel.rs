//! Against the kernel's own resctrl, in guests that have it (deploy/vm/check, stages `cache-...`): everything here changes
//! the cache of the machine that it runs on, so all of it is ignored elsewhere.
//!
//! Modules are for guests: `everywhere` holds in each that shares out its last-level cache, the others name what is special.

#[path = "kernel/adjusted.rs"]
mod adjusted;
#[path = "kernel/children.rs"]
mod children;
#[path = "kernel/crashes.rs"]
mod crashes;
#[path = "kernel/everywhere.rs"]
mod everywhere;
#[path = "kernel/forgotten.rs"]
mod forgotten;
#[path = "kernel/mounted.rs"]
mod mounted;
#[path = "kernel/special.rs"]
mod special;
#[path = "kernel/undone.rs"]
mod undone;
