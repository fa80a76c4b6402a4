//! Counts the instructions of the receiver's state machine for each message.
//!
//! A count is the same on a busy machine, so a regression shows where times say little. The counter is
//! valgrind's cachegrind, which needs no counters of the processor. Two processes handle a different number
//! of messages and are equal otherwise: what they differ in is what the messages took. Cachegrind's model of
//! a first-level cache says how many lines a message takes from farther away, in a state machine that has the
//! cache to itself.

use super::{BATCH, next_large, next_small, warm};
use crate::report::{Bound, Row};
use clap::ValueEnum;
use jet::child_process::this_program;
use jet_core::Config;
use jet_wire::message::HeaderBytes;
use std::error::Error;
use std::process::Command;

/// Batches of the process that handles fewer of them. The other one handles twice as many.
const BATCHES: usize = 200;
/// Batches before those that are counted: so many let a peer's credit grow to a batch.
const WARM_UP: usize = 800;
/// Slices of a message of 256 KiB.
const SLICES: usize = 64;
/// First-level cache of the model, as most processors of the last years have it: bytes, ways, line.
const FIRST_LEVEL: &str = "32768,8,64";
/// Last-level cache of the model: more than the state machine uses.
const LAST_LEVEL: &str = "8388608,16,64";

/// Messages that a process handles while its instructions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Messages {
    /// Small ones, in batches
    Small,
    /// Of 256 KiB, released as a run
    Large,
}

/// Arguments of a process whose instructions are counted.
#[derive(clap::Args)]
pub struct CountedArgs {
    /// What it handles
    #[arg(value_enum)]
    messages: Messages,
    /// Number of batches; a large message is a batch of its own
    batches: usize,
}

/// Handles messages in a process whose instructions are counted.
pub fn run_role(args: &CountedArgs) {
    let mut warm_up = vec![HeaderBytes::ZERO; BATCH];
    let mut machine = warm(Config::default().peer_share_percent, &mut warm_up, WARM_UP);
    // The sender's work, which is done for the same number of messages in either process.
    let batches = BATCHES * 2;
    match args.messages {
        Messages::Small => {
            let headers: Vec<_> = (0..batches * BATCH).map(|_| next_small(&mut machine)).collect();
            headers.chunks(BATCH).take(args.batches).for_each(|batch| machine.small_batch(batch));
        }
        Messages::Large => {
            let headers: Vec<_> = (0..batches).map(|_| next_large(&mut machine)).collect();
            headers.iter().take(args.batches).for_each(|header| machine.large(header, false));
        }
    }
}

/// What cachegrind counted of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    instructions: u64,
    /// Reads and writes that the first-level cache did not have.
    misses: u64,
}

/// Counts a process that handles so many batches.
fn count(messages: Messages, batches: usize) -> Result<Counted, Box<dyn Error>> {
    let kind = messages.to_possible_value().expect("no value is skipped");
    let program = this_program()?;
    let said = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cachegrind-out-file=/dev/null", "--cache-sim=yes"])
        .args([format!("--I1={FIRST_LEVEL}"), format!("--D1={FIRST_LEVEL}"), format!("--LL={LAST_LEVEL}")])
        .arg(program.get_program())
        .args(["role", "counted", kind.get_name(), &batches.to_string()])
        .output()
        .map_err(|error| format!("cannot run valgrind, which counts instructions; install it: {error}"))?;
    let text = String::from_utf8_lossy(&said.stderr);
    let wrong = || format!("valgrind counted nothing ({}):\n{text}", said.status);
    if !said.status.success() {
        return Err(wrong().into());
    }
    parse(&text).ok_or_else(|| wrong().into())
}

/// Reads the totals that cachegrind prints at its end.
fn parse(text: &str) -> Option<Counted> {
    let total = |name: &str| {
        let line = text.lines().find(|line| line.contains(name))?;
        let number = line.split(name).nth(1)?.trim_start_matches([' ', ':']).split_whitespace().next()?;
        number.replace(',', "").parse().ok()
    };
    // "refs" of instructions, and "misses" of reads and writes together.
    Some(Counted { instructions: total("I   refs")?, misses: total("D1  misses")? })
}

/// Most instructions that the life of a small message may take: 15 % less than the 1,052 that it took before
/// its path was shortened. The build for tests, which optimizes little, has a bound of its own.
const SMALL_MAX: f64 = if cfg!(debug_assertions) { 1300.0 } else { 894.0 };
/// Most instructions that a slice of a large message may take.
const SLICE_MAX: f64 = if cfg!(debug_assertions) { 130.0 } else { 90.0 };

/// Counts instructions and misses, and returns the rows.
///
/// # Errors
/// Valgrind is missing, or fails.
pub fn run() -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for (messages, metric, each, most) in [
        (Messages::Small, "small message, whole life", BATCH, SMALL_MAX),
        (Messages::Large, "256 KiB message, a slice, released as a run", SLICES, SLICE_MAX),
    ] {
        let (fewer, more) = (count(messages, BATCHES)?, count(messages, BATCHES * 2)?);
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        let of_each = |fewer: u64, more: u64| more.saturating_sub(fewer) as f64 / (BATCHES * each) as f64;
        let instructions = of_each(fewer.instructions, more.instructions);
        let misses = of_each(fewer.misses, more.misses);
        let most = Bound::AtMost(most);
        rows.push(Row::exact("core", &format!("{metric}, instructions"), "count", vec![instructions], most));
        rows.push(Row::new(
            "core",
            &format!("{metric}, first-level misses"),
            "count",
            vec![misses],
            Bound::None,
        ));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_as_cachegrind_prints_them() {
        let text = "==1== I   refs:      3,642,668,620\n==1== I1  misses:            2,107\n==1== \
                    D   refs:      1,000  (600 rd + 400 wr)\n==1== D1  misses:        12,345  ( 9,000 rd   + \
                    3,345 wr)\n";
        assert_eq!(parse(text), Some(Counted { instructions: 3_642_668_620, misses: 12_345 }));
        assert_eq!(parse("==1== I   refs:"), None);
    }
}
