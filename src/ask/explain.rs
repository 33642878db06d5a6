//! Prints what happens to a packet.

use std::process::ExitCode;

use super::{
    connection::{self, Failure},
    paint::{Tone, paint},
    show, table,
};
use crate::{
    cli::Explain,
    status_api::{
        Addressee, Candidate, Connection, Destination, EXPLAIN_PATH, Explanation, ExplanationList,
    },
};

/// Returns the path at which the API explains a packet.
pub(super) fn path(to: &Destination, from: Option<&str>, kernel: bool) -> String {
    let Destination {
        addressee,
        protocol,
    } = to;
    let protocol = protocol.as_ref();
    let protocol = protocol.map_or_else(String::new, |protocol| format!("&protocol={protocol}"));
    let from = from.map_or_else(String::new, |from| format!("&from={from}"));
    format!("{EXPLAIN_PATH}?to={addressee}{protocol}{from}&kernel={kernel}")
}

/// Prints what happens to a packet; for a Service, at each of its cluster IPs.
pub(super) async fn print(asked: &Explain) -> Result<ExitCode, Failure> {
    let connection = connection::Connection::new(&asked.common.socket);
    let path = path(&asked.to, asked.from.as_deref(), !asked.desired_only);
    let output = asked.common.format.output;
    match asked.to.addressee {
        Addressee::Address(_) => {
            let one: Explanation = connection.get(&path).await?;
            show(&one, output, |wide| table(&one, wide))?;
        }
        Addressee::Service(_) => {
            let list: ExplanationList = connection.get(&path).await?;
            show(&list, output, |wide| {
                let tables = list.items.iter().map(|one| table(one, wide));
                tables.collect::<Vec<_>>().join("\n")
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Most objects of the ServicePort that are printed, unless all are requested.
const MOST: usize = 12;

/// Most connections that are printed, unless all are requested.
const MOST_CONNECTIONS: usize = 10;

/// Returns the lines, for people; without `wide` only the first objects, those that differ from the
/// desired state, and the first connections.
fn table(explanation: &Explanation, wide: bool) -> String {
    let Explanation {
        to,
        protocol,
        from,
        mode,
        ..
    } = explanation;
    let mut lines = vec![format!("{to}/{protocol} from {from}, in {mode} mode:")];
    let steps = explanation.steps.iter().enumerate();
    lines.extend(steps.map(|(at, step)| format!("  {}. {step}", at + 1)));
    lines.push(paint(tone(explanation), &sentence(explanation)));
    let none = explanation.no_endpoints.as_ref();
    if let Some(command) = none.and_then(|none| none.command.as_ref()) {
        lines.push(format!("see {command}"));
    }
    lines.extend(indented(explanation.candidates.iter().map(candidate)));
    let policies = explanation.forward_policies.as_deref().unwrap_or_default();
    if !policies.is_empty() {
        let heading = "on its way, other programs drop it unless one of their rules accepts it:";
        lines.push(paint(Tone::Warning, heading));
        let policies = policies.iter();
        lines.extend(policies.map(|chain| format!("  the policy of {chain} is DROP")));
    }
    if !explanation.passed_over.is_empty() {
        lines.push("not sent to:".to_owned());
        let rows = explanation.passed_over.iter().map(|endpoint| {
            let node = endpoint.node.clone().unwrap_or_default();
            [endpoint.address.clone(), endpoint.why.clone(), node]
        });
        lines.extend(indented(rows));
    }
    lines.extend(kernel(explanation, wide));
    lines.extend(connections(explanation, wide));
    lines.join("\n") + "\n"
}

fn indented<const COLUMNS: usize>(
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> impl Iterator<Item = String> {
    let lines = table::lines(rows).into_iter();
    lines.map(|line| format!("  {line}"))
}

fn tone(explanation: &Explanation) -> Tone {
    match &*explanation.verdict {
        "forwarded" | "answered" => Tone::Good,
        "refused" | "dropped" => Tone::Bad,
        _ => Tone::Warning,
    }
}

fn sentence(explanation: &Explanation) -> String {
    match &*explanation.verdict {
        "forwarded" => "It is sent to one of:".to_owned(),
        "answered" => "Tripod itself answers it.".to_owned(),
        "refused" => "It is refused.".to_owned(),
        "dropped" => "It is dropped: nothing answers.".to_owned(),
        "notServed" => "Tripod does not serve it: it is routed as without Tripod.".to_owned(),
        "depends" => "That depends on the address of the caller.".to_owned(),
        // A verdict of a later version.
        other => other.to_owned(),
    }
}

fn candidate(candidate: &Candidate) -> [String; 3] {
    let share = candidate
        .share
        .map(|share| format!("{:.1} %", share * 100.0));
    [
        candidate.address.clone(),
        share.unwrap_or_default(),
        candidate.node.clone().unwrap_or_default(),
    ]
}

/// Lists the kernel's objects for the ServicePort, and the differences.
fn kernel(explanation: &Explanation, wide: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(error) = &explanation.error {
        let line = format!("the state of the kernel is not known: {error}");
        lines.push(paint(Tone::Bad, &line));
    }
    if let Some(name) = &explanation.service_port
        && !explanation.objects.is_empty()
    {
        lines.push(format!("desired state of {name}:"));
        let mut unremarkable = 0;
        let mut left_out = None;
        for object in &explanation.objects {
            // Without the state of the kernel all are unknown.
            let is_unremarkable = matches!(&*object.found, "present" | "unknown");
            unremarkable += usize::from(is_unremarkable);
            if is_unremarkable && unremarkable > MOST && !wide {
                left_out = Some((unremarkable - MOST, &object.found));
                continue;
            }
            let mark = match &*object.found {
                "present" => object.found.clone(),
                other => paint(Tone::Bad, other),
            };
            lines.push(format!("  {mark}  {}", object.object));
        }
        if let Some((count, found)) = left_out {
            lines.push(format!("  and {count} more, which are {found}"));
        }
    }
    let differences = &explanation.differences;
    if differences.total > 0 {
        let heading = "other differences, by which packets may go elsewhere:";
        lines.push(paint(Tone::Bad, heading));
        let shown = differences.items.iter();
        lines.extend(shown.map(|item| format!("  {}  {}", item.found, item.object)));
        if differences.total > differences.items.len() {
            let more = differences.total - differences.items.len();
            lines.push(format!("  and {more} more: tripod diff"));
        }
    }
    lines
}

/// Returns lines about the connections in conntrack.
fn connections(explanation: &Explanation, wide: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(error) = &explanation.connections_error {
        let line = format!("the connections to it are not known: {error}");
        lines.push(paint(Tone::Bad, &line));
    }
    let Some(found) = explanation.connections.as_ref() else {
        return lines;
    };
    lines.push(match (found.total, found.stale) {
        (0, _) => "no connections to it in conntrack".to_owned(),
        (total, 0) => format!("connections to it in conntrack, {total}:"),
        (total, stale) => {
            let text = format!("connections to it in conntrack, {total}, {stale} of them stale:");
            paint(Tone::Bad, &text)
        }
    });
    let most = if wide { usize::MAX } else { MOST_CONNECTIONS };
    lines.extend(indented(found.items.iter().take(most).map(connection)));
    let more = found.total.saturating_sub(most.min(found.items.len()));
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines
}

fn connection(connection: &Connection) -> [String; 4] {
    let stale = connection.stale.as_ref();
    let endpoint = connection.endpoint.as_ref();
    [
        connection.client.clone(),
        connection.state.clone(),
        endpoint.map_or_else(|| "-".to_owned(), |endpoint| format!("to {endpoint}")),
        stale.map_or_else(String::new, |why| format!("stale: {why}")),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_first_unremarkable_objects_are_printed() {
        for found in ["present", "unknown"] {
            let object = |n| json!({"object": format!("object {n}"), "found": found});
            let objects: Vec<_> = (0..1_000).map(object).collect();
            let explanation = json!({
                "apiVersion": "", "kind": "", "mode": "ipvs", "to": "10.96.0.1:80",
                "protocol": "TCP", "from": "pod", "origin": "pod", "verdict": "forwarded",
                "steps": [], "servicePort": "default/web", "candidates": [], "passedOver": [],
                "objects": objects, "differences": {"total": 0, "items": []},
            });
            let explanation = serde_json::from_value(explanation).expect("an explanation");
            let count = |wide| {
                let text = table(&explanation, wide);
                let more = format!("and 988 more, which are {found}");
                assert_eq!(text.contains(&more), !wide, "{text}");
                text.matches("object ").count()
            };
            assert_eq!([count(false), count(true)], [MOST, 1_000], "{found}");
        }
    }
}
