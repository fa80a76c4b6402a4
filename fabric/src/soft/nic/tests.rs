//! Tests of a NIC that keeps to a device's limits: profiles that it refuses, and limits that it reports.

use super::SoftNic;
use crate::limits::{DeviceAttributes, LimitError, Profile};
use crate::memory::SharedMemory;
use crate::nic::{
    Access, Completion, ConnectError, Event, Nic, Payload, PostError, PrivateData, Qp, ReadRequest,
    SendRequest, Sge, SrqEntry, Status, Work,
};
use crate::soft::SoftOptions;
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn of(profile: Profile, srq_entries_max: u32) -> io::Result<SoftNic> {
    SoftNic::new(SoftOptions { profile: Some(profile), srq_entries_max, ..SoftOptions::default() })
}

fn refusal(profile: Profile, srq_entries_max: u32) -> String {
    let error = of(profile, srq_entries_max).err().expect("it has less than that");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let inner = error.get_ref().expect("the reason is inside");
    assert!(inner.is::<LimitError>(), "{inner:?}");
    error.to_string()
}

#[test]
fn a_device_that_has_too_little_is_refused_by_what_it_lacks() {
    let words = refusal(Profile::SMALLEST, 4096);
    assert!(words.contains("max_srq_wr") && words.contains("64") && words.contains("4096"), "{words}");
    for without_srq in [Profile::E810, Profile::IONIC] {
        let words = refusal(without_srq, 64);
        assert!(words.contains("max_srq"), "{words}");
    }
    let one_place = DeviceAttributes { max_srq_sge: 1, ..*Profile::SMALLEST.attributes() };
    let words = refusal(Profile::new("one-place", one_place), 64);
    assert!(words.contains("max_srq_sge"), "{words}");
    let no_reads = DeviceAttributes { max_qp_init_rd_atom: 0, ..*Profile::SMALLEST.attributes() };
    let words = refusal(Profile::new("no-reads", no_reads), 64);
    assert!(words.contains("max_qp_init_rd_atom"), "{words}");
    for wrong in [i32::MIN, -1, 0] {
        let senseless = DeviceAttributes { max_cqe: wrong, ..*Profile::SMALLEST.attributes() };
        let words = refusal(Profile::new("senseless", senseless), 64);
        assert!(words.contains("max_cqe"), "{words}");
    }
}

#[test]
fn a_nic_has_no_more_than_its_profile() {
    for profile in [Profile::SMALLEST, Profile::CONNECTX_6, Profile::RXE] {
        let has = *profile.attributes();
        let mut nic = of(profile, 64).unwrap();
        let limits = nic.limits();
        let at_most = |reported: u32, has: i32| reported >= 1 && i64::from(reported) <= i64::from(has);
        assert!(at_most(limits.qps_max, has.max_qp), "{limits:?}");
        assert!(at_most(limits.scatter_max, has.max_sge_rd.min(has.max_sge)), "{limits:?}");
        assert!(at_most(limits.reads_per_qp_max, has.max_qp_init_rd_atom), "{limits:?}");
        assert!(at_most(limits.sends_per_qp_max, has.max_qp_wr), "{limits:?}");
        assert!(at_most(limits.srq_entries_max, has.max_srq_wr), "{limits:?}");

        let memory = Arc::new(SharedMemory::new("jet-test", 1 << 20, false).unwrap());
        let key = nic.register(&memory, Access::LocalWrite).unwrap();
        let bytes = u32::try_from(HEADER_BYTES).unwrap();
        let header = |id: u32| Sge { key, offset: u64::from(id * bytes), bytes };
        for id in 0..limits.srq_entries_max {
            nic.post_srq(SrqEntry { id, header: header(id), payload: None }).unwrap();
        }
        let one_more = SrqEntry { id: 9999, header: header(0), payload: None };
        assert_eq!(nic.post_srq(one_more), Err(PostError::QueueFull));
    }
}

#[test]
fn a_nic_has_no_more_connections_than_its_profile_has_qps() {
    let few = DeviceAttributes { max_qp: 3, ..*Profile::SMALLEST.attributes() };
    let mut nic = of(Profile::new("few", few), 64).unwrap();
    let max = nic.limits().qps_max;
    assert!((1..=3).contains(&max));
    let address = nic.listen(&"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
    let nothing = PrivateData::new(b"").unwrap();
    for _ in 0..max {
        nic.connect(&address, &nothing).unwrap();
    }
    let error = nic.connect(&address, &nothing).unwrap_err();
    assert!(matches!(error, ConnectError::TooMany { max: 3 }), "{error:?}");
}

/// Connects two NICs of a profile over `shm:`. Returns the reading NIC, the NIC that is read, and the
/// reader's QP.
fn connected(profile: Profile) -> (SoftNic, SoftNic, Qp, tempfile::TempDir) {
    let (mut reader, mut read) = (of(profile, 64).unwrap(), of(profile, 64).unwrap());
    let place = tempfile::tempdir().unwrap();
    let address = format!("shm:{}", place.path().join("nic").display()).parse().unwrap();
    let address = reader.listen(&address).unwrap();
    let nothing = PrivateData::new(b"").unwrap();
    read.connect(&address, &nothing).unwrap();
    let give_up = Instant::now() + Duration::from_secs(60);
    let (mut ours, mut stands) = (None, false);
    loop {
        assert!(Instant::now() < give_up, "never connected");
        match reader.poll_event(0) {
            Some(Event::ConnectRequest { qp, .. }) => reader.accept(qp, &nothing).unwrap(),
            Some(Event::Connected { qp, .. }) => ours = Some(qp),
            other => assert!(other.is_none(), "{other:?}"),
        }
        stands |= matches!(read.poll_event(0), Some(Event::Connected { .. }));
        if let Some(qp) = ours.filter(|_| stands) {
            return (reader, read, qp, place);
        }
    }
}

/// A READ completes even if the peer's user never polls, since its memory can be read all the same.
#[test]
fn a_read_waits_for_no_send_that_the_peers_user_does_not_look_at() {
    for profile in [Profile::SMALLEST, Profile::CONNECTX_6] {
        let (mut reader, mut read, qp, _place) = connected(profile);
        let memory = |bytes| Arc::new(SharedMemory::new("jet-test", bytes, false).unwrap());
        let remote = read.register(&memory(4096), Access::RemoteRead).unwrap();
        let address = read.remote_address(remote, 0);
        let key = reader.register(&memory(4096), Access::LocalWrite).unwrap();
        // The reader's poll took the peer's registration; the peer itself does not poll any more.
        read.flush();
        let send = SendRequest { id: 1, header: &HeaderBytes::ZERO, payload: Payload::None };
        reader.post_send(qp, send).unwrap();
        let scatter = [Sge { key, offset: 0, bytes: 4096 }];
        reader.post_read(qp, ReadRequest { id: 2, address, key: remote.0, scatter: &scatter }).unwrap();
        reader.post_send(qp, SendRequest { id: 3, ..send }).unwrap();
        let give_up = Instant::now() + Duration::from_secs(60);
        let mut done = [Completion { qp, work: Work::Send { id: 0 }, status: Status::Success }; 4];
        while reader.poll(0, &mut done) == 0 {
            assert!(Instant::now() < give_up, "{}: the READ waits", profile.name());
        }
        assert_eq!((done[0].work, done[0].status), (Work::Read { id: 2 }, Status::Success));
    }
}
