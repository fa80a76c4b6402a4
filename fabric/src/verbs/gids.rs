//! Which devices there are and what addresses they have, as sysfs says: without opening any.

use super::error::VerbsError;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

const FOLDER: &str = "/sys/class/infiniband";

/// The devices' names, in order.
pub(super) fn devices() -> Result<Vec<String>, VerbsError> {
    let listed = fs::read_dir(FOLDER).map_err(|source| VerbsError::NoDevices { source })?;
    let mut names: Vec<_> = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    if names.is_empty() {
        return Err(VerbsError::NoDevices { source: io::ErrorKind::NotFound.into() });
    }
    names.sort();
    Ok(names)
}

fn table(device: &str, port: u8) -> PathBuf {
    PathBuf::from(FOLDER).join(device).join("ports").join(port.to_string())
}

/// The address that a GID stands for; what is wrong with it where it stands for none that routes lead from.
fn address(text: &str) -> Result<IpAddr, &'static str> {
    let v6: Ipv6Addr = text.trim().parse().map_err(|_| "cannot be read")?;
    match v6.to_ipv4_mapped() {
        Some(v4) => Ok(IpAddr::V4(v4)),
        None if v6.is_unspecified() => Err("is empty"),
        None if v6.is_unicast_link_local() => Err("is a link-local address, from which no route leads"),
        None => Ok(IpAddr::V6(v6)),
    }
}

/// Whether a device has that port.
pub(super) fn has_port(device: &str, port: u8) -> bool {
    table(device, port).is_dir()
}

/// The address of a device's GID.
pub(super) fn address_of(device: &str, port: u8, index: u8) -> Result<IpAddr, VerbsError> {
    let refused = |problem| VerbsError::Gid { device: device.to_owned(), port, index, problem };
    let text = fs::read_to_string(table(device, port).join("gids").join(index.to_string()))
        .map_err(|_| refused("is not in the table"))?;
    address(&text).map_err(refused)
}

/// The addresses of a device's port that routes lead from, with the indices of their GIDs of RoCE v2.
pub(super) fn addresses_of(device: &str, port: u8) -> impl Iterator<Item = (u8, IpAddr)> + use<> {
    let table = table(device, port);
    (0..=u8::MAX).filter_map(move |index| {
        let index_text = index.to_string();
        let kind = fs::read_to_string(table.join("gid_attrs/types").join(&index_text)).ok()?;
        let gid = fs::read_to_string(table.join("gids").join(&index_text)).ok()?;
        (kind.trim() == "RoCE v2").then(|| address(&gid).ok()).flatten().map(|address| (index, address))
    })
}

/// The addresses of this host's RDMA devices that routes lead from, as the GIDs of RoCE v2 of their first ports say:
/// device, index, address.
///
/// # Errors
/// What the system says where there are no devices.
pub fn local_addresses() -> Result<Vec<(String, u8, IpAddr)>, VerbsError> {
    let addresses =
        |device: String| addresses_of(&device, 1).map(move |(index, ip)| (device.clone(), index, ip));
    Ok(devices()?.into_iter().flat_map(addresses).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_read_as_the_kernel_writes_them() {
        assert_eq!(address("0000:0000:0000:0000:0000:ffff:0a09:0001\n"), Ok("10.9.0.1".parse().unwrap()));
        assert_eq!(address("2001:0db8:0000:0000:0000:0000:0000:0001"), Ok("2001:db8::1".parse().unwrap()));
        assert!(address("fe80:0000:0000:0000:f8a3:25ff:fe9a:6d3b").unwrap_err().contains("link-local"));
        assert_eq!(address("0000:0000:0000:0000:0000:0000:0000:0000"), Err("is empty"));
        assert_eq!(address(""), Err("cannot be read"));
    }
}
