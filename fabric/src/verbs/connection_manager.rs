//! RDMA CM: its event channel and its identifiers. The QPs of the connections are made in
//! [`super::queue_pair`].

use super::device::RawAddress;
use super::error::VerbsError;
use crate::nic::{PRIVATE_DATA_MAX, PrivateData};
use rdma_sys::{
    ibv_device, ibv_ece, ibv_event_type, ibv_qp_attr, ibv_qp_state, rdma_accept, rdma_ack_cm_event,
    rdma_bind_addr, rdma_cm_event, rdma_cm_event_type as kind, rdma_cm_id, rdma_conn_param, rdma_connect,
    rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id, rdma_disconnect,
    rdma_establish, rdma_event_channel, rdma_get_cm_event, rdma_get_remote_ece, rdma_get_src_port,
    rdma_init_qp_attr, rdma_listen, rdma_notify, rdma_port_space, rdma_reject, rdma_resolve_addr,
    rdma_resolve_route, rdma_set_local_ece, rdma_set_option,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Connection requests that may wait for this process.
const BACKLOG: i32 = 1024;
/// Level and name of RDMA CM's option for the type of service.
const OPTION_ID: i32 = 0;
const OPTION_ID_TOS: i32 = 0;
/// Status with which InfiniBand's CM reports a request that the other end's user refused.
const REJECTED_BY_USER: i32 = 28;
/// Mask of the attributes of a QP that verbs know.
///
/// Kernels have used higher bits for themselves (21 to 24, for RoCE), and refuse those bits when they are
/// passed back (`IB_QP_ATTR_STANDARD_BITS` of their rdma/ib_verbs.h).
const QP_ATTRIBUTES: i32 = (1 << 21) - 1;

/// Channel on which events of identifiers arrive. It is non-blocking.
#[derive(Debug)]
pub(super) struct EventChannel {
    channel: *mut rdma_event_channel,
}

// SAFETY: RDMA CM's calls may be made by any thread, and by several at once.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    pub fn new() -> Result<Self, VerbsError> {
        // SAFETY: no arguments.
        let channel = unsafe { rdma_create_event_channel() };
        if channel.is_null() {
            return Err(VerbsError::verb(
                "rdma_create_event_channel",
                "load rdma_ucm (modprobe rdma_ucm); /dev/infiniband/rdma_cm must be readable and writable",
            ));
        }
        let this = Self { channel };
        let flags = fcntl_getfl(this.fd()).map_err(io::Error::from)?;
        fcntl_setfl(this.fd(), flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
        Ok(this)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, lives as long as this.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: ours; every identifier holds an `Arc` of this channel.
        unsafe { rdma_destroy_event_channel(self.channel) };
    }
}

/// READs that one end of a connection answers at once, and READs that it makes at once. RDMA CM has a byte
/// for each of the two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadDepth {
    /// READs of the other end that this end answers at once. 0 means that it refuses them.
    pub answers: u8,
    /// READs that this end makes at once.
    pub makes: u8,
}

impl ReadDepth {
    /// Depth assumed of a peer of which nothing was heard yet: the most that RDMA CM can express.
    pub const MOST: Self = Self { answers: u8::MAX, makes: u8::MAX };

    /// Limits the READ depth of this end to what is of use with a peer of depth `peer`.
    ///
    /// No end makes more READs than the other end answers, nor answers more than the other end makes.
    pub fn beside(self, peer: Self) -> Self {
        Self { answers: self.answers.min(peer.makes), makes: self.makes.min(peer.answers) }
    }
}

/// Event of an RDMA CM identifier.
#[derive(Debug)]
pub(super) enum CmEvent {
    /// A peer asks for a connection; the identifier is new.
    Request {
        id: ConnectionId,
        private_data: PrivateData,
        /// READs that the peer makes and answers.
        reads: ReadDepth,
    },
    AddressResolved,
    RouteResolved,
    /// The peer accepted, and waits until this end reports that it is ready.
    Answered {
        private_data: PrivateData,
        /// READs that the peer makes and answers.
        reads: ReadDepth,
    },
    /// The peer is ready, too: the connection is established.
    Established,
    /// The other end's user refused the connection, with this private data.
    Rejected {
        private_data: PrivateData,
    },
    /// The connection could not be made; an errno.
    Failed(i32),
    Disconnected,
    /// The device that the identifier is bound to is being removed.
    DeviceRemoved {
        device: *mut ibv_device,
    },
    /// The interface that the identifier is bound to has moved to another port (bonding).
    AddressMoved,
    /// Event that concerns no connection.
    Other,
}

/// RDMA CM identifier, destroyed when dropped.
#[derive(Debug)]
pub(super) struct ConnectionId {
    id: *mut rdma_cm_id,
    _channel: Arc<EventChannel>,
}

// SAFETY: RDMA CM's calls may be made by any thread, as for its channel.
unsafe impl Send for ConnectionId {}

/// Terms of a connection that the other end is told.
#[derive(Debug)]
pub(super) struct Terms {
    pub private_data: PrivateData,
    /// Number of this end's QP.
    pub qp_number: u32,
    /// READs that this end makes and answers.
    pub reads: ReadDepth,
    pub retry: u8,
    pub rnr_retry: u8,
}

impl Terms {
    fn raw(&self) -> rdma_conn_param {
        let data = self.private_data.as_slice();
        rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: u8::try_from(data.len()).expect("at most PRIVATE_DATA_MAX"),
            responder_resources: self.reads.answers,
            initiator_depth: self.reads.makes,
            flow_control: 1,
            retry_count: self.retry,
            rnr_retry_count: self.rnr_retry,
            srq: 1,
            qp_num: self.qp_number,
        }
    }
}

fn checked(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Packs a number into the pointer that an identifier carries for its user.
fn to_pointer(place: u64) -> *mut libc::c_void {
    const { assert!(usize::BITS == u64::BITS, "a connection's place needs 64 bits") };
    std::ptr::without_provenance_mut(usize::try_from(place).expect("as wide"))
}

fn milliseconds(span: Duration) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX)
}

impl ConnectionId {
    pub fn new(channel: &Arc<EventChannel>, place: u64) -> io::Result<Self> {
        let mut id = std::ptr::null_mut();
        let context = to_pointer(place);
        // SAFETY: the channel lives as long as the identifier, which holds it.
        checked(unsafe { rdma_create_id(channel.channel, &mut id, context, rdma_port_space::RDMA_PS_TCP) })?;
        Ok(Self { id, _channel: Arc::clone(channel) })
    }

    /// Makes an identifier that receives the events of a device, by an address of that device.
    pub fn bound_to(channel: &Arc<EventChannel>, address: IpAddr) -> io::Result<Self> {
        let id = Self::new(channel, 0)?;
        let mut raw = RawAddress::new(SocketAddr::new(address, 0));
        // SAFETY: the address is copied by the call.
        checked(unsafe { rdma_bind_addr(id.id, raw.as_mut_ptr()) })?;
        Ok(id)
    }

    /// Sets the number that the identifier carries from now on.
    pub fn set_place(&mut self, place: u64) {
        // SAFETY: the identifier is ours; the library does not look at this field.
        unsafe { (*self.id).context = to_pointer(place) };
    }

    /// Returns the device that the identifier is bound to; null where it is bound to none yet.
    pub fn device(&self) -> *mut ibv_device {
        // SAFETY: the identifier lives.
        unsafe { device_of(&*self.id) }
    }

    /// Returns the address of the host at the other end; `None` where the connection has none of IP.
    pub fn peer(&self) -> Option<IpAddr> {
        // SAFETY: the identifier lives. Its family says which of the union's addresses is set; an address of
        // none is all zeros.
        unsafe {
            let to = &(*self.id).route.addr.dst_addr_union;
            match i32::from(to.dst_addr.sa_family) {
                libc::AF_INET => Some(IpAddr::from(to.dst_sin.sin_addr.s_addr.to_ne_bytes())),
                libc::AF_INET6 => Some(IpAddr::from(to.dst_sin6.sin6_addr.s6_addr)),
                _ => None,
            }
        }
    }

    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let mut raw = RawAddress::new(address);
        // SAFETY: the address is copied by the call.
        unsafe {
            checked(rdma_bind_addr(self.id, raw.as_mut_ptr()))?;
            checked(rdma_listen(self.id, BACKLOG))?;
            Ok(SocketAddr::new(address.ip(), u16::from_be(rdma_get_src_port(self.id))))
        }
    }

    /// Sets the type of service of the connection. Must be called before the address is resolved.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        let mut tos = tos;
        // SAFETY: the value is copied by the call.
        checked(unsafe { rdma_set_option(self.id, OPTION_ID, OPTION_ID_TOS, (&raw mut tos).cast(), 1) })
    }

    pub fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let mut from = from.map(RawAddress::new);
        let mut to = RawAddress::new(to);
        let from = from.as_mut().map_or(std::ptr::null_mut(), RawAddress::as_mut_ptr);
        // SAFETY: both addresses are copied by the call.
        checked(unsafe { rdma_resolve_addr(self.id, from, to.as_mut_ptr(), milliseconds(timeout)) })
    }

    pub fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        // SAFETY: the identifier lives.
        checked(unsafe { rdma_resolve_route(self.id, milliseconds(timeout)) })
    }

    /// Returns the attributes that RDMA CM has for taking the QP to a state, and the mask of those
    /// attributes.
    pub fn qp_attributes(&self, state: ibv_qp_state::Type) -> io::Result<(ibv_qp_attr, i32)> {
        let mut mask = 0;
        // SAFETY: every bit pattern is a value of the structure, of which the call reads one field.
        unsafe {
            let mut attributes: ibv_qp_attr = std::mem::zeroed();
            attributes.qp_state = state;
            checked(rdma_init_qp_attr(self.id, &mut attributes, &mut mask))?;
            Ok((attributes, mask & QP_ATTRIBUTES))
        }
    }

    pub fn connect(&self, terms: &Terms) -> io::Result<()> {
        let mut raw = terms.raw();
        // SAFETY: the private data is copied by the call.
        checked(unsafe { rdma_connect(self.id, &mut raw) })
    }

    pub fn accept(&self, terms: &Terms) -> io::Result<()> {
        let mut raw = terms.raw();
        // SAFETY: as above.
        checked(unsafe { rdma_accept(self.id, &mut raw) })
    }

    pub fn reject(&self, private_data: &PrivateData) {
        let data = private_data.as_slice();
        let bytes = u8::try_from(data.len()).expect("at most PRIVATE_DATA_MAX");
        // SAFETY: as above. Where it fails the peer is gone already.
        unsafe { rdma_reject(self.id, data.as_ptr().cast(), bytes) };
    }

    /// Returns the options that the peer's device can use with a device of the same maker (ECE), as the peer
    /// said.
    pub fn peer_ece(&self) -> ibv_ece {
        let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the identifier lives, and has no QP of the library's making.
        unsafe { rdma_get_remote_ece(self.id, &mut ece) };
        ece
    }

    /// Sets the ECE options that the next message tells the peer.
    pub fn set_ece(&self, mut ece: ibv_ece) {
        // SAFETY: as above.
        unsafe { rdma_set_local_ece(self.id, &mut ece) };
    }

    /// Tells the peer, which has accepted, that this end is ready.
    pub fn establish(&self) -> io::Result<()> {
        // SAFETY: the identifier lives.
        checked(unsafe { rdma_establish(self.id) })
    }

    /// Tells RDMA CM that the connection is established, since its first message arrived before the peer's
    /// confirmation.
    pub fn notify_established(&self) {
        // SAFETY: the identifier lives.
        unsafe { rdma_notify(self.id, ibv_event_type::IBV_EVENT_COMM_EST) };
    }

    /// Tells the peer that the connection is over.
    pub fn disconnect(&self) {
        // SAFETY: the identifier lives. Where it fails the device or the connection is gone already.
        unsafe { rdma_disconnect(self.id) };
    }
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        // SAFETY: ours; its events are acknowledged as they are taken, so this does not wait.
        unsafe { rdma_destroy_id(self.id) };
    }
}

/// Takes the next event, with the number that its identifier carries. `None` where there is none.
pub(super) fn next_event(channel: &Arc<EventChannel>) -> Option<(u64, CmEvent)> {
    let mut raw: *mut rdma_cm_event = std::ptr::null_mut();
    // SAFETY: an event that was taken stays valid until it is acknowledged, which happens once, after all
    // that is needed of it was copied.
    unsafe {
        if rdma_get_cm_event(channel.channel, &mut raw) != 0 {
            return None;
        }
        let event = &*raw;
        let place = (*event.id).context.addr() as u64;
        let private_data = private_data(event);
        let decoded = match event.event {
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let id = ConnectionId { id: event.id, _channel: Arc::clone(channel) };
                CmEvent::Request { id, private_data, reads: peer_reads(event) }
            }
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => CmEvent::AddressResolved,
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEvent::RouteResolved,
            kind::RDMA_CM_EVENT_CONNECT_RESPONSE => {
                CmEvent::Answered { private_data, reads: peer_reads(event) }
            }
            kind::RDMA_CM_EVENT_ESTABLISHED => CmEvent::Established,
            kind::RDMA_CM_EVENT_REJECTED if event.status == REJECTED_BY_USER => {
                CmEvent::Rejected { private_data }
            }
            kind::RDMA_CM_EVENT_REJECTED => CmEvent::Failed(libc::ECONNREFUSED),
            kind::RDMA_CM_EVENT_ADDR_ERROR
            | kind::RDMA_CM_EVENT_ROUTE_ERROR
            | kind::RDMA_CM_EVENT_CONNECT_ERROR
            | kind::RDMA_CM_EVENT_UNREACHABLE => {
                let errno = event.status.checked_abs().filter(|errno| *errno > 0);
                CmEvent::Failed(errno.unwrap_or(libc::EHOSTUNREACH))
            }
            kind::RDMA_CM_EVENT_DISCONNECTED => CmEvent::Disconnected,
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEvent::DeviceRemoved { device: device_of(&*event.id) },
            kind::RDMA_CM_EVENT_ADDR_CHANGE => CmEvent::AddressMoved,
            _ => CmEvent::Other,
        };
        rdma_ack_cm_event(raw);
        Some((place, decoded))
    }
}

/// Returns the device that an identifier is bound to; null where it is bound to none.
///
/// # Safety
/// The identifier lives.
unsafe fn device_of(id: &rdma_cm_id) -> *mut ibv_device {
    // SAFETY: the library has the device open as long as the identifier lives.
    if id.verbs.is_null() { std::ptr::null_mut() } else { unsafe { (*id.verbs).device } }
}

/// Returns the READs that the other end makes and answers.
///
/// # Safety
/// The event was taken and not acknowledged, and is a request or an answer.
unsafe fn peer_reads(event: &rdma_cm_event) -> ReadDepth {
    // SAFETY: these events have the parameters of a connection, as seen from this end.
    let conn = unsafe { event.param.conn };
    ReadDepth { answers: conn.initiator_depth, makes: conn.responder_resources }
}

/// Returns the private data of the other end. RDMA CM pads it with zeros, and they are returned, too.
///
/// # Safety
/// The event was taken and not acknowledged.
unsafe fn private_data(event: &rdma_cm_event) -> PrivateData {
    let carries = matches!(
        event.event,
        kind::RDMA_CM_EVENT_CONNECT_REQUEST
            | kind::RDMA_CM_EVENT_ESTABLISHED
            | kind::RDMA_CM_EVENT_REJECTED
            | kind::RDMA_CM_EVENT_CONNECT_RESPONSE
    );
    // SAFETY: these events have the parameters of a connection, whose data is as long as they say.
    let data = unsafe {
        let conn = event.param.conn;
        if carries && !conn.private_data.is_null() {
            std::slice::from_raw_parts(conn.private_data.cast::<u8>(), usize::from(conn.private_data_len))
        } else {
            &[]
        }
    };
    PrivateData::new(&data[..data.len().min(PRIVATE_DATA_MAX)]).expect("cut to what fits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_makes_what_the_other_answers_and_answers_what_the_other_makes() {
        let daemon = ReadDepth { answers: 0, makes: 16 };
        let sender = ReadDepth { answers: 8, makes: 0 };
        assert_eq!(daemon.beside(sender), ReadDepth { answers: 0, makes: 8 });
        assert_eq!(sender.beside(daemon), ReadDepth { answers: 8, makes: 0 });
        let reader = ReadDepth { answers: 4, makes: 32 };
        assert_eq!(reader.beside(ReadDepth::MOST), reader);
        assert_eq!(reader.beside(sender), ReadDepth { answers: 0, makes: 8 });
    }
}
