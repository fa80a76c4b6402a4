//! The devices of a network, what is under way between them, and the time.

use super::device::{Device, Presence, peer_of};
use super::network::Happened;
use super::options::Conditions;
use super::queue_pair::{End, QueuePair, Wqe};
use super::schedule::{Schedule, What};
use crate::Qp;
use std::collections::BTreeMap;

/// A network and all its devices.
#[derive(Debug)]
pub(super) struct World {
    pub now_ns: u64,
    pub conditions: Conditions,
    random: fastrand::Rng,
    schedule: Schedule,
    pub devices: Vec<Device>,
    /// Numbers of addresses, by their text.
    pub addresses: BTreeMap<String, u32>,
    /// SENDs of ends that have ended, and that may still arrive: the end, the request's number.
    pub late: BTreeMap<(End, u64), Wqe>,
    /// NICs whose users slept, and were woken.
    pub woken: Vec<u32>,
    /// Devices that have a bell.
    pub bells: u32,
    /// Whether the next connection is cut when only one end knows that it stands.
    pub halves_next: bool,
    pub happened: Happened,
}

impl World {
    pub fn new(conditions: Conditions) -> Self {
        Self {
            now_ns: 0,
            conditions,
            random: fastrand::Rng::with_seed(conditions.seed),
            schedule: Schedule::default(),
            devices: Vec::new(),
            addresses: BTreeMap::new(),
            late: BTreeMap::new(),
            woken: Vec::new(),
            bells: 0,
            halves_next: false,
            happened: Happened::default(),
        }
    }

    /// Returns a number from 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.random.u64(0..=most) }
    }

    /// Returns a number from 1 to `most`.
    pub fn one_to(&mut self, most: u64) -> u64 {
        self.random.u64(1..=most.max(1))
    }

    pub fn coin(&mut self) -> bool {
        self.random.bool()
    }

    /// Returns whether a queue refuses a request, of whose kind so many are outstanding on the connection.
    pub fn refuses(&mut self, outstanding: u32) -> bool {
        let permille = self.conditions.refusals_permille;
        let refuses = permille > 0 && outstanding > 0 && self.random.u32(..1000) < permille;
        self.happened.refusals += u64::from(refuses);
        refuses
    }

    pub fn device(&mut self, nic: u32) -> &mut Device {
        &mut self.devices[nic as usize]
    }

    pub fn qp(&mut self, end: End) -> Option<&mut QueuePair> {
        self.device(end.nic).qp(end.qp)
    }

    pub fn peer(&mut self, end: End) -> Option<End> {
        peer_of(&mut self.devices, end)
    }

    /// Lets something happen at an end after a span.
    pub fn after(&mut self, span_ns: u64, end: End, what: What) {
        self.at(self.now_ns.saturating_add(span_ns), end, what);
    }

    /// Lets something happen at an end, at a time.
    pub fn at(&mut self, at_ns: u64, end: End, what: What) {
        let chance = self.random.u32(..);
        self.schedule.add(at_ns, chance, end, what);
        if self.bells > 0 {
            self.set_bells(at_ns);
        }
    }

    /// Lets something happen at an end once a message of connection management has come there.
    pub fn tell(&mut self, end: End, what: What) {
        self.tell_from(0, end, what);
    }

    /// Does the same, not before a time.
    pub fn tell_from(&mut self, from_ns: u64, end: End, what: What) {
        let Conditions { latency_ns, jitter_ns, kernel_ns, .. } = self.conditions;
        let span_ns = latency_ns + self.up_to(jitter_ns) + self.up_to(kernel_ns);
        let at_ns = self.now_ns.saturating_add(span_ns).max(from_ns);
        self.at(at_ns, end, what);
    }

    /// Returns when something of so many bytes that leaves a device now is at the other end of the wire.
    pub fn leaves(&mut self, nic: u32, bytes: u64) -> u64 {
        let Conditions { latency_ns, jitter_ns, bytes_per_us, .. } = self.conditions;
        let on_the_way_ns = latency_ns + self.up_to(jitter_ns);
        let now_ns = self.now_ns;
        let bytes_per_us = self.device(nic).options.bytes_per_us.unwrap_or(bytes_per_us);
        let port_free_ns = &mut self.device(nic).port_free_ns;
        *port_free_ns = now_ns.max(*port_free_ns) + bytes * 1000 / bytes_per_us.max(1);
        *port_free_ns + on_the_way_ns
    }

    /// Returns the time of what happens next.
    pub fn next_ns(&self) -> Option<u64> {
        self.schedule.next_ns()
    }

    /// Carries out all that is due. Time never goes back.
    pub fn advance(&mut self, now_ns: u64) {
        while let Some((at_ns, end, what)) = self.schedule.take_due(now_ns) {
            self.now_ns = self.now_ns.max(at_ns);
            let presence = self.device(end.nic).presence;
            match presence {
                Presence::Frozen { until_ns } if what == What::Thaw => {
                    if until_ns <= self.now_ns {
                        self.thaw(end.nic);
                    }
                }
                Presence::Frozen { .. } => self.device(end.nic).held.push((end, what)),
                Presence::Lost => {}
                _ => self.happen(end, what),
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Does the same at a time of the clock that a NIC's user has.
    pub fn advance_for(&mut self, nic: u32, now_ns: u64) {
        let ahead_ns = self.device(nic).clock_ahead_ns;
        self.advance(now_ns.saturating_sub(ahead_ns));
    }

    fn happen(&mut self, end: End, what: What) {
        match what {
            What::Asked { from } => self.asked(end.nic, from),
            What::Accepted => self.accepted(end),
            What::Refused { by_user } => self.refused(end, by_user),
            What::Ready => self.ready(end),
            What::SetUpLate => self.set_up_late(end),
            What::Request { number } => self.request_arrived(end, number),
            What::Outcome { number, status } => self.outcome_arrived(end, number, status),
            What::TryAgain => self.take_requests(end),
            What::FarewellLate => self.farewell_late(end),
            What::HungUp => self.hung_up(end),
            What::Silent => self.silent(end),
            What::Flush => self.flush_work(end),
            What::LastWqe => self.last_wqe(end),
            // The device was removed meanwhile.
            What::Thaw => {}
        }
    }

    /// Lets happen what was held up at a device that was frozen.
    fn thaw(&mut self, nic: u32) {
        self.device(nic).presence = Presence::There;
        for (end, what) in std::mem::take(&mut self.device(nic).held) {
            self.happen(end, what);
        }
    }

    /// Wakes the user of a device that sleeps.
    pub fn wake(&mut self, nic: u32) {
        let device = self.device(nic);
        if std::mem::take(&mut device.armed) {
            if let Some(bell) = &device.bell {
                bell.ring_after(Some(1));
            }
            self.woken.push(nic);
        }
    }

    /// Sets the bells of sleepers, so that they ring at a time, or earlier.
    fn set_bells(&self, at_ns: u64) {
        for device in self.devices.iter().filter(|device| device.armed) {
            if let Some(bell) = &device.bell {
                // Whatever comes first may be for this device, or lead to something for it.
                let first_ns = self.next_ns().map_or(at_ns, |next_ns| next_ns.min(at_ns));
                bell.ring_after(Some(first_ns.saturating_sub(self.now_ns)));
            }
        }
    }

    /// Arms a device's bell. Returns `false` where there is work.
    pub fn arm(&mut self, nic: u32) -> bool {
        let next_ns = self.next_ns().map(|next_ns| next_ns.saturating_sub(self.now_ns));
        let device = self.device(nic);
        device.armed = !device.has_work();
        if let Some(bell) = device.bell.as_ref().filter(|_| device.armed) {
            bell.ring_after(next_ns);
        }
        device.armed
    }

    /// Returns an end that is no connection: something happens at the device itself.
    pub fn no_qp(nic: u32) -> End {
        End { nic, qp: Qp { index: u32::MAX, generation: 0 } }
    }
}
