//! Posting the SENDs that the protocol asks for to the NIC.

use super::buffer::{BufferPool, SendBuffer};
use super::driver::Driver;
use super::held::Held;
use super::protocol::{CANCEL_ID, CREDIT_RETURN_ID, Transmit};
use jet_fabric::nic::{MemoryKey, Payload, PostError, SendRequest, Sge};
use jet_fabric::{Nic, Qp};
use jet_wire::message::{
    CancelHeader, CreditReturn, HeaderBytes, PIECE_BYTES, Piece, REQUEST_INLINE_USER_HEADER_MAX,
    RequestFields, RequestHeader, SmallFields, SmallHeader,
};

/// SENDs that are posted before the NIC's doorbell is rung for them. They are enough that ringing costs
/// little, and few enough that the receiver works on them while the next ones are written.
const SENDS_PER_RING: u32 = 8;
/// Longest message whose bytes are offered with its request. What is offered and cannot be taken at once is
/// sent twice, and other SENDs wait behind it.
const OFFER_BYTES_MAX: u64 = 64 << 10;
/// Messages without an end up to which the last one is offered. With more under way the receiver READs one
/// while it asks for the next, and what was not asked for only interrupts it.
const OFFER_WITHIN: u32 = 8;
/// Why a message's memory is known to the NIC.
const REGISTERED: &str = "checked at the submission, and not deregistered while it is in flight";

/// Where a large message lies, in the terms of the present NIC.
#[derive(Clone, Copy, Debug)]
struct Extent {
    address: u64,
    key: u32,
    /// Pieces of a message that lies in several; else 0.
    pieces: u8,
}

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
                return self.post_control(qp, CREDIT_RETURN_ID, CreditReturn::encode(credit_limit));
            }
            Transmit::Cancel { sequence, .. } => {
                return self.post_control(qp, CANCEL_ID, CancelHeader::encode(sequence));
            }
        };
        let pending = &self.pending[index as usize];
        let wants_reply = pending.wants_reply && self.protocol.may_want_replies();
        let mut offered = None;
        let (mut header, payload) = if pending.large {
            let long = pending.user_header_bytes > REQUEST_INLINE_USER_HEADER_MAX;
            let behind = if long { pending.user_header_bytes } else { 0 };
            let area = &mut self.copy_area;
            let put = |at, piece: Piece| area.write(index, behind + at * PIECE_BYTES, &piece.to_bytes());
            let Extent { address, key, pieces } =
                extent(self.nic.as_ref(), &self.buffers, &pending.held, put);
            if pieces == 0
                && pending.length <= OFFER_BYTES_MAX
                && self.protocol.unfinished() <= OFFER_WITHIN
                && self.protocol.may_push()
            {
                let bytes = u32::try_from(pending.length).expect("it was just compared");
                offered = Some((address, key, bytes));
            }
            let header = RequestHeader::encode(&RequestFields {
                sequence,
                tag: pending.tag,
                length: pending.length,
                address,
                key,
                class: pending.class,
                pieces,
                crc32c: pending.crc32c,
                redelivered,
                wants_reply,
                user_header: pending.header_or_filler(),
            });
            let bytes = behind + usize::from(pieces) * PIECE_BYTES;
            let bytes = u32::try_from(bytes).expect("at most 512");
            (header, self.copy_area.payload(self.nic.as_mut(), index, bytes))
        } else {
            let payload_bytes = u32::try_from(pending.length).expect("checked when it was accepted");
            let header = SmallHeader::encode(&SmallFields {
                sequence,
                tag: pending.tag,
                payload_bytes,
                crc32c: pending.crc32c,
                redelivered,
                wants_reply,
                user_header: pending.header_or_filler(),
            });
            let payload = match &pending.held {
                Held::Buffer(_) if payload_bytes == 0 => Payload::None,
                Held::Buffer(buffer) => {
                    let key = self.buffers.key(buffer).expect(REGISTERED);
                    Payload::Registered(Sge { key, offset: buffer.offset(), bytes: payload_bytes })
                }
                _ => self.copy_area.payload(self.nic.as_mut(), index, payload_bytes),
            };
            (header, payload)
        };
        header.set_version(self.protocol.version());
        self.nic.post_send(qp, SendRequest { id, header: &header, payload })?;
        if let Some((address, key, bytes)) = offered {
            self.nic.offer(qp, address, key, bytes);
        }
        Ok(())
    }

    /// Posts a SEND that carries no message.
    fn post_control(&mut self, qp: Qp, id: u64, mut header: HeaderBytes) -> Result<(), PostError> {
        header.set_version(self.protocol.version());
        self.nic.post_send(qp, SendRequest { id, header: &header, payload: Payload::None })
    }
}

/// Returns where a large message lies. `put` gets the pieces of one that lies in several, each with its
/// index.
#[inline]
fn extent(nic: &dyn Nic, buffers: &BufferPool, held: &Held, mut put: impl FnMut(usize, Piece)) -> Extent {
    let one = |key: MemoryKey, offset| {
        let address = nic.remote_address(key, offset);
        Extent { address, key: key.0, pieces: 0 }
    };
    let of_buffer = |buffer: &SendBuffer| one(buffers.key(buffer).expect(REGISTERED), buffer.offset());
    let pieces = match held {
        Held::Buffer(buffer) => std::slice::from_ref(buffer),
        Held::Pieces(pieces) => pieces,
        #[cfg(feature = "bytes")]
        Held::Bytes(bytes) => return one(bytes.key(), bytes.offset()),
        Held::Copied => unreachable!("a large message has its memory"),
    };
    match pieces {
        [buffer] => of_buffer(buffer),
        pieces => {
            for (index, buffer) in pieces.iter().enumerate() {
                let Extent { address, key, .. } = of_buffer(buffer);
                let bytes = u32::try_from(buffer.len()).expect("checked when it was accepted");
                put(index, Piece::new(address, bytes, key));
            }
            let pieces = u8::try_from(pieces.len()).expect("checked when it was accepted");
            Extent { address: 0, key: 0, pieces }
        }
    }
}
