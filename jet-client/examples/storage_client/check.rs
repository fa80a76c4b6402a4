//! Checks of what the server says, against what the client knows.

use crate::log::{Acknowledged, Known};
use crate::protocol::{Refusal, Request, Stat, Written};
use crate::work::Content;
use jet_client::exactly_once::SEQUENCE_SPAN;
use jet_client::send::{AckStatus, Completion};
use zerocopy::FromBytes;

/// What had been acknowledged when a message was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Of a message that reads: the newest write of its block.
    pub newest: Acknowledged,
    /// Of a message that writes, and was never sent before: the newest version of all.
    pub floor: u64,
}

/// Checks how a message ended, and returns the version that its reply names, 0 where it read.
///
/// # Errors
/// What is wrong with it.
pub fn end(known: &Known, sent: Sent, end: &Completion) -> Result<u64, String> {
    let sequence = end.ticket.0;
    let wrong = |what: String| Err(format!("message {sequence}: {what}"));
    match end.status {
        AckStatus::Consumed => {}
        AckStatus::Rejected(code) => match Refusal::of_code(code) {
            Some(refusal) => return wrong(format!("the server refused it: {refusal}")),
            None => return wrong(format!("the server rejected it with code {code:#x}")),
        },
        status => return wrong(format!("it ended {status}")),
    }
    let Some(reply) = end.reply.as_deref() else { return wrong("it has no reply".into()) };
    match known.client.request(sequence) {
        Request::Read { block } => match block_is_right(known, block, sent.newest, reply) {
            Ok(()) => Ok(0),
            Err(what) => wrong(what),
        },
        _ => {
            let Ok(written) = Written::read_from_bytes(reply) else {
                return wrong(format!("the reply has {} bytes", reply.len()));
            };
            let version = written.version.get();
            match known.version(sequence) {
                Some(before) if before != version => {
                    wrong(format!("the reply was version {before}, and is now {version}"))
                }
                None if version <= sent.floor => {
                    wrong(format!("version {version}, though version {} was there before", sent.floor))
                }
                _ => Ok(version),
            }
        }
    }
}

/// Checks a block that was read, whose newest acknowledged write was `before` when the message was sent.
///
/// # Errors
/// What is wrong with it.
pub fn block_is_right(known: &Known, block: u64, before: Acknowledged, bytes: &[u8]) -> Result<(), String> {
    let Acknowledged { sequence: of, version } = before;
    let wrong = |what: String| {
        Err(format!("block {block}: {what}; acknowledged was message {of} with version {version}"))
    };
    match known.client.look(block, bytes) {
        Content::Wrong => wrong(format!("these {} bytes are nothing that was written there", bytes.len())),
        Content::Zeros if version > 0 => wrong("nothing is there".into()),
        Content::Zeros => Ok(()),
        Content::WrittenBy { sequence } if sequence == of => Ok(()),
        Content::WrittenBy { sequence } => match known.version(sequence) {
            Some(newer) if newer > version => Ok(()),
            // One that is open may take effect at any time.
            None if known.may_be_open(sequence) => Ok(()),
            _ => wrong(format!("message {sequence} is there")),
        },
    }
}

/// Checks how many of the client's writes took effect. Where no message is open, it is as many as have ended.
///
/// # Errors
/// What is wrong with it.
pub fn stat_is_right(known: &Known, is_open: bool, reply: &[u8]) -> Result<(), String> {
    let stat = Stat::read_from_bytes(reply).map_err(|_| format!("the reply has {} bytes", reply.len()))?;
    let (writes, acknowledged) = (stat.writes.get(), known.writes);
    let open = if is_open { SEQUENCE_SPAN } else { 0 };
    if !(acknowledged..=acknowledged + open).contains(&writes) {
        return Err(format!("{writes} writes took effect, and {acknowledged} were acknowledged"));
    }
    Ok(())
}
