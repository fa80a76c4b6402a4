//! One snapshot for all who ask at the same time.
//!
//! Who asks is told how things stood after it asked. A snapshot is begun at most every [`GAP`], however many
//! ask and however often, so that asking costs the messages' path little.

use super::rows::{FIRST, FURTHER};
use super::{About, status};
use crate::daemon::cache::CacheControl;
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

/// Between the beginnings of two snapshots.
const GAP: Duration = Duration::from_millis(25);
/// Further rows are of the same snapshot as the status before them, unless that is as old as this.
const ROWS_AGE_MAX: Duration = Duration::from_secs(1);

/// Who may wait to be taken up: more wait before that.
const ASKS: usize = 256;

/// Where a status comes from beside the reactor.
pub struct Sources {
    /// The way to the reactor.
    pub commands: Arc<Commands>,
    /// What never changes.
    pub about: About,
    /// What marks congestion.
    pub congestion: CongestionView,
    /// The pool's place in the cache.
    pub cache: Arc<CacheControl>,
    /// The RDMA port.
    pub rdma: RdmaView,
}

/// How things stood at a moment.
pub struct Told {
    /// The answer to who asks for the status: a frame.
    pub frame: Bytes,
    snapshot: Box<Snapshot>,
    begun: Instant,
}

impl Told {
    /// The page of rows that begins there.
    fn rows(&self, from: RowsFrom) -> Rows {
        FURTHER.of(&self.snapshot, from)
    }
}

type Reply = oneshot::Sender<Arc<Told>>;

/// Where statuses are asked for.
pub struct Board {
    asks: mpsc::Sender<Reply>,
    newest: Arc<Mutex<Option<Arc<Told>>>>,
}

impl Board {
    /// Starts the task that asks the reactor on everybody's behalf. It ends with the board, or when the
    /// reactor is gone.
    pub fn start(sources: Sources) -> Self {
        let (asks, asked) = mpsc::channel(ASKS);
        let newest = Arc::new(Mutex::new(None));
        tokio::spawn(tell(sources, asked, Arc::clone(&newest)));
        Self { asks, newest }
    }

    /// How things stand now; `None`: the daemon is stopping.
    pub async fn now(&self) -> Option<Arc<Told>> {
        let (reply, hears) = oneshot::channel();
        self.asks.send(reply).await.ok()?;
        hears.await.ok()
    }

    /// Further rows of how things stood when somebody asked last; `None`: the daemon is stopping.
    pub async fn rows(&self, from: RowsFrom) -> Option<Rows> {
        let newest = newest(&self.newest).clone().filter(|told| told.begun.elapsed() < ROWS_AGE_MAX);
        match newest {
            Some(told) => Some(told.rows(from)),
            None => self.now().await.map(|told| told.rows(from)),
        }
    }
}

fn newest(newest: &Mutex<Option<Arc<Told>>>) -> MutexGuard<'_, Option<Arc<Told>>> {
    newest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes all who wait, has a snapshot made for them, and tells them.
async fn tell(sources: Sources, mut asked: mpsc::Receiver<Reply>, board: Arc<Mutex<Option<Arc<Told>>>>) {
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
        // Who waits sees that nobody answers.
        let Ok(snapshot) = filled.await else { return };
        let told = Arc::new(Told { frame: sources.frame(&snapshot), snapshot, begun: at });
        let before = newest(&board).replace(Arc::clone(&told));
        for reply in waiting {
            // Who asked may be gone.
            let _ = reply.send(Arc::clone(&told));
        }
        // The other one is filled next, unless somebody still reads it.
        empty = before.and_then(Arc::into_inner).map_or_else(room, |before| before.snapshot);
    }
}

impl Sources {
    /// The answer to who asks for the status.
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
