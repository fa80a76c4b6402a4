//! Escape memory: allocated and touched by a thread of its own, so that nothing waits for it, neither the start nor later a
//! message.

use jet_fabric::memory::SharedMemory;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Allocated and touched at a time: what comes first can be used while the rest is still on its way.
const CHUNK_BYTES: usize = 1 << 20;

/// Escape memory cannot be had, or not all of it.
#[derive(Debug, thiserror::Error)]
#[error(
    "escape memory: only {ready} of {wanted} bytes can be had: {source}; the receiver goes on with that. Lower \
     escape.memory_bytes and escape.replace_bytes, or give the daemon more memory (its cgroup's limit, the machine's)"
)]
pub struct PrepareError {
    /// Bytes that can be used.
    pub ready: usize,
    /// Bytes asked for.
    pub wanted: usize,
    /// What the system said.
    pub source: io::Error,
}

/// The thread that prepares escape memory; dropping it ends it.
#[derive(Debug)]
pub struct Preparing {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panics only where `report` does, and then that was said already.
            let _ = thread.join();
        }
    }
}

/// Allocates and touches the region's pages from its beginning on, and reports how many bytes can be used whenever it is
/// more, with the error where there will be no more.
///
/// # Errors
/// What the system says about starting a thread.
pub fn prepare(
    region: Arc<SharedMemory>,
    report: impl FnMut(usize, Option<PrepareError>) + Send + 'static,
) -> io::Result<Preparing> {
    prepare_with(region, SharedMemory::prepare, report)
}

fn prepare_with(
    region: Arc<SharedMemory>,
    mut prepare: impl FnMut(&SharedMemory, usize, usize) -> io::Result<()> + Send + 'static,
    mut report: impl FnMut(usize, Option<PrepareError>) + Send + 'static,
) -> io::Result<Preparing> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("jet-escape-mem".into()).spawn(move || {
        let wanted = region.bytes();
        let mut ready = 0;
        while ready < wanted && !told.load(Ordering::Relaxed) {
            let bytes = CHUNK_BYTES.min(wanted - ready);
            if let Err(source) = prepare(&region, ready, bytes) {
                return report(ready, Some(PrepareError { ready, wanted, source }));
            }
            ready += bytes;
            report(ready, None);
        }
    })?;
    Ok(Preparing { stop, thread: Some(thread) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::sync::mpsc;

    const CHUNK: usize = CHUNK_BYTES;
    const PAGE_BYTES: usize = 4096;

    #[test]
    fn memory_becomes_ready_chunk_by_chunk_and_is_allocated() {
        let region = Arc::new(SharedMemory::lazy("jet-test", 2 * CHUNK + PAGE_BYTES).unwrap());
        region.seal_future_writes().unwrap();
        let blocks = |region: &SharedMemory| rustix::fs::fstat(region).unwrap().st_blocks;
        assert_eq!(blocks(&region), 0);
        let (tell, told) = mpsc::channel();
        let preparing = prepare(Arc::clone(&region), move |ready, error| {
            assert!(error.is_none(), "{error:?}");
            tell.send(ready).expect("the test listens");
        });
        let reports: Vec<usize> = told.iter().collect();
        assert_eq!(reports, [CHUNK, 2 * CHUNK, 2 * CHUNK + PAGE_BYTES]);
        // In units of 512 bytes; more where the system takes huge pages for it.
        assert!(blocks(&region) >= i64::try_from(region.bytes() / 512).unwrap());
        drop(preparing.unwrap());
    }

    #[test]
    fn what_was_ready_stays_ready_where_more_cannot_be_had() {
        let region = Arc::new(SharedMemory::lazy("jet-test", 4 * CHUNK).unwrap());
        let (tell, told) = mpsc::channel();
        let limited = |region: &SharedMemory, at: usize, bytes: usize| {
            if at < 2 * CHUNK { region.prepare(at, bytes) } else { Err(Errno::NOSPC.into()) }
        };
        let preparing = prepare_with(region, limited, move |ready, error| {
            tell.send((ready, error.map(|error| error.to_string()))).expect("the test listens");
        });
        let mut reports: Vec<(usize, Option<String>)> = told.iter().collect();
        let (ready, error) = reports.pop().expect("a last report");
        assert_eq!(reports, [(CHUNK, None), (2 * CHUNK, None)]);
        assert_eq!(ready, 2 * CHUNK);
        let error = error.expect("the last report says why");
        for part in ["only 2097152 of 4194304 bytes", "escape.memory_bytes", "escape.replace_bytes", "cgroup"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
        drop(preparing.unwrap());
    }

    #[test]
    fn it_stops_at_the_next_chunk_when_told() {
        let region = Arc::new(SharedMemory::lazy("jet-test", 4 * CHUNK).unwrap());
        // No room: each report is taken before the thread goes on.
        let (tell, told) = mpsc::sync_channel(0);
        let preparing = prepare(region, move |ready, _| tell.send(ready).expect("the test listens")).unwrap();
        assert_eq!(told.recv(), Ok(CHUNK));
        preparing.stop.store(true, Ordering::Relaxed);
        // One more at most: that chunk may have been begun already. Then the thread is gone, and its sender with it.
        let reports: Vec<usize> = told.iter().collect();
        assert!(reports.is_empty() || reports == [2 * CHUNK], "{reports:?}");
        drop(preparing);
    }
}
