//! Posting: requests are checked, and gathered for the device.

use super::VerbsNic;
use super::connections::{Posted, State};
use super::gather::Verb;
use crate::nic::{DisconnectReason, PostError, Qp, ReadRequest, SendRequest, SrqEntry};
use jet_wire::message::HEADER_BYTES;

impl VerbsNic {
    pub(super) fn post_receive(&mut self, entry: SrqEntry) -> Result<(), PostError> {
        if self.receives_posted >= self.limits.srq_entries_max {
            return Err(PostError::QueueFull);
        }
        if entry.header.bytes as usize != HEADER_BYTES || !entry.header.offset.is_multiple_of(64) {
            return Err(PostError::LocalProtection);
        }
        let header = self.regions.translate(entry.header).ok_or(PostError::LocalProtection)?;
        let payload = match entry.payload {
            None => None,
            Some(payload) => Some(self.regions.translate(payload).ok_or(PostError::LocalProtection)?),
        };
        self.receives.post(entry.id, header, payload);
        self.receives_posted += 1;
        Ok(())
    }

    #[inline]
    pub(super) fn gather_send(&mut self, qp: Qp, request: SendRequest<'_>) -> Result<(), PostError> {
        if self.gathered.is_full() {
            self.give_gathered();
        }
        let connection = self.connections.get_mut(qp).ok_or(PostError::Stale)?;
        if connection.state != State::Connected {
            return Err(PostError::Stale);
        }
        if connection.sends >= self.limits.sends_per_qp_max || self.sends >= self.options.sends_max {
            return Err(PostError::QueueFull);
        }
        let staged = self.outgoing.stage(&request, &self.regions, connection.inline_bytes)?;
        let position = connection.post(request.id, staged.posted, &mut self.send_completions);
        connection.sends += 1;
        self.sends += 1;
        let stretches = std::iter::once(staged.first).chain(staged.second);
        self.gathered.chain(qp, connection, position, &Verb::Send { inline: staged.inline }, stretches);
        Ok(())
    }

    #[inline]
    pub(super) fn gather_read(&mut self, qp: Qp, request: ReadRequest<'_>) -> Result<(), PostError> {
        if self.gathered.is_full() {
            self.give_gathered();
        }
        let connection = self.connections.get_mut(qp).ok_or(PostError::Stale)?;
        if connection.state != State::Connected {
            return Err(PostError::Stale);
        }
        // With 0, one end makes no READs or the other answers none: a READ would wait for ever.
        if connection.reads_max == 0 || request.scatter.len() > self.limits.scatter_max as usize {
            return Err(PostError::Limit);
        }
        let mut bytes = 0u32;
        for sge in request.scatter {
            bytes = bytes.checked_add(sge.bytes).ok_or(PostError::Limit)?;
            self.regions.translate(*sge).ok_or(PostError::LocalProtection)?;
        }
        if connection.reads >= connection.reads_max || self.reads >= self.limits.reads_max {
            return Err(PostError::QueueFull);
        }
        let position = connection.post(request.id, Posted::Read { bytes }, &mut self.send_completions);
        connection.reads += 1;
        self.reads += 1;
        let regions = &self.regions;
        let stretches = request.scatter.iter().filter_map(|sge| regions.translate(*sge));
        let verb = Verb::Read { address: request.address, key: request.key };
        self.gathered.chain(qp, connection, position, &verb, stretches);
        Ok(())
    }

    /// Gives the device all gathered requests, and rings the NIC's doorbells.
    #[inline]
    pub(super) fn give_gathered(&mut self) {
        self.receives.flush();
        if self.receives.has_failed()
            || self.receive_completions.has_failed()
            || self.send_completions.has_failed()
        {
            self.device_is_gone();
        }
        if self.gathered.connections.is_empty() {
            return;
        }
        while let Some(index) = self.gathered.connections.pop() {
            let (qp, connection) = self.connections.at(index);
            let Some((first, last)) = connection.gathered.take() else { continue };
            let Some(pair) = &connection.pair else { continue };
            // SAFETY: the QP lives as long as its pair.
            let posted = unsafe { self.gathered.post(pair.as_ptr(), first, last) };
            if let Err(errno) = posted {
                // Requests that the device did not take complete as flushed, with the rest.
                self.fail(qp, DisconnectReason::Transport(errno));
            }
        }
        self.gathered.clear();
    }
}
