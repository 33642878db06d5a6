//! What a mode would put into the kernel, as text: `tripod render`.

use std::{
    fmt::{self, Write},
    net::IpAddr,
};

use super::{
    iptables::{
        plan::{self, DispatchChoice},
        render as iptables,
    },
    ipvs, localhost, nftables, userspace,
};
use crate::{
    config::{Effective, KubeProxyConfiguration},
    kernel::{probe::Kernel, xtables},
    net::{Family, ModeName},
    node::Served,
    services::{Namespaces, ServiceMap},
};

/// What decides about the rules besides the Services.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a> {
    /// The configuration, as it was read.
    pub configuration: &'a KubeProxyConfiguration,
    /// The effective settings, which follow from the configuration.
    pub effective: &'a Effective,
    /// The kernel, which decides what rules may use.
    pub kernel: &'a Kernel,
    /// How chains are found, `--iptables-dispatch`.
    pub dispatch: DispatchChoice,
    /// The addresses of the node itself.
    pub addresses: &'a [IpAddr],
    /// Which of them serve node ports.
    pub served: &'a Served,
    /// The loopback addresses that are to serve them, in modes that listen there.
    pub loopback: &'a [IpAddr],
    /// Namespaces whose Services are counted, in nftables mode.
    pub counted: &'a Namespaces,
}

/// Writes what `mode` would put into that kernel.
///
/// # Errors
/// When the text could not be written.
pub fn render(
    mode: ModeName,
    map: &ServiceMap,
    choices: &Choices<'_>,
) -> Result<String, fmt::Error> {
    let mut text = String::new();
    match mode {
        ModeName::Iptables => render_iptables(map, choices, &mut text)?,
        ModeName::Ipvs => {
            let node = map.this_node();
            let addresses = choices.addresses.to_vec();
            let options = ipvs::plan::Options::new(choices.configuration, choices.effective);
            let context = ipvs::plan::NodeContext::new(&options, node, choices.served, addresses);
            ipvs::render::render(map, context, choices.kernel, &mut text)?;
            localhost::render(map, choices.loopback, &mut text)?;
        }
        ModeName::Nftables => {
            for family in Family::ALL {
                let (configuration, effective) = (choices.configuration, choices.effective);
                let options = nftables::plan::Options::new(
                    configuration,
                    effective,
                    family,
                    map,
                    choices.served,
                    choices.counted,
                    nftables::plan::features(choices.kernel, family),
                );
                nftables::render::render(map, &options, &mut text)?;
            }
            localhost::render(map, choices.loopback, &mut text)?;
        }
        ModeName::Userspace => {
            userspace::render::render(map, choices.effective.scheduler, &mut text)?;
        }
    }
    Ok(text)
}

/// One input for each family's program, each after a line that names the
/// program, and lines for what must be there before.
fn render_iptables(map: &ServiceMap, choices: &Choices<'_>, text: &mut String) -> fmt::Result {
    for family in Family::ALL {
        let ports = || map.of_family(family);
        let endpoints = ports().map(|port| port.endpoints.all.len()).sum();
        let options = plan::Options {
            large_cluster: plan::is_large_cluster(endpoints, None),
            dispatch: choices.dispatch.dispatch(ports().count(), None),
            ..plan::Options::new(
                choices.configuration,
                choices.effective,
                family,
                map.this_node(),
                choices.served,
                choices.kernel.features(family),
            )
        };
        writeln!(
            text,
            "# {}-restore --noflush",
            xtables::program_prefix(family)
        )?;
        for account in plan::accounts(&options) {
            writeln!(text, "# needs: nfacct add {account}")?;
        }
        iptables::render(map, &options, text)?;
    }
    Ok(())
}
