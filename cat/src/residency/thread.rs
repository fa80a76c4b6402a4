//! Thread that runs a warmer.

use super::calibration::Calibration;
use super::pace::Pace;
use super::readings::Readings;
use super::region::Region;
use super::warmer::{Warmer, WarmerError, WarmerOptions, thread_cpu_ns};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pages that warming in reads between two checks of the stop flag: 1 MiB, a fraction of a millisecond.
const WARM_IN_PAGES: usize = 256;

/// Number of times that the whole region is read at start. A cache that prefers lines with repeated use drops
/// much of what was read only once. On one Xeon half of 12 MiB stayed after one reading, 0.75 to 0.9 after
/// two, and 0.9 or more after three.
const WARM_IN_PASSES: usize = 3;

/// Time over which the warmer's rate and cost are averaged.
const RECENT: Duration = Duration::from_secs(1);

/// Reason why the warmer's thread was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The warmer could not be made.
    #[error(transparent)]
    Warmer(#[from] WarmerError),
    /// The thread may not run on the requested core, or there is no such core.
    #[error("the warmer cannot run on core {cpu}: {error}; name a core that this process may use, or none")]
    Cpu {
        /// Number of the requested core.
        cpu: usize,
        /// Error of the system call.
        error: io::Error,
    },
    /// The system gave no thread.
    #[error("cannot start the warmer's thread: {0}")]
    Thread(#[from] io::Error),
}

/// Thread that keeps a region in the cache and measures which share of it is resident. Dropping this stops
/// the thread within the time of a batch.
#[derive(Debug)]
pub struct WarmerThread {
    shared: Arc<Shared>,
    calibration: Calibration,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Latest readings. The lock is held only while they are copied, and no code on a message's path takes
    /// it.
    published: Mutex<Readings>,
    stopping: Mutex<bool>,
    stopped: Condvar,
}

impl Shared {
    /// Sleeps for the given time, or until the thread is told to stop. Returns whether it is to stop.
    fn pause(&self, pause: Duration) -> bool {
        let stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.stopped.wait_timeout_while(stopping, pause, |stopping| !*stopping);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn stop(&self) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stopped.notify_all();
    }
}

impl WarmerThread {
    /// Starts the warmer's thread, waits for its calibration (up to 50 ms), and returns while the thread
    /// warms the region in.
    ///
    /// # Errors
    /// [`StartError`]; no thread keeps running then.
    pub fn start(region: Region, options: WarmerOptions) -> Result<Self, StartError> {
        options.check()?;
        let shared = Arc::new(Shared::default());
        let (begun, ready) = sync_channel(1);
        let thread = std::thread::Builder::new().name("jet-warmer".to_owned()).spawn({
            let shared = shared.clone();
            move || run(region, options, &shared, &begun)
        })?;
        let refused = match ready.recv() {
            Ok(Ok(calibration)) => return Ok(Self { shared, calibration, thread: Some(thread) }),
            Ok(Err(refused)) => refused,
            Err(_) => StartError::Thread(io::Error::other("it ended before it was ready")),
        };
        // The thread has already finished its work, so this does not wait long.
        let _ = thread.join();
        Err(refused)
    }

    /// Returns the latest readings, without waiting for a batch.
    pub fn readings(&self) -> Readings {
        *self.shared.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the calibration by which touches are judged.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }
}

impl Drop for WarmerThread {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the warmer's thread has panicked");
        }
    }
}

fn run(
    region: Region,
    options: WarmerOptions,
    shared: &Shared,
    begun: &SyncSender<Result<Calibration, StartError>>,
) {
    let made = begin(region, options);
    let (warmer, pace) = match made {
        Ok(made) => made,
        Err(refused) => {
            // The starting thread waits for this.
            let _ = begun.send(Err(refused));
            return;
        }
    };
    let _ = begun.send(Ok(warmer.calibration().clone()));
    Runner { warmer, pace, shared }.run(options.warm_in);
}

fn begin(region: Region, options: WarmerOptions) -> Result<(Warmer, Pace), StartError> {
    if let Some(cpu) = options.cpu {
        stay_on(cpu).map_err(|error| StartError::Cpu { cpu, error })?;
    }
    let pace = Pace::new(options.pace).map_err(WarmerError::from)?;
    Ok((Warmer::new(region, options)?, pace))
}

fn stay_on(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    Ok(sched_setaffinity(None, &cpus)?)
}

struct Runner<'a> {
    warmer: Warmer,
    pace: Pace,
    shared: &'a Shared,
}

/// Progress of the thread at some time, for computing rates.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    cpu_ns: u64,
    touches: u64,
}

impl Runner<'_> {
    fn run(&mut self, warm_in: bool) {
        if warm_in && self.warm_in() {
            return;
        }
        let first = self.mark();
        let (mut last, mut recent) = (first, first);
        let mut readings = Readings::default();
        let mut step = self.pace.first();
        while !self.shared.pause(Duration::from_nanos(step.pause_ns)) {
            let batch = self.warmer.touch_batch(step.touches);
            let now = self.mark();
            readings.resident = self.warmer.resident();
            (readings.touches, readings.cycles) = (now.touches, self.warmer.cycles());
            readings.cpu_ns = now.cpu_ns;
            readings.running_ns = nanoseconds(now.at - first.at);
            readings.running_cpu_ns = now.cpu_ns - first.cpu_ns;
            if now.at - recent.at >= RECENT {
                (readings.rate_hz, readings.cost_permille) = now.since(&recent);
                recent = now;
            } else if recent.at == first.at {
                // During the first second the average covers the time so far.
                (readings.rate_hz, readings.cost_permille) = now.since(&first);
            }
            *self.shared.published.lock().unwrap_or_else(PoisonError::into_inner) = readings;

            // CPU time since the last batch ended: publishing, going to sleep, waking up.
            let overhead_ns = (now.cpu_ns - last.cpu_ns).saturating_sub(batch.span_ns);
            last = now;
            let resident_permille = readings.resident.map(|resident| resident.share_permille());
            step = self.pace.next(batch, overhead_ns, resident_permille);
        }
    }

    /// Reads the region several times. Returns `true` as soon as the thread is to stop.
    fn warm_in(&mut self) -> bool {
        let pages = self.warmer.region().pages();
        let parts = (0..WARM_IN_PASSES).flat_map(|_| (0..pages).step_by(WARM_IN_PAGES));
        for page in parts {
            self.warmer.warm_in_pages(page..page + WARM_IN_PAGES);
            if self.shared.pause(Duration::ZERO) {
                return true;
            }
        }
        false
    }

    fn mark(&self) -> Mark {
        Mark { at: Instant::now(), cpu_ns: thread_cpu_ns(), touches: self.warmer.touches() }
    }
}

impl Mark {
    /// Returns touches per second, and CPU time in thousandths of a core, since an earlier mark.
    fn since(&self, earlier: &Mark) -> (f64, f64) {
        let seconds = (self.at - earlier.at).as_secs_f64().max(1e-9);
        #[allow(clippy::cast_precision_loss)] // a figure of four digits
        let (touches, cpu_ns) =
            ((self.touches - earlier.touches) as f64, (self.cpu_ns - earlier.cpu_ns) as f64);
        (touches / seconds, cpu_ns / 1e6 / seconds)
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
