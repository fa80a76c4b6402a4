//! The section `[congestion]` of the configuration: settings of the NIC that are changed while the pool is in
//! danger, and how far. By default only `soft` signals are sent, and the NIC stays untouched.

use crate::values;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Settings of the section `[congestion]` (Jet §4.3, "Marking ECN").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CongestionConfig {
    /// Whether the daemon tells senders to slow down by a header of Jet's own. Such a signal works on every
    /// NIC.
    pub soft: bool,
    /// Kinds of the NIC's settings that are lowered as well. By default none.
    pub actuators: Vec<ActuatorKind>,
    /// Name of the NIC's network interface, as in `ens1f0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// PCI address of the NIC, as in `0000:3b:00.0`. If not set, that of the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Minimum time in milliseconds between two changes of the NIC. If the reactor's wish changes faster,
    /// only the newest wish is carried out.
    #[serde(deserialize_with = "values::milliseconds")]
    pub hold_ms: u64,
    /// Time in milliseconds after which a run of an external tool is killed.
    #[serde(deserialize_with = "values::milliseconds")]
    pub tool_timeout_ms: u64,
    /// Mode that `mstcongestion` sets while the NIC's settings are lowered.
    pub mode: Mode,
    /// Traffic priorities whose notification point `roce_np` switches on while the NIC's settings are
    /// lowered.
    pub priorities: Vec<u8>,
    /// Time in microseconds between two CNPs (congestion notification packets), to which `roce_np` and
    /// `cc_params` lower the NIC's setting.
    #[serde(deserialize_with = "values::microseconds")]
    pub min_time_between_cnps_us: u32,
    /// The tool `mstcongestion`: a path, or a name in `PATH`.
    pub mstcongestion: PathBuf,
    /// Directory where sysfs is mounted.
    pub sysfs: PathBuf,
    /// Directory where debugfs is mounted.
    pub debugfs: PathBuf,
}

/// Kinds of actuators that the configuration can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActuatorKind {
    /// The tool `mstcongestion` of mstflint.
    Mstcongestion,
    /// The notification point of the NIC vendor's driver, in sysfs.
    RoceNp,
    /// The congestion parameters of the kernel's mlx5 driver, in debugfs.
    CcParams,
    /// The PCIe congestion events of devlink, which can only be observed.
    PcieCong,
}

/// How eagerly the NIC marks packets while its settings are lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Mark packets when the NIC's receive buffer reaches a fixed, low fill.
    Aggressive,
    /// Mark packets when the NIC's receive buffer reaches a fill that the NIC adapts.
    Dynamic,
}

impl Mode {
    /// Returns the word of `mstcongestion` for the mode.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Aggressive => "aggressive",
            Self::Dynamic => "dynamic",
        }
    }
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self {
            soft: true,
            actuators: Vec::new(),
            interface: None,
            pci: None,
            // A run of the tool takes some ten milliseconds, and senders need some round trips to react to a
            // change.
            hold_ms: 100,
            // Many times what a run takes on an idle NIC. At its end the daemon waits for restoring, so not
            // too long.
            tool_timeout_ms: 2000,
            mode: Mode::Aggressive,
            priorities: Vec::new(),
            min_time_between_cnps_us: 0,
            mstcongestion: PathBuf::from("mstcongestion"),
            sysfs: PathBuf::from("/sys"),
            debugfs: PathBuf::from("/sys/kernel/debug"),
        }
    }
}

/// Reason why the section `[congestion]` is refused. Each message names the key, and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CongestionConfigError {
    /// A time in the section `[congestion]` is out of range.
    #[error("congestion.{key} is {found}, but must be {min} to {max}")]
    Range {
        /// Name of the key.
        key: &'static str,
        /// Value of the key.
        found: u64,
        /// Least value that is allowed.
        min: u64,
        /// Greatest value that is allowed.
        max: u64,
    },
    /// An actuator is named twice.
    #[error("congestion.actuators names {name} twice; name each once")]
    Twice {
        /// Name of the actuator.
        name: &'static str,
    },
    /// A priority does not exist, or is named twice.
    #[error("congestion.priorities has {found}, which is not 0 to 7 or is there twice")]
    Priority {
        /// Number of the priority.
        found: u8,
    },
    /// The text cannot be the name of an interface.
    #[error("congestion.interface = \"{found}\" is no interface's name; `ip link` lists them")]
    Interface {
        /// Text that was given.
        found: String,
    },
    /// The text is not a PCI address.
    #[error("congestion.pci = \"{found}\" is no PCI address with its domain, as in \"0000:3b:00.0\"")]
    Pci {
        /// Text that was given.
        found: String,
    },
}

impl CongestionConfig {
    /// Checks the section's values beyond what their types ensure.
    ///
    /// # Errors
    /// Returns [`CongestionConfigError`] for the first invalid value.
    pub fn check(&self) -> Result<(), CongestionConfigError> {
        let range = |key, found, min, max| {
            if (min..=max).contains(&found) {
                Ok(())
            } else {
                Err(CongestionConfigError::Range { key, found, min, max })
            }
        };
        range("hold_ms", self.hold_ms, 1, 60_000)?;
        range("tool_timeout_ms", self.tool_timeout_ms, 10, 60_000)?;
        for (at, kind) in self.actuators.iter().enumerate() {
            if self.actuators[..at].contains(kind) {
                return Err(CongestionConfigError::Twice { name: kind.name() });
            }
        }
        for (at, &priority) in self.priorities.iter().enumerate() {
            if priority > 7 || self.priorities[..at].contains(&priority) {
                return Err(CongestionConfigError::Priority { found: priority });
            }
        }
        if let Some(interface) = self.interface.as_deref().filter(|name| !is_interface(name)) {
            return Err(CongestionConfigError::Interface { found: interface.to_owned() });
        }
        if let Some(pci) = self.pci.as_deref().filter(|address| !is_pci(address)) {
            return Err(CongestionConfigError::Pci { found: pci.to_owned() });
        }
        Ok(())
    }
}

impl ActuatorKind {
    /// Every kind of actuator.
    pub const ALL: [Self; 4] = [Self::Mstcongestion, Self::RoceNp, Self::CcParams, Self::PcieCong];

    /// Returns the actuator's name, as in the configuration, the journal and the status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mstcongestion => "mstcongestion",
            Self::RoceNp => "roce_np",
            Self::CcParams => "cc_params",
            Self::PcieCong => "pcie_cong",
        }
    }
}

/// Whether `name` can be the name of an interface by the kernel's rules (`dev_valid_name`). Such a name is a
/// single path component.
pub(super) fn is_interface(name: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
    !matches!(name, "" | "." | "..") && name.len() < 16 && name.bytes().all(letters)
}

/// Whether `address` has the form `DDDD:BB:DD.F`, in hexadecimal.
pub(super) fn is_pci(address: &str) -> bool {
    let form = b"xxxx:xx:xx.x";
    address.len() == form.len()
        && address.bytes().zip(form).all(|(byte, &place)| match place {
            b'x' => byte.is_ascii_hexdigit(),
            other => byte == other,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<CongestionConfig, String> {
        let config: CongestionConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn nothing_of_the_nic_is_touched_by_default() {
        let config = parse("").unwrap();
        assert!(config.soft && config.actuators.is_empty());
        assert_eq!(config, CongestionConfig::default());
    }

    #[test]
    fn every_key_can_be_set_and_printed() {
        let text = r#"
            soft = false
            actuators = ["mstcongestion", "roce_np", "cc_params", "pcie_cong"]
            interface = "ens1f0"
            pci = "0000:3b:00.1"
            hold_ms = 50
            tool_timeout_ms = 500
            mode = "dynamic"
            priorities = [3, 4]
            min_time_between_cnps_us = 1
            mstcongestion = "/opt/mstflint/bin/mstcongestion"
            sysfs = "/a"
            debugfs = "/b"
        "#;
        let config = parse(text).unwrap();
        assert_eq!(config.actuators, ActuatorKind::ALL);
        assert_eq!((config.mode.as_str(), config.min_time_between_cnps_us), ("dynamic", 1));
        assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn what_cannot_be_says_what_to_write() {
        for (given, named) in [
            ("hold_ms = 0", "congestion.hold_ms is 0, but must be 1 to 60000"),
            ("tool_timeout_ms = 99999", "congestion.tool_timeout_ms is 99999"),
            ("actuators = [\"cc_params\", \"cc_params\"]", "cc_params twice"),
            ("actuators = [\"mlxcongestion\"]", "mstcongestion"),
            ("priorities = [8]", "congestion.priorities has 8"),
            ("priorities = [3, 3]", "congestion.priorities has 3"),
            ("interface = \"../eth0\"", "congestion.interface"),
            ("interface = \"..\"", "congestion.interface"),
            ("pci = \"3b:00.0\"", "0000:3b:00.0"),
            ("mode = \"drop\"", "aggressive"),
            ("threshold = 1", "threshold"),
        ] {
            let error = parse(given).unwrap_err();
            assert!(error.contains(named), "{given}: {error}");
        }
    }
}
