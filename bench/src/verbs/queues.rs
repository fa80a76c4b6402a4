//! Measures the queues of connections: their memory, how much of the completion queues' memory cycles through
//! the cache, and whether all completions fit that can come at once.
//!
//! The memory that an RNIC or the kernel keeps for a connection is not measured.

use super::end::{self, End, SLAB};
use jet::daemon::{Config, verbs_options};
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, Nic, Payload, ReadRequest, Sge};
use jet_fabric::verbs::{DeviceChoice, QueueUse, VerbsOptions};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Bytes of one completion in soft-RoCE's queues: 72, rounded up to a power of two (rxe_queue.c).
pub const RXE_BYTES: f64 = 128.0;
/// Bytes of one completion in mlx5's queues, as mlx5's user-space library makes them (`get_cqe_size`).
pub const MLX5_BYTES: f64 = 64.0;
/// Number of rounds that go first and are not counted; [`ROUNDS`] counted ones follow.
const ROUNDS_BEFORE: u64 = 8;
const ROUNDS: u64 = 32;
/// Beginning of the names, in a process's mappings, of the device files whose mappings are RDMA queues.
const DEVICE_FILES: &str = "/dev/infiniband/uverbs";

/// Figures of a daemon's completion queues.
pub struct Cycled {
    /// Number of completion queues that received completions.
    pub queues: usize,
    /// Sum of the places, one for each completion, in the rings of these queues.
    pub ring: f64,
    /// Free places in the fullest of all completion queues when everything completes at once that can.
    pub places_left: f64,
}

/// Connects `connected` peers to a NIC of a daemon's sizes and measures its completion queues. `active` of
/// the peers send and are read from; the active peers are spread evenly over all peers.
///
/// # Errors
/// An error of the NICs.
pub fn cycled(ip: IpAddr, connected: usize, active: usize) -> Result<Cycled, Box<dyn Error>> {
    let listen = SocketAddr::new(ip, 0).to_string();
    let daemon = End::new(verbs_options(&Config::default(), &listen)?)?;
    let peers = End::new(VerbsOptions {
        qps_max: u32::try_from(connected)?,
        srq_entries_max: end::ENTRIES,
        ..VerbsOptions::on(DeviceChoice::Reaching(ip))
    })?;
    let mut ends = [daemon, peers];
    end::connect(ip, &mut ends, connected)?;
    let source = Arc::new(SharedMemory::new("bench-source", SLAB as usize, false)?);
    let key = ends[1].nic.register(&source, Access::RemoteRead)?;
    let address = ends[1].nic.remote_address(key, 0);
    let scatter = [Sge { key: ends[0].slabs, offset: 0, bytes: SLAB }];
    let round = |ends: &mut [End; 2]| -> Result<(), Box<dyn Error>> {
        let wanted = |end: &End| end.received + active as u64;
        let (at_daemon, at_peers, read) = (wanted(&ends[0]), wanted(&ends[1]), ends[0].read + active as u64);
        for at in (0..active).map(|one| one * connected / active) {
            let qp = ends[1].qps[at];
            ends[1].send(qp, 0, Payload::None)?;
            let qp = ends[0].qps[at];
            ends[0].send(qp, 0, Payload::None)?;
            ends[0].nic.post_read(qp, ReadRequest { id: 0, address, key: key.0, scatter: &scatter })?;
        }
        while ends[0].received < at_daemon || ends[1].received < at_peers || ends[0].read < read {
            ends.iter_mut().try_for_each(End::step)?;
        }
        Ok(())
    };
    (0..ROUNDS_BEFORE).try_for_each(|_| round(&mut ends))?;
    let before: Vec<QueueUse> = ends[0].nic.completion_queues().collect();
    (0..ROUNDS).try_for_each(|_| round(&mut ends))?;
    let after: Vec<QueueUse> = ends[0].nic.completion_queues().collect();
    let in_use: Vec<&QueueUse> = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| after.taken > before.taken)
        .map(|(_, of)| of)
        .collect();
    // A ring has one place more than it can hold completions.
    let ring = in_use.iter().map(|of| f64::from(of.places) + 1.0).sum();
    let left = |of: &QueueUse| f64::from(of.places) - f64::from(of.completions_max);
    let places_left = after.iter().map(left).fold(f64::INFINITY, f64::min);
    Ok(Cycled { queues: in_use.len(), ring, places_left })
}

/// Returns how many KiB of RDMA devices' files a process has mapped. These mappings are the queues, where the
/// provider lets the kernel allocate queues (soft-RoCE).
///
/// # Errors
/// There is no such process, or the kernel writes its mappings in another form.
pub fn mapped_kib(pid: u32) -> std::io::Result<f64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    mapped(&maps).ok_or_else(|| std::io::Error::other(format!("/proc/{pid}/maps has lines of another form")))
}

fn mapped(maps: &str) -> Option<f64> {
    let mut pages = 0;
    for line in maps.lines().filter(|line| line.contains(DEVICE_FILES)) {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        pages += u32::try_from((address(to)?.checked_sub(address(from)?)?) / 4096).ok()?;
    }
    Some(f64::from(pages) * 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_of_devices_is_counted_and_nothing_else() {
        let maps = "55f000-560000 r-xp 00000000 fe:00 12 /usr/bin/jetd\n\
                    7f0000000000-7f0000005000 rw-s 10000 00:06 88 /dev/infiniband/uverbs0\n\
                    7f0000005000-7f0000008000 rw-s 20000 00:06 88 /dev/infiniband/uverbs0\n\
                    7f0000010000-7f0000020000 rw-p 00000 00:00 0\n";
        assert_eq!(mapped(maps), Some(20.0 + 12.0));
        assert_eq!(mapped(""), Some(0.0));
        assert_eq!(mapped("no addresses /dev/infiniband/uverbs0"), None);
    }
}
