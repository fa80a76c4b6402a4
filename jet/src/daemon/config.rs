//! The daemon's configuration: TOML, every number of the paper a key with the paper's default.

use super::escape::WORKERS_MAX;
use crate::daemon::congestion::{CongestionConfig, CongestionConfigError};
use jet_escape::{EscapeConfig, Thresholds};
use jet_fabric::Address;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const SLAB_BYTES: u64 = jet_wire::SLAB_BYTES as u64;

/// Everything that can be set. `jet daemon --print-config` prints the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where applications register and the tool asks.
    pub control_socket: PathBuf,
    /// Where senders connect; several are possible, `shm:` and `tcp:` beside each other.
    pub listen: Vec<String>,
    /// The pool (Jet §4.1.3).
    pub pool: Pool,
    /// READs (Jet §4.1.2).
    pub read: Read,
    /// Admission (Jet §3.2, §5).
    pub admission: Admission,
    /// How many of what.
    pub limits: Limits,
    /// Applications' sessions.
    pub session: Session,
    /// Escape (Jet §4.3).
    pub escape: Escape,
    /// The NIC's own knobs that escape may lower (Jet §4.3).
    pub congestion: CongestionConfig,
    /// The reactor thread.
    pub reactor: Reactor,
    /// The software NIC.
    pub nic: Nic,
    /// The RDMA device, for `rdma:` addresses.
    pub rdma: Rdma,
    /// The end.
    pub shutdown: Shutdown,
}

/// The pool's sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// All slabs together: 12 MiB.
    pub bytes: u64,
    /// The SRQ share at first, and the most that is posted: 4 MiB (1024 entries of 4 KiB).
    pub srq_bytes: u64,
    /// What the SRQ share always keeps.
    pub srq_floor_bytes: u64,
    /// SRQ entries posted beyond the credit that senders have.
    pub srq_reserve_entries: u32,
    /// 2 MiB pages: `auto` takes them where there are any, `require` fails where there are none, `off`.
    pub huge_pages: HugePages,
}

/// Whether the pool lies on huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// Where there are any.
    Auto,
    /// Or not at all.
    Require,
    /// Never.
    Off,
}

/// The READ windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Read {
    /// The largest fragment: 256 KiB.
    pub fragment_bytes: u64,
    /// READs at once: 32.
    pub concurrency: u32,
    /// Bytes of READs at once: 8 MiB.
    pub in_flight_bytes: u64,
    /// The longest message that is taken.
    pub message_bytes_max: u64,
}

/// The admission queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admission {
    /// Classes, 0 the most urgent.
    pub classes: u8,
    /// What waited this long goes ahead of more urgent classes.
    pub aging_ms: u64,
}

/// How many of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connected senders.
    pub peers: u32,
    /// Registered applications.
    pub sessions: u32,
    /// Messages known at once.
    pub messages: u32,
    /// Unfinished large messages of one sender.
    pub requests_per_peer: u32,
    /// SENDs that one sender may have on the way.
    pub credit_per_peer: u32,
}

/// An application's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Session {
    /// Runs delivered and not released.
    pub slots: u32,
    /// Messages delivered and not finished.
    pub messages: u32,
    /// How long a dead application's slabs stay unused.
    pub quarantine_ms: u64,
}

/// Escape from pressure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Escape {
    /// Off, pressure is shown and nothing is done about it: for comparisons.
    pub enabled: bool,
    /// CACHE_SAFE, in thousandths of the pool.
    pub safe_permille: u32,
    /// CACHE_DANGER, in thousandths of the pool.
    pub danger_permille: u32,
    /// How far above a line it counts as crossed on the way back.
    pub hysteresis_permille: u32,
    /// CREDIT: an application is slow when more than so many thousandths of what it holds are stragglers.
    pub credit_permille: u32,
    /// A slab that is held this long is a straggler.
    pub straggler_us: u64,
    /// MEM_ESC: memory that may stand in for stragglers; 0 replaces none.
    pub replace_bytes: u64,
    /// Memory for copies of what slow applications hold, and for messages that take memory instead of waiting.
    pub memory_bytes: u64,
    /// An application that holds this much of it is granted nothing new before it releases.
    pub session_memory_bytes: u64,
    /// Threads that copy; 0 copies nothing.
    pub workers: usize,
}

/// The reactor thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reactor {
    /// The core that it is pinned to; none: where the kernel puts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// The longest that it spins before it sleeps; adapts below that.
    pub spin_us_max: u64,
}

/// The software NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nic {
    /// Whether the NIC has a thread of its own: `on`, `off` (the reactor's thread moves the bytes), or `auto`: on where
    /// there are more than two cores.
    pub thread: NicThread,
    /// The core that the NIC's thread is pinned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
}

/// The RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rdma {
    /// Its name; none: the one that has the first address of `listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its port; the first without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// The GID whose address connections come to and leave from, by its index in the port's table; none: as the kernel
    /// routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
}

/// Whether the software NIC has a thread of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NicThread {
    /// On where there are more than two cores.
    Auto,
    /// It has.
    On,
    /// It has not.
    Off,
}

/// The end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long a drain may take before the daemon stops anyway.
    pub drain_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            control_socket: PathBuf::from(jet_client::registration::CONTROL_SOCKET),
            listen: vec!["shm:/run/jet/nic.sock".to_owned()],
            pool: Pool::default(),
            read: Read::default(),
            admission: Admission::default(),
            limits: Limits::default(),
            session: Session::default(),
            escape: Escape::default(),
            congestion: CongestionConfig::default(),
            reactor: Reactor::default(),
            nic: Nic::default(),
            rdma: Rdma::default(),
            shutdown: Shutdown::default(),
        }
    }
}

impl Default for Pool {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self {
            bytes: u64::from(core.pool_slabs) * SLAB_BYTES,
            srq_bytes: u64::from(core.srq_slabs) * SLAB_BYTES,
            srq_floor_bytes: u64::from(core.srq_floor_slabs) * SLAB_BYTES,
            srq_reserve_entries: core.srq_reserve_entries,
            huge_pages: HugePages::Auto,
        }
    }
}

impl Default for Read {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self {
            fragment_bytes: u64::from(core.fragment_bytes),
            concurrency: core.reads_max,
            in_flight_bytes: core.in_flight_bytes,
            message_bytes_max: core.message_bytes_max,
        }
    }
}

impl Default for Admission {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self { classes: core.classes, aging_ms: core.aging_ns / 1_000_000 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self {
            peers: core.peers_max,
            sessions: core.sessions_max,
            messages: core.messages_max,
            requests_per_peer: core.requests_per_peer,
            credit_per_peer: core.credit_max,
        }
    }
}

impl Default for Session {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self {
            slots: core.session_slots,
            messages: core.session_messages,
            quarantine_ms: core.quarantine_ns / 1_000_000,
        }
    }
}

impl Default for Escape {
    fn default() -> Self {
        let core = jet_core::Config::default();
        let EscapeConfig { enabled, thresholds, replace_slabs_max, credit_permille, straggler_ns } =
            core.escape;
        Self {
            enabled,
            safe_permille: thresholds.safe_permille,
            danger_permille: thresholds.danger_permille,
            hysteresis_permille: thresholds.hysteresis_permille,
            credit_permille,
            straggler_us: straggler_ns / 1000,
            replace_bytes: u64::from(replace_slabs_max) * SLAB_BYTES,
            memory_bytes: u64::from(core.memory_slabs) * SLAB_BYTES,
            session_memory_bytes: u64::from(core.session_memory_slabs) * SLAB_BYTES,
            workers: 1,
        }
    }
}

impl Default for Reactor {
    fn default() -> Self {
        Self { cpu: None, spin_us_max: 50 }
    }
}

impl Default for Nic {
    fn default() -> Self {
        Self { thread: NicThread::Auto, cpu: None }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { drain_ms: 10_000 }
    }
}

/// Why a configuration is no good. Each says which key and what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not TOML, has unknown keys, or values of the wrong type.
    #[error("configuration{}: {}", place(.file.as_deref()), one_line(.source))]
    Toml {
        /// The file, where there is one.
        file: Option<PathBuf>,
        /// What is wrong.
        source: toml::de::Error,
    },
    /// `--set` is not `key=value`.
    #[error("'--set {text}' is not SECTION.KEY=VALUE, as in --set pool.bytes=25165824")]
    Override {
        /// What was given.
        text: String,
    },
    /// An address is none.
    #[error("configuration: listen: {0}")]
    Address(#[from] jet_fabric::AddressError),
    /// There is nowhere to listen.
    #[error(
        "configuration: listen is empty; name at least one address, as in listen = [\"shm:/run/jet/nic.sock\"]"
    )]
    NoAddress,
    /// One NIC cannot have them all.
    #[error(
        "configuration: listen has rdma: addresses beside others, but a daemon has one NIC; run two, each with its own \
         control_socket"
    )]
    Mixed,
    /// A part of a device without the device.
    #[error("configuration: rdma.port and rdma.gid_index are of a device; name it as rdma.device")]
    NoDevice,
    /// The build cannot.
    #[error(
        "configuration: listen = [\"{address}\"], but this build has no RDMA; build it with --features verbs \
         (it needs libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config)"
    )]
    NoVerbs {
        /// The address.
        address: Address,
    },
    /// A size is no multiple of the slab, or too large.
    #[error("configuration: {key} = {bytes} must be a multiple of the 4096-byte slab, and below 4 GiB")]
    Slabs {
        /// Which key.
        key: &'static str,
        /// What it is.
        bytes: u64,
    },
    /// A size of escape memory is no multiple of the slab, or far too large.
    #[error("configuration: {key} = {bytes} must be a multiple of the 4096-byte slab, and at most 4 GiB")]
    MemorySlabs {
        /// Which key.
        key: &'static str,
        /// What it is.
        bytes: u64,
    },
    /// More copying threads than can be told apart.
    #[error("configuration: escape.workers is {found}, but must be 0 to {WORKERS_MAX}")]
    Workers {
        /// What it is.
        found: usize,
    },
    /// A time that no clock of this daemon is meant to count to.
    #[error("configuration: {key} is {found}, but must be at most {max}")]
    Span {
        /// Which key.
        key: &'static str,
        /// What it is.
        found: u64,
        /// What it may be, in the key's unit.
        max: u64,
    },
    /// The numbers do not fit each other.
    #[error("configuration: {}", with_keys(.0))]
    Core(#[from] jet_core::ConfigError),
    /// The section `[congestion]`.
    #[error("configuration: {0}")]
    Congestion(#[from] CongestionConfigError),
}

fn place(file: Option<&Path>) -> String {
    file.map_or_else(String::new, |file| format!(" {}", file.display()))
}

fn one_line(error: &toml::de::Error) -> String {
    error.to_string().lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The receiver's own names are not what is written in the file: names the key, and the unit where it differs.
fn with_keys(error: &jet_core::ConfigError) -> String {
    let (name, found, min, max) = match error {
        jet_core::ConfigError::Range { name, found, min, max } => (*name, found, min, max),
        jet_core::ConfigError::Escape(error) => {
            return error
                .to_string()
                .replacen("escape: ", "escape.", 1)
                .replace("straggler_ns", "straggler_us");
        }
        jet_core::ConfigError::FragmentAlignment { .. } => return error.to_string(),
    };
    let key = match name {
        "pool_slabs" => "pool.bytes, in slabs of 4096 bytes,",
        "srq_slabs" => "pool.srq_bytes, in slabs of 4096 bytes,",
        "srq_floor_slabs" => "pool.srq_floor_bytes, in slabs of 4096 bytes,",
        "srq_reserve_entries" => "pool.srq_reserve_entries",
        "fragment_bytes" => "read.fragment_bytes",
        "reads_max" => "read.concurrency",
        "in_flight_bytes" => "read.in_flight_bytes",
        "message_bytes_max" => "read.message_bytes_max",
        "classes" => "admission.classes",
        "peers_max" => "limits.peers",
        "sessions_max" => "limits.sessions",
        "messages_max" => "limits.messages",
        "requests_per_peer" => "limits.requests_per_peer",
        "credit_max" => "limits.credit_per_peer",
        "session_slots" => "session.slots",
        "session_messages" => "session.messages",
        "replace_slabs_max" => "escape.replace_bytes, in slabs of 4096 bytes,",
        "memory_slabs" => "escape.memory_bytes, in slabs of 4096 bytes,",
        "session_memory_slabs" => "escape.session_memory_bytes, in slabs of 4096 bytes,",
        other => other,
    };
    format!("{key} is {found}, but must be {min} to {max}")
}

impl Config {
    /// Reads a file (none: the defaults) and then overrides (`section.key=value`).
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(file: Option<&Path>, overrides: &[String]) -> Result<Self, ConfigError> {
        let mut table = match file {
            None => toml::Table::new(),
            Some(path) => std::fs::read_to_string(path)
                .map_err(|source| ConfigError::File { path: path.to_owned(), source })?
                .parse::<toml::Table>()
                .map_err(|source| ConfigError::Toml { file: Some(path.to_owned()), source })?,
        };
        for text in overrides {
            set(&mut table, text)?;
        }
        let config: Self = table
            .try_into()
            .map_err(|source| ConfigError::Toml { file: file.map(Path::to_owned), source })?;
        config.addresses()?;
        config.check_spans()?;
        config.core(1)?.check()?;
        if config.escape.workers > WORKERS_MAX {
            return Err(ConfigError::Workers { found: config.escape.workers });
        }
        config.congestion.check()?;
        Ok(config)
    }

    /// Times are a day at most, spinning a second: longer is a slip of the unit, and would overflow the clock's arithmetic.
    fn check_spans(&self) -> Result<(), ConfigError> {
        const DAY_MS: u64 = 24 * 60 * 60 * 1000;
        for (key, found, max) in [
            ("admission.aging_ms", self.admission.aging_ms, DAY_MS),
            ("session.quarantine_ms", self.session.quarantine_ms, DAY_MS),
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

    /// The addresses to listen on.
    ///
    /// # Errors
    /// [`ConfigError::Address`], [`ConfigError::NoAddress`], [`ConfigError::Mixed`], [`ConfigError::NoVerbs`],
    /// [`ConfigError::NoDevice`].
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

    /// The receiver's part of it, for a NIC with so many scatter entries.
    ///
    /// # Errors
    /// [`ConfigError::Slabs`].
    pub fn core(&self, scatter_max: u32) -> Result<jet_core::Config, ConfigError> {
        let slabs = |key, bytes: u64| match u32::try_from(bytes / SLAB_BYTES) {
            Ok(slabs) if bytes.is_multiple_of(SLAB_BYTES) && bytes < 1 << 32 => Ok(slabs),
            _ => Err(ConfigError::Slabs { key, bytes }),
        };
        // Beyond the pool's limit: this is ordinary memory.
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
            scatter_max,
            message_bytes_max: self.read.message_bytes_max,
            classes: self.admission.classes,
            aging_ns: self.admission.aging_ms.saturating_mul(1_000_000),
            peers_max: self.limits.peers,
            sessions_max: self.limits.sessions,
            messages_max: self.limits.messages,
            requests_per_peer: self.limits.requests_per_peer,
            credit_max: self.limits.credit_per_peer,
            session_slots: self.session.slots,
            session_messages: self.session.messages,
            quarantine_ns: self.session.quarantine_ms.saturating_mul(1_000_000),
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

/// Puts `section.key=value` into the table; the value is TOML, or a bare word taken as text.
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
