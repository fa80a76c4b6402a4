//! Rows of figures: a table for people, one JSON object a row for programs.

use serde::Serialize;

/// What a figure must keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Nothing.
    None,
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The benchmark's name.
    pub bench: &'static str,
    /// What was measured.
    pub metric: String,
    /// The figure: the median of the samples.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What it must keep to, in words; null: nothing.
    pub bound: Option<String>,
    /// Whether it does.
    pub holds: bool,
    /// Every sample.
    pub samples: Vec<f64>,
}

impl Row {
    /// The median of samples against a bound.
    pub fn new(
        bench: &'static str,
        metric: &str,
        unit: &'static str,
        samples: Vec<f64>,
        bound: Bound,
    ) -> Self {
        let value = median(&samples);
        let (bound, holds) = match bound {
            Bound::None => (None, true),
            Bound::AtMost(limit) => (Some(format!("<= {limit}")), value <= limit),
            Bound::AtLeast(limit) => (Some(format!(">= {limit}")), value >= limit),
        };
        Self { bench, metric: metric.to_owned(), value, unit, bound, holds, samples }
    }
}

/// The middle one; the mean of the middle two.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Each sample beside the one that was taken just before it: what drifts over a run, as a shared machine's memory does,
/// is in both.
pub fn pairwise(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(value, base)| value / base).collect()
}

/// Prints rows, and says whether every bound holds.
pub fn print(rows: &[Row], json: bool) -> bool {
    let width = rows.iter().map(|row| row.metric.len()).max().unwrap_or(0);
    for row in rows {
        if json {
            println!("{}", serde_json::to_string(row).expect("rows are plain values"));
        } else {
            let bound = row.bound.as_deref().map_or(String::new(), |bound| {
                format!("   {bound}: {}", if row.holds { "holds" } else { "DOES NOT HOLD" })
            });
            println!(
                "{:<12} {:<width$} {:>12} {:<8}{bound}",
                row.bench,
                row.metric,
                figure(row.value),
                row.unit
            );
        }
    }
    rows.iter().all(|row| row.holds)
}

fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_bounds() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(Row::new("b", "m", "ns", vec![60.0], Bound::AtMost(60.0)).holds);
        let row = Row::new("b", "m", "ratio", vec![0.69], Bound::AtLeast(0.7));
        assert!(!row.holds);
        let json = serde_json::to_value(&row).unwrap();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["bench", "bound", "holds", "metric", "samples", "unit", "value"]);
    }
}
