//! NUMA nodes of mappings.

use super::Mapping;
use std::io;

/// `MPOL_PREFERRED` of linux/mempolicy.h: the node first, others when it is full.
const PREFERRED: libc::c_int = 1;
/// Nodes that a mask names; the kernel has 1024 at most.
const NODES_MAX: usize = 1024;

/// Pages that the mapping gets from now on come from a node, as long as that has room.
pub(super) fn prefer(mapping: &Mapping, numa_node: u32) -> io::Result<()> {
    let mut mask = [0u64; NODES_MAX / 64];
    let word = mask
        .get_mut(numa_node as usize / 64)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "there is no such NUMA node"))?;
    *word = 1 << (numa_node % 64);
    // SAFETY: the mapping lives, and a policy changes none of its bytes. The kernel reads one bit less than it is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.base(),
            mapping.bytes(),
            PREFERRED,
            mask.as_ptr(),
            NODES_MAX + 1,
            0,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How many of the mapping's pages lie on other nodes. A page that was never touched lies on none, and counts, too.
pub(super) fn pages_elsewhere(mapping: &Mapping, page_bytes: usize, numa_node: u32) -> io::Result<usize> {
    let pages: Vec<*mut u8> =
        (0..mapping.bytes()).step_by(page_bytes).map(|offset| mapping.base().wrapping_add(offset)).collect();
    let mut nodes: Vec<libc::c_int> = vec![-1; pages.len()];
    let nowhere: *const libc::c_int = std::ptr::null();
    // SAFETY: both lists have as many places as is said; without a list of nodes nothing is moved, only told.
    let result = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nowhere, nodes.as_mut_ptr(), 0)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(nodes.iter().filter(|found| u32::try_from(**found) != Ok(numa_node)).count())
}
