//! Flags about where objects come from.

use crate::cli::{
    flag::{Field, Flag, path},
    options::Options,
};

pub(super) const OBJECTS: &[Flag] = &[
    Flag::new(
        "manifests",
        "PATH",
        Field::Set(|o, text| path(&mut o.own.manifests, text), ""),
        "Folder of manifests (*.yaml, *.yml, *.json), or a single file, from which to read \
         Services, EndpointSlices and Nodes instead of an API server; changes are followed",
    )
    .line("Read objects from this folder or file instead of an API server")
    .common()
    .beside_file(),
    Flag::switch(
        "node-weights",
        |o| &mut o.own.node_weights,
        "Honour the annotation tripod.proxy/weight on Nodes as well. Tripod then follows the \
         metadata of all Nodes instead of this one only, which loads the API server of a large \
         cluster",
    )
    .beside_file(),
    Flag::text(
        "kubeconfig",
        "FILE",
        |o| &mut o.configuration.client_connection.kubeconfig,
        "Kubeconfig file with the address of the API server and the credentials. Without it: the \
         service account of the pod",
    )
    .line("Kubeconfig file; without it, the service account of the pod")
    .common(),
    Flag::text(
        "master",
        "URL",
        |o| &mut o.master,
        "Address of the API server; overrides the one in the kubeconfig",
    )
    .beside_file(),
    Flag::new(
        "hostname-override",
        "NAME",
        Field::Set(hostname, ""),
        "Name of this node, if it is not the machine's host name",
    )
    .common()
    .beside_file(),
    Flag::text(
        "kube-api-content-type",
        "TYPE",
        |o| &mut o.configuration.client_connection.content_type,
        "Content type of requests to the API server",
    ),
    Flag::new(
        "kube-api-qps",
        "N",
        Field::Float(|o| &mut o.configuration.client_connection.qps),
        "Maximum number of requests per second to the API server",
    ),
    Flag::int(
        "kube-api-burst",
        |o| &mut o.configuration.client_connection.burst,
        "Maximum burst of requests to the API server",
    ),
    Flag::time(
        "config-sync-period",
        |o| &mut o.configuration.config_sync_period,
        "How often all objects are fetched from the API server again; greater than 0",
    ),
];

/// Stores the name of the node; empty if none is given.
pub(in crate::cli) fn hostname(options: &mut Options, text: &str) -> Result<(), String> {
    let name = text.trim();
    if name.is_empty() && !text.is_empty() {
        return Err("it must not be blank".to_owned());
    }
    options.hostname_override = (!name.is_empty()).then(|| name.to_lowercase());
    Ok(())
}
