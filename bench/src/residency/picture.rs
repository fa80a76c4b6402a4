//! The picture: throughput and tail latency by message size, drawn by gnuplot.

use super::{Receiver, Turn, csv};
use crate::report::median;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What gnuplot is told; it finds the medians of each line in a file of their own, and writes `residency.svg` and `.png`.
const SCRIPT: &str = include_str!("picture.gnuplot");

/// A folder that the picture goes to, and a gnuplot that can draw it.
pub struct Picture {
    folder: PathBuf,
    table: File,
}

impl Picture {
    /// Makes the folder, and sees that there is a gnuplot: before anything is measured.
    ///
    /// # Errors
    /// What is missing.
    pub fn prepare(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let found = Command::new("gnuplot").arg("--version").stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            return Err(
                "--plot draws with gnuplot, which is not there; install it (Debian: gnuplot-nox)".into()
            );
        }
        let refused = |error| format!("--plot {}: no folder that can be written: {error}", folder.display());
        fs::create_dir_all(folder).map_err(refused)?;
        // Whole: gnuplot takes a leading `~` or `|` for something else.
        let folder = fs::canonicalize(folder).map_err(refused)?;
        if folder.to_str().is_none() {
            return Err("--plot: gnuplot takes names in UTF-8 only".into());
        }
        let table = File::create(folder.join("residency.csv")).map_err(refused)?;
        Ok(Self { folder, table })
    }

    /// Writes `residency.csv`, `residency.svg` and `residency.png`.
    ///
    /// # Errors
    /// What the system or gnuplot says.
    pub fn draw(mut self, turns: &[Turn]) -> Result<(), Box<dyn Error>> {
        self.table.write_all(csv(turns).as_bytes())?;
        let data = crate::interrupt::folder()?;
        for receiver in Receiver::ALL {
            for with in [false, true] {
                let file = format!("{}-{}", receiver.key(), u8::from(with));
                fs::write(data.path().join(file), medians(turns, receiver, with))?;
            }
        }
        let script = data.path().join("picture.gnuplot");
        fs::write(&script, SCRIPT)?;
        let quoted = |path: &Path| path.display().to_string().replace('\'', "''");
        let places = format!("data='{}'; out='{}'", quoted(data.path()), quoted(&self.folder));
        let drawn = Command::new("gnuplot").arg("-e").arg(places).arg(&script).status()?;
        if !drawn.success() {
            return Err(format!("gnuplot: {drawn}").into());
        }
        eprintln!("residency: {}/residency.{{csv,svg,png}}", self.folder.display());
        Ok(())
    }
}

/// A line for each message size: KiB, GB/s, p99.9 in us.
fn medians(turns: &[Turn], receiver: Receiver, with_antagonist: bool) -> String {
    let mut by_size: BTreeMap<usize, Vec<&Turn>> = BTreeMap::new();
    for turn in turns {
        if turn.receiver == receiver && turn.antagonist.is_some() == with_antagonist {
            by_size.entry(turn.shape.message_bytes).or_default().push(turn);
        }
    }
    let mut text = String::new();
    for (bytes, turns) in by_size {
        let of = |pick: fn(&Turn) -> f64| median(&turns.iter().map(|&turn| pick(turn)).collect::<Vec<_>>());
        let (rate, tail) = (of(|turn| turn.seen.gigabytes_per_s), of(|turn| turn.seen.p999_us));
        writeln!(text, "{} {rate} {tail}", bytes >> 10).expect("text grows");
    }
    text
}
