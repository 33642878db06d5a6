//! Tables of Markdown.

use std::fmt::Write;

/// Returns a table: its head, and rows with as many cells.
pub fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|---|", head.join(" | "));
    text.push_str(&"---:|".repeat(head.len().saturating_sub(1)));
    text.push('\n');
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

/// Formats a figure with three significant digits, or nothing.
pub fn figure(value: Option<f64>) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else {
        return String::new();
    };
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats a number with commas between thousands.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
