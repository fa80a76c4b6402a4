//! Posting the SENDs that the protocol asks for to the NIC.

use super::driver::Driver;
use super::protocol::{CREDIT_RETURN_ID, Transmit};
use jet_fabric::Qp;
use jet_fabric::nic::{Payload, PostError, SendRequest};
use jet_wire::message::{
    CreditReturn, REQUEST_INLINE_USER_HEADER_MAX, RequestFields, RequestHeader, SmallFields, SmallHeader,
};

/// SENDs that are posted before the NIC's doorbell is rung for them. They are enough that ringing costs
/// little, and few enough that the receiver works on them while the next ones are written.
const SENDS_PER_RING: u32 = 8;

impl Driver {
    /// Rings the NIC's doorbell for the SENDs that were posted.
    #[inline]
    pub(super) fn ring(&mut self) {
        self.unflushed = 0;
        self.nic.flush();
    }

    /// Posts what may be sent now. Rings the NIC's doorbell after every few SENDs; the caller rings it for
    /// the last ones.
    #[inline]
    pub(super) fn transmit(&mut self) {
        let Some(qp) = self.qp else { return };
        while let Some(transmit) = self.protocol.poll_transmit() {
            match self.post(qp, transmit) {
                Ok(()) => {
                    self.unflushed += 1;
                    if self.unflushed >= SENDS_PER_RING {
                        self.ring();
                    }
                }
                // The queue is full for now, or the connection is gone and its event is about to come.
                Err(PostError::QueueFull | PostError::Stale) => {
                    self.protocol.handle_not_sent(transmit);
                    return;
                }
                // The NIC would refuse the request each time. The connection ends, and its messages are sent
                // again over the next one, so the program's sender does not fail.
                Err(PostError::LocalProtection | PostError::Limit) => {
                    self.protocol.handle_not_sent(transmit);
                    self.nic.disconnect(qp);
                    return;
                }
            }
        }
    }

    #[inline]
    fn post(&mut self, qp: Qp, transmit: Transmit) -> Result<(), PostError> {
        let (id, index, sequence, redelivered) = match transmit {
            Transmit::Message { id, index, sequence, redelivered } => (id, index, sequence, redelivered),
            Transmit::CreditReturn { credit_limit } => {
                let mut header = CreditReturn::encode(credit_limit);
                header.set_version(self.protocol.version());
                let request = SendRequest { id: CREDIT_RETURN_ID, header: &header, payload: Payload::None };
                return self.nic.post_send(qp, request);
            }
        };
        let pending = &self.pending[index as usize];
        let inline_max = self.inline_bytes_max;
        let (mut header, payload) = if pending.large {
            let buffer = pending.buffer.as_ref().expect("a large message has its buffer");
            let long = pending.user_header_bytes > REQUEST_INLINE_USER_HEADER_MAX;
            let header = RequestHeader::encode(&RequestFields {
                sequence,
                tag: pending.tag,
                length: pending.length,
                address: self.nic.remote_address(buffer.key(), buffer.offset()),
                key: buffer.key().0,
                class: pending.class,
                crc32c: pending.crc32c,
                redelivered,
                user_header: pending.header_or_filler(),
            });
            let bytes = if long { pending.user_header_bytes } else { 0 };
            let bytes = u32::try_from(bytes).expect("at most 256");
            (header, self.copy_area.payload(index, bytes, inline_max))
        } else {
            let payload_bytes = u32::try_from(pending.length).expect("checked when it was accepted");
            let header = SmallHeader::encode(&SmallFields {
                sequence,
                tag: pending.tag,
                payload_bytes,
                crc32c: pending.crc32c,
                redelivered,
                user_header: pending.header_or_filler(),
            });
            let payload = match &pending.buffer {
                None => self.copy_area.payload(index, payload_bytes, inline_max),
                Some(_) if payload_bytes == 0 => Payload::None,
                Some(buffer) => Payload::Registered(buffer.sge(payload_bytes)),
            };
            (header, payload)
        };
        header.set_version(self.protocol.version());
        self.nic.post_send(qp, SendRequest { id, header: &header, payload })
    }
}
