//! The picture of the benchmark's figures, drawn by gnuplot: throughput by message size without and with the
//! antagonist, and tail latency by load.

use super::BOUND_BYTES;
use super::bare::Size;
use super::receivers::Receiver;
use super::table::csv;
use super::turns::{Measured, Turn};
use crate::provenance::Run;
use crate::report::median;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// gnuplot's script. The script reads the points of each drawn line from a file of their own, and writes
/// `residency.svg` and `.png`.
const SCRIPT: &str = include_str!("picture.gnuplot");

/// A folder that the picture is written to. When this value exists, gnuplot is known to run.
pub struct Picture {
    folder: PathBuf,
    table: File,
}

impl Picture {
    /// Makes the folder for the picture, and checks that gnuplot runs. Call this function before anything is
    /// measured.
    ///
    /// # Errors
    /// gnuplot is missing, or the folder cannot be used.
    pub fn prepare(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let found = Command::new("gnuplot").arg("--version").stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            return Err(
                "--plot draws with gnuplot, which is not there; install it (Debian: gnuplot-nox)".into()
            );
        }
        let refused = |error| format!("--plot {}: no folder that can be written: {error}", folder.display());
        fs::create_dir_all(folder).map_err(refused)?;
        // An absolute path: gnuplot gives a leading `~` or `|` another meaning.
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
    /// An error of the system or gnuplot.
    pub fn draw(mut self, run: &Run, measured: &Measured) -> Result<(), Box<dyn Error>> {
        self.table.write_all(csv(measured).as_bytes())?;
        let data = crate::interrupt::folder()?;
        for with in [false, true] {
            let file = |key: &str| data.path().join(format!("{key}-{}", u8::from(with)));
            for receiver in Receiver::ALL {
                fs::write(file(receiver.key()), throughputs(measured, receiver, with))?;
            }
            for size in Size::ALL {
                fs::write(file(size.key()), bare(measured, size, with))?;
            }
        }
        let tails_bytes = tails_bytes(measured);
        for receiver in Receiver::ALL {
            let file = data.path().join(format!("{}-tail", receiver.key()));
            fs::write(file, tails(measured, receiver, tails_bytes))?;
        }
        let script = data.path().join("picture.gnuplot");
        fs::write(&script, SCRIPT)?;
        let quoted = |text: &str| text.replace('\'', "''");
        let settings = format!(
            "data='{}'; out='{}'; machine=\"{}\"; kib={}",
            quoted(&data.path().display().to_string()),
            quoted(&self.folder.display().to_string()),
            caption(run).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"),
            tails_bytes >> 10
        );
        let drawn = Command::new("gnuplot").arg("-e").arg(settings).arg(&script).status()?;
        if !drawn.success() {
            return Err(format!("gnuplot: {drawn}").into());
        }
        tracing::info!("{}/residency.{{csv,svg,png}}", self.folder.display());
        Ok(())
    }
}

/// Returns the picture's lines of text that say where and when the figures were measured.
fn caption(run: &Run) -> String {
    format!("{run}\n{}, {} rounds", day(run.unix_s / 86_400), run.samples)
}

/// Formats a number of days since 1970-01-01 as a date.
fn day(days: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

/// Returns the message size whose tail latencies are drawn: that to which the bounds apply, if it was
/// measured; else the first.
fn tails_bytes(measured: &Measured) -> usize {
    let mut sizes = measured.turns.iter().map(|turn| turn.shape.message_bytes);
    let first = sizes.clone().next().unwrap_or(BOUND_BYTES);
    sizes.find(|bytes| *bytes == BOUND_BYTES).unwrap_or(first)
}

/// Returns a receiver's throughput as a line for each message size: KiB, then GB/s as median, least and most.
/// `with`: with the antagonist.
fn throughputs(measured: &Measured, receiver: Receiver, with: bool) -> String {
    let ours = |turn: &&Turn| {
        turn.receiver == receiver && turn.antagonist.is_some() == with && turn.offered.is_none()
    };
    let turns = measured.turns.iter().filter(ours);
    points(turns.map(|turn| (turn.shape.message_bytes >> 10, turn.figures.gigabytes_per_s)))
}

/// Returns the throughput of the bare loop's ring of this size, in the same form as [`throughputs`].
fn bare(measured: &Measured, size: Size, with: bool) -> String {
    let these = measured.bare.iter().filter(|bare| bare.ring == size && bare.antagonist.is_some() == with);
    points(these.map(|bare| (bare.shape.message_bytes >> 10, bare.gigabytes_per_s)))
}

/// Returns a receiver's tail latency as a line for each load of an open loop: percent, then p99.9 in ms as
/// median, least and most.
fn tails(measured: &Measured, receiver: Receiver, message_bytes: usize) -> String {
    let ours = |turn: &&Turn| turn.receiver == receiver && turn.shape.message_bytes == message_bytes;
    let turns = measured.turns.iter().filter(ours);
    points(turns.filter_map(|turn| Some((turn.offered?.percent as usize, turn.figures.p999_us / 1e3))))
}

fn points(figures: impl Iterator<Item = (usize, f64)>) -> String {
    let mut by_place: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (place, figure) in figures {
        by_place.entry(place).or_default().push(figure);
    }
    let mut text = String::new();
    for (place, figures) in by_place {
        let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let most = figures.iter().copied().fold(0.0, f64::max);
        writeln!(text, "{place} {} {least} {most}", median(&figures)).expect("text grows");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (days, date) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (19_722, "2023-12-31"),
            (20_484, "2026-01-31"),
            (20_513, "2026-03-01"),
        ] {
            assert_eq!(day(days), date);
        }
    }

    #[test]
    fn a_point_is_the_median_and_both_ends() {
        let figures = [(256, 3.0), (4, 9.0), (256, 1.0), (256, 2.5)];
        assert_eq!(points(figures.into_iter()), "4 9 9 9\n256 2.5 1 3\n");
    }
}
