//! Devices as RDMA CM knows them: choosing one, its limits, and its counters.
//!
//! librdmacm opens a device when the first identifier is bound to it, and keeps it open while the process
//! lives. Only a removed device is closed earlier: when its last identifier is destroyed. A NIC makes its
//! objects in a context of its own beside that ([`super::context`]). A NIC opens only the device that it
//! needs: a process that holds a device open without noticing its removal keeps the device from being
//! removed.

use super::addresses::{Host, LocalAddress};
use super::completion_vector::Interrupts;
use super::context::{Context, name_of};
use super::error::VerbsError;
use super::options::DeviceChoice;
use super::port::Port;
use crate::limits::DeviceAttributes;
use crate::memory::node_of_device;
use rdma_sys::{
    ibv_context, ibv_device_attr, ibv_query_device, ibv_transport_type, rdma_bind_addr, rdma_cm_id,
    rdma_create_id, rdma_destroy_id, rdma_free_devices, rdma_get_devices, rdma_port_space, rdma_resolve_addr,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Time in milliseconds that resolving an address may take.
const RESOLVE_MS: i32 = 2000;

/// Open device.
#[derive(Debug)]
pub(super) struct Device {
    /// Context of the device. `None` once it is closed, at the very end of the device's drop.
    context: Option<Context>,
    port: Port,
    attributes: DeviceAttributes,
    completion_vector: u32,
    rnr_counters: Vec<PathBuf>,
    rnr_before: u64,
    gone: bool,
}

/// Socket address in the C library's form.
#[repr(C)]
pub(super) union RawAddress {
    storage: libc::sockaddr_storage,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

fn family(family: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).expect("families are small numbers")
}

impl RawAddress {
    pub fn new(address: SocketAddr) -> Self {
        // SAFETY: all zeros is a value of each of the union's members.
        let mut raw: Self = unsafe { std::mem::zeroed() };
        match address {
            SocketAddr::V4(v4) => {
                raw.v4.sin_family = family(libc::AF_INET);
                raw.v4.sin_port = v4.port().to_be();
                raw.v4.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                raw.v6.sin6_family = family(libc::AF_INET6);
                raw.v6.sin6_port = v6.port().to_be();
                raw.v6.sin6_addr.s6_addr = v6.ip().octets();
                raw.v6.sin6_scope_id = v6.scope_id();
            }
        }
        raw
    }

    pub fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        std::ptr::from_mut(self).cast()
    }
}

/// Lets RDMA CM close devices that were removed and that nobody uses any more.
///
/// Without that their removal waits for the end of the process. The call makes RDMA CM open all other
/// devices.
fn close_removed() {
    let mut count = 0;
    // SAFETY: the list is the library's, and given back.
    unsafe {
        let list = rdma_get_devices(&mut count);
        if !list.is_null() {
            rdma_free_devices(list);
        }
    }
}

/// Makes an identifier bound to the device that has an address. Where none has it, the device is the one from
/// which the address is reached.
fn reaching(address: IpAddr) -> Result<SynchronousId, VerbsError> {
    Host::this().devices()?;
    let failed = || VerbsError::Unreachable { address, source: io::Error::last_os_error() };
    let id = SynchronousId::new()?;
    if id.bind(address) {
        return Ok(id);
    }
    // An identifier that could not be bound is of no further use.
    let id = SynchronousId::new()?;
    if id.resolve(address) { Ok(id) } else { Err(failed()) }
}

/// Makes an identifier bound to the device of this name, by an address of the device.
///
/// # Errors
/// [`VerbsError::Ambiguous`] where the address leads to another device.
fn named(device: &str, address: IpAddr) -> Result<SynchronousId, VerbsError> {
    let id = reaching(address)?;
    // SAFETY: the library has the device open as long as the identifier lives.
    match id.context().map(|context| unsafe { name_of(context) }) {
        Some(other) if other != device => {
            Err(VerbsError::Ambiguous { device: device.to_owned(), address, other })
        }
        _ => Ok(id),
    }
}

/// Makes an identifier bound to a device, by the first of these addresses that leads to it.
///
/// # Errors
/// The reason why the last address does not lead there, or [`VerbsError::NoAddress`] where there is none.
fn bound_by(addresses: &[LocalAddress], device: &str) -> Result<SynchronousId, VerbsError> {
    let mut last = VerbsError::NoAddress { device: device.to_owned() };
    for found in addresses {
        match named(&found.device, found.address) {
            Ok(id) => return Ok(id),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// RDMA CM identifier that works synchronously, used to ask about devices. Its context belongs to the
/// library, and lives as long as the identifier.
#[derive(Debug)]
struct SynchronousId(*mut rdma_cm_id);

impl SynchronousId {
    fn new() -> Result<Self, VerbsError> {
        let mut id = std::ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: without a channel the identifier has one of its own.
        if unsafe { rdma_create_id(std::ptr::null_mut(), &mut id, std::ptr::null_mut(), space) } != 0 {
            return Err(VerbsError::verb("rdma_create_id", "load rdma_ucm (modprobe rdma_ucm)"));
        }
        Ok(Self(id))
    }

    fn context(&self) -> Option<*mut ibv_context> {
        // SAFETY: the identifier lives.
        let context = unsafe { (*self.0).verbs };
        (!context.is_null()).then_some(context)
    }

    /// Returns the number of the port that the identifier is bound to; 1 where it is bound to none.
    fn port(&self) -> u8 {
        // SAFETY: the identifier lives.
        unsafe { (*self.0).port_num }.max(1)
    }

    /// Binds the identifier to the device that has the address. `false` where none has it.
    fn bind(&self, address: IpAddr) -> bool {
        let mut raw = RawAddress::new(SocketAddr::new(address, 0));
        // SAFETY: the address is copied by the call.
        let bound = unsafe { rdma_bind_addr(self.0, raw.as_mut_ptr()) } == 0;
        bound && self.context().is_some()
    }

    /// Binds the identifier to the device from which the address is reached. `false` where there is none.
    fn resolve(&self, address: IpAddr) -> bool {
        let mut raw = RawAddress::new(SocketAddr::new(address, 1));
        // SAFETY: as above.
        let resolved =
            unsafe { rdma_resolve_addr(self.0, std::ptr::null_mut(), raw.as_mut_ptr(), RESOLVE_MS) } == 0;
        resolved && self.context().is_some()
    }
}

impl Drop for SynchronousId {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { rdma_destroy_id(self.0) };
    }
}

impl Device {
    /// Opens the chosen device. `cpu` is the processor of the thread that sleeps on the NIC.
    pub fn open(choice: &DeviceChoice, cpu: Option<usize>) -> Result<Self, VerbsError> {
        let host = Host::this();
        let (found, source) = match choice {
            // The kernel would take a loopback address for one of every device.
            DeviceChoice::Reaching(address) if address.is_loopback() => {
                return Err(VerbsError::Loopback { address: *address });
            }
            DeviceChoice::Reaching(address) if address.is_unspecified() => {
                (bound_by(&host.local_addresses()?, "each of them")?, None)
            }
            DeviceChoice::Reaching(address) => (reaching(*address)?, None),
            DeviceChoice::Named { device, port, gid_index } => {
                let present = host.devices()?;
                if !present.contains(device) {
                    return Err(VerbsError::NoSuchDevice { wanted: device.clone(), present });
                }
                match gid_index {
                    Some(index) => {
                        let address = host.address_of(device, *port, *index)?;
                        (named(device, address)?, Some(address))
                    }
                    None if !host.has_port(device, *port) => {
                        return Err(VerbsError::NoPort { device: device.clone(), port: *port });
                    }
                    None => (bound_by(&host.addresses_of(device, *port), device)?, None),
                }
            }
        };
        let of_library = found.context().expect("an identifier that was bound has a device");
        // SAFETY: the library has the device open as long as the identifier lives.
        let context = unsafe {
            if (*(*of_library).device).transport_type == ibv_transport_type::IBV_TRANSPORT_IWARP {
                return Err(VerbsError::Iwarp { device: name_of(of_library) });
            }
            Context::beside(of_library)?
        };
        let name = context.name();
        let number = match choice {
            DeviceChoice::Named { port, .. } => *port,
            DeviceChoice::Reaching(_) => found.port(),
        };
        let folder = PathBuf::from(format!("/sys/class/infiniband/{name}/ports/{number}/hw_counters"));
        // Counters of SENDs that found no SRQ entry: of mlx5, and of rxe.
        let rnr_counters =
            ["out_of_buffer", "send_rnr_err"].map(|counter| folder.join(counter)).into_iter().collect();
        let attributes = attributes(context.as_ptr())?;
        let completion_vector = Interrupts::this().vector_near(&name, context.completion_vectors(), cpu);
        let port = Port::new(&context, name, number, source);
        let mut device = Self {
            context: Some(context),
            port,
            attributes,
            completion_vector,
            rnr_counters,
            rnr_before: 0,
            gone: false,
        };
        device.rnr_before = device.read_rnr();
        Ok(device)
    }

    /// Notes that the device was removed. The kernel finishes the removal once this `Device` is dropped.
    pub fn set_gone(&mut self) {
        self.gone = true;
    }

    pub fn is_gone(&self) -> bool {
        self.gone
    }

    pub fn context(&self) -> &Context {
        self.context.as_ref().expect("a device is open until it is dropped")
    }

    /// Returns the port of the NIC's connections.
    pub fn port(&self) -> &Port {
        &self.port
    }

    pub fn name(&self) -> &str {
        &self.port.device
    }

    /// Returns the limits that the device reports.
    pub fn attributes(&self) -> DeviceAttributes {
        self.attributes
    }

    /// Returns the interrupt vector for the NIC's completion queues.
    pub fn completion_vector(&self) -> u32 {
        self.completion_vector
    }

    /// Returns the NUMA node that the device is attached to. `None` on a host with one node, and for a device
    /// without a bus (soft-RoCE).
    pub fn numa_node(&self) -> Option<u32> {
        node_of_device(Path::new("/sys"), self.name())
    }

    fn read_rnr(&self) -> u64 {
        let read = |path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        self.rnr_counters.iter().filter_map(read).sum()
    }

    /// Returns how often a SEND found no SRQ entry since the device was opened, counting all users of the
    /// device. Makes system calls.
    pub fn rnr(&self) -> u64 {
        self.read_rnr().saturating_sub(self.rnr_before)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.context = None;
        if self.gone {
            close_removed();
        }
    }
}

fn attributes(context: *mut ibv_context) -> Result<DeviceAttributes, VerbsError> {
    // SAFETY: the verb fills the structure, of which every bit pattern is a value.
    let raw = unsafe {
        let mut raw: ibv_device_attr = std::mem::zeroed();
        if ibv_query_device(context, &mut raw) != 0 {
            return Err(VerbsError::verb("ibv_query_device", "see dmesg for what the driver says"));
        }
        raw
    };
    Ok(DeviceAttributes {
        max_qp: raw.max_qp,
        max_qp_wr: raw.max_qp_wr,
        max_sge: raw.max_sge,
        max_sge_rd: raw.max_sge_rd,
        max_cq: raw.max_cq,
        max_cqe: raw.max_cqe,
        max_qp_rd_atom: raw.max_qp_rd_atom,
        max_res_rd_atom: raw.max_res_rd_atom,
        max_qp_init_rd_atom: raw.max_qp_init_rd_atom,
        max_srq: raw.max_srq,
        max_srq_wr: raw.max_srq_wr,
        max_srq_sge: raw.max_srq_sge,
        max_inline_data: None,
    })
}
