//! Every number of the receiver, with the paper's as defaults.

use crate::pool::EscapeShape;
use jet_escape::{EscapeConfig, EscapeConfigError};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};

/// The most admission classes.
pub const CLASSES_MAX: usize = 8;
/// The most slabs of one fragment: one bit each in a slot's word of held slices.
pub const FRAGMENT_SLABS_MAX: u32 = 64;

/// What a receiver is made with. All of it is fixed once it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Slabs of 4 KiB in the pool. 3072 (12 MiB): Jet §4.1.3.
    pub pool_slabs: u32,
    /// The SRQ share's slabs at first, and the most SRQ entries. 1024 (4 MiB, for 32 QPs): Jet §4.1.3.
    pub srq_slabs: u32,
    /// Slabs that the SRQ share always keeps, so that control messages land.
    pub srq_floor_slabs: u32,
    /// SRQ entries kept posted beyond the credit that senders have: for those that were idle and wake.
    pub srq_reserve_entries: u32,
    /// The largest fragment, one READ. 256 KiB: Jet §4.1.2.
    pub fragment_bytes: u32,
    /// READs at once, and messages that are being read at once. 32: Jet §4.1.2.
    pub reads_max: u32,
    /// Bytes of READs at once. 8 MiB: Jet §4.1.2.
    pub in_flight_bytes: u64,
    /// Whether no more of the READ share is used at once than the load is found to need. Stragglers, which
    /// escape counts, are no part of that.
    pub footprint_follows: bool,
    /// Who makes the checksums of messages that carry one.
    pub checksums: Checksums,
    /// Scatter entries of one READ: the NIC's limit.
    pub scatter_max: u32,
    /// The longest message that is taken.
    pub message_bytes_max: u64,
    /// Admission classes, 0 the most urgent.
    pub classes: u8,
    /// A message that waited this long goes ahead of more urgent classes.
    pub aging_ns: u64,
    /// Connected senders.
    pub peers_max: u32,
    /// Registered applications.
    pub sessions_max: u32,
    /// Messages known at once: waiting, being read, delivered and not finished.
    pub messages_max: u32,
    /// Unfinished requests for large messages of one sender.
    pub requests_per_peer: u32,
    /// The most credit of one sender.
    pub credit_max: u32,
    /// Runs delivered to one application and not released.
    pub session_slots: u32,
    /// Messages delivered to one application and not finished.
    pub session_messages: u32,
    /// Control messages to one peer whose SENDs have not completed: ends, credit, signals. On an RC queue
    /// pair a SEND completes only after the READs that were posted before it, however long ago it arrived:
    /// with few of these, acknowledgements would wait for READs.
    pub control_sends_max: u32,
    /// A peer that waits for something, and that nothing was said to for so long, is told that the receiver
    /// is there.
    pub heartbeat_ns: u64,
    /// How long the slabs of an application whose session is over stay unused at least: its own I/O may still
    /// be reading them.
    pub quarantine_ns: u64,
    /// Time between two looks at rates, credits and ages.
    pub tick_ns: u64,
    /// When the pool is under pressure, and what is done about it (Jet §4.3).
    pub escape: EscapeConfig,
    /// Slabs of escape memory for copies, and for messages that take memory instead of waiting; beside those
    /// of `escape.replace_slabs_max`.
    pub memory_slabs: u32,
    /// A session that holds as many of them is granted nothing new before it releases.
    pub session_memory_slabs: u32,
    /// Copies at once.
    pub copies_max: u32,
    /// Whether congestion is signalled to senders, beside whatever the NIC marks.
    pub signals: bool,
}

/// Who makes the CRC32C of messages that carry one (Jet §4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// The receiver, at once.
    Inline,
    /// Whoever `Effects::begin_check` asks, for READs: the receiver goes on meanwhile. For small messages as
    /// `Inline`.
    Workers,
    /// Nobody: the NIC did, or nobody asks for it. Senders are told that checksums are not understood.
    Off,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pool_slabs: 3072,
            srq_slabs: 1024,
            srq_floor_slabs: 128,
            srq_reserve_entries: 64,
            fragment_bytes: 256 << 10,
            reads_max: 32,
            in_flight_bytes: 8 << 20,
            footprint_follows: false,
            checksums: Checksums::Inline,
            scatter_max: 64,
            message_bytes_max: 1 << 30,
            classes: 4,
            aging_ns: 100_000_000,
            peers_max: 4096,
            sessions_max: 64,
            messages_max: 8192,
            requests_per_peer: 64,
            credit_max: 256,
            session_slots: 1024,
            session_messages: 1024,
            control_sends_max: 12,
            heartbeat_ns: 5_000_000_000,
            quarantine_ns: 1_000_000_000,
            tick_ns: 10_000_000,
            escape: EscapeConfig::default(),
            memory_slabs: 8192,
            session_memory_slabs: 2048,
            copies_max: 64,
            signals: true,
        }
    }
}

/// A configuration that cannot work. The message says which number and what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A number is out of its range.
    Range {
        /// Which.
        name: &'static str,
        /// What it is.
        found: u64,
        /// The least it may be.
        min: u64,
        /// The most it may be.
        max: u64,
    },
    /// The fragment is no multiple of the slab.
    FragmentAlignment {
        /// What it is.
        found: u32,
    },
    /// The footprint is to follow the load, and nobody counts stragglers.
    Following,
    /// The escape controller's numbers contradict each other.
    Escape(EscapeConfigError),
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Range { name, found, min, max } => {
                write!(f, "{name} is {found}, but must be {min} to {max}")
            }
            Self::FragmentAlignment { found } => {
                write!(f, "fragment_bytes is {found}, but must be a multiple of the slab's {SLAB_BYTES}")
            }
            Self::Following => {
                f.write_str("footprint_follows takes escape, which counts stragglers, but that is off")
            }
            Self::Escape(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// SENDs to one peer that may be on the way: control messages, and a farewell.
    pub const fn sends_per_peer_max(&self) -> u32 {
        self.control_sends_max + 1
    }

    /// Checks that the numbers fit each other.
    ///
    /// # Errors
    /// [`ConfigError`] names the first that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let range = |name, found: u64, min: u64, max: u64| {
            if (min..=max).contains(&found) {
                Ok(())
            } else {
                Err(ConfigError::Range { name, found, min, max })
            }
        };
        let pool = u64::from(self.pool_slabs);
        let fragment = u64::from(self.fragment_bytes);
        range("pool_slabs", pool, 8, 1 << 20)?;
        range("srq_slabs", u64::from(self.srq_slabs), 2, pool - 1)?;
        range("srq_floor_slabs", u64::from(self.srq_floor_slabs), 2, u64::from(self.srq_slabs))?;
        // What the reserve leaves of the floor is what credit can be given for when the line is down.
        range(
            "srq_reserve_entries",
            u64::from(self.srq_reserve_entries),
            1,
            u64::from(self.srq_floor_slabs) - 1,
        )?;
        range("fragment_bytes", fragment, 4096, u64::from(FRAGMENT_SLABS_MAX) * 4096)?;
        if !self.fragment_bytes.is_multiple_of(SLAB_BYTES_U32) {
            return Err(ConfigError::FragmentAlignment { found: self.fragment_bytes });
        }
        range("reads_max", u64::from(self.reads_max), 1, 4096)?;
        range("in_flight_bytes", self.in_flight_bytes, fragment, pool * 4096)?;
        range("scatter_max", u64::from(self.scatter_max), 1, 1 << 16)?;
        range("message_bytes_max", self.message_bytes_max, 1, 1 << 40)?;
        range("classes", u64::from(self.classes), 1, CLASSES_MAX as u64)?;
        range("peers_max", u64::from(self.peers_max), 1, 1 << 20)?;
        range("sessions_max", u64::from(self.sessions_max), 1, 4096)?;
        // So many records are kept for small messages; beyond them there must be some for those that are
        // READ.
        let records = u64::from(self.srq_slabs) + u64::from(self.reads_max);
        range("messages_max", u64::from(self.messages_max), records, 1 << 20)?;
        range("requests_per_peer", u64::from(self.requests_per_peer), 1, 1 << 16)?;
        range("credit_max", u64::from(self.credit_max), 1, u64::from(self.srq_slabs))?;
        // Half of 128 are reserved for one fragment of the message that the application waits for.
        range("session_slots", u64::from(self.session_slots), 128, 1 << 15)?;
        range("session_messages", u64::from(self.session_messages), 1, 1 << 15)?;
        range("control_sends_max", u64::from(self.control_sends_max), 1, 64)?;
        // A peer is told the span in milliseconds, in 16 bits.
        range("heartbeat_ns", self.heartbeat_ns, 10_000_000, 60_000_000_000)?;
        range("tick_ns", self.tick_ns, 100_000, 1_000_000_000)?;
        range("replace_slabs_max", u64::from(self.escape.replace_slabs_max), 0, 1 << 20)?;
        range("memory_slabs", u64::from(self.memory_slabs), 0, 1 << 20)?;
        if self.memory_slabs > 0 {
            let fragment_slabs = fragment / 4096;
            range("memory_slabs", u64::from(self.memory_slabs), fragment_slabs, 1 << 20)?;
            let most = u64::from(self.memory_slabs);
            range("session_memory_slabs", u64::from(self.session_memory_slabs), fragment_slabs, most)?;
        }
        range("copies_max", u64::from(self.copies_max), 1, 4096)?;
        if self.footprint_follows && !self.escape.enabled {
            return Err(ConfigError::Following);
        }
        self.escape.check().map_err(ConfigError::Escape)
    }

    /// How much escape memory there is for what.
    pub fn escape_shape(&self) -> EscapeShape {
        EscapeShape { replace_slabs: self.escape.replace_slabs_max, memory_slabs: self.memory_slabs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_numbers_are_the_defaults() {
        let config = Config::default();
        config.check().unwrap();
        assert_eq!(u64::from(config.pool_slabs) * 4096, 12 << 20);
        assert_eq!(u64::from(config.srq_slabs) * 4096, 4 << 20);
        assert_eq!(
            (config.fragment_bytes, config.reads_max, config.in_flight_bytes),
            (256 << 10, 32, 8 << 20)
        );
    }

    #[test]
    fn numbers_that_do_not_fit_are_named() {
        let refused = |config: Config| alloc::format!("{}", config.check().unwrap_err());
        assert!(refused(Config { srq_slabs: 4000, ..Config::default() }).contains("srq_slabs is 4000"));
        assert!(refused(Config { fragment_bytes: 5000, ..Config::default() }).contains("multiple"));
        assert!(refused(Config { in_flight_bytes: 1, ..Config::default() }).contains("in_flight_bytes"));
        let no_credit = Config { srq_reserve_entries: 128, ..Config::default() };
        assert!(refused(no_credit).contains("srq_reserve_entries is 128, but must be 1 to 127"));
        let no_large = Config { messages_max: 1024, ..Config::default() };
        assert!(refused(no_large).contains("messages_max is 1024, but must be 1056"));
        assert!(refused(Config { reads_max: 0, ..Config::default() }).contains("reads_max"));
        assert!(
            refused(Config { fragment_bytes: 512 << 10, ..Config::default() }).contains("fragment_bytes")
        );
    }
}
