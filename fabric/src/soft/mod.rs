//! The software RNIC.
