//! An application under load, called a consumer: takes messages, inspects their bytes, and gives slices back
//! at once or late.
//!
//! A consumer runs step by step in a benchmark's own thread. A consumer also runs as a process of its own,
//! which takes orders on its standard input.

use crate::pattern::{self, Words};
use crate::rig::read_all;
use jet_client::receive::{
    DetachedMessage, DetachedSlice, Message, ReceiveError, RegisterError, RegisterOptions, Session,
    SliceError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Messages that one step takes at most.
const STEP_MESSAGES: u32 = 32;
/// Time for which a consumer's process polls without finding anything before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// Limit of slices that a consumer holds at once: as many as a session may hold altogether, so that the list
/// of held slices never grows.
const HELD_MAX: usize = 1024;

/// Messages that a consumer has room for at once: as many as the daemon reads at once.
const CURRENT_MAX: usize = 64;

/// Way in which a consumer inspects the bytes of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Reading {
    /// The consumer does not inspect the bytes.
    #[default]
    Nothing,
    /// Reads all bytes.
    Read,
    /// Checks that the first word of each slab is the message's own.
    FirstOfSlab,
    /// Checks that every word is the message's own.
    Every,
}

/// Behaviour of a consumer: how it inspects bytes, which slices it holds, and its pace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behaviour {
    /// Inspection of each message's bytes.
    pub reading: Reading,
    /// The consumer holds one slice in this many, and releases the others at once; 0: it holds none.
    pub hold_one_in: u32,
    /// Time for which a consumer holds a slice that it does not release at once.
    pub hold: Duration,
    /// Least time between two messages.
    pub pace: Duration,
    /// The consumer takes the parts of all messages as they come, and not one message after the other. It
    /// then sleeps while several messages have arrived in part.
    pub side_by_side: bool,
}

/// Totals of the messages that a consumer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Messages that were taken whole.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Sum of these messages' fingerprints, see [`pattern::fingerprint`].
    pub fingerprint: u64,
    /// Messages with bytes that belong to another message or place.
    pub damaged: u64,
    /// Messages that the daemon withdrew, as it does when a sender is gone.
    pub withdrawn: u64,
}

/// A message that has arrived only in part.
struct Current {
    message: DetachedMessage,
    intact: bool,
}

/// A session with a daemon, and what the application does with the session's messages.
pub struct Consumer {
    session: Session,
    behaviour: Behaviour,
    /// Messages that have arrived in part; one at most, unless they are taken side by side.
    current: VecDeque<Current>,
    /// Slices that the consumer holds, in the order of their release times.
    held: VecDeque<(Instant, DetachedSlice)>,
    slices: u64,
    taken: Taken,
    next_message: Instant,
    sum: u64,
}

impl Consumer {
    /// Registers an application with the daemon.
    ///
    /// # Errors
    /// The daemon's refusal, or an error of the connection.
    pub fn register(control_socket: &Path, app: &str, behaviour: Behaviour) -> Result<Self, RegisterError> {
        let options = RegisterOptions::new(app).control_socket(control_socket);
        Ok(Self {
            session: Session::register(&options)?,
            behaviour,
            current: VecDeque::with_capacity(CURRENT_MAX),
            held: VecDeque::with_capacity(HELD_MAX),
            slices: 0,
            taken: Taken::default(),
            next_message: Instant::now(),
            sum: 0,
        })
    }

    /// Returns the totals so far.
    pub fn taken(&self) -> Taken {
        self.taken
    }

    /// Returns the session, for a caller that waits on it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Changes the consumer's behaviour. Slices that the consumer holds already keep their release times.
    pub fn behave(&mut self, behaviour: Behaviour) {
        self.behaviour = behaviour;
    }

    /// Returns whether the consumer holds neither slices nor a part of a message.
    pub fn is_empty_handed(&self) -> bool {
        self.held.is_empty() && self.current.is_empty()
    }

    /// Releases the held slices whose time has come, and takes a bounded number of messages. Returns `false`
    /// if there was nothing to do.
    ///
    /// # Errors
    /// [`ReceiveError`]: the session is over.
    pub fn step(&mut self, now: Instant) -> Result<bool, ReceiveError> {
        self.step_with(now, &mut |_| {})
    }

    /// Does the same as [`Self::step`], and calls `whole` for each message that has arrived whole.
    ///
    /// # Errors
    /// [`ReceiveError`]: the session is over.
    pub fn step_with(
        &mut self,
        now: Instant,
        whole: &mut impl FnMut(&Message<'_>),
    ) -> Result<bool, ReceiveError> {
        let mut worked = false;
        while self.held.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, slice)) = self.held.pop_front() else { break };
            self.session.release(slice);
            worked = true;
        }
        for _ in 0..STEP_MESSAGES {
            if !self.behaviour.pace.is_zero() && self.current.is_empty() && now < self.next_message {
                // A poll for messages also publishes what was released. Here there is no such poll.
                self.session.flush();
                break;
            }
            if !self.take(now, whole)? {
                break;
            }
            worked = true;
        }
        Ok(worked)
    }

    /// Takes the slices that have arrived of the current messages, or of the next message. Returns `false` if
    /// there were none.
    fn take(&mut self, now: Instant, whole: &mut impl FnMut(&Message<'_>)) -> Result<bool, ReceiveError> {
        let mut worked = false;
        let current = self.current.len();
        for _ in 0..current {
            worked |= self.take_one(false, now, whole)?;
        }
        if current == 0 || self.behaviour.side_by_side {
            worked |= self.take_one(true, now, whole)?;
        }
        Ok(worked)
    }

    /// Takes the slices that have arrived of the message that has waited longest, or of the next message.
    fn take_one(
        &mut self,
        next: bool,
        now: Instant,
        whole: &mut impl FnMut(&Message<'_>),
    ) -> Result<bool, ReceiveError> {
        let Self { session, behaviour, current, held, slices, taken, next_message, sum } = self;
        let of_current = if next { None } else { current.pop_front() };
        let (mut message, mut intact) = match of_current {
            Some(Current { message, intact }) => (session.attach(message), intact),
            None => match session.try_receive() {
                Err(ReceiveError::NotYet) => return Ok(false),
                received => (received?, true),
            },
        };
        let (sender, tag) = (message.sender(), message.tag());
        let mut worked = false;
        loop {
            match message.try_next() {
                Ok(Some(slice)) => {
                    worked = true;
                    match behaviour.reading {
                        Reading::Nothing => {}
                        Reading::Read => *sum = sum.wrapping_add(read_all(&slice)),
                        Reading::FirstOfSlab => {
                            intact &=
                                pattern::is_intact(Words::FirstOfSlab, sender, tag, slice.offset(), &slice);
                        }
                        Reading::Every => {
                            intact &= pattern::is_intact(Words::Every, sender, tag, slice.offset(), &slice);
                        }
                    }
                    *slices += 1;
                    let hold = behaviour.hold_one_in > 0
                        && slices.is_multiple_of(u64::from(behaviour.hold_one_in))
                        && held.len() < HELD_MAX;
                    if hold {
                        held.push_back((now + behaviour.hold, slice.detach()));
                    }
                }
                Ok(None) => {
                    taken.messages += 1;
                    taken.bytes += message.bytes();
                    taken.fingerprint = taken.fingerprint.wrapping_add(pattern::fingerprint(sender, tag));
                    taken.damaged += u64::from(!intact);
                    *next_message = now + behaviour.pace;
                    whole(&message);
                    drop(message);
                    std::hint::black_box(&*sum);
                    return Ok(true);
                }
                Err(SliceError::NotYet) => {
                    current.push_back(Current { message: message.detach(), intact });
                    return Ok(worked);
                }
                Err(SliceError::Receive(error)) => return Err(error),
                Err(_) => {
                    taken.withdrawn += 1;
                    drop(message);
                    return Ok(true);
                }
            }
        }
    }

    /// Returns the time at which the consumer must act even if no message arrives.
    fn due(&self) -> Option<Instant> {
        let paced = (!self.behaviour.pace.is_zero()).then_some(self.next_message);
        [self.held.front().map(|(due, _)| *due), paced].into_iter().flatten().min()
    }
}

/// Order to a consumer's process, a line of JSON on its standard input. The process answers each with a
/// [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Sends a report and changes nothing.
    Report,
    /// Stops reading messages; slices that are held stay held.
    Stop,
    /// Goes on reading messages after [`Order::Stop`].
    Go,
}

/// Report of a consumer's process, a line of JSON on its standard output. The process sends the first report
/// after it has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Totals of the messages taken.
    pub taken: Taken,
    /// Whether the consumer reads messages now, and was not ordered to stop.
    pub reads: bool,
}

/// A consumer as a process.
#[derive(clap::Args)]
pub struct ConsumerArgs {
    /// The daemon's socket
    #[arg(long)]
    control_socket: PathBuf,
    /// The application's name
    #[arg(long)]
    app: String,
    /// What the application does with the bytes of messages
    #[arg(long, value_enum, default_value_t)]
    reading: Reading,
    /// Hold one slice in this many; 0: none
    #[arg(long, default_value_t = 0)]
    hold_one_in: u32,
    /// Hold such a slice for this many microseconds
    #[arg(long, default_value_t = 0)]
    hold_us: u64,
    /// Leave at least this many microseconds between two messages
    #[arg(long, default_value_t = 0)]
    pace_us: u64,
    /// Take the parts of all messages as they come, and not one message after the other
    #[arg(long)]
    side_by_side: bool,
}

/// Runs a consumer until standard input ends.
///
/// # Errors
/// An error of the daemon or the system.
pub fn run_role(args: &ConsumerArgs) -> Result<(), Box<dyn std::error::Error>> {
    let behaviour = Behaviour {
        reading: args.reading,
        hold_one_in: args.hold_one_in,
        hold: Duration::from_micros(args.hold_us),
        pace: Duration::from_micros(args.pace_us),
        side_by_side: args.side_by_side,
    };
    let mut consumer = Consumer::register(&args.control_socket, &args.app, behaviour)?;
    let mut orders = Orders { line: Vec::with_capacity(64) };
    let mut reads = true;
    report(&consumer, reads)?;
    let mut idle_since: Option<Instant> = None;
    loop {
        let now = Instant::now();
        let worked = reads && consumer.step(now)?;
        if worked {
            idle_since = None;
        }
        let spins = reads && (worked || now.duration_since(*idle_since.get_or_insert(now)) < SPIN);
        let sleeps = !spins && (!reads || consumer.session.prepare_sleep()?);
        if !wait(&consumer, reads, sleeps)? {
            continue;
        }
        let Some(received) = orders.take()? else { return Ok(()) };
        for order in received {
            match order {
                Order::Report => {}
                Order::Stop => reads = false,
                Order::Go => reads = true,
            }
            report(&consumer, reads)?;
        }
    }
}

/// Returns whether orders wait on standard input. If `sleeps`, this function first sleeps until an order or a
/// message arrives, or the consumer has something to do.
fn wait(consumer: &Consumer, reads: bool, sleeps: bool) -> io::Result<bool> {
    let left = match (sleeps, reads, consumer.due()) {
        (false, ..) => Some(Duration::ZERO),
        (true, true, Some(due)) => Some(due.saturating_duration_since(Instant::now())),
        // No time limit.
        (true, ..) => None,
    };
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&consumer.session, PollFlags::IN)];
    // Messages must not wake a consumer that does not read.
    let watched = if reads && sleeps { &mut fds[..] } else { &mut fds[..1] };
    match poll(watched, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!fds[0].revents().is_empty()),
        Err(error) => Err(error.into()),
    }
}

fn report(consumer: &Consumer, reads: bool) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Report { taken: consumer.taken(), reads })?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// Reader of orders: holds the bytes read from standard input that are not a whole line yet.
struct Orders {
    line: Vec<u8>,
}

impl Orders {
    /// Reads the orders that have arrived; `None`: standard input has ended. Call it when standard input is
    /// readable.
    fn take(&mut self) -> io::Result<Option<Vec<Order>>> {
        let mut bytes = [0; 256];
        // Reads the descriptor itself: `poll` would not see what a buffer holds.
        let read = rustix::io::read(io::stdin().as_fd(), &mut bytes)?;
        if read == 0 {
            return Ok(None);
        }
        self.line.extend_from_slice(&bytes[..read]);
        let mut orders = Vec::new();
        while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
            orders.push(serde_json::from_slice(&self.line[..end])?);
            self.line.drain(..=end);
        }
        Ok(Some(orders))
    }
}

/// Reads one report, a line of JSON, from a consumer's process.
///
/// # Errors
/// An error of the system, the end of the process, or a line that is no report.
pub fn read_report(from: &mut impl Read) -> io::Result<Report> {
    let mut line = Vec::with_capacity(256);
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            return Ok(serde_json::from_slice(&line)?);
        }
        line.push(byte[0]);
    }
}
