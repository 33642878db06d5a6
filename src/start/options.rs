//! From settings to what each mode is given.

use std::sync::Arc;

use prometheus::Registry;

use crate::{
    cli::Settings,
    config,
    modes::userspace::{self, Capture, Counters, Userspace, capture},
    node::NodePorts,
};

/// How userspace mode tells pods from others.
fn detect_local(configured: &config::DetectLocal) -> userspace::DetectLocal {
    match configured {
        config::DetectLocal::ClusterCidr(cidrs) => userspace::DetectLocal::Within(cidrs.clone()),
        config::DetectLocal::NodeCidr => userspace::DetectLocal::PodCidrs,
        config::DetectLocal::BridgeInterface(link)
        | config::DetectLocal::InterfaceNamePrefix(link) => {
            tracing::warn!(
                "userspace mode cannot tell pods by their link ({link}): to a Service with \
                 externalTrafficPolicy Local they are as callers from outside; set \
                 detectLocalMode to ClusterCIDR or NodeCIDR"
            );
            userspace::DetectLocal::Unknown
        }
    }
}

pub(super) async fn userspace_mode(
    settings: &Settings,
    node_ports: Arc<NodePorts>,
    registry: &Registry,
) -> Result<Userspace, Box<dyn std::error::Error>> {
    let choice = capture::choose(settings.own.capture).await?;
    for reason in &choice.reasons {
        tracing::info!("{reason}");
    }
    let effective = &settings.effective;
    let capture = Capture::new(choice).await?;
    let options = userspace::Options {
        port_range: effective.proxy_ports.clone(),
        udp_timeout: settings.own.udp_timeout,
        scheduler: effective.scheduler,
        node_ports,
        detect_local: detect_local(&effective.detect_local),
        workers: userspace::workers(settings.own.workers),
    };
    Ok(Userspace::new(
        options,
        capture,
        Counters::register(registry)?,
    )?)
}
