//! Allocating escape memory. A separate thread allocates and touches the memory, so neither the daemon's
//! start nor a message waits for it.

use jet_fabric::memory::SharedMemory;
use jet_wire::segment::{SegmentLayout, SegmentShape};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Bytes of escape memory that are allocated and touched in one step. Finished chunks are usable while the
/// rest is being prepared.
const CHUNK_BYTES: usize = 1 << 20;

/// Number of sessions for whose segments escape memory leaves room on the host. Sessions matter more: an
/// application without a session receives nothing, while without escape memory only slow applications suffer.
/// A host runs a few applications, and one that restarts has two sessions for a while.
const SESSIONS_LEFT: u32 = 16;

/// The sessions whose segments need room beside escape memory.
#[derive(Clone, Copy, Debug)]
pub struct Sessions {
    /// Shape of each session's segment.
    pub shape: SegmentShape,
    /// Limit of sessions, from the configuration.
    pub max: u32,
}

impl Sessions {
    fn bytes_left(self) -> usize {
        self.max.min(SESSIONS_LEFT) as usize * SegmentLayout::new(self.shape).used_bytes()
    }
}

/// Error for escape memory that cannot be allocated, or only in part.
#[derive(Debug, thiserror::Error)]
#[error(
    "escape memory: only {ready} of {wanted} bytes can be had, with room for sessions: {source}; the \
     receiver goes on with that. Lower escape.memory_bytes and escape.replace_bytes, or give the daemon more \
     memory (its cgroup's limit, the machine's)"
)]
pub struct PrepareError {
    /// Bytes of escape memory that are usable.
    pub ready: usize,
    /// Bytes of escape memory that were requested.
    pub wanted: usize,
    /// Error from the system.
    pub source: io::Error,
}

/// The thread that prepares escape memory. Dropping this value stops the thread after its current chunk.
#[derive(Debug)]
pub struct Preparing {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread panics only inside `report`, and the panic message has been printed then.
            let _ = thread.join();
        }
    }
}

/// Allocates and touches the region's pages, from its beginning, on a new thread. After each chunk `report`
/// gets the number of usable bytes, and also the error when no more memory can be had. The thread stops where
/// more escape memory would take the room that sessions need.
///
/// # Errors
/// Returns the system's error if the thread cannot be started.
pub fn prepare(
    region: Arc<SharedMemory>,
    sessions: Sessions,
    report: impl FnMut(usize, Option<PrepareError>) + Send + 'static,
) -> io::Result<Preparing> {
    prepare_with(region, sessions, SharedMemory::prepare_leaving, report)
}

fn prepare_with(
    region: Arc<SharedMemory>,
    sessions: Sessions,
    mut prepare: impl FnMut(&SharedMemory, usize, usize, usize) -> io::Result<()> + Send + 'static,
    mut report: impl FnMut(usize, Option<PrepareError>) + Send + 'static,
) -> io::Result<Preparing> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("jet-escape-mem".into()).spawn(move || {
        let (wanted, left) = (region.bytes(), sessions.bytes_left());
        let mut ready = 0;
        while ready < wanted && !told.load(Ordering::Relaxed) {
            let bytes = CHUNK_BYTES.min(wanted - ready);
            if let Err(source) = prepare(&region, ready, bytes, left) {
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
    use std::sync::{Mutex, mpsc};

    const CHUNK: usize = CHUNK_BYTES;
    const PAGE_BYTES: usize = 4096;

    fn sessions(max: u32) -> Sessions {
        Sessions { shape: SegmentShape::new(1024, 1024), max }
    }

    #[test]
    fn memory_becomes_ready_chunk_by_chunk_and_is_allocated() {
        let region = Arc::new(SharedMemory::lazy("jet-test", 2 * CHUNK + PAGE_BYTES).unwrap());
        region.seal_future_writes().unwrap();
        let blocks = |region: &SharedMemory| rustix::fs::fstat(region).unwrap().st_blocks;
        assert_eq!(blocks(&region), 0);
        let (tell, told) = mpsc::channel();
        let preparing = prepare(Arc::clone(&region), sessions(1), move |ready, error| {
            assert!(error.is_none(), "{error:?}");
            tell.send(ready).expect("the test listens");
        });
        let reports: Vec<usize> = told.iter().collect();
        assert_eq!(reports, [CHUNK, 2 * CHUNK, 2 * CHUNK + PAGE_BYTES]);
        // `st_blocks` counts 512 bytes each. There are more where the system uses huge pages.
        assert!(blocks(&region) >= i64::try_from(region.bytes() / 512).unwrap());
        drop(preparing.unwrap());
    }

    #[test]
    fn what_was_ready_stays_ready_where_more_cannot_be_had() {
        let region = Arc::new(SharedMemory::lazy("jet-test", 4 * CHUNK).unwrap());
        let (tell, told) = mpsc::channel();
        let limited = |region: &SharedMemory, at: usize, bytes: usize, _left: usize| {
            if at < 2 * CHUNK { region.prepare(at, bytes) } else { Err(Errno::NOSPC.into()) }
        };
        let preparing = prepare_with(region, sessions(1), limited, move |ready, error| {
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
    fn sessions_find_room_beside_it() {
        // Models the memory limit of a control group: a step must leave the requested room and a margin.
        let (limit, margin) = (24 * CHUNK, 4 * CHUNK);
        let room = Arc::new(Mutex::new(limit));
        let takes = move |room: &Mutex<usize>, bytes: usize, left: usize| {
            let mut room = room.lock().unwrap();
            *room = room.checked_sub(bytes).filter(|rest| *rest >= left + margin)?;
            Some(())
        };
        let region = Arc::new(SharedMemory::lazy("jet-test", 2 * limit).unwrap());
        let (tell, told) = mpsc::channel();
        let limits = Arc::clone(&room);
        let limited = move |_: &SharedMemory, _: usize, bytes: usize, left: usize| {
            takes(&limits, bytes, left).ok_or_else(|| Errno::NOSPC.into())
        };
        let preparing = prepare_with(region, sessions(64), limited, move |ready, error| {
            tell.send((ready, error.is_some())).expect("the test listens");
        });
        let (ready, refused) = told.iter().last().expect("a last report");
        drop(preparing.unwrap());
        assert!(refused && ready > CHUNK, "{ready} of {limit}");
        let segment = SegmentLayout::new(sessions(64).shape).used_bytes();
        for session in 1..=16 {
            assert!(takes(&room, segment, 0).is_some(), "no room for session {session}");
        }
        assert_eq!(sessions(3).bytes_left(), 3 * segment);
    }

    #[test]
    fn it_stops_at_the_next_chunk_when_told() {
        let region = Arc::new(SharedMemory::lazy("jet-test", 4 * CHUNK).unwrap());
        // The channel has no buffer, so the thread waits until each report is received.
        let (tell, told) = mpsc::sync_channel(0);
        let preparing =
            prepare(region, sessions(1), move |ready, _| tell.send(ready).expect("the test listens"))
                .unwrap();
        assert_eq!(told.recv(), Ok(CHUNK));
        preparing.stop.store(true, Ordering::Relaxed);
        // The thread may have begun one more chunk already. After it the thread ends, and drops its sender.
        let reports: Vec<usize> = told.iter().collect();
        assert!(reports.is_empty() || reports == [2 * CHUNK], "{reports:?}");
        drop(preparing);
    }
}
