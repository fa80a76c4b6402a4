//! Indices into the receiver's tables.

/// The absence of an index: the end of a list, or a peer or session that is gone.
pub(crate) const NONE: u32 = u32::MAX;
