//! Prints the reports: lines of JSON, documents of YAML, or text for people.

use std::io::{self, Write};

use serde::Serialize;

use super::report::{Connection, Counted, Dialed, Outcome, Report, Start, Summary};
use crate::{cli::Output, status_api::VERSION};

/// A line of JSON, or a document of YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versioned<'a> {
    api_version: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

/// Prints `report`.
///
/// # Errors
/// When the reader has closed its end.
pub(super) fn print(report: &Report, output: Output) -> io::Result<()> {
    let text = formatted(report, output)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    out.flush()
}

fn formatted(report: &Report, output: Output) -> io::Result<String> {
    let versioned = Versioned {
        api_version: VERSION,
        report,
    };
    match output {
        Output::Json => Ok(serde_json::to_string(&versioned)?),
        Output::Yaml => {
            let document = serde_saphyr::to_string(&versioned).map_err(io::Error::other)?;
            // The beginning of a document shows that the previous one is complete.
            Ok(format!("---\n{document}"))
        }
        Output::Table | Output::Wide => Ok(text(report)),
    }
}

fn text(report: &Report) -> String {
    match report {
        Report::Start(start) => self::start(start),
        Report::Connection(connection) => self::connection(connection),
        Report::Change(change) if change.ended => {
            format!("{} is no longer known to conntrack", change.client)
        }
        Report::Change(change) => format!("{} is {}", change.client, change.state),
        Report::Dialed(dialed) => self::dialed(dialed),
        Report::Summary(summary) => self::summary(summary),
    }
}

fn dialed(dialed: &Dialed) -> String {
    let endpoint = &dialed.endpoint;
    let from = dialed.from.as_deref().unwrap_or("an unknown address");
    let Some(client) = &dialed.client else {
        return format!("Tripod connects to {endpoint} from {from}");
    };
    let to = dialed.to.as_deref().unwrap_or("-");
    match &dialed.error {
        None => format!(
            "from {client} to {to}: relayed to {endpoint} by Tripod's own connection from {from}"
        ),
        Some(error) => format!("from {client} to {to}: {endpoint} did not accept it: {error}"),
    }
}

fn start(start: &Start) -> String {
    let from = start.from.as_deref().unwrap_or("any address");
    let mode = match &start.mode {
        Some(mode) => format!(", in {mode} mode"),
        None => String::new(),
    };
    let mut lines = vec![format!(
        "{}/{} from {from}{mode}:",
        start.to, start.protocol
    )];
    lines.extend(start.steps.iter().map(|step| format!("  {step}")));
    lines.extend(
        start
            .unseen
            .iter()
            .map(|unseen| format!("not seen: {unseen}")),
    );
    lines.join("\n")
}

fn connection(connection: &Connection) -> String {
    let input = match &connection.input {
        Some(link) => format!(" came in through {link}"),
        None => String::new(),
    };
    let mut lines = vec![format!("{}{input}", connection.client)];
    let steps = connection.steps.iter();
    lines.extend(steps.map(|step| format!("  {}: {}", step.at, step.verdict)));
    let state = match &connection.state {
        Some(state) => format!(" ({state})"),
        None => String::new(),
    };
    lines.push(format!("  {}{state}", sentence(connection)));
    lines.join("\n")
}

fn sentence(connection: &Connection) -> String {
    let endpoint = connection.endpoint.as_deref().unwrap_or("-");
    let by = connection.by.as_deref().unwrap_or("-");
    match connection.outcome {
        Outcome::Forwarded => format!("it is sent to {endpoint}"),
        Outcome::ForwardedAsBefore => {
            format!(
                "it is sent to {endpoint} by an existing entry of conntrack: no rule chose the \
                 endpoint"
            )
        }
        Outcome::Relayed => "a socket of Tripod received it".to_owned(),
        Outcome::Unanswered => {
            "it reached an address where Tripod relays, and nothing has answered it yet".to_owned()
        }
        Outcome::NotTranslated => "it continues to its destination, untranslated".to_owned(),
        Outcome::Refused => format!("it is refused, by {by}"),
        Outcome::Dropped => format!("it is dropped, by {by}"),
        Outcome::Unknown => {
            "its outcome is unknown: neither a rule nor conntrack shows it".to_owned()
        }
    }
}

fn summary(summary: &Summary) -> String {
    let total = summary.connections;
    let mut lines = vec![format!("connections: {total}")];
    let mut add = |counted: &[Counted], words: &str| {
        let each = counted.iter();
        lines.extend(each.map(|one| format!("  {} {words} {}", one.connections, one.what)));
    };
    add(&summary.endpoints, "sent to");
    add(&summary.refused, "refused by");
    add(&summary.dropped, "dropped by");
    for (count, words) in [
        (summary.relayed, "to sockets of Tripod"),
        (
            summary.unanswered,
            "to where Tripod relays, not answered yet",
        ),
        (summary.not_translated, "not translated"),
        (summary.unknown, "with an unknown outcome"),
    ] {
        if count > 0 {
            lines.push(format!("  {count} {words}"));
        }
    }
    let dialed = summary.dialed.iter();
    lines.extend(dialed.map(|one| {
        let Counted { what, connections } = one;
        format!("Tripod connected {connections} times to {what}")
    }));
    let failed = summary.failed.iter();
    lines.extend(failed.map(|one| {
        let Counted { what, connections } = one;
        format!("{what} did not accept a connection {connections} times")
    }));
    if summary.lost {
        lines.push("some are missing: they arrived faster than they could be read".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::trace::report::Step;

    #[test]
    fn a_connection_is_a_few_lines_of_text_or_one_of_json_or_a_document_of_yaml() {
        let report = Report::Connection(Connection {
            client: "10.244.0.9:40122".to_owned(),
            input: Some("cni0".to_owned()),
            steps: vec![Step {
                at: "rule @services of chain services of table tripod".to_owned(),
                verdict: "goto slots-4".to_owned(),
            }],
            outcome: Outcome::Forwarded,
            endpoint: Some("10.244.0.11:8080".to_owned()),
            by: None,
            state: Some("SYN_SENT".to_owned()),
        });
        let expected = "10.244.0.9:40122 came in through cni0\n  rule @services of chain services \
                        of table tripod: goto slots-4\n  it is sent to 10.244.0.11:8080 (SYN_SENT)";
        assert_eq!(text(&report), expected);
        let written = |output| formatted(&report, output).expect("it can be written");
        assert_eq!(written(Output::Wide), expected);
        let line = written(Output::Json);
        assert_eq!(line.lines().count(), 1, "{line}");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(line["apiVersion"], VERSION);
        assert_eq!(line["kind"], "TracedConnection");
        assert_eq!(line["outcome"], "forwarded");
        let document = written(Output::Yaml);
        assert!(document.starts_with("---\n"), "{document}");
        let documents: Vec<Value> = serde_saphyr::from_multiple(&document).expect("YAML");
        assert_eq!(documents, [line]);
        let dialed = |client: Option<&str>, error: Option<&str>| {
            text(&Report::Dialed(Dialed {
                from: error.is_none().then(|| "10.244.0.1:50000".to_owned()),
                endpoint: "10.244.0.11:8080".to_owned(),
                client: client.map(ToOwned::to_owned),
                to: client.map(|_| "10.96.0.1:80".to_owned()),
                error: error.map(ToOwned::to_owned),
            }))
        };
        let client = Some("10.244.0.9:40122");
        for (found, expected) in [
            (
                dialed(None, None),
                "Tripod connects to 10.244.0.11:8080 from 10.244.0.1:50000",
            ),
            (
                dialed(client, None),
                "from 10.244.0.9:40122 to 10.96.0.1:80: relayed to 10.244.0.11:8080 by Tripod's \
                 own connection from 10.244.0.1:50000",
            ),
            (
                dialed(client, Some("refused")),
                "from 10.244.0.9:40122 to 10.96.0.1:80: 10.244.0.11:8080 did not accept it: \
                 refused",
            ),
        ] {
            assert_eq!(found, expected);
        }
        let mut total = Summary::default();
        total.add(&report);
        total.add(&report);
        let expected = "connections: 2\n  2 sent to 10.244.0.11:8080";
        assert_eq!(summary(&total), expected);
    }
}
