//! Two actuators that have a row in the status, but change nothing of the NIC: the signal that the receiver
//! itself sends, and an event counter that can only be observed.

use super::{ActuatorError, Congestion, Setting, Support};

/// Jet's own signal, which the receiver sends. This actuator changes nothing; its row in the status counts
/// how often the signal was turned on.
#[derive(Clone, Copy, Debug)]
pub struct Soft {
    /// Whether the configuration turns the signal on (`congestion.soft`).
    pub enabled: bool,
}

impl Congestion for Soft {
    fn name(&self) -> &'static str {
        "soft"
    }

    fn what(&self) -> &'static str {
        "a message of Jet's own that cuts the senders' windows; works on every NIC"
    }

    fn probe(&mut self) -> Support {
        if self.enabled {
            Support::Ready { found: String::new() }
        } else {
            Support::Unsupported { why: "turned off; set congestion.soft = true".into() }
        }
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

/// The parameter `pcie_cong_inbound_high` of devlink, which is never set. The parameter decides when the
/// firmware counts an event; it marks no packets. A change of a `driverinit` parameter like this one needs a
/// reload, which takes the NIC down.
#[derive(Clone, Copy, Debug)]
pub struct PcieCong;

impl Congestion for PcieCong {
    fn name(&self) -> &'static str {
        "pcie_cong"
    }

    fn what(&self) -> &'static str {
        "the firmware's count of PCIe congestion, pci_bw_inbound_high in ethtool -S"
    }

    fn probe(&mut self) -> Support {
        Support::Unsupported {
            why:
                "devlink's pcie_cong_inbound_high can only be observed (pci_bw_inbound_high in ethtool -S): \
                  it sets when an event is counted, marks nothing, and changing it takes a devlink reload, \
                  which takes the NIC down"
                    .into(),
        }
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
