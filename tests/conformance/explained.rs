//! Compares the answer of `tripod explain` about a call with the result of the call.

use std::net::IpAddr;

use serde_json::Value;

use super::{
    case::{Caller, Protocol, Target},
    columns::Kernel,
    endpoints::Pod,
    observation::{Answered, How, Observation},
    probe::Probe,
    run::Run,
};
use crate::lab::get;

/// Whether the state of the kernel is read for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All of it; no difference may be reported.
    Kernel,
    /// Nothing: the answer follows from the Services alone.
    ServicesAlone,
}

/// One stage in this many has the kernel read for one of its calls: reading all of it takes a third
/// of a second, next to some fifty calls a second; doing so for each call would make the tests take
/// ten times as long.
const SHARE: usize = 12;

/// Chooses for which of the `count` calls at `stage` of a case the kernel is read, if for any: over
/// time, for calls of all targets, protocols and families.
pub fn read_for(case: u16, stage: usize, count: usize) -> Option<usize> {
    let number = usize::from(case) + stage;
    (number.is_multiple_of(SHARE) && count > 0).then(|| number / SHARE % count)
}

impl Run<'_> {
    /// Asks about the call of `probe`, whose result was as promised: with the caller's address, and
    /// with the word for such callers, if there is one. If the Service is `ranged`, some callers
    /// are excluded.
    ///
    /// # Errors
    /// When the answer differs; the error has the answer.
    pub fn check_explanation(
        &self,
        probe: &Probe,
        ranged: bool,
        reading: Reading,
    ) -> Result<(), String> {
        // Without rules, routes capture service addresses.
        let local = self.column.mode == "userspace" && self.column.chain.is_none();
        let is_silent = matches!(
            probe.observation,
            Observation::Silent | Observation::SilentOrRefused
        );
        let expected = Expected {
            or_falls_back: is_silent && self.column.mode == "ipvs",
            ..Expected::of(probe, local)
        };
        let by_address = self.address_of_caller(probe).to_string();
        self.check_answer(probe, &by_address, reading, &expected)?;
        let Some(word) = word(probe.caller) else {
            return Ok(());
        };
        // The word also covers callers that the ranges admit.
        let depends = ranged && probe.target == Target::LoadBalancer;
        let expected = Expected {
            or_depends: depends,
            ..expected
        };
        self.check_answer(probe, word, Reading::ServicesAlone, &expected)
    }

    fn address_of_caller(&self, probe: &Probe) -> IpAddr {
        if (probe.caller, probe.target) == (Caller::Node, Target::Loopback) {
            return probe.to.ip();
        }
        let [v4, v6] = self.network.host(probe.caller).addresses;
        if probe.to.is_ipv4() { v4 } else { v6 }
    }

    fn check_answer(
        &self,
        probe: &Probe,
        from: &str,
        reading: Reading,
        expected: &Expected,
    ) -> Result<(), String> {
        let protocol = match probe.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        let mut path = format!(
            "/v1/explain?to={}&protocol={protocol}&from={from}",
            probe.to
        );
        if reading == Reading::ServicesAlone {
            path.push_str("&kernel=false");
        }
        let address = ([127, 0, 0, 1], 10249).into();
        let answer = get(&self.network.node, address, &path).map_err(|error| error.to_string())?;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let explanation: Value = serde_json::from_str(body).unwrap_or_default();
        if !expected.is_met(&explanation) {
            return Err(format!("{path}: {body}, expected {expected:?}"));
        }
        if reading == Reading::Kernel && !self.is_without_differences(probe, &explanation) {
            return Err(format!("{path}: a difference in {explanation}"));
        }
        Ok(())
    }

    /// Returns whether everything that should be in the kernel was found there.
    fn is_without_differences(&self, probe: &Probe, explanation: &Value) -> bool {
        // Userspace mode serves no SCTP, which it shows as a difference.
        let is_unserved = probe.protocol == Protocol::Sctp && self.column.mode == "userspace";
        let objects = explanation["objects"].as_array();
        let present = |object: &Value| object["found"] == "present";
        let objects_are_there = objects.is_some_and(|objects| objects.iter().all(present));
        let dropping = explanation["forwardPolicies"].as_array();
        // That kernel has no table of connections.
        let connections_are_read =
            self.column.kernel == Kernel::Bare || explanation["connectionsError"].is_null();
        explanation["error"].is_null()
            && (is_unserved || objects_are_there && explanation["differences"]["total"] == 0)
            && dropping.is_none_or(Vec::is_empty)
            && connections_are_read
    }
}

/// Returns the word for such callers, if there is one.
fn word(caller: Caller) -> Option<&'static str> {
    match caller {
        Caller::Pod | Caller::Backend => Some("pod"),
        Caller::Node => Some("node"),
        Caller::OtherNode | Caller::Outside => Some("outside"),
        // The word stands for pods of this node.
        Caller::RemotePod => None,
    }
}

/// The expected answer.
#[derive(Debug)]
struct Expected {
    /// The verdicts, one of which must be found.
    verdicts: Vec<&'static str>,
    /// Address of each candidate, with its share if that is promised.
    candidates: Vec<(String, Option<f64>)>,
    /// Whether the answer may also be that it depends on the caller's address.
    or_depends: bool,
    /// Whether IPVS may also forward it to endpoints elsewhere, which do not answer through this
    /// node.
    or_falls_back: bool,
}

impl Expected {
    /// Returns the expected answer for `probe`; with `local`, routes capture service addresses.
    fn of(probe: &Probe, local: bool) -> Expected {
        // Ports of the node that no Service has belong to the node.
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
            or_depends: false,
            or_falls_back: false,
        }
    }

    fn is_met(&self, explanation: &Value) -> bool {
        let verdict = explanation["verdict"].as_str().unwrap_or_default();
        if verdict == "depends" {
            return self.or_depends;
        }
        if verdict == "forwarded" && self.or_falls_back {
            return true;
        }
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
