//! One snapshot for all clients that ask for the status at the same time.
//!
//! Each answer shows a state of the daemon after the client's request. Only its section on the cache may be
//! older, and names its age: a thread of its own reads that section from the kernel. A snapshot is begun at
//! most every [`GAP`], however often clients ask, so their requests hardly slow messages down.

use super::rows::{FIRST, FURTHER};
use super::{About, status};
use crate::daemon::cache::CacheView;
use crate::daemon::congestion::CongestionView;
use crate::daemon::rdma::RdmaView;
use crate::daemon::reactor::{Command, Commands, Snapshot};
use bytes::Bytes;
use jet_control::frame::encode_frame;
use jet_control::status::{Rows, RowsFrom};
use jet_control::{ControlResponse, ErrorCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Least time between the beginnings of two snapshots.
const GAP: Duration = Duration::from_millis(25);
/// Age from which a snapshot no longer serves requests for further rows. A request that comes later waits for
/// a new snapshot.
const ROWS_AGE_MAX: Duration = Duration::from_secs(1);

/// Limit of queued requests for the status. Further clients wait until the queue has room.
const ASKS: usize = 256;

/// Sources of the status.
pub struct Sources {
    /// Queue of commands to the reactor.
    pub commands: Arc<Commands>,
    /// Facts about this daemon that never change.
    pub about: About,
    /// State of the congestion actuators.
    pub congestion: CongestionView,
    /// Status of the pool's place in the last-level cache.
    pub cache: CacheView,
    /// State of the RDMA port.
    pub rdma: RdmaView,
}

/// The daemon's status at one time.
struct Answer {
    /// The encoded answer to a request for the status.
    frame: Bytes,
    snapshot: Box<Snapshot>,
    begun: Instant,
}

impl Answer {
    /// Returns the page of rows that begins at `from`.
    fn rows(&self, from: RowsFrom) -> Rows {
        FURTHER.of(&self.snapshot, from)
    }
}

type Reply = oneshot::Sender<Arc<Answer>>;

/// The queue of requests for the status, and the newest answer.
pub struct StatusCache {
    asks: mpsc::Sender<Reply>,
    newest: Arc<Mutex<Option<Arc<Answer>>>>,
}

impl StatusCache {
    /// Starts the task that asks the reactor for snapshots on behalf of all clients. The task ends when this
    /// value is dropped or the reactor is gone.
    pub fn start(sources: Sources) -> Self {
        let (asks, asked) = mpsc::channel(ASKS);
        let newest = Arc::new(Mutex::new(None));
        tokio::spawn(answer_requests(sources, asked, Arc::clone(&newest)));
        Self { asks, newest }
    }

    /// Returns the encoded answer to a request for the status, made after this call; `None` if the daemon is
    /// stopping. A client that takes the frame slowly holds the frame alone, not the snapshot.
    pub async fn encoded(&self) -> Option<Bytes> {
        self.answer().await.map(|answer| answer.frame.clone())
    }

    async fn answer(&self) -> Option<Arc<Answer>> {
        let (reply, hears) = oneshot::channel();
        self.asks.send(reply).await.ok()?;
        hears.await.ok()
    }

    /// Returns the page of rows from `from` on, of the newest status, or of a new one if the newest is too
    /// old. Returns `None` if the daemon is stopping.
    pub async fn rows(&self, from: RowsFrom) -> Option<Rows> {
        let newest = newest(&self.newest).clone().filter(|answer| answer.begun.elapsed() < ROWS_AGE_MAX);
        match newest {
            Some(answer) => Some(answer.rows(from)),
            None => self.answer().await.map(|answer| answer.rows(from)),
        }
    }
}

fn newest(newest: &Mutex<Option<Arc<Answer>>>) -> MutexGuard<'_, Option<Arc<Answer>>> {
    newest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Collects waiting requests, gets one snapshot for all of them, and answers each request with that snapshot.
async fn answer_requests(
    sources: Sources,
    mut asked: mpsc::Receiver<Reply>,
    kept: Arc<Mutex<Option<Arc<Answer>>>>,
) {
    let room = || Snapshot::with_room(sources.about.sessions_max, sources.about.peers_max);
    let mut empty = room();
    let mut begun: Option<Instant> = None;
    while let Some(first) = asked.recv().await {
        if let Some(begun) = begun {
            tokio::time::sleep_until(begun + GAP).await;
        }
        let mut waiting = vec![first];
        while let Ok(reply) = asked.try_recv() {
            waiting.push(reply);
        }
        let at = *begun.insert(Instant::now());
        let (reply, filled) = oneshot::channel();
        sources.commands.send(Command::Snapshot { snapshot: empty, reply }).await;
        // The reactor is gone. Dropping the requests tells their clients.
        let Ok(snapshot) = filled.await else { return };
        let answer = Arc::new(Answer { frame: sources.frame(&snapshot), snapshot, begun: at });
        let before = newest(&kept).replace(Arc::clone(&answer));
        for reply in waiting {
            // The client may have stopped waiting.
            let _ = reply.send(Arc::clone(&answer));
        }
        // Fill the previous snapshot next, unless a client still reads it.
        empty = before.and_then(Arc::into_inner).map_or_else(room, |before| before.snapshot);
    }
}

impl Sources {
    /// Encodes the answer to a request for the status.
    fn frame(&self, snapshot: &Snapshot) -> Bytes {
        let mut status = status(&self.about, snapshot, FIRST.of(snapshot, RowsFrom::START));
        status.congestion = self.congestion.rows();
        status.cache = Some(self.cache.status());
        status.rdma = self.rdma.status();
        let answer = ControlResponse::Status { status: Box::new(status) };
        encode_frame(&answer).unwrap_or_else(|error| {
            let refused = ControlResponse::Error { code: ErrorCode::Internal, message: error.to_string() };
            encode_frame(&refused).expect("a short one")
        })
    }
}
