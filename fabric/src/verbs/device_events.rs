//! Events of the device itself, which every NIC of the process that shares it may be the one to take.
//!
//! So each QP and each SRQ names a place for its own, and whoever takes an event notes it there.

use super::device::Device;
use rdma_sys::{ibv_ack_async_event, ibv_async_event, ibv_cq, ibv_get_async_event, ibv_qp, ibv_srq};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The QP takes no SRQ entry any more.
pub(super) const LAST_WQE: u32 = 1;
/// Its first message came before its connection stood.
pub(super) const ESTABLISHED: u32 = 2;
/// The QP, SRQ or completion queue failed, or a QP's peer asked for what it must not.
pub(super) const FATAL: u32 = 4;
/// Few SRQ entries are left.
pub(super) const SRQ_LIMIT: u32 = 8;

/// The library's number of the event that says so.
const DEVICE_FATAL: u32 = 8;

/// An event as the library writes it. Not its own type, in which an event that is newer than the bindings would have no
/// value.
#[repr(C)]
struct RawEvent {
    element: *mut libc::c_void,
    kind: u32,
}

const _: () = assert!(size_of::<RawEvent>() == size_of::<ibv_async_event>());

/// Makes taking an event not wait.
pub(super) fn prepare(device: &Device) -> io::Result<()> {
    let flags = fcntl_getfl(device.async_fd())?;
    Ok(fcntl_setfl(device.async_fd(), flags | OFlags::NONBLOCK)?)
}

/// Events taken by this process so far.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// The addresses of contexts whose devices failed for good.
static FAILED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Whether anything came since this was asked last.
pub(super) fn any_since(seen: &mut u64) -> bool {
    // Acquire, as the Release of whoever took the event.
    let taken = TAKEN.load(Ordering::Acquire);
    std::mem::replace(seen, taken) != taken
}

fn failed() -> MutexGuard<'static, Vec<usize>> {
    // A list of addresses is whole whoever panicked.
    FAILED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the device said that it failed for good.
pub(super) fn has_failed(device: &Device) -> bool {
    failed().contains(&device.context().addr())
}

/// Takes all that came, and notes each where it belongs.
pub(super) fn take(device: &Device) {
    loop {
        let mut raw = MaybeUninit::<RawEvent>::zeroed();
        let event = raw.as_mut_ptr().cast::<ibv_async_event>();
        // SAFETY: the structure has the library's layout. A QP or SRQ that an event names cannot be destroyed before the
        // event is acknowledged, and the place that it names lives longer than it.
        unsafe {
            if ibv_get_async_event(device.context(), event) != 0 {
                return;
            }
            let RawEvent { element, kind } = raw.assume_init_read();
            if kind == DEVICE_FATAL {
                failed().push(device.context().addr());
            }
            let place = match kind {
                1..=4 | 16 => (*element.cast::<ibv_qp>()).qp_context,
                14 | 15 => (*element.cast::<ibv_srq>()).srq_context,
                0 => (*element.cast::<ibv_cq>()).cq_context,
                _ => std::ptr::null_mut(),
            };
            let bit = match kind {
                0..=3 | 14 => FATAL,
                4 => ESTABLISHED,
                15 => SRQ_LIMIT,
                _ => LAST_WQE,
            };
            if let Some(place) = place.cast::<AtomicU32>().as_ref() {
                // Release, as the reader's swap is Acquire: the event is seen by whoever sees the bit.
                place.fetch_or(bit, Ordering::Release);
            }
            TAKEN.fetch_add(1, Ordering::Release);
            ibv_ack_async_event(event);
        }
    }
}
