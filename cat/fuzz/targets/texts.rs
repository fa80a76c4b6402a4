//! Fuzzing of the parsers for texts that the kernel's files contain or that an operator writes. They must not
//! panic, and what they parse must print as a text that parses to the same value.

#![no_main]

use jet_cat::CpuSet;
use jet_cat::resctrl::{GroupName, Line, Schemata, WayMask};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(schemata) = text.parse::<Schemata>() {
        let printed = schemata.to_string();
        // Lines of a group that has nothing yet, and of resources of later kernels, are kept unchanged.
        assert_eq!(printed.parse::<Schemata>().as_ref(), Ok(&schemata), "{printed}");
        for (_, line) in &schemata.lines {
            if let Line::Ways(ways) = line {
                assert!(!ways.is_empty());
            }
        }
    }
    if let Ok(mask) = text.parse::<WayMask>() {
        assert_eq!(mask.to_string().parse(), Ok(mask));
        assert_eq!(mask.is_contiguous(), mask == WayMask::run(mask.0.trailing_zeros() % 64, mask.count()));
    }
    if let Ok(cpus) = text.parse::<CpuSet>() {
        assert_eq!(cpus.to_string().parse::<CpuSet>().as_ref(), Ok(&cpus));
    }
    if let Ok(name) = GroupName::new(text) {
        assert!(!name.to_string().contains('/'));
    }
});
