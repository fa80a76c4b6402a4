//! NUMA nodes of mappings, threads and devices.

use super::Mapping;
use std::io;
use std::path::Path;

/// `MPOL_PREFERRED` of linux/mempolicy.h: pages come from the named node first, and from other nodes when it
/// is full.
const PREFERRED: libc::c_int = 1;
/// Nodes that a mask can name; the kernel has at most 1024.
const NODES_MAX: usize = 1024;

/// Returns the NUMA node that an RDMA device is attached to.
///
/// `sys` is the folder that the kernel's answer is read from, `/sys` on a host. `None` for a device without a
/// node: on hosts with one node, and for soft-RoCE, which is on no bus.
pub fn node_of_device(sys: &Path, device: &str) -> Option<u32> {
    let path = sys.join("class/infiniband").join(device).join("device/numa_node");
    // The kernel writes -1 where the firmware named no node; that does not parse as a `u32`.
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Makes pages that the mapping gets from now on come from a node, as long as that node has room.
pub(super) fn prefer(mapping: &Mapping, numa_node: u32) -> io::Result<()> {
    let mask = mask_of(numa_node)?;
    // SAFETY: the mapping lives, and a policy changes none of its bytes. The kernel reads one bit less than
    // the length that it is given.
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

/// Guard that makes pages allocated by this thread come from a NUMA node, as long as that node has room.
///
/// The kernel's own allocations for this thread count, too. Dropping the guard restores the policy of before;
/// that must happen on the same thread.
#[derive(Debug)]
#[cfg(feature = "verbs")]
pub(crate) struct ThreadPrefers {
    mode_before: libc::c_int,
    mask_before: [u64; NODES_MAX / 64],
    _of_this_thread: std::marker::PhantomData<*mut ()>,
}

#[cfg(feature = "verbs")]
impl ThreadPrefers {
    pub(crate) fn node(numa_node: u32) -> io::Result<Self> {
        let mut before = Self {
            mode_before: 0,
            mask_before: [0; NODES_MAX / 64],
            _of_this_thread: std::marker::PhantomData,
        };
        let no_address: *const libc::c_void = std::ptr::null();
        // SAFETY: the kernel writes one number, and at most as many bits as the given length.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut before.mode_before,
                before.mask_before.as_mut_ptr(),
                NODES_MAX,
                no_address,
                0,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        set_policy_of_thread(PREFERRED, &mask_of(numa_node)?)?;
        Ok(before)
    }
}

#[cfg(feature = "verbs")]
impl Drop for ThreadPrefers {
    fn drop(&mut self) {
        // This policy was allowed before, so setting it fails only where nodes have gone since.
        let _ = set_policy_of_thread(self.mode_before, &self.mask_before);
    }
}

#[cfg(feature = "verbs")]
fn set_policy_of_thread(mode: libc::c_int, mask: &[u64; NODES_MAX / 64]) -> io::Result<()> {
    // The default policy takes no mask.
    let mask = if mask.iter().all(|word| *word == 0) { std::ptr::null() } else { mask.as_ptr() };
    // SAFETY: a policy changes no byte of memory. The kernel reads one bit less than the length that it is
    // given.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, NODES_MAX + 1) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn mask_of(numa_node: u32) -> io::Result<[u64; NODES_MAX / 64]> {
    let mut mask = [0u64; NODES_MAX / 64];
    let word = mask
        .get_mut(numa_node as usize / 64)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "there is no such NUMA node"))?;
    *word = 1 << (numa_node % 64);
    Ok(mask)
}

/// Counts the mapping's pages that lie on other nodes than `numa_node`.
///
/// A page that was never touched lies on no node, and counts, too.
pub(super) fn pages_elsewhere(mapping: &Mapping, page_bytes: usize, numa_node: u32) -> io::Result<usize> {
    let pages: Vec<*mut u8> =
        (0..mapping.bytes()).step_by(page_bytes).map(|offset| mapping.base().wrapping_add(offset)).collect();
    let mut nodes: Vec<libc::c_int> = vec![-1; pages.len()];
    let nowhere: *const libc::c_int = std::ptr::null();
    // SAFETY: both lists have as many places as the given length. Without a list of target nodes the kernel
    // moves nothing and only reports.
    let result = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nowhere, nodes.as_mut_ptr(), 0)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(nodes.iter().filter(|found| u32::try_from(**found) != Ok(numa_node)).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads node numbers as the kernel writes them: `numa_node_show` of drivers/pci/pci-sysfs.c. A device of
    /// soft-RoCE has no folder `device`.
    #[test]
    fn a_devices_node_is_the_one_that_the_kernel_names_and_none_where_it_names_none() {
        let sys = tempfile::tempdir().unwrap();
        for (device, node) in
            [("mlx5_0", Some("0\n")), ("mlx5_1", Some("1\n")), ("mlx5_2", Some("-1\n")), ("rxe0", None)]
        {
            let folder = sys.path().join("class/infiniband").join(device);
            std::fs::create_dir_all(&folder).unwrap();
            if let Some(node) = node {
                std::fs::create_dir(folder.join("device")).unwrap();
                std::fs::write(folder.join("device/numa_node"), node).unwrap();
            }
        }
        let found =
            ["mlx5_0", "mlx5_1", "mlx5_2", "rxe0", "mlx5_9"].map(|device| node_of_device(sys.path(), device));
        assert_eq!(found, [Some(0), Some(1), None, None, None]);
    }
}
