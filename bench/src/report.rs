//! Rows of a benchmark's figures, as a table for people and as JSON for programs, and whether the rows'
//! bounds hold.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::fmt::Write as _;

/// Size of a benchmark's run: its samples, and whether it is brief.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    /// Number of samples of each figure.
    pub samples: u32,
    /// Whether the run only shows that the benchmark works. A brief run takes the shorter of two spans or
    /// counts.
    pub brief: bool,
}

impl RunSize {
    /// Returns `brief` if the run is brief, else `whole`: a benchmark's span or count.
    pub fn of<T>(self, whole: T, brief: T) -> T {
        if self.brief { brief } else { whole }
    }
}

/// Bound of a figure, which decides whether a check passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The figure has no bound.
    None,
    /// The figure must be at most this value.
    AtMost(f64),
    /// The figure must be at least this value.
    AtLeast(f64),
    /// The figure must be exactly this value.
    Exactly(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::None => true,
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
            // Exact for a count: f64 has every whole number up to 2^53.
            Self::Exactly(wanted) => value.total_cmp(&wanted).is_eq(),
        }
    }

    fn words(self) -> Option<String> {
        match self {
            Self::None => None,
            Self::AtMost(limit) => Some(format!("<= {limit}")),
            Self::AtLeast(limit) => Some(format!(">= {limit}")),
            Self::Exactly(wanted) => Some(format!("= {wanted}")),
        }
    }
}

/// Kind of a row: the row's bound must hold on any machine, or only on a quiet one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A count or a relation that holds on any machine, however busy the machine is. Every sample must keep
    /// to the bound.
    Exact,
    /// A figure of one machine at one time. The bound of such a figure, if any, applies to a machine that
    /// does nothing else.
    Timed,
}

/// The bounds that decide whether the program exits with 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Check {
    /// The bounds of all rows: for a machine that does nothing else
    All,
    /// The bounds of exact rows: for any machine
    Exact,
}

/// One figure of a benchmark. The fields are the keys of the row's JSON object, in this order.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The benchmark's name.
    pub bench: &'static str,
    /// Name of what was measured.
    pub metric: String,
    /// Kind of the row: exact on any machine, or a figure of this machine.
    pub kind: Kind,
    /// The figure: the median of the samples, or the sample that is worst for its bound in an exact row.
    pub value: f64,
    /// Unit of the figure.
    pub unit: &'static str,
    /// Bound of the figure, in words; null: none.
    pub bound: Option<String>,
    /// Whether the bound holds; null: not checked, because the run was brief.
    pub holds: Option<bool>,
    /// Every sample of the figure.
    pub samples: Vec<f64>,
}

impl Row {
    /// Makes a row of [`Kind::Timed`]: the median of the samples is held against the bound.
    pub fn new(
        bench: &'static str,
        metric: &str,
        unit: &'static str,
        samples: Vec<f64>,
        bound: Bound,
    ) -> Self {
        let value = median(&samples);
        let (metric, holds) = (metric.to_owned(), Some(bound.holds(value)));
        Self { bench, metric, kind: Kind::Timed, value, unit, bound: bound.words(), holds, samples }
    }

    /// Makes a row of [`Kind::Exact`]: each sample is held against the bound. Without samples the bound does
    /// not hold, since nothing was measured.
    ///
    /// # Panics
    /// If there is no bound: a row that cannot fail is not exact.
    pub fn exact(
        bench: &'static str,
        metric: &str,
        unit: &'static str,
        samples: Vec<f64>,
        bound: Bound,
    ) -> Self {
        let worse = |worst: f64, sample: f64| match bound {
            Bound::None => panic!("an exact row has a bound"),
            Bound::AtMost(_) => worst.max(sample),
            Bound::AtLeast(_) => worst.min(sample),
            Bound::Exactly(wanted) if (sample - wanted).abs() > (worst - wanted).abs() => sample,
            Bound::Exactly(_) => worst,
        };
        let value = match samples[..] {
            // `max` and `min` skip a NaN, which must show here.
            _ if samples.iter().any(|sample| sample.is_nan()) => f64::NAN,
            [first, ..] => samples.iter().copied().fold(first, worse),
            [] => f64::NAN,
        };
        let (metric, holds) = (metric.to_owned(), Some(bound.holds(value)));
        Self { bench, metric, kind: Kind::Exact, value, unit, bound: bound.words(), holds, samples }
    }

    /// Returns whether the row has a bound that was judged.
    fn is_judged(&self) -> bool {
        self.bound.is_some() && self.holds.is_some()
    }

    /// Returns the text of the row's bound and whether the bound holds. An asterisk marks a bound for a
    /// machine that does nothing else.
    fn verdict(&self) -> String {
        let Some(bound) = &self.bound else { return String::new() };
        let holds = match self.holds {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "not judged, brief",
        };
        let mark = if self.kind == Kind::Timed { " *" } else { "" };
        format!("{bound}: {holds}{mark}")
    }
}

/// Returns the middle sample, or the mean of the two middle ones; NaN without samples.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Returns the ratios of samples at the same place: each of `of` divided by that of `to` which was taken at
/// about the same time. A drift over the run, as of a shared machine's memory, is in both samples and cancels
/// out.
pub fn pairwise(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(value, base)| value / base).collect()
}

/// Marks the bounds of timed rows as not judged, since a brief run's spans are too short for a judgement.
pub fn leave_unjudged(rows: &mut [Row]) {
    let timed = |row: &&mut Row| row.kind == Kind::Timed && row.bound.is_some();
    rows.iter_mut().filter(timed).for_each(|row| row.holds = None);
}

/// Checks the bounds that `check` selects.
///
/// # Errors
/// A text that lists the bounds which do not hold, or says that the run has none to check.
pub fn check(rows: &[Row], check: Check) -> Result<(), String> {
    let looked_at = |row: &&Row| row.is_judged() && (check == Check::All || row.kind == Kind::Exact);
    let judged: Vec<&Row> = rows.iter().filter(looked_at).collect();
    if judged.is_empty() {
        let kind = if check == Check::Exact { "exact row" } else { "row with a bound" };
        return Err(format!("there was nothing to check: the run has no {kind}"));
    }
    let broken: Vec<&&Row> = judged.iter().filter(|row| row.holds == Some(false)).collect();
    if broken.is_empty() {
        return Ok(());
    }
    let mut text = format!("{} of {} bounds do not hold:", broken.len(), judged.len());
    for Row { bench, metric, value, unit, bound, .. } in broken {
        let bound = bound.as_deref().unwrap_or_default();
        write!(text, "\n  {bench}: {metric}: {} {unit}, not {bound}", figure(*value)).expect("text grows");
    }
    Err(text)
}

/// Returns the rows as JSON, an object a line.
pub fn lines(rows: &[Row]) -> String {
    let line = |row| serde_json::to_string(row).expect("rows are plain values") + "\n";
    rows.iter().map(line).collect()
}

/// Returns the rows as a table.
pub fn table(rows: &[Row]) -> String {
    let head = ["bench", "metric", "value", "unit", "least .. most", "n", "kind", "bound"].map(str::to_owned);
    let mut cells = vec![head];
    for row in rows {
        let kind = if row.kind == Kind::Exact { "exact" } else { "timed" };
        cells.push([
            row.bench.to_owned(),
            row.metric.clone(),
            figure(row.value),
            row.unit.to_owned(),
            spread(&row.samples),
            row.samples.len().to_string(),
            kind.to_owned(),
            row.verdict(),
        ]);
    }
    let mut text = aligned(&cells, &[2, 5]);
    if rows.iter().any(|row| row.kind == Kind::Timed && row.bound.is_some()) {
        text.push_str(
            "* the bound wants a machine that does nothing else, with a core for each process; on a busy one \
             it says little\n",
        );
    }
    text.push_str("value: the median of n samples; of an exact row the worst of them\n");
    text
}

/// Lays out rows of cells, each column as wide as its widest cell. Columns with a number in `right` are flush
/// right.
pub fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]], right: &[usize]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).add_rows(rows);
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        let flush = if right.contains(&number) { CellAlignment::Right } else { CellAlignment::Left };
        column.set_cell_alignment(flush);
    }
    table.trim_fmt() + "\n"
}

fn spread(samples: &[f64]) -> String {
    match samples {
        [] | [_] => String::new(),
        [first, rest @ ..] => {
            let least = rest.iter().copied().fold(*first, f64::min);
            let most = rest.iter().copied().fold(*first, f64::max);
            format!("{} .. {}", figure(least), figure(most))
        }
    }
}

/// Formats a figure: the larger it is, the fewer decimals.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 || v.fract() == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(value: f64, bound: Bound) -> Row {
        Row::new("b", "m", "ns", vec![value], bound)
    }

    fn exact(samples: &[f64], bound: Bound) -> Row {
        Row::exact("b", "m", "messages", samples.to_vec(), bound)
    }

    #[test]
    fn medians_and_bounds() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert_eq!(timed(60.0, Bound::AtMost(60.0)).holds, Some(true));
        let row = timed(0.69, Bound::AtLeast(0.7));
        assert_eq!(row.holds, Some(false));
        let json = serde_json::to_value(&row).unwrap();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["bench", "bound", "holds", "kind", "metric", "samples", "unit", "value"]);
        assert_eq!(json["kind"], "timed");
    }

    #[test]
    fn one_bad_sample_breaks_an_exact_row_and_not_a_timed_one() {
        let samples = [0.0, 0.0, 1.0];
        assert_eq!(Row::new("b", "m", "ns", samples.to_vec(), Bound::AtMost(0.0)).holds, Some(true));
        assert_eq!(exact(&samples, Bound::AtMost(0.0)).holds, Some(false));
        assert_eq!(exact(&[2.0, 3.0], Bound::AtLeast(3.0)).holds, Some(false));
        assert_eq!(exact(&[3.0, 3.0], Bound::Exactly(3.0)).holds, Some(true));
        assert_eq!(exact(&[3.0, 2.0, 3.0], Bound::Exactly(3.0)).holds, Some(false));
        assert_eq!(exact(&[3.0, 4.0], Bound::Exactly(3.0)).holds, Some(false));
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        for bound in [Bound::AtMost(0.0), Bound::AtLeast(0.0), Bound::Exactly(0.0)] {
            assert_eq!(exact(&[], bound).holds, Some(false));
            assert_eq!(exact(&[0.0, f64::NAN], bound).holds, Some(false));
            assert_eq!(Row::new("b", "m", "ns", vec![], bound).holds, Some(false));
        }
    }

    #[test]
    fn a_check_looks_at_what_it_is_told_to() {
        let slow = timed(61.0, Bound::AtMost(60.0));
        let lost = exact(&[1.0], Bound::AtMost(0.0));
        let whole = exact(&[0.0], Bound::AtMost(0.0));
        assert!(check(&[slow.clone(), whole.clone()], Check::All).is_err());
        assert!(check(&[slow.clone(), whole], Check::Exact).is_ok());
        let said = check(&[slow, lost], Check::Exact).unwrap_err();
        assert!(said.contains("1 of 1 bounds") && said.contains("1 messages, not <= 0"), "{said}");
    }

    #[test]
    fn a_check_of_nothing_fails() {
        let figure_only = timed(1.0, Bound::None);
        assert!(check(std::slice::from_ref(&figure_only), Check::All).is_err());
        assert!(check(&[figure_only, timed(1.0, Bound::AtMost(2.0))], Check::Exact).is_err());
    }

    #[test]
    fn a_brief_run_judges_exact_rows_only() {
        let mut rows = [timed(61.0, Bound::AtMost(60.0)), exact(&[0.0], Bound::AtMost(0.0))];
        leave_unjudged(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.holds), [None, Some(true)]);
        assert!(check(&rows, Check::All).is_ok());
        assert!(check(&rows[..1], Check::All).is_err(), "nothing was judged");
        assert!(table(&rows).contains("<= 60: not judged, brief *"));
    }

    #[test]
    fn the_table_has_heads_spread_and_a_mark_at_what_wants_a_quiet_machine() {
        let rows = [
            Row::new("b", "fast", "ns", vec![1.0, 3.0, 2.0], Bound::AtMost(60.0)),
            exact(&[0.0], Bound::AtMost(0.0)),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("bench  metric"), "{text}");
        assert!(lines[1].contains("1 .. 3         3  timed  <= 60: holds *"), "{text}");
        assert!(lines[2].ends_with("1  exact  <= 0: holds"), "{text}");
        assert!(lines[3].starts_with("* the bound wants a machine that does nothing else"), "{text}");
        assert!(!table(&rows[1..]).contains('*'), "no mark, no legend");
    }
}
