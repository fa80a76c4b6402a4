//! The last-level caches of this host, and what is near each: processors, NUMA nodes, PCI devices.

mod inclusion;

pub use inclusion::Inclusion;

use crate::cpu_set::CpuSet;
use crate::resctrl::DomainId;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One last-level cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The cache's id, by which resctrl knows it. Ids are neither sockets nor without gaps.
    pub id: DomainId,
    /// Its size.
    pub bytes: u64,
    /// Ways, as many as the kernel knows; what can be shared out may be counted in other units.
    pub ways: u32,
    /// Bytes of a line.
    pub line_bytes: u32,
    /// The processors that share it, of those that are online.
    pub cpus: CpuSet,
}

/// Which caches something is near.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Near {
    /// One.
    One(DomainId),
    /// Several: a node of a processor with a last-level cache for every few cores.
    Several(Vec<DomainId>),
    /// The system does not say.
    Unknown,
}

impl Near {
    /// All of them.
    pub fn domains(&self) -> &[DomainId] {
        match self {
            Self::One(domain) => std::slice::from_ref(domain),
            Self::Several(domains) => domains,
            Self::Unknown => &[],
        }
    }
}

/// The last-level caches and what is near them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// By id, in order.
    pub domains: Vec<Domain>,
    /// Whether what is in a core's own cache is in the last-level cache, too.
    pub inclusion: Inclusion,
    /// Each NUMA node's processors.
    pub nodes: BTreeMap<u32, CpuSet>,
    sysfs: PathBuf,
}

/// Why the caches cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something else than is known.
    #[error("{} holds '{text}', which this version cannot read", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its text.
        text: String,
    },
    /// The system tells of no last-level cache with an id.
    #[error(
        "{} tells of no third-level cache; a virtual machine may hide it (QEMU: -cpu ...,l3-cache=on)",
        path.display()
    )]
    None {
        /// Where they would be.
        path: PathBuf,
    },
}

const CPUS: &str = "devices/system/cpu";
const NODES: &str = "devices/system/node";
const PCI_DEVICES: &str = "bus/pci/devices";

impl Topology {
    /// This host's.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn of_host() -> Result<Self, TopologyError> {
        Self::read(Path::new("/sys"), Inclusion::of_this_processor())
    }

    /// As a folder laid out like `/sys` says.
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

    /// A cache by its id.
    pub fn domain(&self, id: DomainId) -> Option<&Domain> {
        self.domains.iter().find(|domain| domain.id == id)
    }

    /// The cache of a processor; none where it is not online.
    pub fn of_cpu(&self, cpu: u32) -> Option<&Domain> {
        self.domains.iter().find(|domain| domain.cpus.contains(cpu))
    }

    /// The caches of a node's processors. With sub-NUMA clusters several nodes have the same one; a node of
    /// memory only has none.
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

    /// The caches of the node that a PCI device (`0000:3b:00.0`) is attached to.
    ///
    /// # Errors
    /// There is no such device.
    pub fn of_pci(&self, address: &str) -> Result<Near, TopologyError> {
        let file = self.sysfs.join(PCI_DEVICES).join(address).join("numa_node");
        let text = read(&file)?;
        let node: i64 = text.trim().parse().map_err(|_| format_error(&file, &text))?;
        // -1: the firmware did not say. Where there is but one cache it can be no other.
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

/// Numbers of the entries of a folder that are called so and numbered, in order.
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

/// The third-level cache of a processor: not every index 3 is one, and a processor that is offline has no
/// folder.
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
