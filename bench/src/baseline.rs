//! Compares this run with an earlier one. Each row gets the ratio of the medians, this run's / the earlier
//! one's, and the ratio's 95 % confidence interval.
//!
//! The interval is a bootstrap's: both runs' samples are drawn again, with replacement, 10,000 times, from a
//! fixed seed. The interval covers the samples' own spread. The interval does not cover what a machine does
//! differently an hour later: several runs, taken alternately, tell more than one interval.

use crate::pattern::scatter;
use crate::provenance::{Line, Run};
use crate::report::{Row, aligned, figure, median};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

const DRAWS: u32 = 10_000;
const SEED: u64 = 1;
/// Number of draws in a thousand that lie below the 95 % interval; as many lie above it.
const BELOW_PERMILLE: usize = 25;

/// A benchmark row that an earlier run wrote.
#[derive(Debug, Deserialize)]
struct EarlierRow {
    bench: String,
    metric: String,
    unit: String,
    /// Every sample of the row; null where the sample was not a number.
    samples: Vec<Option<f64>>,
    /// Index of the row's run among the runs in the file.
    #[serde(skip)]
    run: Option<usize>,
}

impl EarlierRow {
    fn is(&self, row: &Row) -> bool {
        (self.bench.as_str(), self.metric.as_str(), self.unit.as_str())
            == (row.bench, row.metric.as_str(), row.unit)
    }
}

/// Runs and rows that earlier runs wrote with `--json`.
#[derive(Debug)]
pub struct Baseline {
    rows: Vec<EarlierRow>,
    runs: Vec<Run>,
}

/// A benchmark row that is in both this run and the earlier one, with the two medians.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    bench: String,
    metric: String,
    unit: String,
    /// The earlier run's median.
    then: f64,
    now: f64,
    /// This run's median divided by the earlier run's; null where that is not a number.
    ratio: f64,
    /// The ratio's 95 % interval; null where one of the runs has a single sample.
    interval: Option<[f64; 2]>,
}

/// A line of `--json` that a comparison prints.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Output<'a> {
    Compared(&'a Compared),
    Missing { bench: &'a str, metric: &'a str, unit: &'a str },
    Differs(&'a str),
}

/// The rows of this run beside those of the earlier run.
#[derive(Debug)]
pub struct Comparison<'a> {
    compared: Vec<Compared>,
    missing: Vec<&'a EarlierRow>,
    /// Differences between the two runs' machines, builds and settings, and rows or runs that cannot be
    /// compared.
    notes: Vec<String>,
}

impl Baseline {
    /// Reads a file that `--json` printed.
    ///
    /// # Errors
    /// An error of the system, a line that is neither a run nor a row, or a file without a row.
    pub fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("--baseline {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("--baseline {}: {error}", path.display()).into())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut baseline = Self { rows: Vec::new(), runs: Vec::new() };
        for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let said = |error: serde_json::Error| format!("line {}: {error}", n + 1);
            let value: serde_json::Value = serde_json::from_str(line).map_err(said)?;
            if value.get("run").is_some() {
                let Line { run } = serde_json::from_value(value).map_err(said)?;
                baseline.runs.push(run);
            } else if ["compared", "missing", "differs"].iter().all(|key| value.get(key).is_none()) {
                let row: EarlierRow = serde_json::from_value(value).map_err(said)?;
                let run = baseline.runs.len().checked_sub(1);
                baseline.rows.push(EarlierRow { run, ..row });
            }
        }
        if baseline.rows.is_empty() {
            return Err("it has no row; it is to be what --json printed".to_owned());
        }
        Ok(baseline)
    }

    /// Compares the rows of a run with the baseline's.
    pub fn compare(&self, run: &Run, rows: &[Row]) -> Comparison<'_> {
        let mut comparison = Comparison { compared: Vec::new(), missing: Vec::new(), notes: Vec::new() };
        let mut runs = Vec::new();
        for row in rows {
            match self.rows.iter().find(|earlier| earlier.is(row)) {
                Some(earlier) => {
                    comparison.compared.push(compare(earlier, row));
                    if !runs.contains(&earlier.run) {
                        runs.push(earlier.run);
                    }
                }
                None => comparison.notes.push(format!("not in the baseline: {}: {}", row.bench, row.metric)),
            }
        }
        let ran = |earlier: &&EarlierRow| rows.iter().any(|row| row.bench == earlier.bench);
        let gone = |earlier: &&EarlierRow| !rows.iter().any(|row| earlier.is(row));
        comparison.missing = self.rows.iter().filter(ran).filter(gone).collect();
        for earlier in runs {
            match earlier {
                Some(earlier) => comparison.notes.extend(run.differences(&self.runs[earlier])),
                None => comparison
                    .notes
                    .push("the baseline does not say of which machine, commit and settings it is".to_owned()),
            }
        }
        if comparison.compared.is_empty() {
            comparison.notes.push("no row of this run is in the baseline".to_owned());
        }
        comparison
    }
}

fn compare(earlier: &EarlierRow, row: &Row) -> Compared {
    let before: Vec<f64> = earlier.samples.iter().map(|sample| sample.unwrap_or(f64::NAN)).collect();
    let (of_then, of_now) = (median(&before), median(&row.samples));
    let ratio = of_now / of_then;
    let told = before.len() > 1 && row.samples.len() > 1 && ratio.is_finite();
    let (bench, metric, unit) = (earlier.bench.clone(), earlier.metric.clone(), earlier.unit.clone());
    let interval = told.then(|| interval(&before, &row.samples));
    Compared { bench, metric, unit, then: of_then, now: of_now, ratio, interval }
}

/// Returns the interval that holds 95 of 100 bootstrap ratios, now / then. Each ratio is of the medians of
/// samples drawn again with replacement.
fn interval(then: &[f64], now: &[f64]) -> [f64; 2] {
    let mut state = SEED;
    let mut draw = |from: &[f64]| -> f64 {
        let drawn: Vec<f64> = from
            .iter()
            .map(|_| {
                state += 1;
                #[allow(clippy::cast_possible_truncation)] // less than a length
                let at = (scatter(state) % from.len() as u64) as usize;
                from[at]
            })
            .collect();
        median(&drawn)
    };
    let mut ratios: Vec<f64> = (0..DRAWS).map(|_| draw(now) / draw(then)).collect();
    ratios.sort_by(f64::total_cmp);
    let below = ratios.len() * BELOW_PERMILLE / 1000;
    [ratios[below], ratios[ratios.len() - 1 - below]]
}

impl Comparison<'_> {
    /// Returns the comparison as JSON, an object a line: `compared`, `missing`, `differs`.
    pub fn lines(&self) -> String {
        let compared = self.compared.iter().map(Output::Compared);
        let missing = self.missing.iter().map(|EarlierRow { bench, metric, unit, .. }| Output::Missing {
            bench,
            metric,
            unit,
        });
        let notes = self.notes.iter().map(|note| Output::Differs(note));
        let line = |output| serde_json::to_string(&output).expect("plain values") + "\n";
        compared.chain(missing).chain(notes).map(line).collect()
    }

    /// Returns the comparison as a table.
    pub fn table(&self) -> String {
        let head = ["bench", "metric", "unit", "then", "now", "now / then", "95 % interval", ""];
        let mut cells = vec![head.map(str::to_owned)];
        for Compared { bench, metric, unit, then, now, ratio, interval } in &self.compared {
            let (between, words) = match interval {
                Some([low, high]) if *low > 1.0 => (format!("{low:.3} .. {high:.3}"), "more"),
                Some([low, high]) if *high < 1.0 => (format!("{low:.3} .. {high:.3}"), "less"),
                Some([low, high]) => (format!("{low:.3} .. {high:.3}"), "no difference seen"),
                None if ratio.is_finite() => (String::new(), "one sample: no interval"),
                None if *then == 0.0 && *now == 0.0 => (String::new(), "0 both times"),
                None => (String::new(), "no ratio"),
            };
            let ratio = if ratio.is_finite() { format!("{ratio:.3}") } else { "-".to_owned() };
            cells.push([
                bench.clone(),
                metric.clone(),
                unit.clone(),
                figure(*then),
                figure(*now),
                ratio,
                between,
                words.to_owned(),
            ]);
        }
        let mut text = String::from("beside the baseline, medians:\n");
        text.push_str(&aligned(&cells, &[3, 4, 5]));
        let missing = self.missing.iter().map(|earlier| {
            format!("MISSING now, in the baseline: {}: {} ({})", earlier.bench, earlier.metric, earlier.unit)
        });
        for line in missing.chain(self.notes.iter().cloned()) {
            writeln!(text, "{line}").expect("text grows");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provenance::tests::example;
    use crate::report::{Bound, lines};

    fn row(metric: &str, samples: &[f64]) -> Row {
        Row::new("b", metric, "GB/s", samples.to_vec(), Bound::None)
    }

    fn baseline(rows: &[Row]) -> Baseline {
        let run = serde_json::to_string(&Line { run: example() }).unwrap();
        Baseline::parse(&format!("{run}\n{}", lines(rows))).unwrap()
    }

    #[test]
    fn a_ratio_lies_in_its_interval_which_is_the_same_every_time() {
        let then = baseline(&[row("rate", &[9.0, 10.0, 11.0, 10.0, 10.5])]);
        let now = [row("rate", &[19.0, 20.0, 21.0, 20.0, 20.5])];
        let first = then.compare(&example(), &now).compared.remove(0);
        let [low, high] = first.interval.unwrap();
        assert!((first.ratio - 2.0).abs() < 1e-9, "{first:?}");
        assert!(low < 2.0 && 2.0 < high && low > 1.7 && high < 2.4, "{first:?}");
        assert_eq!(then.compare(&example(), &now).compared.remove(0), first);
        assert!(then.compare(&example(), &now).table().contains("more"));
    }

    #[test]
    fn samples_that_overlap_show_no_difference() {
        let then = baseline(&[row("rate", &[9.0, 10.0, 11.0, 12.0, 8.0])]);
        let text = then.compare(&example(), &[row("rate", &[9.5, 8.5, 11.5, 10.5, 10.0])]).table();
        assert!(text.contains("no difference seen"), "{text}");
    }

    #[test]
    fn the_interval_holds_the_truth_about_as_often_as_it_says() {
        // Both runs from the same distribution, again and again: the ratio is 1.
        let mut state = 7;
        let mut samples = |count: usize| -> Vec<f64> {
            (0..count)
                .map(|_| {
                    state += 1;
                    // 100 to 200, evenly.
                    f64::from(u32::try_from(scatter(state) % 1000).unwrap()) / 10.0 + 100.0
                })
                .collect()
        };
        let held = (0..200)
            .filter(|_| {
                let [low, high] = interval(&samples(15), &samples(15));
                low <= 1.0 && 1.0 <= high
            })
            .count();
        assert!((180..=199).contains(&held), "{held} of 200");
    }

    #[test]
    fn one_sample_has_no_interval_and_zero_no_ratio() {
        let then = baseline(&[row("rate", &[10.0]), row("lost", &[0.0, 0.0]), row("none", &[f64::NAN])]);
        let now = [row("rate", &[5.0]), row("lost", &[0.0, 0.0]), row("none", &[1.0, 2.0])];
        let text = then.compare(&example(), &now).table();
        assert!(text.contains("0.500") && text.contains("one sample: no interval"), "{text}");
        assert!(text.contains("0 both times") && text.contains("no ratio"), "{text}");
    }

    #[test]
    fn what_is_missing_is_told_and_only_of_what_ran() {
        let other = Row::new("other", "x", "ns", vec![1.0], Bound::None);
        let then = baseline(&[row("rate", &[1.0]), row("gone", &[1.0]), other]);
        let now = [row("rate", &[1.0]), row("added", &[1.0])];
        let comparison = then.compare(&example(), &now);
        let text = comparison.table();
        assert!(text.contains("MISSING now, in the baseline: b: gone (GB/s)"), "{text}");
        assert!(!text.contains("other"), "{text}");
        assert!(text.contains("not in the baseline: b: added"), "{text}");
        assert!(comparison.lines().contains("{\"missing\":{\"bench\":\"b\",\"metric\":\"gone\""));
        // The same metric in another unit is another row.
        let unlike = Row::new("b", "rate", "1/s", vec![1.0], Bound::None);
        assert!(
            then.compare(&example(), &[unlike]).table().contains("no row of this run is in the baseline")
        );
    }

    #[test]
    fn another_machine_or_other_settings_are_told() {
        let then = baseline(&[row("rate", &[1.0])]);
        let mut run = example();
        assert!(then.compare(&run, &[row("rate", &[1.0])]).notes.is_empty());
        run.machine.cores = 64;
        run.profile = "quick".to_owned();
        let text = then.compare(&run, &[row("rate", &[1.0])]).table();
        assert!(text.contains("cores: 2 then, 64 now\nprofile: release then, quick now\n"), "{text}");
        let bare = Baseline::parse(&lines(&[row("rate", &[1.0])])).unwrap();
        let text = bare.compare(&run, &[row("rate", &[1.0])]).table();
        assert!(text.contains("does not say of which machine"), "{text}");
    }

    #[test]
    fn what_is_no_output_of_this_program_is_refused() {
        assert!(Baseline::parse("").unwrap_err().contains("no row"));
        assert!(Baseline::parse("bench metric\n").unwrap_err().contains("line 1"));
        assert!(Baseline::parse("{\"bench\":\"b\"}\n").unwrap_err().contains("line 1"));
        // The lines of a comparison are passed over.
        let text = lines(&[row("rate", &[1.0])]);
        let comparison = baseline(&[row("rate", &[1.0])]);
        let printed = comparison.compare(&example(), &[row("rate", &[1.0])]).lines();
        assert_eq!(Baseline::parse(&(text + &printed)).unwrap().rows.len(), 1);
    }
}
