//! Model-specific registers for cache control that resctrl does not cover: the ways that devices fill
//! (Intel's DDIO), and the switches of the prefetchers.
//!
//! These registers differ from model to model, and are mostly known from others' measurements rather than
//! from manuals. So nothing is written on a processor that this module does not list.
//!
//! Any process with the permission may read them. They are set only on request, and put back like a
//! reservation: a journal is written first, and the values return at the end, or with the next start after a
//! crash.

mod msr;
mod processor;
mod settings;

pub use crate::journals::ForgetOutcome;
pub use msr::{Msr, RegisterError};
pub use processor::{Processor, Vendor};
pub use settings::{SettingError, Settings, Wanted, forget, recover};

use crate::resctrl::{DomainId, WayMask};
use crate::topology::Topology;
use std::collections::BTreeMap;

/// Register `IIO LLC WAYS` of a socket: the ways that devices' writes may fill. No manual describes it; it
/// was measured by Farshin et al. (USENIX ATC'20, §4.4).
const DDIO_WAYS: u32 = 0xc8b;
/// Intel's register in which each bit switches off one prefetcher of the core.
const INTEL_PREFETCH: u32 = 0x1a4;
/// AMD's register in which each bit switches off one prefetcher of the core.
const AMD_PREFETCH: u32 = 0xc000_0108;

/// Error: this processor does not have the register, or it is not known to have it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of this processor ({processor}) {reason}")]
pub struct Unsupported {
    /// Feature that was asked for.
    pub what: &'static str,
    /// Description of the processor.
    pub processor: String,
    /// Reason why the feature is not supported, in words.
    pub reason: &'static str,
}

/// Checks that the ways of DDIO can be set on this model of processor.
///
/// # Errors
/// [`Unsupported`] where they cannot be set, or where that is not known.
pub fn ddio_is_known(processor: Processor) -> Result<(), Unsupported> {
    let unsupported =
        |reason| Err(Unsupported { what: "DDIO's ways", processor: processor.to_string(), reason });
    match (processor.vendor, processor.family, processor.model) {
        // Models: Haswell-EP, Broadwell-EP, Broadwell-DE, Skylake-SP and Cascade Lake.
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

/// Returns the address of this processor's prefetcher register, and the bits that switch all prefetchers off.
///
/// # Errors
/// [`Unsupported`] where the prefetchers cannot be switched off, or where the bits are not known.
pub fn prefetch_register(processor: Processor) -> Result<(u32, u64), Unsupported> {
    let unsupported =
        |reason| Err(Unsupported { what: "prefetchers", processor: processor.to_string(), reason });
    match (processor.vendor, processor.family, processor.model) {
        // Models from Haswell-EP to Ice Lake-SP. The bits: L2, L2 adjacent line, L1 next line, L1 IP (Intel's
        // disclosure).
        (Vendor::Intel, 6, 0x3f | 0x4f | 0x56 | 0x55 | 0x6a | 0x6c) => Ok((INTEL_PREFETCH, 0xf)),
        // Sapphire and Emerald Rapids, which also have the array-of-pointers prefetcher (Intel's Memory
        // Latency Checker).
        (Vendor::Intel, 6, 0x8f | 0xcf) => Ok((INTEL_PREFETCH, 0x2f)),
        // Zen 3 and later. The bits: L1 stream, stride, region; L2 stream, up-down.
        (Vendor::Amd, ..) if processor.prefetch_control => Ok((AMD_PREFETCH, 0b10_1111)),
        (Vendor::Amd, ..) => unsupported("cannot be switched off: it says so (CPUID 8000_0021h EAX bit 13)"),
        _ => unsupported("are not known: their bits differ from model to model"),
    }
}

/// Reads from the registers which ways of each cache devices fill (Intel's DDIO).
///
/// # Errors
/// [`SettingError`]: the processor is not known to have the register, or it cannot be read.
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
