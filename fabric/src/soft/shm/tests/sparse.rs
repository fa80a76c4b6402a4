//! Tests of regions with holes: reading them allocates nothing, whatever their owner does meanwhile. What the
//! kernel has allocated of a file is known exactly (`st_blocks`).

use super::super::link::REMOTE_OPERATION;
use super::super::regions::PIECES_MAX;
use super::*;
use crate::nic::RegionError;
use crate::soft::tcp::tests::lost_memory::lose;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create,
};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;
/// Pages that one READ of these tests takes: the whole pool of [`Host`].
const READ_PAGES: usize = 64;
const READ_BYTES: usize = READ_PAGES * PAGE;
const KEY: u32 = 7;

/// Makes a sparse file with these seals.
fn sparse(bytes: usize, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("jet-sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn allocated_bytes(file: &OwnedFd) -> i64 {
    fstat(file).unwrap().st_blocks * 512
}

/// Peer that the test plays itself, with one region.
struct Peer {
    place: Place,
    socket: OwnedFd,
    _link: Link,
    qp: Qp,
    ids: u64,
}

impl Peer {
    fn new() -> Self {
        let mut place = Place::new(SoftOptions::default());
        let (socket, link, qp) = place.raw_peer();
        Self { place, socket, _link: link, qp, ids: 0 }
    }

    fn with(file: &OwnedFd) -> Self {
        let mut peer = Self::new();
        peer.register(KEY, file);
        peer
    }

    fn register(&mut self, key: u32, file: &OwnedFd) {
        let (before, _) = self.place.host.nic.tables.region_places.taken();
        assert!(send_control(&self.socket, Control::Register(key), Some(file.as_fd())).unwrap());
        until("registered", || {
            self.place.host.turn();
            self.place.host.nic.tables.region_places.taken().0 == before + 1
        });
    }

    /// Reads so many bytes of a region into the pool.
    fn read(&mut self, key: u32, address: usize, bytes: usize) -> Status {
        let host = &mut self.place.host;
        self.ids += 1;
        let id = self.ids;
        let slabs = u32::try_from(bytes.div_ceil(PAGE)).unwrap();
        let scatter: Vec<Sge> = (0..slabs)
            .map(|slab| Sge {
                bytes: u32::try_from((bytes - slab as usize * PAGE).min(PAGE)).unwrap(),
                ..host.slab(slab)
            })
            .collect();
        let request = ReadRequest { id, address: address as u64, key, scatter: &scatter };
        host.nic.post_read(self.qp, request).unwrap();
        host.completions.clear();
        until("read", || {
            host.turn();
            !host.completions.is_empty()
        });
        assert_eq!(host.completions[0].work, Work::Read { id });
        host.completions[0].status
    }

    fn found(&self, bytes: usize) -> Vec<u8> {
        read_memory(&self.place.host.pool, 0, bytes)
    }

    /// Returns how many regions of the peer are read by calls.
    fn open_files(&self) -> u32 {
        self.place.host.nic.tables.region_places.taken().1
    }
}

const SHUT: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const SEALED: SealFlags = SHUT.union(SealFlags::FUTURE_WRITE);

#[test]
fn holes_are_read_as_zeros_and_stay_holes() {
    const BYTES: usize = 1 << 30;
    for seals in [SEALED, SHUT, SealFlags::SHRINK] {
        let file = memfd_create("jet-sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        // Every 64 MiB a page of data, at different places of the READs.
        let data: Vec<usize> = (0..BYTES).step_by(64 << 20).map(|at| at + at / (1 << 20) * PAGE).collect();
        for at in &data {
            assert_eq!(rustix::io::pwrite(&file, &[0xda; PAGE], *at as u64).unwrap(), PAGE);
        }
        fcntl_add_seals(&file, seals).unwrap();
        let allocated = allocated_bytes(&file);
        let mut peer = Peer::with(&file);
        for start in (0..BYTES).step_by(READ_BYTES) {
            write_memory(&peer.place.host.pool, 0, &[0x55; READ_BYTES]);
            assert_eq!(peer.read(KEY, start, READ_BYTES), Status::Success);
            let mut expected = vec![0; READ_BYTES];
            for at in data.iter().filter(|at| (start..start + READ_BYTES).contains(at)) {
                expected[at - start..][..PAGE].fill(0xda);
            }
            assert!(peer.found(READ_BYTES) == expected, "{seals:?}, from {start} on");
        }
        assert_eq!(allocated_bytes(&file), allocated, "{seals:?}: a hole was filled");
        assert_eq!(peer.open_files(), 1, "{seals:?}");
    }
}

#[test]
fn a_small_region_of_holes_stays_one_however_often_it_is_read() {
    let file = sparse(READ_BYTES, SEALED);
    let mut peer = Peer::with(&file);
    for _ in 0..100 {
        assert_eq!(peer.read(KEY, 0, READ_BYTES), Status::Success);
        assert_eq!(allocated_bytes(&file), 0);
    }
    assert_eq!(peer.open_files(), 1);
}

#[test]
fn sends_from_holes_are_zeros_and_fill_none() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let memory = Arc::new(SharedMemory::lazy("jet-test", 64 * PAGE).unwrap());
    write_memory(&memory, 3 * PAGE, &[9; PAGE]);
    memory.seal_future_writes().unwrap();
    let allocated = fstat(&*memory).unwrap().st_blocks;
    let key = client.nic.register(&memory, Access::RemoteRead).unwrap();
    let (ours, _) = place.connect(&mut client);
    write_memory(&place.host.pool, 0, &[0x55; 64 * PAGE]);
    for id in 0..64u32 {
        place.host.post_entries(id..id + 1);
        let payload = Sge { key, offset: u64::from(id) * PAGE as u64, bytes: 4096 };
        client.send(ours, u64::from(id), Payload::Registered(payload)).unwrap();
        until("arrived", || {
            client.turn();
            place.host.turn();
            client.completions.len() == id as usize + 1
        });
        let expected = if id == 3 { 9 } else { 0 };
        assert_eq!(place.host.bytes_in_slab(id, PAGE), [expected; PAGE], "page {id}");
    }
    assert_eq!(fstat(&*memory).unwrap().st_blocks, allocated, "a hole was filled");
}

#[test]
fn holes_that_are_punched_while_they_are_read_cost_nothing() {
    // The region is not sealed against writing, so that its owner may punch.
    let file = sparse(READ_BYTES, SHUT);
    let over = AtomicBool::new(false);
    let mut peer = Peer::with(&file);
    std::thread::scope(|scope| {
        let puncher = scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(1);
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            while !over.load(Ordering::Relaxed) {
                let page = random.u64(..READ_PAGES as u64);
                let pages = random.u64(1..=READ_PAGES as u64 - page);
                let (at, bytes) = (page * PAGE as u64, pages * PAGE as u64);
                if random.bool() {
                    fallocate(&file, punch, at, bytes).unwrap();
                } else {
                    let data = vec![0xda; usize::try_from(bytes).unwrap()];
                    assert_eq!(rustix::io::pwrite(&file, &data, at).unwrap(), data.len());
                }
            }
            fallocate(&file, punch, 0, READ_BYTES as u64).unwrap();
        });
        for round in 0..2000 {
            assert_eq!(peer.read(KEY, 0, READ_BYTES), Status::Success);
            for (page, found) in peer.found(READ_BYTES).chunks(PAGE).enumerate() {
                // A page is punched or written as a whole, but not while the kernel copies it out.
                assert!(found.iter().all(|byte| matches!(byte, 0 | 0xda)), "page {page} in round {round}");
            }
        }
        over.store(true, Ordering::Relaxed);
        puncher.join().unwrap();
    });
    assert_eq!(allocated_bytes(&file), 0);
    assert_eq!(peer.read(KEY, 0, READ_BYTES), Status::Success);
    assert_eq!((peer.found(READ_BYTES), allocated_bytes(&file)), (vec![0; READ_BYTES], 0));
}

#[test]
fn a_region_without_holes_is_read_by_no_call_once_it_was_read_as_a_whole() {
    let memory = SharedMemory::new("jet-test", 2 * READ_BYTES, false).unwrap();
    let content: Vec<u8> = (0..memory.bytes()).map(|at| u8::try_from(at * 7 % 253).unwrap()).collect();
    write_memory(&memory, 0, &content);
    memory.seal_future_writes().unwrap();
    let mut peer = Peer::with(&memory.as_fd().try_clone_to_owned().unwrap());
    // Unaligned, so that each turn fills parts of slabs.
    for (address, open) in [(0, 1), (READ_BYTES - 1000, 0), (1000, 0), (2 * READ_BYTES - 70_001, 0)] {
        let bytes = (2 * READ_BYTES - address).min(READ_BYTES - 3);
        assert_eq!(peer.read(KEY, address, bytes), Status::Success);
        assert!(peer.found(bytes) == content[address..address + bytes], "from {address} on");
        assert_eq!(peer.open_files(), open, "after the READ from {address} on");
    }
    // What the owner writes later is seen.
    write_memory(&memory, 5, &[0xee]);
    assert_eq!(peer.read(KEY, 0, 64), Status::Success);
    assert_eq!(peer.found(6)[5], 0xee);
    assert!(send_control(&peer.socket, Control::Deregister(KEY), None).unwrap());
    until("deregistered", || {
        peer.place.host.turn();
        peer.place.host.nic.tables.region_places.taken() == (0, 0)
    });
}

#[test]
fn pages_beside_holes_are_read_again_and_again_and_no_hole_is_filled() {
    let memory = SharedMemory::lazy("jet-test", READ_BYTES).unwrap();
    memory.seal_future_writes().unwrap();
    let file = memory.as_fd().try_clone_to_owned().unwrap();
    let mut expected = vec![0; READ_BYTES];
    let mut peer = Peer::with(&file);
    // Each round fills every third page of those that were holes.
    for round in 0..8u8 {
        let holes: Vec<usize> = (0..READ_PAGES).filter(|page| expected[page * PAGE] == 0).collect();
        for page in holes.iter().step_by(3) {
            expected[page * PAGE..][..PAGE].fill(round + 1);
            write_memory(&memory, page * PAGE, &[round + 1; PAGE]);
        }
        let allocated = allocated_bytes(&file);
        for (address, bytes) in
            [(0, READ_BYTES), (PAGE - 1, READ_BYTES / 2), (5 * PAGE, PAGE), (0, READ_BYTES)]
        {
            assert_eq!(peer.read(KEY, address, bytes), Status::Success);
            assert!(peer.found(bytes) == expected[address..address + bytes], "round {round}");
        }
        assert_eq!(allocated_bytes(&file), allocated, "round {round}: a hole was filled");
    }
    assert_eq!(peer.open_files(), 1);
}

#[test]
fn a_region_that_can_be_truncated_or_is_no_memory_file_is_refused_by_name() {
    let loose = sparse(PAGE, SealFlags::GROW);
    let on_disk = tempfile::tempfile().unwrap();
    on_disk.set_len(PAGE as u64).unwrap();
    for file in [loose, OwnedFd::from(on_disk)] {
        let mut place = Place::new(SoftOptions::default());
        let (socket, link, qp) = place.raw_peer();
        assert!(send_control(&socket, Control::Register(1), Some(file.as_fd())).unwrap());
        until("ended", || {
            place.host.turn();
            place.host.ended(qp) == Some(DisconnectReason::Protocol)
        });
        let told = link.peer_fault().and_then(|(fault, _)| fault.region_error());
        assert_eq!(told, Some(RegionError::NotSealed));
        assert!(told.unwrap().to_string().contains("F_SEAL_SHRINK"));
    }
}

#[test]
fn a_sender_hears_what_is_wrong_with_its_region() {
    let mut place = Place::new(SoftOptions { peer_regions_max: 1, ..SoftOptions::default() });
    let mut client = Host::new(SoftOptions::default());
    let (ours, theirs) = place.connect(&mut client);
    for _ in 0..2 {
        let memory = Arc::new(SharedMemory::new("jet-test", PAGE, false).unwrap());
        client.nic.register(&memory, Access::RemoteRead).unwrap();
    }
    until("both ended", || {
        client.turn();
        place.host.turn();
        place.host.ended(theirs) == Some(DisconnectReason::Protocol)
            && client.ended(ours) == Some(DisconnectReason::Region(RegionError::TooMany))
    });
}

#[test]
fn a_region_that_cannot_be_read_ends_its_connection() {
    // A file that was opened for writing alone.
    let writable = sparse(PAGE, SHUT);
    let link = format!("/proc/self/fd/{}", writable.as_raw_fd());
    let writes_only = OwnedFd::from(std::fs::OpenOptions::new().write(true).open(link).unwrap());
    let mut peer = Peer::with(&writes_only);
    assert_eq!(peer.read(KEY, 0, PAGE), Status::Other(REMOTE_OPERATION));
    let qp = peer.qp;
    until("ended", || {
        peer.place.host.turn();
        peer.place.host.ended(qp) == Some(DisconnectReason::Protocol)
    });
    until("closed", || peer.open_files() == 0);
}

#[test]
fn regions_take_only_their_part_of_the_descriptors() {
    let mut peer = Peer::new();
    peer.place.host.nic.tables.region_places.set_files_max(2);
    let file = sparse(PAGE, SEALED);
    peer.register(1, &file);
    peer.register(2, &sparse(PAGE, SHUT));
    assert!(send_control(&peer.socket, Control::Register(3), Some(file.as_fd())).unwrap());
    let qp = peer.qp;
    until("ended", || {
        peer.place.host.turn();
        peer.place.host.ended(qp) == Some(DisconnectReason::Transport(libc::ENOMEM))
    });
    until("closed", || peer.open_files() == 0);
}

/// Checks a READ whose scatter list has more pieces than one call fills.
#[test]
fn a_turn_of_many_pieces_takes_several_calls() {
    let pieces = 3 * PIECES_MAX;
    let file = sparse(PAGE, SHUT);
    let content: Vec<u8> = (0..pieces).map(|at| u8::try_from(at + 1).unwrap()).collect();
    rustix::io::pwrite(&file, &content, 0).unwrap();
    let mut peer = Peer::with(&file);
    let host = &mut peer.place.host;
    // Single bytes, each in a slab of its own, from the last slab to the first.
    let scatter: Vec<Sge> =
        (0..u32::try_from(pieces).unwrap()).rev().map(|slab| Sge { bytes: 1, ..host.slab(slab) }).collect();
    host.nic.post_read(peer.qp, ReadRequest { id: 1, address: 0, key: KEY, scatter: &scatter }).unwrap();
    until("read", || {
        host.turn();
        host.statuses() == [(Work::Read { id: 1 }, Status::Success)]
    });
    let found: Vec<u8> =
        (0..u32::try_from(pieces).unwrap()).rev().map(|slab| host.bytes_in_slab(slab, 1)[0]).collect();
    assert_eq!(found, content);
}

#[test]
fn a_read_of_pages_without_proof_into_lost_memory_costs_no_connection() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let memory = Arc::new(SharedMemory::new("jet-test", 4 * 4096, false).unwrap());
    write_memory(&memory, 0, &[7; 4 * 4096]);
    let key = client.nic.register(&memory, Access::RemoteRead).unwrap();
    let (_, theirs) = place.connect(&mut client);
    let host = &mut place.host;
    // SAFETY: within the pool.
    let is_lost = lose(unsafe { host.pool.base().add(2 * 4096) });
    let scatter = [host.slab(0), host.slab(1), host.slab(2), host.slab(3)];
    host.nic.post_read(theirs, ReadRequest { id: 1, address: 0, key: key.0, scatter: &scatter }).unwrap();
    until("read", || {
        host.turn();
        !host.completions.is_empty()
    });
    assert_eq!((host.statuses(), is_lost()), (vec![(Work::Read { id: 1 }, Status::Success)], false));
    assert_eq!(host.ended(theirs), None);
    assert!((0..4).all(|slab| host.bytes_in_slab(slab, 4096) == [7; 4096]));
}
