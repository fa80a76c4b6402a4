//! The store on the disk: a data file and a log.
//!
//! A write goes to places of the data file that nobody reads. When its bytes are on the disk, its record is
//! written to the log. The record says where the bytes lie, and that this message of its sender was seen.
//! Both take effect together, when the record is on the disk. Only then the sender is replied to.
//!
//! Writes that come while others go to the disk wait, and then share two syncs: one of the data, one of the
//! log.

use crate::index::{Index, Record, Run, SPARE_PLACES};
use crate::log::{self, BadLog};
use crate::protocol::{BLOCK_BYTES, Refusal};
use crate::ring::{Block, Ring};
use bytes::Bytes;
use jet_client::exactly_once::SeenWindow;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot};

/// Bytes of records after which the log begins anew, beside as many as its index has: so most of what is
/// written to it is records.
const RECORDS_BYTES: u64 = 16 << 10;
/// Writes that share a sync. Each task has one, so this is more than there are tasks.
const BATCH_MAX: usize = 256;

/// Why the store cannot be opened, or failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be made, read or written.
    #[error("{path}: {error}", path = .0.display(), error = .1)]
    File(PathBuf, #[source] io::Error),
    /// Another server has the store, or the writes of a server that was killed are not over.
    #[error("another server uses {}; end it first, or name another directory", .0.display())]
    InUse(PathBuf),
    /// The log is none.
    #[error("{path} is no log of this server: {0}; is it the right directory?", path = .1.display())]
    Log(BadLog, PathBuf),
    /// The store has another size.
    #[error("the store in {path} has {found} blocks, not {wanted}; leave --blocks out, or name another \
             directory", path = .path.display())]
    Size {
        /// Directory of the store.
        path: PathBuf,
        /// Blocks of the store.
        found: usize,
        /// Blocks that were asked for.
        wanted: u32,
    },
    /// The kernel gives no io_uring.
    #[error("cannot set up io_uring: {0}; this server needs a kernel and a container that allow it")]
    Ring(#[source] io::Error),
}

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Blocks of the store. `None`: as many as it has, or 65,536 in a new one.
    pub blocks: Option<u32>,
    /// Senders that may write.
    pub writers_max: usize,
    /// Whether a write is on the disk before it takes effect.
    pub syncs: bool,
}

/// A store, for any number of tasks.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    commits: mpsc::Sender<Commit>,
}

struct Shared {
    directory: PathBuf,
    ring: Ring,
    data: Arc<File>,
    index: Mutex<Index>,
    options: Options,
}

/// A message whose bytes are written.
struct Commit {
    sender: u64,
    sequence: u64,
    first: u32,
    runs: Vec<Run>,
    answer: oneshot::Sender<u64>,
}

/// The log that records are appended to.
struct Log {
    file: Arc<File>,
    /// Bytes of the log.
    bytes: u64,
    /// Bytes after which it begins anew.
    bytes_max: u64,
}

impl Store {
    /// Opens the store in a directory, or makes one there.
    ///
    /// The second value ends when all handles of the store are dropped and everything is on the disk, or the
    /// store has failed: then nobody knows which of the newest writes are on the disk, and none of them must
    /// be ended.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(
        directory: &Path,
        options: Options,
    ) -> Result<(Self, impl Future<Output = Result<(), StoreError>> + use<>), StoreError> {
        fs::create_dir_all(directory).map_err(|error| StoreError::File(directory.into(), error))?;
        let data_path = directory.join("data");
        let data = open_data(&data_path).map_err(|error| StoreError::File(data_path.clone(), error))?;
        // The kernel keeps the file, and so its lock, for writes that a killed server has in flight. When
        // this server has the lock they are over.
        match rustix::fs::flock(&data, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::InUse(directory.into())),
            locked => locked.map_err(|errno| StoreError::File(data_path.clone(), errno.into()))?,
        }
        let log_path = directory.join("log");
        let index = match fs::read(&log_path) {
            Ok(bytes) => log::read(&bytes).map_err(|bad| StoreError::Log(bad, log_path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Index::new(options.blocks.unwrap_or(65_536))
            }
            Err(error) => return Err(StoreError::File(log_path, error)),
        };
        if let Some(wanted) = options.blocks
            && index.blocks.len() != wanted as usize
        {
            let found = index.blocks.len();
            return Err(StoreError::Size { path: directory.into(), found, wanted });
        }
        let places = index.blocks.len() as u64 + u64::from(SPARE_PLACES);
        reserve(&data, places * BLOCK_BYTES as u64).map_err(|error| StoreError::File(data_path, error))?;
        // A new log at each start: behind the last whole record of the old one there may be anything, also
        // whole records that were never acknowledged.
        let log = Log::begin(directory, &log::begin(&index))?;
        let (commits, next_commits) = mpsc::channel(BATCH_MAX);
        let shared = Arc::new(Shared {
            directory: directory.into(),
            ring: Ring::new().map_err(StoreError::Ring)?,
            data: Arc::new(data),
            index: Mutex::new(index),
            options,
        });
        let store = Self { shared: Arc::clone(&shared), commits };
        Ok((store, commit_all(shared, log, next_commits)))
    }

    /// Returns how many blocks the store has, and the newest write.
    pub fn size(&self) -> (usize, u64) {
        let index = self.shared.lock();
        (index.blocks.len(), index.version)
    }

    /// Returns how many writes of a sender took effect.
    pub fn writes_of(&self, sender: u64) -> u64 {
        self.shared.lock().writers.get(&sender).map_or(0, |writer| writer.writes)
    }

    /// Returns the version that a message's write got, if it took effect and is on the disk; 0 where that is
    /// not known any more.
    pub fn version_given(&self, sender: u64, sequence: u64) -> Option<u64> {
        self.shared.lock().version_given(sender, sequence)
    }

    /// Reads a block: `None` where nobody wrote it.
    ///
    /// # Errors
    /// [`Refusal::OutOfRange`], [`Refusal::Disk`].
    pub async fn read(&self, block: u64) -> Result<Option<Box<Block>>, Refusal> {
        let Shared { ring, data, .. } = &*self.shared;
        loop {
            let find = || {
                let index = self.shared.lock();
                index.block(block).map(|block| index.blocks[block as usize])
            };
            let found = find()?;
            let Some(place) = found else { return Ok(None) };
            let read = ring.read(data, u64::from(place.place) * BLOCK_BYTES as u64).await;
            let bytes = read.map_err(|error| refusal_of("cannot read", &error))?;
            // If the block was written meanwhile, its old place may have other bytes by now.
            if find()? == found {
                return Ok(Some(bytes));
            }
        }
    }

    /// Begins to write these blocks: takes places for them.
    ///
    /// # Errors
    /// [`Refusal::OutOfRange`], [`Refusal::NoSpace`], [`Refusal::TooManyWriters`].
    pub fn begin(&self, sender: u64, first: u64, blocks: u32) -> Result<Writing<'_>, Refusal> {
        let mut index = self.shared.lock();
        let first = index.range(first, blocks)?;
        if !index.writers.contains_key(&sender) && index.writers.len() >= self.shared.options.writers_max {
            return Err(Refusal::TooManyWriters);
        }
        let runs = index.take(blocks)?;
        index.writers.entry(sender).or_default();
        Ok(Writing { store: self, first, runs, in_flight: false })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().expect("a panic ends the process")
    }
}

/// A write whose bytes come. Dropped before [`Self::commit`], it never was.
pub struct Writing<'s> {
    store: &'s Store,
    first: u32,
    runs: Vec<Run>,
    in_flight: bool,
}

impl Writing<'_> {
    /// Writes bytes of the message, which begin at `offset`. Drops `bytes` when they are written.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`], [`Refusal::Disk`].
    ///
    /// # Panics
    /// Where they do not lie in the blocks that the write began with.
    pub async fn write(&mut self, bytes: Bytes, offset: u64) -> Result<(), Refusal> {
        self.in_flight = true;
        let written = self.write_to_places(bytes, offset).await;
        self.in_flight = false;
        written.map_err(|error| refusal_of("cannot write", &error))
    }

    async fn write_to_places(&self, mut bytes: Bytes, mut offset: u64) -> io::Result<()> {
        let Shared { ring, data, .. } = &*self.store.shared;
        for run in &self.runs {
            let run_bytes = u64::from(run.count) * BLOCK_BYTES as u64;
            if offset >= run_bytes {
                offset -= run_bytes;
                continue;
            }
            let here = bytes.len().min(usize::try_from(run_bytes - offset).expect("at most 1 MiB"));
            let place = u64::from(run.first) * BLOCK_BYTES as u64 + offset;
            ring.write(data, bytes.split_to(here), place).await?;
            offset = 0;
        }
        assert!(bytes.is_empty(), "{} bytes are beyond the blocks", bytes.len());
        Ok(())
    }

    /// Lets the write take effect: it is on the disk when this returns its version. A message that was seen
    /// before takes no effect again, and gets the version that it got first.
    pub async fn commit(mut self, sender: u64, sequence: u64) -> u64 {
        let (answer, version) = oneshot::channel();
        let runs = std::mem::take(&mut self.runs);
        let commit = Commit { sender, sequence, first: self.first, runs, answer };
        // No answer: the store has failed, and the process ends. Until then nobody must hear an end.
        if self.store.commits.send(commit).await.is_ok()
            && let Ok(version) = version.await
        {
            return version;
        }
        std::future::pending().await
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // Where the kernel may still write there, the places stay taken until the next start.
        if !self.in_flight {
            self.store.shared.lock().give_back(&self.runs);
        }
    }
}

/// Lets one batch of writes after the other take effect.
async fn commit_all(
    shared: Arc<Shared>,
    mut log: Log,
    mut next: mpsc::Receiver<Commit>,
) -> Result<(), StoreError> {
    let Shared { ring, data, .. } = &*shared;
    let failed = |name: &str| {
        let path = shared.directory.join(name);
        move |error| StoreError::File(path, error)
    };
    let mut batch = Vec::new();
    while next.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let (records, answers) = decide(&shared.lock(), &mut batch);
        if !records.is_empty() {
            if shared.options.syncs {
                ring.sync(data).await.map_err(failed("data"))?;
            }
            let mut bytes = Vec::new();
            records.iter().for_each(|record| log::append_record(&mut bytes, record));
            let length = bytes.len() as u64;
            ring.write(&log.file, bytes.into(), log.bytes).await.map_err(failed("log"))?;
            if shared.options.syncs {
                ring.sync(&log.file).await.map_err(failed("log"))?;
            }
            log.bytes += length;
        }
        {
            let mut index = shared.lock();
            records.iter().for_each(|record| index.apply(record));
            answers.iter().for_each(|answer| index.give_back(&answer.unused));
        }
        for Answer { answer, version, .. } in answers {
            // Whoever asked may be gone.
            let _ = answer.send(version);
        }
        if log.bytes > log.bytes_max {
            let bytes = log::begin(&shared.lock());
            log = tokio::task::block_in_place(|| Log::begin(&shared.directory, &bytes))?;
        }
    }
    Ok(())
}

/// What a commit is told when its batch is on the disk.
struct Answer {
    answer: oneshot::Sender<u64>,
    version: u64,
    /// Places of a message that took effect before.
    unused: Vec<Run>,
}

/// Decides which writes of a batch take effect, and in which order.
fn decide(index: &Index, batch: &mut Vec<Commit>) -> (Vec<Record>, Vec<Answer>) {
    let (mut records, mut answers) = (Vec::new(), Vec::new());
    // What is seen when the records so far have taken effect. A message may be in one batch twice, when it
    // came again by way of another daemon.
    let mut windows: HashMap<u64, SeenWindow> = HashMap::new();
    let mut given = HashMap::new();
    for Commit { sender, sequence, first, runs, answer } in batch.drain(..) {
        let known = || index.writers.get(&sender).map_or_else(SeenWindow::new, |writer| writer.seen.clone());
        let (version, unused) = if windows.entry(sender).or_insert_with(known).mark(sequence) {
            let version = index.version + 1 + records.len() as u64;
            given.insert((sender, sequence), version);
            records.push(Record { version, sender, sequence, first, runs });
            (version, Vec::new())
        } else {
            let of_batch = given.get(&(sender, sequence)).copied();
            (index.version_given(sender, sequence).or(of_batch).unwrap_or(0), runs)
        };
        answers.push(Answer { answer, version, unused });
    }
    (records, answers)
}

fn refusal_of(what: &str, error: &io::Error) -> Refusal {
    eprintln!("storage_server: {what} data: {error}");
    let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    if is_full { Refusal::NoSpace } else { Refusal::Disk }
}

/// Opens the data file: with O_DIRECT, where the file system has it, so that the disk reads from Jet's pool.
fn open_data(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let direct = i32::try_from(OFlags::DIRECT.bits()).expect("a flag");
    match options.clone().custom_flags(direct).open(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => options.open(path),
        opened => opened,
    }
}

/// Takes room on the disk, so that no write finds it full, where the file system can do that.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes),
        reserved => Ok(reserved?),
    }
}

impl Log {
    /// Begins a log in the place of the one before. One of the two is there whenever the power is cut.
    fn begin(directory: &Path, bytes: &[u8]) -> Result<Self, StoreError> {
        let (new, path) = (directory.join("log.new"), directory.join("log"));
        let make = || -> io::Result<Self> {
            let file = File::create(&new)?;
            let bytes_max = 2 * bytes.len() as u64 + RECORDS_BYTES;
            reserve(&file, bytes_max)?;
            file.write_all_at(bytes, 0)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(directory)?.sync_all()?;
            Ok(Self { file: Arc::new(file), bytes: bytes.len() as u64, bytes_max })
        };
        make().map_err(|error| StoreError::File(path.clone(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decides on messages of one sender, each with a place, and returns what each is replied to with.
    fn decide_on(index: &mut Index, sequences: &[u64]) -> Vec<u64> {
        let mut batch = Vec::new();
        for &sequence in sequences {
            let runs = index.take(1).expect("there is room");
            batch.push(Commit { sender: 7, sequence, first: 0, runs, answer: oneshot::channel().0 });
        }
        let (records, answers) = decide(index, &mut batch);
        records.iter().for_each(|record| index.apply(record));
        answers.iter().for_each(|answer| index.give_back(&answer.unused));
        answers.iter().map(|answer| answer.version).collect()
    }

    #[test]
    fn a_message_that_two_tasks_have_takes_effect_once_and_has_one_reply() {
        let mut index = Index::new(1);
        assert_eq!(decide_on(&mut index, &[1, 2, 1]), [1, 2, 1], "in one batch");
        assert_eq!(decide_on(&mut index, &[2, 3, 1]), [2, 3, 1], "in a later one");
        // Whoever jumps ahead may have the reply to what lies below its window no more.
        assert_eq!(decide_on(&mut index, &[5000, 4, 5000]), [4, 0, 4]);
        assert_eq!(decide_on(&mut index, &[3]), [0]);
        assert_eq!(index.writers[&7].writes, 4);
        // All places but that of the one block are free again.
        assert!(index.take(SPARE_PLACES).is_ok() && index.take(1).is_err());
    }
}
