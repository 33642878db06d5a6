//! Rows of cells as aligned columns.

/// Space between two columns.
const GAP: usize = 2;

/// Returns the rows as lines, each column as wide as its longest cell.
pub fn lines<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> Vec<String> {
    let mut widths = [0; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; COLUMNS]| {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            line.push_str(cell);
            let missing = width - cell.chars().count() + GAP;
            line.push_str(&" ".repeat(missing));
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["a", "port", "x"], ["größer", "1", ""]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(lines(&rows), ["a       port  x", "größer  1"]);
    }
}
