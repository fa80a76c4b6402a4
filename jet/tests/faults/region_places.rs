//! Tests of processes that register as many regions over `shm:` as they can. They keep out no other process.

use crate::children::Role;
use crate::raw_peer::RawPeer;
use crate::rig::Rig;
use jet_client::receive::{RegisterOptions, Session};
use jet_client::send::{AckStatus, Sender};
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{DisconnectReason, RegionError};
use jet_test_support::waiting::until;

/// Descriptors of the daemon. Half of them are for files of regions, and three quarters of those for one
/// process.
const DESCRIPTORS: u64 = 160;
const SHARE: usize = 60;
/// Regions of one connection.
const REGIONS: usize = 20;

/// Makes a region that stays open at the daemon, which reads nothing of it.
fn region() -> SharedMemory {
    let memory = SharedMemory::lazy("jet-region", 4096).expect("address space");
    memory.seal_future_writes().expect("a kernel that knows the seal");
    memory
}

#[test]
fn a_process_that_has_its_share_of_regions_hears_so_and_keeps_out_no_other() {
    let rig = Rig::start_with_descriptors(DESCRIPTORS, &[]);
    let address = rig.addresses().remove(0);
    let application = rig.application(Role::Consumer, "store");
    let mut peers = Vec::new();
    let told = until("the share to be taken", || {
        match RawPeer::try_connect_with(&address, "store", region()) {
            Ok(mut peer) => {
                (1..REGIONS).for_each(|_| peer.register(region()));
                peers.push(peer);
            }
            Err(told) => return Some(told),
        }
        peers.iter_mut().find_map(|peer| {
            peer.turn();
            peer.ended()
        })
    });
    assert_eq!(told, DisconnectReason::Region(RegionError::Share));
    assert!(peers.len() >= SHARE / REGIONS, "{} connections", peers.len());
    let sender = rig.child(Role::Sender, Some(&address), "store");
    sender.wait_reported("connected", 1);
    application.wait_reported("finished", 10);
    assert!(peers.iter().filter(|peer| peer.is_connected()).count() > 0, "the others keep their regions");
}

#[test]
fn senders_of_whom_no_region_is_taken_send_short_messages_all_the_same() {
    const SENDERS: usize = SHARE + 4;
    let rig = Rig::start_with_descriptors(DESCRIPTORS, &[]);
    let address = rig.addresses().remove(0);
    let options = Rig::sender_options(&address, "store").in_flight_max(16);
    let registration = RegisterOptions::new("store").control_socket(rig.control());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = Session::register(&registration).expect("a daemon");
            for _ in 0..SENDERS {
                let mut message = session.receive().expect("the daemon lives");
                let mut bytes = Vec::new();
                message.read_to_end(&mut bytes).expect("all of it comes");
                assert_eq!(bytes, [7; 1024]);
            }
        });
        rig.wait_status("the application", |status| status.session_count == 1);
        // Each registers its memory for copies with the first message that does not go inline. A region stays
        // open at the daemon, which has read one page of it.
        let connect = |_| Sender::connect(&options).expect("a sender alone takes one descriptor");
        let mut senders: Vec<_> = (0..SENDERS).map(connect).collect();
        for sender in &mut senders {
            sender.send_small(1, &[7; 1024]).expect("room for a message");
            sender.flush();
        }
        for (at, sender) in senders.iter_mut().enumerate() {
            let ended = sender.wait().expect("the system lets it wait").expect("a message is under way");
            assert_eq!(ended.status, AckStatus::Consumed, "sender {at}");
            assert!(sender.take_failure().is_none(), "sender {at}");
        }
    });
}
