//! Kinds with a typing error. Objects of other kinds do not concern a proxy, but a `Servcie` is a
//! Service that would not be served.

use super::similar::similar;
use crate::{services::Kind, watch::kind::KINDS};

/// The intended kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meant {
    /// `None`: a list.
    pub(super) kind: Option<Kind>,
    /// The fault, and the intended kind, in words.
    pub(super) reason: String,
}

/// Guesses the kind that was intended by one that no proxy reads; `None` if it may well be another
/// one.
pub(super) fn meant(api_version: &str, kind: &str) -> Option<Meant> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    // Custom resources may have any name: Knative also has a Service.
    let is_kubernetes = !group.contains('.') || group.ends_with(".k8s.io");
    let named = KINDS.into_iter().find(|(_, _, name)| *name == kind);
    if let Some((found, expected, _)) = named {
        let own = expected.rsplit_once('/').map_or("", |(own, _)| own);
        let is_older = group == own && (version.contains("alpha") || version.contains("beta"));
        let is_meant = is_kubernetes || similar(group, [own]).is_some();
        return (is_meant && !is_older).then(|| Meant {
            kind: Some(found),
            reason: format!(
                "unknown apiVersion {api_version:?} of {kind}, did you mean {expected}?"
            ),
        });
    }
    if !is_kubernetes {
        return None;
    }
    let reason = |name: &str| format!("unknown kind {kind:?}, did you mean {name}?");
    let names = KINDS.map(|(_, _, name)| name);
    if let Some(name) = similar(kind, names) {
        let found = KINDS.into_iter().find(|(_, _, other)| *other == name);
        return Some(Meant {
            kind: found.map(|(found, ..)| found),
            reason: reason(name),
        });
    }
    let list = match kind.strip_suffix("List") {
        Some(of) => similar(of, names).map(|name| format!("{name}List")),
        None => similar(kind, ["List"]).map(str::to_owned),
    };
    list.map(|name| Meant {
        kind: None,
        reason: reason(&name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_told_from_other_kinds() {
        for (api_version, kind, expected) in [
            ("v1", "Servcie", "did you mean Service?"),
            ("v1", "service", "did you mean Service?"),
            ("v1", "Services", "did you mean Service?"),
            ("v1", "Nodes", "did you mean Node?"),
            (
                "discovery.k8s.io/v1",
                "EndpointSlcie",
                "did you mean EndpointSlice?",
            ),
            (
                "networking.k8s.io/v1",
                "ServiceCidr",
                "did you mean ServiceCIDR?",
            ),
            ("v1", "ServcieList", "did you mean ServiceList?"),
            ("v1", "Lst", "did you mean List?"),
            ("V1", "Service", "did you mean v1?"),
            ("core/v1", "Service", "did you mean v1?"),
            ("apps/v1", "Service", "did you mean v1?"),
            ("v1", "EndpointSlice", "did you mean discovery.k8s.io/v1?"),
            (
                "dicsovery.k8s.io/v1",
                "EndpointSlice",
                "did you mean discovery.k8s.io/v1?",
            ),
            ("discovery.k8s/v1", "EndpointSlice", ""),
        ] {
            let found = meant(api_version, kind).map(|meant| meant.reason);
            assert!(found.is_some_and(|found| found.ends_with(expected)) || expected.is_empty());
        }
        for (api_version, kind) in [
            ("serving.knative.dev/v1", "Service"),
            ("example.com/v1", "Servcie"),
            ("discovery.k8s.io/v1beta1", "EndpointSlice"),
            ("networking.k8s.io/v1beta1", "ServiceCIDR"),
            ("v1", "Endpoints"),
            ("v1", "ServiceAccount"),
            ("v1", "Secret"),
            ("v1", "Pod"),
            ("rbac.authorization.k8s.io/v1", "Role"),
            ("networking.k8s.io/v1", "Ingress"),
            ("apiregistration.k8s.io/v1", "APIService"),
            ("resource.k8s.io/v1", "ResourceSlice"),
            ("resource.k8s.io/v1", "DeviceClass"),
            ("v1", "PodList"),
        ] {
            assert_eq!(meant(api_version, kind), None, "{api_version} {kind}");
        }
    }
}
