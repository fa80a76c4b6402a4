//! An application's end of a load: takes what comes, looks at it, gives it back at once or late.
//!
//! It runs in a benchmark's own thread, step by step, or as a process of its own that is told when to stop.

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
use std::task::Poll;
use std::time::{Duration, Instant};

/// Messages that one step takes.
const STEP_MESSAGES: u32 = 32;
/// How long the process polls in vain before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// Slices held at once: what a session may hold altogether, so that the list never grows.
const HELD_MAX: usize = 1024;

/// What a consumer does with the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Look {
    /// Nothing.
    #[default]
    Nothing,
    /// Reads all of them.
    Read,
    /// Checks the first word of each slab.
    FirstOfSlab,
    /// Checks every word.
    Every,
}

/// How a consumer behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behaviour {
    /// What it does with the bytes.
    pub look: Look,
    /// One slice in so many is held; 0: none.
    pub hold_one_in: u32,
    /// For so long.
    pub hold: Duration,
    /// The least time between two messages.
    pub pace: Duration,
}

/// What a consumer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Messages that it had whole.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The sum of their fingerprints, see [`pattern::fingerprint`].
    pub fingerprint: u64,
    /// Messages with bytes that are not theirs.
    pub damaged: u64,
    /// Messages that the daemon took back, as it does when a sender is gone.
    pub withdrawn: u64,
}

/// A message of which not all came yet.
struct Current {
    message: DetachedMessage,
    intact: bool,
}

/// A session and what is done with what comes.
pub struct Consumer {
    session: Session,
    behaviour: Behaviour,
    current: Option<Current>,
    /// In order of the time to release them.
    held: VecDeque<(Instant, DetachedSlice)>,
    slices: u64,
    taken: Taken,
    next_message: Instant,
    sum: u64,
}

impl Consumer {
    /// Registers an application.
    ///
    /// # Errors
    /// What the daemon says.
    pub fn register(control_socket: &Path, app: &str, behaviour: Behaviour) -> Result<Self, RegisterError> {
        let options =
            RegisterOptions { control_socket: control_socket.to_owned(), ..RegisterOptions::new(app) };
        Ok(Self {
            session: Session::register(&options)?,
            behaviour,
            current: None,
            held: VecDeque::with_capacity(HELD_MAX),
            slices: 0,
            taken: Taken::default(),
            next_message: Instant::now(),
            sum: 0,
        })
    }

    /// What it took so far.
    pub fn taken(&self) -> Taken {
        self.taken
    }

    /// Its session, to be waited on.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Behaves otherwise from now on; what is held is held for as long as was said before.
    pub fn behave(&mut self, behaviour: Behaviour) {
        self.behaviour = behaviour;
    }

    /// Whether it holds nothing.
    pub fn is_empty_handed(&self) -> bool {
        self.held.is_empty() && self.current.is_none()
    }

    /// Gives back what is due and takes what came, a bounded amount; `false`: there was nothing to do.
    ///
    /// # Errors
    /// [`ReceiveError`], final.
    pub fn step(&mut self, now: Instant) -> Result<bool, ReceiveError> {
        self.step_telling(now, &mut |_| {})
    }

    /// As [`Self::step`], and tells of each message that it has whole.
    ///
    /// # Errors
    /// [`ReceiveError`], final.
    pub fn step_telling(
        &mut self,
        now: Instant,
        tell: &mut impl FnMut(&Message<'_>),
    ) -> Result<bool, ReceiveError> {
        let mut worked = false;
        while self.held.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, slice)) = self.held.pop_front() else { break };
            self.session.release(slice);
            worked = true;
        }
        for _ in 0..STEP_MESSAGES {
            if !self.behaviour.pace.is_zero() && self.current.is_none() && now < self.next_message {
                // What was released shows at the next look for messages; here there is none.
                self.session.flush();
                break;
            }
            if !self.take(now, tell)? {
                break;
            }
            worked = true;
        }
        Ok(worked)
    }

    /// Takes what came of one message; `false`: nothing came.
    fn take(&mut self, now: Instant, tell: &mut impl FnMut(&Message<'_>)) -> Result<bool, ReceiveError> {
        let Self { session, behaviour, current, held, slices, taken, next_message, sum } = self;
        let (mut message, mut intact) = match current.take() {
            Some(Current { message, intact }) => (session.attach(message), intact),
            None => match session.try_receive()? {
                Some(message) => (message, true),
                None => return Ok(false),
            },
        };
        let (sender, tag) = (message.sender(), message.tag());
        let mut worked = false;
        loop {
            match message.try_next() {
                Ok(Poll::Ready(Some(slice))) => {
                    worked = true;
                    match behaviour.look {
                        Look::Nothing => {}
                        Look::Read => *sum = sum.wrapping_add(read_all(&slice)),
                        Look::FirstOfSlab => {
                            intact &=
                                pattern::is_intact(Words::FirstOfSlab, sender, tag, slice.offset(), &slice);
                        }
                        Look::Every => {
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
                Ok(Poll::Ready(None)) => {
                    taken.messages += 1;
                    taken.bytes += message.bytes();
                    taken.fingerprint = taken.fingerprint.wrapping_add(pattern::fingerprint(sender, tag));
                    taken.damaged += u64::from(!intact);
                    *next_message = now + behaviour.pace;
                    tell(&message);
                    drop(message);
                    std::hint::black_box(&*sum);
                    return Ok(true);
                }
                Ok(Poll::Pending) => {
                    *current = Some(Current { message: message.detach(), intact });
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

    /// When something is to be done though nothing comes.
    fn due(&self) -> Option<Instant> {
        let paced = (!self.behaviour.pace.is_zero()).then_some(self.next_message);
        [self.held.front().map(|(due, _)| *due), paced].into_iter().flatten().min()
    }
}

/// What the process of a consumer is told, a line each on its standard input. It answers each with a
/// [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Nothing: only the answer.
    Report,
    /// Read nothing from now on. What it holds it keeps.
    Stop,
    /// Go on.
    Go,
}

/// What the process of a consumer answers, as a line of JSON on its standard output; the first when it is
/// registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What it took.
    pub taken: Taken,
    /// Whether it reads.
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
    /// What it does with the bytes
    #[arg(long, value_enum, default_value_t)]
    look: Look,
    /// Hold one slice in so many; 0: none
    #[arg(long, default_value_t = 0)]
    hold_one_in: u32,
    /// Hold it for so many microseconds
    #[arg(long, default_value_t = 0)]
    hold_us: u64,
    /// Take a message every so many microseconds at most
    #[arg(long, default_value_t = 0)]
    pace_us: u64,
}

/// Lives as a consumer until standard input ends.
///
/// # Errors
/// What the daemon or the system says.
pub fn live(args: &ConsumerArgs) -> Result<(), Box<dyn std::error::Error>> {
    let behaviour = Behaviour {
        look: args.look,
        hold_one_in: args.hold_one_in,
        hold: Duration::from_micros(args.hold_us),
        pace: Duration::from_micros(args.pace_us),
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

/// Looks whether there are orders; sleeps before, where it may, until there are, a message came or something
/// is due.
fn wait(consumer: &Consumer, reads: bool, sleeps: bool) -> io::Result<bool> {
    let left = match (sleeps, reads, consumer.due()) {
        (false, ..) => Some(Duration::ZERO),
        (true, true, Some(due)) => Some(due.saturating_duration_since(Instant::now())),
        // Without end.
        (true, ..) => None,
    };
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&consumer.session, PollFlags::IN)];
    // Who does not read is not to be woken by messages.
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

/// The orders so far, as bytes of lines.
struct Orders {
    line: Vec<u8>,
}

impl Orders {
    /// The orders that came; `None`: there will be no more. To be called when standard input is readable.
    fn take(&mut self) -> io::Result<Option<Vec<Order>>> {
        let mut bytes = [0; 256];
        // The descriptor itself: a buffer between would hide from `poll` what it has.
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

/// Reads one line of JSON: a report.
///
/// # Errors
/// What the system says, or that the process ended or answered something else.
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
