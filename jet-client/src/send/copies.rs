//! Memory for a sender's copied payloads, and how the receiver gets them.

use super::error::SendConnectError;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, MemoryKey, Payload, Sge};
use jet_fabric::{Address, Nic};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::sync::Arc;

/// Longest payload that is copied into its request over `shm:`. Longer payloads stay in place, and the
/// receiver's NIC takes them from there. Copying fewer bytes costs no more than looking up where they lie.
const COPIED_BYTES_MAX: u32 = 512;

/// Memory for copied payloads and long user headers: 4 KiB for each message that may be in flight.
#[derive(Debug)]
pub(super) struct CopyArea {
    pub memory: Arc<SharedMemory>,
    pub key: MemoryKey,
}

impl CopyArea {
    pub(super) fn new(nic: &mut dyn Nic, places: u32, access: Access) -> Result<Self, SendConnectError> {
        let memory = Arc::new(SharedMemory::new("jet-copies", places as usize * SLAB_BYTES, false)?);
        // The memory may be passed to the peer, which must only read it.
        memory.seal_future_writes()?;
        let key = nic.register(&memory, access)?;
        Ok(Self { memory, key })
    }

    /// Copies bytes into a message's place, from its byte `at` on.
    ///
    /// # Panics
    /// Where there is no such place or the bytes exceed it.
    #[inline]
    pub(super) fn write(&mut self, index: u32, at: usize, bytes: &[u8]) {
        let start = index as usize * SLAB_BYTES;
        assert!(
            at <= SLAB_BYTES && bytes.len() <= SLAB_BYTES - at && start < self.memory.bytes(),
            "place {index} takes no {}",
            bytes.len()
        );
        // SAFETY: within the area, which is this sender's alone. The message of this place is new, or about
        // to be sent again, so no SEND of it is outstanding and the NIC does not read it.
        unsafe {
            self.memory.base().add(start + at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    pub(super) fn payload(&self, index: u32, bytes: u32, inline_bytes_max: u32) -> Payload<'_> {
        let offset = u64::from(index) * u64::from(SLAB_BYTES_U32);
        if bytes == 0 {
            return Payload::None;
        }
        if bytes > inline_bytes_max {
            return Payload::Registered(Sge { key: self.key, offset, bytes });
        }
        // SAFETY: within the area (checked by `write`), and only `write`, which borrows mutably, changes it.
        Payload::Inline(unsafe {
            std::slice::from_raw_parts(self.memory.base().add(index as usize * SLAB_BYTES), bytes as usize)
        })
    }
}

/// Decides how copied payloads reach the receiver at this address. Returns the access to the memory where
/// they lie, and the most bytes that the NIC copies once more when they are posted.
///
/// Over `shm:` the receiver's NIC reads the payloads itself, which saves that copy. It sees only what is sent
/// to it. Other NICs send from their own memory.
pub(super) fn copy_transfer_mode(address: &Address, nic: &dyn Nic) -> (Access, u32) {
    let inline_bytes_max = nic.limits().inline_bytes_max;
    match address {
        Address::Shm(_) => (Access::RemoteRead, inline_bytes_max.min(COPIED_BYTES_MAX)),
        Address::Tcp(_) | Address::Rdma(_) => (Access::LocalWrite, inline_bytes_max),
    }
}
