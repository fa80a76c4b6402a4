//! Choice of the interrupt for a NIC's completion queues: one that goes to the processor of the thread that
//! sleeps on them.
//!
//! Drivers have a vector for each of some processors, and name their interrupts after them: mlx5
//! `mlx5_comp3@pci:0000:3b:00.0` (drivers/net/ethernet/mellanox/mlx5/core/pci_irq.c), irdma
//! `irdma-0000:4b:00.0-CEQ-3` (drivers/infiniband/hw/irdma/hw.c).

use std::fs;
use std::path::{Path, PathBuf};

/// Texts that precede the vector's number in an interrupt's name.
const MARKS: [&str; 2] = ["mlx5_comp", "-CEQ-"];

/// Folders in which the kernel describes interrupts. Tests use folders of their own.
#[derive(Debug)]
pub(super) struct Interrupts {
    proc: PathBuf,
    sys: PathBuf,
}

impl Interrupts {
    /// Returns the folders of this host.
    pub fn this() -> Self {
        Self { proc: PathBuf::from("/proc"), sys: PathBuf::from("/sys") }
    }

    /// Returns which of the device's `vectors` interrupt vectors to use for a thread on processor `cpu`: 0
    /// where that is `None`.
    ///
    /// The vector is the one whose interrupt goes to that processor. Where that cannot be found out, it is
    /// the vector with the processor's number, modulo `vectors`, as drivers spread the vectors.
    pub fn vector_near(&self, device: &str, vectors: u32, cpu: Option<usize>) -> u32 {
        let Some(cpu) = cpu else { return 0 };
        let found = self.of_device(device).into_iter().find(|(vector, interrupt)| {
            *vector < vectors && self.processors_of(*interrupt).is_some_and(|list| contains(&list, cpu))
        });
        match found {
            Some((vector, _)) => vector,
            None => u32::try_from(cpu % vectors.max(1) as usize).expect("below a u32"),
        }
    }

    /// Returns a device's vectors and their interrupts, as far as the interrupts' names tell.
    fn of_device(&self, device: &str) -> Vec<(u32, u32)> {
        let link = fs::read_link(self.sys.join("class/infiniband").join(device).join("device"));
        let Some(bus_address) =
            link.ok().as_deref().and_then(Path::file_name).and_then(|name| name.to_str().map(str::to_owned))
        else {
            // Soft-RoCE is on no bus.
            return Vec::new();
        };
        let table = fs::read_to_string(self.proc.join("interrupts")).unwrap_or_default();
        table.lines().filter(|line| line.contains(&bus_address)).filter_map(vector_of).collect()
    }

    fn processors_of(&self, interrupt: u32) -> Option<String> {
        let folder = self.proc.join("irq").join(interrupt.to_string());
        // First the processors where the interrupt really goes, then those where it may go.
        ["effective_affinity_list", "smp_affinity_list"]
            .iter()
            .filter_map(|name| fs::read_to_string(folder.join(name)).ok())
            .find(|list| !list.trim().is_empty())
    }
}

/// Parses a line of `/proc/interrupts`. Returns the vector and the interrupt, where the line is of a vector.
fn vector_of(line: &str) -> Option<(u32, u32)> {
    let (interrupt, rest) = line.split_once(':')?;
    let interrupt = interrupt.trim().parse().ok()?;
    let name = rest.split_whitespace().last()?;
    let behind = MARKS.iter().find_map(|mark| Some(name.split_once(mark)?.1))?;
    let digits = behind.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(behind.len());
    Some((behind[..digits].parse().ok()?, interrupt))
}

/// Whether a list of processors, such as `0-3,8`, contains this one.
fn contains(list: &str, cpu: usize) -> bool {
    list.trim().split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) => (first..=last).contains(&cpu),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table of interrupts as the kernel writes it, for two devices with three vectors each.
    const TABLE: &str = "\
            CPU0       CPU1       CPU2       CPU3
   8:          0          0          0          0   IO-APIC   8-edge      rtc0
  60:        115          0          0          0  IR-PCI-MSIX-0000:3b:00.0    0-edge      \
  mlx5_async0@pci:0000:3b:00.0
  61:          1          0          0          0  IR-PCI-MSIX-0000:3b:00.0    1-edge      \
  mlx5_comp0@pci:0000:3b:00.0
  62:          0          7          0          0  IR-PCI-MSIX-0000:3b:00.0    2-edge      \
  mlx5_comp1@pci:0000:3b:00.0
  63:          0          0          2          0  IR-PCI-MSIX-0000:3b:00.0    3-edge      \
  mlx5_comp12@pci:0000:3b:00.0
  71:          0          0          2          0  IR-PCI-MSIX-0000:4b:00.0    1-edge      \
  irdma-0000:4b:00.0-AEQCEQ-0
  72:          0          0          2          0  IR-PCI-MSIX-0000:4b:00.0    2-edge      \
  irdma-0000:4b:00.0-CEQ-1
 NMI:          0          0          0          0   Non-maskable interrupts
";

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(affinities: &[(u32, &str, &str)]) -> Self {
            let root = tempfile::tempdir().unwrap();
            let proc = root.path().join("proc");
            for (interrupt, file, list) in affinities {
                let folder = proc.join("irq").join(interrupt.to_string());
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join(file), format!("{list}\n")).unwrap();
            }
            fs::create_dir_all(&proc).unwrap();
            fs::write(proc.join("interrupts"), TABLE).unwrap();
            for (device, bus_address) in [("mlx5_0", "0000:3b:00.0"), ("irdma0", "0000:4b:00.0")] {
                let folder = root.path().join("sys/class/infiniband").join(device);
                fs::create_dir_all(&folder).unwrap();
                std::os::unix::fs::symlink(format!("../../../{bus_address}"), folder.join("device")).unwrap();
            }
            Self(root)
        }

        fn near(&self, device: &str, vectors: u32, cpu: Option<usize>) -> u32 {
            let root = self.0.path();
            Interrupts { proc: root.join("proc"), sys: root.join("sys") }.vector_near(device, vectors, cpu)
        }
    }

    #[test]
    fn the_vector_is_the_one_whose_interrupt_comes_to_the_processor() {
        let tree = Tree::new(&[
            (60, "smp_affinity_list", "0-3"),
            (61, "smp_affinity_list", "0-3"),
            (61, "effective_affinity_list", "0"),
            (62, "effective_affinity_list", "2-3,8"),
            (63, "smp_affinity_list", "5"),
            (72, "smp_affinity_list", "1"),
        ]);
        assert_eq!([0, 2, 3, 8].map(|cpu| tree.near("mlx5_0", 16, Some(cpu))), [0, 1, 1, 1]);
        assert_eq!(tree.near("mlx5_0", 16, Some(5)), 12);
        assert_eq!(tree.near("irdma0", 4, Some(1)), 1);
        // A processor whose vector is out of range, and one without an interrupt: chosen by number.
        assert_eq!(tree.near("mlx5_0", 4, Some(5)), 1);
        assert_eq!(tree.near("mlx5_0", 16, Some(21)), 5);
    }

    #[test]
    fn where_nothing_can_be_told_processors_are_spread_by_number() {
        let tree = Tree::new(&[]);
        assert_eq!([1, 6].map(|cpu| tree.near("mlx5_0", 4, Some(cpu))), [1, 2]);
        assert_eq!([0, 3].map(|cpu| tree.near("rxe0", 2, Some(cpu))), [0, 1]);
        assert_eq!(tree.near("rxe0", 0, Some(3)), 0);
        assert_eq!(tree.near("mlx5_0", 4, None), 0);
    }
}
