use super::*;
use std::fs::{create_dir_all, write};

/// Makes a folder like `/sys` with these caches, each given by its id and its processors, and these NUMA
/// nodes.
fn sysfs(caches: &[(u32, &str)], nodes: &[(u32, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let cpus = dir.path().join(CPUS);
    for (id, list) in caches {
        for cpu in list.parse::<CpuSet>().unwrap().iter() {
            for (index, level) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
                let at = cpus.join(format!("cpu{cpu}/cache/index{index}"));
                create_dir_all(&at).unwrap();
                let shared = if level == 3 { (*list).to_owned() } else { cpu.to_string() };
                let files = [
                    ("level", level.to_string()),
                    ("id", if level == 3 { *id } else { cpu }.to_string()),
                    ("size", "33792K".to_owned()),
                    ("ways_of_associativity", "11".to_owned()),
                    ("coherency_line_size", "64".to_owned()),
                    ("shared_cpu_list", shared),
                ];
                for (name, text) in files {
                    write(at.join(name), format!("{text}\n")).unwrap();
                }
            }
        }
    }
    // An entry that is no processor, and a processor that is offline.
    create_dir_all(cpus.join("cpufreq")).unwrap();
    create_dir_all(cpus.join("cpu999")).unwrap();
    for (node, list) in nodes {
        let at = dir.path().join(NODES).join(format!("node{node}"));
        create_dir_all(&at).unwrap();
        write(at.join("cpulist"), format!("{list}\n")).unwrap();
    }
    dir
}

fn read_from(dir: &tempfile::TempDir) -> Topology {
    Topology::read(dir.path(), Inclusion::Unknown).unwrap()
}

#[test]
fn this_host_has_caches_and_processors() {
    // A virtual machine may hide its caches. The error then names the missing files.
    match Topology::of_host() {
        Ok(topology) => {
            let first = &topology.domains[0];
            assert!(first.bytes > 0 && first.line_bytes > 0 && !first.cpus.is_empty(), "{first:?}");
            let cpu = first.cpus.iter().next().unwrap();
            assert_eq!(topology.of_cpu(cpu), Some(first));
        }
        Err(error) => assert!(error.to_string().contains("/sys/devices/system/cpu"), "{error}"),
    }
}

#[test]
fn two_sockets_have_a_cache_and_a_node_each() {
    let dir = sysfs(&[(0, "0-3,8-11"), (1, "4-7,12-15")], &[(0, "0-3,8-11"), (1, "4-7,12-15"), (2, "")]);
    let topology = read_from(&dir);
    assert_eq!(topology.domains.len(), 2);
    let second = topology.domain(1).unwrap();
    assert_eq!((second.bytes, second.ways, second.line_bytes), (33792 << 10, 11, 64));
    assert_eq!(topology.of_cpu(12), Some(second));
    assert_eq!(topology.of_cpu(99), None);
    assert_eq!(topology.of_node(1), Near::One(1));
    assert_eq!(topology.of_node(2), Near::Unknown, "memory only");
    assert_eq!(topology.of_node(7), Near::Unknown);
}

#[test]
fn a_node_may_have_many_caches_and_ids_may_have_gaps() {
    let dir = sysfs(&[(0, "0-3"), (4, "4-7"), (9, "8-11")], &[(0, "0-7"), (1, "8-11")]);
    let topology = read_from(&dir);
    assert_eq!(topology.of_node(0), Near::Several(vec![0, 4]));
    assert_eq!(topology.of_node(0).domains(), [0, 4]);
    assert_eq!(topology.of_node(1), Near::One(9));
}

#[test]
fn clusters_within_a_socket_share_its_cache() {
    let dir = sysfs(&[(0, "0-7")], &[(0, "0-3"), (1, "4-7")]);
    let topology = read_from(&dir);
    assert_eq!(topology.of_node(0), Near::One(0));
    assert_eq!(topology.of_node(1), Near::One(0));
}

#[test]
fn a_device_is_near_its_nodes_cache_if_the_firmware_says_so() {
    let dir = sysfs(&[(0, "0-3"), (1, "4-7")], &[(0, "0-3"), (1, "4-7")]);
    for (address, node) in [("0000:3b:00.0", "1"), ("0000:00:1f.0", "-1")] {
        let at = dir.path().join(PCI_DEVICES).join(address);
        create_dir_all(&at).unwrap();
        write(at.join("numa_node"), node).unwrap();
    }
    let topology = read_from(&dir);
    assert_eq!(topology.of_pci("0000:3b:00.0").unwrap(), Near::One(1));
    assert_eq!(topology.of_pci("0000:00:1f.0").unwrap(), Near::Unknown);
    assert!(matches!(topology.of_pci("0000:ff:00.0"), Err(TopologyError::Read { .. })));

    // The firmware does not say, but the only cache must be the near one.
    let dir = sysfs(&[(3, "0-3")], &[]);
    let at = dir.path().join(PCI_DEVICES).join("0000:00:1f.0");
    create_dir_all(&at).unwrap();
    write(at.join("numa_node"), "-1").unwrap();
    assert_eq!(read_from(&dir).of_pci("0000:00:1f.0").unwrap(), Near::One(3));
}

#[test]
fn what_cannot_be_read_is_named() {
    let dir = sysfs(&[(0, "0")], &[]);
    let size = dir.path().join(CPUS).join("cpu0/cache/index3/size");
    write(&size, "lots\n").unwrap();
    let error = Topology::read(dir.path(), Inclusion::Unknown).unwrap_err().to_string();
    assert!(error.contains("index3/size holds 'lots'"), "{error}");

    std::fs::remove_dir_all(dir.path().join(CPUS).join("cpu0/cache/index3")).unwrap();
    let error = Topology::read(dir.path(), Inclusion::Unknown).unwrap_err().to_string();
    assert!(error.contains("no third-level cache"), "{error}");
}
