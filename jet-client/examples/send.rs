//! Sends small and large messages: `cargo run --example send -- --to shm:/run/jet/nic.sock --app store`.

use clap::Parser;
use jet_client::Address;
use jet_client::send::{AckStatus, Completion, Envelope, Sender, SenderOptions};
use std::time::Duration;

/// Sends messages to an application behind a daemon and prints how each ended.
#[derive(Parser)]
struct Arguments {
    /// Where the receiver's daemon listens: shm:/path/of/nic.sock or tcp:host:port.
    #[arg(long)]
    to: Address,
    /// The application's name.
    #[arg(long, default_value = "example")]
    app: String,
    /// Messages to send.
    #[arg(long, default_value_t = 10)]
    count: u64,
    /// Bytes of each message; up to 4096 go as small messages.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: usize,
}

fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let mut sender = Sender::connect(&SenderOptions::new(arguments.to, arguments.app))?;
    let mut failed = 0;
    let mut report = |completion: &Completion| {
        let Completion { ticket, status, latency, .. } = completion;
        println!("message {}: {status} after {} us", ticket.0, latency.as_micros());
        failed += u64::from(*status != AckStatus::Consumed);
    };
    for tag in 0..arguments.count {
        let envelope = Envelope::new(tag).user_header(b"example");
        if arguments.bytes <= 4096 {
            let payload = vec![tag.to_le_bytes()[0]; arguments.bytes];
            while let Err(error) = sender.send_small(envelope, &payload) {
                if !error.is_would_block() {
                    return Err(error.into());
                }
                sender.wait()?.iter().for_each(&mut report);
            }
            continue;
        }
        let mut buffer = sender.buffer(arguments.bytes)?;
        buffer.fill(tag.to_le_bytes()[0]);
        loop {
            match sender.send(envelope, buffer) {
                Ok(_) => break,
                Err(not_sent) if not_sent.is_would_block() => buffer = not_sent.buffer,
                Err(not_sent) => return Err(not_sent.into()),
            }
            sender.wait()?.iter().for_each(&mut report);
        }
    }
    while let Some(completion) = sender.wait()? {
        report(&completion);
    }
    sender.close_timeout(Duration::from_secs(5))?;
    if failed > 0 { Err(format!("{failed} messages were not consumed").into()) } else { Ok(()) }
}

fn main() {
    if let Err(error) = run(Arguments::parse()) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
