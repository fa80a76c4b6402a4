//! A proxy between a sender and the daemon over `tcp:`, as a process: it lets the sender's bytes pass at a
//! rate, as a slow link does.
//!
//! The sender's requests must all have arrived before its bytes get slow: a request that waits behind slow
//! bytes holds up nobody. So the proxy first sets the daemon's READ requests aside, and lets everything else
//! pass. On order it passes the READ requests on, and keeps to a rate from then on. Only bytes towards the
//! daemon are slowed.
//!
//! What the proxy let pass arrives: the buffer of its socket towards the daemon is small, and the rate is
//! kept before the bytes are written into it.

use super::Nothing;
use super::frames::{FRAME_BYTES, Frame, Kind};
use crate::ordered_process::{OrderedProcess, answer};
use crate::rig;
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes that pass at a time.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// Pieces that pass in a second at a rate, or one for each byte at lower rates.
const PIECES_PER_S: u64 = 200;
/// Bytes of each buffer of the proxy's sockets. The kernel doubles it.
const BUFFER_BYTES: usize = 32 << 10;
/// Most bytes of READ requests that are set aside. The daemon has 32 READs at once.
const ASIDE_BYTES_MAX: usize = 256 * FRAME_BYTES;

/// Arguments of a proxy's process.
#[derive(clap::Args)]
pub struct ProxyArgs {
    /// The daemon's host:port
    #[arg(long)]
    to: String,
}

/// Order to a proxy's process: passes the READ requests on, and keeps to this rate from now on. 0: no limit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Release {
    bytes_per_s: u64,
}

/// A proxy's process. The process ends when this handle is dropped, and its connections with it.
pub struct Proxy {
    process: OrderedProcess,
    port: u16,
}

impl Proxy {
    /// Starts a proxy to the daemon at `host_and_port`.
    ///
    /// # Errors
    /// An error of the system.
    pub fn start(host_and_port: &str) -> io::Result<Self> {
        let mut command = rig::role("proxy")?;
        command.args(["--to", host_and_port]);
        let mut process = OrderedProcess::start(command)?;
        let port = process.hear()?;
        Ok(Self { process, port })
    }

    /// Returns the address that the sender is to connect to.
    pub fn address(&self) -> jet_fabric::Address {
        jet_fabric::Address::Tcp(format!("127.0.0.1:{}", self.port))
    }

    /// Passes the READ requests on, and keeps to this rate from now on. 0: no limit.
    ///
    /// # Errors
    /// The proxy failed.
    pub fn release(&mut self, bytes_per_s: u64) -> io::Result<()> {
        self.process.ask(&Release { bytes_per_s }).map(|Nothing {}| ())
    }

    /// Returns the proxy's process id.
    pub fn id(&self) -> u32 {
        self.process.child.id()
    }
}

/// The rate of the sender's bytes.
struct Upwards {
    bytes_per_s: u64,
    /// Time from which the next piece may pass.
    next: Instant,
}

/// What is set aside of the daemon's bytes, and where it goes.
struct Downwards {
    holds: bool,
    aside: Vec<u8>,
    sender: Option<TcpStream>,
}

/// State that the proxy's threads share.
struct Gate {
    up: Mutex<Upwards>,
    changed: Condvar,
    down: Mutex<Downwards>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    fn new() -> Self {
        Self {
            up: Mutex::new(Upwards { bytes_per_s: 0, next: Instant::now() }),
            changed: Condvar::new(),
            down: Mutex::new(Downwards { holds: true, aside: Vec::new(), sender: None }),
        }
    }

    /// Waits until the rate allows a piece. Returns the piece's most bytes.
    fn wait_for_room(&self) -> usize {
        let mut up = lock(&self.up);
        loop {
            let rate = up.bytes_per_s;
            if rate == 0 {
                return PIECE_BYTES_MAX;
            }
            let left = up.next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return usize::try_from(rate / PIECES_PER_S)
                    .unwrap_or(PIECE_BYTES_MAX)
                    .clamp(1, PIECE_BYTES_MAX);
            }
            up = self.changed.wait_timeout(up, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Notes that a piece passed.
    fn note(&self, bytes: usize) {
        let mut up = lock(&self.up);
        if up.bytes_per_s > 0 {
            #[allow(clippy::cast_precision_loss)] // a rate
            let takes = Duration::from_secs_f64(bytes as f64 / up.bytes_per_s as f64);
            // Time in which nothing came is not made up for.
            up.next = up.next.max(Instant::now()) + takes;
        }
    }

    fn release(&self, bytes_per_s: u64) -> io::Result<()> {
        {
            // Before the first answer to a READ, so that none passes at another rate.
            let mut up = lock(&self.up);
            (up.bytes_per_s, up.next) = (bytes_per_s, Instant::now());
            self.changed.notify_all();
        }
        let mut down = lock(&self.down);
        down.holds = false;
        let aside = std::mem::take(&mut down.aside);
        match &mut down.sender {
            Some(sender) => sender.write_all(&aside),
            None => Ok(()),
        }
    }

    /// Passes the sender's bytes to the daemon until one of them hangs up.
    fn pass_up(&self, sender: &mut TcpStream, daemon: &mut TcpStream) -> io::Result<()> {
        let mut bytes = vec![0; PIECE_BYTES_MAX];
        loop {
            let count = sender.read(&mut bytes)?;
            if count == 0 {
                return Ok(());
            }
            // The rate may have changed since the read began.
            let mut rest = &bytes[..count];
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(self.wait_for_room().min(rest.len()));
                daemon.write_all(piece)?;
                self.note(piece.len());
                rest = behind;
            }
        }
    }

    /// Passes the daemon's frames to the sender until the daemon hangs up. Requests to read are set aside
    /// while they are held.
    fn pass_down(&self, daemon: TcpStream) -> io::Result<()> {
        let mut daemon = BufReader::with_capacity(PIECE_BYTES_MAX, daemon);
        let mut frame_bytes = Vec::new();
        loop {
            let mut header = [0; FRAME_BYTES];
            daemon.read_exact(&mut header)?;
            let frame = Frame::parse(&header)?;
            frame_bytes.clear();
            frame_bytes.extend_from_slice(&header);
            frame_bytes.resize(FRAME_BYTES + frame.behind, 0);
            daemon.read_exact(&mut frame_bytes[FRAME_BYTES..])?;
            let mut down = lock(&self.down);
            let Downwards { holds, aside, sender } = &mut *down;
            if *holds && frame.kind == Kind::ReadRequest {
                if aside.len() >= ASIDE_BYTES_MAX {
                    return Err(io::Error::other("the daemon has more READs than the proxy can set aside"));
                }
                aside.extend_from_slice(&frame_bytes);
            } else if let Some(sender) = sender {
                sender.write_all(&frame_bytes)?;
            }
        }
    }

    /// Takes one connection of the sender after the other. A sender that lost its connection comes again.
    fn serve(&self, listener: &TcpListener, to: &str) -> io::Result<()> {
        loop {
            let (mut sender, _) = listener.accept()?;
            let mut daemon = TcpStream::connect(to)?;
            for socket in [&sender, &daemon] {
                socket.set_nodelay(true)?;
            }
            sockopt::set_socket_send_buffer_size(&daemon, BUFFER_BYTES)?;
            {
                let mut down = lock(&self.down);
                (down.aside, down.sender) = (Vec::new(), Some(sender.try_clone()?));
            }
            let (from_daemon, ends) = (daemon.try_clone()?, [sender.try_clone()?, daemon.try_clone()?]);
            let hang_up = || ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _ = self.pass_down(from_daemon);
                    hang_up();
                });
                let _ = self.pass_up(&mut sender, &mut daemon);
                hang_up();
            });
        }
    }
}

/// Runs a proxy until standard input ends.
///
/// # Errors
/// An error of the system.
pub fn run_role(args: &ProxyArgs) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // Before a connection comes: the kernel announces no more room than this to the sender.
    sockopt::set_socket_recv_buffer_size(&listener, BUFFER_BYTES)?;
    answer(&listener.local_addr()?.port())?;
    let gate = Arc::new(Gate::new());
    let (serving, to) = (Arc::clone(&gate), args.to.clone());
    std::thread::spawn(move || {
        if let Err(error) = serving.serve(&listener, &to) {
            tracing::error!("a proxy of the benchmark: {error}");
        }
    });
    for line in io::stdin().lock().lines() {
        let Release { bytes_per_s } = serde_json::from_str(&line?)?;
        gate.release(bytes_per_s)?;
        answer(&Nothing {})?;
    }
    Ok(())
}
