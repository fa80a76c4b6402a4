//! Context in which a NIC has the device open: the NIC's queues are made in it, and its events arrive there.
//!
//! librdmacm opens a device once for everybody in the process. Everything that is made in that context shares
//! one queue of events. Code that takes an event there takes it from all other users, and finds pointers in
//! it that belong to others. So that context serves RDMA CM alone. A NIC makes nothing in it, and does not
//! read its events.

use super::error::VerbsError;
use rdma_sys::{ibv_close_device, ibv_context, ibv_device, ibv_get_device_name, ibv_open_device};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

/// Open context of a device. It is closed when dropped, which must be after everything that was made in it.
#[derive(Debug)]
pub(super) struct Context(*mut ibv_context);

impl Context {
    /// Opens the device of another context once more. Taking an event of the new context does not wait.
    ///
    /// # Safety
    /// The other context is open.
    pub unsafe fn beside(other: *mut ibv_context) -> Result<Self, VerbsError> {
        // SAFETY: an open context has a device, which the library keeps as long as the context is open.
        let context = unsafe { ibv_open_device((*other).device) };
        if context.is_null() {
            return Err(VerbsError::verb(
                "ibv_open_device",
                "/dev/infiniband/uverbs* must be readable and writable",
            ));
        }
        let this = Self(context);
        let flags = fcntl_getfl(this.async_fd()).map_err(io::Error::from)?;
        fcntl_setfl(this.async_fd(), flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
        Ok(this)
    }

    pub fn as_ptr(&self) -> *mut ibv_context {
        self.0
    }

    /// Returns the context's device. The library has one object for a device as long as anybody has it open.
    pub fn device(&self) -> *mut ibv_device {
        // SAFETY: this context is open.
        unsafe { (*self.0).device }
    }

    /// Returns the device's name.
    pub fn name(&self) -> String {
        // SAFETY: this context is open.
        unsafe { name_of(self.0) }
    }

    /// Returns how many vectors completion queues may choose from.
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: this context is open.
        u32::try_from(unsafe { (*self.0).num_comp_vectors }).unwrap_or(0)
    }

    /// Returns the descriptor on which the context's events arrive.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context, and so its descriptor, is open as long as this lives.
        unsafe { BorrowedFd::borrow_raw((*self.0).async_fd) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: ours; everything that was made in it is gone.
        unsafe { ibv_close_device(self.0) };
    }
}

/// Returns the name of a context's device.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn name_of(context: *mut ibv_context) -> String {
    // SAFETY: an open context has a device, whose name is a C string that lives as long.
    unsafe { CStr::from_ptr(ibv_get_device_name((*context).device)) }.to_string_lossy().into_owned()
}
