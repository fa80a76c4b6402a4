//! Devices as RDMA CM knows them: choosing one, what it can do, what it counts.
//!
//! librdmacm opens every device once a process and keeps it open; QPs of its connections live in that context, so the
//! rest of a NIC does, too.

use super::error::VerbsError;
use super::options::DeviceChoice;
use rdma_sys::{
    ibv_context, ibv_device_attr, ibv_get_device_name, ibv_gid, ibv_query_device, ibv_query_gid,
    rdma_bind_addr, rdma_cm_id, rdma_create_id, rdma_destroy_id, rdma_free_devices, rdma_get_devices,
    rdma_port_space, rdma_resolve_addr,
};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// How long finding the way to an address may take.
const RESOLVE_MS: i32 = 2000;

/// An open device.
#[derive(Debug)]
pub(super) struct Device {
    context: *mut ibv_context,
    name: String,
    attributes: Attributes,
    /// Where its connections leave from, where the choice says so.
    pub source: Option<IpAddr>,
    rnr_counters: Vec<PathBuf>,
    rnr_before: u64,
}

/// What of the device's attributes matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    pub qps: u32,
    pub sge: u32,
    pub read_sge: u32,
    pub srq_entries: u32,
    pub srq_sge: u32,
    pub send_entries: u32,
    pub completions: u32,
    /// READs that one QP may have in flight, and may answer.
    pub reads_out: u8,
    pub reads_in: u8,
}

/// A socket address in the C library's terms.
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

/// All device contexts. They stay open whatever becomes of the list.
fn contexts() -> Result<Vec<*mut ibv_context>, VerbsError> {
    let mut count = 0;
    // SAFETY: the list has `count` entries and is freed after it was copied.
    unsafe {
        let list = rdma_get_devices(&mut count);
        if list.is_null() || count <= 0 {
            let source = io::Error::last_os_error();
            return Err(VerbsError::NoDevices { source });
        }
        let contexts = std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)).to_vec();
        rdma_free_devices(list);
        Ok(contexts)
    }
}

/// The addresses of this host's RDMA devices that routes lead from, as their GIDs of RoCE v2 say: device, index, address.
///
/// # Errors
/// What the system says where there are no devices.
pub fn local_addresses() -> Result<Vec<(String, u8, IpAddr)>, VerbsError> {
    let mut found = Vec::new();
    for context in contexts()? {
        let name = name_of(context);
        for index in 0..=u8::MAX {
            let kind = format!("/sys/class/infiniband/{name}/ports/1/gid_attrs/types/{index}");
            let Ok(kind) = std::fs::read_to_string(kind) else { continue };
            if kind.trim() == "RoCE v2"
                && let Ok(address) = address_of_gid(context, &name, index)
            {
                found.push((name.clone(), index, address));
            }
        }
    }
    Ok(found)
}

fn name_of(context: *mut ibv_context) -> String {
    // SAFETY: an open context has a device, whose name is a C string that lives as long.
    unsafe { CStr::from_ptr(ibv_get_device_name((*context).device)) }.to_string_lossy().into_owned()
}

/// The context of the device that has an address, or from which it is reached.
fn reaching(address: IpAddr) -> Result<*mut ibv_context, VerbsError> {
    if address.is_unspecified() {
        return Ok(contexts()?[0]);
    }
    contexts()?;
    let failed = || VerbsError::Unreachable { address, source: io::Error::last_os_error() };
    let mut raw = RawAddress::new(SocketAddr::new(address, 0));
    let mut id: *mut rdma_cm_id = std::ptr::null_mut();
    // SAFETY: an id without a channel works synchronously and is ours alone; it is destroyed on every path. Its context
    // belongs to the library.
    unsafe {
        let space = rdma_port_space::RDMA_PS_TCP;
        if rdma_create_id(std::ptr::null_mut(), &mut id, std::ptr::null_mut(), space) != 0 {
            return Err(VerbsError::verb("rdma_create_id", "load rdma_ucm (modprobe rdma_ucm)"));
        }
        let mut context = std::ptr::null_mut();
        if rdma_bind_addr(id, raw.as_mut_ptr()) == 0 {
            context = (*id).verbs;
        }
        let mut result = Ok(context);
        if context.is_null() {
            rdma_destroy_id(id);
            if rdma_create_id(std::ptr::null_mut(), &mut id, std::ptr::null_mut(), space) != 0 {
                return Err(failed());
            }
            let mut to = RawAddress::new(SocketAddr::new(address, 1));
            result = if rdma_resolve_addr(id, std::ptr::null_mut(), to.as_mut_ptr(), RESOLVE_MS) == 0
                && !(*id).verbs.is_null()
            {
                Ok((*id).verbs)
            } else {
                Err(failed())
            };
        }
        rdma_destroy_id(id);
        result
    }
}

impl Device {
    /// Opens the device of choice.
    pub fn open(choice: &DeviceChoice) -> Result<Self, VerbsError> {
        let (context, gid_index) = match choice {
            DeviceChoice::Reaching(address) => (reaching(*address)?, None),
            DeviceChoice::Named { device, gid_index } => {
                let all = contexts()?;
                let found = all.iter().copied().find(|context| name_of(*context) == *device);
                let context = found.ok_or_else(|| VerbsError::NoSuchDevice {
                    wanted: device.clone(),
                    present: all.iter().map(|context| name_of(*context)).collect(),
                })?;
                (context, *gid_index)
            }
        };
        let name = name_of(context);
        let source = gid_index.map(|index| address_of_gid(context, &name, index)).transpose()?;
        let folder = PathBuf::from(format!("/sys/class/infiniband/{name}/ports/1/hw_counters"));
        // Of mlx5, and of rxe: SENDs that found no entry.
        let rnr_counters =
            ["out_of_buffer", "send_rnr_err"].map(|counter| folder.join(counter)).into_iter().collect();
        let mut device =
            Self { context, name, attributes: attributes(context)?, source, rnr_counters, rnr_before: 0 };
        device.rnr_before = device.read_rnr();
        Ok(device)
    }

    pub fn context(&self) -> *mut ibv_context {
        self.context
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// Where the device's own events arrive, of all NICs of this process that share it.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context, and so its descriptor, stays open as long as the process lives.
        unsafe { BorrowedFd::borrow_raw((*self.context).async_fd) }
    }

    fn read_rnr(&self) -> u64 {
        let read = |path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        self.rnr_counters.iter().filter_map(read).sum()
    }

    /// Times that a SEND found no entry since this was opened, of all who use the device. A system call.
    pub fn rnr(&self) -> u64 {
        self.read_rnr().saturating_sub(self.rnr_before)
    }
}

fn attributes(context: *mut ibv_context) -> Result<Attributes, VerbsError> {
    // SAFETY: the verb fills the structure, of which every bit pattern is a value.
    let raw = unsafe {
        let mut raw: ibv_device_attr = std::mem::zeroed();
        if ibv_query_device(context, &mut raw) != 0 {
            return Err(VerbsError::verb("ibv_query_device", "see dmesg for what the driver says"));
        }
        raw
    };
    let number = |value: i32| u32::try_from(value).unwrap_or(0);
    let byte = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
    Ok(Attributes {
        qps: number(raw.max_qp),
        sge: number(raw.max_sge),
        // Some drivers leave it at 0: one scatter entry always works (iWARP has no more).
        read_sge: number(raw.max_sge_rd).max(1),
        srq_entries: number(raw.max_srq_wr),
        srq_sge: number(raw.max_srq_sge),
        send_entries: number(raw.max_qp_wr),
        completions: number(raw.max_cqe),
        reads_out: byte(raw.max_qp_init_rd_atom),
        reads_in: byte(raw.max_qp_rd_atom),
    })
}

fn address_of_gid(context: *mut ibv_context, name: &str, index: u8) -> Result<IpAddr, VerbsError> {
    let refused = |problem| VerbsError::Gid { device: name.to_owned(), index, problem };
    // SAFETY: the verb fills the union, whose bytes are read.
    let bytes = unsafe {
        let mut gid: ibv_gid = std::mem::zeroed();
        if ibv_query_gid(context, 1, i32::from(index), &mut gid) != 0 {
            return Err(refused("is not in the table"));
        }
        gid.raw
    };
    if bytes == [0; 16] {
        return Err(refused("is empty"));
    }
    let v6 = Ipv6Addr::from(bytes);
    match v6.to_ipv4_mapped() {
        Some(v4) => Ok(IpAddr::V4(v4)),
        None if v6.is_unicast_link_local() => {
            Err(refused("is a link-local address, from which no route leads"))
        }
        None => Ok(IpAddr::V6(v6)),
    }
}
