//! Tests of senders over `shm:` whose memory has holes: reading holes must not cost the daemon memory.

use crate::raw_peer::{REQUEST, RawPeer};
use crate::rig::{Rig, nic_threads};
use jet_client::receive::{Message, RegisterOptions, Session};
use jet_client::send::AckStatus;
use jet_fabric::memory::SharedMemory;
use jet_test_support::waiting::until;
use jet_wire::message::{RequestFields, RequestHeader};
use rustix::fs::fstat;
use std::fs;
use std::path::PathBuf;

const REGION_BYTES: usize = 1 << 30;
const MESSAGE_BYTES: usize = 128 << 20;
const PAGE_BYTES: usize = 4096;
/// Distance of the pages that have data. All between them are holes.
const DATA_EVERY: usize = 32 << 20;
/// Offset of the first page that has data.
const DATA_FROM: usize = 7 * PAGE_BYTES;

/// Returns the byte of which the page at this offset consists: 0 where it is a hole.
fn content(page: usize) -> u8 {
    if page % DATA_EVERY == DATA_FROM { u8::try_from(page / DATA_EVERY + 1).expect("few") } else { 0 }
}

/// Makes a region of holes, with a page of data here and there.
fn sparse() -> SharedMemory {
    let memory = SharedMemory::lazy("jet-holes", REGION_BYTES).expect("address space");
    memory.seal_future_writes().expect("a kernel that knows the seal");
    for page in (DATA_FROM..REGION_BYTES).step_by(DATA_EVERY) {
        // SAFETY: within the memory, which nobody else uses yet.
        unsafe { memory.base().add(page).write_bytes(content(page), PAGE_BYTES) };
    }
    memory
}

/// Returns the bytes of a file that are allocated, by what the kernel says.
fn allocated_bytes(memory: &SharedMemory) -> u64 {
    u64::try_from(fstat(memory).expect("a file").st_blocks).expect("not negative") * 512
}

/// Returns the bytes of the region that a process has in its page tables, by what the kernel says.
fn resident_bytes(process: u32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{process}/smaps")).expect("it runs");
    // A mapping's lines begin with one that ends with the file's name.
    let of_region = maps.lines().skip_while(|line| !line.contains("/memfd:jet-holes"));
    let line =
        of_region.skip(1).find_map(|line| line.strip_prefix("Rss:")).expect("the daemon maps the region");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Whether all bytes of a message are those of the region from `start` on.
fn is_right(message: &mut Message<'_>, start: usize) -> bool {
    let (mut right, mut bytes) = (true, 0);
    while let Some(run) = message.next().expect("nothing withdraws it") {
        for slice in run.into_slabs() {
            let offset = start + usize::try_from(slice.offset()).expect("within the region");
            assert!(offset.is_multiple_of(PAGE_BYTES), "slabs are whole pages");
            for (page, found) in (offset..).step_by(PAGE_BYTES).zip(slice.chunks(PAGE_BYTES)) {
                right &= found.iter().all(|byte| *byte == content(page));
                bytes += found.len();
            }
        }
    }
    right && bytes == MESSAGE_BYTES
}

/// Takes messages whose tags say where in the region they begin. Returns whether each had the right bytes.
fn take(control: PathBuf, count: usize) -> Vec<bool> {
    let options = RegisterOptions::new("store").control_socket(control);
    let session = until("a daemon", || Session::register(&options).ok());
    (0..count)
        .map(|_| {
            let mut message = session.receive().expect("a daemon");
            let start = usize::try_from(message.tag()).expect("within the region");
            let right = is_right(&mut message, start);
            message.consume();
            right
        })
        .collect()
}

#[test]
fn holes_that_a_sender_offers_are_read_as_zeros_and_cost_the_daemon_no_memory() {
    for setting in nic_threads() {
        let mut rig = Rig::start_on_software(&[setting]);
        let (daemon, address) = (rig.daemon().id(), rig.addresses().remove(0));
        let starts: Vec<_> = (0..REGION_BYTES).step_by(MESSAGE_BYTES).collect();
        let (control, count) = (rig.control(), starts.len());
        let application = std::thread::spawn(move || take(control, count));
        rig.wait_status("an application", |status| status.rows.sessions.len() == 1);
        let mut peer = RawPeer::connect_with(&address, "store", sparse());
        let allocated = allocated_bytes(&peer.memory);
        for (sequence, start) in (1..).zip(starts) {
            let request = RequestFields {
                sequence,
                tag: start as u64,
                length: MESSAGE_BYTES as u64,
                address: peer.address() + start as u64,
                key: peer.key.0,
                ..REQUEST
            };
            peer.send(&RequestHeader::encode(&request), &[]);
            assert_eq!(peer.wait_end(sequence), AckStatus::Consumed, "{setting}");
        }
        assert_eq!(application.join().expect("it takes all"), vec![true; count], "{setting}");
        assert_eq!(allocated_bytes(&peer.memory), allocated, "{setting}: a hole was filled");
        let resident = resident_bytes(daemon);
        assert!(resident <= allocated, "{setting}: {resident} bytes, of which {allocated} have data");
    }
}
