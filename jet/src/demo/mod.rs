//! Subcommand `jet demo`: runs a daemon, a receiving application and several senders as processes on this
//! host. The senders send a tree of files, and the demo checks every file that arrived.

mod processes;
mod report;
mod run;
mod tree;
mod verify;

use crate::commands::{Signals, fail, print, print_json};
use crate::log::ASKED_FOR;
use crate::text;
use crate::values;
use processes::WorkDirectory;
use run::{DemoError, Run};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Default size of the demo's own tree in bytes, if the senders do not need more.
const BYTES_DEFAULT: u64 = 256 << 20;

/// Runs daemon, receiver and senders on this host, and checks every file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  jet demo
  jet demo --fabric tcp --senders 8 --bytes 1GiB
  jet demo --dir /usr/share/doc --json

Exit code: 0 where every file arrived as it was sent and the pool is whole again, else 1.")]
pub(crate) struct Args {
    /// Send the contents of this directory [default: a tree that the demo makes].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Fabric over which the files are sent.
    #[arg(long, value_enum, default_value_t = Fabric::Both)]
    fabric: Fabric,
    /// Number of senders.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    senders: u16,
    /// Bytes of the tree that the demo makes, as 256MiB or 1GiB; at least 32MiB a sender [default: 256MiB, or
    /// 32MiB a sender if that is more].
    #[arg(long, value_name = "N", value_parser = size)]
    bytes: Option<u64>,
    /// Directory in which the trees are made and received; it needs room for twice the bytes.
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Keep the trees and the logs in the work directory.
    #[arg(long)]
    keep: bool,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: crate::commands::log_lines::LogLines,
    /// Show no progress line.
    #[arg(long)]
    no_progress: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Fabric {
    /// Shared memory.
    Shm,
    /// TCP over the loopback.
    Tcp,
    /// Shared memory, and after that TCP.
    Both,
    /// RDMA, from this host to itself; for builds with the feature `verbs`.
    Rdma,
}

impl Fabric {
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Shm => &["shm"],
            Self::Tcp => &["tcp"],
            Self::Both => &["shm", "tcp"],
            Self::Rdma => &["rdma"],
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    args.log.apply();
    match demonstrate(args) {
        Ok(code) => code,
        Err(error) => fail(error),
    }
}

fn demonstrate(args: &Args) -> Result<ExitCode, DemoError> {
    let senders = u64::from(args.senders);
    let bytes_min = senders * tree::TREE_BYTES_MIN;
    let bytes = args.bytes.unwrap_or(BYTES_DEFAULT.max(bytes_min));
    if args.dir.is_none() && bytes < bytes_min {
        return Err(DemoError::TooFew { bytes, bytes_min, senders });
    }
    let signals = Signals::new()?;
    let parent = args.work_dir.clone().unwrap_or_else(std::env::temp_dir);
    let work = WorkDirectory::new(&parent, args.keep)
        .map_err(|source| DemoError::Work { path: parent.clone(), source })?;
    let quiet = args.json || args.no_progress;
    if !quiet {
        tracing::info!("making the trees in {}", work.path().display());
    }
    let shares = match &args.dir {
        Some(dir) => shares_of(dir, usize::from(args.senders))
            .map_err(|source| DemoError::Dir { path: dir.clone(), source })?,
        None => own_tree(work.path(), senders, bytes)?,
    };
    if shares.is_empty() {
        return Err(DemoError::Empty { path: args.dir.clone().unwrap_or_default() });
    }
    let bytes = shares.iter().flatten().map(|path| bytes_below(path)).sum();
    let mut rows = Vec::new();
    for fabric in args.fabric.names() {
        let run = Run {
            work: work.path(),
            fabric,
            shares: &shares,
            bytes,
            signals: &signals,
            quiet,
            keep: args.keep,
        };
        rows.push(run.perform()?);
    }
    let passed = rows.iter().all(report::RunResult::has_passed);
    if args.json {
        print_json(&serde_json::json!({ "ok": passed, "runs": rows }));
    } else {
        print(&report::table(&rows));
    }
    for row in &rows {
        for difference in &row.mismatches_named {
            tracing::error!(target: ASKED_FOR, "over {}: {difference}", row.fabric);
        }
    }
    if args.keep {
        tracing::info!("everything is kept in {}", work.path().display());
    }
    if !passed {
        return Ok(fail("not every file arrived as it was sent, or slabs are missing"));
    }
    if !args.json {
        let bytes = rows.iter().map(|row| row.bytes).sum();
        print(&format!("every file is the same at both ends ({} in all)\n", text::bytes(bytes)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the demo's own tree, and returns the paths that each sender sends: a part of the tree.
fn own_tree(work: &Path, senders: u64, bytes: u64) -> Result<Vec<Vec<PathBuf>>, DemoError> {
    let mut shares = Vec::new();
    for sender in 0..senders {
        let root = work.join("tree").join(format!("sender-{sender}"));
        tree::make(&root, sender + 1, bytes / senders)
            .map_err(|source| DemoError::Work { path: root.clone(), source })?;
        shares.push(vec![root]);
    }
    Ok(shares)
}

/// Divides the entries of a directory among the senders, the largest entry first. Each entry goes to the
/// sender that has the fewest bytes so far. Senders without entries are left out of the result.
fn shares_of(dir: &Path, senders: usize) -> std::io::Result<Vec<Vec<PathBuf>>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_file() || kind.is_dir() {
            entries.push((bytes_below(&entry.path()), entry.path()));
        }
    }
    entries.sort_by(|left, right| right.cmp(left));
    let mut shares: Vec<(u64, Vec<PathBuf>)> = vec![(0, Vec::new()); senders];
    for (bytes, path) in entries {
        if let Some(least) = shares.iter_mut().min_by_key(|(bytes, paths)| (*bytes, paths.len())) {
            least.0 += bytes;
            least.1.push(path);
        }
    }
    Ok(shares.into_iter().map(|(_, paths)| paths).filter(|paths| !paths.is_empty()).collect())
}

fn bytes_below(path: &Path) -> u64 {
    use crate::files::walk::{Found, Walk};
    Walk::below(path)
        .filter_map(|found| match found {
            Found::File { source, .. } => std::fs::metadata(source).ok(),
            _ => None,
        })
        .map(|metadata| metadata.len())
        .sum()
}

/// Reads a number of bytes from a command-line argument, with a unit or without, up to 1 TiB.
fn size(text: &str) -> Result<u64, String> {
    let bytes = values::parse_bytes(text).ok().filter(|&bytes| bytes <= 1 << 40);
    bytes.ok_or_else(|| "write bytes, as 268435456, 256MiB or 1GiB, at most 1TiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("256MiB"), Ok(256 << 20));
        assert_eq!(size("1GB"), Ok(1_000_000_000));
        assert_eq!(size("17"), Ok(17));
        for bad in ["", "MiB", "2TiB", "-1", "99999GiB", "2 parsecs", "1.5B"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_directory_is_dealt_out_by_bytes() {
        let root = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a", 100), ("b", 60), ("c", 50), ("d", 1)] {
            std::fs::write(root.path().join(name), vec![0; bytes]).unwrap();
        }
        std::os::unix::fs::symlink("a", root.path().join("link")).unwrap();
        let shares = shares_of(root.path(), 2).unwrap();
        let names: Vec<Vec<_>> = shares
            .iter()
            .map(|share| share.iter().filter_map(|path| path.file_name()?.to_str()).collect())
            .collect();
        assert_eq!(names, [vec!["a", "d"], vec!["b", "c"]]);
        assert_eq!(shares_of(root.path(), 9).unwrap().len(), 4);
    }
}
