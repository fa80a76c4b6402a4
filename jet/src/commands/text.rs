//! Numbers for people.

use std::fmt::Write;

/// Bytes with a binary unit.
#[allow(clippy::cast_precision_loss)] // a figure of four digits
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Bytes a second with a decimal unit.
pub(crate) fn rate(bytes_per_s: f64) -> String {
    scaled(bytes_per_s, 1000.0, &["B/s", "KB/s", "MB/s", "GB/s"])
}

/// A span with a unit.
#[allow(clippy::cast_precision_loss)] // a figure of four digits
pub(crate) fn span_ns(span_ns: u64) -> String {
    scaled(span_ns as f64, 1000.0, &["ns", "us", "ms", "s"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 || value >= 100.0 => 0,
        _ if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {}", units[unit])
}

/// Rows of a name and a value, the values one below the other.
pub(crate) fn rows(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "  {name:width$}  {value}");
        text
    })
}

/// A table with a head; the first column to the left, the others to the right.
pub(crate) fn table(head: &[&str], lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let head: Vec<_> = head.iter().map(|&cell| cell.to_owned()).collect();
    for line in std::iter::once(&head).chain(lines) {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ =
                if column == 0 { write!(text, "  {cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_unit_that_fits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(12 << 20), "12.0 MiB");
        assert_eq!(rate(1_234_000_000.0), "1.23 GB/s");
        assert_eq!(span_ns(999), "999 ns");
        assert_eq!(span_ns(186_000), "186 us");
    }

    #[test]
    fn columns_line_up() {
        let text =
            table(&["name", "n"], &[vec!["a".into(), "100".into()], vec!["long name".into(), "1".into()]]);
        assert_eq!(text, "  name         n\n  a          100\n  long name    1\n");
        assert_eq!(rows(&[("a", "1".into()), ("bcd", "2".into())]), "  a    1\n  bcd  2\n");
    }
}
