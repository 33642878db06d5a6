//! The kinds of objects that are watched, and how each is requested.

use std::{
    fmt::{self, Display},
    sync::Arc,
};

use serde::de::DeserializeOwned;

use crate::services::{
    EndpointSlice, Event, Invalid, Named, Names, Node, Reduced, Service, ServiceCidr, ServiceName,
    SliceName, namespace, wire,
};

/// A kind of objects.
pub(super) trait Kind:
    Named<Name: Clone + fmt::Debug + Display + Send + Sync> + Sized + PartialEq + Send + Sync + 'static
{
    /// The object in the form in which it is decoded.
    type Wire: DeserializeOwned;
    /// Name of the kind in the plural, for the log.
    const PLURAL: &str;
    /// Name of the kind in the singular.
    const SINGULAR: &str;
    /// Path of the collection in all namespaces.
    const PATH: &str;
    /// Labels by which the server leaves out what this proxy does not serve, as
    /// in kube-proxy since 1.36 (`cmd/kube-proxy/app/server.go`, kubernetes
    /// #134623): each label counts on the kind that it is defined for.
    ///
    /// kube-proxy also selects `spec.clusterIP!=None` of Services, which servers before 1.31 refuse
    /// as an unknown field; headless Services reduce to almost nothing here, so this field is not
    /// used.
    const LABELS: Option<&str>;

    /// Whether only metadata is requested from the server.
    const METADATA_ONLY: bool = false;
    /// Whether the program continues without these objects if the server withholds them. For others
    /// it waits, because their absence would look like an empty cluster.
    const DISPENSABLE: bool = false;
    /// The consequence if the server is too old to have these objects, which is no fault; `None` if
    /// each server has them.
    const WITHOUT: Option<&str> = None;

    /// Returns whether the object is used; an unused one counts as gone.
    fn is_used(&self) -> bool {
        true
    }

    /// Estimates the size of the object in bytes.
    fn size(&self) -> usize {
        SMALL
    }

    fn meta(wire: &Self::Wire) -> &wire::Meta;
    /// Returns the object's name; `None` if it has none.
    fn name(meta: &wire::Meta, names: &mut Names) -> Option<Self::Name>;
    fn reduce(wire: Self::Wire, names: &mut Names) -> Result<Reduced<Self>, Invalid>;
    fn came(object: Arc<Self>) -> Event;
    fn gone(name: Self::Name) -> Event;
}

/// Approximate size of an object with its names in bytes, without its lists.
const SMALL: usize = 300;

/// Returns namespace and name; `None` without a name.
fn namespaced(meta: &wire::Meta) -> Option<(&str, &str)> {
    let name = meta.name.as_deref().filter(|name| !name.is_empty())?;
    Some((namespace(meta.namespace.as_deref()), name))
}

impl Kind for Service {
    type Wire = wire::Service;
    const PLURAL: &str = "Services";
    const SINGULAR: &str = "Service";
    const PATH: &str = "/api/v1/services";
    const LABELS: Option<&str> = Some("!service.kubernetes.io/service-proxy-name");

    fn size(&self) -> usize {
        let serving = self.serving.as_ref().map_or(0, |serving| {
            size_of_val(&*serving.ports)
                + size_of_val(&*serving.external_ips)
                + size_of_val(&*serving.load_balancer_ips)
                + size_of_val(&*serving.load_balancer_source_ranges)
        });
        SMALL + serving
    }

    fn meta(wire: &wire::Service) -> &wire::Meta {
        &wire.metadata
    }

    fn name(meta: &wire::Meta, names: &mut Names) -> Option<ServiceName> {
        let (namespace, name) = namespaced(meta)?;
        Some(ServiceName {
            namespace: names.share(namespace),
            name: names.share(name),
        })
    }

    fn reduce(wire: wire::Service, names: &mut Names) -> Result<Reduced<Self>, Invalid> {
        Service::reduce(&wire, names)
    }

    fn came(object: Arc<Self>) -> Event {
        Event::Service(object)
    }

    fn gone(name: ServiceName) -> Event {
        Event::ServiceGone(name)
    }
}

impl Kind for EndpointSlice {
    type Wire = wire::EndpointSlice;
    const PLURAL: &str = "EndpointSlices";
    const SINGULAR: &str = "EndpointSlice";
    const PATH: &str = "/apis/discovery.k8s.io/v1/endpointslices";
    const LABELS: Option<&str> = Some("!service.kubernetes.io/headless");

    fn size(&self) -> usize {
        SMALL
            + size_of_val(&*self.ports)
            + size_of_val(&*self.endpoints)
            + size_of_val(&*self.forbidden)
    }

    fn meta(wire: &wire::EndpointSlice) -> &wire::Meta {
        &wire.metadata
    }

    fn name(meta: &wire::Meta, names: &mut Names) -> Option<SliceName> {
        let (namespace, name) = namespaced(meta)?;
        Some(SliceName {
            namespace: names.share(namespace),
            name: Arc::from(name),
        })
    }

    fn reduce(wire: wire::EndpointSlice, names: &mut Names) -> Result<Reduced<Self>, Invalid> {
        EndpointSlice::reduce(&wire, names)
    }

    fn came(object: Arc<Self>) -> Event {
        Event::EndpointSlice(object)
    }

    fn gone(name: SliceName) -> Event {
        Event::EndpointSliceGone(name)
    }
}

/// Servers before 1.33 do not have it in this version.
impl Kind for ServiceCidr {
    type Wire = wire::ServiceCidr;
    const PLURAL: &str = "ServiceCIDRs";
    const SINGULAR: &str = "ServiceCIDR";
    const PATH: &str = "/apis/networking.k8s.io/v1/servicecidrs";
    const LABELS: Option<&str> = None;
    const DISPENSABLE: bool = true;
    const WITHOUT: Option<&str> = Some(
        "the API server has no ServiceCIDRs (Kubernetes before 1.33): packets to cluster IPs that \
         no Service has are not dropped",
    );

    fn size(&self) -> usize {
        SMALL + size_of_val(&*self.networks)
    }

    fn meta(wire: &wire::ServiceCidr) -> &wire::Meta {
        &wire.metadata
    }

    fn name(meta: &wire::Meta, names: &mut Names) -> Option<Arc<str>> {
        Node::name(meta, names)
    }

    fn reduce(wire: wire::ServiceCidr, names: &mut Names) -> Result<Reduced<Self>, Invalid> {
        ServiceCidr::reduce(&wire, names)
    }

    fn came(object: Arc<Self>) -> Event {
        Event::ServiceCidr(object)
    }

    fn gone(name: Arc<str>) -> Event {
        Event::ServiceCidrGone(name)
    }
}

impl Kind for Node {
    type Wire = wire::Node;
    const PLURAL: &str = "Nodes";
    const SINGULAR: &str = "Node";
    const PATH: &str = "/api/v1/nodes";
    const LABELS: Option<&str> = None;
    const DISPENSABLE: bool = true;

    fn size(&self) -> usize {
        SMALL + size_of_val(&*self.pod_cidrs) + size_of_val(&*self.addresses)
    }

    fn meta(wire: &wire::Node) -> &wire::Meta {
        &wire.metadata
    }

    fn name(meta: &wire::Meta, names: &mut Names) -> Option<Arc<str>> {
        let name = meta.name.as_deref().filter(|name| !name.is_empty())?;
        Some(names.share(name))
    }

    fn reduce(wire: wire::Node, names: &mut Names) -> Result<Reduced<Self>, Invalid> {
        Node::reduce(&wire, names)
    }

    fn came(object: Arc<Self>) -> Event {
        Event::Node(object)
    }

    fn gone(name: Arc<str>) -> Event {
        Event::NodeGone(name)
    }
}

/// Another Node, used only for its weight: most have none, and are not stored.
#[derive(PartialEq)]
pub(super) struct Elsewhere(Arc<Node>);

impl Named for Elsewhere {
    type Name = Arc<str>;

    fn own_name(&self) -> &Arc<str> {
        self.0.own_name()
    }
}

impl Kind for Elsewhere {
    type Wire = wire::Bare;
    const PLURAL: &str = "weights of other Nodes";
    const SINGULAR: &str = "other Node";
    const PATH: &str = Node::PATH;
    const LABELS: Option<&str> = None;
    const METADATA_ONLY: bool = true;
    const DISPENSABLE: bool = true;

    fn is_used(&self) -> bool {
        self.0.weight.is_some()
    }

    fn meta(wire: &wire::Bare) -> &wire::Meta {
        &wire.metadata
    }

    fn name(meta: &wire::Meta, names: &mut Names) -> Option<Arc<str>> {
        Node::name(meta, names)
    }

    fn reduce(wire: wire::Bare, names: &mut Names) -> Result<Reduced<Self>, Invalid> {
        let Reduced { object, warnings } = Node::reduce(&wire.into(), names)?;
        let object = Elsewhere(Arc::new(object));
        Ok(Reduced { object, warnings })
    }

    fn came(object: Arc<Self>) -> Event {
        Event::Node(Arc::clone(&object.0))
    }

    fn gone(name: Arc<str>) -> Event {
        Event::NodeGone(name)
    }
}
