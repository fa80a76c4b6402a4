//! Tests with trees of sysfs as the kernel writes them (drivers/infiniband/core/sysfs.c, ipoib_main.c), for
//! devices that are not at hand.

use super::*;
use std::path::Path;

/// Link-local GID made of the MAC address: `default_gid_attr` of RoCE.
const OF_MAC: &str = "fe80:0000:0000:0000:ba59:9fff:fec7:1ad2";
const V4: &str = "0000:0000:0000:0000:0000:ffff:c0a8:010a";
const V6: &str = "2001:0db8:0000:0000:0000:0000:0000:000a";
const VLAN: &str = "0000:0000:0000:0000:0000:ffff:0a0a:0001";
const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";
/// GID of an InfiniBand port: the subnet's prefix and the port's GUID.
const OF_GUID: &str = "fe80:0000:0000:0000:506b:4b03:00c7:1ad2";
const OF_SITE: &str = "fec0:0000:0000:0001:506b:4b03:00c7:1ad2";

struct Tree {
    root: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn host(&self) -> Host {
        Host { sys: self.root.path().to_owned(), addresses_of_interface: of_interface }
    }

    fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.root.path().join("class/infiniband").join(path);
        fs::create_dir_all(path.parent().unwrap_or_else(|| Path::new("/"))).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    /// Makes a port with these GIDs, each given as index, GID, type and interface.
    fn port(&self, device: &str, port: u8, layer: &str, gids: &[(u8, &str, &str, &str)]) -> &Self {
        let folder = format!("{device}/ports/{port}");
        self.write(&format!("{folder}/link_layer"), layer);
        self.write(&format!("{folder}/state"), "4: ACTIVE");
        for (index, gid, kind, interface) in gids {
            self.write(&format!("{folder}/gids/{index}"), gid);
            // Reading attributes that a GID does not have fails in sysfs, so these files are left out.
            if !kind.is_empty() {
                self.write(&format!("{folder}/gid_attrs/types/{index}"), kind);
            }
            if !interface.is_empty() {
                self.write(&format!("{folder}/gid_attrs/ndevs/{index}"), interface);
            }
        }
        self
    }

    fn interface(&self, device: &str, name: &str, kind: &str, dev_port: &str) -> &Self {
        self.write(&format!("{device}/device/net/{name}/type"), kind);
        self.write(&format!("{device}/device/net/{name}/dev_port"), dev_port)
    }
}

fn of_interface(name: &str) -> Vec<IpAddr> {
    let texts: &[&str] = match name {
        "ib0" => &["10.20.0.1", "fe80::526b:4b03:c7:1ad2", "2001:db8:1b::1"],
        "ib0.8001" => &["10.21.0.1"],
        "ib1" => &["10.22.0.1"],
        _ => &[],
    };
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Returns port, index, interface and address of each.
fn told(found: &[LocalAddress]) -> Vec<(u8, Option<u8>, Option<&str>, String)> {
    found
        .iter()
        .map(|found| (found.port, found.gid_index, found.interface.as_deref(), found.address.to_string()))
        .collect()
}

#[test]
fn gids_are_read_as_the_kernel_writes_them() {
    assert_eq!(address("0000:0000:0000:0000:0000:ffff:0a09:0001\n"), Ok("10.9.0.1".parse().unwrap()));
    assert_eq!(address("2001:0db8:0000:0000:0000:0000:0000:0001"), Ok("2001:db8::1".parse().unwrap()));
    assert!(address("fe80:0000:0000:0000:f8a3:25ff:fe9a:6d3b").unwrap_err().contains("link-local"));
    assert_eq!(address("0000:0000:0000:0000:0000:0000:0000:0000"), Err("is empty"));
    assert_eq!(address(""), Err("cannot be read"));
}

#[test]
fn of_roce_each_address_is_there_once_with_version_2_first() {
    let tree = Tree::new();
    let (v1, v2) = ("IB/RoCE v1", "RoCE v2");
    tree.port(
        "mlx5_0",
        1,
        "Ethernet",
        &[
            (0, OF_MAC, v1, "eth0"),
            (1, OF_MAC, v2, "eth0"),
            (2, V4, v1, "eth0"),
            (3, V4, v2, "eth0"),
            (4, EMPTY, "", ""),
            (5, VLAN, v1, "eth0.100"),
            (6, V6, v1, "eth0"),
            (7, V6, v2, "eth0"),
        ],
    );
    let found = tree.host().addresses_of("mlx5_0", 1);
    assert_eq!(
        told(&found),
        [
            (1, Some(3), Some("eth0"), "192.168.1.10".to_owned()),
            (1, Some(7), Some("eth0"), "2001:db8::a".to_owned()),
            // For example on a device that was set to have no version 2 there.
            (1, Some(5), Some("eth0.100"), "10.10.0.1".to_owned()),
        ]
    );
    assert_eq!(tree.host().address_of("mlx5_0", 1, 2).unwrap().to_string(), "192.168.1.10");
    let refused = |index| tree.host().address_of("mlx5_0", 1, index).unwrap_err().to_string();
    assert!(refused(4).contains("is empty"), "{}", refused(4));
    assert!(refused(0).contains("link-local"), "{}", refused(0));
    assert!(refused(99).contains("is not in the table"), "{}", refused(99));
}

#[test]
fn a_kernel_without_types_has_version_1() {
    let tree = Tree::new();
    tree.port("mlx4_0", 1, "Ethernet", &[(0, OF_MAC, "", ""), (1, V4, "", "")]);
    assert_eq!(told(&tree.host().addresses_of("mlx4_0", 1)), [(1, Some(1), None, "192.168.1.10".to_owned())]);
}

#[test]
fn of_infiniband_the_interfaces_over_the_port_have_the_addresses() {
    let tree = Tree::new();
    // With types, which are "IB/RoCE v1" for every GID, and without.
    tree.port("mlx5_1", 1, "InfiniBand", &[(0, OF_GUID, "IB/RoCE v1", ""), (1, OF_SITE, "IB/RoCE v1", "")]);
    tree.port("mlx5_1", 2, "InfiniBand", &[(0, OF_GUID, "", "")]);
    tree.interface("mlx5_1", "ib0", "32", "0");
    tree.interface("mlx5_1", "ib0.8001", "32", "0");
    tree.interface("mlx5_1", "ib1", "32", "1");
    tree.interface("mlx5_1", "eth7", "1", "0");
    assert_eq!(
        told(&tree.host().addresses_of("mlx5_1", 1)),
        [
            (1, None, Some("ib0"), "10.20.0.1".to_owned()),
            (1, None, Some("ib0"), "2001:db8:1b::1".to_owned()),
            (1, None, Some("ib0.8001"), "10.21.0.1".to_owned()),
        ]
    );
    assert_eq!(
        told(&tree.host().addresses_of("mlx5_1", 2)),
        [(2, None, Some("ib1"), "10.22.0.1".to_owned())]
    );
    let refused = tree.host().address_of("mlx5_1", 1, 1).unwrap_err().to_string();
    assert!(refused.contains("choose none"), "{refused}");
}

#[test]
fn an_infiniband_port_without_an_interface_has_no_address() {
    let tree = Tree::new();
    tree.port("hfi1_0", 1, "InfiniBand", &[(0, OF_GUID, "IB/RoCE v1", "")]);
    assert_eq!(tree.host().addresses_of("hfi1_0", 1), []);
}

#[test]
fn every_port_of_every_device_is_looked_at() {
    let tree = Tree::new();
    // One port of each kind; the first has no address.
    tree.port("mlx4_0", 1, "InfiniBand", &[(0, OF_GUID, "IB/RoCE v1", "")]);
    tree.port("mlx4_0", 2, "Ethernet", &[(0, OF_MAC, "IB/RoCE v1", "eth4"), (1, V6, "IB/RoCE v1", "eth4")]);
    tree.port("mlx5_0", 1, "Ethernet", &[(3, V4, "RoCE v2", "eth0")]);
    let found = tree.host().local_addresses().unwrap();
    assert_eq!(
        told(&found),
        [
            (2, Some(1), Some("eth4"), "2001:db8::a".to_owned()),
            (1, Some(3), Some("eth0"), "192.168.1.10".to_owned()),
        ]
    );
    assert_eq!(found[0].device, "mlx4_0");
    assert!(tree.host().has_port("mlx4_0", 2) && !tree.host().has_port("mlx4_0", 3));
}

#[test]
fn a_host_without_devices_says_so() {
    let tree = Tree::new();
    assert!(matches!(tree.host().devices(), Err(VerbsError::NoDevices { .. })));
    fs::create_dir_all(tree.root.path().join("class/infiniband")).unwrap();
    assert!(matches!(tree.host().local_addresses(), Err(VerbsError::NoDevices { .. })));
}
