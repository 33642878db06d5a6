//! Answers `/v1/explain`.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hyper::StatusCode;

use super::{
    About, StatusApi, address_kind, connections,
    diff::{difference, unanswered},
    json, refused,
};
use crate::{
    net::{Family, ModeName, Protocol},
    runner::question::{self, Caller, Explained, Origin, Packet, Reading, Verdict},
    serve::http::{Answer, Reply},
    services::ServicePort,
    status_api::{
        Candidate, Connections, Explanation, Listed, NoEndpoints, Object, PassedOver, VERSION,
    },
};

/// Most differences in an answer, beside those of the ServicePort.
const MOST: usize = 100;

impl StatusApi {
    pub(super) fn explain(self: &Arc<Self>, query: &str) -> Reply {
        let (packet, reading) = match read(query) {
            Ok(asked) => asked,
            Err(why) => return refused(StatusCode::BAD_REQUEST, why).into(),
        };
        if let Some(answer) = self.not_ready() {
            return answer.into();
        }
        Reply::later(answer(Arc::clone(self), packet, reading))
    }
}

/// Returns the packet that the parameters `to`, `protocol` and `from` name, and whether
/// the kernel is to be read for it.
pub(super) fn read(query: &str) -> Result<(Packet, Reading), String> {
    let (mut to, mut protocol, mut from) = (None, Protocol::Tcp, Caller::Pod);
    let mut reading = Reading::Whole;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        // The brackets of IPv6 addresses, and the colon, where they are encoded.
        let value = value.replace("%5B", "[").replace("%5D", "]");
        let value = value.replace("%3A", ":").replace("%3a", ":");
        let value = value.replace("%5b", "[").replace("%5d", "]");
        match name {
            "to" => to = Some(destination(&value)?),
            "protocol" => {
                let upper = value.to_ascii_uppercase();
                let mut all = Protocol::ALL.into_iter();
                let found = all.find(|protocol| protocol.name() == upper);
                protocol = found.ok_or("protocol is tcp, udp or sctp")?;
            }
            "from" => from = caller(&value)?,
            "kernel" => {
                reading = match &*value {
                    "true" => Reading::Whole,
                    "false" => Reading::Nothing,
                    _ => return Err("kernel is true or false".to_owned()),
                }
            }
            _ => return Err("the parameters are to, protocol, from and kernel".to_owned()),
        }
    }
    let to = to.ok_or("to=ADDRESS:PORT is missing")?;
    if let Caller::At(ip) = from
        && Family::of(&ip) != Family::of(&to.ip())
    {
        return Err("to and from are addresses of different IP families".to_owned());
    }
    Ok((Packet { to, protocol, from }, reading))
}

fn destination(value: &str) -> Result<SocketAddr, String> {
    let parsed = value.parse::<SocketAddr>().ok().filter(|to| to.port() > 0);
    // An IPv4 address that is written as one of IPv6 is called over IPv4.
    let parsed = parsed.map(|to| SocketAddr::new(to.ip().to_canonical(), to.port()));
    parsed.ok_or_else(|| "to is ADDRESS:PORT, with an IPv6 address in brackets".to_owned())
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

async fn answer(api: Arc<StatusApi>, packet: Packet, reading: Reading) -> Answer {
    let mode = api.about.mode;
    let mut explained = match api.questions.explain(packet, reading).await {
        Ok(explained) => explained,
        Err(why) => return unanswered(why),
    };
    let family = Family::of(&packet.to.ip());
    if let Some(Some(Ok(found))) = (explained.compared.as_mut()).map(|all| all.get_mut(family)) {
        let port = explained.service_port.as_ref();
        let service = port.map(|port| &port.name.service);
        found.extend(api.node_differences(service));
    }
    let found = match reading {
        Reading::Whole => Some(question::connections(packet).await),
        Reading::Nothing => None,
    };
    let (found, error) = match found.transpose() {
        Ok(found) => (found, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let found = found.map(|found| connections::listed(&found, &packet, mode, &explained));
    let policies = match &explained.explanation {
        Ok(explanation) if reading == Reading::Whole => policies(explanation, mode, family).await,
        _ => None,
    };
    explanation(&api.about, &packet, explained, policies, (found, error))
}

/// Returns which chains of other programs drop what is forwarded, where the packet may be:
/// what the node sends itself, or userspace mode, is not.
async fn policies(
    of: &question::Explanation,
    mode: ModeName,
    family: Family,
) -> Option<Vec<String>> {
    let is_forwarded = of.verdict == Verdict::Forwarded
        && of.origin != Origin::Node
        && mode != ModeName::Userspace;
    if !is_forwarded {
        return Some(Vec::new());
    }
    let read = question::dropping_chains(family).await;
    read.inspect_err(|error| tracing::info!("policies of the hook forward: {error}"))
        .ok()
}

fn explanation(
    about: &About,
    packet: &Packet,
    explained: Explained,
    forward_policies: Option<Vec<String>>,
    (connections, connections_error): (Option<Connections>, Option<String>),
) -> Answer {
    let mode = about.mode;
    let Explained {
        explanation,
        service_port,
        compared,
    } = explained;
    let explanation = match explanation {
        Ok(explanation) => explanation,
        Err(error) => return refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    };
    let family = Family::of(&packet.to.ip());
    let is_read = compared.is_some();
    let of_family = compared.and_then(|mut compared| compared.get_mut(family).take());
    let (found, error) = match of_family {
        Some(Ok(found)) => (found, None),
        Some(Err(error)) => (Vec::new(), Some(error.to_string())),
        None if !is_read => (Vec::new(), None),
        None => {
            let why = format!("{mode} mode does not serve {family} here");
            (Vec::new(), Some(why))
        }
    };
    let served_by = explanation.served_by.as_ref();
    let name = served_by.map(|(name, _)| name);
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
    let concerns = |difference: &&question::Difference| {
        let owner = difference.owner.as_ref();
        let is_shown = objects
            .iter()
            .any(|shown| shown.object == difference.object);
        !is_shown && owner.is_none_or(|owner| Some(owner) == name)
    };
    let others: Vec<_> = found.iter().filter(concerns).collect();
    let differences = Listed {
        total: others.len(),
        items: others.into_iter().take(MOST).map(difference).collect(),
    };
    let port = service_port.as_deref();
    json(&Explanation {
        api_version: VERSION.to_owned(),
        kind: "Explanation".to_owned(),
        mode: mode.to_string(),
        to: packet.to.to_string(),
        protocol: packet.protocol.to_string(),
        from: sender(packet.from),
        origin: origin(explanation.origin).to_owned(),
        verdict: verdict(explanation.verdict).to_owned(),
        service_port: name.map(ToString::to_string),
        role: served_by.map(|(_, role)| address_kind(*role)),
        candidates: candidates(&explanation, port),
        no_endpoints: no_endpoints(about, &explanation),
        forward_policies,
        passed_over: passed_over(&explanation, port),
        steps: explanation.steps,
        objects,
        differences,
        connections,
        connections_error,
        error,
    })
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

fn candidates(explanation: &question::Explanation, port: Option<&ServicePort>) -> Vec<Candidate> {
    let node = |address| {
        let all = port.map(|port| port.endpoints.all.iter());
        let mut all = all.into_iter().flatten();
        let endpoint = all.find(|endpoint| endpoint.address == address)?;
        endpoint.node_name.as_ref().map(ToString::to_string)
    };
    let candidates = explanation.candidates.iter();
    candidates
        .map(|candidate| Candidate {
            address: candidate.address.to_string(),
            node: node(candidate.address),
            share: candidate.share,
        })
        .collect()
}

fn passed_over(explanation: &question::Explanation, port: Option<&ServicePort>) -> Vec<PassedOver> {
    let is_candidate = |address| {
        let mut candidates = explanation.candidates.iter();
        candidates.any(|candidate| candidate.address == address)
    };
    let usage = port.into_iter().flat_map(|port| port.endpoints.usage());
    let others = usage.filter(|(endpoint, _)| !is_candidate(endpoint.address));
    let not_used = || match explanation.verdict {
        // Such a packet has no candidates.
        Verdict::Refused | Verdict::Dropped | Verdict::NotServed => {
            "no endpoint gets such a packet".to_owned()
        }
        Verdict::Depends => "it depends on the caller whether it gets the packet".to_owned(),
        _ => "not for such a caller, by the traffic policy".to_owned(),
    };
    others
        .map(|(endpoint, why)| PassedOver {
            address: endpoint.address.to_string(),
            node: endpoint.node_name.as_ref().map(ToString::to_string),
            why: why.map_or_else(not_used, |why| why.to_string()),
        })
        .collect()
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
        let packet = |to: &str, protocol, from| Packet {
            to: to.parse().unwrap(),
            protocol,
            from,
        };
        let at = |ip: &str| Caller::At(ip.parse().unwrap());
        for (query, expected) in [
            (
                "to=10.96.0.1:80",
                Ok(packet("10.96.0.1:80", Protocol::Tcp, Caller::Pod)),
            ),
            (
                "to=[fd00::1]:53&protocol=udp&from=fd00::2",
                Ok(packet("[fd00::1]:53", Protocol::Udp, at("fd00::2"))),
            ),
            (
                "to=%5Bfd00%3A%3A1%5D%3A53&from=outside",
                Ok(packet("[fd00::1]:53", Protocol::Tcp, Caller::Outside)),
            ),
            (
                "to=[::ffff:10.96.0.1]:80&from=::ffff:10.244.0.9",
                Ok(packet("10.96.0.1:80", Protocol::Tcp, at("10.244.0.9"))),
            ),
            ("to=10.96.0.1:80&from=0.0.0.0", Err("from is an address")),
            ("", Err("to=ADDRESS:PORT is missing")),
            ("to=10.96.0.1", Err("to is ADDRESS:PORT")),
            ("to=10.96.0.1:0", Err("to is ADDRESS:PORT")),
            ("to=10.96.0.1:80&protocol=icmp", Err("tcp, udp or sctp")),
            (
                "to=10.96.0.1:80&from=web",
                Err("an address, pod, node or outside"),
            ),
            ("to=10.96.0.1:80&from=::1", Err("different IP families")),
            ("to=10.96.0.1:80&kernel=no", Err("true or false")),
            ("to=10.96.0.1:80&port=1", Err("the parameters are")),
        ] {
            match (read(query), expected) {
                (Ok((found, _)), Ok(expected)) => assert_eq!(found, expected, "{query}"),
                (Err(why), Err(words)) => assert!(why.contains(words), "{query}: {why}"),
                (found, expected) => panic!("{query}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
