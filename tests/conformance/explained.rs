//! What `tripod explain` says of a call, held against what came of it.

use serde_json::Value;

use super::{
    case::{Caller, Protocol, Target},
    endpoints::Pod,
    observation::{Answered, How, Observation},
    probe::Probe,
    run::Run,
};
use crate::lab::get;

impl Run<'_> {
    /// Asks about the call of `probe`, which was seen to come out as promised.
    ///
    /// # Errors
    /// With the answer, where that says otherwise.
    pub fn check_explanation(&self, probe: &Probe) -> Result<(), String> {
        let local = self.column.flags.contains(&"--userspace-capture=local");
        let expected = Expected::of(probe, local);
        let protocol = match probe.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        let from = match (probe.caller, probe.target) {
            (Caller::Node, Target::Loopback) => "node".to_owned(),
            (caller, _) => {
                let [v4, v6] = self.network.host(caller).addresses;
                let address = if probe.to.is_ipv4() { v4 } else { v6 };
                address.to_string()
            }
        };
        let path = format!(
            "/v1/explain?to={}&protocol={protocol}&from={from}&kernel=false",
            probe.to
        );
        let address = ([127, 0, 0, 1], 10249).into();
        let answer = get(&self.network.node, address, &path).map_err(|error| error.to_string())?;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let explanation: Value = serde_json::from_str(body).unwrap_or_default();
        if expected.is_met(&explanation) {
            Ok(())
        } else {
            Err(format!("{path}: {explanation}, expected {expected:?}"))
        }
    }
}

/// What is to be said.
#[derive(Debug)]
struct Expected {
    /// One of these.
    verdicts: Vec<&'static str>,
    /// Address of each candidate, with its share where that is promised.
    candidates: Vec<(String, Option<f64>)>,
}

impl Expected {
    /// Returns what is to be said of `probe`, where service addresses are captured by
    /// routes if `local`.
    fn of(probe: &Probe, local: bool) -> Expected {
        // Ports of the node that no Service has are the node's own affair.
        let at_node = !matches!(
            probe.target,
            Target::ClusterIp | Target::LoadBalancer | Target::ExternalIp
        );
        let prohibited = local && probe.target == Target::ClusterIp;
        let refused = || {
            if at_node {
                vec!["refused", "notServed"]
            } else {
                vec!["refused"]
            }
        };
        let verdicts = match &probe.observation {
            Observation::Answered(_) => vec!["forwarded"],
            Observation::Refused => refused(),
            Observation::Silent => vec!["dropped"],
            Observation::Unserved if prohibited => vec!["notServed", "refused"],
            Observation::Unserved | Observation::Unreached => vec!["notServed"],
            Observation::Stopped => vec!["refused", "dropped"],
            Observation::StoppedOrRefused | Observation::SilentOrRefused => {
                [refused(), vec!["dropped"]].concat()
            }
            Observation::Healthy(_) | Observation::Unhealthy => vec!["answered"],
        };
        let candidates = match &probe.observation {
            Observation::Answered(answered) => candidates(answered, probe.to.is_ipv4()),
            _ => Vec::new(),
        };
        Expected {
            verdicts,
            candidates,
        }
    }

    fn is_met(&self, explanation: &Value) -> bool {
        let verdict = explanation["verdict"].as_str().unwrap_or_default();
        let found = explanation["candidates"].as_array();
        let found = found.map(Vec::as_slice).unwrap_or_default();
        let same = |(address, share): &(String, Option<f64>)| {
            found.iter().any(|candidate| {
                let is_share = |share: f64| {
                    let found = candidate["share"].as_f64();
                    found.is_some_and(|found| (found - share).abs() < 0.005)
                };
                candidate["address"] == **address && share.is_none_or(is_share)
            })
        };
        self.verdicts.contains(&verdict)
            && found.len() == self.candidates.len()
            && self.candidates.iter().all(same)
    }
}

fn candidates(answered: &Answered, v4: bool) -> Vec<(String, Option<f64>)> {
    let whole: u32 = answered.by.iter().map(|(_, share)| share).sum();
    let of = |(pod, share): &(Pod, u32)| {
        let (ipv4, ipv6) = pod.addresses();
        let port = answered.port;
        let address = if v4 {
            format!("{ipv4}:{port}")
        } else {
            format!("[{ipv6}]:{port}")
        };
        let share = f64::from(*share) / f64::from(whole);
        (address, (answered.how == How::Shares).then_some(share))
    };
    answered.by.iter().map(of).collect()
}
