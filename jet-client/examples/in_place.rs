//! Sends requests that have an in-place message as user header, to an application that this program registers
//! itself: `cargo run --example in_place -- --to shm:/run/jet/nic.sock`.

use clap::Parser;
use jet_client::Address;
use jet_client::receive::{RegisterOptions, Session};
use jet_client::send::{AckStatus, Envelope, Sender, SenderOptions};
use jet_wire::in_place::{Blame, DecodeError, InPlace};
use jet_wire::message::SMALL_USER_HEADER_MAX;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// Sends requests to itself and prints how each was answered.
#[derive(Parser)]
struct Arguments {
    /// Where the daemon of this host listens: shm:/path/of/nic.sock or tcp:host:port.
    #[arg(long)]
    to: Address,
    /// The daemon's socket.
    #[arg(long, default_value = jet_client::receive::CONTROL_SOCKET)]
    control_socket: PathBuf,
    /// The name that this program registers.
    #[arg(long, default_value = "in-place")]
    app: String,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Extent {
    first_block: U64,
    blocks: U32,
}

#[derive(Clone, Copy, Debug, TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(u8)]
enum Durability {
    Written = 1,
    Flushed = 2,
}

/// A request about the payload, which arrives page-aligned in a slab beside it.
#[derive(Debug, InPlace)]
#[in_place(kind = 1, version = 2)]
struct WriteRequest<'a> {
    volume: u64,
    durability: Durability,
    extents: &'a [Extent],
    name: &'a str,
    #[in_place(since = 2)]
    trace: Option<u64>,
}

/// A request with three extents and a name of 16 bytes fits a small message's user header.
const _: () = assert!(WriteRequest::FIXED_BYTES + 3 * size_of::<Extent>() + 16 <= SMALL_USER_HEADER_MAX);

/// Codes of rejection that this application defines.
const BROKEN: NonZeroU32 = NonZeroU32::new(1).unwrap();
const UNKNOWN: NonZeroU32 = NonZeroU32::new(2).unwrap();

fn receive(session: &Session, count: usize) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    for _ in 0..count {
        let mut message = session.receive()?;
        let read = WriteRequest::read(message.user_header());
        let rejection = match &read {
            Ok(request) => {
                println!("received {request:?}");
                None
            }
            Err(error) => {
                println!("refused: {error}");
                Some(reason(error))
            }
        };
        match rejection {
            None => while message.next()?.is_some() {},
            Some(code) => message.reject(code),
        }
    }
    Ok(())
}

fn reason(error: &DecodeError) -> NonZeroU32 {
    match error.blame() {
        Blame::Writer => BROKEN,
        Blame::Mismatch => UNKNOWN,
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let options = RegisterOptions::new(arguments.app.clone()).control_socket(arguments.control_socket);
    let (registered, wait) = std::sync::mpsc::channel();
    let receiver = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let session = Session::register(&options)?;
        registered.send(())?;
        receive(&session, 3)
    });
    if wait.recv().is_err() {
        return receiver.join().expect("no panic");
    }

    let mut sender = Sender::connect(&SenderOptions::new(arguments.to, arguments.app))?;
    let extents = [Extent { first_block: 128.into(), blocks: 8.into() }];
    let request = WriteRequest {
        volume: 7,
        durability: Durability::Flushed,
        extents: &extents,
        name: "journal",
        trace: Some(0xfeed),
    };
    let mut header = [0; SMALL_USER_HEADER_MAX];
    let length = request.write_to(&mut header)?;
    sender.send_small(Envelope::new(0).user_header(&header[..length]), &[7; 4096])?;
    let written = WriteRequest { durability: Durability::Written, trace: None, ..request };
    let length = written.write_to(&mut header)?;
    sender.send_small(Envelope::new(1).user_header(&header[..length]), &[7; 4096])?;
    // One byte is missing.
    sender.send_small(Envelope::new(2).user_header(&header[..length - 1]), &[7; 4096])?;
    let mut consumed = 0;
    while let Some(completion) = sender.wait()? {
        println!("request {}: {}", completion.ticket.0, completion.status);
        consumed += u64::from(completion.status == AckStatus::Consumed);
    }
    sender.close_timeout(Duration::from_secs(5))?;
    receiver.join().expect("no panic")?;
    if consumed == 2 { Ok(()) } else { Err(format!("{consumed} requests were consumed, not 2").into()) }
}

fn main() {
    if let Err(error) = run(Arguments::parse()) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
