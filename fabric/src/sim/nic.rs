//! The NIC, as its user knows it.

use super::device::{Bell, Presence};
use super::network::{Network, NicId};
use super::queue_pair::End;
use super::regions::Regions;
use crate::memory::SharedMemory;
use crate::nic::{
    Access, Completion, ConnectError, Counters, Event, Limits, ListenError, MemoryKey, Nic, PostError,
    PrivateData, ReadRequest, RegisterError, SendRequest, SrqEntry,
};
use crate::{Address, Qp};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

/// A simulated NIC. Its addresses are `rdma:host:port`, whatever the host is called.
///
/// Its connections end when it is dropped, as those of a process that exits.
#[derive(Debug)]
pub struct SimNic {
    network: Network,
    id: NicId,
    /// Made when somebody asks for the descriptor: who makes up the time needs none.
    bell: OnceLock<Arc<Bell>>,
}

impl SimNic {
    pub(super) fn new(network: Network, id: NicId) -> Self {
        Self { network, id, bell: OnceLock::new() }
    }

    /// Returns the NIC's number in its network.
    pub fn id(&self) -> NicId {
        self.id
    }

    fn end(&self, qp: Qp) -> End {
        End { nic: self.id.0, qp }
    }
}

fn no_device() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODEV)
}

impl Nic for SimNic {
    fn limits(&self) -> Limits {
        self.network.world().device(self.id.0).limits.reported
    }

    fn counters(&self) -> Counters {
        self.network.world().device(self.id.0).counters
    }

    fn register(&mut self, memory: &Arc<SharedMemory>, access: Access) -> Result<MemoryKey, RegisterError> {
        let mut world = self.network.world();
        let device = world.device(self.id.0);
        if device.presence == Presence::Removed {
            return Err(RegisterError::System { bytes: memory.bytes(), source: no_device() });
        }
        device.regions.register(memory, access)
    }

    fn deregister(&mut self, key: MemoryKey) {
        self.network.world().device(self.id.0).regions.deregister(key);
    }

    fn remote_address(&self, _key: MemoryKey, offset: u64) -> u64 {
        Regions::address(offset)
    }

    fn listen(&mut self, address: &Address) -> Result<Address, ListenError> {
        let Address::Rdma(text) = address else {
            return Err(ListenError::WrongFabric { address: address.clone() });
        };
        let mut world = self.network.world();
        if world.device(self.id.0).presence == Presence::Removed {
            return Err(ListenError::System { address: address.clone(), source: no_device() });
        }
        let text = match text.strip_suffix(":0") {
            Some(host) => (1..=u16::MAX)
                .map(|port| format!("{host}:{port}"))
                .find(|text| !world.addresses.contains_key(text))
                .ok_or_else(|| ListenError::InUse { address: address.clone() })?,
            None => text.clone(),
        };
        let next = u32::try_from(world.addresses.len()).expect("addresses are few");
        let number = *world.addresses.entry(text.clone()).or_insert(next);
        if world.devices.iter().any(|device| device.listens == Some(number)) {
            return Err(ListenError::InUse { address: address.clone() });
        }
        world.device(self.id.0).listens = Some(number);
        Ok(Address::Rdma(text))
    }

    fn stop_listening(&mut self) {
        self.network.world().device(self.id.0).listens = None;
    }

    fn connect(&mut self, address: &Address, private_data: &PrivateData) -> Result<Qp, ConnectError> {
        let Address::Rdma(text) = address else {
            return Err(ConnectError::WrongFabric { address: address.clone() });
        };
        let mut world = self.network.world();
        if world.device(self.id.0).presence == Presence::Removed {
            return Err(ConnectError::System { address: address.clone(), source: no_device() });
        }
        let number = world.addresses.get(text).copied();
        let max = world.device(self.id.0).limits.reported.qps_max;
        world.connect(self.id.0, number, private_data).ok_or(ConnectError::TooMany { max })
    }

    fn accept(&mut self, qp: Qp, private_data: &PrivateData) -> Result<(), PostError> {
        self.network.world().accept(self.end(qp), private_data)
    }

    fn reject(&mut self, qp: Qp, private_data: &PrivateData) {
        self.network.world().reject(self.end(qp), private_data);
    }

    fn disconnect(&mut self, qp: Qp) {
        self.network.world().disconnect(self.end(qp));
    }

    fn post_srq(&mut self, entry: SrqEntry) -> Result<(), PostError> {
        self.network.world().post_srq(self.id.0, entry)
    }

    fn post_send(&mut self, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        self.network.world().post_send(self.end(qp), &request)
    }

    fn post_read(&mut self, qp: Qp, request: ReadRequest<'_>) -> Result<(), PostError> {
        self.network.world().post_read(self.end(qp), &request)
    }

    fn flush(&mut self) {
        self.network.world().ring_doorbell(self.id.0);
    }

    fn poll(&mut self, now_ns: u64, completions: &mut [Completion]) -> usize {
        let mut world = self.network.world();
        world.ring_doorbell(self.id.0);
        world.advance_for(self.id.0, now_ns);
        // The completions of SRQ entries and of requests come over different queues.
        let received_first = world.coin();
        let device = world.device(self.id.0);
        device.armed = false;
        let mut count = 0;
        for place in completions {
            let Some(completion) = device.take_completion(received_first) else { break };
            *place = completion;
            count += 1;
        }
        count
    }

    fn poll_event(&mut self, now_ns: u64) -> Option<Event> {
        let mut world = self.network.world();
        world.advance_for(self.id.0, now_ns);
        world.device(self.id.0).take_event()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        let bell = self.bell.get_or_init(|| {
            let bell = Arc::new(Bell::new().expect("a descriptor for a timer"));
            let mut world = self.network.world();
            world.bells += 1;
            world.device(self.id.0).bell = Some(Arc::clone(&bell));
            let nic = self.id.0;
            if world.device(nic).armed {
                world.arm(nic);
            }
            if world.device(nic).has_work() {
                bell.ring_after(Some(1));
            }
            bell
        });
        bell.fd()
    }

    fn arm(&mut self, now_ns: u64) -> bool {
        let mut world = self.network.world();
        world.ring_doorbell(self.id.0);
        world.advance_for(self.id.0, now_ns);
        world.arm(self.id.0)
    }
}

impl Drop for SimNic {
    fn drop(&mut self) {
        self.network.world().drop_nic(self.id.0);
    }
}
