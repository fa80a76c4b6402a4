//! Publishing the cache's status. A thread of its own reads it, because the kernel may take long to answer.
//! The control plane takes a copy of what was read last, and never waits.

use super::locked;
use jet_control::status::CacheStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time between two readings of the status, as long as the kernel answers.
const EVERY: Duration = Duration::from_secs(1);

/// The status as it was read last, and the time when that reading began.
struct Reading {
    status: CacheStatus,
    begun: Instant,
}

/// The published status of the cache.
#[derive(Clone)]
pub struct CacheView(Arc<Mutex<Reading>>);

impl CacheView {
    /// Returns the status as it was read last, and how old it is. Never waits for the kernel.
    pub fn status(&self) -> CacheStatus {
        let reading = locked(&self.0);
        let age_ms = u64::try_from(reading.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        CacheStatus { age_ms, ..reading.status.clone() }
    }
}

/// The thread that reads the status of the cache and publishes it. Dropping it ends the thread, and waits for
/// a reading that is under way.
pub(crate) struct StatusPublisher {
    view: CacheView,
    /// Queue of requests for a reading out of turn. Closing it ends the thread.
    requests: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StatusPublisher {
    /// Reads the status for the first time, and starts the thread that reads it again about every second.
    pub fn start(mut read: impl FnMut() -> CacheStatus + Send + 'static) -> Self {
        let begun = Instant::now();
        let view = CacheView(Arc::new(Mutex::new(Reading { status: read(), begun })));
        let (requests, requested) = sync_channel(1);
        let published = view.clone();
        let thread = std::thread::Builder::new()
            .name("jet-cache-stat".to_owned())
            .spawn(move || publish(&published, &requested, read))
            .inspect_err(|error| tracing::warn!("the cache's status is not read again: {error}"));
        Self { view, requests: Some(requests), thread: thread.ok() }
    }

    /// Asks for a reading at once, without waiting for it.
    pub fn refresh(&self) {
        if let Some(requests) = &self.requests {
            // A request that waits already is served by a reading that begins after this call.
            let _ = requests.try_send(());
        }
    }

    /// Returns the published status.
    pub fn view(&self) -> CacheView {
        self.view.clone()
    }
}

impl Drop for StatusPublisher {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // What a thread that panicked had to say is in the log.
            let _ = thread.join();
        }
    }
}

fn publish(view: &CacheView, requested: &Receiver<()>, mut read: impl FnMut() -> CacheStatus) {
    while requested.recv_timeout(EVERY) != Err(RecvTimeoutError::Disconnected) {
        let begun = Instant::now();
        let status = read();
        *locked(&view.0) = Reading { status, begun };
    }
}

/// A status whose second reading waits until somebody opens a FIFO for writing, like a read from a kernel
/// that does not answer.
#[cfg(test)]
pub(crate) mod standing_still {
    use super::StatusPublisher;
    use jet_control::status::{CacheStatus, CountersStatus, ReservationStatus, Reserve, WarmerStatus};
    use std::path::Path;

    /// Starts a publisher that stands still at its second reading, and from then on reads "after" as the
    /// reservation's reason.
    pub fn publisher(fifo: &Path) -> StatusPublisher {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let fifo = fifo.to_owned();
        let mut readings = 0;
        let publisher = StatusPublisher::start(move || {
            readings += 1;
            if readings == 2 {
                std::fs::read(&fifo).unwrap();
            }
            let reason = if readings == 1 { "before" } else { "after" };
            CacheStatus {
                age_ms: 0,
                reserve: Reserve::Auto,
                reservation: ReservationStatus { reason: Some(reason.to_owned()), ..Default::default() },
                registers: Default::default(),
                adjustments: Default::default(),
                counters: CountersStatus::Off,
                warmer: WarmerStatus::Off,
            }
        });
        publisher.refresh();
        publisher
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_test_support::waiting::until;

    #[test]
    fn a_status_that_cannot_be_read_is_the_last_one_and_says_its_age() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let publisher = standing_still::publisher(&fifo);
        let view = publisher.view();
        let reason = || view.status().reservation.reason;
        until("the status to be old", || (view.status().age_ms > 1500).then_some(()));
        assert_eq!(reason().as_deref(), Some("before"));
        drop(std::fs::OpenOptions::new().write(true).open(&fifo).unwrap());
        until("the reading to end", || (reason().as_deref() == Some("after")).then_some(()));
        // The age counts from the beginning of the reading: what was read may be as old as that.
        assert!(view.status().age_ms > 1000);
        until("the next reading", || (view.status().age_ms < 1000).then_some(()));
    }
}
