//! RDMA devices of this host, and the addresses that lead to their ports. Both are read from sysfs, without
//! opening a device.
//!
//! * RoCE: an address of an interface is a GID of the port below it, once for each type ("RoCE v2", "IB/RoCE
//!   v1"). RDMA CM chooses the type of a connection (`cma_roce_mode`).
//! * InfiniBand: GIDs are made of GUIDs, and no route leads from them. RDMA CM finds a port by the address of
//!   an interface over it (IPoIB).

#[cfg(test)]
mod tests;

use super::error::VerbsError;
use super::interfaces;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

/// Type of an interface over an InfiniBand port, as text: `ARPHRD_INFINIBAND` of the kernel's linux/if_arp.h.
const IPOIB: &str = "32";

/// Address of this host that leads to a port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// Name of the device.
    pub device: String,
    /// Number of the device's port.
    pub port: u8,
    /// Index of the address's GID in the port's table; `None` on InfiniBand, where the address has no GID.
    pub gid_index: Option<u8>,
    /// Interface that has the address, where the kernel says so.
    pub interface: Option<String>,
    /// The address itself.
    pub address: IpAddr,
}

/// Sources of a host's devices and addresses: its sysfs, and its interfaces. Tests use sources of their own.
#[derive(Clone, Debug)]
pub(super) struct Host {
    sys: PathBuf,
    addresses_of_interface: fn(&str) -> Vec<IpAddr>,
}

impl Host {
    /// Returns the sources of the host that this runs on.
    pub fn this() -> Self {
        Self { sys: PathBuf::from("/sys"), addresses_of_interface: interfaces::addresses }
    }

    fn devices_folder(&self) -> PathBuf {
        self.sys.join("class/infiniband")
    }

    /// Returns the devices' names in alphabetical order.
    pub fn devices(&self) -> Result<Vec<String>, VerbsError> {
        let listed =
            fs::read_dir(self.devices_folder()).map_err(|source| VerbsError::NoDevices { source })?;
        let mut names: Vec<_> =
            listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        if names.is_empty() {
            return Err(VerbsError::NoDevices { source: io::ErrorKind::NotFound.into() });
        }
        names.sort();
        Ok(names)
    }

    /// Returns the sysfs folder of a device's port.
    fn port(&self, device: &str, port: u8) -> PathBuf {
        self.devices_folder().join(device).join("ports").join(port.to_string())
    }

    /// Returns the numbers of a device's ports in ascending order.
    fn ports(&self, device: &str) -> Vec<u8> {
        let listed = fs::read_dir(self.devices_folder().join(device).join("ports"));
        let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut ports: Vec<u8> = listed.into_iter().flatten().filter_map(number).collect();
        ports.sort_unstable();
        ports
    }

    /// Whether a device has that port.
    pub fn has_port(&self, device: &str, port: u8) -> bool {
        self.port(device, port).is_dir()
    }

    fn is_infiniband(&self, device: &str, port: u8) -> bool {
        let layer = fs::read_to_string(self.port(device, port).join("link_layer"));
        layer.is_ok_and(|layer| layer.trim() == "InfiniBand")
    }

    /// Returns the address that a GID of a device's port stands for.
    pub fn address_of(&self, device: &str, port: u8, index: u8) -> Result<IpAddr, VerbsError> {
        let refused = |problem| VerbsError::Gid { device: device.to_owned(), port, index, problem };
        let gid = fs::read_to_string(self.port(device, port).join("gids").join(index.to_string()))
            .map_err(|_| refused("is not in the table"))?;
        if self.is_infiniband(device, port) {
            return Err(refused(
                "is of InfiniBand, where GIDs are no addresses; choose none, and the address of the \
                 interface over the port (IPoIB) is taken",
            ));
        }
        address(&gid).map_err(refused)
    }

    /// Returns the addresses that lead to a device's port, those of RoCE v2 first.
    pub fn addresses_of(&self, device: &str, port: u8) -> Vec<LocalAddress> {
        if self.is_infiniband(device, port) {
            return self.addresses_over(device, port);
        }
        let (mut second, mut first) = (Vec::new(), Vec::new());
        let folder = self.port(device, port);
        for index in 0..=u8::MAX {
            let name = index.to_string();
            let read = |of: &str| fs::read_to_string(folder.join(of).join(&name)).ok();
            let Some(address) = read("gids").and_then(|gid| address(&gid).ok()) else { continue };
            // Kernels before 4.4 have no types, and only version 1.
            let is_second = read("gid_attrs/types").is_some_and(|kind| kind.trim() == "RoCE v2");
            let interface = read("gid_attrs/ndevs").map(|name| name.trim().to_owned());
            let found =
                LocalAddress { device: device.to_owned(), port, gid_index: Some(index), interface, address };
            if is_second { &mut second } else { &mut first }.push(found);
        }
        first.retain(|found| second.iter().all(|other| other.address != found.address));
        second.append(&mut first);
        second
    }

    /// Returns the addresses of the interfaces over an InfiniBand port.
    fn addresses_over(&self, device: &str, port: u8) -> Vec<LocalAddress> {
        let folder = self.devices_folder().join(device).join("device/net");
        let mut interfaces: Vec<String> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| {
                let read = |of: &str| fs::read_to_string(folder.join(name).join(of)).unwrap_or_default();
                // `dev_port` counts ports from 0.
                read("type").trim() == IPOIB && read("dev_port").trim().parse() == Ok(port.saturating_sub(1))
            })
            .collect();
        interfaces.sort();
        let found = |name: String| {
            let addresses = (self.addresses_of_interface)(&name);
            addresses.into_iter().filter(|address| leads_anywhere(*address)).map(move |address| {
                LocalAddress {
                    device: device.to_owned(),
                    port,
                    gid_index: None,
                    interface: Some(name.clone()),
                    address,
                }
            })
        };
        interfaces.into_iter().flat_map(found).collect()
    }

    /// Returns the addresses that lead to any port of a device.
    pub fn addresses_of_ports(&self, device: &str) -> Vec<LocalAddress> {
        self.ports(device).into_iter().flat_map(|port| self.addresses_of(device, port)).collect()
    }

    /// Returns the addresses that lead to any port of any device.
    pub fn local_addresses(&self) -> Result<Vec<LocalAddress>, VerbsError> {
        Ok(self.devices()?.iter().flat_map(|device| self.addresses_of_ports(device)).collect())
    }
}

fn leads_anywhere(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_unspecified() && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

/// Returns the address that a GID of RoCE stands for.
///
/// The error says in words why no route can lead from the GID.
fn address(text: &str) -> Result<IpAddr, &'static str> {
    let v6: Ipv6Addr = text.trim().parse().map_err(|_| "cannot be read")?;
    match v6.to_ipv4_mapped() {
        Some(v4) => Ok(IpAddr::V4(v4)),
        None if v6.is_unspecified() => Err("is empty"),
        None if v6.is_unicast_link_local() => Err("is a link-local address, from which no route leads"),
        None => Ok(IpAddr::V6(v6)),
    }
}

/// Returns the addresses of this host that lead to its RDMA devices, device by device and port by port.
///
/// # Errors
/// What the system says where there are no devices.
pub fn local_addresses() -> Result<Vec<LocalAddress>, VerbsError> {
    Host::this().local_addresses()
}
