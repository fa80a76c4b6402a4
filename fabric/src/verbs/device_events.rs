//! Events of the device, and of what a NIC has in it. The context that they come from is the NIC's own
//! ([`super::context`]), so every element that one names is the NIC's, and lives: it cannot be destroyed
//! before the event is acknowledged.

use super::context::Context;
use rdma_sys::{ibv_ack_async_event, ibv_async_event, ibv_get_async_event, ibv_qp};
use std::mem::MaybeUninit;

/// What the device said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceEvent {
    /// Of a QP, by its number.
    Qp { number: u32, said: QpEvent },
    /// Few SRQ entries are left.
    SrqLimit,
    /// An SRQ or a completion queue failed.
    QueueFailed,
    /// The device failed for good.
    DeviceFailed,
    /// Of a port, by its number.
    Port { number: u8, said: PortEvent },
    /// Nothing that concerns a NIC; the library's number of it.
    Other(u32),
}

/// What it said of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QpEvent {
    /// It takes no SRQ entry any more.
    LastEntryTaken,
    /// Its first message came before its connection stood.
    Established,
    /// It failed, or its peer asked for what it must not.
    Failed,
}

/// What it said of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortEvent {
    /// It carries packets.
    Up,
    /// It carries none any more.
    Down,
    /// Something else of it changed: its addresses, its partitions, its subnet manager.
    Changed,
}

/// An event as the library writes it. Not its own type, in which an event that is newer than the bindings
/// would have no value.
#[repr(C)]
struct RawEvent {
    element: *mut libc::c_void,
    kind: u32,
}

const _: () = assert!(size_of::<RawEvent>() == size_of::<ibv_async_event>());

/// The next event, if one came.
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
        let of_qp = |said| DeviceEvent::Qp { number: (*element.cast::<ibv_qp>()).qp_num, said };
        // In place of an element there is a number then.
        let of_port = |said| {
            let number = u8::try_from(element.addr() & usize::from(u8::MAX)).expect("a byte");
            DeviceEvent::Port { number, said }
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
