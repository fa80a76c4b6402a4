//! Tests of the sending end: its rules, its driver over a NIC in memory, and a sender as programs use it.

mod congestion;
mod driver;
mod driver_life;
mod protocol;
mod receiver_timeout;
mod resting;
mod scripted_nic;
mod sender;
mod versions;
