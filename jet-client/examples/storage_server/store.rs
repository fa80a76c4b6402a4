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
use jet_client::exactly_once::{SeenWindow, Standing};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot};

/// Bytes of records after which the log begins anew, beside as many as its index has: so most of what is
/// written to it is records. Each batch of writes takes 4 KiB at least.
const RECORDS_BYTES: u64 = 256 << 10;
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
    /// What the log has cannot be used.
    #[error("{path} cannot be used as the log: {0}; is it the right directory?", path = .1.display())]
    Log(BadLog, PathBuf),
    /// There is data, and no log that says where.
    #[error("{path} has data, and no log beside it that says what it is; restore the log from a copy, or \
             name another directory", path = .0.display())]
    NoLog(PathBuf),
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

/// A message that is to have its end.
struct Commit {
    sender: u64,
    sequence: u64,
    wish: Wish,
    answer: oneshot::Sender<Result<u64, Refusal>>,
}

/// What a message is to end with, unless it took effect before.
enum Wish {
    /// Its bytes lie in `runs`, and are to belong to the blocks from `first` on.
    Write {
        first: u32,
        runs: Vec<Run>,
    },
    Refuse(Refusal),
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
        make_directory(directory).map_err(|error| StoreError::File(directory.into(), error))?;
        let data_path = directory.join("data");
        let data = open_data(&data_path).map_err(|error| StoreError::File(data_path.clone(), error))?;
        // The kernel keeps the file, and so its lock, for writes that a killed server has in flight. When
        // this server has the lock they are over.
        match rustix::fs::flock(&data, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::InUse(directory.into())),
            locked => locked.map_err(|errno| StoreError::File(data_path.clone(), errno.into()))?,
        }
        let log_path = directory.join("log");
        let has_data = data.metadata().map_err(|error| StoreError::File(data_path.clone(), error))?.len() > 0;
        let index = match fs::read(&log_path) {
            Ok(bytes) => {
                let (index, unfinished) = log::read(&bytes).map_err(|bad| StoreError::Log(bad, log_path))?;
                if unfinished > 0 {
                    eprintln!("storage_server: the log ends with {unfinished} bytes of an unfinished batch");
                }
                index
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if has_data {
                    return Err(StoreError::NoLog(directory.into()));
                }
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
        // A new log at each start: behind the last whole batch of the old one there may be anything. It comes
        // before the data, so that there is never data without a log.
        let log = Log::begin(directory, &log::begin(&index))?;
        let places = index.blocks.len() as u64 + u64::from(SPARE_PLACES);
        reserve(&data, places * BLOCK_BYTES as u64).map_err(|error| StoreError::File(data_path, error))?;
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

    /// Returns the version that a message's write got, if it took effect and is on the disk.
    ///
    /// # Errors
    /// [`Refusal::TooOld`].
    pub fn version_given(&self, sender: u64, sequence: u64) -> Result<Option<u64>, Refusal> {
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
            let bytes = read.map_err(|error| {
                eprintln!("storage_server: cannot read data: {error}");
                Refusal::Disk
            })?;
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
        Ok(Writing { store: self, first, runs, in_flight: false })
    }

    /// Refuses a message, unless it took effect before, or is about to: then it returns the version that the
    /// message got.
    ///
    /// # Errors
    /// The refusal.
    pub async fn refuse(&self, sender: u64, sequence: u64, refusal: Refusal) -> Result<u64, Refusal> {
        self.decide(sender, sequence, Wish::Refuse(refusal)).await
    }

    async fn decide(&self, sender: u64, sequence: u64, wish: Wish) -> Result<u64, Refusal> {
        let (answer, version) = oneshot::channel();
        // No answer: the store has failed, and the process ends. Until then nobody must hear an end.
        if self.commits.send(Commit { sender, sequence, wish, answer }).await.is_ok()
            && let Ok(version) = version.await
        {
            return version;
        }
        std::future::pending().await
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
    /// What the disk says.
    ///
    /// # Panics
    /// Where they do not lie in the blocks that the write began with.
    pub async fn write(&mut self, bytes: Bytes, offset: u64) -> io::Result<()> {
        self.in_flight = true;
        let written = self.write_to_places(bytes, offset).await;
        self.in_flight = false;
        written
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
    ///
    /// # Errors
    /// [`Refusal::TooOld`], [`Refusal::TooManyWriters`].
    pub async fn commit(mut self, sender: u64, sequence: u64) -> Result<u64, Refusal> {
        let wish = Wish::Write { first: self.first, runs: std::mem::take(&mut self.runs) };
        self.store.decide(sender, sequence, wish).await
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
        let (records, answers) = decide(&shared.lock(), shared.options.writers_max, &mut batch);
        if !records.is_empty() {
            if shared.options.syncs {
                ring.sync(data).await.map_err(failed("data"))?;
            }
            let mut bytes = Vec::new();
            log::append_batch(&mut bytes, &records);
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
            println!("storage_server: the log begins anew, with {} bytes", bytes.len());
        }
    }
    Ok(())
}

/// What a commit is told when its batch is on the disk.
struct Answer {
    answer: oneshot::Sender<Result<u64, Refusal>>,
    version: Result<u64, Refusal>,
    /// Places of a message that takes no effect.
    unused: Vec<Run>,
}

/// Decides which writes of a batch take effect, and in which order.
fn decide(index: &Index, writers_max: usize, batch: &mut Vec<Commit>) -> (Vec<Record>, Vec<Answer>) {
    let (mut records, mut answers) = (Vec::new(), Vec::new());
    // What is seen when the records so far have taken effect. A message may be in one batch twice, when it
    // came again by way of another daemon.
    let mut windows: HashMap<u64, SeenWindow> = HashMap::new();
    let mut given = HashMap::new();
    let mut new_writers = HashSet::new();
    for Commit { sender, sequence, wish, answer } in batch.drain(..) {
        let known = || index.writers.get(&sender).map_or_else(SeenWindow::new, |writer| writer.seen.clone());
        let window = windows.entry(sender).or_insert_with(known);
        let has_room = index.writers.contains_key(&sender)
            || new_writers.contains(&sender)
            || index.writers.len() + new_writers.len() < writers_max;
        let mut unused = Vec::new();
        let version = match (window.standing(sequence), wish) {
            (Standing::New, Wish::Write { first, runs }) if has_room => {
                window.mark(sequence);
                if !index.writers.contains_key(&sender) {
                    new_writers.insert(sender);
                }
                let version = index.version + 1 + records.len() as u64;
                given.insert((sender, sequence), version);
                records.push(Record { version, sender, sequence, first, runs });
                Ok(version)
            }
            (standing, wish) => {
                let refusal = match wish {
                    Wish::Refuse(refusal) => refusal,
                    Wish::Write { runs, .. } => {
                        unused = runs;
                        Refusal::TooManyWriters
                    }
                };
                match (standing, given.get(&(sender, sequence))) {
                    (Standing::New, _) => Err(refusal),
                    (Standing::Seen, Some(&version)) => Ok(version),
                    (Standing::Seen, None) => {
                        index.version_given(sender, sequence).and_then(|known| known.ok_or(Refusal::TooOld))
                    }
                    (Standing::TooOld, _) => Err(Refusal::TooOld),
                }
            }
        };
        answers.push(Answer { answer, version, unused });
    }
    (records, answers)
}

/// Makes a directory, and those that it lies in, so that all of them are there after a power cut.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_directory(above)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    File::open(above)?.sync_all()
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

    /// Decides on messages of a sender, each with a place, and returns what each is replied to with.
    fn decide_on(index: &mut Index, sender: u64, sequences: &[u64]) -> Vec<Result<u64, Refusal>> {
        let mut batch = Vec::new();
        for &sequence in sequences {
            let wish = Wish::Write { first: 0, runs: index.take(1).expect("there is room") };
            batch.push(Commit { sender, sequence, wish, answer: oneshot::channel().0 });
        }
        decide_batch(index, batch)
    }

    fn decide_batch(index: &mut Index, mut batch: Vec<Commit>) -> Vec<Result<u64, Refusal>> {
        let (records, answers) = decide(index, 2, &mut batch);
        records.iter().for_each(|record| index.apply(record));
        answers.iter().for_each(|answer| index.give_back(&answer.unused));
        answers.iter().map(|answer| answer.version).collect()
    }

    #[tokio::test]
    async fn data_without_its_log_is_no_new_store() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, options) = (directory.path().join("a/b"), Options { blocks: Some(1), ..OPTIONS });
        let (store, commits) = match Store::open(&path, options) {
            // Where this is forbidden, there is no store at all.
            Err(StoreError::Ring(_)) => return,
            opened => opened.expect("a new store"),
        };
        assert_eq!(store.size(), (1, 0));
        drop((store, commits));
        open_again(&path, options).await.expect("it is there");
        fs::remove_file(path.join("log")).expect("there is one");
        assert!(matches!(open_again(&path, options).await, Err(StoreError::NoLog(_))));
        assert!(!path.join("log").exists());
    }

    /// Opens a store. The ring of the one before may keep the data file for a moment.
    async fn open_again(path: &Path, options: Options) -> Result<(), StoreError> {
        loop {
            match Store::open(path, options) {
                Err(StoreError::InUse(_)) => tokio::task::yield_now().await,
                opened => return opened.map(drop),
            }
        }
    }

    const OPTIONS: Options = Options { blocks: None, writers_max: 1, syncs: true };

    #[test]
    fn a_message_that_two_tasks_have_takes_effect_once_and_has_one_reply() {
        let mut index = Index::new(1);
        assert_eq!(decide_on(&mut index, 7, &[1, 2, 1]), [Ok(1), Ok(2), Ok(1)], "in one batch");
        assert_eq!(decide_on(&mut index, 7, &[2, 3, 1]), [Ok(2), Ok(3), Ok(1)], "in a later one");
        // Nobody is told that a write took effect of which that is not known.
        let too_old = Err(Refusal::TooOld);
        assert_eq!(decide_on(&mut index, 7, &[5000, 4, 5000, 0]), [Ok(4), too_old, Ok(4), too_old]);
        assert_eq!(decide_on(&mut index, 7, &[3]), [too_old]);
        assert_eq!(index.writers[&7].writes, 4);
        // A message that is refused after it took effect, or is about to, is not.
        let refuse = |sequence| {
            let answer = oneshot::channel().0;
            Commit { sender: 7, sequence, wish: Wish::Refuse(Refusal::TooSlow), answer }
        };
        let wish = Wish::Write { first: 0, runs: index.take(1).expect("there is room") };
        let written = Commit { sender: 7, sequence: 5001, wish, answer: oneshot::channel().0 };
        let batch = vec![refuse(5000), written, refuse(5001), refuse(5002)];
        assert_eq!(decide_batch(&mut index, batch), [Ok(4), Ok(5), Ok(5), Err(Refusal::TooSlow)]);
        assert_eq!(decide_on(&mut index, 7, &[5002]), [Ok(6)], "it may come again");
        // Only writes that take effect take a writer's place.
        assert_eq!(decide_on(&mut index, 8, &[0, 1]), [too_old, Ok(7)]);
        assert_eq!(decide_on(&mut index, 9, &[1]), [Err(Refusal::TooManyWriters)]);
        assert_eq!(index.writers.len(), 2);
        // All places but that of the one block are free again.
        assert!(index.take(SPARE_PLACES).is_ok() && index.take(1).is_err());
    }
}
