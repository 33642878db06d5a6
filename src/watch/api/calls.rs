//! The calls to the API server that RBAC must allow.

/// Calls to one kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version of the group.
    pub version: &'static str,
    /// Name of the collection.
    pub resource: &'static str,
    /// Verbs as RBAC knows them.
    pub verbs: &'static [&'static str],
}

/// All calls that the program makes. `deploy/kustomize/base/rbac.yaml` allows
/// them.
pub const CALLS: [Call; 5] = [
    Call {
        group: "",
        version: "v1",
        resource: "services",
        verbs: &["list", "watch"],
    },
    Call {
        group: "discovery.k8s.io",
        version: "v1",
        resource: "endpointslices",
        verbs: &["list", "watch"],
    },
    Call {
        group: "",
        version: "v1",
        resource: "nodes",
        verbs: &["list", "watch"],
    },
    // Only in nftables mode.
    Call {
        group: "networking.k8s.io",
        version: "v1",
        resource: "servicecidrs",
        verbs: &["list", "watch"],
    },
    // Written by `crate::events`: created, and patched when they repeat.
    Call {
        group: "events.k8s.io",
        version: "v1",
        resource: "events",
        verbs: &["create", "patch"],
    },
];

impl Call {
    /// The path of the collection in all namespaces.
    pub fn path(&self) -> String {
        match self.group {
            "" => format!("/api/{}/{}", self.version, self.resource),
            group => format!("/apis/{group}/{}/{}", self.version, self.resource),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::events::v1::Event;
    use kube::Resource;

    use super::{super::kind::Kind, *};
    use crate::services::{EndpointSlice, Node, Service, ServiceCidr};

    #[test]
    fn they_are_the_paths_that_are_asked_for() {
        let paths = [
            Service::PATH.to_owned(),
            EndpointSlice::PATH.to_owned(),
            Node::PATH.to_owned(),
            ServiceCidr::PATH.to_owned(),
            Event::url_path(&(), None),
        ];
        assert_eq!(CALLS.map(|call| call.path()), paths);
    }
}
