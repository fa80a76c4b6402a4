//! Measures the rate of one stream of messages of one size through Jet, which `bench/peers` compares with
//! other systems.
//!
//! A sender, the daemon and an application are three processes, on the processors that this program was
//! given. A message counts when its sender has learned that the application has read it and given it back.
//!
//! Neither a network nor an RNIC's DMA takes part.

use crate::e2e::Load;
use crate::report::{Bound, Row};
use crate::rig::Rig;
use jet_wire::SLAB_BYTES;
use std::error::Error;

/// The stream's shape.
#[derive(clap::Args)]
pub struct Args {
    /// Fabric between sender and daemon: shm or tcp
    #[arg(long, value_parser = ["shm", "tcp"], default_value = "shm")]
    fabric: String,
    /// Bytes of a message; up to 4096 they are copied and sent at once, more are READ by the receiver
    #[arg(long, default_value_t = 256 << 10, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    bytes: u32,
    /// Messages that the sender has under way at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Messages of one sample; before the first sample an eighth as many are sent and not counted
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(8..))]
    messages: u32,
    /// The application gives messages back without reading their bytes
    #[arg(long)]
    unread: bool,
    /// Messages carry a CRC32C; who checks it is the daemon's read.checksums
    #[arg(long)]
    crc: bool,
    /// Set a key of the daemon's configuration, as in --set nic.thread=on; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

/// Runs the stream, and returns bytes a second and messages a second.
///
/// # Errors
/// An error of the rig or the system.
pub fn run(samples: u32, shape: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let bytes = shape.bytes as usize;
    let small = bytes <= SLAB_BYTES;
    let rig = Rig::start(&shape.fabric, !shape.unread, &shape.set)?;
    // Small and large messages have a limit each; only one of the two kinds is sent.
    let mut load = if small {
        Load::shaped(&rig, SLAB_BYTES, 1, shape.depth, shape.crc)?
    } else {
        Load::shaped(&rig, bytes, shape.depth as usize, shape.depth, shape.crc)?
    };
    let mut messages_per_s = |messages: u32| -> Result<f64, Box<dyn Error>> {
        if small {
            load.small(u64::from(messages), bytes)
        } else {
            Ok(load.large(messages as usize * bytes)? * 1e9 / f64::from(shape.bytes))
        }
    };
    messages_per_s(shape.messages / 8)?;
    let rates = (0..samples).map(|_| messages_per_s(shape.messages)).collect::<Result<Vec<f64>, _>>()?;
    let gb_per_s = rates.iter().map(|rate| rate * f64::from(shape.bytes) / 1e9).collect();
    let what = format!(
        "{}: {} B messages, {} at once{}{}",
        shape.fabric,
        bytes,
        shape.depth,
        if shape.unread { "" } else { ", read" },
        if shape.crc { ", with checksums" } else { "" }
    );
    Ok(vec![
        Row::new("stream", &what, "GB/s", gb_per_s, Bound::None),
        Row::new("stream", &what, "1/s", rates, Bound::None),
    ])
}
