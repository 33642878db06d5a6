//! Configuration of iptables mode, and the options of the rules of a sync.

use std::sync::Arc;

use net::Family;
use netlink::{setting::Setting, sysctl};
use xtables::features::Features;

use super::{
    applied::Size,
    plan::{DispatchChoice, Options, is_large_cluster},
};
use crate::{
    config::{Effective, KubeProxyConfiguration},
    kernel::probe,
    modes::Metrics,
    node::NodePorts,
    services::Node,
};

/// Without it the kernel takes packets between loopback and other links for
/// forged (`Documentation/networking/ip-sysctl.rst`).
const ROUTE_LOCALNET: &str = probe::Setting::RouteLocalnet.name();

/// Configuration of iptables mode.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The configuration as it was given.
    pub configuration: KubeProxyConfiguration,
    /// The effective settings, which follow from the configuration.
    pub configured: Effective,
    /// On which addresses node ports are served.
    pub node_ports: Arc<NodePorts>,
    /// The way in which packets find their ServicePort (`--iptables-dispatch`).
    pub dispatch: DispatchChoice,
    /// See [`Options::undivided`].
    pub undivided: usize,
    /// Where figures of the mode are recorded.
    pub metrics: Arc<dyn Metrics>,
}

impl Setup {
    /// Returns the options for a family of this `size` on this `node`, where rules
    /// may use `features` and depend on `now` at present.
    pub fn options(
        &self,
        family: Family,
        features: Features,
        node: Option<&Node>,
        size: Size,
        now: Option<&Options>,
    ) -> Options {
        let options = Options::new(
            &self.configuration,
            &self.configured,
            family,
            node,
            &self.node_ports.served(),
            features,
        );
        Options {
            undivided: self.undivided,
            ..options.of_size(size, self.dispatch, now)
        }
    }
}

impl Options {
    /// Returns these options for a family of this `size`, where rules depend on `now` at present.
    pub fn of_size(self, size: Size, dispatch: DispatchChoice, now: Option<&Options>) -> Options {
        Options {
            large_cluster: is_large_cluster(size.endpoints, now),
            dispatch: dispatch.dispatch(size.ports, now.map(|now| now.dispatch)),
            ..self
        }
    }
}

/// Makes loopback addresses serve node ports.
///
/// # Errors
/// When the setting that this takes was refused.
pub fn open_loopback() -> Result<(), sysctl::Error> {
    sysctl::write(ROUTE_LOCALNET, "1")
}

/// Returns the kernel setting that rules with these `options` need; `None`: they need none.
pub fn settings(options: &Options) -> Option<Setting> {
    let needed = options.serves_localhost();
    needed.then_some(Setting::exactly(ROUTE_LOCALNET, 1))
}

/// Leaves out the features whose kernel setting cannot be written here. Returns why node ports are
/// not served on loopback addresses then.
pub fn without_unsettable(options: &mut Options) -> Option<String> {
    if !options.serves_localhost() {
        return None;
    }
    let error = sysctl::settable(ROUTE_LOCALNET, "1").err()?;
    options.localhost_node_ports = false;
    Some(format!(
        "node ports are not served on loopback addresses, which needs {ROUTE_LOCALNET}=1: {error}"
    ))
}
