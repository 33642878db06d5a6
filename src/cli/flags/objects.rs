//! Flags about where objects come from.

use crate::cli::{
    flag::{Field, Flag},
    options::Options,
};

pub(super) const OBJECTS: &[Flag] = &[
    Flag::new(
        "manifests",
        "PATH",
        Field::Set(
            |o, text| {
                o.own.manifests = (!text.is_empty()).then(|| text.into());
                Ok(())
            },
            "",
        ),
        "Folder of manifests (*.yaml, *.yml, *.json), or a single file, to serve Services, \
         EndpointSlices and Nodes from, without any API server; changes are followed",
    )
    .line("Folder or file of manifests to serve from, without an API server")
    .common()
    .beside_file(),
    Flag::switch(
        "node-weights",
        |o| &mut o.own.node_weights,
        "Honour the annotation tripod.proxy/weight on Nodes, too; the metadata of all Nodes is then \
         followed, not this node alone, which loads the API server of a large cluster",
    )
    .beside_file(),
    Flag::text(
        "kubeconfig",
        "FILE",
        |o| &mut o.configuration.client_connection.kubeconfig,
        "How to reach the API server and who we are; without it, the service account of the pod",
    )
    .line("How to reach the API server; without it, as the pod may")
    .common(),
    Flag::text(
        "master",
        "URL",
        |o| &mut o.master,
        "Address of the API server; wins over the one in the kubeconfig",
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
        "Requests a second to the API server",
    ),
    Flag::int(
        "kube-api-burst",
        |o| &mut o.configuration.client_connection.burst,
        "Requests at once to the API server",
    ),
    Flag::time(
        "config-sync-period",
        |o| &mut o.configuration.config_sync_period,
        "How often everything is fetched from the API server again; greater than 0",
    ),
];

/// Stores the name of the node; empty: none is given.
pub(in crate::cli) fn hostname(options: &mut Options, text: &str) -> Result<(), String> {
    let name = text.trim();
    if name.is_empty() && !text.is_empty() {
        return Err("it must not be blank".to_owned());
    }
    options.hostname_override = (!name.is_empty()).then(|| name.to_lowercase());
    Ok(())
}
