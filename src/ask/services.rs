//! Prints ServicePorts and their endpoints.

use std::process::ExitCode;

use super::{
    connection::{Connection, Failure},
    paint::{Tone, paint},
    show, table, watch,
};
use crate::{
    cli::{Output, Services},
    status_api::{Endpoint, NoEndpoints, SERVICES_PATH, ServicePort, ServicePortList, Traffic},
};

/// Prints the ServicePorts that are asked for; as a table that is updated when something changes, if
/// they are watched.
pub(super) async fn print(asked: &Services) -> Result<ExitCode, Failure> {
    let connection = Connection::new(&asked.common.socket);
    let selected = asked.services.as_ref();
    let namespace = selected.map(|(namespace, _)| &**namespace);
    let name = selected.and_then(|(_, name)| name.as_deref());
    let none = match namespace {
        Some(namespace) => format!(
            "no Service is served in namespace {namespace}; one Service is named NAMESPACE/NAME, as \
             in default/{namespace}"
        ),
        None => "no Service is served".to_owned(),
    };
    let table = |ports: &[ServicePort], wide| match ports {
        [] => vec![none.clone()],
        _ => lines(ports, name.is_some(), wide),
    };
    let output = asked.common.format.output;
    if asked.watch {
        let wide = output == Output::Wide;
        let now = async || Ok(table(&all(&connection, namespace, name).await?.items, wide));
        watch::watch(now).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let list = all(&connection, namespace, name).await?;
    let is_missing = list.items.is_empty() && namespace.is_some();
    show(&list, output, |wide| match is_missing {
        true => String::new(),
        false => table(&list.items, wide).join("\n") + "\n",
    })?;
    if is_missing {
        return Err(Failure::refused(none));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the ServicePorts of all namespaces or of one, or only those of the Service of this name;
/// all pages as one.
pub(super) async fn all(
    connection: &Connection<'_>,
    namespace: Option<&str>,
    name: Option<&str>,
) -> Result<ServicePortList, Failure> {
    let parts = [Some(SERVICES_PATH), namespace, name].into_iter();
    let path = parts.flatten().collect::<Vec<_>>().join("/");
    let mut list: ServicePortList = connection.get(&path).await?;
    while let Some(next) = list.next.take() {
        let page: ServicePortList = connection.get(&format!("{path}?continue={next}")).await?;
        list.items.extend(page.items);
        list.next = page.next;
    }
    Ok(list)
}

const HEAD: [&str; 10] = [
    "SERVICE",
    "PROTOCOL",
    // Before the addresses, which may be many: it is visible on a narrow terminal.
    "ENDPOINTS",
    "ADDRESSES",
    "SCHEDULER",
    "AFFINITY",
    "POLICY",
    "ACTIVE",
    "CONNECTIONS",
    "BYTES",
];

/// Returns a line for each ServicePort, followed by notes about it, and by a line for
/// each endpoint that is shown: `every` one, or those that are not fully used.
fn lines(ports: &[ServicePort], every: bool, wide: bool) -> Vec<String> {
    let mut rows = table::headed(HEAD, ports.iter().map(row)).into_iter();
    let mut lines: Vec<String> = rows.next().into_iter().collect();
    for (row, port) in rows.zip(ports) {
        lines.push(row);
        let endpoints = port.endpoints.iter();
        let endpoints = endpoints.filter(|one| every || wide || !is_fully_used(one));
        let endpoints = endpoints.map(|endpoint| endpoint_line(endpoint, wide));
        let below = remarks(port, wide).into_iter().chain(endpoints);
        lines.extend(below.map(|(tone, line)| format!("    {}", paint(tone, &line))));
    }
    lines
}

fn row(port: &ServicePort) -> [String; 10] {
    let mut name = format!("{}/{}", port.namespace, port.name);
    if !port.port.is_empty() {
        name = format!("{name}:{}", port.port);
    }
    let served = port.addresses.iter().filter(|one| one.unserved.is_none());
    let addresses = served.map(|address| {
        let ports = match address.last_port {
            Some(last) => format!("{}-{last}", address.port),
            None => address.port.to_string(),
        };
        match &address.ip {
            Some(ip) if ip.contains(':') => format!("[{ip}]:{ports}"),
            Some(ip) => format!("{ip}:{ports}"),
            None => format!("node:{ports}"),
        }
    });
    let addresses: Vec<_> = addresses.collect();
    let used = port.endpoints.iter().filter(|endpoint| endpoint.in_use);
    let affinity = port.affinity_seconds;
    let policies = [&port.internal_traffic_policy, &port.external_traffic_policy];
    let [active, connections, bytes] = traffic(port.traffic);
    [
        name,
        port.protocol.clone(),
        format!("{}/{}", used.count(), port.endpoints.len()),
        if addresses.is_empty() {
            "-".to_owned()
        } else {
            addresses.join(",")
        },
        port.scheduler.clone(),
        affinity.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds}s")),
        policies.map(String::as_str).join("/"),
        active,
        connections,
        bytes,
    ]
}

/// Returns open connections, connections so far, and bytes in both directions.
fn traffic(traffic: Option<Traffic>) -> [String; 3] {
    let traffic = traffic.unwrap_or_default();
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let bytes = match (traffic.bytes_in, traffic.bytes_out) {
        (None, None) => "-".to_owned(),
        (bytes_in, bytes_out) => format!("{}/{}", number(bytes_in), number(bytes_out)),
    };
    [number(traffic.active), number(traffic.connections), bytes]
}

fn remarks(port: &ServicePort, wide: bool) -> Vec<(Tone, String)> {
    let mut remarks = Vec::new();
    if let Some(why) = &port.failing {
        remarks.push((Tone::Bad, format!("not applied: {why}")));
    }
    for address in &port.addresses {
        if let Some(why) = &address.unserved {
            let text = format!("node port {} is not served: {why}", address.port);
            remarks.push((Tone::Warning, text));
        }
    }
    if let Some(NoEndpoints { why, command }) = &port.no_endpoints {
        let see = command.iter().map(|command| format!("; see {command}"));
        let text = format!("no endpoint in use: {why}{}", see.collect::<String>());
        remarks.push((Tone::Warning, text));
    }
    for why in &port.health_check_failing {
        let text = format!("health-check node port not served on {why}");
        remarks.push((Tone::Bad, text));
    }
    for unsupported in &port.unsupported {
        let is = if unsupported.unreadable {
            "cannot be read"
        } else {
            "is not supported"
        };
        let text = format!("{} {is}: {}", unsupported.what, unsupported.why);
        remarks.push((Tone::Warning, text));
    }
    if let Some(mode) = &port.mode {
        let text = format!("served in {mode} mode (tripod.proxy/mode)");
        remarks.push((Tone::Good, text));
    }
    let limited = port.limited.unwrap_or_default();
    for (times, whose, flag) in [
        (limited.service, "the Service was at its", "max-connections"),
        (
            limited.client,
            "a client was at its",
            "max-connections-per-client",
        ),
    ] {
        if times > 0 {
            let text = format!(
                "{whose} connection limit {times} times (tripod.proxy/{flag}; in userspace mode \
                 also --userspace-{flag})"
            );
            remarks.push((Tone::Warning, text));
        }
    }
    let conflicts = port.conflicts.iter();
    remarks.extend(conflicts.map(|conflict| (Tone::Warning, conflict.clone())));
    if wide && !port.source_ranges.is_empty() {
        let ranges = port.source_ranges.join(", ");
        remarks.push((Tone::Good, format!("load balancer only for {ranges}")));
    }
    remarks
}

fn is_fully_used(endpoint: &Endpoint) -> bool {
    endpoint.why.is_none() && endpoint.starting.is_none() && !endpoint.last_ready
}

fn endpoint_line(endpoint: &Endpoint, wide: bool) -> (Tone, String) {
    let mut line = endpoint.address.clone();
    if let Some(node) = &endpoint.node {
        line.push_str(&format!(" on {node}"));
    }
    match &endpoint.why {
        Some(why) if endpoint.in_use => line.push_str(&format!(": {why}")),
        Some(why) => line.push_str(&format!(": not used: {why}")),
        None if endpoint.last_ready => {
            line.push_str(": in use, as one of the last that were ready")
        }
        None => line.push_str(": in use"),
    }
    if let Some(percent) = endpoint.starting.filter(|_| endpoint.in_use) {
        line.push_str(&format!(", starting with {percent} % of its weight"));
    }
    if wide {
        let [active, connections, bytes] = traffic(endpoint.traffic);
        line.push_str(&format!(
            "; weight {}, active {active}, connections {connections}, bytes {bytes}",
            endpoint.weight
        ));
    }
    let tone = if endpoint.why.is_none() && !endpoint.last_ready {
        Tone::Good
    } else {
        Tone::Warning
    };
    (tone, line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// With names as long as OpenShift has them, and many addresses.
    #[test]
    fn endpoints_are_visible_in_80_columns() {
        let address = json!({"kind": "clusterIP", "ip": "fd00:96::1234:5678", "port": 8443});
        let port = json!({
            "namespace": "openshift-cluster-version", "name": "cluster-version-operator",
            "port": "metrics", "protocol": "SCTP", "family": "IPv6",
            "addresses": [address, address, address], "scheduler": "rr",
            "affinitySeconds": null, "internalTrafficPolicy": "Cluster",
            "externalTrafficPolicy": "Cluster", "sourceRanges": [], "endpoints": [],
            "failing": null, "unsupported": [], "conflicts": [], "traffic": null,
        });
        let port = serde_json::from_value(port).expect("a ServicePort");
        let lines = lines(&[port], false, false);
        for (line, cell) in [(0, "ENDPOINTS"), (1, "0/0")] {
            let at = lines[line].find(cell).expect(cell);
            assert!(at + cell.len() <= 80, "{lines:#?}");
        }
    }
}
