//! The actuator that runs `mstcongestion` of mstflint. The tool lets the NIC mark packets when its receive
//! buffer fills because PCIe is too slow.
//!
//! One run takes exactly one of `--action`, `--mode` and `--query`. The tool prints its errors on standard
//! output, and exits with status 1. The tool can set the mode only where the firmware has the mode `dynamic`,
//! so the mode is set only if it differs.

use super::config::{Mode, is_pci};
use super::tool::{Tool, one_line};
use super::tool_lock::ToolLock;
use super::{
    ActuatorError, ActuatorKind, Congestion, CongestionConfig, Setting, Support, changed_by_others, gone,
};
use std::path::PathBuf;
use std::time::Duration;

const ACTION: &str = "action";
const MODE: &str = "mode";
const ACTIONS: [&str; 3] = ["disabled", "drop", "mark"];
const MODES: [&str; 2] = [Mode::Aggressive.as_str(), Mode::Dynamic.as_str()];

/// The actuator of the tool `mstcongestion`, for one NIC.
pub struct Mstcongestion {
    tool: Tool,
    /// PCI address of the NIC, or the reason why there is none.
    device: Result<String, String>,
    mode: Mode,
    /// Directory where the kernel lists PCI devices.
    pci_devices: PathBuf,
}

#[derive(Debug, PartialEq, Eq)]
struct State {
    action: String,
    mode: String,
}

impl Mstcongestion {
    /// Creates the actuator as configured. Runs of the tool inherit `lock`.
    pub(super) fn new(config: &CongestionConfig, lock: Result<ToolLock, String>) -> Self {
        let limit = Duration::from_millis(config.tool_timeout_ms);
        Self {
            tool: Tool::new(config.mstcongestion.clone(), limit, lock),
            device: pci_address(config),
            mode: config.mode,
            pci_devices: config.sysfs.join("bus/pci/devices"),
        }
    }

    fn query(&mut self, device: &str) -> Result<State, ActuatorError> {
        let said = self.tool.run(&["-d", device, "--query"])?;
        parse(&said).ok_or_else(|| ActuatorError::Answer {
            tool: ActuatorKind::Mstcongestion.name().into(),
            said: one_line(&said),
        })
    }

    fn set(&mut self, setting: &Setting, value: &str) -> Result<(), ActuatorError> {
        let option = if setting.knob == ACTION { "--action" } else { "--mode" };
        self.tool.run(&["-d", &setting.device, option, value])?;
        let found = self.query(&setting.device)?.of(setting)?.to_owned();
        if found == value {
            return Ok(());
        }
        Err(ActuatorError::NotTaken { knob: setting.knob.clone(), value: value.to_owned(), found })
    }

    fn restore_one(&mut self, setting: &Setting) -> Result<Option<String>, ActuatorError> {
        if self.pci_devices.exists() && !self.pci_devices.join(&setting.device).exists() {
            return Ok(Some(gone(setting)));
        }
        let found = self.query(&setting.device)?.of(setting)?.to_owned();
        if found == setting.before {
            return Ok(None);
        }
        if found != setting.lowered {
            return Ok(Some(changed_by_others(setting, &found)));
        }
        self.set(setting, &setting.before).map(|()| None)
    }
}

impl State {
    fn of(&self, setting: &Setting) -> Result<&str, ActuatorError> {
        match setting.knob.as_str() {
            ACTION => Ok(&self.action),
            MODE => Ok(&self.mode),
            knob => Err(ActuatorError::UnknownKnob { knob: knob.into(), device: setting.device.clone() }),
        }
    }
}

/// Parses the answer of `mstcongestion`: an action and a mode, as in `Action: mark` and `Mode: dynamic`, each
/// on a line. Unknown words give `None`, since they could not be restored.
fn parse(said: &str) -> Option<State> {
    let field = |name: &str, words: &[&str]| {
        let value = said.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?.trim();
        words.contains(&value).then(|| value.to_owned())
    };
    Some(State { action: field("Action", &ACTIONS)?, mode: field("Mode", &MODES)? })
}

/// Whether this actuator could have written the setting to the journal.
pub(super) fn is_valid_setting(setting: &Setting) -> bool {
    let words: &[&str] = match setting.knob.as_str() {
        ACTION => &ACTIONS,
        MODE => &MODES,
        _ => return false,
    };
    let known = |value: &String| words.contains(&value.as_str());
    is_pci(&setting.device) && known(&setting.before) && known(&setting.lowered)
}

/// Returns the configured PCI address, or that of the configured interface.
///
/// # Errors
/// Returns the reason in words, with the key to set.
pub(super) fn pci_address(config: &CongestionConfig) -> Result<String, String> {
    if let Some(pci) = &config.pci {
        return Ok(pci.to_ascii_lowercase());
    }
    let Some(interface) = &config.interface else {
        return Err("no device: set congestion.pci or congestion.interface".into());
    };
    let link: PathBuf = config.sysfs.join("class/net").join(interface).join("device");
    let target = std::fs::read_link(&link).map_err(|error| {
        format!("no PCI device of interface {interface} ({}: {error}); set congestion.pci", link.display())
    })?;
    let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !is_pci(name) {
        return Err(format!("the device of interface {interface} is \"{name}\", which is not on PCI"));
    }
    Ok(name.to_owned())
}

impl Congestion for Mstcongestion {
    fn name(&self) -> &'static str {
        ActuatorKind::Mstcongestion.name()
    }

    fn what(&self) -> &'static str {
        "the NIC marks packets when its receive buffer fills, set by the tool mstcongestion"
    }

    fn probe(&mut self) -> Support {
        let found = match self.device.clone() {
            Ok(device) => self.query(&device).map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        match found {
            Ok(State { action, mode }) => Support::Ready { found: format!("action {action}, mode {mode}") },
            Err(why) => Support::Unsupported { why },
        }
    }

    fn plan(&mut self) -> Result<Vec<Setting>, ActuatorError> {
        let device = self.device.clone().map_err(|why| ActuatorError::NoDevice { why })?;
        let State { action, mode } = self.query(&device)?;
        let setting = |knob: &str, before, lowered: &str| Setting {
            actuator: ActuatorKind::Mstcongestion.name().into(),
            device: device.clone(),
            knob: knob.into(),
            before,
            lowered: lowered.into(),
        };
        // The mode comes first, so that marking begins in the wanted mode.
        let both = [setting(MODE, mode, self.mode.as_str()), setting(ACTION, action, "mark")];
        Ok(both.into_iter().filter(|setting| setting.before != setting.lowered).collect())
    }

    fn lower(&mut self, settings: &[Setting]) -> Result<(), ActuatorError> {
        for setting in settings {
            if let Err(error) = self.set(setting, &setting.lowered) {
                if matches!(&error, ActuatorError::NotTaken { found, .. } if *found != setting.before) {
                    // A third value would later look like a change by another program. Restore it while it is
                    // known as ours.
                    self.set(setting, &setting.before)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn restore(&mut self, settings: &[Setting]) -> Result<Vec<String>, ActuatorError> {
        let mut notes = Vec::new();
        for setting in settings.iter().rev() {
            // Stop at the first failure: the tool would fail for the other setting, too, and each hang costs
            // a whole time limit.
            notes.extend(self.restore_one(setting)?);
        }
        Ok(notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_own_words_are_understood() {
        let state = |action: &str, mode: &str| Some(State { action: action.into(), mode: mode.into() });
        assert_eq!(parse("Action: disabled\nMode: aggressive\n"), state("disabled", "aggressive"));
        assert_eq!(parse("-W- old\n Action: mark \nMode: dynamic\n-I- done\n"), state("mark", "dynamic"));
        for unclear in ["", "Action: mark\n", "Action: N/A\nMode: dynamic\n", "Action: drop\nMode: 7\n"] {
            assert_eq!(parse(unclear), None, "{unclear}");
        }
    }
}
