//! A crowd: a process that holds many connections over `tcp:` which behave badly. It speaks by hand, since no
//! sender of Jet does any of this.

use super::{LIMIT, Nothing, frames};
use crate::ordered_process::{OrderedProcess, answer};
use crate::rig::{self, Rig};
use frames::{FRAME_BYTES, Frame, Kind};
use jet_fabric::Address;
use jet_wire::SLAB_BYTES;
use jet_wire::message::hello::{AppName, Hello, features};
use jet_wire::message::{RequestFields, RequestHeader, SmallFields, SmallHeader, Versions};
use rustix::process::Signal;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Bytes of a half-sent SEND that are sent: frame, message header, and a part of the payload.
const HALF_BYTES: usize = 1200;
/// Bytes of the message that [`How::Requested`] asks the daemon to read.
const REQUESTED_BYTES: u64 = 1 << 20;

/// What the connections of a crowd do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum How {
    /// They send nothing at all.
    Silent,
    /// They say a whole hello, and then send a part of a SEND.
    HalfSent,
    /// They say a whole hello, request that a large message be read, and answer no READ.
    Requested,
}

/// Arguments of a crowd's process.
#[derive(clap::Args)]
pub struct CrowdArgs {
    /// The daemon's host:port
    #[arg(long)]
    to: String,
    /// The application that hellos name
    #[arg(long)]
    app: String,
    /// Number of connections
    #[arg(long)]
    count: usize,
    /// What the connections do
    #[arg(long, value_enum)]
    how: How,
}

/// A crowd's process. The process and its connections end when this handle is dropped.
pub struct Crowd(OrderedProcess);

impl Crowd {
    /// Starts a crowd at the rig's daemon, and waits until every connection has done what it does.
    ///
    /// # Errors
    /// An error of the rig or the system, or that the daemon refused a connection.
    pub fn start(rig: &Rig, app: &str, count: usize, how: How) -> Result<Self, Box<dyn Error>> {
        let Address::Tcp(to) = rig.address_over("tcp")? else { return Err("not a tcp: address".into()) };
        let mut crowd = Self::begin(&to, app, count, how)?;
        crowd.wait_until_done()?;
        Ok(crowd)
    }

    /// Starts a crowd at a host:port, and does not wait.
    ///
    /// # Errors
    /// An error of the system.
    pub fn begin(to: &str, app: &str, count: usize, how: How) -> Result<Self, Box<dyn Error>> {
        let how = clap::ValueEnum::to_possible_value(&how).expect("no value is skipped");
        let mut command = rig::role("crowd")?;
        command.args(["--to", to, "--app", app, "--how", how.get_name()]).arg(format!("--count={count}"));
        Ok(Self(OrderedProcess::start(command)?))
    }

    /// Waits until every connection has done what it does.
    ///
    /// # Errors
    /// An error of the system, or that a connection was refused.
    pub fn wait_until_done(&mut self) -> io::Result<()> {
        let Nothing {} = self.0.hear()?;
        Ok(())
    }

    /// Kills the process, and waits until it has ended: the kernel has closed its connections.
    ///
    /// # Errors
    /// An error of the system.
    pub fn end(mut self) -> io::Result<()> {
        self.kill()?;
        self.0.child.wait().map(drop)
    }

    /// Kills the process (SIGKILL), and does not wait until it has ended.
    ///
    /// # Errors
    /// The process has ended already.
    pub fn kill(&self) -> io::Result<()> {
        self.0.child.signal(Signal::KILL)
    }
}

/// Waits until the daemon has accepted the connection.
fn await_accept(socket: &mut TcpStream) -> io::Result<()> {
    socket.set_read_timeout(Some(LIMIT))?;
    loop {
        let mut header = [0; FRAME_BYTES];
        socket.read_exact(&mut header)?;
        let frame = Frame::parse(&header)?;
        let mut behind = vec![0; frame.behind];
        socket.read_exact(&mut behind)?;
        if frame.kind == Kind::Accept {
            return Ok(());
        }
    }
}

/// Returns what a connection sends after it was accepted.
fn after_hello(how: How) -> Vec<u8> {
    match how {
        How::Silent => Vec::new(),
        How::HalfSent => {
            let fields = SmallFields {
                sequence: 1,
                tag: 1,
                payload_bytes: jet_wire::SLAB_BYTES_U32,
                crc32c: None,
                redelivered: false,
                wants_reply: false,
                user_header: b"",
            };
            let mut whole = frames::send(&SmallHeader::encode(&fields).0, &[7; SLAB_BYTES]);
            whole.truncate(HALF_BYTES);
            whole
        }
        How::Requested => {
            let fields = RequestFields {
                sequence: 1,
                tag: 1,
                length: REQUESTED_BYTES,
                address: 0,
                key: 0,
                class: 0,
                pieces: 0,
                crc32c: None,
                redelivered: false,
                wants_reply: false,
                user_header: b"",
            };
            frames::send(&RequestHeader::encode(&fields).0, &[])
        }
    }
}

/// Runs a crowd until standard input ends.
///
/// # Errors
/// An error of the system, or that the daemon refused a connection.
pub fn run_role(args: &CrowdArgs) -> Result<(), Box<dyn Error>> {
    let mut sockets = Vec::with_capacity(args.count);
    for sender_id in (1..).take(args.count) {
        let mut socket = TcpStream::connect(&args.to)?;
        // At once: a host that has more silent connections than its share loses the first of them.
        if args.how != How::Silent {
            let hello = Hello {
                versions: Versions::SUPPORTED,
                features: features::ALL,
                sender_id,
                receive_entries: 64,
                app: AppName::new(&args.app)?,
            };
            socket.write_all(&frames::connect(&hello.encode()))?;
        }
        sockets.push(socket);
    }
    if args.how != How::Silent {
        let said = after_hello(args.how);
        for socket in &mut sockets {
            await_accept(socket)?;
            socket.write_all(&said)?;
        }
    }
    answer(&Nothing {})?;
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(())
}
