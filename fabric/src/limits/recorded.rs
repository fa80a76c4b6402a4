//! Tests of what Jet does on devices that are not at hand, from attributes that real ones reported.

use super::{DeviceAttributes, LimitError, NicLimits, Profile, Remedy, Requirements};

/// ConnectX-3 (part 4099, firmware 2.33.5100, two ports), from `ibv_devinfo -v` in a user's report. The
/// device answers fewer READs than it makes.
const CONNECTX_3: DeviceAttributes = DeviceAttributes {
    max_qp: 131_000,
    max_qp_wr: 16_351,
    max_sge: 32,
    max_sge_rd: 30,
    max_cq: 65_408,
    max_cqe: 4_194_303,
    max_qp_rd_atom: 16,
    max_res_rd_atom: 2_096_000,
    max_qp_init_rd_atom: 128,
    max_srq: 65_472,
    max_srq_wr: 16_383,
    max_srq_sge: 31,
    max_inline_data: None,
};

/// ConnectX-6 on native InfiniBand (part 4123, firmware 20.37.1700, link layer InfiniBand), from `ibv_devinfo
/// -vv` in a user's report.
const CONNECTX_6_INFINIBAND: DeviceAttributes = DeviceAttributes {
    max_qp: 131_072,
    max_qp_wr: 32_768,
    max_sge: 30,
    max_sge_rd: 30,
    max_cq: 16_777_216,
    max_cqe: 4_194_303,
    max_qp_rd_atom: 16,
    max_res_rd_atom: 2_097_152,
    max_qp_init_rd_atom: 16,
    max_srq: 8_388_608,
    max_srq_wr: 32_767,
    max_srq_sge: 31,
    max_inline_data: None,
};

/// Soft-RoCE before Linux 5.15, from `ibv_devinfo -v` in a user's report, and from `rxe_param.h` of the time.
const OLD_RXE: DeviceAttributes = DeviceAttributes {
    max_qp: 65_536,
    max_qp_wr: 16_384,
    max_sge: 32,
    max_sge_rd: 32,
    max_cq: 16_384,
    max_cqe: 32_767,
    max_qp_rd_atom: 128,
    max_res_rd_atom: 0x3f000,
    max_qp_init_rd_atom: 128,
    max_srq: 960,
    max_srq_wr: 16_384,
    max_srq_sge: 27,
    max_inline_data: None,
};

/// AMD Pensando (ionic) with an SRQ, as one has been proposed for it: as deep as the device's other queues,
/// with as many scatter entries.
const IONIC_WITH_SRQ: DeviceAttributes =
    DeviceAttributes { max_srq: 1024, max_srq_wr: 65_535, max_srq_sge: 8, ..*Profile::IONIC.attributes() };

/// Returns five limits: READs of a connection, scatter entries of a READ, connections, SENDs of a connection,
/// and places of a connection's send queue.
fn summary(limits: &NicLimits) -> [u32; 5] {
    let reported = limits.reported;
    [
        reported.reads_per_qp_max,
        reported.scatter_max,
        reported.qps_max,
        reported.sends_per_qp_max,
        limits.send_queue,
    ]
}

/// Returns the connections that share a completion queue, the queue's places, and the number of such queues.
fn shape(limits: &NicLimits) -> [u32; 3] {
    [limits.shape.seats, limits.shape.places, limits.shape.queues]
}

#[test]
fn a_daemon_on_verbs_makes_as_many_reads_as_each_device_does_up_to_16() {
    let daemon = |device: &DeviceAttributes| NicLimits::derive(device, &Requirements::VERBS_DAEMON).unwrap();
    let (connectx, rxe) = (*Profile::CONNECTX_6.attributes(), *Profile::RXE.attributes());
    for device in [connectx, CONNECTX_6_INFINIBAND, CONNECTX_3, rxe, OLD_RXE] {
        let limits = daemon(&device);
        assert_eq!(summary(&limits), [16, 19, 4624, 13, 30]);
        assert_eq!((limits.completions, shape(&limits)), (1024, [6, 6 * 14 + 32, 771]));
    }
    // This device has fewer queue pairs, and so needs fewer completion queues.
    assert_eq!(summary(&daemon(&IONIC_WITH_SRQ)), [16, 8, 4096, 13, 30]);
    assert_eq!(shape(&daemon(&IONIC_WITH_SRQ)), [6, 6 * 14 + 32, 683]);
}

#[test]
fn a_daemon_in_software_makes_as_many_reads_as_each_device_does() {
    let daemon =
        |device: &DeviceAttributes| NicLimits::derive(device, &Requirements::SOFTWARE_DAEMON).unwrap();
    for device in [*Profile::CONNECTX_6.attributes(), CONNECTX_6_INFINIBAND] {
        assert_eq!(summary(&daemon(&device)), [16, 30, 4624, 13, 29]);
    }
    assert_eq!(summary(&daemon(&CONNECTX_3)), [32, 30, 4624, 13, 45]);
    assert_eq!(summary(&daemon(&IONIC_WITH_SRQ)), [16, 8, 4096, 13, 29]);
    for device in [*Profile::RXE.attributes(), OLD_RXE] {
        let limits = daemon(&device);
        // One completion queue of this device's size has room for fewer connections, with 13 SENDs each.
        let left = 32_767 - 1024 - 32;
        assert_eq!(summary(&limits), [32, 32, left / 13, 13, 45]);
        assert_eq!((limits.completions, limits.sends), (32_767, left));
        assert_eq!(shape(&limits), [left / 13, 32_767, 1]);
    }
}

#[test]
fn a_sender_answers_as_many_reads_as_its_device_does() {
    for (device, answers) in [
        (*Profile::CONNECTX_6.attributes(), 16),
        (CONNECTX_6_INFINIBAND, 16),
        (CONNECTX_3, 16),
        (IONIC_WITH_SRQ, 16),
        (*Profile::RXE.attributes(), 128),
        (*Profile::SMALLEST.attributes(), 1),
    ] {
        for requirements in [Requirements::VERBS_SENDER, Requirements::SOFTWARE_SENDER] {
            assert_eq!(NicLimits::derive(&device, &requirements).unwrap().reads_answered_per_qp, answers);
        }
    }
}

#[test]
fn a_senders_connection_has_a_completion_queue_to_itself() {
    let limits = NicLimits::derive(Profile::CONNECTX_6.attributes(), &Requirements::VERBS_SENDER).unwrap();
    assert_eq!(summary(&limits), [0, 19, 4, 128, 129]);
    assert_eq!((limits.sends, limits.completions, shape(&limits)), (512, 64, [1, 129, 4]));
    // With few SENDs each, all four connections find place in one queue.
    let smallest = NicLimits::derive(Profile::SMALLEST.attributes(), &Requirements::VERBS_SENDER).unwrap();
    assert_eq!((summary(&smallest), shape(&smallest)), ([0, 1, 4, 15, 16], [7, 7 * 16, 1]));
}

#[test]
fn devices_without_an_srq_are_refused_in_words_to_daemons_and_senders() {
    for profile in [Profile::E810, Profile::IONIC] {
        for requirements in [
            Requirements::SOFTWARE_DAEMON,
            Requirements::VERBS_DAEMON,
            Requirements::SOFTWARE_SENDER,
            Requirements::VERBS_SENDER,
        ] {
            let error = NicLimits::derive(profile.attributes(), &requirements).unwrap_err();
            assert_eq!((error.attribute, error.has, error.remedy), ("max_srq", 0, Remedy::OtherDevice));
            let words = error.to_string();
            assert!(words.contains("shared receive queue") && words.contains("tcp: in its place"), "{words}");
        }
    }
    // The other SRQ attributes do not matter where the device has no SRQ.
    let loud = DeviceAttributes { max_srq_wr: 32_768, max_srq_sge: 13, ..*Profile::E810.attributes() };
    assert_eq!(NicLimits::derive(&loud, &Requirements::VERBS_SENDER).unwrap_err().attribute, "max_srq");
}

#[test]
fn the_smallest_one_takes_a_small_daemon_and_says_how_small_a_large_one_would_have_to_be() {
    let on_smallest =
        |requirements: Requirements| NicLimits::derive(Profile::SMALLEST.attributes(), &requirements);
    let limits = on_smallest(Requirements { srq_entries: 64, ..Requirements::SOFTWARE_DAEMON }).unwrap();
    assert_eq!(summary(&limits), [1, 1, 64, 13, 14]);
    assert_eq!((limits.send_sges, limits.inline_data, limits.completions), (1, 0, 1023));
    assert_eq!((limits.reported.reads_max, limits.sends), (32, 1023 - 64 - 32));
    let limits = on_smallest(Requirements { srq_entries: 64, ..Requirements::VERBS_DAEMON }).unwrap();
    assert_eq!(summary(&limits), [1, 1, 64, 13, 15]);
    // 64 connections on seven queues.
    assert_eq!(shape(&limits), [10, 10 * 14 + 10, 7]);
    let expected = LimitError {
        attribute: "max_srq_wr",
        has: 64,
        needed: 1024,
        what: "SRQ entries",
        remedy: Remedy::FewerSrqEntries { entries: 64 },
    };
    for requirements in [Requirements::SOFTWARE_DAEMON, Requirements::VERBS_DAEMON] {
        assert_eq!(on_smallest(requirements).unwrap_err(), expected);
    }
}
