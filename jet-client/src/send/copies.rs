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
    memory: Arc<SharedMemory>,
    registration: Registration,
    mode: Mode,
}

/// Whether the memory is registered with the present NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registration {
    /// No payload needed it so far.
    NotYet,
    /// The memory has this key.
    As(MemoryKey),
    /// The NIC, or the receiver, takes no further region. The NIC copies all payloads.
    Refused,
}

/// How copied payloads reach the receiver.
#[derive(Clone, Copy, Debug)]
struct Mode {
    access: Access,
    /// The most bytes that the NIC copies once more when they are posted.
    inline_bytes_max: u32,
}

impl CopyArea {
    pub(super) fn new(nic: &mut dyn Nic, places: u32, address: &Address) -> Result<Self, SendConnectError> {
        let memory = Arc::new(SharedMemory::new("jet-copies", places as usize * SLAB_BYTES, false)?);
        // The memory may be passed to the peer, which must only read it.
        memory.seal_future_writes()?;
        let (registration, mode) = (Registration::NotYet, Mode::of(address, nic));
        let mut area = Self { memory, registration, mode };
        area.move_to(nic, address)?;
        Ok(area)
    }

    /// Registers the memory with another NIC.
    ///
    /// Where the receiver's NIC reads the payloads itself, that waits for the first of them: a region costs
    /// the receiver a descriptor, and most senders of large messages never need this one.
    pub(super) fn move_to(&mut self, nic: &mut dyn Nic, address: &Address) -> Result<(), SendConnectError> {
        self.mode = Mode::of(address, nic);
        self.registration = match self.mode.access {
            Access::RemoteRead => Registration::NotYet,
            access => Registration::As(nic.register(&self.memory, access)?),
        };
        Ok(())
    }

    /// Takes the memory back after the receiver did not take one of this sender's regions. `false` where the
    /// receiver did not have this one.
    pub(super) fn withdraw(&mut self, nic: &mut dyn Nic) -> bool {
        match self.registration {
            Registration::As(key) if self.mode.access == Access::RemoteRead => {
                nic.deregister(key);
                self.registration = Registration::Refused;
                true
            }
            _ => false,
        }
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

    /// Returns a message's copied bytes as the payload of its SEND.
    #[inline]
    pub(super) fn payload(&mut self, nic: &mut dyn Nic, index: u32, bytes: u32) -> Payload<'_> {
        let offset = u64::from(index) * u64::from(SLAB_BYTES_U32);
        if bytes == 0 {
            return Payload::None;
        }
        if bytes > self.mode.inline_bytes_max {
            if self.registration == Registration::NotYet {
                self.register(nic);
            }
            if let Registration::As(key) = self.registration {
                return Payload::Registered(Sge { key, offset, bytes });
            }
        }
        // SAFETY: within the area (checked by `write`), and only `write`, which borrows mutably, changes it.
        Payload::Inline(unsafe {
            std::slice::from_raw_parts(self.memory.base().add(index as usize * SLAB_BYTES), bytes as usize)
        })
    }

    /// Registers the memory for the first payload that is not inline. A NIC that takes no further region
    /// copies the payloads, however long they are ([`Mode::of`]).
    #[cold]
    fn register(&mut self, nic: &mut dyn Nic) {
        self.registration = match nic.register(&self.memory, self.mode.access) {
            Ok(key) => Registration::As(key),
            Err(_) => Registration::Refused,
        };
    }
}

impl Mode {
    /// Over `shm:` the receiver's NIC reads the payloads itself, which saves that copy. It sees only what is
    /// sent to it. Other NICs send from their own memory.
    fn of(address: &Address, nic: &dyn Nic) -> Self {
        let inline_bytes_max = nic.limits().inline_bytes_max;
        match address {
            // Late registration needs a NIC that could copy any payload.
            Address::Shm(_) if inline_bytes_max >= SLAB_BYTES_U32 => {
                Self { access: Access::RemoteRead, inline_bytes_max: COPIED_BYTES_MAX }
            }
            Address::Shm(_) | Address::Tcp(_) | Address::Rdma(_) => {
                Self { access: Access::LocalWrite, inline_bytes_max }
            }
        }
    }
}
