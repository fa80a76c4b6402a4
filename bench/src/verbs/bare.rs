//! Measures two connected verbs NICs, without receiver and application: allocations and system calls for each
//! message, and latency.

use super::end::{self, AREA_BYTES, End, SLAB};
use crate::allocations;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, Nic, Payload, ReadRequest, Sge};
use jet_fabric::verbs::{DeviceChoice, VerbsOptions};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Number of SENDs posted to the NIC at once.
pub const BURST: usize = 16;
/// Number of READs posted to the NIC at once.
pub const READ_BURST: u64 = 4;
const READ_BYTES: u32 = 256 << 10;
const _: () = assert!(READ_BYTES <= AREA_BYTES);

fn one_end(ip: IpAddr) -> Result<End, Box<dyn Error>> {
    End::new(VerbsOptions {
        qps_max: 4,
        srq_entries_max: end::ENTRIES,
        reads_max: 32,
        sends_max: 256,
        inline_places: 1,
        ..VerbsOptions::on(DeviceChoice::Reaching(ip))
    })
}

/// Opens two NICs at the address `ip` and connects the second to the first.
fn two_ends(ip: IpAddr) -> Result<[End; 2], Box<dyn Error>> {
    let mut ends = [one_end(ip)?, one_end(ip)?];
    end::connect(ip, &mut ends, 1)?;
    Ok(ends)
}

/// Polls until `count` SENDs have arrived. There is no time limit, as `ib_send_lat` has none.
fn until_received(end: &mut End, count: u64) -> Result<(), Box<dyn Error>> {
    while end.received < count {
        end.step()?;
    }
    Ok(())
}

fn send_short(end: &mut End, id: u64) -> Result<(), Box<dyn Error>> {
    end.send(end.qps[0], id, Payload::Inline(&[7; 64]))?;
    end.nic.flush();
    Ok(())
}

/// Counts of the SENDs and READs that went from one NIC to the other, and of the allocations and polls that
/// they took.
pub struct Carried {
    pub sends: u64,
    pub reads: u64,
    pub send_allocations: u64,
    pub read_allocations: u64,
    /// Number of polls for completions of both NICs together while the SENDs ran.
    pub send_polls: u64,
    /// Number of polls for completions of both NICs together while the READs ran.
    pub read_polls: u64,
}

/// Returns half of a round trip, in microseconds: the median of `trips` round trips with 64 bytes each way.
/// Two threads have one NIC each, as `ib_send_lat` has two processes. Each message also carries a header.
///
/// # Errors
/// An error of the NICs.
pub fn half_round_trip(ip: IpAddr, trips: usize) -> Result<f64, Box<dyn Error>> {
    let [mut echo, mut asker] = two_ends(ip)?;
    let echoing = std::thread::spawn(move || -> Result<End, String> {
        for trip in 0..trips as u64 {
            until_received(&mut echo, trip + 1).map_err(|error| error.to_string())?;
            send_short(&mut echo, trip).map_err(|error| error.to_string())?;
        }
        while echo.sent < trips as u64 {
            echo.step().map_err(|error| error.to_string())?;
        }
        // The end is not dropped here: the asker would see the disconnect before this thread is over, and
        // take it for an error.
        Ok(echo)
    });
    let mut spans = Vec::with_capacity(trips);
    for trip in 0..trips as u64 {
        let start = Instant::now();
        send_short(&mut asker, trip)?;
        until_received(&mut asker, trip + 1)?;
        spans.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    while !echoing.is_finished() {
        asker.step()?;
    }
    let _echo = echoing.join().map_err(|_| "the echoing end panicked")??;
    Ok(crate::report::median(&spans))
}

/// Posts `sends` SENDs, [`BURST`] at a time, and `reads` READs, [`READ_BURST`] at a time, from one NIC to the
/// other. Calls `mark` twice before the SENDs, so that the cost of marking is known, once before the READs,
/// and once at the end.
///
/// # Errors
/// An error of the NICs.
pub fn carry(ip: IpAddr, sends: u64, reads: u64, mut mark: impl FnMut()) -> Result<Carried, Box<dyn Error>> {
    let mut ends = two_ends(ip)?;
    let source = Arc::new(SharedMemory::new("bench-source", READ_BYTES as usize, false)?);
    let source_key = ends[1].nic.register(&source, Access::RemoteRead)?;
    let payload = Payload::Registered(Sge { key: source_key, offset: 0, bytes: SLAB });
    let send = |ends: &mut [End; 2], until: u64| -> Result<(), Box<dyn Error>> {
        let qp = ends[1].qps[0];
        while ends[1].sent < until {
            for id in 0..BURST as u64 {
                ends[1].send(qp, id, payload)?;
            }
            ends[1].nic.flush();
            let target = ends[1].sent + BURST as u64;
            while ends[1].sent < target || ends[0].received < target {
                ends.iter_mut().try_for_each(End::step)?;
            }
        }
        Ok(())
    };
    let read = |ends: &mut [End; 2], until: u64| -> Result<(), Box<dyn Error>> {
        let qp = ends[0].qps[0];
        let from = ends[1].nic.remote_address(source_key, 0);
        let scatter = [Sge { key: ends[0].slabs, offset: 0, bytes: READ_BYTES }];
        while ends[0].read < until {
            for id in 0..READ_BURST {
                let request = ReadRequest { id, address: from, key: source_key.0, scatter: &scatter };
                ends[0].nic.post_read(qp, request)?;
            }
            ends[0].nic.flush();
            let target = ends[0].read + READ_BURST;
            while ends[0].read < target {
                ends.iter_mut().try_for_each(End::step)?;
            }
        }
        Ok(())
    };
    // Everything is used once before the counting begins.
    send(&mut ends, BURST as u64)?;
    read(&mut ends, READ_BURST)?;
    mark();
    mark();
    let polls = |ends: &[End; 2]| ends.iter().map(|end| end.polls).sum::<u64>();
    let polls_before = polls(&ends);
    let before = allocations::count();
    send(&mut ends, BURST as u64 + sends)?;
    let between = allocations::count();
    let polls_between = polls(&ends);
    mark();
    let between_after = allocations::count();
    read(&mut ends, READ_BURST + reads)?;
    let after = allocations::count();
    mark();
    Ok(Carried {
        sends,
        reads,
        send_allocations: between - before,
        read_allocations: after - between_after,
        send_polls: polls_between - polls_before,
        read_polls: polls(&ends) - polls_between,
    })
}
