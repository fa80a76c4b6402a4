//! Sizes of a core's caches, as far as the calibration needs them: the private cache and the shared one.

use std::fs;
use std::path::Path;

/// Folder of sysfs that describes the caches of the first core.
const SYSFS: &str = "/sys/devices/system/cpu/cpu0/cache";

/// Sizes that are assumed where sysfs does not say: the largest private cache of today's servers (2 MiB,
/// Intel since Sapphire Rapids), and a last-level cache (16 MiB) that even the smallest of today's servers
/// have.
///
/// A private cache that is smaller than assumed costs the calibration a little time. The calibration would be
/// wrong only where the last-level cache were smaller than two private caches.
const ASSUMED: CacheSizes = CacheSizes { private_bytes: 2 << 20, last_level_bytes: 16 << 20, assumed: true };

/// Sizes of a core's caches, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CacheSizes {
    /// Size of the largest cache below the last level, in general L2.
    pub private_bytes: usize,
    /// Size of the last-level cache: L3, or L2 where there is no L3.
    pub last_level_bytes: usize,
    /// Whether the system did not tell the sizes, so that 2 MiB and 16 MiB are assumed.
    pub assumed: bool,
}

impl CacheSizes {
    /// Reads the sizes of the first core's caches from sysfs; assumes them where sysfs does not say.
    pub fn read() -> Self {
        Self::read_from(Path::new(SYSFS)).unwrap_or(ASSUMED)
    }

    fn read_from(folder: &Path) -> Option<Self> {
        let mut levels: Vec<(u32, usize)> = fs::read_dir(folder)
            .ok()?
            .filter_map(|entry| {
                let cache = entry.ok()?.path();
                let word = |name: &str| fs::read_to_string(cache.join(name)).ok();
                if word("type")?.trim() == "Instruction" {
                    return None;
                }
                let bytes = bytes_of(word("size")?.trim())?;
                (bytes > 0).then_some((word("level")?.trim().parse().ok()?, bytes))
            })
            .collect();
        levels.sort_unstable();
        match levels.as_slice() {
            [.., (_, private_bytes), (_, last_level_bytes)] if private_bytes < last_level_bytes => {
                Some(Self {
                    private_bytes: *private_bytes,
                    last_level_bytes: *last_level_bytes,
                    assumed: false,
                })
            }
            _ => None,
        }
    }
}

/// Parses a size such as "2048K", "32M" or "512" into bytes.
fn bytes_of(size: &str) -> Option<usize> {
    let (digits, unit) = match size.as_bytes().last()? {
        b'K' => (&size[..size.len() - 1], 1 << 10),
        b'M' => (&size[..size.len() - 1], 1 << 20),
        b'G' => (&size[..size.len() - 1], 1 << 30),
        _ => (size, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysfs(caches: &[(&str, &str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (index, (level, kind, size)) in caches.iter().enumerate() {
            let cache = folder.path().join(format!("index{index}"));
            fs::create_dir(&cache).unwrap();
            for (name, value) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(cache.join(name), format!("{value}\n")).unwrap();
            }
        }
        folder
    }

    #[test]
    fn the_last_two_levels_count() {
        let found = |caches: &[_]| CacheSizes::read_from(sysfs(caches).path());
        let l1 = [("1", "Data", "48K"), ("1", "Instruction", "32K")];
        let l2 = ("2", "Unified", "2048K");
        let sizes = found(&[l1[0], l1[1], l2, ("3", "Unified", "107520K")]).unwrap();
        assert_eq!(sizes, CacheSizes { private_bytes: 2 << 20, last_level_bytes: 105 << 20, assumed: false });
        // Without a third level the second one is the last.
        assert_eq!(found(&[l1[0], l1[1], l2]).unwrap().private_bytes, 48 << 10);
    }

    #[test]
    fn what_cannot_be_read_is_assumed() {
        assert_eq!(CacheSizes::read_from(Path::new("/nonexistent")), None);
        assert_eq!(CacheSizes::read_from(sysfs(&[]).path()), None);
        assert_eq!(CacheSizes::read_from(sysfs(&[("1", "Data", "a lot")]).path()), None);
        let upside_down = [("2", "Unified", "4M"), ("3", "Unified", "2M")];
        assert_eq!(CacheSizes::read_from(sysfs(&upside_down).path()), None);
        assert_eq!((bytes_of("512"), bytes_of("1G"), bytes_of("")), (Some(512), Some(1 << 30), None));
    }
}
