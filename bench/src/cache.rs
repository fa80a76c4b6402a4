//! Checks the warmer's residency reading against known truths, and measures how long reserving cache takes.
//!
//! * Truth by construction: a part of a region that fits the cache is flushed, and the rest is brought into
//!   the cache. The reading must equal the share that is in the cache.
//! * Truth by use: one thread fills a pool over and over, as a NIC does, with and without another thread that
//!   hammers memory. The larger the pool, the less of it can be in the cache, and the slower it is filled.
//!   The larger the pool, the smaller the reading must be, every time. The warmer and the filling thread
//!   share a core, as the daemon's warmer and reactor do: lines in another core's own cache would read as
//!   memory.
//! * Reserving: the times to plan a reservation, carry it out and give it back, where the kernel has resctrl;
//!   otherwise a log line says why they are missing.
//!
//! What other programs on the host do to the cache meanwhile is not known. On a shared machine they decide
//! most of the reading beyond the first few MiB.

use crate::report::{Bound, Row};
use core_affinity::CoreId;
use jet_cat::plan::Request;
use jet_cat::resctrl::{GroupName, Resctrl};
use jet_cat::reservation::{Reservation, holdings};
use jet_cat::residency::{
    LINE_BYTES, PAGE_BYTES, PaceOptions, Region, Resident, WarmerOptions, WarmerThread,
};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Sizes of the pools that are filled and read, in MiB.
const POOLS_MIB: [usize; 5] = [1, 12, 32, 128, 512];
/// Bytes of memory that the antagonist, a thread that hammers memory, goes through.
const ANTAGONIST_BYTES: usize = 512 << 20;
/// Time for which a pool is filled before its rate is measured.
const SETTLE: Duration = Duration::from_millis(300);
/// Time for which the fill rate is measured. The residency is read at its end.
const READ: Duration = Duration::from_millis(700);

/// Runs the benchmark `cache`, or only the parts of it that are named.
///
/// # Errors
/// There is no second core, the warmer cannot tell cache hits from memory, or the system refuses.
pub fn run(samples: u32, parts: &[String]) -> Result<Vec<Row>, Box<dyn Error>> {
    let only = |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
    let mut rows = Vec::new();
    if only("truth") {
        #[cfg(target_arch = "x86_64")]
        constructed(samples, &mut rows)?;
        #[cfg(not(target_arch = "x86_64"))]
        tracing::info!("no truth is constructed here: only on x86-64 may a program flush lines");
    }
    if only("pools") {
        pools(samples, &mut rows)?;
    }
    if only("reserve") {
        reserve(samples, &mut rows)?;
    }
    Ok(rows)
}

fn row(metric: &str, unit: &'static str, samples: Vec<f64>, bound: Bound) -> Row {
    Row::new("cache", metric, unit, samples, bound)
}

/// A thread that repeats its work until this handle is dropped.
struct Busy {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Busy {
    /// Starts a thread on `core` that calls `turn` over and over.
    fn start(core: CoreId, mut turn: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            core_affinity::set_for_current(core);
            while !stopping.load(Ordering::Relaxed) {
                turn();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it only writes");
        }
    }
}

/// Returns a function that fills the next stretch of a region, from its beginning again and again, and adds
/// the stretch's bytes to `filled`.
fn filler(region: &Region, filled: Arc<AtomicU64>) -> impl FnMut() + Send + use<> {
    const STRETCH: usize = 256 << 10;
    let region = region.clone();
    let (mut at, mut value) = (0, 0u8);
    move || {
        let bytes = STRETCH.min(region.bytes() - at);
        value = value.wrapping_add(1);
        // SAFETY: within the region, whose memory is its own. Other threads only read it, by single bytes
        // that they throw away.
        unsafe { std::ptr::write_bytes(region.base().add(at), value, bytes) };
        at = (at + bytes) % region.bytes();
        filled.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

fn cores() -> Result<[CoreId; 2], Box<dyn Error>> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    match cores[..] {
        [first, .., last] => Ok([first, last]),
        _ => Err("two cores are needed: one for the pool, one for what hammers memory".into()),
    }
}

fn warmer(region: &Region, core: CoreId, warm_in: bool) -> Result<WarmerThread, Box<dyn Error>> {
    let options = WarmerOptions { warm_in, cpu: Some(core.id), ..WarmerOptions::default() };
    Ok(WarmerThread::start(region.clone(), options)?)
}

/// A pool's residency (the share of it in the cache), the rate at which a thread fills it, and the warmer's
/// cost meanwhile.
struct PoolFigures {
    resident: Resident,
    gigabytes_per_s: f64,
    cost_permille: f64,
}

fn measure_pool(mib: usize, antagonist: Option<&Region>) -> Result<PoolFigures, Box<dyn Error>> {
    let [other, own] = cores()?;
    let pool = Region::zeroed(mib << 20)?;
    let filled = Arc::new(AtomicU64::new(0));
    let _antagonist = antagonist.map(|memory| Busy::start(other, filler(memory, Arc::default())));
    let warmer = warmer(&pool, own, false)?;
    let _filling = Busy::start(own, filler(&pool, Arc::clone(&filled)));
    std::thread::sleep(SETTLE);
    let (before, start) = (filled.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(READ);
    #[allow(clippy::cast_precision_loss)] // a rate
    let gigabytes_per_s =
        (filled.load(Ordering::Relaxed) - before) as f64 / 1e9 / start.elapsed().as_secs_f64();
    let readings = warmer.readings();
    let resident = readings.resident.ok_or("the warmer has touched nothing")?;
    Ok(PoolFigures { resident, gigabytes_per_s, cost_permille: readings.cost_permille })
}

fn pools(samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let memory = Region::zeroed(ANTAGONIST_BYTES)?;
    let mut shares = [[const { Vec::new() }; POOLS_MIB.len()], [const { Vec::new() }; POOLS_MIB.len()]];
    let mut speeds = shares.clone();
    let (mut costs, mut orders) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        for (hammered, antagonist) in [None, Some(&memory)].into_iter().enumerate() {
            let mut seen = Vec::new();
            for (at, mib) in POOLS_MIB.into_iter().enumerate() {
                let found = measure_pool(mib, antagonist)?;
                shares[hammered][at].push(found.resident.share);
                speeds[hammered][at].push(found.gigabytes_per_s);
                costs.push(found.cost_permille);
                seen.push(found.resident);
            }
            // A larger pool has no larger share in the cache than a smaller one, as far as the intervals
            // tell.
            let right = seen.windows(2).filter(|pair| pair[1].low <= pair[0].high).count();
            orders.push(f64::from(u32::try_from(right)?) / f64::from(u32::try_from(seen.len() - 1)?));
        }
    }
    for (shares, (speeds, words)) in shares.into_iter().zip(speeds.into_iter().zip(["", ", memory hammered"]))
    {
        for (mib, (shares, speeds)) in POOLS_MIB.into_iter().zip(shares.into_iter().zip(speeds)) {
            rows.push(row(&format!("resident, pool of {mib} MiB{words}"), "share", shares, Bound::None));
            rows.push(row(&format!("filled, pool of {mib} MiB{words}"), "GB/s", speeds, Bound::None));
        }
    }
    // The least of all instead of the median: the order must be right every time.
    let worst = orders.iter().copied().fold(1.0, f64::min);
    rows.push(row(
        "neighbouring pools in the right order, at worst",
        "share",
        vec![worst],
        Bound::AtLeast(1.0),
    ));
    let budget = f64::from(PaceOptions::default().budget_permille);
    rows.push(row("the warmer's cost, of a core", "permille", costs, Bound::AtMost(budget)));
    Ok(())
}

/// Compares residency readings with a known truth. A part of the pages is brought into the cache and the
/// others are flushed. Then the region's residency is read in short batches.
#[cfg(target_arch = "x86_64")]
fn constructed(samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    const PAGES: usize = 2048;
    const TOUCHES: u32 = 4096;
    const PASSES: u32 = 4;
    let region = Region::zeroed(PAGES * PAGE_BYTES)?;
    let mut errors = Vec::new();
    for quarters in 0..=4usize {
        #[allow(clippy::cast_precision_loss)] // up to 4
        let truth = quarters as f64 / 4.0;
        let mut readings = Vec::new();
        for sample in 0..samples {
            let options = WarmerOptions { seed: u64::from(sample) + 1, ..WarmerOptions::default() };
            let mut warmer = jet_cat::residency::Warmer::new(region.clone(), options)?;
            // In rounds: other users of the cache evict what is brought in after a millisecond or two. In
            // several passes: the cache drops a line that was used once when the line leaves the core's own
            // cache.
            for _ in 0..16 {
                let is_cached = |page: usize| page % 4 < quarters;
                (0..PAGES).filter(|page| !is_cached(*page)).for_each(|page| place(&region, page, false));
                for _ in 0..PASSES {
                    (0..PAGES).filter(|page| is_cached(*page)).for_each(|page| place(&region, page, true));
                }
                warmer.touch_batch(TOUCHES / 16);
            }
            let share = warmer.resident().ok_or("the warmer has touched nothing")?.share;
            errors.push((share - truth).abs());
            readings.push(share);
        }
        rows.push(row(&format!("reading where {truth} is true"), "share", readings, Bound::None));
    }
    rows.push(row("reading beside the truth, median difference", "share", errors, Bound::AtMost(0.1)));
    Ok(())
}

/// Brings a page's lines into the cache if `cached`; else flushes them.
#[cfg(target_arch = "x86_64")]
fn place(region: &Region, page: usize, cached: bool) {
    for line in (0..PAGE_BYTES).step_by(LINE_BYTES) {
        // SAFETY: within the region.
        let at = unsafe { region.base().add(page * PAGE_BYTES + line) };
        if cached {
            // SAFETY: as above; what is read is thrown away.
            unsafe { at.read_volatile() };
        } else {
            // SAFETY: flushing a line that is mapped changes no byte.
            unsafe { std::arch::x86_64::_mm_clflush(at) };
        }
    }
}

fn reserve(samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let resctrl = match Resctrl::find() {
        Ok(resctrl) => resctrl,
        Err(error) => {
            tracing::warn!("nothing is reserved here: {error}");
            return Ok(());
        }
    };
    let folder = crate::interrupt::folder()?;
    let found = holdings(&resctrl)?.ok_or("the last-level cache is not shared out here")?;
    let bytes = 2 * found.way_bytes.values().max().ok_or("there is no cache")?;
    let request = Request::new(GroupName::new("jet-bench")?, bytes);
    let (mut made, mut restored) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        let start = Instant::now();
        let reservation = Reservation::make(&resctrl, &request, folder.path(), &mut |_| {})?;
        made.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        reservation.restore()?;
        restored.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let both = made.iter().zip(&restored).map(|(made, restored)| made + restored).collect();
    rows.push(row("planned and carried out", "ms", made, Bound::None));
    rows.push(row("given back", "ms", restored, Bound::None));
    rows.push(row("planned, carried out, given back", "ms", both, Bound::AtMost(10.0)));
    Ok(())
}
