//! Answers `/v1/explain`.

use std::net::IpAddr;

use hyper::StatusCode;
use net::{Family, Protocol};

use super::{
    About, StatusApi, address_kind,
    candidates::{candidates, passed_over},
    connections,
    destination::{self, Unresolved},
    diff::{difference, unanswered},
    json, kernel_refusal, refused,
};
use crate::{
    config::ModeName,
    runner::question::{
        self, Caller, Compared, Difference, ExplainedPacket, Origin, Packet, Verdict,
    },
    serve::http::{Answer, Peer},
    status_api::{
        self, Addressee, Destination, Explanation, ExplanationList, Listed, NoEndpoints, Object,
        VERSION,
    },
};

/// Maximum number of differences in an answer, in addition to those of the ServicePort.
const MOST: usize = 100;

impl StatusApi {
    pub(super) async fn explain(&self, query: &str, peer: Peer) -> Answer {
        let asked = match read(query) {
            Ok(asked) => asked,
            Err(why) => return refused(StatusCode::BAD_REQUEST, why),
        };
        let refusal = kernel_refusal(peer).filter(|_| asked.kernel);
        if let Some(answer) = refusal.or_else(|| self.not_ready()) {
            return answer;
        }
        let packets = match self.packets(&asked) {
            Ok(packets) => packets,
            Err(unresolved) => return refused(unresolved.status, unresolved.why),
        };
        let explained = match self.questions.explain(packets, asked.kernel).await {
            Ok(explained) => explained,
            Err(why) => return unanswered(why),
        };
        let mut items = Vec::new();
        for packet in explained.packets {
            match explained_packet(self, packet, explained.compared.as_ref()).await {
                Ok(explanation) => items.push(explanation),
                Err(answer) => return answer,
            }
        }
        match (&asked.to, &*items) {
            (Addressee::Address(_), [one]) => json(one),
            _ => json(&ExplanationList {
                api_version: VERSION.to_owned(),
                kind: "ExplanationList".to_owned(),
                items,
            }),
        }
    }

    /// Returns the packets to explain; for a Service, one for each of its cluster IPs.
    fn packets(&self, asked: &Asked) -> Result<Vec<Packet>, Unresolved> {
        let Asked {
            to, protocol, from, ..
        } = asked;
        let from = from.unwrap_or(self.about.caller);
        let found = match to {
            Addressee::Address(to) => vec![(*to, protocol.unwrap_or(Protocol::Tcp))],
            Addressee::Service(service) => {
                let ports = self.runner.ports().unwrap_or_default();
                let found = destination::cluster_ips(service, *protocol, from, &ports);
                found.map_err(|unresolved| {
                    let unknown = unresolved.status == StatusCode::NOT_FOUND;
                    let why = unknown.then(|| self.not_served(&service.namespace, &service.name));
                    let why = why.flatten().unwrap_or(unresolved.why);
                    Unresolved { why, ..unresolved }
                })?
            }
        };
        let packet = |(to, protocol)| Packet { to, protocol, from };
        Ok(found.into_iter().map(packet).collect())
    }
}

/// The parameters of a request.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    to: Addressee,
    /// `None`: the request does not name it.
    protocol: Option<Protocol>,
    /// `None`: the request does not name it.
    from: Option<Caller>,
    /// Whether the kernel is read.
    kernel: bool,
}

/// Reads the parameters of a request.
pub(super) fn read(query: &str) -> Result<Asked, String> {
    let (mut to, mut protocol, mut from) = (None, None, None);
    let mut kernel = true;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "to" => {
                let read = Destination::read(&value);
                to = Some(read.map_err(|why| format!("to={value}: {why}"))?);
            }
            "protocol" => protocol = Some(named(&value)?),
            "from" => from = Some(caller(&value)?),
            "kernel" => {
                let read = value.parse();
                kernel = read.map_err(|_| "kernel is true or false".to_owned())?;
            }
            _ => return Err("the parameters are to, protocol, from and kernel".to_owned()),
        }
    }
    let Destination {
        addressee: to,
        protocol: of_to,
    } = to.ok_or("to=ADDRESS:PORT or to=[NAMESPACE/]SERVICE[:PORT] is missing")?;
    let of_to = of_to.as_deref().map(named).transpose()?;
    if let (Some(one), Some(other)) = (protocol, of_to)
        && one != other
    {
        return Err(format!("protocol is {one}, and to names {other}"));
    }
    if let (Some(Caller::At(ip)), Addressee::Address(to)) = (from, &to)
        && Family::of(&ip) != Family::of(&to.ip())
    {
        return Err("to and from are addresses of different IP families".to_owned());
    }
    Ok(Asked {
        to,
        protocol: protocol.or(of_to),
        from,
        kernel,
    })
}

pub(super) fn named(protocol: &str) -> Result<Protocol, String> {
    Protocol::named(protocol).ok_or_else(|| "protocol is tcp, udp or sctp".to_owned())
}

fn caller(value: &str) -> Result<Caller, String> {
    Ok(match value {
        "pod" => Caller::Pod,
        "node" => Caller::Node,
        "outside" => Caller::Outside,
        address => {
            let ip = address.trim_start_matches('[').trim_end_matches(']');
            let ip = ip.parse::<IpAddr>();
            let ip = ip.ok().filter(|ip| !ip.is_unspecified());
            let ip = ip.ok_or("from is an address, pod, node or outside")?;
            Caller::At(ip.to_canonical())
        }
    })
}

/// Explains a packet, or returns the answer that says why that is impossible. `compared` is `None`
/// if the kernel was not read.
async fn explained_packet(
    api: &StatusApi,
    explained: ExplainedPacket,
    compared: Option<&Compared>,
) -> Result<Explanation, Answer> {
    let packet = explained.packet;
    let explanation = match &explained.explanation {
        Ok(explanation) => explanation,
        Err(error) => return Err(refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
    };
    let family = Family::of(&packet.to.ip());
    let is_read = compared.is_some();
    let (mut connections, mut connections_error, mut forward_policies) = (None, None, None);
    if is_read {
        match question::connections(packet, explanation.properties.carrier).await {
            Ok(found) => connections = Some(connections::listed(&found, &explained)),
            Err(error) => connections_error = Some(error.to_string()),
        }
        forward_policies = policies(explanation, family).await;
    }
    let port = explained.service_port.as_deref();
    let node = api.node_differences(port.map(|port| &port.name.service));
    let found = compared.map(|compared| found(compared, &node, family, api.about.mode));
    let shown = Shown::new(explanation, found);
    let name = explanation.served_by.as_ref().map(|(name, _)| name);
    let role = explanation.served_by.as_ref().map(|(_, role)| *role);
    Ok(Explanation {
        api_version: VERSION.to_owned(),
        kind: "Explanation".to_owned(),
        mode: explanation.properties.mode.to_string(),
        to: packet.to.to_string(),
        protocol: packet.protocol.to_string(),
        from: sender(packet.from),
        origin: origin(explanation.origin).to_owned(),
        verdict: verdict(explanation.verdict).to_owned(),
        service_port: name.map(ToString::to_string),
        role: role.map(address_kind),
        no_endpoints: no_endpoints(&api.about, explanation),
        forward_policies,
        passed_over: passed_over(explanation, port),
        candidates: candidates(explanation, port),
        steps: steps(api, explanation, packet.to.ip()),
        objects: shown.objects,
        differences: shown.differences,
        connections,
        connections_error,
        error: shown.error,
    })
}

/// Lists the steps of `explanation`; if no Service serves the packet, also those that would have
/// the address `to` if they could be used.
fn steps(api: &StatusApi, explanation: &question::Explanation, to: IpAddr) -> Vec<String> {
    let mut steps = explanation.steps.clone();
    if explanation.served_by.is_some() {
        return steps;
    }
    let unusable = api.objects.unusable().into_iter();
    let named = unusable.filter(|(_, unusable)| unusable.addresses.contains(&to));
    let named = named.take(MOST).map(|(name, unusable)| {
        let why = unusable.trouble.why;
        format!("{name} names this address, but cannot be used: {why}")
    });
    let named: Vec<String> = named.collect();
    if let (Some(last), false) = (steps.last_mut(), named.is_empty()) {
        *last = last.replace("no Service has", "no Service that can be used has");
        let at = steps.len() - 1;
        steps.splice(at..at, named);
    }
    steps
}

/// Lists the differences of the kernel, and of the `node`, from the desired state of `family`, or
/// why they are unknown.
fn found<'a>(
    compared: &'a Compared,
    node: &'a [Difference],
    family: Family,
    mode: ModeName,
) -> Result<Vec<&'a Difference>, String> {
    match compared.get(family) {
        Some(Ok(found)) => Ok(found.iter().chain(node).collect()),
        Some(Err(error)) => Err(error.to_string()),
        None if compared.iter().all(|(_, found)| found.is_none()) => Err(
            "another Tripod process serves now, and only that one knows the desired state"
                .to_owned(),
        ),
        None => Err(format!("{mode} mode does not serve {family} here")),
    }
}

/// The part of an answer about the kernel.
struct Shown {
    objects: Vec<Object>,
    differences: Listed<status_api::Difference>,
    error: Option<String>,
}

impl Shown {
    /// Selects the differences to show among those that were `found`; `None` if the kernel was not
    /// read.
    fn new(
        explanation: &question::Explanation,
        found: Option<Result<Vec<&Difference>, String>>,
    ) -> Shown {
        let is_read = found.is_some();
        let (found, error) = match found.transpose() {
            Ok(found) => (found.unwrap_or_default(), None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let objects = explanation.objects.iter().map(|object| {
            let differs = found.iter().find(|difference| difference.object == *object);
            Object {
                object: object.clone(),
                found: match (differs, &error) {
                    (Some(difference), _) => difference.found.to_string(),
                    (None, None) if is_read => "present".to_owned(),
                    (None, _) => "unknown".to_owned(),
                },
            }
        });
        let objects: Vec<Object> = objects.collect();
        let name = explanation.served_by.as_ref().map(|(name, _)| name);
        let concerns = |difference: &&&Difference| {
            let owner = difference.owner.as_ref();
            let mut objects = objects.iter();
            let is_shown = objects.any(|shown| shown.object == difference.object);
            !is_shown && owner.is_none_or(|owner| Some(owner) == name)
        };
        let others: Vec<_> = found.iter().filter(concerns).collect();
        let differences = Listed::first(others, MOST, |one| difference(one));
        Shown {
            objects,
            differences,
            error,
        }
    }
}

/// Lists the chains of other programs that drop such a packet on its way.
async fn policies(of: &question::Explanation, family: Family) -> Option<Vec<String>> {
    let passed = of.passed();
    if passed.is_empty() {
        return Some(Vec::new());
    }
    let read = question::dropping_chains(family, passed).await;
    read.inspect_err(|error| tracing::info!("policies of other programs' chains: {error}"))
        .ok()
}

fn no_endpoints(about: &About, explanation: &question::Explanation) -> Option<NoEndpoints> {
    let (name, _) = explanation.served_by.as_ref()?;
    let why = explanation.no_endpoints.clone()?;
    Some(about.no_endpoints(&name.service, why))
}

fn sender(from: Caller) -> String {
    match from {
        Caller::At(ip) => ip.to_string(),
        Caller::Pod => "pod".to_owned(),
        Caller::Node => "node".to_owned(),
        Caller::Outside => "outside".to_owned(),
    }
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Pod => "pod",
        Origin::Node => "node",
        Origin::Outside => "outside",
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Forwarded => "forwarded",
        Verdict::Answered => "answered",
        Verdict::Refused => "refused",
        Verdict::Dropped => "dropped",
        Verdict::NotServed => "notServed",
        Verdict::Depends => "depends",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_name_a_packet() {
        let packet = |to: &str, protocol, from| Asked {
            to: Destination::read(to).unwrap().addressee,
            protocol,
            from,
            kernel: true,
        };
        let at = |ip: &str| Some(Caller::At(ip.parse().unwrap()));
        for (query, expected) in [
            ("to=10.96.0.1:80", Ok(packet("10.96.0.1:80", None, None))),
            (
                "to=10.96.0.1:53/udp&from=pod",
                Ok(packet(
                    "10.96.0.1:53",
                    Some(Protocol::Udp),
                    Some(Caller::Pod),
                )),
            ),
            (
                "to=shop%2Fweb:http&protocol=TCP&from=10.244.0.9",
                Ok(packet(
                    "shop/web:http",
                    Some(Protocol::Tcp),
                    at("10.244.0.9"),
                )),
            ),
            (
                "to=[fd00::1]:53&protocol=udp&from=fd00::2",
                Ok(packet("[fd00::1]:53", Some(Protocol::Udp), at("fd00::2"))),
            ),
            (
                "to=%5Bfd00%3A%3A1%5D%3A53&from=outside",
                Ok(packet("[fd00::1]:53", None, Some(Caller::Outside))),
            ),
            (
                "to=[::ffff:10.96.0.1]:80&from=::ffff:10.244.0.9",
                Ok(packet("10.96.0.1:80", None, at("10.244.0.9"))),
            ),
            ("to=10.96.0.1:80&from=0.0.0.0", Err("from is an address")),
            (
                "",
                Err("to=ADDRESS:PORT or to=[NAMESPACE/]SERVICE[:PORT] is missing"),
            ),
            ("to=10.96.0.1", Err("to=10.96.0.1: it must be an address")),
            ("to=10.96.0.1:0", Err("it must be an address with its port")),
            ("to=10.96.0.1:80&protocol=icmp", Err("tcp, udp or sctp")),
            (
                "to=web/udp&protocol=tcp",
                Err("protocol is TCP, and to names UDP"),
            ),
            (
                "to=10.96.0.1:80&from=web",
                Err("an address, pod, node or outside"),
            ),
            ("to=10.96.0.1:80&from=::1", Err("different IP families")),
            ("to=10.96.0.1:80&kernel=no", Err("true or false")),
            ("to=10.96.0.1:80&port=1", Err("the parameters are")),
        ] {
            match (read(query), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{query}"),
                (Err(why), Err(words)) => assert!(why.contains(words), "{query}: {why}"),
                (found, expected) => panic!("{query}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
