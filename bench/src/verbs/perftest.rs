//! Runs the programs of perftest with server and client on this host, and takes one figure from each run.

use jet::child_process::ChildProcess;
use std::io;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The RDMA device and address on which perftest's server and client run.
pub struct Place {
    pub device: String,
    pub gid_index: u8,
    pub address: IpAddr,
}

/// The figure that a run of a perftest program prints.
#[derive(Clone, Copy)]
pub enum Figure {
    /// Bandwidth in MiB/s.
    Bandwidth,
    /// Message rate in million messages a second.
    MessageRate,
    /// Latency one way in microseconds.
    Latency,
}

impl Figure {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::MessageRate => "message_rate",
            Self::Latency => "latency",
        }
    }
}

const START_LIMIT: Duration = Duration::from_secs(10);
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// Runs a program of perftest as server and client, and returns the figure that the client prints.
///
/// # Errors
/// The program is missing, did not start or end in time, or failed: the error has its output.
pub fn run(place: &Place, program: &str, figure: Figure, options: &[&str]) -> io::Result<f64> {
    let port = free_port()?.to_string();
    let command = || {
        let mut command = Command::new(program);
        command
            .args(["-F", "-d", &place.device, "-x", &place.gid_index.to_string(), "-p", &port])
            .args(options)
            .arg(format!("--output={}", figure.as_str()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let missing = |error: io::Error| {
        io::Error::new(error.kind(), format!("{program}: {error}; install it (Debian's package perftest)"))
    };
    let mut server = ChildProcess::start(command()).map_err(missing)?;
    wait_listening(&mut server, &port)?;
    let mut client = command();
    client.arg(place.address.to_string());
    let mut client = ChildProcess::start(client).map_err(missing)?;
    let deadline = Instant::now() + RUN_LIMIT;
    let status = loop {
        if let Some(status) = client.ended()? {
            break status;
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{program} did not end")));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (Some(out), Some(errors)) = (client.take_stdout(), client.take_stderr()) else {
        unreachable!("both are pipes");
    };
    let (out, errors) = (io::read_to_string(out)?, io::read_to_string(errors)?);
    // The last line that is a number.
    let number = out.lines().rev().find_map(|line| line.trim().parse().ok());
    number.filter(|_| status.success()).ok_or_else(|| {
        io::Error::other(format!("{program} {} ended with {status}: {out}{errors}", options.join(" ")))
    })
}

fn free_port() -> io::Result<u16> {
    Ok(std::net::TcpListener::bind("0.0.0.0:0")?.local_addr()?.port())
}

/// Waits until perftest's server listens, as the kernel's table of sockets shows. A trial connection is no
/// way to find out, since the server takes only one connection.
fn wait_listening(server: &mut ChildProcess, port: &str) -> io::Result<()> {
    let port = port.parse::<u16>().map_err(io::Error::other)?;
    let listening = format!(":{port:04X} ");
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
        // Local address and state: 0A is LISTEN.
        let found = tables.iter().flat_map(|table| table.lines()).any(|line| {
            let mut words = line.split_whitespace();
            let local = words.nth(1).map(|local| format!("{local} "));
            local.is_some_and(|local| local.ends_with(&listening)) && words.nth(1) == Some("0A")
        });
        if found {
            return Ok(());
        }
        if let Some(status) = server.ended()? {
            return Err(io::Error::other(format!("perftest's server ended with {status}")));
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "perftest's server does not listen"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
