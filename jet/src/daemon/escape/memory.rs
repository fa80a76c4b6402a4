//! Escape memory: allocated and touched by a thread of its own, so that nothing waits for it, neither the start nor later a
//! message.

use jet_fabric::memory::SharedMemory;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Allocated and touched at a time: what comes first can be used while the rest is still on its way.
const CHUNK_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

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
    mut report: impl FnMut(usize, Option<PrepareError>) + Send + 'static,
) -> io::Result<Preparing> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("jet-escape-mem".into()).spawn(move || {
        let wanted = region.bytes();
        let mut ready = 0;
        while ready < wanted && !told.load(Ordering::Relaxed) {
            let bytes = CHUNK_BYTES.min(wanted - ready);
            if let Err(source) = prepare_chunk(&region, ready, bytes) {
                return report(ready, Some(PrepareError { ready, wanted, source }));
            }
            ready += bytes;
            report(ready, None);
        }
    })?;
    Ok(Preparing { stop, thread: Some(thread) })
}

fn prepare_chunk(region: &SharedMemory, at: usize, bytes: usize) -> io::Result<()> {
    // First allocated: touching a page that cannot be had would be a SIGBUS.
    loop {
        match fallocate(region.as_fd(), FallocateFlags::empty(), at as u64, bytes as u64) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for page in (at..at + bytes).step_by(PAGE_BYTES) {
        // SAFETY: within the region, which nobody uses before it is reported ready.
        unsafe { region.base().add(page).write_volatile(0) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn memory_becomes_ready_chunk_by_chunk() {
        let region = Arc::new(SharedMemory::lazy("jet-test", (2 << 20) + 4096).unwrap());
        region.seal_future_writes().unwrap();
        let (tell, told) = mpsc::channel();
        let preparing = prepare(region, move |ready, error| {
            assert!(error.is_none(), "{error:?}");
            tell.send(ready).unwrap();
        });
        let reports: Vec<usize> = told.iter().collect();
        assert_eq!(reports, [1 << 20, 2 << 20, (2 << 20) + 4096]);
        drop(preparing.unwrap());
    }

    #[test]
    fn it_can_be_told_to_stop() {
        let region = Arc::new(SharedMemory::lazy("jet-test", 1 << 30).unwrap());
        let (tell, told) = mpsc::sync_channel(0);
        // The second report waits for ever, unless it is told to stop and nobody listens any more.
        let preparing = prepare(region, move |ready, _| {
            let _ = tell.send(ready);
        })
        .unwrap();
        assert_eq!(told.recv(), Ok(1 << 20));
        drop(told);
        drop(preparing);
    }
}
