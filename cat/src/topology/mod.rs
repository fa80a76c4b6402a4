//! Last-level caches of this host, and which processors, NUMA nodes and PCI devices are near each.

mod inclusion;

pub use inclusion::Inclusion;

use crate::cpu_set::CpuSet;
use crate::resctrl::DomainId;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Description of one last-level cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Id of the cache, which resctrl uses as well. Ids are not socket numbers, and may have gaps.
    pub id: DomainId,
    /// Size of the cache in bytes.
    pub bytes: u64,
    /// Number of ways that the kernel reports. resctrl may count the ways that it allocates in other units.
    pub ways: u32,
    /// Size of a cache line in bytes.
    pub line_bytes: u32,
    /// Online processors that share the cache.
    pub cpus: CpuSet,
}

/// Last-level caches that a NUMA node or a device is near.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Near {
    /// Exactly one cache.
    One(DomainId),
    /// Several caches: the node belongs to a processor that has a last-level cache for every few cores.
    Several(Vec<DomainId>),
    /// The system does not say which caches are near.
    Unknown,
}

impl Near {
    /// Returns the ids of the near caches; empty where they are unknown.
    pub fn domains(&self) -> &[DomainId] {
        match self {
            Self::One(domain) => std::slice::from_ref(domain),
            Self::Several(domains) => domains,
            Self::Unknown => &[],
        }
    }
}

/// Last-level caches of a host, and what is near them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Caches, sorted by id.
    pub domains: Vec<Domain>,
    /// Inclusiveness: whether the last-level cache also holds what a core's own cache holds.
    pub inclusion: Inclusion,
    /// Processors of each NUMA node.
    pub nodes: BTreeMap<u32, CpuSet>,
    sysfs: PathBuf,
}

/// Error of reading the topology from sysfs.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// File or folder.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A file has contents that this version cannot parse.
    #[error("{} holds '{text}', which this version cannot read", path.display())]
    Format {
        /// File that was read.
        path: PathBuf,
        /// Text of the file, trimmed.
        text: String,
    },
    /// The system reports no third-level cache.
    #[error(
        "{} tells of no third-level cache; a virtual machine may hide it (QEMU: -cpu ...,l3-cache=on)",
        path.display()
    )]
    None {
        /// Path pattern where caches would be described.
        path: PathBuf,
    },
}

const CPUS: &str = "devices/system/cpu";
const NODES: &str = "devices/system/node";
const PCI_DEVICES: &str = "bus/pci/devices";

impl Topology {
    /// Reads the topology of this host.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn of_host() -> Result<Self, TopologyError> {
        Self::read(Path::new("/sys"), Inclusion::of_this_processor())
    }

    /// Reads a topology from a folder that is laid out like `/sys`.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn read(sysfs: &Path, inclusion: Inclusion) -> Result<Self, TopologyError> {
        let mut domains = BTreeMap::new();
        for cpu in numbered(&sysfs.join(CPUS), "cpu")? {
            if let Some(domain) = last_level(&sysfs.join(CPUS).join(format!("cpu{cpu}/cache")))? {
                domains.entry(domain.id).or_insert(domain);
            }
        }
        if domains.is_empty() {
            return Err(TopologyError::None { path: sysfs.join(CPUS).join("cpu*/cache") });
        }
        let mut nodes = BTreeMap::new();
        // A kernel without NUMA has no such folder.
        if sysfs.join(NODES).is_dir() {
            for node in numbered(&sysfs.join(NODES), "node")? {
                let list = sysfs.join(NODES).join(format!("node{node}/cpulist"));
                nodes.insert(node, parsed(&list, &read(&list)?)?);
            }
        }
        Ok(Self { domains: domains.into_values().collect(), inclusion, nodes, sysfs: sysfs.to_owned() })
    }

    /// Returns the cache with this id.
    pub fn domain(&self, id: DomainId) -> Option<&Domain> {
        self.domains.iter().find(|domain| domain.id == id)
    }

    /// Returns the last-level cache of a processor, or `None` where the processor is not online.
    pub fn of_cpu(&self, cpu: u32) -> Option<&Domain> {
        self.domains.iter().find(|domain| domain.cpus.contains(cpu))
    }

    /// Returns the caches of a NUMA node's processors. With sub-NUMA clusters several nodes share one cache.
    /// A node that has only memory gets [`Near::Unknown`].
    pub fn of_node(&self, node: u32) -> Near {
        self.nodes.get(&node).map_or(Near::Unknown, |cpus| self.of_cpus(cpus))
    }

    fn of_cpus(&self, cpus: &CpuSet) -> Near {
        let near: Vec<DomainId> =
            self.domains.iter().filter(|domain| domain.cpus.overlaps(cpus)).map(|domain| domain.id).collect();
        match near[..] {
            [] => Near::Unknown,
            [one] => Near::One(one),
            _ => Near::Several(near),
        }
    }

    /// Returns the caches of the NUMA node to which a PCI device (`0000:3b:00.0`) is attached.
    ///
    /// # Errors
    /// [`TopologyError`]: there is no such device, or its node cannot be read.
    pub fn of_pci(&self, address: &str) -> Result<Near, TopologyError> {
        let file = self.sysfs.join(PCI_DEVICES).join(address).join("numa_node");
        let text = read(&file)?;
        let node: i64 = text.trim().parse().map_err(|_| format_error(&file, &text))?;
        // -1 means that the firmware did not say. Where there is only one cache, it must be that one.
        match (u32::try_from(node), &self.domains[..]) {
            (Ok(node), _) => Ok(self.of_node(node)),
            (Err(_), [only]) => Ok(Near::One(only.id)),
            (Err(_), _) => Ok(Near::Unknown),
        }
    }
}

fn read(path: &Path) -> Result<String, TopologyError> {
    fs::read_to_string(path).map_err(|source| TopologyError::Read { path: path.to_owned(), source })
}

fn format_error(path: &Path, text: &str) -> TopologyError {
    TopologyError::Format { path: path.to_owned(), text: text.trim().to_owned() }
}

fn parsed<T: std::str::FromStr>(path: &Path, text: &str) -> Result<T, TopologyError> {
    text.trim().parse().map_err(|_| format_error(path, text))
}

/// Returns the numbers of the folder's entries that are named `prefix` and a number, sorted.
fn numbered(folder: &Path, prefix: &str) -> Result<Vec<u32>, TopologyError> {
    let failed = |source| TopologyError::Read { path: folder.to_owned(), source };
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let number: Option<u32> = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads the third-level cache of a processor, or `None` where it has none. `index3` need not be the third
/// level, and an offline processor has no folder.
fn last_level(cache: &Path) -> Result<Option<Domain>, TopologyError> {
    if !cache.is_dir() {
        return Ok(None);
    }
    for index in numbered(cache, "index")? {
        let at = cache.join(format!("index{index}"));
        if read(&at.join("level"))?.trim() != "3" {
            continue;
        }
        let number = |file: &str| {
            let path = at.join(file);
            parsed::<u32>(&path, &read(&path)?)
        };
        let size = at.join("size");
        let text = read(&size)?;
        let kibibytes = text.trim().strip_suffix('K').and_then(|number| number.parse::<u64>().ok());
        let cpus = at.join("shared_cpu_list");
        return Ok(Some(Domain {
            id: number("id")?,
            bytes: kibibytes.ok_or_else(|| format_error(&size, &text))? * 1024,
            ways: number("ways_of_associativity")?,
            line_bytes: number("coherency_line_size")?,
            cpus: parsed(&cpus, &read(&cpus)?)?,
        }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
