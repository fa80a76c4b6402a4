//! The receiver's configuration, with the paper's numbers as defaults.

use crate::pool::EscapeShape;
use jet_escape::{EscapeConfig, EscapeConfigError};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};

/// The most admission classes that can be configured.
pub const CLASSES_MAX: usize = 8;
/// The most slabs of one fragment. A slot's word of held slices has one bit for each.
pub const FRAGMENT_SLABS_MAX: u32 = 64;

/// Numbers that a receiver is created with. They are fixed while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Slabs of 4 KiB in the pool. The default is 3072 (12 MiB), as in Jet §4.1.3.
    pub pool_slabs: u32,
    /// Slabs of the SRQ share at first, and the most SRQ entries. The default is 1024 (4 MiB, for 32 QPs), as
    /// in Jet §4.1.3.
    pub srq_slabs: u32,
    /// Slabs that the SRQ share always keeps, so that control messages land.
    pub srq_floor_slabs: u32,
    /// SRQ entries kept posted beyond the credit that senders have: for senders that were idle and wake.
    pub srq_reserve_entries: u32,
    /// Bytes of the largest fragment, which is one READ. The default is 256 KiB, as in Jet §4.1.2.
    pub fragment_bytes: u32,
    /// The most READs in flight at once, and the most messages being read at once. The default is 32, as in
    /// Jet §4.1.2.
    pub reads_max: u32,
    /// The most bytes of READs in flight at once. The default is 8 MiB, as in Jet §4.1.2.
    pub in_flight_bytes: u64,
    /// Percent of `reads_max` and `in_flight_bytes` that one peer may have at most. With 100 peers have no
    /// shares: one of them may have everything in flight, and then a slow one holds up all others.
    pub peer_share_percent: u32,
    /// Whether the use of the READ share is bounded by what the load is found to need. The bound leaves out
    /// the slabs of stragglers, which the escape counts.
    pub footprint_follows: bool,
    /// Choice of where the checksums are made, for messages that carry one.
    pub checksums: Checksums,
    /// The most scatter entries of one READ: the NIC's limit.
    pub scatter_max: u32,
    /// Bytes of the longest message that is accepted.
    pub message_bytes_max: u64,
    /// Number of admission classes, of which 0 is the most urgent.
    pub classes: u8,
    /// Nanoseconds of waiting after which a message goes ahead of more urgent classes.
    pub aging_ns: u64,
    /// The most connected senders.
    pub peers_max: u32,
    /// The most registered applications.
    pub sessions_max: u32,
    /// The most messages known at once: waiting, being read, and delivered but not finished.
    pub messages_max: u32,
    /// The most unfinished requests for large messages of one sender.
    pub requests_per_peer: u32,
    /// The most credit of one sender.
    pub credit_max: u32,
    /// Slots of 4 KiB for replies, from their arrival in the receiver until the NIC has sent them. 0: senders
    /// are told that there are no replies. Default 0.
    pub reply_slots: u32,
    /// The most of one sender's messages that have a slot for a reply, or the promise of one.
    pub replies_per_peer: u32,
    /// The most runs delivered to one application and not released.
    pub session_slots: u32,
    /// The most messages delivered to one application and not finished.
    pub session_messages: u32,
    /// The most control messages to one peer (ends, credit, signals) whose SENDs have not completed. On an RC
    /// queue pair a SEND completes only after the READs posted before it, however long ago it arrived. With a
    /// small number, acknowledgements would wait for READs.
    pub control_sends_max: u32,
    /// The most control messages to all peers together whose SENDs have not completed, at least one for each.
    pub sends_max: u32,
    /// Nanoseconds after which a peer that waits for something, and was sent nothing in that time, is sent a
    /// heartbeat.
    pub heartbeat_ns: u64,
    /// Nanoseconds for which the slabs of an ended session stay unused at least: the application's own I/O
    /// may still be reading them.
    pub quarantine_ns: u64,
    /// Nanoseconds for which a name stays its user's after the last session that had it. The default is 30 s.
    pub name_kept_ns: u64,
    /// Nanoseconds between two ticks, in which the receiver updates rates, credits and ages.
    pub tick_ns: u64,
    /// Thresholds of pressure, and what is done under pressure (Jet §4.3).
    pub escape: EscapeConfig,
    /// Slabs of escape memory for copies, and for messages that take memory instead of waiting for room in
    /// the pool. The slabs of `escape.replace_slabs_max` are additional.
    pub memory_slabs: u32,
    /// Slabs of escape memory at which a session is granted nothing new before it releases some.
    pub session_memory_slabs: u32,
    /// The most copies under way at once.
    pub copies_max: u32,
    /// Whether congestion signals are sent to senders, in addition to whatever the NIC marks.
    pub signals: bool,
}

/// Places where the CRC32C of a message that carries one can be made (Jet §4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// The receiver makes the CRC32C at once.
    Inline,
    /// Workers make the CRC32C of READs, begun by `Effects::begin_check`, while the receiver does other work.
    /// For small messages the receiver makes it at once.
    Workers,
    /// No checksum is made: the NIC checks already, or checks are not wanted. Senders are told that checksums
    /// are not understood.
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
            peer_share_percent: 75,
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
            // The driver must have memory for them.
            reply_slots: 0,
            replies_per_peer: 256,
            session_slots: 1024,
            session_messages: 1024,
            control_sends_max: 12,
            sends_max: 8 * 4096 + 64,
            heartbeat_ns: 5_000_000_000,
            quarantine_ns: 1_000_000_000,
            name_kept_ns: 30_000_000_000,
            tick_ns: 10_000_000,
            escape: EscapeConfig::default(),
            memory_slabs: 8192,
            session_memory_slabs: 2048,
            copies_max: 64,
            signals: true,
        }
    }
}

/// A configuration that cannot work. Its message says which number is wrong and what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A number is out of its range.
    Range {
        /// Name of the number.
        name: &'static str,
        /// Value that the number has.
        found: u64,
        /// The least allowed value.
        min: u64,
        /// The greatest allowed value.
        max: u64,
    },
    /// The fragment's bytes are no multiple of the slab's.
    FragmentAlignment {
        /// Value of `fragment_bytes`.
        found: u32,
    },
    /// The footprint is to follow the load, but escape, which counts stragglers, is off.
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
    /// Returns the most SENDs to one peer that may be under way: control messages, and a farewell.
    pub const fn sends_per_peer_max(&self) -> u32 {
        self.control_sends_max + 1
    }

    /// Checks that the numbers fit each other.
    ///
    /// # Errors
    /// [`ConfigError`] names the first number that does not fit.
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
        // What the reserve leaves of the floor is what credit can be given for when the SRQ share is at its
        // floor.
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
        range("peer_share_percent", u64::from(self.peer_share_percent), 1, 100)?;
        range("scatter_max", u64::from(self.scatter_max), 1, 1 << 16)?;
        range("message_bytes_max", self.message_bytes_max, 1, 1 << 40)?;
        range("classes", u64::from(self.classes), 1, CLASSES_MAX as u64)?;
        range("peers_max", u64::from(self.peers_max), 1, 1 << 20)?;
        range("sessions_max", u64::from(self.sessions_max), 1, 4096)?;
        // So many records are kept for small messages. There must be some beyond them, for large messages.
        let records = u64::from(self.srq_slabs) + u64::from(self.reads_max);
        range("messages_max", u64::from(self.messages_max), records, 1 << 20)?;
        range("requests_per_peer", u64::from(self.requests_per_peer), 1, 1 << 16)?;
        range("credit_max", u64::from(self.credit_max), 1, u64::from(self.srq_slabs))?;
        // Each end that waits with its reply has a record.
        range("reply_slots", u64::from(self.reply_slots), 0, u64::from(self.messages_max))?;
        range("replies_per_peer", u64::from(self.replies_per_peer), 1, 1 << 16)?;
        // Half of 128 are reserved for one fragment of the message that the application waits for.
        range("session_slots", u64::from(self.session_slots), 128, 1 << 15)?;
        range("session_messages", u64::from(self.session_messages), 1, 1 << 15)?;
        range("control_sends_max", u64::from(self.control_sends_max), 1, 64)?;
        range("sends_max", u64::from(self.sends_max), u64::from(self.peers_max), u64::from(u32::MAX))?;
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

    /// Returns how many slabs of escape memory there are for each purpose.
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
