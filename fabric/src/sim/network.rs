//! A network, as its maker uses it: it makes NICs, lets time pass, and causes faults.

use super::device::Device;
use super::nic::SimNic;
use super::options::{Conditions, SimOptions};
use super::queue_pair::End;
use super::world::World;
use crate::Qp;
use crate::limits::LimitError;
use jet_wire::message::HeaderBytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of a NIC in its network. No two NICs ever have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NicId(pub u32);

/// A SEND that was posted.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// Its header.
    pub header: HeaderBytes,
    /// Bytes of its payload.
    pub payload_bytes: usize,
}

/// What happened in a network that no NIC counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    /// Requests that a queue refused though it had room ([`Conditions::refusals_permille`]).
    pub refusals: u64,
    /// Connections that were cut when only one end knew that they stand ([`Network::halve_next`]).
    pub half_open: u64,
}

/// A simulated network. Its clones are handles of the same network.
#[derive(Clone, Debug)]
pub struct Network(Arc<Mutex<World>>);

impl Network {
    /// Makes a network without NICs, at time 0.
    pub fn new(conditions: Conditions) -> Self {
        Self(Arc::new(Mutex::new(World::new(conditions))))
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        // A test that panicked has failed already; NICs are still dropped.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a NIC.
    ///
    /// # Errors
    /// [`LimitError`]: the device has less than the NIC needs.
    pub fn nic(&self, options: SimOptions) -> Result<SimNic, LimitError> {
        let device = Device::new(options)?;
        let mut world = self.world();
        let id = NicId(u32::try_from(world.devices.len()).expect("NICs are few"));
        world.devices.push(device);
        Ok(SimNic::new(self.clone(), id))
    }

    /// Returns the time of the network, in nanoseconds: the latest that any call named.
    pub fn now_ns(&self) -> u64 {
        self.world().now_ns
    }

    /// Returns the time at which something happens next, in nanoseconds.
    pub fn next_ns(&self) -> Option<u64> {
        self.world().next_ns()
    }

    /// Carries out all that is due at `now_ns`, in nanoseconds. Time never goes back: an earlier time than
    /// the network's changes nothing.
    pub fn advance(&self, now_ns: u64) {
        self.world().advance(now_ns);
    }

    /// Takes a NIC whose user armed it, and for which there was something since.
    pub fn take_woken(&self) -> Option<NicId> {
        self.world().woken.pop().map(NicId)
    }

    /// Takes the first SEND that a NIC's user posted and that was not taken, where
    /// [`SimOptions::keeps_headers`] says so.
    pub fn take_posted(&self, nic: NicId) -> Option<Posted> {
        self.world().device(nic.0).posted.pop_front()
    }

    /// Returns whether a NIC's user has something to poll.
    pub fn has_work(&self, nic: NicId) -> bool {
        self.world().device(nic.0).has_work()
    }

    /// Returns the READs of a NIC that were posted and whose completions were not polled.
    pub fn reads_under_way(&self, nic: NicId) -> u32 {
        self.world().device(nic.0).reads
    }

    /// Returns the entries of a NIC's SRQ that were posted and whose completions were not polled.
    pub fn entries_posted(&self, nic: NicId) -> u32 {
        self.world().device(nic.0).srq_used
    }

    /// Returns the handles of a NIC's connections that stand, or are being set up.
    pub fn connections(&self, nic: NicId) -> Vec<Qp> {
        self.world().device(nic.0).standing()
    }

    /// Cuts a connection. Nothing comes through any more, and each end notices at a time of its own, within
    /// [`Conditions::silence_ns`].
    pub fn cut(&self, nic: NicId, qp: Qp) {
        self.world().cut(End { nic: nic.0, qp });
    }

    /// Lets the next connection that is made be half open, or lets it be whole again: the end that asked for
    /// it hears that it stands, and then nothing comes through any more.
    pub fn halve_next(&self, halves: bool) {
        self.world().halves_next = halves;
    }

    /// Returns what happened that no NIC counts.
    pub fn happened(&self) -> Happened {
        self.world().happened
    }

    /// Lets the clock of a NIC's user be ahead of the network's by so many nanoseconds.
    pub fn set_clock_ahead(&self, nic: NicId, ahead_ns: u64) {
        self.world().device(nic.0).clock_ahead_ns = ahead_ns;
    }

    /// Takes the power from a NIC's host: nothing comes from it any more. Its user is to drop it.
    pub fn lose(&self, nic: NicId) {
        self.world().lose(nic.0);
    }

    /// Removes a device from its host: its user hears [`Event::Gone`](crate::Event::Gone).
    pub fn remove(&self, nic: NicId) {
        self.world().remove(nic.0);
    }

    /// Lets nothing happen at a NIC before `until_ns`, in nanoseconds.
    pub fn freeze(&self, nic: NicId, until_ns: u64) {
        self.world().freeze(nic.0, until_ns);
    }
}
