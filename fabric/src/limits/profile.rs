//! Devices by name: the attributes that they report, and the sources of these numbers.

use super::attributes::DeviceAttributes;
use std::fmt;
use std::str::FromStr;

/// Named kind of device, with the attributes that such a device reports.
///
/// A software NIC that is given a profile keeps to it. A NIC on verbs keeps to it beside its own device's
/// limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    name: &'static str,
    attributes: DeviceAttributes,
}

/// Error of a name that no profile has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown profile '{name}', expected one of {}", names())]
pub struct ProfileError {
    /// Name that was asked for.
    pub name: String,
}

fn names() -> String {
    Profile::ALL.map(|profile| profile.name).join(", ")
}

impl Profile {
    /// ConnectX-6 (RoCE and InfiniBand) and ConnectX-7: 16 READs on a queue pair.
    ///
    /// Source: `ibv_devinfo -vv` of a ConnectX-6 Dx (part 4125, firmware 22.36.1010, RoCE) and of a
    /// ConnectX-6 (part 4123, firmware 20.37.1700, InfiniBand), published in users' reports. The values are
    /// the same in all of these. `mlx5_ib` derives them from the firmware's capabilities
    /// (`drivers/infiniband/hw/mlx5/main.c`, `mlx5_ib_query_device`). `max_sge_rd` is its `MLX5_MAX_SGE_RD`,
    /// (512 - 16 - 16) / 16. Older firmware reports twice the queue pairs. Inline data: 512 bytes of work
    /// request less control segment and inline header, of which Jet asks for 256.
    pub const CONNECTX_6: Self = Self {
        name: "connectx-6",
        attributes: DeviceAttributes {
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
            max_inline_data: Some(256),
        },
    };

    /// Intel E810: it has no SRQ, so a NIC of this profile is refused with an error in words.
    ///
    /// Source: `ibv_devinfo -v` of an E810-C (part 5522, firmware 1.74), published in a user's report. The
    /// driver, too, shows that the device has no SRQ: SRQs came to irdma with the third generation (IPU
    /// E2000, Linux 6.18), and E810 is of the second. Linux' own driver reports other depths (127 and 255,
    /// `ICRDMA_MAX_IRD_SIZE` and `ICRDMA_MAX_ORD_SIZE`) and 13 scatter entries
    /// (`IRDMA_MAX_WQ_FRAGMENT_COUNT`). Inline data is its `IRDMA_MAX_INLINE_DATA_SIZE`.
    pub const E810: Self = Self {
        name: "e810",
        attributes: DeviceAttributes {
            max_qp: 4092,
            max_qp_wr: 8127,
            max_sge: 6,
            max_sge_rd: 6,
            max_cq: 8189,
            max_cqe: 1_048_574,
            max_qp_rd_atom: 8,
            max_res_rd_atom: 0,
            max_qp_init_rd_atom: 8,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_inline_data: Some(101),
        },
    };

    /// AMD Pensando (ionic): 16 READs on a queue pair and on the device. It has no SRQ, so a NIC of this
    /// profile is refused with an error in words.
    ///
    /// Source: `drivers/infiniband/hw/ionic/ionic_ibdev.c` of Linux 6.18, `ionic_query_device`:
    /// `IONIC_MAX_DEPTH` 0xffff, `IONIC_MAX_CQ_DEPTH` 0xffff less `IONIC_CQ_GRACE` 100, `IONIC_MAX_RD_ATOM`
    /// 16, at most `IONIC_SPEC_HIGH` 8 scatter entries. It sets no `max_srq`, and its table of operations has
    /// none for SRQs. Support was proposed for rdma-core in September 2026. The firmware says how many queue
    /// pairs and completion queues there are; 4,096 are assumed. Inline data depends on the stride of a work
    /// request; 32 bytes, two scatter entries' worth, are assumed.
    pub const IONIC: Self = Self {
        name: "ionic",
        attributes: DeviceAttributes {
            max_qp: 4096,
            max_qp_wr: 65_535,
            max_sge: 8,
            max_sge_rd: 8,
            max_cq: 4096,
            max_cqe: 65_435,
            max_qp_rd_atom: 16,
            max_res_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_inline_data: Some(32),
        },
    };

    /// Soft-RoCE of Linux 5.15 and later.
    ///
    /// Source: `drivers/infiniband/sw/rxe/rxe_param.h`. Most values are `DEFAULT_MAX_VALUE`, 1 << 20, or that
    /// value less the first index. A work request has 32 scatter entries, an SRQ entry 27. `max_cqe` is (1 <<
    /// `RXE_MAX_LOG_CQE`) - 1. Inline data is the size of 32 scatter entries.
    pub const RXE: Self = Self {
        name: "rxe",
        attributes: DeviceAttributes {
            max_qp: (1 << 20) - 16,
            max_qp_wr: 1 << 20,
            max_sge: 32,
            max_sge_rd: 32,
            max_cq: 1 << 20,
            max_cqe: (1 << 15) - 1,
            max_qp_rd_atom: 128,
            max_res_rd_atom: 0x3f000,
            max_qp_init_rd_atom: 128,
            max_srq: (1 << 20) - 0x20001,
            max_srq_wr: 1 << 20,
            max_srq_sge: 27,
            max_inline_data: Some(512),
        },
    };

    /// Invented device with the least of everything that Jet works with. Each of its numbers may occur on a
    /// real device, but not all of them together.
    ///
    /// It takes one READ of one stretch at a time, one stretch in a SEND, and no inline data. It has two
    /// stretches in an SRQ entry, 64 SRQ entries, 16 work requests on a queue pair, and 64 queue pairs. Its
    /// completion queues just hold what these can have under way.
    pub const SMALLEST: Self = Self {
        name: "smallest",
        attributes: DeviceAttributes {
            max_qp: 64,
            max_qp_wr: 16,
            max_sge: 1,
            max_sge_rd: 1,
            max_cq: 8,
            max_cqe: 1023,
            max_qp_rd_atom: 1,
            max_res_rd_atom: 64,
            max_qp_init_rd_atom: 1,
            max_srq: 1,
            max_srq_wr: 64,
            max_srq_sge: 2,
            max_inline_data: Some(0),
        },
    };

    /// Profiles that have a name in the configuration.
    pub const ALL: [Self; 5] = [Self::CONNECTX_6, Self::E810, Self::IONIC, Self::RXE, Self::SMALLEST];

    /// Makes a profile of a device that is not in [`Self::ALL`].
    pub const fn new(name: &'static str, attributes: DeviceAttributes) -> Self {
        Self { name, attributes }
    }

    /// Returns the profile's name in the configuration.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the attributes that a device of this profile reports.
    pub const fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(name: &str) -> Result<Self, ProfileError> {
        let named = Self::ALL.into_iter().find(|profile| profile.name == name);
        named.ok_or_else(|| ProfileError { name: name.to_owned() })
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_found_by_its_name() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
            assert_eq!(profile.to_string(), profile.name());
        }
        let error = "connectx-9".parse::<Profile>().unwrap_err().to_string();
        assert!(
            error.contains("'connectx-9'") && error.contains("connectx-6, e810, ionic, rxe, smallest"),
            "{error}"
        );
    }

    /// Compares the profile with the limits that deploy/vm/check sets on a guest's device
    /// (deploy/vm/limits.c).
    #[test]
    fn the_device_that_is_lowered_in_the_guest_has_the_profiles_limits() {
        let of = |attributes: &DeviceAttributes| {
            [
                ("max_qp", Some(attributes.max_qp)),
                ("max_qp_wr", Some(attributes.max_qp_wr)),
                ("max_sge", Some(attributes.max_sge)),
                ("max_sge_rd", Some(attributes.max_sge_rd)),
                ("max_cq", Some(attributes.max_cq)),
                ("max_cqe", Some(attributes.max_cqe)),
                ("max_qp_rd_atom", Some(attributes.max_qp_rd_atom)),
                ("max_res_rd_atom", Some(attributes.max_res_rd_atom)),
                ("max_qp_init_rd_atom", Some(attributes.max_qp_init_rd_atom)),
                ("max_srq", Some(attributes.max_srq)),
                ("max_srq_wr", Some(attributes.max_srq_wr)),
                ("max_srq_sge", Some(attributes.max_srq_sge)),
                ("max_inline_data", attributes.max_inline_data.map(|bytes| i32::try_from(bytes).unwrap())),
            ]
        };
        let script =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/vm/check")).unwrap();
        let named = |profile: Profile| {
            let begin = format!("    each {profile} ");
            let line =
                script.lines().find_map(|line| line.strip_prefix(&begin)).expect("a line of the stage");
            let pairs =
                line.split([' ', '\'']).next().unwrap().split(',').map(|pair| pair.split_once('=').unwrap());
            pairs.map(|(name, value)| (name.to_owned(), value.parse().ok())).collect::<Vec<_>>()
        };
        let smallest = of(Profile::SMALLEST.attributes()).map(|(name, value)| (name.to_owned(), value));
        assert_eq!(named(Profile::SMALLEST), smallest, "all of them");
        // Of other profiles the guest's device is lowered only where it has more.
        let connectx_6 = of(Profile::CONNECTX_6.attributes()).map(|(name, value)| (name.to_owned(), value));
        for pair in named(Profile::CONNECTX_6) {
            assert!(connectx_6.contains(&pair), "{pair:?}");
        }
    }
}
