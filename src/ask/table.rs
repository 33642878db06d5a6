//! Rows of cells as aligned columns.

use std::iter;

/// Space between two columns.
const GAP: usize = 2;

/// Returns the rows as lines, each column as wide as its longest cell.
pub fn lines<const COLUMNS: usize>(
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> Vec<String> {
    let rows: Vec<_> = rows.into_iter().collect();
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; COLUMNS]| {
        let mut line = String::new();
        for (&width, cell) in widths.iter().zip(row) {
            line.push_str(&format!("{cell:width$}{:GAP$}", ""));
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Returns the rows as lines below a heading.
pub fn headed<const COLUMNS: usize>(
    heading: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> Vec<String> {
    lines(iter::once(heading.map(str::to_owned)).chain(rows))
}
