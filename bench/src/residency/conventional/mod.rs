//! The conventional receiver: a receiver as RDMA applications are usually written. This receiver serves the
//! same senders as Jet's receiver, over the same kind of NIC, also with two threads. One drives the NIC
//! ([`driver`]), and one reads the messages.
//!
//! [`Buffers`] decides where messages go. Either each connection has buffers of its own, as many as messages
//! may be under way on it, used in turn; or all connections share a pool. The number of READs at once may be
//! limited, as Jet limits them.
//!
//! Messages that fit a SEND lie in receive entries; larger ones are READ. The software NIC has one receive
//! queue for all connections. The entries of the connections' own buffers take turns in that queue. So all of
//! these buffers are used, as with a queue for each connection.
//!
//! The conventional receiver shares no code with Jet's receiver, only the bytes on the wire. This receiver is
//! for benchmarks only: a peer that breaks the rules ends it.

mod driver;
mod process;

pub use process::ConventionalProcess;

use super::buffers::{Buffers, Kind};
use super::touched::Marks;
use super::traffic::Shape;
use crate::rig::read_all;
use crossbeam_queue::ArrayQueue;
use driver::Driver;
use jet_fabric::Address;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::Qp;
use jet_wire::sleep::Sleeper;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Name of the memory file of a conventional receiver's buffers, as a process's mappings show it.
pub const BUFFERS: &str = "jet-buffers";
/// Time for which the thread of the NIC polls without finding anything before it sleeps, the same as in Jet's
/// reactor.
pub(super) const NIC_SPIN: Duration = Duration::from_micros(100);
/// Time for which the application's thread does, the same as in Jet's applications.
pub(super) const APPLICATION_SPIN: Duration = Duration::from_micros(200);

/// The arguments of a conventional receiver.
#[derive(Clone, Debug, clap::Args)]
pub struct ConventionalArgs {
    /// Address at which the receiver listens: shm:/path
    #[arg(long)]
    pub listen: Address,
    /// Number of connections
    #[arg(long)]
    pub connections: usize,
    /// Messages under way on each connection
    #[arg(long)]
    pub depth: usize,
    /// Bytes of each message
    #[arg(long)]
    pub message_bytes: usize,
    /// Kind of buffers for messages
    #[arg(long, value_enum)]
    pub buffers: Kind,
    /// Limit of READs at once, over all connections; by default as many as there are messages
    #[arg(long)]
    pub reads_max: Option<u32>,
    /// The core that the receiver stays on
    #[arg(long)]
    pub core: Option<u32>,
    /// File in which the receiver's application marks the pages that it reads
    #[arg(long)]
    pub touched: PathBuf,
}

impl ConventionalArgs {
    fn shape(&self) -> Shape {
        Shape { connections: self.connections, depth: self.depth, message_bytes: self.message_bytes }
    }
}

/// Most READs and most bytes of buffers that were in use at once since the last answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Most {
    /// Largest number of READs that were posted and not done at once.
    pub reads: u32,
    /// Largest number of bytes of buffers that were taken at once.
    pub buffer_bytes: usize,
}

/// Counters from which [`Most`] is taken.
#[derive(Debug, Default)]
pub struct Counting {
    reads: AtomicU32,
    buffer_bytes: AtomicUsize,
}

impl Counting {
    /// Returns the largest values since the last call, and starts again from 0.
    pub fn take(&self) -> Most {
        let reads = self.reads.swap(0, Ordering::Relaxed);
        Most { reads, buffer_bytes: self.buffer_bytes.swap(0, Ordering::Relaxed) }
    }
}

/// A message that has arrived in the receiver's buffers, or is being READ into them.
#[derive(Debug)]
struct Arrived {
    qp: Qp,
    connection: usize,
    sequence: u64,
    /// Receive entry of a message that came as a SEND, else its place among the messages that are read.
    at: u32,
    bytes: usize,
    buffers: Vec<u32>,
}

/// Queues and flags that the application's thread shares with the thread that drives the NIC.
struct Shared {
    arrived: ArrayQueue<Arrived>,
    consumed: ArrayQueue<Arrived>,
    stop: AtomicBool,
    application: Sleeper,
}

/// Runs a conventional receiver until the process is killed. Answers each line on standard input with
/// [`Most`] as a line of JSON.
///
/// # Errors
/// An error of the NIC or the system.
pub fn run_role(args: &ConventionalArgs) -> Result<(), Box<dyn Error>> {
    let counting = Arc::new(Counting::default());
    let answers = Arc::clone(&counting);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines().map_while(Result::ok) {
            jet::output::print(&format!(
                "{}\n",
                serde_json::to_string(&answers.take()).expect("two numbers")
            ));
        }
    });
    // The parent process waits for this line.
    receive(args, counting, |address| jet::output::print(&format!("{address}\n")))
}

/// Runs a conventional receiver until the NIC or the system fails. Calls `listens` with the receiver's
/// address once senders can connect.
///
/// # Errors
/// An error of the NIC or the system.
pub fn receive(
    args: &ConventionalArgs,
    counting: Arc<Counting>,
    listens: impl FnOnce(&Address),
) -> Result<(), Box<dyn Error>> {
    let shape = args.shape();
    let marks = Marks::open(&args.touched)?;
    let buffers = Buffers::new(args.buffers, shape);
    let memory = Arc::new(SharedMemory::new(BUFFERS, buffers.bytes(), true)?);
    let places = shape.connections * shape.depth;
    let shared = Arc::new(Shared {
        arrived: ArrayQueue::new(places),
        consumed: ArrayQueue::new(places),
        stop: AtomicBool::new(false),
        application: Sleeper::awake(),
    });
    let mut driver = Driver::new(shape, buffers, args.reads_max, &memory, Arc::clone(&shared), counting)?;
    let address = driver.listen(&args.listen)?;
    let application = {
        let (shared, buffer_bytes) = (Arc::clone(&shared), driver.buffer_bytes());
        std::thread::spawn(move || consume(&shared, &memory, buffer_bytes, &marks))
    };
    listens(&address);
    let result = driver.run(application.thread());
    shared.stop.store(true, Ordering::Release);
    application.thread().unpark();
    application.join().map_err(|_| "the application's thread panicked")?;
    result
}

/// Runs the receiver's application: reads every byte of the messages, in order of arrival.
fn consume(shared: &Shared, memory: &SharedMemory, buffer_bytes: usize, marks: &Marks) {
    let mut sum = 0u64;
    let mut idle_since = None;
    while !shared.stop.load(Ordering::Acquire) {
        let Some(arrived) = shared.arrived.pop() else {
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() < APPLICATION_SPIN {
                // Both threads may share a core, as Jet's threads may.
                std::thread::yield_now();
                continue;
            }
            shared.application.sleeps();
            if shared.arrived.is_empty() {
                std::thread::park();
            }
            shared.application.is_up();
            idle_since = None;
            continue;
        };
        idle_since = None;
        let mut left = arrived.bytes;
        for &buffer in &arrived.buffers {
            // SAFETY: within the buffers. The NIC has written the buffer, and writes it again only after the
            // buffer was given back.
            let bytes = unsafe {
                let first = memory.base().add(buffer as usize * buffer_bytes);
                std::slice::from_raw_parts(first, left.min(buffer_bytes))
            };
            left -= bytes.len();
            marks.mark(bytes);
            sum = sum.wrapping_add(read_all(bytes));
        }
        shared.consumed.push(arrived).expect("no more is given back than came");
    }
    std::hint::black_box(sum);
}
