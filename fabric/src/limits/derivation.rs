//! Derives what a NIC keeps to from its device's attributes and its user's wishes.

use super::attributes::DeviceAttributes;
use super::requirements::{CompletionQueues, Requirements};
use super::shape::{Shape, Work};
use crate::nic::Limits;
use std::fmt;

/// Bytes of inline data that a QP is asked for: a header and a little more.
const INLINE_WANTED: u32 = 256;
/// Scatter entries of an SRQ entry: a header and a slab.
const SRQ_SGES: u32 = 2;
/// Gather entries of a SEND: a header and a payload. For a device that gathers only one stretch, header and
/// payload are copied into one.
const SEND_SGES: u32 = 2;

/// Limits that a NIC keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicLimits {
    /// Limits that the NIC reports to its user ([`Nic::limits`](crate::Nic::limits)).
    pub reported: Limits,
    /// READs of the peer that one QP answers at once.
    pub reads_answered_per_qp: u32,
    /// SENDs under way on all QPs together.
    pub sends: u32,
    /// Places of one QP's send queue, for SENDs, READs and probes.
    pub send_queue: u32,
    /// Gather entries of one SEND: 1 or 2.
    pub send_sges: u32,
    /// Bytes of a SEND that go into its work request, if the QP takes so many.
    pub inline_data: u32,
    /// Places of the completion queue.
    ///
    /// With one queue for everything, these are for all work that can complete. With separate queues, these
    /// are the places of the queue for SRQ entries.
    pub completions: u32,
    /// Shape in which connections share the completion queues for what they post. With one queue for
    /// everything, all connections share it.
    pub shape: Shape,
}

/// Changes that would make a NIC fit a device whose limits are too low. The caller knows which of its
/// settings to name for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Another device: no setting helps.
    OtherDevice,
    /// Fewer SRQ entries.
    FewerSrqEntries {
        /// Number of SRQ entries that would fit.
        entries: u32,
    },
    /// Fewer READs.
    FewerReads,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherDevice => f.write_str(
                "no setting helps: take another device, or shm: and tcp: in its place (docs/rdma.md)",
            ),
            Self::FewerSrqEntries { entries } => {
                write!(f, "{entries} would do: ask for no more, or take another device (docs/rdma.md)")
            }
            Self::FewerReads => f.write_str("ask for fewer READs, or take another device (docs/rdma.md)"),
        }
    }
}

/// Error of a device that has less than a NIC needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}; {remedy}", self.lack())]
pub struct LimitError {
    /// Field of `ibv_device_attr` that is too low.
    pub attribute: &'static str,
    /// Value that the device reports for the attribute.
    pub has: i32,
    /// Least value of the attribute that would do.
    pub needed: u64,
    /// What the attribute limits, in words: "SRQ entries".
    pub what: &'static str,
    /// Change that would help.
    pub remedy: Remedy,
}

impl LimitError {
    /// Describes what the device has too little of, without the remedy.
    pub fn lack(&self) -> String {
        let Self { attribute, has, needed, what, .. } = self;
        format!("the device has a {attribute} of {has}, and Jet needs {needed} {what}")
    }
}

/// Returns the device's limit, or an error where it is below `needed`.
///
/// Meant for needs that no setting of the NIC's user lowers.
fn at_least(attribute: &'static str, has: i32, needed: u32, what: &'static str) -> Result<u32, LimitError> {
    let error = LimitError { attribute, has, needed: needed.into(), what, remedy: Remedy::OtherDevice };
    u32::try_from(has).ok().filter(|has| *has >= needed).ok_or(error)
}

impl NicLimits {
    /// Derives the limits of a NIC on a device with these attributes, for a user with these requirements.
    ///
    /// # Errors
    /// [`LimitError`] names the attribute that is too low, and what to change.
    pub fn derive(device: &DeviceAttributes, requirements: &Requirements) -> Result<Self, LimitError> {
        srq(device, requirements)?;
        let qps = at_least("max_qp", device.max_qp, 1, "queue pair")?.min(requirements.qps);
        let sges = at_least("max_sge", device.max_sge, 1, "scatter entry of a work request")?;
        let scatter_of_reads = u32::try_from(device.max_sge_rd).unwrap_or(0).max(1);
        let reads_answered_per_qp = reads_answered(device, requirements)?;
        let reads_made = reads_made(device, requirements)?;

        let needed = 1 + reads_made.min(1) + requirements.probes_per_qp;
        let mut queue = at_least("max_qp_wr", device.max_qp_wr, needed, "work requests on a queue pair")?;
        let places = at_least("max_cqe", device.max_cqe, needed, "completions in a queue")?;
        if requirements.completion_queues == CompletionQueues::Apart {
            queue = queue.min(places);
        }
        let for_user = queue - requirements.probes_per_qp;
        let kept_for_sends = requirements.sends_per_qp.min(for_user / 2).max(1);
        let reads_per_qp = reads_made.min(for_user - kept_for_sends);
        let sends_per_qp = requirements.sends_per_qp.min(for_user - reads_per_qp);
        let send_queue = sends_per_qp + reads_per_qp + requirements.probes_per_qp;
        // Places beyond what all QPs together can have under way are not needed.
        let reads = requirements.reads.min(qps.saturating_mul(reads_per_qp));
        let shares = match requirements.completion_queues {
            CompletionQueues::One => Shares::of_one(device, requirements, qps, reads, sends_per_qp)?,
            CompletionQueues::Apart => {
                let own = sends_per_qp + requirements.probes_per_qp;
                let work = Work { own, reads: reads_per_qp, reads_of_all: reads };
                Shares::of_many(device, requirements, qps, &work)?
            }
        };
        Ok(Self {
            reported: Limits {
                scatter_max: requirements.scatter.min(scatter_of_reads).min(sges),
                reads_per_qp_max: reads_per_qp,
                reads_max: reads,
                sends_per_qp_max: sends_per_qp,
                srq_entries_max: requirements.srq_entries,
                inline_bytes_max: jet_wire::SLAB_BYTES_U32,
                qps_max: shares.shape.connections,
                numa_node: None,
            },
            reads_answered_per_qp,
            sends: shares.sends,
            send_queue,
            send_sges: sges.min(SEND_SGES),
            inline_data: device.max_inline_data.unwrap_or(INLINE_WANTED).min(INLINE_WANTED),
            completions: shares.completions,
            shape: shares.shape,
        })
    }
}

/// Checks that the SRQ can hold all wanted entries, of two stretches each (header and slab).
fn srq(device: &DeviceAttributes, requirements: &Requirements) -> Result<(), LimitError> {
    at_least("max_srq", device.max_srq, 1, "shared receive queue (SRQ)")?;
    at_least(
        "max_srq_sge",
        device.max_srq_sge,
        SRQ_SGES,
        "scatter entries of an SRQ entry, a header and a slab",
    )?;
    let entries = at_least("max_srq_wr", device.max_srq_wr, 1, "SRQ entry")?;
    if entries >= requirements.srq_entries {
        return Ok(());
    }
    Err(LimitError {
        attribute: "max_srq_wr",
        has: device.max_srq_wr,
        needed: requirements.srq_entries.into(),
        what: "SRQ entries",
        remedy: Remedy::FewerSrqEntries { entries },
    })
}

/// Returns how many READs one QP may make at once: at most as many as the user wants, and as the device
/// allows.
fn reads_made(device: &DeviceAttributes, requirements: &Requirements) -> Result<u32, LimitError> {
    let wanted = requirements.reads_per_qp.min(requirements.reads);
    if wanted == 0 {
        return Ok(0);
    }
    let made =
        at_least("max_qp_init_rd_atom", device.max_qp_init_rd_atom, 1, "READ that a queue pair makes")?;
    Ok(made.min(wanted))
}

/// Returns how many READs of a peer one QP answers at once.
fn reads_answered(device: &DeviceAttributes, requirements: &Requirements) -> Result<u32, LimitError> {
    if requirements.reads_answered_per_qp == 0 {
        return Ok(0);
    }
    let answered = at_least("max_qp_rd_atom", device.max_qp_rd_atom, 1, "READ that a queue pair answers")?;
    // The device's total is not divided among QPs: the end that answers READs has one connection, or a few.
    let altogether = u32::try_from(device.max_res_rd_atom).ok().filter(|all| *all > 0).unwrap_or(u32::MAX);
    Ok(answered.min(altogether).min(requirements.reads_answered_per_qp))
}

/// Division of the completion queues' places among SENDs, completions and connections.
struct Shares {
    sends: u32,
    completions: u32,
    shape: Shape,
}

fn too_few_places(device: &DeviceAttributes, needed: u64, remedy: Remedy) -> LimitError {
    LimitError { attribute: "max_cqe", has: device.max_cqe, needed, what: "places for completions", remedy }
}

impl Shares {
    /// Divides the places of one completion queue among everything that completes.
    ///
    /// SRQ entries and READs get all their places. SENDs and probes share what is left. Where that is less
    /// than the user asked for, the number of QPs is lowered until each has places for all its SENDs and
    /// probes. Otherwise a QP whose peer takes no SENDs would keep the other QPs waiting.
    fn of_one(
        device: &DeviceAttributes,
        requirements: &Requirements,
        qps: u32,
        reads: u32,
        sends_per_qp: u32,
    ) -> Result<Self, LimitError> {
        let least = requirements.probes_per_qp + 1;
        let fixed = requirements.srq_entries.saturating_add(reads);
        let places = u32::try_from(device.max_cqe).unwrap_or(0);
        let left = places.saturating_sub(fixed);
        let asked = requirements.sends.saturating_add(qps.saturating_mul(requirements.probes_per_qp));
        if left < least {
            let needed = u64::from(fixed) + u64::from(least);
            // The remedy leaves room for SENDs, too: with only the last place free there would be one
            // connection.
            let beside_reads = places.saturating_sub(reads);
            let remedy = match beside_reads.saturating_sub(asked.min(beside_reads / 2)) {
                0 => Remedy::FewerReads,
                entries => Remedy::FewerSrqEntries { entries },
            };
            return Err(too_few_places(device, needed, remedy));
        }
        let fit =
            if asked <= left { qps } else { (left / (requirements.probes_per_qp + sends_per_qp)).max(1) };
        let qps = qps.min(fit);
        let probes = qps * requirements.probes_per_qp;
        let sends = requirements.sends.min(left - probes);
        let completions = fixed + probes + sends;
        let shape = Shape { connections: qps, seats: qps, places: completions, queues: 1 };
        Ok(Self { sends, completions, shape })
    }

    /// Divides the places of several completion queues.
    ///
    /// One queue is for SRQ entries. QPs share the other queues: as many QPs as find places there for all
    /// their work.
    fn of_many(
        device: &DeviceAttributes,
        requirements: &Requirements,
        qps: u32,
        work: &Work,
    ) -> Result<Self, LimitError> {
        let queues = at_least("max_cq", device.max_cq, 2, "completion queues")?;
        let places = u32::try_from(device.max_cqe).unwrap_or(0);
        if places < requirements.srq_entries {
            let remedy = Remedy::FewerSrqEntries { entries: places };
            return Err(too_few_places(device, requirements.srq_entries.into(), remedy));
        }
        let shape = Shape::of(work, qps, queues - 1, places);
        Ok(Self { sends: requirements.sends, completions: requirements.srq_entries, shape })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAEMON: Requirements = Requirements::SOFTWARE_DAEMON;

    fn attributes() -> impl Strategy<Value = DeviceAttributes> {
        // Most values are large enough for something, since one value that is too low gets the device
        // refused.
        let limit = || {
            prop_oneof![
                1 => prop_oneof![Just(0), Just(-1), Just(i32::MIN), any::<i32>()],
                10 => 1..4,
                20 => 1..300,
                10 => 1..=i32::MAX,
            ]
        };
        let many = (limit(), limit(), limit(), limit(), limit(), limit());
        let more = (limit(), limit(), limit(), limit(), limit(), limit(), prop::option::of(0..2000u32));
        (many, more).prop_map(|(a, b)| DeviceAttributes {
            max_qp: a.0,
            max_qp_wr: a.1,
            max_sge: a.2,
            max_sge_rd: a.3,
            max_cqe: a.4,
            max_qp_rd_atom: a.5,
            max_res_rd_atom: b.0,
            max_qp_init_rd_atom: b.1,
            max_srq: b.2,
            max_srq_wr: b.3,
            max_srq_sge: b.4,
            max_cq: b.5,
            max_inline_data: b.6,
        })
    }

    fn requirements() -> impl Strategy<Value = Requirements> {
        let size = || prop_oneof![2 => Just(1), 6 => 1..64u32, 2 => 1..5000u32, 1 => Just(u32::MAX)];
        let some = (size(), size(), size(), prop_oneof![Just(0), 1..300u32], prop_oneof![Just(0), 1..300u32]);
        let queues = prop_oneof![Just(CompletionQueues::One), Just(CompletionQueues::Apart)];
        let rest = (size(), size(), 1..100u32, 0..2u32, queues);
        (some, rest).prop_map(|(a, b)| Requirements {
            qps: a.0,
            srq_entries: a.1,
            reads: a.2,
            reads_per_qp: a.3,
            reads_answered_per_qp: a.4,
            sends: b.0,
            sends_per_qp: b.1,
            scatter: b.2,
            probes_per_qp: b.3,
            completion_queues: b.4,
        })
    }

    fn within(value: u32, limit: i32) -> bool {
        u32::try_from(limit).is_ok_and(|limit| value <= limit)
    }

    /// Checks that the derived limits exceed neither the device's limits nor the user's requirements.
    fn keeps_to(device: &DeviceAttributes, requirements: &Requirements, limits: &NicLimits) {
        let reported = &limits.reported;
        assert!(within(reported.qps_max, device.max_qp) && reported.qps_max >= 1);
        assert!(within(limits.send_queue, device.max_qp_wr));
        assert!(
            reported.sends_per_qp_max + reported.reads_per_qp_max + requirements.probes_per_qp
                == limits.send_queue
                && reported.sends_per_qp_max >= 1
        );
        assert!(within(limits.send_sges, device.max_sge) && (1..=2).contains(&limits.send_sges));
        assert!(within(reported.scatter_max, device.max_sge) && reported.scatter_max >= 1);
        assert!(reported.scatter_max == 1 || within(reported.scatter_max, device.max_sge_rd));
        assert!(
            reported.srq_entries_max == requirements.srq_entries
                && within(requirements.srq_entries, device.max_srq_wr)
        );
        assert!(device.max_srq >= 1 && device.max_srq_sge >= 2);
        assert!(
            within(reported.reads_per_qp_max, device.max_qp_init_rd_atom) || reported.reads_per_qp_max == 0
        );
        assert_eq!(reported.reads_per_qp_max == 0, requirements.reads_per_qp == 0);
        assert!(
            limits.reads_answered_per_qp == 0
                || within(limits.reads_answered_per_qp, device.max_qp_rd_atom)
                    && (device.max_res_rd_atom <= 0
                        || within(limits.reads_answered_per_qp, device.max_res_rd_atom))
        );
        assert_eq!(limits.reads_answered_per_qp == 0, requirements.reads_answered_per_qp == 0);
        assert!(device.max_inline_data.is_none_or(|most| limits.inline_data <= most));
        // All work that can be under way at once has a place.
        let posted = u64::from(reported.reads_max)
            + u64::from(limits.sends)
            + u64::from(reported.qps_max) * u64::from(requirements.probes_per_qp);
        let all = u64::from(reported.srq_entries_max)
            + if requirements.completion_queues == CompletionQueues::One { posted } else { 0 };
        assert!(all <= u64::from(limits.completions) && within(limits.completions, device.max_cqe));
        // A QP whose SENDs are not taken leaves room for the other QPs, unless it is alone or the user asked
        // for less.
        let all_sends = u64::from(reported.qps_max) * u64::from(reported.sends_per_qp_max);
        assert!(reported.qps_max == 1 || u64::from(limits.sends) >= all_sends.min(requirements.sends.into()));
        if requirements.completion_queues == CompletionQueues::Apart {
            let Shape { connections, seats, places, queues } = limits.shape;
            assert!(
                connections == reported.qps_max
                    && u64::from(seats) * u64::from(queues) >= u64::from(connections)
            );
            assert!(within(places, device.max_cqe) && within(queues + 1, device.max_cq));
            let reads =
                (u64::from(seats) * u64::from(reported.reads_per_qp_max)).min(reported.reads_max.into());
            let own = u64::from(reported.sends_per_qp_max) + u64::from(requirements.probes_per_qp);
            assert!(u64::from(seats) * own + reads <= places.into());
        }
        // No limit is higher than the user asked for.
        assert!(
            reported.qps_max <= requirements.qps
                && reported.reads_max <= requirements.reads
                && limits.sends <= requirements.sends
        );
        assert!(
            reported.reads_per_qp_max <= requirements.reads_per_qp
                && reported.sends_per_qp_max <= requirements.sends_per_qp
        );
        assert!(
            limits.reads_answered_per_qp <= requirements.reads_answered_per_qp
                && reported.scatter_max <= requirements.scatter
        );
        assert!(limits.sends >= 1);
    }

    proptest! {
        #[test]
        fn no_limit_exceeds_the_devices(device in attributes(), requirements in requirements()) {
            match NicLimits::derive(&device, &requirements) {
                Ok(limits) => keeps_to(&device, &requirements, &limits),
                Err(error) => {
                    let words = error.to_string();
                    prop_assert!(words.contains(error.attribute) && words.contains(&error.has.to_string()));
                }
            }
        }

        #[test]
        fn a_device_that_keeps_to_a_profile_exceeds_neither(
            device in attributes(), profile in attributes(), requirements in requirements()
        ) {
            if let Ok(limits) = NicLimits::derive(&device.at_most(&profile), &requirements) {
                keeps_to(&device, &requirements, &limits);
                keeps_to(&profile, &requirements, &limits);
            }
        }
    }

    #[test]
    fn without_limits_all_that_is_wanted_is_had() {
        let limits = NicLimits::derive(&DeviceAttributes::UNLIMITED, &DAEMON).unwrap();
        keeps_to(&DeviceAttributes::UNLIMITED, &DAEMON, &limits);
        let reported = limits.reported;
        assert_eq!((reported.qps_max, reported.srq_entries_max, reported.reads_max), (4624, 1024, 32));
        assert_eq!(
            (reported.reads_per_qp_max, reported.sends_per_qp_max, reported.scatter_max),
            (32, 13, 64)
        );
        assert_eq!((limits.sends, limits.send_queue, limits.send_sges), (32_832, 45, 2));
    }

    /// Sets one attribute at a time to what a broken driver leaves there; the others have no limit. The
    /// derivation must then give an error in words, or limits that hold.
    #[test]
    fn nothing_and_absurd_numbers_are_refused_in_words() {
        type Set = fn(&mut DeviceAttributes, i32);
        let needed: [(&str, Set); 10] = [
            ("max_qp", |device, to| device.max_qp = to),
            ("max_qp_wr", |device, to| device.max_qp_wr = to),
            ("max_sge", |device, to| device.max_sge = to),
            ("max_cq", |device, to| device.max_cq = to),
            ("max_cqe", |device, to| device.max_cqe = to),
            ("max_qp_rd_atom", |device, to| device.max_qp_rd_atom = to),
            ("max_qp_init_rd_atom", |device, to| device.max_qp_init_rd_atom = to),
            ("max_srq", |device, to| device.max_srq = to),
            ("max_srq_wr", |device, to| device.max_srq_wr = to),
            ("max_srq_sge", |device, to| device.max_srq_sge = to),
        ];
        let requirements =
            Requirements { reads_answered_per_qp: 16, completion_queues: CompletionQueues::Apart, ..DAEMON };
        for (attribute, set) in needed {
            // The last value is what `u32::MAX` looks like in an `int`.
            for absurd in [0, i32::MIN, u32::MAX.cast_signed()] {
                let mut device = DeviceAttributes::UNLIMITED;
                set(&mut device, absurd);
                let error = NicLimits::derive(&device, &requirements).unwrap_err();
                assert_eq!((error.attribute, error.has), (attribute, absurd));
                let words = error.to_string();
                assert!(words.contains(&format!("{attribute} of {absurd}")), "{words}");
                assert!(words.contains("take another device"), "{words}");
            }
        }
        // Attributes that some drivers leave at 0.
        let quiet = DeviceAttributes { max_sge_rd: 0, max_res_rd_atom: 0, ..DeviceAttributes::UNLIMITED };
        let limits = NicLimits::derive(&quiet, &requirements).unwrap();
        assert_eq!((limits.reported.scatter_max, limits.reads_answered_per_qp), (1, 16));
        // A user without READs needs no device that makes them, and the same holds for answering READs.
        let idle =
            DeviceAttributes { max_qp_rd_atom: 0, max_qp_init_rd_atom: 0, ..DeviceAttributes::UNLIMITED };
        let sends_only = Requirements { reads_per_qp: 0, reads_answered_per_qp: 0, ..DAEMON };
        assert_eq!(NicLimits::derive(&idle, &sends_only).unwrap().reported.reads_per_qp_max, 0);
    }

    #[test]
    fn what_fewer_would_help_says_how_many() {
        let small = |device: DeviceAttributes| NicLimits::derive(&device, &DAEMON).unwrap_err().to_string();
        let srq = small(DeviceAttributes { max_srq_wr: 64, ..DeviceAttributes::UNLIMITED });
        for words in ["max_srq_wr of 64", "1024 SRQ entries", "64 would do"] {
            assert!(srq.contains(words), "{srq}");
        }
        let full = small(DeviceAttributes { max_cqe: 1000, ..DeviceAttributes::UNLIMITED });
        for words in ["max_cqe of 1000", "1057 places", "484 would do"] {
            assert!(full.contains(words), "{full}");
        }
        let reads = small(DeviceAttributes { max_cqe: 30, ..DeviceAttributes::UNLIMITED });
        assert!(reads.contains("fewer READs"), "{reads}");
        let one = small(DeviceAttributes { max_srq_sge: 1, ..DeviceAttributes::UNLIMITED });
        assert!(one.contains("max_srq_sge of 1") && one.contains("a header and a slab"), "{one}");
    }

    #[test]
    fn a_small_queue_of_completions_is_shared_by_fewer_connections() {
        let device = DeviceAttributes { max_cqe: 2056, ..DeviceAttributes::UNLIMITED };
        let limits = NicLimits::derive(&device, &DAEMON).unwrap();
        keeps_to(&device, &DAEMON, &limits);
        // 13 places for each connection.
        assert_eq!((limits.reported.qps_max, limits.sends), (76, 1000));
        let one_more = DeviceAttributes { max_cqe: 1057, ..device };
        assert_eq!(NicLimits::derive(&one_more, &DAEMON).unwrap().reported.qps_max, 1);
    }

    #[test]
    fn queues_apart_take_as_many_connections_as_find_place_with_all_their_work() {
        let apart = Requirements::VERBS_DAEMON;
        let few = DeviceAttributes { max_cq: 11, max_cqe: 1200, ..DeviceAttributes::UNLIMITED };
        let limits = NicLimits::derive(&few, &apart).unwrap();
        keeps_to(&few, &apart, &limits);
        // 14 places for each connection, and 32 for READs: 83 connections in a queue, and 10 queues beside
        // that of the SRQ.
        assert_eq!((limits.reported.qps_max, limits.completions, limits.sends), (830, 1024, 32_832));
        assert_eq!(limits.shape, Shape { connections: 830, seats: 83, places: 83 * 14 + 32, queues: 10 });
        let small = DeviceAttributes { max_cqe: 1000, ..DeviceAttributes::UNLIMITED };
        let error = NicLimits::derive(&small, &apart).unwrap_err();
        assert_eq!((error.attribute, error.remedy), ("max_cqe", Remedy::FewerSrqEntries { entries: 1000 }));
        let one = DeviceAttributes { max_cq: 1, ..DeviceAttributes::UNLIMITED };
        assert_eq!(NicLimits::derive(&one, &apart).unwrap_err().attribute, "max_cq");
    }
}
