//! Tests of the sending end: its rules, its driver over a NIC in memory, and a sender as programs use it.

mod cancel;
mod congestion;
mod driver;
mod driver_life;
mod memory;
mod protocol;
mod receiver_timeout;
mod resting;
mod retries;
mod scripted_nic;
mod send_buffers;
mod sender;
mod versions;
mod waits;
