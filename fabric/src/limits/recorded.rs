//! What real devices reported, and what Jet does on them: for devices that are not at hand.

use super::{CompletionQueues, DeviceAttributes, LimitError, NicLimits, Profile, Remedy, Wants};

/// What a daemon of the defaults wants: 4 MiB of SRQ, 32 READs, 4,096 peers.
pub(super) const DAEMON: Wants = Wants {
    qps: 4624,
    srq_entries: 1024,
    reads: 32,
    reads_per_qp: 32,
    reads_answered_per_qp: 0,
    sends: 32_832,
    sends_per_qp: 128,
    scatter: 64,
    probes_per_qp: 1,
    completion_queues: CompletionQueues::One,
};

/// What a sender wants.
const SENDER: Wants = Wants {
    qps: 4,
    srq_entries: 64,
    reads: 4,
    reads_per_qp: 0,
    reads_answered_per_qp: 255,
    sends: 512,
    ..DAEMON
};

/// ConnectX-3 (part 4099, firmware 2.33.5100, two ports): `ibv_devinfo -v` in a user's report. It answers fewer READs than it
/// makes.
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

/// ConnectX-6 on native InfiniBand (part 4123, firmware 20.37.1700, link layer InfiniBand): `ibv_devinfo -vv` in a user's
/// report.
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

/// Soft-RoCE before Linux 5.15: `ibv_devinfo -v` in a user's report, and `rxe_param.h` of the time.
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

/// An SRQ such as has been proposed for ionic: as deep as its other queues, with as many scatter entries.
const IONIC_WITH_SRQ: DeviceAttributes =
    DeviceAttributes { max_srq: 1024, max_srq_wr: 65_535, max_srq_sge: 8, ..*Profile::IONIC.attributes() };

fn daemon(device: &DeviceAttributes) -> NicLimits {
    NicLimits::derive(device, &DAEMON).unwrap()
}

/// READs of a connection, their scatter entries, connections, SENDs of a connection, places of its send queue.
fn summary(limits: &NicLimits) -> [u32; 5] {
    let told = limits.told;
    [told.reads_per_qp_max, told.scatter_max, told.qps_max, told.sends_per_qp_max, limits.send_queue]
}

#[test]
fn a_daemon_makes_as_many_reads_as_each_device_does() {
    for device in [*Profile::CONNECTX_6.attributes(), CONNECTX_6_INFINIBAND] {
        assert_eq!(summary(&daemon(&device)), [16, 30, 4624, 128, 145]);
    }
    assert_eq!(summary(&daemon(&CONNECTX_3)), [32, 30, 4624, 128, 161]);
    assert_eq!(summary(&daemon(&IONIC_WITH_SRQ)), [16, 8, 4096, 128, 145]);
    for device in [*Profile::RXE.attributes(), OLD_RXE] {
        let limits = daemon(&device);
        assert_eq!(summary(&limits), [32, 32, 4624, 128, 161]);
        // Its completion queue has fewer places than all peers' SENDs would take.
        assert_eq!((limits.completions, limits.sends), (32_767, 32_767 - 1024 - 32 - 4624));
    }
}

#[test]
fn a_sender_answers_as_many_reads_as_its_device_does() {
    let answered =
        |device: &DeviceAttributes| NicLimits::derive(device, &SENDER).unwrap().reads_answered_per_qp;
    assert_eq!(answered(Profile::CONNECTX_6.attributes()), 16);
    assert_eq!(answered(&CONNECTX_6_INFINIBAND), 16);
    assert_eq!(answered(&CONNECTX_3), 16);
    assert_eq!(answered(&IONIC_WITH_SRQ), 16);
    assert_eq!(answered(Profile::RXE.attributes()), 128);
    assert_eq!(answered(Profile::MEAN.attributes()), 1);
}

#[test]
fn devices_without_an_srq_are_refused_in_words_to_daemons_and_senders() {
    for profile in [Profile::E810, Profile::IONIC] {
        for wants in [DAEMON, SENDER] {
            let error = NicLimits::derive(profile.attributes(), &wants).unwrap_err();
            assert_eq!((error.attribute, error.has, error.remedy), ("max_srq", 0, Remedy::OtherDevice));
            let words = error.to_string();
            assert!(words.contains("shared receive queue") && words.contains("tcp: in its place"), "{words}");
        }
    }
    // Whatever the driver says of the entries of what there is none of.
    let loud = DeviceAttributes { max_srq_wr: 32_768, max_srq_sge: 13, ..*Profile::E810.attributes() };
    assert_eq!(NicLimits::derive(&loud, &SENDER).unwrap_err().attribute, "max_srq");
}

#[test]
fn the_mean_one_takes_a_small_daemon_and_names_the_key_of_a_large_one() {
    let small = Wants { srq_entries: 64, ..DAEMON };
    let limits = NicLimits::derive(Profile::MEAN.attributes(), &small).unwrap();
    assert_eq!(summary(&limits), [1, 1, 64, 14, 16]);
    assert_eq!((limits.send_sges, limits.inline_data, limits.completions), (1, 0, 255));
    assert_eq!((limits.told.reads_max, limits.sends), (32, 255 - 64 - 32 - 64));
    let error = NicLimits::derive(Profile::MEAN.attributes(), &DAEMON).unwrap_err();
    let expected = LimitError {
        attribute: "max_srq_wr",
        has: 64,
        needed: 1024,
        what: "SRQ entries",
        remedy: Remedy::FewerSrqEntries { entries: 64 },
    };
    assert_eq!(error, expected);
}
