//! Identification of the processor model, as far as its registers depend on it.

/// Maker of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// Intel.
    Intel,
    /// AMD.
    Amd,
    /// Another maker, or a processor that is not x86-64.
    Other,
}

/// Maker, family and model of a processor, in the manuals' counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Maker of the processor.
    pub vendor: Vendor,
    /// Family, with the extended family added.
    pub family: u32,
    /// Model, with the extended model included.
    pub model: u32,
    /// Whether the prefetchers of an AMD processor can be switched off (`PrefetchCtlMsr`).
    pub prefetch_control: bool,
}

impl std::fmt::Display for Processor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let vendor = match self.vendor {
            Vendor::Intel => "Intel",
            Vendor::Amd => "AMD",
            Vendor::Other => "another maker's",
        };
        write!(f, "{vendor} family {} model {}", self.family, self.model)
    }
}

impl Processor {
    /// Identifies the processor that this program runs on.
    pub fn this() -> Self {
        #[cfg(target_arch = "x86_64")]
        return x86::this();
        #[cfg(not(target_arch = "x86_64"))]
        Self { vendor: Vendor::Other, family: 0, model: 0, prefetch_control: false }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Processor, Vendor};
    use crate::cpuid;

    pub fn this() -> Processor {
        let maker = cpuid::leaf(0, 0);
        let vendor = match (maker.ebx, maker.edx, maker.ecx) {
            // The vendor texts "GenuineIntel" and "AuthenticAMD", in the registers' order EBX, EDX, ECX.
            (0x756e_6547, 0x4965_6e69, 0x6c65_746e) => Vendor::Intel,
            (0x6874_7541, 0x6974_6e65, 0x444d_4163) => Vendor::Amd,
            _ => Vendor::Other,
        };
        let signature = cpuid::leaf(1, 0).eax;
        let (base, extended) = (signature >> 8 & 0xf, signature >> 20 & 0xff);
        let family = if base == 0xf { base + extended } else { base };
        let model = signature >> 4 & 0xf | if base == 6 || base == 0xf { signature >> 12 & 0xf0 } else { 0 };
        const EXTENDED_FEATURES: u32 = 0x8000_0021;
        let has_features = cpuid::leaf(0x8000_0000, 0).eax >= EXTENDED_FEATURES;
        let prefetch_control = has_features && cpuid::leaf(EXTENDED_FEATURES, 0).eax >> 13 & 1 == 1;
        Processor { vendor, family, model, prefetch_control }
    }
}
