//! Tests of a device that sends from one stretch only: header and payload are sent from a place where both
//! are.

use super::*;
use crate::limits::Profile;
use crate::nic::PostError;

#[test]
fn a_registered_payload_leaves_as_it_was_at_the_post() {
    let options =
        SoftOptions { profile: Some(Profile::SMALLEST), srq_entries_max: 64, ..SoftOptions::default() };
    let (mut server, mut client, _, at_client) = pair(options);
    let from = client.slab(3);
    for entry in 0..8 {
        server.post_srq(entry);
    }
    // Sizes up to a slab, and an empty payload.
    let sizes = [1, 2, 63, 64, 65, 4095, 4096, 0];
    for (id, bytes) in (0u64..).zip(sizes) {
        client.fill(from, |at| (u64::from(at) + id).to_le_bytes()[0]);
        let payload = Payload::Registered(Sge { bytes, ..from });
        client.nic.post_send(at_client, SendRequest { id, header: &HeaderBytes::ZERO, payload }).unwrap();
    }
    client.fill(from, |_| 0xEE);
    client.nic.deregister(client.pool);
    until(&mut [&mut server, &mut client], "arrived", |ends| ends[0].completions.len() == sizes.len());
    for (entry, bytes) in (0u32..).zip(sizes) {
        let work = Work::Receive { entry, payload_bytes: bytes };
        assert!(server.completions.iter().any(|done| done.work == work && done.status == Status::Success));
        let expected: Vec<u8> = (0..bytes).map(|at| (at + entry).to_le_bytes()[0]).collect();
        assert_eq!(server.bytes(Sge { bytes, ..server.slab(entry) }), expected, "{bytes} bytes");
    }
    assert!(client.completions.iter().all(|done| done.status == Status::Success));
}

#[test]
fn what_is_not_registered_is_refused_at_the_post() {
    let options =
        SoftOptions { profile: Some(Profile::SMALLEST), srq_entries_max: 64, ..SoftOptions::default() };
    let (_server, mut client, _, at_client) = pair(options);
    let beyond = Sge { offset: client.memory.bytes() as u64 - 10, bytes: 11, ..client.slab(0) };
    let request = SendRequest { id: 1, header: &HeaderBytes::ZERO, payload: Payload::Registered(beyond) };
    assert_eq!(client.nic.post_send(at_client, request), Err(PostError::LocalProtection));
}
