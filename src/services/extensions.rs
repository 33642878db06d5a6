//! What an object's author asks of Tripod alone: annotations and labels under
//! `tripod.proxy/`. Here they become values; what is malformed is named and
//! counts as not said.

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{invalid::Inspection, names::Names};
use crate::config::duration;

/// Weight of an endpoint that nobody gave one.
pub const DEFAULT_WEIGHT: u16 = 1;

/// Where EndpointSlices and Nodes say what their endpoints weigh.
pub const WEIGHT: &str = "tripod.proxy/weight";
/// What kube-router calls it (its `svcSchedulerAnnotation`).
const KUBE_ROUTER_SCHEDULER: &str = "kube-router.io/service.scheduler";

/// What a Service asks for beyond the API's fields. What is `None` was not
/// asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences {
    /// `tripod.proxy/scheduler`, else `kube-router.io/service.scheduler`: a
    /// name as IPVS spells them; whether there is such a one is for the mode to
    /// say.
    pub scheduler: Option<Arc<str>>,
    /// `tripod.proxy/forwarding`.
    pub forwarding: Option<Forwarding>,
    /// `tripod.proxy/drain-timeout`: how long connections to an endpoint that
    /// left the Service may go on; zero: they end at once.
    pub drain_timeout: Option<Duration>,
    /// `tripod.proxy/proxy-protocol`.
    pub proxy_protocol: Option<ProxyProtocol>,
}

impl Preferences {
    /// Where a Service asks for a scheduler.
    pub const SCHEDULER: &str = "tripod.proxy/scheduler";
    /// Where it asks for a way of forwarding.
    pub const FORWARDING: &str = "tripod.proxy/forwarding";
    /// Where it says how long connections to endpoints that left may go on.
    pub const DRAIN_TIMEOUT: &str = "tripod.proxy/drain-timeout";
    /// Where it says how endpoints are told who calls.
    pub const PROXY_PROTOCOL: &str = "tripod.proxy/proxy-protocol";

    /// Nothing is asked for.
    pub const NONE: Preferences = Preferences {
        scheduler: None,
        forwarding: None,
        drain_timeout: None,
        proxy_protocol: None,
    };
}

/// How packets get from the node to an endpoint (`ip_vs.h`,
/// `IP_VS_CONN_F_FWD_MASK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forwarding {
    /// Destination rewritten, answers come back this way: the default.
    Nat,
    /// Sent to the endpoint's link address as they are; it answers by itself.
    Dr,
    /// Wrapped in IP-in-IP; the endpoint answers by itself.
    Tunnel,
    /// As nat, with the source of every connection rewritten too.
    FullNat,
}

impl Forwarding {
    const ALL: [Forwarding; 4] = [
        Forwarding::Nat,
        Forwarding::Dr,
        Forwarding::Tunnel,
        Forwarding::FullNat,
    ];

    /// Its name in the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Forwarding::Nat => "nat",
            Forwarding::Dr => "dr",
            Forwarding::Tunnel => "tunnel",
            Forwarding::FullNat => "fullnat",
        }
    }
}

impl fmt::Display for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How endpoints are told who called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// The binary header of version 2 before the first byte.
    V2,
}

impl fmt::Display for ProxyProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ProxyProtocol::V2 => "v2",
        })
    }
}

/// One value of an object, and where it stands there.
struct Said<'a> {
    field: String,
    value: &'a str,
}

/// What `metadata` says under `key`; an annotation wins over a label.
fn said<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<Said<'a>> {
    let sets = [
        ("annotations", &metadata.annotations),
        ("labels", &metadata.labels),
    ];
    sets.into_iter().find_map(|(set, values)| {
        let value = values.as_ref()?.get(key)?;
        Some(Said {
            field: format!("metadata.{set}[{key:?}]"),
            value,
        })
    })
}

/// The weight that an EndpointSlice or a Node gives to its endpoints.
pub(super) fn weight(metadata: &ObjectMeta, inspection: &mut Inspection) -> Option<u16> {
    let Said { field, value } = said(metadata, WEIGHT)?;
    let weight = value.parse().ok();
    if weight.is_none() {
        let reason = "a weight is a number from 0 (no new connections) to 65535; it is left out";
        inspection.skip(field, value, reason);
    }
    weight
}

/// What a Service asks for, if anything.
pub(super) fn preferences(
    metadata: &ObjectMeta,
    inspection: &mut Inspection,
    names: &mut Names,
) -> Option<Arc<Preferences>> {
    let scheduler =
        said(metadata, Preferences::SCHEDULER).or_else(|| said(metadata, KUBE_ROUTER_SCHEDULER));
    let forwarding = said(metadata, Preferences::FORWARDING).and_then(|Said { field, value }| {
        let known = Forwarding::ALL.into_iter().find(|f| f.as_str() == value);
        if known.is_none() {
            let reason = "forwarding is nat, dr, tunnel or fullnat; it is left at nat";
            inspection.skip(field, value, reason);
        }
        known
    });
    let drain_timeout =
        said(metadata, Preferences::DRAIN_TIMEOUT).and_then(|Said { field, value }| {
            duration::parse(value)
                .map_err(|reason| inspection.skip(field, value, reason))
                .ok()
        });
    let proxy_protocol =
        said(metadata, Preferences::PROXY_PROTOCOL).and_then(|Said { field, value }| {
            if value == "v2" {
                return Some(ProxyProtocol::V2);
            }
            inspection.skip(field, value, "the only proxy protocol is v2; none is used");
            None
        });
    let preferences = Preferences {
        scheduler: scheduler.map(|said| names.share(said.value)),
        forwarding,
        drain_timeout,
        proxy_protocol,
    };
    (preferences != Preferences::NONE).then(|| Arc::new(preferences))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> ObjectMeta {
        let set = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            Some(
                pairs
                    .map(|(key, value)| (key.to_string(), value.to_string()))
                    .collect(),
            )
        };
        ObjectMeta {
            labels: set(labels),
            annotations: set(annotations),
            ..ObjectMeta::default()
        }
    }

    /// The weight, and the warnings about it.
    fn weight_of(metadata: &ObjectMeta) -> (Option<u16>, Vec<String>) {
        let mut inspection = Inspection::of("Node", "n");
        let weight = weight(metadata, &mut inspection);
        (weight, warnings(inspection))
    }

    fn preferences_of(annotations: &[(&str, &str)]) -> (Option<Preferences>, Vec<String>) {
        let mut inspection = Inspection::of("Service", "default/web");
        let metadata = metadata(&[], annotations);
        let preferences = preferences(&metadata, &mut inspection, &mut Names::default());
        let preferences = preferences.map(|preferences| (*preferences).clone());
        (preferences, warnings(inspection))
    }

    fn warnings(inspection: Inspection) -> Vec<String> {
        let warnings = inspection.finish(()).warnings;
        warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn weights_are_read_and_an_annotation_wins_over_a_label() {
        let of = |value: &str| weight_of(&metadata(&[], &[(WEIGHT, value)]));
        for (value, weight) in [("0", 0), ("3", 3), ("65535", 65_535)] {
            assert_eq!(of(value), (Some(weight), vec![]), "{value}");
        }
        for malformed in ["", "-1", "65536", "1.5", "three", " 3"] {
            let (weight, warnings) = of(malformed);
            assert_eq!(weight, None, "{malformed}");
            assert_eq!(warnings.len(), 1, "{malformed}");
            let begins = format!(
                "Node n: metadata.annotations[\"tripod.proxy/weight\"] is {malformed:?}: a weight is"
            );
            assert!(warnings[0].starts_with(&begins), "{warnings:?}");
        }
        let label = (WEIGHT, "1");
        assert_eq!(weight_of(&metadata(&[label], &[])).0, Some(1));
        let both = metadata(&[label], &[(WEIGHT, "2")]);
        assert_eq!(weight_of(&both).0, Some(2));
        assert_eq!(weight_of(&metadata(&[("app", "web")], &[])), (None, vec![]));
    }

    #[test]
    fn a_service_says_what_it_prefers() {
        let all = preferences_of(&[
            (Preferences::SCHEDULER, "wrr"),
            (KUBE_ROUTER_SCHEDULER, "lc"),
            (Preferences::FORWARDING, "fullnat"),
            (Preferences::DRAIN_TIMEOUT, "1m30s"),
            (Preferences::PROXY_PROTOCOL, "v2"),
            ("other.example/scheduler", "sh"),
        ]);
        let expected = Preferences {
            scheduler: Some("wrr".into()),
            forwarding: Some(Forwarding::FullNat),
            drain_timeout: Some(Duration::from_secs(90)),
            proxy_protocol: Some(ProxyProtocol::V2),
        };
        assert_eq!(all, (Some(expected), vec![]));
        let (router, _) = preferences_of(&[(KUBE_ROUTER_SCHEDULER, "lc")]);
        assert_eq!(router.and_then(|p| p.scheduler).as_deref(), Some("lc"));
        for forwarding in Forwarding::ALL {
            let (read, _) = preferences_of(&[(Preferences::FORWARDING, forwarding.as_str())]);
            assert_eq!(read.and_then(|p| p.forwarding), Some(forwarding));
        }
        assert_eq!(preferences_of(&[("app", "web")]), (None, vec![]));
    }

    #[test]
    fn what_is_malformed_is_named_and_not_asked_for() {
        for (key, value, reason) in [
            (
                Preferences::FORWARDING,
                "NAT",
                "forwarding is nat, dr, tunnel or fullnat",
            ),
            (Preferences::DRAIN_TIMEOUT, "30", "the unit is missing"),
            (Preferences::DRAIN_TIMEOUT, "-1s", "must not be negative"),
            (
                Preferences::PROXY_PROTOCOL,
                "v1",
                "the only proxy protocol is v2",
            ),
        ] {
            let (preferences, warnings) = preferences_of(&[(key, value)]);
            assert_eq!(preferences, None, "{key}: {value}");
            assert_eq!(warnings.len(), 1, "{key}: {value}");
            assert!(
                warnings[0].contains(key) && warnings[0].contains(reason),
                "{warnings:?}"
            );
        }
    }
}
