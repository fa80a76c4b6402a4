//! Error messages in terms of the daemon's configuration. The crates that the daemon uses have other names
//! for its numbers, so their errors are translated into keys that a user can change.

use jet_fabric::limits::{LimitError, Remedy};
#[cfg(feature = "verbs")]
use jet_fabric::verbs::VerbsError;

/// Describes why the receiver refuses its configuration: with the daemon's key, and numbers in the key's
/// unit.
pub(super) fn of_receiver(error: &jet_core::ConfigError) -> String {
    let (name, found, min, max) = match error {
        jet_core::ConfigError::Range { name, found, min, max } => (*name, found, min, max),
        jet_core::ConfigError::Escape(error) => {
            return error
                .to_string()
                .replacen("escape: ", "escape.", 1)
                .replace("straggler_ns", "straggler_us");
        }
        jet_core::ConfigError::FragmentAlignment { .. } => return error.to_string(),
        jet_core::ConfigError::Following => {
            return "read.footprint is \"follow\", which takes escape to tell stragglers; set escape.enabled \
                    = true".to_owned();
        }
    };
    let key = match name {
        "pool_slabs" => "pool.bytes",
        "srq_slabs" => "pool.srq_bytes",
        "srq_floor_slabs" => "pool.srq_floor_bytes",
        "srq_reserve_entries" => "pool.srq_reserve_entries",
        "fragment_bytes" => "read.fragment_bytes",
        "reads_max" => "read.concurrency",
        "in_flight_bytes" => "read.in_flight_bytes",
        "peer_share_percent" => "read.peer_share_percent",
        "message_bytes_max" => "read.message_bytes_max",
        "classes" => "admission.classes",
        "peers_max" => "limits.peers",
        "sessions_max" => "limits.sessions",
        "messages_max" => "limits.messages",
        "requests_per_peer" => "limits.requests_per_peer",
        "credit_max" => "limits.credit_per_peer",
        "reply_slots" => "limits.reply_bytes / 4096",
        "replies_per_peer" => "limits.replies_per_peer",
        "heartbeat_ns" => "limits.heartbeat_ms",
        "session_slots" => "session.slots",
        "session_messages" => "session.messages",
        "replace_slabs_max" => "escape.replace_bytes",
        "memory_slabs" => "escape.memory_bytes",
        "session_memory_slabs" => "escape.session_memory_bytes",
        other => other,
    };
    // The receiver counts in slabs and nanoseconds; the message has the key's unit, so its numbers can be
    // written into the file.
    let in_unit = |number: u64| match name {
        "heartbeat_ns" => number / 1_000_000,
        _ if name.contains("_slabs") => number.saturating_mul(jet_wire::SLAB_BYTES as u64),
        _ => number,
    };
    let (found, min, max) = (in_unit(*found), in_unit(*min), in_unit(*max));
    // Adds where a bound comes from, if another key sets it.
    let from = match name {
        "credit_max" => ": at most one a slab of pool.srq_bytes",
        "messages_max" => ": at least the slabs of pool.srq_bytes and read.concurrency together",
        _ => "",
    };
    format!("{key} is {found}, but must be {min} to {max}{from}")
}

/// Describes what the RDMA device has too little of for this configuration, and which key to lower.
#[cfg(feature = "verbs")]
pub fn of_limits(error: &LimitError) -> String {
    too_little(error, &error.remedy.to_string())
}

/// Describes what the device named by `nic.profile` has too little of for this configuration, and which key
/// to lower.
pub fn of_profile(error: &LimitError) -> String {
    too_little(error, "no size helps: leave nic.profile out, or name another device there (docs/rdma.md)")
}

fn too_little(error: &LimitError, otherwise: &str) -> String {
    let change = match error.remedy {
        Remedy::OtherDevice => otherwise.to_owned(),
        // Names all keys that depend on the SRQ's size at once, so that one restart is enough.
        Remedy::FewerSrqEntries { entries } => {
            let bytes = u64::from(entries) * jet_wire::SLAB_BYTES as u64;
            let reserve = (entries / 4).clamp(1, jet_core::Config::default().srq_reserve_entries);
            format!(
                "lower pool.srq_bytes to {bytes}, pool.srq_floor_bytes to {bytes} or less, \
                 pool.srq_reserve_entries to {reserve} or less, and limits.credit_per_peer to {entries} or \
                 less"
            )
        }
        Remedy::FewerReads => "lower read.concurrency".to_owned(),
    };
    format!("{}; {change}", error.lack())
}

/// Describes why the NIC on verbs cannot be created, with the key that asked for too much.
#[cfg(feature = "verbs")]
pub fn of_verbs(error: &VerbsError) -> String {
    match error {
        VerbsError::Limits(error) => of_limits(error),
        VerbsError::SrqEntries { .. } => format!("{error}; they are the slabs of pool.srq_bytes"),
        VerbsError::Gid { .. } => format!("rdma.gid_index: {error}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(attribute: &'static str, remedy: Remedy) -> LimitError {
        LimitError { attribute, has: 64, needed: 1024, what: "of them", remedy }
    }

    #[test]
    fn what_a_key_changes_names_the_key_and_what_none_does_says_so() {
        for (remedy, words) in [
            (
                Remedy::FewerSrqEntries { entries: 64 },
                "lower pool.srq_bytes to 262144, pool.srq_floor_bytes to 262144 or less, \
                 pool.srq_reserve_entries to 16 or less, and limits.credit_per_peer to 64 or less",
            ),
            (Remedy::FewerReads, "lower read.concurrency"),
            (
                Remedy::OtherDevice,
                "no size helps: leave nic.profile out, or name another device there (docs/rdma.md)",
            ),
        ] {
            let said = of_profile(&limit("max_cqe", remedy));
            assert_eq!(said, format!("the device has a max_cqe of 64, and Jet needs 1024 of them; {words}"));
        }
        #[cfg(feature = "verbs")]
        assert!(of_limits(&limit("max_srq", Remedy::OtherDevice)).ends_with(
            "; no setting helps: take another device, or shm: and tcp: in its place (docs/rdma.md)"
        ));
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn what_a_device_refuses_names_the_key_that_asked_for_it() {
        let source = || std::io::Error::from_raw_os_error(libc::ENOMEM);
        let limits = limit("max_srq_wr", Remedy::FewerSrqEntries { entries: 64 });
        assert_eq!(of_verbs(&limits.into()), of_limits(&limits));
        let srq = VerbsError::SrqEntries { verb: "ibv_create_srq", entries: 1024, source: source() };
        let said = of_verbs(&srq);
        assert!(
            said.contains("ibv_create_srq failed for 1024 SRQ entries") && said.contains("pool.srq_bytes"),
            "{said}"
        );
        let gid = VerbsError::Gid { device: "mlx5_0".to_owned(), port: 1, index: 3, problem: "is empty" };
        assert!(of_verbs(&gid).starts_with("rdma.gid_index: GID 3 of 'mlx5_0' port 1 is empty"));
        let unreachable =
            VerbsError::Unreachable { address: std::net::Ipv4Addr::LOCALHOST.into(), source: source() };
        assert_eq!(of_verbs(&unreachable), unreachable.to_string());
    }
}
