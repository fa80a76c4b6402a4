//! Hardware counters of the last-level cache and of memory, through `perf_event_open`.
//!
//! They are another way to check what [`crate::residency`] measures. They are exact where they exist: on bare
//! metal, in few virtual machines, and where the kernel permits it. Elsewhere the error says why there are
//! none.

use perf_event::events::{Cache, CacheOp, CacheResult, Event, Hardware, WhichCache};
use perf_event::{Builder, CountAndTime, Counter};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::Path;

/// Counts since the counters were started. Only code in user space is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheCounts {
    /// Accesses that reached the last-level cache. Whether prefetches, for example, are included depends on
    /// the processor.
    pub llc_references: u64,
    /// Accesses to the last-level cache that missed.
    pub llc_misses: u64,
    /// Reads that memory served, of this NUMA node or another. `None` where the processor does not count
    /// them.
    pub memory_reads: Option<u64>,
    /// Reads that another NUMA node's memory served. `None` where the processor does not count them.
    pub remote_memory_reads: Option<u64>,
    /// Share of the time since the start during which the counters had hardware to count with, in
    /// thousandths. Below 1000 other users' counters had the hardware for a part of the time, and the counts
    /// are projected to the whole time.
    pub counted_permille: u32,
}

/// Reason why there are no counters.
#[derive(Debug, thiserror::Error)]
pub enum CountersError {
    /// The kernel has no performance-monitoring unit for this processor.
    #[error(
        "no hardware counters: the kernel has no performance-monitoring unit for this processor{}",
        if *.virtual_machine {
            "; this is a virtual machine whose host does not give it one (QEMU: -cpu host,pmu=on)"
        } else {
            " (no driver for it, or switched off in the firmware)"
        }
    )]
    NoUnit {
        /// Whether the system is known to be a virtual machine.
        virtual_machine: bool,
    },
    /// The kernel denied permission.
    #[error(
        "hardware counters are not permitted: kernel.perf_event_paranoid is {}, and must be 2 or less for \
         one's own threads; lower it, or give CAP_PERFMON (where it is low enough, a filter of system calls \
         forbids perf_event_open: a container's, a service's)",
        .paranoid.map_or("unknown".to_owned(), |level| level.to_string())
    )]
    NotPermitted {
        /// Value of kernel.perf_event_paranoid; `None` where it cannot be read.
        paranoid: Option<i32>,
    },
    /// The processor's performance-monitoring unit does not count this event.
    #[error("no hardware counters: the processor's performance-monitoring unit does not count {event}")]
    NoEvent {
        /// Description of the event that is not counted.
        event: &'static str,
    },
    /// The kernel was built without `perf_event_open`, or a sandbox hides it.
    #[error("no hardware counters: this kernel has no perf_event_open, or a sandbox hides it")]
    NoKernelSupport,
    /// There is no thread with the requested id.
    #[error("no hardware counters for thread {thread}: there is no such thread")]
    NoThread {
        /// Id of the thread that was requested.
        thread: i32,
    },
    /// A system call failed for a reason that no other variant names.
    #[error("hardware counters do not work: {0}")]
    System(#[from] io::Error),
}

/// Kind of event that is counted.
struct Kind {
    name: &'static str,
    event: Event,
    required: bool,
}

const fn node_reads(result: CacheResult) -> Event {
    Event::Cache(Cache { which: WhichCache::NODE, operation: CacheOp::READ, result })
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "last-level cache references",
        event: Event::Hardware(Hardware::CACHE_REFERENCES),
        required: true,
    },
    Kind { name: "last-level cache misses", event: Event::Hardware(Hardware::CACHE_MISSES), required: true },
    Kind { name: "reads of memory", event: node_reads(CacheResult::ACCESS), required: false },
    Kind { name: "reads of another node's memory", event: node_reads(CacheResult::MISS), required: false },
];

/// Counters of the last-level cache and of memory, for one thread or for this process.
///
/// They count between [`Self::start`] and [`Self::stop`]. The counted threads pay only a little, at each
/// switch between threads.
#[derive(Debug)]
pub struct CacheCounters {
    kinds: Vec<Vec<Counter>>,
}

impl CacheCounters {
    /// Opens counters for the calling thread.
    ///
    /// # Errors
    /// [`CountersError`] names the reason.
    pub fn of_this_thread() -> Result<Self, CountersError> {
        Self::open(&KINDS, &[0], false)
    }

    /// Opens counters for a thread of this process, or of another process of the same user.
    ///
    /// # Errors
    /// [`CountersError`] names the reason.
    pub fn of_thread(thread: i32) -> Result<Self, CountersError> {
        Self::open(&KINDS, &[thread], false)
    }

    /// Opens counters for all threads of this process, including those that these threads start later. A
    /// thread that starts during the call may be missed.
    ///
    /// # Errors
    /// [`CountersError`] names the reason.
    pub fn of_this_process() -> Result<Self, CountersError> {
        Self::open(&KINDS, &threads()?, true)
    }

    fn open(kinds: &[Kind], threads: &[i32], inherit: bool) -> Result<Self, CountersError> {
        let mut opened = Vec::with_capacity(kinds.len());
        for kind in kinds {
            match open_kind(kind, threads, inherit) {
                Ok(counters) => opened.push(counters),
                // An optional event may be missing; the others still count.
                Err(CountersError::NoEvent { .. }) if !kind.required => opened.push(Vec::new()),
                Err(refused) => return Err(refused),
            }
        }
        Ok(Self { kinds: opened })
    }

    /// Sets all counters to 0 and starts them.
    ///
    /// # Errors
    /// Error of the system call.
    pub fn start(&mut self) -> io::Result<()> {
        self.kinds.iter_mut().flatten().try_for_each(|counter| {
            counter.reset()?;
            counter.enable()
        })
    }

    /// Stops all counters. The counts can still be read.
    ///
    /// # Errors
    /// Error of the system call.
    pub fn stop(&mut self) -> io::Result<()> {
        self.kinds.iter_mut().flatten().try_for_each(Counter::disable)
    }

    /// Reads the counts so far.
    ///
    /// # Errors
    /// Error of the system call.
    pub fn read(&mut self) -> io::Result<CacheCounts> {
        let mut sums = self.sums()?.into_iter();
        let mut next = || sums.next().flatten();
        let (references, misses, memory, remote) = (next(), next(), next(), next());
        let (references, misses) = (references.unwrap_or_default(), misses.unwrap_or_default());
        Ok(CacheCounts {
            llc_references: references.count,
            llc_misses: misses.count,
            memory_reads: memory.map(|sum| sum.count),
            remote_memory_reads: remote.map(|sum| sum.count),
            counted_permille: references.counted_permille().min(misses.counted_permille()),
        })
    }

    /// Returns the sum of each kind's counters, or `None` for a kind without counters.
    fn sums(&mut self) -> io::Result<Vec<Option<Sum>>> {
        self.kinds
            .iter_mut()
            .map(|counters| {
                let mut sum = (!counters.is_empty()).then(Sum::default);
                for counter in counters {
                    let counted = counter.read_count_and_time()?;
                    sum.iter_mut().for_each(|sum| sum.add(&counted));
                }
                Ok(sum)
            })
            .collect()
    }
}

/// Sum of several counters of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    /// Sum of the counts, each projected to the whole time for which its counter was started.
    count: u64,
    started_ns: u64,
    counted_ns: u64,
}

impl Sum {
    fn add(&mut self, counted: &CountAndTime) {
        let projected = u128::from(counted.count) * u128::from(counted.time_enabled)
            / u128::from(counted.time_running.max(1));
        // A counter that had hardware all the time needs no projection, and so no rounding.
        let whole = counted.time_running == counted.time_enabled;
        let count = if whole { counted.count } else { u64::try_from(projected).unwrap_or(u64::MAX) };
        self.count = self.count.saturating_add(count);
        self.started_ns = self.started_ns.saturating_add(counted.time_enabled);
        self.counted_ns = self.counted_ns.saturating_add(counted.time_running);
    }

    fn counted_permille(&self) -> u32 {
        let permille = u128::from(self.counted_ns) * 1000 / u128::from(self.started_ns.max(1));
        if self.started_ns == 0 { 1000 } else { u32::try_from(permille).unwrap_or(1000) }
    }
}

fn open_kind(kind: &Kind, threads: &[i32], inherit: bool) -> Result<Vec<Counter>, CountersError> {
    let mut counters = Vec::with_capacity(threads.len());
    for &thread in threads {
        let mut builder = Builder::new().kind(kind.event.clone()).observe_pid(thread);
        builder.inherit(inherit);
        match builder.build() {
            Ok(counter) => counters.push(counter),
            // One of several threads has ended meanwhile.
            Err(error) if threads.len() > 1 && error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(refusal(error, kind.name, thread, &System::read())),
        }
    }
    Ok(counters)
}

/// Returns the ids of this process's threads.
fn threads() -> io::Result<Vec<i32>> {
    let tasks = fs::read_dir("/proc/self/task")?;
    Ok(tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Properties of the system that decide whether there can be counters. `None` means that it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct System {
    has_unit: Option<bool>,
    paranoid: Option<i32>,
    virtual_machine: bool,
}

impl System {
    fn read() -> Self {
        Self::read_from(Path::new("/"))
    }

    fn read_from(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let units = fs::read_dir(root.join("sys/bus/event_source/devices")).ok();
        Self {
            has_unit: units.map(|mut units| {
                units.any(|unit| unit.is_ok_and(|unit| unit.file_name().to_str().is_some_and(is_processor)))
            }),
            paranoid: text("proc/sys/kernel/perf_event_paranoid").and_then(|level| level.trim().parse().ok()),
            virtual_machine: text("proc/cpuinfo")
                .is_some_and(|cpus| cpus.split_ascii_whitespace().any(|flag| flag == "hypervisor")),
        }
    }
}

/// Returns whether the name of a performance-monitoring unit is that of a processor's unit, for example
/// "cpu", "cpu_core", "armv8_pmuv3_0" or "apple_icestorm_pmu".
fn is_processor(unit: &str) -> bool {
    ["cpu", "armv", "apple_", "riscv"].iter().any(|start| unit.starts_with(start))
}

/// Returns the reason why `perf_event_open` failed, by its error number. A missing performance-monitoring
/// unit takes precedence over a missing permission, since permission would not help then.
fn refusal(error: io::Error, event: &'static str, thread: i32, system: &System) -> CountersError {
    match error.raw_os_error() {
        Some(libc::ESRCH) => CountersError::NoThread { thread },
        Some(libc::ENOSYS) => CountersError::NoKernelSupport,
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EACCES | libc::EPERM)
            if system.has_unit == Some(false) =>
        {
            CountersError::NoUnit { virtual_machine: system.virtual_machine }
        }
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL) => {
            CountersError::NoEvent { event }
        }
        Some(libc::EACCES | libc::EPERM) => CountersError::NotPermitted { paranoid: system.paranoid },
        _ => CountersError::System(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;

    /// Returns an event of the kernel's software counters, which every kernel with `perf_event_open` has.
    fn software(event: Software, required: bool) -> Kind {
        Kind { name: "software", event: Event::Software(event), required }
    }

    /// Opens counters of events that exist wherever the kernel permits counting. Containers, and hosts that
    /// reserve counting for root, do not permit it. So the tests that need it are ignored, and run
    /// separately.
    fn opened(kinds: &[Kind], threads: &[i32], inherit: bool) -> CacheCounters {
        CacheCounters::open(kinds, threads, inherit).unwrap_or_else(|error| panic!("{error}"))
    }

    fn fault_pages(pages: usize) {
        let bytes = crate::residency::Region::zeroed(pages * 4096).unwrap();
        assert_eq!(bytes.pages(), pages);
    }

    #[test]
    fn there_are_counts_or_a_reason_that_fits_this_machine() {
        let system = System::read();
        for opened in [
            CacheCounters::of_this_thread(),
            CacheCounters::of_thread(rustix::thread::gettid().as_raw_nonzero().get()),
            CacheCounters::of_this_process(),
        ] {
            match opened {
                Ok(mut counters) => {
                    counters.start().unwrap();
                    fault_pages(1000);
                    counters.stop().unwrap();
                    assert!(counters.read().unwrap().llc_references > 0);
                }
                Err(CountersError::NoUnit { virtual_machine }) => {
                    assert_eq!(system.has_unit, Some(false));
                    assert_eq!(virtual_machine, system.virtual_machine);
                }
                Err(CountersError::NotPermitted { paranoid }) => assert_eq!(paranoid, system.paranoid),
                Err(CountersError::NoEvent { event }) => assert!(event.contains("last-level")),
                Err(CountersError::NoKernelSupport) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    #[ignore = "needs perf_event_open, which root is let: .ci/run has it apart"]
    fn a_thread_that_is_not_there_is_an_error() {
        let kinds = [software(Software::PAGE_FAULTS, true)];
        // A number above all that Linux gives to threads.
        let refused = CacheCounters::open(&kinds, &[1 << 23], false).unwrap_err();
        assert!(matches!(refused, CountersError::NoThread { thread: 8_388_608 }), "{refused}");
    }

    #[test]
    #[ignore = "needs perf_event_open, which root is let: .ci/run has it apart"]
    fn counts_start_at_0_stop_and_can_be_read_twice() {
        let kinds = [software(Software::TASK_CLOCK, true), software(Software::TASK_CLOCK, true)];
        let mut counters = opened(&kinds, &[0], false);
        fault_pages(100);
        assert_eq!(counters.read().unwrap().llc_references, 0);
        counters.start().unwrap();
        fault_pages(1000);
        counters.stop().unwrap();
        let first = counters.read().unwrap();
        fault_pages(1000);
        assert_eq!(counters.read().unwrap(), first);
        assert!(first.llc_references > 0 && first.llc_misses > 0, "{first:?}");
        assert_eq!((first.memory_reads, first.remote_memory_reads), (None, None));
        counters.start().unwrap();
        counters.stop().unwrap();
        assert!(counters.read().unwrap().llc_references < first.llc_references);
    }

    #[test]
    #[ignore = "needs perf_event_open, which root is let: .ci/run has it apart"]
    fn a_process_is_its_threads_and_those_to_come() {
        let kinds = [software(Software::TASK_CLOCK, true), software(Software::TASK_CLOCK, true)];
        let mut alone = opened(&kinds, &[0], false);
        let mut process = opened(&kinds, &threads().unwrap(), true);
        alone.start().unwrap();
        process.start().unwrap();
        std::thread::spawn(|| fault_pages(2000)).join().unwrap();
        alone.stop().unwrap();
        process.stop().unwrap();
        let (alone, process) = (alone.read().unwrap(), process.read().unwrap());
        assert!(process.llc_references > alone.llc_references, "{process:?} {alone:?}");
    }

    #[test]
    fn an_error_number_becomes_the_reason_behind_it() {
        let text = |number: i32, system: &System| {
            refusal(io::Error::from_raw_os_error(number), "x", 7, system).to_string()
        };
        let metal = System { has_unit: Some(true), paranoid: Some(3), virtual_machine: false };
        let guest = System { has_unit: Some(false), paranoid: Some(2), virtual_machine: true };
        assert!(text(libc::EACCES, &metal).contains("perf_event_paranoid is 3, and must be 2 or less"));
        assert!(text(libc::EPERM, &System { paranoid: None, ..metal }).contains("paranoid is unknown"));
        assert!(text(libc::ENOENT, &metal).contains("does not count x"));
        assert!(text(libc::ENOENT, &guest).contains("a virtual machine whose host does not give it one"));
        assert!(text(libc::EACCES, &guest).contains("no performance-monitoring unit"));
        let bare = System { virtual_machine: false, ..guest };
        assert!(text(libc::ENOENT, &bare).contains("switched off in the firmware"));
        assert!(text(libc::ENOSYS, &guest).contains("no perf_event_open"));
        assert!(text(libc::ESRCH, &guest).contains("thread 7"));
        assert!(text(libc::EMFILE, &metal).contains("do not work"));
    }

    #[test]
    fn what_decides_is_read_from_the_system() {
        let root = tempfile::tempdir().unwrap();
        let unknown = System { has_unit: None, paranoid: None, virtual_machine: false };
        assert_eq!(System::read_from(root.path()), unknown);
        let units = root.path().join("sys/bus/event_source/devices");
        fs::create_dir_all(units.join("software")).unwrap();
        fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
        fs::write(root.path().join("proc/sys/kernel/perf_event_paranoid"), "-1\n").unwrap();
        fs::write(root.path().join("proc/cpuinfo"), "flags\t\t: fpu hypervisor lahf_lm\n").unwrap();
        let guest = System { has_unit: Some(false), paranoid: Some(-1), virtual_machine: true };
        assert_eq!(System::read_from(root.path()), guest);
        fs::create_dir(units.join("cpu_core")).unwrap();
        assert_eq!(System::read_from(root.path()).has_unit, Some(true));
    }

    #[test]
    fn what_did_not_count_all_the_time_is_projected() {
        let mut sum = Sum::default();
        assert_eq!(sum.counted_permille(), 1000);
        sum.add(&CountAndTime { count: 300, time_enabled: 1000, time_running: 250 });
        sum.add(&CountAndTime { count: 7, time_enabled: 1000, time_running: 1000 });
        assert_eq!((sum.count, sum.counted_permille()), (1207, 625));
        sum.add(&CountAndTime { count: 0, time_enabled: 500, time_running: 0 });
        assert_eq!(sum.count, 1207);
    }
}
