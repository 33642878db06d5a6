//! Raw figures: files of `docs/benchmarks/`, whose rows are replaced one by one, so that
//! a part can be measured again.

use std::{fmt::Write, fs};

use super::docs;

/// A file of figures.
pub struct Csv {
    name: &'static str,
    columns: &'static [&'static str],
    /// Number of key columns, from the first one on.
    keys: usize,
    rows: Vec<Vec<String>>,
}

impl Csv {
    /// Reads the file, if it is there and has these columns.
    pub fn open(name: &'static str, columns: &'static [&'static str], keys: usize) -> Csv {
        let text = fs::read_to_string(docs(&format!("benchmarks/{name}.csv")));
        let text = text.unwrap_or_default();
        let mut lines = text
            .lines()
            .map(|line| line.split(',').map(str::to_owned).collect());
        let head: Vec<String> = lines.next().unwrap_or_default();
        let rows = if head == columns {
            lines.collect()
        } else {
            Vec::new()
        };
        Csv {
            rows,
            ..Csv::empty(name, columns, keys)
        }
    }

    /// A file without rows; its old content is lost when the first row is put.
    pub fn empty(name: &'static str, columns: &'static [&'static str], keys: usize) -> Csv {
        Csv {
            name,
            columns,
            keys,
            rows: Vec::new(),
        }
    }

    /// Adds a row, or replaces the row with the same keys, and writes the file.
    pub fn put(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.columns.len(), "{row:?}");
        let about = |row: &Vec<String>| row[..self.keys].to_vec();
        match self.rows.iter_mut().find(|old| about(old) == about(&row)) {
            Some(old) => *old = row,
            None => self.rows.push(row),
        }
        let mut text = format!("{}\n", self.columns.join(","));
        for row in &self.rows {
            let _ = writeln!(text, "{}", row.join(","));
        }
        let path = docs(&format!("benchmarks/{}.csv", self.name));
        fs::create_dir_all(docs("benchmarks")).expect("docs/benchmarks");
        fs::write(path, text).expect("writing the figures");
    }

    /// Reads a column in the row with these keys.
    pub fn text(&self, keys: &[&str], column: &str) -> Option<&str> {
        let at = self.columns.iter().position(|name| *name == column);
        let at = at.unwrap_or_else(|| panic!("no column {column}"));
        let row = self.rows.iter().find(|row| row[..self.keys] == *keys)?;
        Some(&row[at])
    }

    /// Reads the number in a column of the row with these keys, if it was measured.
    pub fn number(&self, keys: &[&str], column: &str) -> Option<f64> {
        self.text(keys, column)?.parse().ok()
    }
}
