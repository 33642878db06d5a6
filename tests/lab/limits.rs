//! Limits of connections, as a client sees them and as metrics and `tripod services` show them.

use std::net::SocketAddr;

use super::{Lab, get, tripod_binary};

/// How often a limit of a Service kept something out, according to metrics.
pub fn limited(lab: &Lab, service: &str, limit: &str) -> f64 {
    let metrics = get(&lab.node, ([127, 0, 0, 1], 10249).into(), "/metrics").expect("metrics");
    let labels = format!(r#"{{limit="{limit}",namespace="default",service="{service}"}} "#);
    let series = format!("tripod_service_limited_total{labels}");
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(&series)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in:\n{metrics}"))
}

/// The report of `tripod services` about the limits of a Service.
pub fn remark_on_limits(lab: &Lab, service: &str) -> String {
    let mut command = lab.node.command(tripod_binary());
    let output = command.args(["services", service]).output();
    let text = String::from_utf8(output.expect("it runs").stdout).expect("text");
    let mut lines = text.lines();
    let line = lines.find(|line| line.contains("connection limit"));
    line.unwrap_or_default().to_owned()
}

/// The client's configured address: otherwise it might choose another one for IPv6.
pub fn own_address(lab: &Lab, to: SocketAddr) -> SocketAddr {
    SocketAddr::new(lab.client.addresses[usize::from(to.is_ipv6())], 0)
}
