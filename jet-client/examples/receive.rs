//! Registers an application and prints what arrives: `cargo run --example receive -- --app store`.

use clap::Parser;
use jet_client::receive::{RegisterOptions, Session, SliceError};
use std::path::PathBuf;

/// Receives messages from the daemon of this host and prints a line for each.
#[derive(Parser)]
struct Arguments {
    /// The name that senders address.
    #[arg(long, default_value = "example")]
    app: String,
    /// The daemon's socket.
    #[arg(long, default_value = jet_client::receive::CONTROL_SOCKET)]
    control_socket: PathBuf,
    /// Stop after so many messages.
    #[arg(long)]
    count: Option<u64>,
}

fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let options = RegisterOptions::new(arguments.app).control_socket(arguments.control_socket);
    let session = Session::register(&options)?;
    let mut received = 0;
    while arguments.count.is_none_or(|count| received < count) {
        let mut message = session.receive()?;
        let (mut bytes, mut sum) = (0, 0u64);
        loop {
            match message.next() {
                Ok(Some(slice)) => {
                    bytes += slice.len();
                    sum = slice.iter().fold(sum, |sum, &byte| sum.wrapping_add(u64::from(byte)));
                }
                Ok(None) => break,
                Err(withdrawn @ SliceError::Withdrawn { .. }) => {
                    eprintln!("message {}: {withdrawn}", message.sequence());
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        println!(
            "sender {:016x} sequence {} tag {} header {:?}: {bytes} bytes, sum {sum}{}",
            message.sender(),
            message.sequence(),
            message.tag(),
            String::from_utf8_lossy(message.user_header()),
            if message.redelivered() { ", redelivered" } else { "" },
        );
        received += 1;
    }
    Ok(())
}

fn main() {
    if let Err(error) = run(Arguments::parse()) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
