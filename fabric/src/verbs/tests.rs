//! A NIC beside its device: what only shows where the one's insides can be seen.
//!
//! What soft-RoCE never says (that a device failed, for one) is said in its place, by the file that the library reads events from.

use super::{DeviceChoice, VerbsNic, VerbsOptions};
use crate::nic::{Event, Nic};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsRawFd, OwnedFd};

/// The library's number of the event that says that the device failed for good.
const DEVICE_FATAL: u32 = 8;

fn nic() -> VerbsNic {
    let address = std::env::var("JET_RDMA_ADDRESS").expect("JET_RDMA_ADDRESS names a device");
    let choice = DeviceChoice::Reaching(address.parse().expect("an address"));
    let sizes = VerbsOptions { qps_max: 8, srq_entries_max: 64, reads_max: 8, ..VerbsOptions::on(choice) };
    VerbsNic::new(sizes).expect("a NIC")
}

/// The device says something to one NIC, of the element with that number or address. What it says by itself is heard no more,
/// nor is what is said after this is dropped.
struct Said {
    _writing: OwnedFd,
}

fn say(nic: &mut VerbsNic, kind: u32, element: u64) -> Said {
    let (reading, writing) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
    let mut words = [0u8; 16];
    words[..8].copy_from_slice(&element.to_ne_bytes());
    words[8..12].copy_from_slice(&kind.to_ne_bytes());
    rustix::io::write(&writing, &words).unwrap();
    let context = nic.device.context();
    // SAFETY: both are open; the number stays the library's.
    let result = unsafe { libc::dup2(reading.as_raw_fd(), context.async_fd().as_raw_fd()) };
    assert_eq!(result, context.async_fd().as_raw_fd());
    nic.readiness.watch(context.async_fd()).unwrap();
    nic.look();
    Said { _writing: writing }
}

#[test]
#[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
fn a_device_that_failed_is_there_again_when_it_is_opened_at_the_same_place() {
    let mut last = std::ptr::null_mut();
    for _ in 0..64 {
        let mut nic = nic();
        let place = nic.device.context().as_ptr();
        nic.look();
        assert_eq!(nic.poll_event(), None, "a device that was just opened");
        nic.listen(&format!("rdma:{}:0", std::env::var("JET_RDMA_ADDRESS").unwrap()).parse().unwrap())
            .expect("it listens");
        let _said = say(&mut nic, DEVICE_FATAL, 0);
        assert_eq!(nic.poll_event(), Some(Event::Gone));
        if place == last {
            return;
        }
        last = place;
    }
    panic!("no device was opened where one had been before: nothing was seen");
}
