//! Limits that devices report, and limits that a NIC on such a device keeps to.
//!
//! [`DeviceAttributes`] are the limits that a device reports, as `ibv_query_device` returns them. A NIC on
//! verbs asks its device; a software NIC takes them from a [`Profile`]. [`NicLimits::derive`] combines them
//! with what the NIC's user wants. It returns the limits that the NIC keeps to, or an error in words where
//! the two do not fit. It is a pure function, so recorded attributes test it for devices that are not at
//! hand.
//!
//! This module opens no device and makes no NIC.

mod attributes;
mod derivation;
mod profile;
#[cfg(test)]
mod recorded;
mod requirements;
mod shape;

pub use attributes::DeviceAttributes;
pub use derivation::{LimitError, NicLimits, Remedy};
pub use profile::{Profile, ProfileError};
pub use requirements::{CompletionQueues, Requirements};
pub use shape::Shape;
