//! Tests of a pool on a NUMA node. They need a host with two nodes; the guest has them (deploy/vm/check
//! nodes).

use crate::rig::Rig;

/// Returns how many pages of the daemon's mapping with this name lie on a node, as the kernel counts them:
/// `N0=3072 N1=0`.
fn pages_on(rig: &mut Rig, name: &str, node: u32) -> u64 {
    let pid = rig.daemon().id();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/numa_maps")).expect("a kernel with NUMA");
    let line = maps.lines().find(|line| line.contains(name)).expect("the mapping");
    let word = format!("N{node}=");
    let count = line.split_whitespace().find_map(|part| part.strip_prefix(&word));
    count.map_or(0, |count| count.parse().expect("a number"))
}

#[test]
#[ignore = "needs two NUMA nodes: deploy/vm/check nodes"]
fn the_pool_lies_on_the_node_that_is_configured() {
    for node in [1, 0] {
        let setting = format!("pool.numa_node={node}");
        let mut rig = Rig::start_on_software(&[&setting, "pool.huge_pages='off'"]);
        let status = rig.status();
        assert_eq!(status.pool.numa_node, Some(node));
        assert_eq!(pages_on(&mut rig, "jet-pool", node), u64::from(status.pool.slabs));
        assert!(pages_on(&mut rig, "jet-headers", node) > 0);
        assert_eq!(pages_on(&mut rig, "jet-pool", 1 - node), 0);
        // Escape memory is prepared after the start.
        let status = rig
            .wait_status("escape memory", |status| status.escape.memory.ready == status.escape.memory.slabs);
        assert!(pages_on(&mut rig, "jet-escape", node) >= u64::from(status.escape.memory.ready));
        assert_eq!(pages_on(&mut rig, "jet-escape", 1 - node), 0);
    }
}

#[test]
#[ignore = "needs two NUMA nodes and an RDMA device: deploy/vm/check nodes"]
fn what_the_nic_has_for_itself_lies_on_that_node_too() {
    for node in [1, 0] {
        let setting = format!("pool.numa_node={node}");
        let mut rig = Rig::start(&[&setting, "pool.huge_pages='off'"]);
        for name in ["jet-headers-out", "jet-payloads-out"] {
            assert!(pages_on(&mut rig, name, node) > 0, "{name}");
            assert_eq!(pages_on(&mut rig, name, 1 - node), 0, "{name}");
        }
        // A thread of its own makes the queues of connections, and prefers the node.
        let policy = policy_of(&mut rig, "jet-set-up");
        assert!(policy.starts_with("prefer") && policy.ends_with(&node.to_string()), "{policy}");
        // Other threads prefer no node.
        assert_eq!(policy_of(&mut rig, "jet-reactor"), "default");
    }
}

/// Returns the kernel's word for where a thread of the daemon gets memory from.
fn policy_of(rig: &mut Rig, thread: &str) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", rig.daemon().id())).expect("a process");
    let is_it = |folder: &std::path::PathBuf| {
        std::fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim() == thread)
    };
    let folder = tasks.map(|task| task.expect("a thread").path()).find(is_it).expect(thread);
    let maps = std::fs::read_to_string(folder.join("numa_maps")).expect("a kernel with NUMA");
    // The heap is a mapping without a policy of its own.
    let line = maps.lines().find(|line| line.contains("heap")).expect("a heap");
    line.split_whitespace().nth(1).expect("a policy").to_owned()
}
