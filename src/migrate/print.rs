//! Prints the report for people.

mod changes;

use super::report::{Importance, Report, Row};
use crate::{config::ModeName, listing::first_of};

/// Longest line, in columns.
const COLUMNS: usize = 90;
/// Maximum number of names of kernel objects that are printed; the rest is counted.
const NAMES: usize = 6;

/// Text where parts of the report are left out.
const MORE: &str = "\nFor notes, other modes and what happens to rules in the kernel: -o wide.\n";

/// Formats the report: the mode that would run, and its differences. `wide`: everything.
pub fn table(report: &Report, wide: bool) -> String {
    let mut text = String::new();
    chosen(&mut text, report);
    let kube_proxy = format!("{} mode", report.kube_proxy_mode);
    field(&mut text, "", "kube-proxy", &kube_proxy);
    field(&mut text, "", "from", &report.configuration);
    differences(&mut text, report, wide);
    kernel(&mut text, report, wide);
    changes::write(&mut text, report, wide);
    text.push_str(if report.differs() {
        "\nSomething differs.\n"
    } else {
        "\nNo difference that matters.\n"
    });
    if !wide {
        text.push_str(MORE);
    }
    text
}

/// Writes the mode that would run, and the reasons.
fn chosen(text: &mut String, report: &Report) {
    let Some(chosen) = &report.node else {
        let mode = format!("{} mode, as configured; no node was examined", report.asked);
        return field(text, "", "Tripod", &mode);
    };
    let mode = match &chosen.mode {
        Some(mode) => format!("{mode} mode on this node"),
        None => "no mode can run on this node: see tripod probe".to_owned(),
    };
    field(text, "", "Tripod", &mode);
    for (name, lines) in [
        ("passed over", &chosen.passed_over),
        ("without", &chosen.lost),
    ] {
        for line in lines {
            field(text, "", name, line);
        }
    }
}

fn differences(text: &mut String, report: &Report, wide: bool) {
    let decisive = report.decisive();
    let shown = if wide {
        &[Importance::Difference, Importance::Note][..]
    } else {
        &[Importance::Difference]
    };
    for &importance in shown {
        for (heading, mode) in sections(decisive, wide) {
            let rows = report.differences.iter();
            let rows: Vec<&Row> = rows
                .filter(|row| row.importance == importance && is_in_section(row, mode))
                .collect();
            if rows.is_empty() {
                continue;
            }
            let kind = match importance {
                Importance::Difference => "Differs",
                Importance::Note => "To know",
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

/// Writes what happens to the objects in the kernel, if `wide`, and which could not be read.
fn kernel(text: &mut String, report: &Report, wide: bool) {
    let groups = if wide { &*report.kernel } else { &[] };
    if !groups.is_empty() || !report.unknown.is_empty() {
        text.push_str("\nIn the kernel of this node\n");
    }
    for group in groups {
        let names = first_of(&group.names, NAMES);
        text.push_str(&format!("\n  {} {}\n", group.names.len(), group.what));
        field(text, "    ", "names", &names);
        field(text, "    ", "become", &group.becomes.to_string());
    }
    for what in &report.unknown {
        text.push_str(&format!(
            "\n  not known, because it could not be read: {what}\n"
        ));
    }
}

/// Returns whether `row` belongs in the section of this mode: that of the rows that apply in it, but
/// not in all modes; `None`: that of the rows that apply in every mode.
fn is_in_section(row: &Row, mode: Option<&str>) -> bool {
    let all = row.modes.len() == ModeName::ALL.len();
    mode.map_or(all, |mode| !all && row.modes.iter().any(|of| of == mode))
}

/// Returns the sections: first those of the decisive mode.
fn sections(decisive: Option<&str>, wide: bool) -> Vec<(String, Option<&'static str>)> {
    let modes = modes(decisive, wide).into_iter();
    let mut sections = vec![("in every mode".to_owned(), None)];
    sections.extend(modes.map(|(mode, heading)| (heading, Some(mode))));
    sections
}

/// The decisive mode with its heading; if `wide`, followed by the other modes.
fn modes(decisive: Option<&str>, wide: bool) -> Vec<(&'static str, String)> {
    let decides = |mode: &str| Some(mode) == decisive;
    let all = ModeName::ALL.map(ModeName::name).into_iter();
    let mut modes: Vec<&'static str> = all.filter(|mode| wide || decides(mode)).collect();
    modes.sort_by_key(|mode| !decides(mode));
    let each = modes.into_iter().map(|mode| {
        let heading = if decides(mode) {
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
