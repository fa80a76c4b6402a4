//! Actuators whose knobs are files that hold a number. `roce_np` is the notification point of the vendor's
//! driver, in sysfs. `cc_params` are the congestion parameters of the mlx5 driver, in debugfs.

use super::config::{is_interface, is_pci};
use super::mstcongestion::pci_address;
use super::{
    ActuatorError, ActuatorKind, Congestion, CongestionConfig, Setting, Support, changed_by_others, gone,
};
use rustix::fs::{Access, access};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Knob for the minimum time between two CNPs (congestion notification packets) of the port, in microseconds.
/// 0 means no minimum.
const MIN_TIME: &str = "min_time_between_cnps";

/// Prefix of the knob for the notification point of one priority; the priority's number follows. With the
/// value 1, the NIC answers marked packets with CNPs.
const ENABLE: &str = "enable/";

/// Limit of bytes that are read of a knob's file. A number is shorter.
const VALUE_BYTES_MAX: u64 = 64;

/// An actuator for one device whose knobs are files.
#[derive(Debug)]
pub struct FileKnobs {
    kind: ActuatorKind,
    what: &'static str,
    root: PathBuf,
    /// Name of the interface or PCI address of the device, or the reason why there is none.
    device: Result<String, String>,
    /// Names of the knobs, and the values to which they are lowered.
    wanted: Vec<(String, u32)>,
}

impl FileKnobs {
    /// Creates the actuator for `/sys/class/net/INTERFACE/ecn/roce_np`, of the vendor's driver (MLNX_OFED,
    /// DOCA).
    pub fn roce_np(config: &CongestionConfig) -> Self {
        let mut wanted: Vec<_> =
            config.priorities.iter().map(|priority| (format!("{ENABLE}{priority}"), 1)).collect();
        wanted.push((MIN_TIME.to_owned(), config.min_time_between_cnps_us));
        Self {
            kind: ActuatorKind::RoceNp,
            what: "the NIC's notification point sends CNPs more often, set in the vendor driver's sysfs",
            root: config.sysfs.clone(),
            device: config
                .interface
                .clone()
                .ok_or_else(|| "no interface: set congestion.interface".to_owned()),
            wanted,
        }
    }

    /// Creates the actuator for `/sys/kernel/debug/mlx5/PCI/cc_params`, of the kernel's own driver.
    pub fn cc_params(config: &CongestionConfig) -> Self {
        Self {
            kind: ActuatorKind::CcParams,
            what: "the NIC's notification point sends CNPs more often, set in the mlx5 driver's debugfs",
            root: config.debugfs.clone(),
            device: pci_address(config),
            wanted: vec![(MIN_TIME.to_owned(), config.min_time_between_cnps_us)],
        }
    }

    fn directory(&self, device: &str) -> PathBuf {
        match self.kind {
            ActuatorKind::RoceNp => self.root.join("class/net").join(device).join("ecn/roce_np"),
            _ => self.root.join("mlx5").join(device).join("cc_params"),
        }
    }

    /// Returns the path of a knob's file. The vendor's documents place the parameters in `params/`, the
    /// vendor's drivers beside `enable/`.
    fn path(&self, device: &str, knob: &str) -> PathBuf {
        let directory = self.directory(device);
        if self.kind == ActuatorKind::CcParams {
            return directory.join(format!("np_{knob}"));
        }
        let below = directory.join("params").join(knob);
        if knob == MIN_TIME && below.exists() { below } else { directory.join(knob) }
    }

    /// Returns the reason why the knobs' files are not there: the first missing directory on their path, or
    /// else the error itself.
    fn missing(&self, device: &str, error: &ActuatorError) -> String {
        let root = self.root.display();
        let steps = match self.kind {
            ActuatorKind::RoceNp => [
                (
                    self.root.join("class/net"),
                    format!("sysfs is not mounted at {root}; set congestion.sysfs"),
                ),
                (
                    self.root.join("class/net").join(device),
                    format!("there is no interface {device}; set congestion.interface"),
                ),
                (
                    self.directory(device),
                    format!("{device} has no ecn/roce_np; only the vendor's driver (MLNX_OFED, DOCA) has it"),
                ),
            ],
            _ => [
                (
                    self.root.join("mlx5"),
                    format!(
                        "there is no mlx5 in {root}: debugfs is not mounted (mount -t debugfs none {root}), \
                         may be read by root only, or no mlx5 driver is loaded"
                    ),
                ),
                (
                    self.root.join("mlx5").join(device),
                    format!("the mlx5 driver has no device {device}; set congestion.pci"),
                ),
                (
                    self.directory(device),
                    format!(
                        "the firmware of {device} does not let congestion parameters be set (no cc_params)"
                    ),
                ),
            ],
        };
        let first = steps.into_iter().find(|(path, _)| !path.exists());
        first.map_or_else(|| error.to_string(), |(_, why)| why)
    }

    /// Reads all knobs of the device. Returns the name, the present value and the lowered value of each knob.
    fn found(&self, device: &str) -> Result<Vec<(&str, u32, u32)>, ActuatorError> {
        let values = self.wanted.iter().map(|(knob, lowered)| {
            let path = self.path(device, knob);
            let value = read(&path)?;
            check_writable(&path)?;
            Ok((knob.as_str(), value, *lowered))
        });
        values.collect()
    }

    fn restore_one(&self, setting: &Setting) -> Result<Option<String>, ActuatorError> {
        let path = self.path(&setting.device, &setting.knob);
        let found = match read(&path) {
            Ok(found) => found,
            Err(ActuatorError::Gone { .. }) => return Ok(Some(gone(setting))),
            Err(error) => return Err(error),
        };
        if found.to_string() == setting.before {
            return Ok(None);
        }
        if found.to_string() != setting.lowered {
            return Ok(Some(changed_by_others(setting, &found.to_string())));
        }
        write(&path, &setting.before).map(|()| None)
    }
}

impl Congestion for FileKnobs {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn what(&self) -> &'static str {
        self.what
    }

    fn probe(&mut self) -> Support {
        let device = match &self.device {
            Ok(device) => device,
            Err(why) => return Support::Unsupported { why: why.clone() },
        };
        match self.found(device) {
            Ok(values) => {
                let values = values.iter().map(|(knob, value, _)| format!("{knob} {value}"));
                Support::Ready { found: values.collect::<Vec<_>>().join(", ") }
            }
            Err(error) => Support::Unsupported { why: self.missing(device, &error) },
        }
    }

    fn plan(&mut self) -> Result<Vec<Setting>, ActuatorError> {
        let device = self.device.as_ref().map_err(|why| ActuatorError::NoDevice { why: why.clone() })?;
        let settings = self.found(device)?.into_iter().filter(|&(knob, before, lowered)| {
            // A value that is stronger already is not made weaker.
            if knob == MIN_TIME { before > lowered } else { before != lowered }
        });
        Ok(settings
            .map(|(knob, before, lowered)| Setting {
                actuator: self.name().to_owned(),
                device: device.clone(),
                knob: knob.to_owned(),
                before: before.to_string(),
                lowered: lowered.to_string(),
            })
            .collect())
    }

    fn lower(&mut self, settings: &[Setting]) -> Result<(), ActuatorError> {
        for setting in settings {
            let path = self.path(&setting.device, &setting.knob);
            if let Err(error) = write(&path, &setting.lowered) {
                if matches!(error, ActuatorError::NotTaken { .. }) {
                    // A third value would later look like a change by another program. Restore it while it is
                    // known as ours.
                    write(&path, &setting.before)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn restore(&mut self, settings: &[Setting]) -> Result<Vec<String>, ActuatorError> {
        let mut notes = Vec::new();
        let mut failed = Ok(());
        for setting in settings.iter().rev() {
            match self.restore_one(setting) {
                Ok(note) => notes.extend(note),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed.map(|()| notes)
    }
}

/// Whether an actuator of this kind could have written the setting to the journal: checks the parts of the
/// setting's path, and its values.
pub(super) fn is_valid_setting(kind: ActuatorKind, setting: &Setting) -> bool {
    let device = match kind {
        ActuatorKind::RoceNp => is_interface(&setting.device),
        ActuatorKind::CcParams => is_pci(&setting.device),
        ActuatorKind::Mstcongestion | ActuatorKind::PcieCong => false,
    };
    let knob = match setting.knob.strip_prefix(ENABLE) {
        Some(priority) => kind == ActuatorKind::RoceNp && matches!(priority.as_bytes(), [b'0'..=b'7']),
        None => setting.knob == MIN_TIME,
    };
    // Numbers in a journal have no sign and no leading zero.
    let number = |text: &String| text.parse::<u32>().is_ok_and(|value| value.to_string() == *text);
    device && knob && number(&setting.before) && number(&setting.lowered)
}

/// Whether the error says that the knob's file is gone. If a device is removed while its file is open, access
/// to the file gives `ENODEV`.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

fn read(path: &Path) -> Result<u32, ActuatorError> {
    let failed = |source: io::Error| match is_gone(&source) {
        true => ActuatorError::Gone { path: path.to_owned() },
        false => ActuatorError::Read { path: path.to_owned(), source },
    };
    let mut text = Vec::new();
    let file = OpenOptions::new().read(true).open(path).map_err(failed)?;
    file.take(VALUE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    let text = String::from_utf8_lossy(&text);
    let found = text.trim();
    found.parse().map_err(|_| ActuatorError::NoNumber {
        path: path.to_owned(),
        found: found.chars().filter(|letter| !letter.is_control()).collect(),
    })
}

/// Checks that a knob's file can be written, without writing: any write to some of these files has an effect.
fn check_writable(path: &Path) -> Result<(), ActuatorError> {
    let Ok(found) = path.metadata() else { return Err(ActuatorError::Gone { path: path.to_owned() }) };
    // sysfs refuses to open a file of mode 0444, even for root.
    if found.permissions().readonly() {
        return Err(ActuatorError::ReadOnly { path: path.to_owned() });
    }
    access(path, Access::WRITE_OK)
        .map_err(|error| ActuatorError::NotPermitted { path: path.to_owned(), source: error.into() })
}

/// Writes a value and a newline in one write, as `echo` does, and reads the value back to check it.
fn write(path: &Path, value: &str) -> Result<(), ActuatorError> {
    check_writable(path)?;
    let failed = |source: io::Error| match is_gone(&source) {
        true => ActuatorError::Gone { path: path.to_owned() },
        false => ActuatorError::Write { path: path.to_owned(), value: value.to_owned(), source },
    };
    let mut file = OpenOptions::new().write(true).truncate(true).open(path).map_err(failed)?;
    file.write_all(format!("{value}\n").as_bytes()).map_err(failed)?;
    drop(file);
    let found = read(path)?.to_string();
    if found == value {
        return Ok(());
    }
    Err(ActuatorError::NotTaken { knob: path.display().to_string(), value: value.to_owned(), found })
}
