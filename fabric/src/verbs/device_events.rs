//! Events of the device, and of the objects that a NIC has made in it.
//!
//! The context that they come from is the NIC's own ([`super::context`]). So every object that an event names
//! is the NIC's. It also lives, since it cannot be destroyed before the event is acknowledged.

use super::context::Context;
use rdma_sys::{ibv_ack_async_event, ibv_async_event, ibv_get_async_event, ibv_qp};
use std::mem::MaybeUninit;

/// Event that the device reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceEvent {
    /// Event of a QP, by the QP's number.
    Qp { number: u32, event: QpEvent },
    /// Few SRQ entries are left.
    SrqLimit,
    /// An SRQ or a completion queue failed.
    QueueFailed,
    /// The device failed for good.
    DeviceFailed,
    /// Event of a port, by the port's number.
    Port { number: u8, event: PortEvent },
    /// Event that does not concern a NIC, by the library's number for it.
    Other(u32),
}

/// Event of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QpEvent {
    /// The QP takes no SRQ entry any more.
    LastEntryTaken,
    /// The QP's first message arrived before its connection was established.
    Established,
    /// The QP failed, or its peer made a request that is not allowed.
    Failed,
}

/// Event of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortEvent {
    /// The port carries packets.
    Up,
    /// The port no longer carries packets.
    Down,
    /// Something else of the port changed: its addresses, its partitions, its subnet manager.
    Changed,
}

/// Event as the library writes it.
///
/// The bindings' own type is not used: an event newer than the bindings would not be a valid value of that
/// type.
#[repr(C)]
struct RawEvent {
    element: *mut libc::c_void,
    kind: u32,
}

const _: () = assert!(size_of::<RawEvent>() == size_of::<ibv_async_event>());

/// Takes the next event, if there is one.
pub(super) fn next(context: &Context) -> Option<DeviceEvent> {
    let mut raw = MaybeUninit::<RawEvent>::zeroed();
    let event = raw.as_mut_ptr().cast::<ibv_async_event>();
    // SAFETY: the structure has the library's layout. The QP that an event names is one that was made in this
    // context, and stays until the event is acknowledged.
    unsafe {
        if ibv_get_async_event(context.as_ptr(), event) != 0 {
            return None;
        }
        let RawEvent { element, kind } = raw.assume_init_read();
        let of_qp = |event| DeviceEvent::Qp { number: (*element.cast::<ibv_qp>()).qp_num, event };
        // Events of ports have a number in place of a pointer.
        let of_port = |event| {
            let number = u8::try_from(element.addr() & usize::from(u8::MAX)).expect("a byte");
            DeviceEvent::Port { number, event }
        };
        let decoded = match kind {
            1..=3 => of_qp(QpEvent::Failed),
            4 => of_qp(QpEvent::Established),
            16 => of_qp(QpEvent::LastEntryTaken),
            0 | 14 => DeviceEvent::QueueFailed,
            15 => DeviceEvent::SrqLimit,
            8 => DeviceEvent::DeviceFailed,
            9 => of_port(PortEvent::Up),
            10 => of_port(PortEvent::Down),
            11..=13 | 17 | 18 => of_port(PortEvent::Changed),
            other => DeviceEvent::Other(other),
        };
        ibv_ack_async_event(event);
        Some(decoded)
    }
}
