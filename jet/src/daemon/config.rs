//! The daemon's configuration in TOML. Every number that the Jet paper names is a key, with the paper's value
//! as its default.

pub(super) mod error_text;
mod sections;

pub use sections::{
    Admission, Checksums, Escape, Footprint, HugePages, Limits, Nic, NicProfile, NicThread, Pool, Rdma,
    Reactor, Read, Session, Shutdown,
};

use super::cache::{CacheConfig, CacheConfigError};
use crate::daemon::congestion::{CongestionConfig, CongestionConfigError};
use crate::daemon::rights::{RightsConfig, RightsConfigError};
use crate::log::LogConfig;
use jet_control::protocol::admin_socket_beside;
use jet_escape::{EscapeConfig, Thresholds};
use jet_fabric::Address;
use jet_fabric::memory::node_of_device;
use jet_fabric::networks::{Network, NetworkError, Networks};
use jet_reactor::workers::WORKERS_MAX;
use jet_wire::segment::SegmentShape;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

const SLAB_BYTES: u64 = jet_wire::SLAB_BYTES as u64;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// All settings of the daemon. `jet daemon --print-config` prints the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Path of the Unix socket where applications register and tools send requests.
    pub control_socket: PathBuf,
    /// Path of the Unix socket where operators command the daemon. If not set, `control_socket` with `-admin`
    /// behind its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_socket: Option<PathBuf>,
    /// Addresses where the daemon listens for senders. `shm:` and `tcp:` addresses may be mixed.
    pub listen: Vec<String>,
    /// Networks from which senders may connect over `tcp:` and `rdma:`. Empty: from all.
    pub networks: Vec<String>,
    /// Sizes and memory of the pool (Jet §4.1.3).
    pub pool: Pool,
    /// The pool's place in the last-level cache (Jet §5).
    pub cache: CacheConfig,
    /// Limits of the READs that fetch large messages (Jet §4.1.2).
    pub read: Read,
    /// Admission: the order in which large messages are read (Jet §3.2, §5).
    pub admission: Admission,
    /// Limits of how many senders, applications and messages there are at once.
    pub limits: Limits,
    /// Limits of each application's session.
    pub session: Session,
    /// When escape from pressure acts, and the memory that it may take (Jet §4.3).
    pub escape: Escape,
    /// Congestion signals to senders, and settings of the NIC that escape may lower (Jet §4.3).
    pub congestion: CongestionConfig,
    /// Core and spinning of the reactor's thread.
    pub reactor: Reactor,
    /// Thread of the software NIC, and the device whose limits the NIC keeps to.
    pub nic: Nic,
    /// The RDMA device and its connections, for `rdma:` addresses.
    pub rdma: Rdma,
    /// Who may register applications, and who may look.
    pub rights: RightsConfig,
    /// Limit of the time that the daemon takes to stop.
    pub shutdown: Shutdown,
    /// Level and form of the daemon's log lines.
    pub log: LogConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            control_socket: PathBuf::from(jet_control::CONTROL_SOCKET),
            admin_socket: None,
            listen: vec!["shm:/run/jet/nic.sock".to_owned()],
            networks: Vec::new(),
            pool: Pool::default(),
            cache: CacheConfig::default(),
            read: Read::default(),
            admission: Admission::default(),
            limits: Limits::default(),
            session: Session::default(),
            escape: Escape::default(),
            congestion: CongestionConfig::default(),
            reactor: Reactor::default(),
            nic: Nic::default(),
            rdma: Rdma::default(),
            rights: RightsConfig::default(),
            shutdown: Shutdown::default(),
            log: LogConfig::default(),
        }
    }
}

/// Reason why a configuration is refused. Each message names the key, and what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error from the system.
        source: std::io::Error,
    },
    /// The text is not TOML, has unknown keys, or has values of the wrong type.
    #[error("configuration{}: {}", place(.file.as_deref()), one_line(.source))]
    Toml {
        /// Path of the file, if one was given.
        file: Option<PathBuf>,
        /// Error from the TOML parser.
        source: toml::de::Error,
    },
    /// The path of the control socket cannot be printed, because it is not UTF-8.
    #[error("control_socket = {path:?} cannot be written in TOML, because it is not UTF-8")]
    Path {
        /// Path of the control socket.
        path: PathBuf,
    },
    /// The text after `--set` is not `SECTION.KEY=VALUE`.
    #[error("'--set {text}' is not SECTION.KEY=VALUE, as in --set pool.bytes=25165824")]
    Override {
        /// Text that was given.
        text: String,
    },
    /// A text in `listen` is not an address.
    #[error("configuration: listen: {0}")]
    Address(#[from] jet_fabric::AddressError),
    /// A text in `networks` is no network.
    #[error("configuration: networks: {0}")]
    Network(#[from] NetworkError),
    /// The list `listen` is empty.
    #[error(
        "configuration: listen is empty; name at least one address, as in listen = \
         [\"shm:/run/jet/nic.sock\"]"
    )]
    NoAddress,
    /// The list `listen` has `rdma:` addresses beside others, but a daemon has one NIC.
    #[error(
        "configuration: listen has rdma: addresses beside others, but a daemon has one NIC; run two, each \
         with its own control_socket"
    )]
    Mixed,
    /// The keys `rdma.port` or `rdma.gid_index` are set, but `rdma.device` is not.
    #[error("configuration: rdma.port and rdma.gid_index are of a device; name it as rdma.device")]
    NoDevice,
    /// The section `[rdma]` has keys, but `listen` has no `rdma:` address.
    #[error(
        "configuration: [rdma] has keys, but listen has no rdma: address; give it one, or leave [rdma] out"
    )]
    NoRdma,
    /// A number in `[rdma]` is out of range: RDMA packets have no bits for the number, or the daemon could
    /// not work with it.
    #[error("configuration: {key} is {found}, but must be {min} to {max}{why}")]
    Rdma {
        /// Name of the key.
        key: &'static str,
        /// Value of the key.
        found: u64,
        /// Least value that is allowed.
        min: u64,
        /// Greatest value that is allowed.
        max: u64,
        /// Explanation of what a value outside the range would mean, if that is not obvious; otherwise empty.
        why: &'static str,
    },
    /// The list `listen` has an `rdma:` address, but this build has no RDMA.
    #[error(
        "configuration: listen = [\"{address}\"], but this build has no RDMA; build it with --features verbs \
         (it needs libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config)"
    )]
    NoVerbs {
        /// The `rdma:` address.
        address: Address,
    },
    /// A size of the pool, or the fragment's size, is no multiple of 4096 bytes (a slab), or is 4 GiB or
    /// more.
    #[error("configuration: {key} = {bytes} must be a multiple of the 4096-byte slab, and below 4 GiB")]
    Slabs {
        /// Name of the key.
        key: &'static str,
        /// Value of the key.
        bytes: u64,
    },
    /// A size of escape memory is no multiple of 4096 bytes (a slab), or is far too large.
    #[error("configuration: {key} = {bytes} must be a multiple of the 4096-byte slab, and at most 4 GiB")]
    MemorySlabs {
        /// Name of the key.
        key: &'static str,
        /// Value of the key.
        bytes: u64,
    },
    /// The configuration asks for more than [`WORKERS_MAX`] workers.
    #[error("configuration: escape.workers is {found}, but must be 0 to {WORKERS_MAX}")]
    Workers {
        /// Value of `escape.workers`.
        found: usize,
    },
    /// The key `read.checksums` lets workers make checksums, but `escape.workers` is 0.
    #[error(
        "configuration: read.checksums is \"workers\", but escape.workers is 0; set it to 1 or more, or \
         read.checksums to \"inline\""
    )]
    NoWorkers,
    /// A time in the configuration is longer than the limit for its key.
    #[error("configuration: {key} is {found}, but must be at most {max}")]
    Span {
        /// Name of the key.
        key: &'static str,
        /// Value of the key.
        found: u64,
        /// Greatest value that is allowed, in the key's unit.
        max: u64,
    },
    /// The receiver (`jet-core`) refuses its part of the configuration.
    #[error("configuration: {}", error_text::of_receiver(.0))]
    Core(#[from] jet_core::ConfigError),
    /// The section `[cache]` is invalid.
    #[error("configuration: {0}")]
    Cache(#[from] CacheConfigError),
    /// The section `[congestion]` is invalid.
    #[error("configuration: {0}")]
    Congestion(#[from] CongestionConfigError),
    /// The section `[rights]` is invalid.
    #[error("configuration: {0}")]
    Rights(#[from] RightsConfigError),
    /// The control socket and the admin socket have one path.
    #[error("configuration: control_socket and admin_socket are both {}; write two paths", path.display())]
    OneSocket {
        /// The path.
        path: PathBuf,
    },
}

fn place(file: Option<&Path>) -> String {
    file.map_or_else(String::new, |file| format!(" {}", file.display()))
}

fn one_line(error: &toml::de::Error) -> String {
    error.to_string().lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Returns a better error where a key takes a word, and the value has another type, such as `false`. The TOML
/// library lists the allowed words only for a wrong word, so this function parses the value as text.
fn as_a_word(mut table: toml::Table, error: &toml::de::Error) -> Option<toml::de::Error> {
    let text = error.to_string();
    let (_, path) = text.rsplit_once("expected string only")?.1.split_once("in ")?;
    let (section, key) = path.trim().trim_matches('`').split_once('.')?;
    let value = table.get_mut(section)?.get_mut(key)?;
    *value = toml::Value::String(value.to_string());
    table.try_into::<Config>().err()
}

impl Config {
    /// Reads a configuration file (without one: the defaults), and then applies overrides
    /// (`section.key=value`).
    ///
    /// # Errors
    /// Returns [`ConfigError`] if the file cannot be read or a value is invalid.
    pub fn load(file: Option<&Path>, overrides: &[String]) -> Result<Self, ConfigError> {
        let text = match file {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path)
                .map_err(|source| ConfigError::File { path: path.to_owned(), source })?,
        };
        Self::read(&text, file, overrides)
    }

    /// Reads a configuration's text, which is that of `file`, and applies overrides.
    fn read(text: &str, file: Option<&Path>, overrides: &[String]) -> Result<Self, ConfigError> {
        let refused = |source| ConfigError::Toml { file: file.map(Path::to_owned), source };
        let mut table: toml::Table = text.parse().map_err(refused)?;
        for text in overrides {
            set(&mut table, text)?;
        }
        let config: Self = match table.clone().try_into() {
            Ok(config) => config,
            Err(error) => return Err(refused(as_a_word(table, &error).unwrap_or(error))),
        };
        config.addresses()?;
        config.networks()?;
        config.check_spans()?;
        config.check_rdma()?;
        config.core(1)?.check()?;
        if config.escape.workers > WORKERS_MAX {
            return Err(ConfigError::Workers { found: config.escape.workers });
        }
        if config.read.checksums == Checksums::Workers && config.escape.workers == 0 {
            return Err(ConfigError::NoWorkers);
        }
        config.cache.check()?;
        config.congestion.check()?;
        config.rights.check(config.admission.classes)?;
        Ok(config)
    }

    /// Returns the configuration as TOML: what `--print-config` prints, and what can be read again.
    ///
    /// # Errors
    /// Returns [`ConfigError::Path`] if the control socket was named on the command line by bytes that are no
    /// text.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let paths = [Some(&self.control_socket), self.admin_socket.as_ref()];
        if let Some(path) = paths.into_iter().flatten().find(|path| path.to_str().is_none()) {
            return Err(ConfigError::Path { path: path.clone() });
        }
        Ok(toml::to_string(self).expect("a configuration is TOML, except for paths that are no text"))
    }

    /// Checks that times are at most a day, and spinning at most a second. A longer time is probably given in
    /// a wrong unit, and would overflow the clock's arithmetic.
    fn check_spans(&self) -> Result<(), ConfigError> {
        for (key, found, max) in [
            ("admission.aging_ms", self.admission.aging_ms, DAY_MS),
            ("session.quarantine_ms", self.session.quarantine_ms, DAY_MS),
            ("session.name_kept_ms", self.session.name_kept_ms, DAY_MS),
            ("escape.straggler_us", self.escape.straggler_us, DAY_MS * 1000),
            ("reactor.spin_us_max", self.reactor.spin_us_max, 1_000_000),
            ("shutdown.drain_ms", self.shutdown.drain_ms, DAY_MS),
        ] {
            if found > max {
                return Err(ConfigError::Span { key, found, max });
            }
        }
        Ok(())
    }

    /// Checks that the numbers of `[rdma]` fit into the bits that RDMA packets have for them. Checks
    /// `rdma.look_ms`, the time between two surveys of the port, too.
    fn check_rdma(&self) -> Result<(), ConfigError> {
        let Rdma { ack_timeout, retry, look_ms, .. } = self.rdma;
        for (key, found, min, max, why) in [
            (
                "rdma.ack_timeout",
                ack_timeout.into(),
                1,
                31,
                ": 16 is 268 ms, each more twice as long; 0 would be for ever",
            ),
            ("rdma.retry", retry.into(), 0, 7, ""),
            ("rdma.look_ms", look_ms, 100, DAY_MS, ""),
        ] {
            if !(min..=max).contains(&found) {
                return Err(ConfigError::Rdma { key, found, min, max, why });
            }
        }
        Ok(())
    }

    /// Returns the path of the admin socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.admin_socket.clone().unwrap_or_else(|| admin_socket_beside(&self.control_socket))
    }

    /// Checks that the control plane's sockets have two paths. The caller calls this function after
    /// `--control-socket` has replaced the path.
    ///
    /// # Errors
    /// Returns [`ConfigError::OneSocket`].
    pub fn check_sockets(&self) -> Result<(), ConfigError> {
        let path = self.admin_socket();
        if path == self.control_socket { Err(ConfigError::OneSocket { path }) } else { Ok(()) }
    }

    /// Parses the networks from which senders may connect.
    ///
    /// # Errors
    /// Returns [`ConfigError::Network`].
    pub fn networks(&self) -> Result<Networks, ConfigError> {
        if self.networks.is_empty() {
            return Ok(Networks::default());
        }
        let networks: Vec<Network> =
            self.networks.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        Ok(Networks::only(networks))
    }

    /// Parses and checks the addresses to listen on.
    ///
    /// # Errors
    /// Returns [`ConfigError::Address`], [`ConfigError::NoAddress`], [`ConfigError::Mixed`],
    /// [`ConfigError::NoVerbs`] or [`ConfigError::NoDevice`].
    pub fn addresses(&self) -> Result<Vec<Address>, ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError::NoAddress);
        }
        let addresses: Vec<Address> =
            self.listen.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let is_rdma = |address: &&Address| matches!(address, Address::Rdma(_));
        match addresses.iter().find(is_rdma) {
            Some(address) if !cfg!(feature = "verbs") => {
                Err(ConfigError::NoVerbs { address: address.clone() })
            }
            Some(_) if !addresses.iter().all(|address| is_rdma(&address)) => Err(ConfigError::Mixed),
            Some(_) if self.rdma.device.is_none() && self.rdma.port.or(self.rdma.gid_index).is_some() => {
                Err(ConfigError::NoDevice)
            }
            _ => Ok(addresses),
        }
    }

    /// Checks that `[rdma]` is set only if the daemon listens on an `rdma:` address. The caller calls this
    /// function after `--listen` has replaced the list `listen`.
    ///
    /// # Errors
    /// Returns [`ConfigError::NoRdma`], or an error of [`Self::addresses`].
    pub fn check_device(&self) -> Result<(), ConfigError> {
        let is_used = self.addresses()?.iter().any(|address| matches!(address, Address::Rdma(_)));
        if is_used || self.rdma == Rdma::default() { Ok(()) } else { Err(ConfigError::NoRdma) }
    }

    /// Returns the NUMA node for the pool, as far as the configuration tells: `pool.numa_node`, or the node
    /// of the device that `rdma.device` names.
    pub fn numa_node(&self) -> Option<u32> {
        self.numa_node_below(Path::new("/sys"))
    }

    /// Returns the NUMA node like [`Self::numa_node`], with sysfs mounted at `sys`.
    fn numa_node_below(&self, sys: &Path) -> Option<u32> {
        let of_device = |device: &String| node_of_device(sys, device);
        self.pool.numa_node.or_else(|| self.rdma.device.as_ref().and_then(of_device))
    }

    /// Returns the sizes of the rings and slots in each session's segment.
    pub fn segment_shape(&self) -> SegmentShape {
        SegmentShape::new(self.session.slots, self.session.messages)
    }

    /// Converts the receiver's part of the configuration, for a NIC with `scatter_max` scatter entries.
    ///
    /// # Errors
    /// Returns [`ConfigError::Slabs`] or [`ConfigError::MemorySlabs`] if a size is no multiple of the slab,
    /// or is too large.
    pub fn core(&self, scatter_max: u32) -> Result<jet_core::Config, ConfigError> {
        let slabs = |key, bytes: u64| match u32::try_from(bytes / SLAB_BYTES) {
            Ok(slabs) if bytes.is_multiple_of(SLAB_BYTES) && bytes < 1 << 32 => Ok(slabs),
            _ => Err(ConfigError::Slabs { key, bytes }),
        };
        // Escape memory is ordinary memory, so the pool's limit of 4 GiB does not hold for it.
        let memory = |key, bytes: u64| match u32::try_from(bytes / SLAB_BYTES) {
            Ok(slabs) if bytes.is_multiple_of(SLAB_BYTES) => Ok(slabs),
            _ => Err(ConfigError::MemorySlabs { key, bytes }),
        };
        Ok(jet_core::Config {
            pool_slabs: slabs("pool.bytes", self.pool.bytes)?,
            srq_slabs: slabs("pool.srq_bytes", self.pool.srq_bytes)?,
            srq_floor_slabs: slabs("pool.srq_floor_bytes", self.pool.srq_floor_bytes)?,
            srq_reserve_entries: self.pool.srq_reserve_entries,
            fragment_bytes: slabs("read.fragment_bytes", self.read.fragment_bytes)?
                .saturating_mul(jet_wire::SLAB_BYTES_U32),
            reads_max: self.read.concurrency,
            in_flight_bytes: self.read.in_flight_bytes,
            peer_share_percent: self.read.peer_share_percent,
            footprint_follows: self.read.footprint == Footprint::Follow,
            checksums: self.read.checksums.into(),
            scatter_max,
            message_bytes_max: self.read.message_bytes_max,
            classes: self.admission.classes,
            aging_ns: self.admission.aging_ms.saturating_mul(1_000_000),
            peers_max: self.limits.peers,
            sends_max: super::launch::sends_max(self),
            sessions_max: self.limits.sessions,
            messages_max: self.limits.messages,
            requests_per_peer: self.limits.requests_per_peer,
            credit_max: self.limits.credit_per_peer,
            // Each has a message. Who lowers one need not lower the other.
            reply_slots: memory("limits.reply_bytes", self.limits.reply_bytes)?.min(self.limits.messages),
            replies_per_peer: self.limits.replies_per_peer,
            session_slots: self.session.slots,
            session_messages: self.session.messages,
            quarantine_ns: self.session.quarantine_ms.saturating_mul(1_000_000),
            name_kept_ns: self.session.name_kept_ms.saturating_mul(1_000_000),
            heartbeat_ns: self.limits.heartbeat_ms.saturating_mul(1_000_000),
            escape: EscapeConfig {
                enabled: self.escape.enabled,
                thresholds: Thresholds {
                    safe_permille: self.escape.safe_permille,
                    danger_permille: self.escape.danger_permille,
                    hysteresis_permille: self.escape.hysteresis_permille,
                },
                replace_slabs_max: memory("escape.replace_bytes", self.escape.replace_bytes)?,
                credit_permille: self.escape.credit_permille,
                straggler_ns: self.escape.straggler_us.saturating_mul(1000),
            },
            memory_slabs: memory("escape.memory_bytes", self.escape.memory_bytes)?,
            session_memory_slabs: memory("escape.session_memory_bytes", self.escape.session_memory_bytes)?,
            signals: self.congestion.soft,
            ..jet_core::Config::default()
        })
    }
}

/// Reads a configuration's text like [`Config::load`].
impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        Self::read(text, None, &[])
    }
}

/// Puts `section.key=value` into the table. The value is parsed as TOML; a value that is not TOML is taken as
/// text.
fn set(table: &mut toml::Table, text: &str) -> Result<(), ConfigError> {
    let malformed = || ConfigError::Override { text: text.to_owned() };
    let (path, value) = text.split_once('=').ok_or_else(malformed)?;
    let value = match format!("v = {value}").parse::<toml::Table>() {
        Ok(mut parsed) => parsed.remove("v").ok_or_else(malformed)?,
        Err(_) => toml::Value::String(value.to_owned()),
    };
    let mut keys: Vec<&str> = path.split('.').collect();
    let last = keys.pop().filter(|key| !key.is_empty()).ok_or_else(malformed)?;
    let mut place = table;
    for key in keys {
        let entry = place.entry(key).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        place = entry.as_table_mut().ok_or_else(malformed)?;
    }
    place.insert(last.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests;
