//! A client of `storage_server`: it writes and reads blocks, checks every reply, and keeps a log of what was
//! acknowledged. It may be killed at any time: started again with the same log, it goes on where it was. With
//! `--verify` it reads all of its blocks, and checks that each acknowledged write is there.

mod check;
mod log;
#[path = "../storage_server/protocol.rs"]
mod protocol;
mod work;

use check::Sent;
use clap::Parser;
use jet_client::Address;
use jet_client::exactly_once::SEQUENCE_SPAN;
use jet_client::send::{
    Completion, Envelope, Identity, RetryPolicy, SendError, Sender, SenderOptions, SharedSender,
};
use log::{Known, Log};
use protocol::{BLOCK_BYTES, Request};
use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Writes blocks to a storage server, reads them, and checks every reply.
#[derive(Parser)]
struct Arguments {
    /// Where the server's daemon listens: shm:/path/of/nic.sock or tcp:host:port.
    #[arg(long)]
    to: Address,
    /// The server's name.
    #[arg(long, default_value = "store")]
    app: String,
    /// File for what was acknowledged, and who this client is; made where there is none.
    #[arg(long)]
    log: PathBuf,
    /// First block of a new client. No two clients have blocks in common.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Blocks of a new client.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
    /// End when so many messages have ended, counted from the client's first one, and all that an earlier
    /// life of the client may have sent: up to 1024 from its oldest open one on.
    #[arg(long)]
    count: Option<u64>,
    /// Messages in flight at once.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Print a line each time that more ends are on this client's disk.
    #[arg(long)]
    report: bool,
    /// Send nothing new: read all blocks, and check them.
    #[arg(long)]
    verify: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = if arguments.verify { verify(&arguments) } else { go_on(&arguments) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("storage_client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns options of a sender that tries for ever: what an end leaves open would have to be sent again.
fn options(arguments: &Arguments) -> SenderOptions {
    SenderOptions::new(arguments.to.clone(), arguments.app.clone())
        .in_flight_max(arguments.depth)
        .replies(true)
        .crc(true)
        .retry(RetryPolicy::all_for(Duration::MAX))
        .reconnect_for(Duration::MAX)
}

/// Connects, when the daemon is there.
fn connect(options: &SenderOptions) -> Result<Sender, Box<dyn Error>> {
    loop {
        match Sender::connect(options) {
            Err(error) if error.is_passing() => std::thread::sleep(Duration::from_millis(50)),
            connected => return Ok(connected?),
        }
    }
}

/// Goes on with the client's messages.
fn go_on(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let (known, is_new) = match Log::read(&arguments.log)? {
        Some(known) => (known, false),
        None => (Log::new_client(arguments.first, arguments.blocks), true),
    };
    let log = Log::begin(&arguments.log, &known)?;
    // The oldest message without a known end comes first, so all messages keep their numbers.
    let identity = Identity::new(known.client.id).first_sequence(known.oldest);
    let sender = connect(&options(arguments).identity(identity))?;
    let next = known.oldest;
    let first_new = if is_new { known.oldest } else { known.oldest + SEQUENCE_SPAN };
    let mut run = Run { known, log, sender, next, first_new, sent: HashMap::new(), checked: 0, again: 0 };
    // What an earlier life may have sent is ended in any case.
    let end = arguments.count.map_or(u64::MAX, |count| count.saturating_add(1).max(first_new));
    while run.known.oldest < end {
        while run.next < end && run.send_next()? {}
        let Some(first) = run.sender.wait()? else { continue };
        run.take(first)?;
        if arguments.report {
            run.print("ended");
        }
    }
    run.print("done:");
    // Nothing is open, so as many writes took effect as have ended. The question has no number of this
    // client: its messages are to be the same whenever it begins anew.
    let stat = Request::Stat { sender: run.known.client.id }.header();
    let sender = SharedSender::from_sender(connect(&options(arguments))?)?;
    let reply = sender.call(Envelope::new(0).user_header(stat.as_bytes()), b"")?;
    Ok(check::stat_is_right(&run.known, false, &reply)?)
}

/// A client that sends.
struct Run {
    known: Known,
    log: Log,
    sender: Sender,
    /// The message that is sent next.
    next: u64,
    /// From this message on, no earlier life of the client has sent any.
    first_new: u64,
    sent: HashMap<u64, Sent>,
    /// Replies that were checked, since the start.
    checked: u64,
    /// Of these, replies to messages whose ends were known already.
    again: u64,
}

impl Run {
    /// Sends the next message. Returns whether there was room for it.
    fn send_next(&mut self) -> Result<bool, Box<dyn Error>> {
        let (client, sequence) = (self.known.client, self.next);
        let request = client.request(sequence);
        let header = request.header();
        let envelope = Envelope::new(sequence).user_header(header.as_bytes()).wants_reply(true);
        let mut block = [0; BLOCK_BYTES];
        let ticket = match request {
            Request::Write { first, blocks: 1 } => {
                client.fill(sequence, first, &mut block);
                self.sender.send_small(envelope, &block)
            }
            Request::Write { first, blocks } => {
                let mut buffer = self.sender.buffer(blocks as usize * BLOCK_BYTES)?;
                client.fill(sequence, first, &mut buffer);
                self.sender.send(envelope, buffer).map_err(SendError::from)
            }
            _ => self.sender.send_small(envelope, b""),
        };
        match ticket {
            Ok(ticket) => assert_eq!(ticket.0, sequence, "a sender with an identity numbers its messages"),
            Err(error) if error.is_would_block() => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let newest = match request {
            Request::Read { block } => {
                let number = usize::try_from(block - client.first)?;
                self.known.newest[number]
            }
            _ => log::Acknowledged::default(),
        };
        // One that was sent before may have taken effect then.
        let floor = if sequence < self.first_new { 0 } else { self.known.floor };
        self.sent.insert(sequence, Sent { newest, floor });
        self.next += 1;
        Ok(true)
    }

    fn print(&self, word: &str) {
        let Self { known, checked, again, .. } = self;
        let (messages, writes) = (known.oldest - 1, known.writes);
        println!(
            "{word} {messages} messages, {writes} writes; {checked} replies checked, {again} of them again"
        );
    }

    /// Takes this end, and all others that are there: checks them, and puts them into the log.
    fn take(&mut self, first: Completion) -> Result<(), Box<dyn Error>> {
        let mut ends = Vec::new();
        let mut next = Some(first);
        while let Some(end) = next {
            let sequence = end.ticket.0;
            let sent = self.sent.remove(&sequence).ok_or("an end of a message that was not sent")?;
            let version = check::end(&self.known, sent, &end)?;
            self.checked += 1;
            if self.known.version(sequence).is_some() {
                self.again += 1;
            } else {
                self.known.note(sequence, version);
                ends.push((sequence, version));
            }
            next = self.sender.poll();
        }
        Ok(self.log.append(&ends)?)
    }
}

/// Reads all blocks of the client, and checks that each acknowledged write is there.
fn verify(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let known = Log::read(&arguments.log)?.ok_or("there is no log: nothing was acknowledged")?;
    // A sender of its own: what only reads needs no number.
    let sender = SharedSender::from_sender(connect(&options(arguments))?)?;
    let (mut acknowledged, mut wrong) = (0, 0);
    for (block, &newest) in (known.client.first..).zip(&known.newest) {
        let read = Request::Read { block }.header();
        let reply = sender.call(Envelope::new(block).user_header(read.as_bytes()), b"")?;
        acknowledged += u64::from(newest.version > 0);
        if let Err(what) = check::block_is_right(&known, block, newest, &reply) {
            wrong += 1;
            eprintln!("storage_client: {what}");
        }
    }
    let stat = Request::Stat { sender: known.client.id }.header();
    let reply = sender.call(Envelope::new(0).user_header(stat.as_bytes()), b"")?;
    if let Err(what) = check::stat_is_right(&known, true, &reply) {
        wrong += 1;
        eprintln!("storage_client: {what}");
    }
    println!("writes {} blocks {acknowledged} wrong {wrong}", known.writes);
    if wrong > 0 { Err(format!("{wrong} answers are wrong").into()) } else { Ok(()) }
}
