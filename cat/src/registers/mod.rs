//! What a processor has beside resctrl: the ways that devices fill (Intel's DDIO), and its prefetchers.
//! Registers of a model, known from what others found out rather than from manuals; so nothing is written on
//! a processor that is not in the list.
//!
//! Read by anybody who may, set only where asked for, and put back like a reservation: journal first, at the
//! end, and by the next start after a crash.

mod msr;
mod processor;
mod settings;

pub use crate::journals::GivenUp;
pub use msr::{Msr, RegisterError};
pub use processor::{Processor, Vendor};
pub use settings::{SettingError, Settings, Wanted, forget, recover};

use crate::resctrl::{DomainId, WayMask};
use crate::topology::Topology;
use std::collections::BTreeMap;

/// `IIO LLC WAYS`: which ways devices' writes may fill, of a socket. In no manual; measured by Farshin et al.
/// (USENIX ATC'20, §4.4).
const DDIO_WAYS: u32 = 0xc8b;
/// Intel: a bit switches a prefetcher of the core off.
const INTEL_PREFETCH: u32 = 0x1a4;
/// AMD: the same.
const AMD_PREFETCH: u32 = 0xc000_0108;

/// Why this processor has none of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of this processor ({processor}) {reason}")]
pub struct Unsupported {
    /// What was asked for.
    pub what: &'static str,
    /// The processor.
    pub processor: String,
    /// Why.
    pub reason: &'static str,
}

/// Whether the ways of DDIO can be set.
///
/// # Errors
/// [`Unsupported`].
pub fn ddio_is_known(processor: Processor) -> Result<(), Unsupported> {
    let unsupported =
        |reason| Err(Unsupported { what: "DDIO's ways", processor: processor.to_string(), reason });
    match (processor.vendor, processor.family, processor.model) {
        // Haswell-EP, Broadwell-EP, Broadwell-DE, Skylake-SP and Cascade Lake.
        (Vendor::Intel, 6, 0x3f | 0x4f | 0x56 | 0x55) => Ok(()),
        (Vendor::Intel, 6, 0x6a | 0x6c) => {
            unsupported("take a value without effect, as a user found (fastclick issue 392)")
        }
        (Vendor::Intel, ..) => {
            unsupported("are not known: nothing public says that this model has the register")
        }
        _ => unsupported("are not there: DDIO is Intel's; AMD's io_alloc is in resctrl"),
    }
}

/// The register of this processor's prefetchers, and the bits that switch all of them off.
///
/// # Errors
/// [`Unsupported`].
pub fn prefetch_register(processor: Processor) -> Result<(u32, u64), Unsupported> {
    let unsupported =
        |reason| Err(Unsupported { what: "prefetchers", processor: processor.to_string(), reason });
    match (processor.vendor, processor.family, processor.model) {
        // From Haswell-EP to Ice Lake-SP: L2, L2 adjacent line, L1 next line, L1 IP (Intel's disclosure).
        (Vendor::Intel, 6, 0x3f | 0x4f | 0x56 | 0x55 | 0x6a | 0x6c) => Ok((INTEL_PREFETCH, 0xf)),
        // Sapphire and Emerald Rapids: and the array of pointers (Intel's Memory Latency Checker).
        (Vendor::Intel, 6, 0x8f | 0xcf) => Ok((INTEL_PREFETCH, 0x2f)),
        // Zen 3 and later: L1 stream, stride, region; L2 stream, up-down.
        (Vendor::Amd, ..) if processor.prefetch_control => Ok((AMD_PREFETCH, 0b10_1111)),
        (Vendor::Amd, ..) => unsupported("cannot be switched off: it says so (CPUID 8000_0021h EAX bit 13)"),
        _ => unsupported("are not known: their bits differ from model to model"),
    }
}

/// The ways that devices fill in each cache, as the registers say.
///
/// # Errors
/// [`SettingError`].
pub fn ddio_ways(topology: &Topology) -> Result<BTreeMap<DomainId, WayMask>, SettingError> {
    ddio_is_known(Processor::this())?;
    let mut ways = BTreeMap::new();
    for domain in &topology.domains {
        if let Some(cpu) = domain.cpus.iter().next() {
            ways.insert(domain.id, WayMask(Msr::of_cpu(cpu, false)?.read(DDIO_WAYS)?));
        }
    }
    Ok(ways)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn intel(model: u32) -> Processor {
        Processor { vendor: Vendor::Intel, family: 6, model, prefetch_control: false }
    }

    #[test]
    fn only_what_is_known_is_written() {
        assert!(ddio_is_known(intel(0x55)).is_ok());
        assert!(ddio_is_known(intel(0x6a)).unwrap_err().to_string().contains("without effect"));
        assert!(
            ddio_is_known(intel(0x8f))
                .unwrap_err()
                .to_string()
                .contains("Intel family 6 model 143) are not known")
        );
        let amd = Processor { vendor: Vendor::Amd, family: 25, model: 1, prefetch_control: true };
        assert!(ddio_is_known(amd).unwrap_err().to_string().contains("io_alloc"));
        assert_eq!(prefetch_register(amd), Ok((0xc000_0108, 0x2f)));
        assert_eq!(prefetch_register(intel(0x4f)), Ok((0x1a4, 0xf)));
        assert!(prefetch_register(intel(0x5c)).is_err(), "an Atom has other bits");
        let old = Processor { prefetch_control: false, ..amd };
        assert!(prefetch_register(old).unwrap_err().to_string().contains("CPUID"));
    }

    #[test]
    fn this_processor_has_a_name() {
        assert!(!Processor::this().to_string().is_empty());
    }
}
