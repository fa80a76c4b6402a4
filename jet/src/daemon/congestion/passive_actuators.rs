//! Two actuators that have a row in the status, but change nothing of the NIC: the signal that the receiver
//! itself sends, and an event counter that can only be observed.

use super::{ActuatorError, Congestion, Setting, Support};

/// Actuator that has a row in the status, and changes nothing.
#[derive(Clone, Debug)]
pub struct Passive {
    name: &'static str,
    what: &'static str,
    support: Support,
}

impl Passive {
    /// Jet's own signal, which the receiver sends. The row in the status counts how often the signal was
    /// turned on. `enabled`: the configuration turns the signal on (`congestion.soft`).
    pub fn soft(enabled: bool) -> Self {
        let what = "a message of Jet's own that cuts the senders' windows; works on every NIC";
        let support = if enabled {
            Support::Ready { found: String::new() }
        } else {
            Support::Unsupported { why: "turned off; set congestion.soft = true".into() }
        };
        Self { name: "soft", what, support }
    }

    /// The parameter `pcie_cong_inbound_high` of devlink, which is never set. The parameter decides when the
    /// firmware counts an event; it marks no packets. A change of a `driverinit` parameter like this one
    /// needs a reload, which takes the NIC down.
    pub fn pcie_cong() -> Self {
        let what = "the firmware's count of PCIe congestion, pci_bw_inbound_high in ethtool -S";
        let why = "devlink's pcie_cong_inbound_high can only be observed (pci_bw_inbound_high in ethtool \
                   -S): it sets when an event is counted, marks nothing, and changing it takes a devlink \
                   reload, which takes the NIC down";
        Self { name: "pcie_cong", what, support: Support::Unsupported { why: why.into() } }
    }
}

impl Congestion for Passive {
    fn name(&self) -> &'static str {
        self.name
    }

    fn what(&self) -> &'static str {
        self.what
    }

    fn probe(&mut self) -> Support {
        self.support.clone()
    }

    fn plan(&mut self) -> Result<Vec<Setting>, ActuatorError> {
        Ok(Vec::new())
    }

    fn lower(&mut self, _settings: &[Setting]) -> Result<(), ActuatorError> {
        Ok(())
    }

    fn restore(&mut self, _settings: &[Setting]) -> Result<Vec<String>, ActuatorError> {
        Ok(Vec::new())
    }
}
