//! The objects that are followed, and how they are requested.

use super::Settings;
use crate::services::Kind;

/// Objects of one kind, which are listed and watched together.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) kind: Kind,
    /// Their name in the plural, for the log.
    pub(super) plural: &'static str,
    /// Path of the collection in all namespaces.
    pub(super) path: &'static str,
    /// Labels by which the server leaves out what this proxy does not serve, as
    /// in kube-proxy since 1.36 (`cmd/kube-proxy/app/server.go`, kubernetes
    /// #134623): each label counts on the kind that it is defined for.
    ///
    /// kube-proxy also selects `spec.clusterIP!=None` of Services, which servers before 1.31 refuse
    /// as an unknown field; headless Services reduce to almost nothing here, so this field is not
    /// used.
    pub(super) labels: Option<&'static str>,
    /// Fields by which the server selects them.
    pub(super) fields: Option<String>,
    /// Whether these are Nodes of which only the weight is used: only their metadata are requested,
    /// and those without a weight, which are most, are not stored.
    pub(super) weights_only: bool,
    /// Whether the program waits for these objects if the server withholds them, because their
    /// absence would look like an empty cluster. It continues without others.
    pub(super) required: bool,
    /// The consequence if the server is too old to have these objects, which is no fault; `None` if
    /// each server has them.
    pub(super) without: Option<&'static str>,
}

const NODES: &str = "/api/v1/nodes";

/// Lists what is followed with these settings.
pub(super) fn followed(settings: &Settings) -> Vec<Followed> {
    let dispensable = |kind, plural, path| Followed {
        kind,
        plural,
        path,
        labels: None,
        fields: None,
        weights_only: false,
        required: false,
        without: None,
    };
    let required = |kind, plural, path, labels| Followed {
        labels: Some(labels),
        required: true,
        ..dispensable(kind, plural, path)
    };
    let mut all = vec![
        required(
            Kind::Service,
            "Services",
            "/api/v1/services",
            "!service.kubernetes.io/service-proxy-name",
        ),
        required(
            Kind::EndpointSlice,
            "EndpointSlices",
            "/apis/discovery.k8s.io/v1/endpointslices",
            "!service.kubernetes.io/headless",
        ),
        Followed {
            fields: Some(format!("metadata.name={}", settings.node_name)),
            ..dispensable(Kind::Node, "Nodes", NODES)
        },
    ];
    if settings.node_weights {
        all.push(Followed {
            fields: Some(format!("metadata.name!={}", settings.node_name)),
            weights_only: true,
            ..dispensable(Kind::Node, "weights of other Nodes", NODES)
        });
    }
    if settings.service_cidrs {
        let path = "/apis/networking.k8s.io/v1/servicecidrs";
        all.push(Followed {
            // Servers before 1.33 do not have it in this version.
            without: Some(
                "the API server has no ServiceCIDRs (Kubernetes before 1.33): packets to cluster \
                 IPs that no Service has are not dropped",
            ),
            ..dispensable(Kind::ServiceCidr, "ServiceCIDRs", path)
        });
    }
    all
}
