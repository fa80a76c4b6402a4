//! Tests of in-place messages as an application declares them.

mod golden;
mod hostile;
mod messages;
mod round;
mod versions;
