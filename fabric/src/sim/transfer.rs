//! SENDs and READs: how they go from one end to the other, and how their outcomes come back.

use super::device::Presence;
use super::network::Posted;
use super::queue_pair::{End, Kind, SendPayload, State, Wqe};
use super::regions::NoAccess;
use super::schedule::What;
use super::world::World;
use crate::nic::{DisconnectReason, PostError, ReadRequest, SendRequest, SrqEntry, Status, Work};
use jet_wire::message::HEADER_BYTES;

/// Bytes of an acknowledgement on the wire.
const ACK_BYTES: u64 = 32;

/// What became of the first request that waits at an end.
enum Taken {
    /// It was carried out, and this is its outcome at the other end, once so many bytes have come there.
    /// `failed`: the connection ends at this end, too.
    Outcome { status: Status, bytes: u64, failed: Option<Status> },
    /// There is no SRQ entry for it.
    Waits,
    /// It is gone with its sender.
    Lost,
}

impl World {
    /// Posts a SEND.
    pub fn post_send(&mut self, end: End, request: &SendRequest<'_>) -> Result<(), PostError> {
        let device = self.device(end.nic);
        let limits = device.limits;
        let local = match &request.payload {
            crate::nic::Payload::None => 0,
            crate::nic::Payload::Inline(bytes) if bytes.len() > limits.reported.inline_bytes_max as usize => {
                return Err(PostError::Limit);
            }
            crate::nic::Payload::Inline(bytes) => bytes.len(),
            crate::nic::Payload::Registered(sge) if sge.bytes > jet_wire::SLAB_BYTES_U32 => {
                return Err(PostError::Limit);
            }
            crate::nic::Payload::Registered(sge) => {
                device.regions.local(sge).map_err(|NoAccess| PostError::LocalProtection)?.bytes()
            }
        };
        debug_assert!(local <= jet_wire::SLAB_BYTES);
        let (all, has_device_room) = (device.sends, device.sends < limits.sends);
        let pair = device.qp(end.qp).filter(|pair| pair.state == State::Up).ok_or(PostError::Stale)?;
        let has_room = pair.sends < limits.reported.sends_per_qp_max && has_device_room && pair.has_room();
        let outstanding = pair.sends;
        if !has_room || self.refuses(outstanding) {
            return Err(PostError::QueueFull);
        }
        let device = self.device(end.nic);
        let pair = device.qp(end.qp).expect("it was just found");
        pair.push_send(request);
        let was_rung = std::mem::replace(&mut pair.is_rung, true);
        device.sends = all + 1;
        if device.options.keeps_headers {
            device.posted.push_back(Posted { header: *request.header, payload_bytes: local });
        }
        if !was_rung {
            device.rung.push(end.qp.index);
        }
        Ok(())
    }

    /// Posts a READ.
    pub fn post_read(&mut self, end: End, request: &ReadRequest<'_>) -> Result<(), PostError> {
        let device = self.device(end.nic);
        let limits = device.limits;
        let (all, has_device_room) = (device.reads, device.reads < limits.reported.reads_max);
        let pair = device.qp(end.qp).filter(|pair| pair.state == State::Up).ok_or(PostError::Stale)?;
        if request.scatter.len() > limits.reported.scatter_max as usize || pair.reads_max == 0 {
            return Err(PostError::Limit);
        }
        let has_room = pair.reads < pair.reads_max && has_device_room && pair.has_room();
        let outstanding = pair.reads;
        if !has_room || self.refuses(outstanding) {
            return Err(PostError::QueueFull);
        }
        let device = self.device(end.nic);
        let mut bytes = 0;
        for sge in request.scatter {
            let stretch = device.regions.local(sge).map_err(|NoAccess| PostError::LocalProtection)?;
            bytes += stretch.bytes() as u64;
        }
        let pair = device.qp(end.qp).expect("it was just found");
        pair.push_read(request, bytes);
        let was_rung = std::mem::replace(&mut pair.is_rung, true);
        device.reads = all + 1;
        if !was_rung {
            device.rung.push(end.qp.index);
        }
        Ok(())
    }

    /// Posts an SRQ entry. A SEND that waits for one is tried again when its sender's NIC does so.
    pub fn post_srq(&mut self, nic: u32, entry: SrqEntry) -> Result<(), PostError> {
        let device = self.device(nic);
        for sge in std::iter::once(&entry.header).chain(&entry.payload) {
            device.regions.local(sge).map_err(|NoAccess| PostError::LocalProtection)?;
        }
        if device.srq_used >= device.limits.reported.srq_entries_max {
            return Err(PostError::QueueFull);
        }
        device.srq_used += 1;
        device.srq.push_back(entry);
        Ok(())
    }

    /// Rings a device's doorbell: what was posted is on its way from now on.
    pub fn ring_doorbell(&mut self, nic: u32) {
        while let Some(index) = self.device(nic).rung.pop() {
            let generation = self.device(nic).qps[index as usize].generation;
            self.issue(End { nic, qp: crate::Qp { index, generation } });
        }
    }

    /// Puts an end's requests on their way, as far as they are not.
    pub(super) fn issue(&mut self, end: End) {
        let Some(pair) = self.qp(end) else { return };
        pair.is_rung = false;
        if !matches!(pair.state, State::Up | State::Leaving) {
            return;
        }
        let peer = pair.peer.expect("who is up has a peer");
        loop {
            let pair = self.qp(end).expect("it was just found");
            let number = pair.issued;
            let Some(wqe) = pair.request(number) else { return };
            let bytes = wqe.bytes_out();
            pair.issued += 1;
            let leaves_ns = self.leaves(end.nic, bytes);
            let at_ns = self.qp(end).expect("it was just found").arrives_ns(leaves_ns, false);
            self.at(at_ns, peer, What::Request { number });
        }
    }

    pub(super) fn request_arrived(&mut self, end: End, number: u64) {
        let Some(pair) = self.qp(end) else { return };
        if !pair.state.takes_requests() || pair.is_cut {
            return;
        }
        pair.inbound.push_back(number);
        if pair.rnr_since_ns.is_none() {
            self.take_requests(end);
        }
    }

    /// Carries out the requests that wait at an end, in their order.
    pub(super) fn take_requests(&mut self, end: End) {
        while let Some(pair) = self.qp(end)
            && pair.state.takes_requests()
            && let Some(&number) = pair.inbound.front()
        {
            let peer = pair.peer.expect("who takes requests has a peer");
            match self.take_request(end, peer, number) {
                Taken::Waits => return self.wait_for_entry(end, peer, number),
                Taken::Lost => {}
                Taken::Outcome { status, bytes, failed } => {
                    let leaves_ns = self.leaves(end.nic, bytes);
                    if let Some(pair) = self.qp(end) {
                        let at_ns = pair.arrives_ns(leaves_ns, true);
                        self.at(at_ns, peer, What::Outcome { number, status });
                    }
                    if let Some(failed) = failed {
                        // Behind the outcome, which comes over the connection itself.
                        return self.end(end, DisconnectReason::WorkRequest(failed));
                    }
                }
            }
            if let Some(pair) = self.qp(end) {
                pair.rnr_since_ns = None;
                pair.inbound.pop_front();
            }
        }
    }

    fn take_request(&mut self, end: End, peer: End, number: u64) -> Taken {
        let late = self.late.remove(&(peer, number));
        // The request lies at its sender until it completes, and here it is only read.
        let sender = &mut self.devices[peer.nic as usize];
        let kind = match (&late, sender.qp(peer.qp).and_then(|pair| pair.request(number))) {
            (Some(wqe), _) | (None, Some(wqe)) => wqe.kind,
            (None, None) => return Taken::Lost,
        };
        match kind {
            Kind::Send { payload } => match self.take_send(end, peer, number, late.as_ref(), payload) {
                Some(status) => {
                    let failed = (status != Status::Success).then_some(status);
                    // The sender hears of what is its own fault, or of the length.
                    let is_ours = status == Status::LocalProtection;
                    let status = if is_ours { Status::Other(REMOTE_OPERATION) } else { status };
                    Taken::Outcome { status, bytes: ACK_BYTES, failed }
                }
                None => {
                    if let Some(wqe) = late {
                        self.late.insert((peer, number), wqe);
                    }
                    Taken::Waits
                }
            },
            Kind::Read { address, key, bytes } => {
                let (status, bytes) = match self.device(end.nic).regions.remote(key, address, bytes) {
                    Ok(_) => (Status::Success, ACK_BYTES + bytes),
                    Err(NoAccess) => (Status::RemoteAccess, ACK_BYTES),
                };
                Taken::Outcome { status, bytes, failed: None }
            }
        }
    }

    /// Puts a SEND into an SRQ entry. `None`: there is none.
    fn take_send(
        &mut self,
        end: End,
        peer: End,
        number: u64,
        late: Option<&Wqe>,
        payload: SendPayload,
    ) -> Option<Status> {
        let entry = self.device(end.nic).srq.pop_front()?;
        let (at_end, at_peer) = two(&mut self.devices, end.nic, peer.nic);
        let sender = at_peer.as_deref().unwrap_or(at_end);
        let sent = match late {
            Some(wqe) => wqe,
            None => sender.qps[peer.qp.index as usize].request(number).expect("it was just found"),
        };
        let regions = (&sender.regions, &at_end.regions);
        let (status, payload_bytes) = put(&entry, sent, payload, regions);
        let work = Work::Receive { entry: entry.id, payload_bytes };
        at_end.complete(end.qp, work, status);
        if status == Status::Success {
            at_end.counters.receives += 1;
            at_end.counters.bytes_in += HEADER_BYTES as u64 + u64::from(payload_bytes);
        }
        self.wake(end.nic);
        Some(status)
    }

    fn wait_for_entry(&mut self, end: End, peer: End, number: u64) {
        let (now_ns, rnr_ns) = (self.now_ns, self.conditions.rnr_ns);
        let timeout_ns = self.device(peer.nic).options.rnr_timeout_ns;
        let Some(pair) = self.qp(end) else { return };
        let is_new = pair.rnr_since_ns.is_none();
        let since_ns = *pair.rnr_since_ns.get_or_insert(now_ns);
        if is_new {
            self.device(end.nic).counters.rnr += 1;
        }
        if timeout_ns.is_some_and(|timeout_ns| now_ns - since_ns >= timeout_ns) {
            let outcome = What::Outcome { number, status: Status::RnrExhausted };
            return self.after(self.conditions.latency_ns, peer, outcome);
        }
        self.after(rnr_ns.max(1), end, What::TryAgain);
    }

    pub(super) fn outcome_arrived(&mut self, end: End, number: u64, status: Status) {
        let Some(pair) = self.qp(end) else { return };
        if !matches!(pair.state, State::Up | State::Leaving) || pair.is_cut {
            return;
        }
        let Some(wqe) = pair.request(number) else { return };
        let (kind, peer) = (wqe.kind, pair.peer.expect("who is up has a peer"));
        let status = match (kind, status) {
            (Kind::Read { .. }, Status::Success) => match self.bring(end, peer, number, u64::MAX) {
                Some(status) => status,
                // The bytes are gone with the peer. Its end is what this end hears of next.
                None => return,
            },
            _ => status,
        };
        if let Some(wqe) = self.qp(end).and_then(|pair| pair.request_mut(number)) {
            wqe.outcome = Some(status);
        }
        self.complete_done(end);
        if status != Status::Success {
            self.end(end, DisconnectReason::WorkRequest(status));
        } else if self.qp(end).is_some_and(|pair| pair.state == State::Leaving && !pair.has_sends()) {
            self.end(end, DisconnectReason::Local);
        }
    }

    /// Copies the bytes of a READ to its stretches, `most` bytes at most. `None`: their host has gone, and
    /// the bytes with it.
    pub(super) fn bring(&mut self, end: End, peer: End, number: u64, most: u64) -> Option<Status> {
        let (at_end, at_peer) = two(&mut self.devices, end.nic, peer.nic);
        let source = at_peer.as_deref().unwrap_or(at_end);
        if source.presence == Presence::Lost {
            return None;
        }
        let pair = &at_end.qps[end.qp.index as usize];
        let Some(Wqe { kind: Kind::Read { address, key, bytes }, scatter, .. }) = pair.request(number) else {
            unreachable!("its callers found a READ");
        };
        let Ok(mut from) = source.regions.remote(*key, *address, *bytes) else {
            return Some(Status::RemoteAccess);
        };
        from = from.first(usize::try_from(most.min(*bytes)).expect("a READ fits memory"));
        let mut brought = 0;
        for sge in scatter {
            let Ok(to) = at_end.regions.local(sge) else { return Some(Status::LocalProtection) };
            let copied = from.copy_to(to);
            from = from.after(copied);
            brought += copied as u64;
        }
        at_end.counters.bytes_in += brought;
        Some(Status::Success)
    }

    /// Completes an end's first requests, as far as their outcomes are known.
    pub(super) fn complete_done(&mut self, end: End) {
        let device = self.device(end.nic);
        while let Some((id, kind, status)) = device.qp(end.qp).and_then(|pair| pair.pop_done()) {
            let is_success = u64::from(status == Status::Success);
            let work = match kind {
                Kind::Send { .. } => {
                    device.counters.sends += is_success;
                    Work::Send { id }
                }
                Kind::Read { .. } => {
                    device.counters.reads += is_success;
                    Work::Read { id }
                }
            };
            device.complete(end.qp, work, status);
        }
        if device.has_work() {
            self.wake(end.nic);
        }
    }
}

/// Verbs' `IBV_WC_REM_OP_ERR`: the other end could not carry a request out.
const REMOTE_OPERATION: u32 = 11;

/// Copies a SEND into an SRQ entry. Returns how that ended, and the bytes of its payload.
fn put(
    entry: &SrqEntry,
    sent: &Wqe,
    payload: SendPayload,
    (of_sender, of_receiver): (&super::regions::Regions, &super::regions::Regions),
) -> (Status, u32) {
    let from = match payload {
        SendPayload::Inline => None,
        SendPayload::Registered(sge) => match of_sender.local(&sge) {
            Ok(stretch) => Some(stretch),
            Err(NoAccess) => return (Status::LocalProtection, 0),
        },
    };
    let bytes = from.map_or(sent.inline.len(), super::regions::Stretch::bytes);
    let room = entry.payload.map_or(0, |sge| sge.bytes as usize);
    if bytes > room || (entry.header.bytes as usize) < HEADER_BYTES {
        return (Status::Length, 0);
    }
    let Ok(header) = of_receiver.local(&entry.header) else { return (Status::LocalProtection, 0) };
    if let Some(place) = entry.payload {
        let Ok(to) = of_receiver.local(&place) else { return (Status::LocalProtection, 0) };
        match from {
            Some(from) => {
                from.copy_to(to);
            }
            None => to.fill(&sent.inline),
        }
    }
    header.put_header(&sent.header);
    (Status::Success, u32::try_from(bytes).expect("a slab at most"))
}

/// Borrows two devices; the second is `None` where they are one.
fn two(
    devices: &mut [super::device::Device],
    a: u32,
    b: u32,
) -> (&mut super::device::Device, Option<&mut super::device::Device>) {
    let (a, b) = (a as usize, b as usize);
    if a == b {
        return (&mut devices[a], None);
    }
    let (low, high) = devices.split_at_mut(a.max(b));
    if a < b { (&mut low[a], Some(&mut high[0])) } else { (&mut high[0], Some(&mut low[b])) }
}
