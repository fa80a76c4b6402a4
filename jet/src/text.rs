//! Formatting of numbers and tables for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Formats a number of bytes with a binary unit.
#[allow(clippy::cast_precision_loss)] // a figure of four digits
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Formats a rate in bytes per second with a decimal unit.
pub fn rate(bytes_per_s: f64) -> String {
    scaled(bytes_per_s, 1000.0, &["B/s", "KB/s", "MB/s", "GB/s"])
}

/// Formats a span of nanoseconds with a unit.
#[allow(clippy::cast_precision_loss)] // a figure of four digits
pub fn span_ns(span_ns: u64) -> String {
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

/// Formats rows of a name and a value as two columns.
pub fn rows(rows: &[(&str, String)]) -> String {
    let mut table = plain();
    table.add_rows(rows.iter().map(|(name, value)| [*name, value]));
    laid_out(&mut table, CellAlignment::Left)
}

/// Formats a table with a head. The first column is flush left, the others are flush right.
pub fn table(head: &[&str], lines: &[Vec<String>]) -> String {
    let mut table = plain();
    table.set_header(head).add_rows(lines);
    laid_out(&mut table, CellAlignment::Right)
}

/// Creates a table without lines between its cells. A row is never wrapped: programs such as `grep` read it,
/// too.
fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// Formats a table as text, with two blanks before each column. The first column is flush left; `others`
/// aligns the other columns.
fn laid_out(table: &mut Table, others: CellAlignment) -> String {
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((2, 0));
        column.set_cell_alignment(if number == 0 { CellAlignment::Left } else { others });
    }
    table.trim_fmt() + "\n"
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
