//! What a device can do, and what a NIC on it does therefore.
//!
//! [`DeviceAttributes`] are a device's own words, as `ibv_query_device` has them: a NIC on verbs asks its
//! device, a software NIC takes them from a [`Profile`]. [`NicLimits::derive`] makes of them, and of what a
//! NIC's user wants, what the NIC keeps to, or says in words why the two do not go together. It is a pure
//! function: what it answers for a device that nobody here has is tested on recorded attributes.
//!
//! Here is no device and no NIC.

mod attributes;
mod derivation;
mod profile;
#[cfg(test)]
mod recorded;
mod shape;
mod wants;

pub use attributes::DeviceAttributes;
pub use derivation::{LimitError, NicLimits, Remedy};
pub use profile::{Profile, ProfileError};
pub use shape::Shape;
pub use wants::{CompletionQueues, Wants};
