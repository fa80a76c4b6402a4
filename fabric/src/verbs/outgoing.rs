//! Memory for the bytes of SENDs until the device has taken them.
//!
//! A header is copied, and so is an inline payload. A registered payload stays where it is, and the device
//! gathers both. For a device that gathers only one stretch, header and payload are copied behind one
//! another.

use super::connections::{NOWHERE, Posted};
use super::error::VerbsError;
use super::options::PAYLOAD_BYTES_MAX;
use super::regions::{Domain, Regions};
use super::staging::Staging;
use crate::nic::{Payload, PostError, SendRequest};
use jet_wire::message::HEADER_BYTES;
use rdma_sys::ibv_sge;
use std::sync::Arc;

/// SEND as the device is to gather it.
pub(super) struct StagedSend {
    pub posted: Posted,
    pub first: ibv_sge,
    pub second: Option<ibv_sge>,
    /// Whether the stretches' addresses are this process's own: the processor then copies the bytes into the
    /// request.
    pub inline: bool,
}

/// Staged headers and payloads.
#[derive(Debug)]
pub(super) struct Outgoing {
    headers: Staging,
    payloads: Staging,
    in_one_stretch: bool,
}

impl Outgoing {
    /// Makes room for so many SENDs, and for so many copied payloads. `send_sges` is how many stretches the
    /// device gathers.
    pub fn new(domain: &Arc<Domain>, sends: u32, payloads: u32, send_sges: u32) -> Result<Self, VerbsError> {
        let in_one_stretch = send_sges == 1;
        let beside = if in_one_stretch { HEADER_BYTES } else { 0 };
        let payload_bytes = beside + PAYLOAD_BYTES_MAX as usize;
        Ok(Self {
            headers: Staging::new(domain, "jet-headers-out", sends, HEADER_BYTES)?,
            payloads: Staging::new(domain, "jet-payloads-out", payloads, payload_bytes)?,
            in_one_stretch,
        })
    }

    /// Puts a SEND where the device finds it. The caller has checked that there is a place for one more
    /// header.
    ///
    /// # Errors
    /// [`PostError::LocalProtection`], and [`PostError::QueueFull`] where no place for a payload is left.
    #[inline]
    pub fn stage(
        &mut self,
        request: &SendRequest<'_>,
        regions: &Regions,
        inline_bytes: u32,
    ) -> Result<StagedSend, PostError> {
        match request.payload {
            Payload::Registered(sge) => {
                let stretch = regions.translate(sge).ok_or(PostError::LocalProtection)?;
                if !self.in_one_stretch || sge.bytes == 0 {
                    let mut staged = self.header(request);
                    staged.second = Some(stretch).filter(|stretch| stretch.length > 0);
                    return Ok(staged);
                }
                let from = regions.address(sge).ok_or(PostError::LocalProtection)?;
                // SAFETY: registered memory of so many bytes, which its user leaves alone until the SEND
                // completes.
                let bytes = unsafe { std::slice::from_raw_parts(from, sge.bytes as usize) };
                self.together(request, bytes, inline_bytes)
            }
            Payload::Inline(bytes) if self.in_one_stretch && !bytes.is_empty() => {
                self.together(request, bytes, inline_bytes)
            }
            Payload::Inline(bytes) if !bytes.is_empty() => self.apart(request, bytes, inline_bytes),
            Payload::None | Payload::Inline(_) => {
                let mut staged = self.header(request);
                staged.inline = staged.first.length <= inline_bytes;
                if staged.inline {
                    staged.first.addr = self.headers.address(&staged.first);
                }
                Ok(staged)
            }
        }
    }

    #[inline]
    fn header(&mut self, request: &SendRequest<'_>) -> StagedSend {
        let (place, first) = self.headers.put(&[&request.header.0]);
        let posted = Posted::Send { header: place, payload: NOWHERE };
        StagedSend { posted, first, second: None, inline: false }
    }

    fn apart(
        &mut self,
        request: &SendRequest<'_>,
        bytes: &[u8],
        inline_bytes: u32,
    ) -> Result<StagedSend, PostError> {
        if !self.payloads.has_room() {
            return Err(PostError::QueueFull);
        }
        let (header, mut first) = self.headers.put(&[&request.header.0]);
        let (payload, mut second) = self.payloads.put(&[bytes]);
        let inline = first.length + second.length <= inline_bytes;
        if inline {
            first.addr = self.headers.address(&first);
            second.addr = self.payloads.address(&second);
        }
        Ok(StagedSend { posted: Posted::Send { header, payload }, first, second: Some(second), inline })
    }

    fn together(
        &mut self,
        request: &SendRequest<'_>,
        bytes: &[u8],
        inline_bytes: u32,
    ) -> Result<StagedSend, PostError> {
        if !self.payloads.has_room() {
            return Err(PostError::QueueFull);
        }
        let (payload, mut first) = self.payloads.put(&[&request.header.0, bytes]);
        let inline = first.length <= inline_bytes;
        if inline {
            first.addr = self.payloads.address(&first);
        }
        Ok(StagedSend { posted: Posted::Send { header: NOWHERE, payload }, first, second: None, inline })
    }

    /// Gives back the places of a SEND that the device has taken.
    #[inline]
    pub fn give(&mut self, header: u32, payload: u32) {
        if header != NOWHERE {
            self.headers.give(header);
        }
        if payload != NOWHERE {
            self.payloads.give(payload);
        }
    }
}
