//! Indices into the tables.

/// No index: the end of a list, a peer or session that is gone.
pub(crate) const NONE: u32 = u32::MAX;
