//! Sends small and large messages: `cargo run --example send -- --to shm:/run/jet/nic.sock --app store`.

use clap::Parser;
use jet_client::send::{AckStatus, Completion, Sender, SenderOptions};
use jet_fabric::Address;
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let mut sender = Sender::connect(SenderOptions::new(arguments.to, arguments.app))?;
    let mut failed = 0;
    let mut report = |completion: &Completion| {
        let Completion { ticket, status, latency_ns, .. } = completion;
        println!("message {}: {status} after {} us", ticket.0, latency_ns / 1000);
        failed += u64::from(*status != AckStatus::Consumed);
    };
    for tag in 0..arguments.count {
        if arguments.bytes <= 4096 {
            let payload = vec![tag.to_le_bytes()[0]; arguments.bytes];
            while let Err(error) = sender.send_small(tag, b"example", &payload) {
                if !error.is_would_block() {
                    return Err(error.into());
                }
                sender.wait(None)?.iter().for_each(&mut report);
            }
            continue;
        }
        let mut buffer = sender.buffer(arguments.bytes)?;
        buffer.fill(tag.to_le_bytes()[0]);
        loop {
            match sender.send(tag, b"example", buffer, arguments.bytes, 0) {
                Ok(_) => break,
                Err((error, given_back)) if error.is_would_block() => buffer = given_back,
                Err((error, _)) => return Err(error.into()),
            }
            sender.wait(None)?.iter().for_each(&mut report);
        }
    }
    while let Some(completion) = sender.wait(None)? {
        report(&completion);
    }
    sender.close(Duration::from_secs(5))?;
    if failed > 0 { Err(format!("{failed} messages were not consumed").into()) } else { Ok(()) }
}
