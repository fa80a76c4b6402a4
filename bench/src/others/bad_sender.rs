//! The bad sender: a process that keeps a number of large messages outstanding, and what stands between it
//! and the daemon.

use super::proxy::Proxy;
use super::{LIMIT, Nothing};
use crate::ordered_process::{OrderedProcess, answer};
use crate::pattern::{self, Words};
use crate::processor_time;
use crate::rig::{self, Rig};
use crate::send_loop::{busy_only, wait, written_buffers};
use jet_client::send::{AckStatus, Completion, Envelope, SendBuffer, Sender, SenderOptions};
use jet_fabric::Address;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::{self, BufRead};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// Limit of one wait, after which the process looks for orders.
const WAIT: Duration = Duration::from_millis(10);

/// Arguments of a bad sender's process.
#[derive(clap::Args)]
pub struct BadSenderArgs {
    /// Address to connect to
    #[arg(long)]
    to: Address,
    /// The application that the messages are for
    #[arg(long)]
    app: String,
    /// Bytes of each message
    #[arg(long)]
    bytes: usize,
    /// Messages that are outstanding at once
    #[arg(long)]
    depth: usize,
    /// Admission class of the messages
    #[arg(long)]
    class: u8,
}

/// Order to a bad sender's process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// Keeps messages outstanding from now on; there is no answer.
    Go,
    /// Answers with the ends so far.
    Report,
    /// Sends no further messages, and answers with the ends when all messages have one.
    Drain,
}

/// Ends of a sender's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// Messages that were sent.
    pub sent: u64,
    /// Messages that ended as consumed.
    pub consumed: u64,
    /// Bytes of the consumed messages.
    pub bytes: u64,
    /// Sum of the consumed messages' fingerprints, see [`pattern::fingerprint`].
    pub fingerprint: u64,
    /// Messages that ended otherwise.
    pub otherwise: u64,
}

impl Ends {
    /// Notes the end of a message.
    pub fn note(&mut self, sender: u64, completion: &Completion, bytes: usize) {
        if completion.status == AckStatus::Consumed {
            self.consumed += 1;
            self.bytes += bytes as u64;
            // The tag of a message is its sequence number.
            let fingerprint = pattern::fingerprint(sender, completion.ticket.0);
            self.fingerprint = self.fingerprint.wrapping_add(fingerprint);
        } else {
            self.otherwise += 1;
        }
    }

    /// Adds the ends of another sender.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.consumed += other.consumed;
        self.bytes += other.bytes;
        self.fingerprint = self.fingerprint.wrapping_add(other.fingerprint);
        self.otherwise += other.otherwise;
    }
}

/// Messages that a bad sender keeps outstanding.
#[derive(Clone, Copy, Debug)]
pub struct Outstanding {
    /// Bytes of each message.
    pub bytes: usize,
    /// Number of messages.
    pub depth: usize,
    /// Admission class of the messages.
    pub class: u8,
}

/// What makes a sender bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its bytes pass at this rate, in bytes a second.
    Behind(u64),
    /// It is stopped by SIGSTOP once its requests are out, over `tcp:` before it has answered a READ.
    Stopped,
}

/// A bad sender, over `tcp:` with its proxy. Its processes end when this handle is dropped.
pub struct BadSender {
    // In the order in which they end.
    process: OrderedProcess,
    proxy: Option<Proxy>,
    app: String,
    outstanding: Outstanding,
    is_stopped: bool,
}

impl BadSender {
    /// Starts a bad sender to an application of the rig, over `fabric`, and waits until it is connected. The
    /// sender does nothing until [`Self::begin`].
    ///
    /// # Errors
    /// An error of the rig, the system or the sender.
    pub fn start(rig: &Rig, fabric: &str, app: &str, outstanding: Outstanding) -> io::Result<Self> {
        let address = rig.address_over(fabric)?;
        let proxy = match &address {
            Address::Tcp(host_and_port) => Some(Proxy::start(host_and_port)?),
            _ => None,
        };
        let to = proxy.as_ref().map_or(address, Proxy::address);
        let mut command = rig::role("bad-sender")?;
        command
            .args(["--to", &to.to_string(), "--app", app])
            .arg(format!("--bytes={}", outstanding.bytes))
            .arg(format!("--depth={}", outstanding.depth))
            .arg(format!("--class={}", outstanding.class));
        let mut process = OrderedProcess::start(command)?;
        let Nothing {} = process.hear()?;
        Ok(Self { process, proxy, app: app.to_owned(), outstanding, is_stopped: false })
    }

    /// Lets the sender send, and waits until its requests are out. From then on it behaves as `fault` says.
    ///
    /// # Errors
    /// An error of the processes, or that the requests did not get out.
    pub fn begin(&mut self, rig: &Rig, fault: Fault) -> io::Result<()> {
        self.process.tell(&Order::Go)?;
        match self.proxy {
            Some(_) => self.until_requested(rig)?,
            // Over `shm:` the daemon reads without the sender. A sender in full flow has its requests out.
            None => self.until_flowing()?,
        }
        if fault == Fault::Stopped {
            self.process.child.stop()?;
            self.is_stopped = true;
        }
        let rate = if let Fault::Behind(rate) = fault { rate } else { 0 };
        self.proxy.as_mut().map_or(Ok(()), |proxy| proxy.release(rate))
    }

    /// Waits until the daemon has every request.
    fn until_requested(&mut self, rig: &Rig) -> io::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            let peers = rig.status()?.rows.peers;
            let unfinished: u32 =
                peers.iter().filter(|peer| peer.app == self.app).map(|peer| peer.unfinished).sum();
            if unfinished as usize == self.outstanding.depth {
                return Ok(());
            }
            if let Some(status) = self.process.child.ended()? {
                return Err(io::Error::other(format!("the bad sender ended: {status}")));
            }
        }
        Err(io::Error::other(format!("waited {LIMIT:?} for the bad sender's requests")))
    }

    /// Waits until as many messages have ended as are outstanding at once.
    fn until_flowing(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            let ends: Ends = self.process.ask(&Order::Report)?;
            if ends.consumed >= self.outstanding.depth as u64 {
                return Ok(());
            }
        }
        Err(io::Error::other("the bad sender's messages do not end even while it is not bad"))
    }

    /// Takes away what makes the sender bad, so that its messages end. Waits for none of them.
    ///
    /// # Errors
    /// An error of the processes.
    pub fn relent(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_stopped) {
            self.process.child.signal(Signal::CONT)?;
        }
        self.proxy.as_mut().map_or(Ok(()), |proxy| proxy.release(0))?;
        self.process.tell(&Order::Drain)
    }

    /// Waits until all messages have ended, after [`Self::relent`], and ends the sender.
    ///
    /// # Errors
    /// An error of the processes.
    pub fn finish(mut self) -> io::Result<Ends> {
        self.process.hear()
    }

    /// Returns the processor time that the sender and its proxy have used so far.
    ///
    /// # Errors
    /// One of the processes is gone.
    pub fn processor_time(&self) -> io::Result<Duration> {
        let proxy = self.proxy.as_ref().map_or(Ok(Duration::ZERO), |proxy| processor_time::of(proxy.id()))?;
        Ok(processor_time::of(self.process.child.id())? + proxy)
    }
}

/// State of a bad sender in its process.
struct Sending {
    sender: Sender,
    outstanding: Outstanding,
    free: Vec<SendBuffer>,
    ends: Ends,
}

impl Sending {
    fn connect(args: &BadSenderArgs) -> Result<Self, Box<dyn Error>> {
        let &BadSenderArgs { ref to, ref app, bytes, depth, class } = args;
        let options = SenderOptions::new(to.clone(), app.clone())
            .in_flight_max(u32::try_from(depth)?)
            .window_bytes((bytes * depth) as u64)
            .region_bytes(bytes * depth)
            .connect_timeout(LIMIT)
            .retry(busy_only());
        let mut sender = Sender::connect(&options)?;
        let free = written_buffers(&mut sender, bytes, depth)?;
        Ok(Self { sender, outstanding: Outstanding { bytes, depth, class }, free, ends: Ends::default() })
    }

    fn in_flight(&self) -> usize {
        self.outstanding.depth - self.free.len()
    }

    fn submit(&mut self) -> Result<(), Box<dyn Error>> {
        let class = self.outstanding.class;
        while let Some(mut buffer) = self.free.pop() {
            let tag = self.ends.sent + 1;
            pattern::write(Words::Every, self.sender.id(), tag, &mut buffer);
            match self.sender.send(Envelope::new(tag).class(class), buffer) {
                Ok(ticket) if ticket.0 == tag => self.ends.sent += 1,
                Ok(ticket) => return Err(format!("message {tag} has the sequence {}", ticket.0).into()),
                Err(not_sent) if not_sent.is_would_block() => {
                    self.free.push(not_sent.buffer);
                    break;
                }
                Err(not_sent) => return Err(not_sent.into()),
            }
        }
        self.sender.flush();
        Ok(())
    }

    fn take(&mut self, completion: Completion) {
        self.ends.note(self.sender.id(), &completion, self.outstanding.bytes);
        self.free.extend(completion.buffer);
    }
}

/// Runs a bad sender until standard input ends.
///
/// # Errors
/// An error of the sender or the system.
pub fn run_role(args: &BadSenderArgs) -> Result<(), Box<dyn Error>> {
    let mut sending = Sending::connect(args)?;
    answer(&Nothing {})?;
    let (orders, received) = mpsc::channel::<io::Result<Order>>();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let order = line.and_then(|line| Ok(serde_json::from_str(&line)?));
            if orders.send(order).is_err() {
                return;
            }
        }
    });
    let (mut sends, mut drains) = (false, false);
    loop {
        let order = if sending.in_flight() > 0 {
            received.try_recv().map_err(|error| error == TryRecvError::Disconnected)
        } else {
            // The daemon may recall credit meanwhile.
            while let Some(completion) = sending.sender.poll() {
                sending.take(completion);
            }
            received.recv_timeout(WAIT).map_err(|error| error == RecvTimeoutError::Disconnected)
        };
        match order {
            Ok(order) => match order? {
                Order::Go => sends = true,
                Order::Report => answer(&sending.ends)?,
                Order::Drain => (sends, drains) = (false, true),
            },
            Err(true) => return Ok(()),
            Err(false) => {}
        }
        if sends {
            sending.submit()?;
        }
        if let Some(completion) = wait(&mut sending.sender, WAIT)? {
            sending.take(completion);
        }
        if drains && sending.in_flight() == 0 {
            answer(&sending.ends)?;
            drains = false;
        }
    }
}
