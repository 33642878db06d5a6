//! Prints the report for people.

mod changes;

use super::report::{Importance, Report, Row};
use crate::net::ModeName;

/// Longest line, in columns.
const COLUMNS: usize = 90;
/// Number of names of things in the kernel that are shown; the rest is counted.
const NAMES: usize = 6;

/// Returns the lines; `wide`: everything is shown.
pub fn table(report: &Report, wide: bool) -> String {
    let mut text = String::new();
    let Report { configuration, .. } = report;
    field(&mut text, "", "from", configuration);
    field(
        &mut text,
        "",
        "kube-proxy",
        &format!("{} mode", report.kube_proxy_mode),
    );
    match &report.node {
        None => field(
            &mut text,
            "",
            "Tripod",
            &format!("asked for {} mode", report.asked),
        ),
        Some(chosen) => {
            let mode = match &chosen.mode {
                Some(mode) => format!("{mode} mode on this node"),
                None => "no mode can run on this node: see tripod probe".to_owned(),
            };
            field(&mut text, "", "Tripod", &mode);
            for (name, lines) in [
                ("no better", &chosen.passed_over),
                ("without", &chosen.lost),
            ] {
                for line in lines {
                    field(&mut text, "", name, line);
                }
            }
        }
    }
    differences(&mut text, report);
    kernel(&mut text, report);
    changes::write(&mut text, report, wide);
    text.push_str(if report.differs() {
        "\nSomething differs.\n"
    } else {
        "\nNothing that matters differs.\n"
    });
    text
}

fn differences(text: &mut String, report: &Report) {
    let decisive = report.decisive();
    for importance in [Importance::Difference, Importance::Note] {
        for (heading, of) in sections(decisive) {
            let rows = report.differences.iter();
            let rows: Vec<&Row> = rows
                .filter(|row| row.importance == importance && of.is(row))
                .collect();
            if rows.is_empty() {
                continue;
            }
            let kind = match importance {
                Importance::Difference => "Differs",
                Importance::Note => "To be known",
            };
            text.push_str(&format!("\n{kind} {heading}\n"));
            for row in rows {
                text.push_str(&format!("\n  {}\n", row.setting));
                field(text, "    ", "kube-proxy", &row.kube_proxy);
                field(text, "    ", "Tripod", &row.tripod);
                field(text, "    ", "to do", &row.to_do);
            }
        }
    }
}

fn kernel(text: &mut String, report: &Report) {
    if !report.kernel.is_empty() || !report.unknown.is_empty() {
        text.push_str("\nIn the kernel of this node\n");
    }
    for group in &report.kernel {
        let mut names = group
            .names
            .iter()
            .take(NAMES)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        if let more @ 1.. = group.names.len().saturating_sub(NAMES) {
            names.push_str(&format!(" and {more} more"));
        }
        text.push_str(&format!("\n  {} {}\n", group.names.len(), group.what));
        field(text, "    ", "names", &names);
        field(text, "    ", "become", &group.becomes.to_string());
    }
    for what in &report.unknown {
        text.push_str(&format!("\n  not known, as it could not be read: {what}\n"));
    }
}

/// Which rows belong to a section.
enum Of {
    /// Those of every mode.
    All,
    /// Those of this mode, but not of all modes.
    One(String),
}

impl Of {
    fn is(&self, row: &Row) -> bool {
        let all = row.modes.len() == ModeName::ALL.len();
        match self {
            Of::All => all,
            Of::One(mode) => !all && row.modes.contains(mode),
        }
    }
}

/// Returns the sections: first those of the mode that decides.
fn sections(decisive: Option<&str>) -> Vec<(String, Of)> {
    let modes = modes(decisive).into_iter();
    let mut sections = vec![("in every mode".to_owned(), Of::All)];
    sections.extend(modes.map(|(mode, heading)| (heading, Of::One(mode))));
    sections
}

/// Returns the names of the modes, each with words about it: first the mode that decides.
fn modes(decisive: Option<&str>) -> Vec<(String, String)> {
    let mut modes: Vec<String> = ModeName::ALL.map(|mode| mode.to_string()).into();
    modes.sort_by_key(|mode| Some(mode.as_str()) != decisive);
    let each = modes.into_iter().map(|mode| {
        let heading = if Some(mode.as_str()) == decisive {
            format!("in {mode} mode, which would run")
        } else {
            format!("in {mode} mode, if that is chosen")
        };
        (mode, heading)
    });
    each.collect()
}

/// Adds a name and its value, wrapped.
fn field(text: &mut String, indent: &str, name: &str, value: &str) {
    let mut line = format!("{indent}{name:<12}");
    let begin = line.len();
    for word in value.split_whitespace() {
        let length = line.chars().count() + word.chars().count();
        if line.len() > begin && length >= COLUMNS {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(begin);
        }
        line.push_str(word);
        line.push(' ');
    }
    text.push_str(line.trim_end());
    text.push('\n');
}
