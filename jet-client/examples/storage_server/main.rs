//! A storage server: senders write blocks of 4 KiB to it, and read them. Several tokio tasks share a session.
//! io_uring writes the bytes from where the NIC put them. Each write has its effect once, whatever dies in
//! between. How to run it: docs/library.md, "A storage server". `storage_client` is a client of it.
//!
//! What it promises: a write that was replied to is on the disk. Writes that are in flight at the same time
//! take effect in any order, as those of a disk do: who wants an order waits for the reply.

mod index;
mod log;
mod protocol;
mod ring;
mod store;

use clap::Parser;
use jet_client::receive::{
    OwnedMessage, ReceiveError, RegisterError, RegisterOptions, SharedSession, SliceError,
};
use protocol::{BLOCK_BYTES, Refusal, Request, Stat, Written};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use store::{Options, Store, StoreError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use zerocopy::IntoBytes;

/// Stores the blocks that senders write, each write once. SIGTERM and SIGINT end it, after what it has begun.
#[derive(Parser)]
struct Arguments {
    /// Directory of the store; made where there is none. A new store takes the room of its blocks on the disk
    /// at once, and 64 MiB. The log takes more: some 80 bytes for each block, up to 80 KiB for each writer.
    #[arg(long)]
    store: PathBuf,
    /// The name that senders address.
    #[arg(long, default_value = "store")]
    app: String,
    /// The daemon's socket.
    #[arg(long, default_value = jet_client::receive::CONTROL_SOCKET)]
    control_socket: PathBuf,
    /// Blocks of 4 KiB of a new store [default: 65536].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(index::BLOCKS_MAX)))]
    blocks: Option<u32>,
    /// Messages that are worked on at once, each by a task.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=64))]
    tasks: u8,
    /// Reply before writes are on the disk: a power cut then loses some of them. To see what that costs.
    #[arg(long)]
    without_sync: bool,
    /// Senders that may write. The store keeps up to 16 KiB for each, for good.
    #[arg(long, default_value_t = 1024, value_parser = writers)]
    writers: usize,
    /// Seconds that a message may take to come whole.
    #[arg(long, default_value_t = 30)]
    message_s: u64,
}

/// Longest wait for what a killed server has left: its writes in flight, and its name at the daemon.
const TAKEOVER_MAX: Duration = Duration::from_secs(60);
/// Time that messages have to come whole after the server was asked to end.
const FINISH_MAX: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> ExitCode {
    // A task that panics would drop its message, and so reject it, also where its write is on the disk.
    // A process that ends leaves its messages open: they come again.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("storage_server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let (stop, stopped) = watch::channel(false);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let opening = async { open(&arguments).await };
    let (store, commits) = tokio::select! {
        opened = opening => opened?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let committing = tokio::spawn(async {
        if let Err(error) = commits.await {
            // Nobody knows which of the newest writes are on the disk. The next start reads it from there,
            // and their senders send them again. So they must not be ended, not even by being dropped.
            eprintln!("storage_server: {error}; writes whose replies are open come again after a restart");
            std::process::exit(1);
        }
    });
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        stop.send_replace(true);
        tokio::time::sleep(FINISH_MAX).await;
        eprintln!("storage_server: messages that were not done in {FINISH_MAX:?} are left open");
        std::process::exit(0);
    });
    let Some(session) = register(&arguments, stopped.clone()).await? else { return Ok(()) };
    let (blocks, version) = store.size();
    println!("storage_server: {} has {blocks} blocks and {version} writes", arguments.store.display());
    let mut tasks = JoinSet::new();
    let whole_within = Duration::from_secs(arguments.message_s);
    for _ in 0..arguments.tasks {
        tasks.spawn(serve(session.clone(), store.clone(), whole_within, stopped.clone()));
    }
    drop((session, store));
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        // A session that has ended gives each of the tasks its error.
        outcome = outcome.and(ended?);
    }
    committing.await?;
    Ok(outcome?)
}

/// Opens the store, when a killed server's writes are over.
async fn open(
    arguments: &Arguments,
) -> Result<(Store, impl Future<Output = Result<(), StoreError>> + use<>), StoreError> {
    let Arguments { blocks, writers, without_sync, .. } = *arguments;
    let options = Options { blocks, writers_max: writers, syncs: !without_sync };
    let began = Instant::now();
    loop {
        match Store::open(&arguments.store, options) {
            Err(StoreError::InUse(_)) if began.elapsed() < TAKEOVER_MAX => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            opened => return opened,
        }
    }
}

/// Registers with the daemon, when one is there and the name is free. `None`: the server is to end.
async fn register(
    arguments: &Arguments,
    mut stopped: watch::Receiver<bool>,
) -> Result<Option<SharedSession>, RegisterError> {
    let options = RegisterOptions::new(arguments.app.clone())
        .control_socket(&arguments.control_socket)
        .reconnect_for(Duration::MAX);
    let began = Instant::now();
    loop {
        match SharedSession::register(&options) {
            Err(error) if error.is_passing() && began.elapsed() < TAKEOVER_MAX => {
                let wait = tokio::time::sleep(Duration::from_millis(50));
                tokio::select! {
                    _ = stopped.wait_for(|&stopped| stopped) => return Ok(None),
                    () = wait => {}
                }
            }
            registered => return registered.map(Some),
        }
    }
}

/// Works on one message after the other, until the server is to end.
async fn serve(
    session: SharedSession,
    store: Store,
    whole_within: Duration,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), ReceiveError> {
    loop {
        let received = tokio::select! {
            biased;
            _ = stopped.wait_for(|&stopped| stopped) => return Ok(()),
            received = session.receive_async() => received,
        };
        match received {
            Ok(message) => work(message, &store, whole_within).await,
            // The other tasks hold all of the pool that the server may have, and give it back.
            Err(error @ ReceiveError::HoldsAll(_)) => eprintln!("storage_server: {error}"),
            // The session is over, or the next daemon refuses it for good.
            Err(error) => return Err(error),
        }
    }
}

/// Why a message is not done.
enum Undone {
    Refused(Refusal),
    /// Its sender took it back, or its daemon is gone: whatever ends it now, its sender does not hear of it.
    Lost,
}

impl From<Refusal> for Undone {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Does what a message asks for, and ends it.
async fn work(mut message: OwnedMessage, store: &Store, whole_within: Duration) {
    match answer(&mut message, store, whole_within).await {
        Ok(reply) => {
            if let Err(not_replied) = message.reply(&reply) {
                not_replied.message.consume();
            }
        }
        Err(Undone::Refused(refusal)) => message.reject(refusal.code()),
        Err(Undone::Lost) => {}
    }
}

async fn answer(
    message: &mut OwnedMessage,
    store: &Store,
    whole_within: Duration,
) -> Result<Vec<u8>, Undone> {
    match Request::parse(message.user_header())? {
        Request::Write { first, blocks } => {
            let (sender, sequence) = (message.sender(), message.sequence());
            let version = match write(message, store, first, blocks, whole_within).await {
                // It may have come before, and may be about to take effect.
                Err(Undone::Refused(refusal)) => store.refuse(sender, sequence, refusal).await?,
                written => written?,
            };
            Ok(Written { version: version.into() }.as_bytes().to_vec())
        }
        Request::Read { block } => {
            let read = store.read(block).await?;
            Ok(read.map_or_else(|| vec![0; BLOCK_BYTES], |block| block.0.to_vec()))
        }
        Request::Stat { sender } => {
            let (blocks, version) = store.size();
            let writes = store.writes_of(sender).into();
            let stat = Stat { blocks: (blocks as u64).into(), version: version.into(), writes };
            Ok(stat.as_bytes().to_vec())
        }
    }
}

/// Writes a message's blocks, and returns the write's version.
async fn write(
    message: &mut OwnedMessage,
    store: &Store,
    first: u64,
    blocks: u32,
    whole_within: Duration,
) -> Result<u64, Undone> {
    let deadline = tokio::time::Instant::now() + whole_within;
    if u64::from(blocks) * BLOCK_BYTES as u64 != message.bytes() {
        return Err(Refusal::WrongLength.into());
    }
    let (sender, sequence) = (message.sender(), message.sequence());
    if let Some(version) = store.version_given(sender, sequence)? {
        // It took effect before: it is only ended, with the same reply.
        return Ok(version);
    }
    let mut writing = store.begin(sender, first, blocks)?;
    loop {
        let next = tokio::time::timeout_at(deadline, message.next_async()).await;
        match next.map_err(|_| Refusal::TooSlow)? {
            // The slice is given back when it is written. So the message need not fit into the pool.
            Ok(Some(slice)) => {
                let offset = slice.offset();
                if let Err(error) = writing.write(slice.into(), offset).await {
                    fail("cannot write data", &error);
                }
            }
            Ok(None) => break,
            // As for messages: the other tasks give something back.
            Err(SliceError::HoldsAll(held)) => eprintln!("storage_server: {held}"),
            // The daemon is there, and would hear that the message is dropped.
            Err(SliceError::Receive(error @ ReceiveError::Wait(_))) => fail("cannot receive", &error),
            Err(_) => return Err(Undone::Lost),
        }
    }
    Ok(writing.commit(sender, sequence).await?)
}

/// Ends the process, where messages must not be ended: they stay open, and come again.
fn fail(what: &str, error: &dyn Error) -> ! {
    eprintln!("storage_server: {what}: {error}; messages that are open come again after a restart");
    std::process::exit(1);
}

fn writers(text: &str) -> Result<usize, String> {
    let range = 1..=index::WRITERS_MAX;
    text.parse().ok().filter(|count| range.contains(count)).ok_or_else(|| format!("1 to {}", range.end()))
}
