//! The node and its neighbours: network namespaces, joined by links.

use std::{
    collections::BTreeSet,
    error::Error,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use ipnet::IpNet;
use net::Family;
use netlink::{
    Protocol, Socket, addresses, isolation::NetworkNamespace, links, routes, sysctl, veth,
};

use super::{
    servers::At,
    subnets::{Link, Subnets},
};

/// The neighbours of the node. The node itself is the namespace of this process.
///
/// ```text
///                      ┌── pod-caller ───── a pod
///   outside ── outside node
///      │               ├── pod-endpoints ── all endpoints on this node
///      │               └── other-nodes ──── all other endpoints
///      └─────────────────────────────────────────┘
/// ```
///
/// Answers of other nodes to the host outside do not pass this node: if this node did not replace
/// the caller's address with its own, the caller gets no answer from the address that it called.
#[derive(Debug)]
pub(super) struct Network {
    /// A pod of the node.
    pub(super) caller: NetworkNamespace,
    /// All endpoints on the node.
    pub(super) here: NetworkNamespace,
    /// All other endpoints.
    pub(super) elsewhere: NetworkNamespace,
    /// A host outside.
    pub(super) outside: NetworkNamespace,
    /// The IP families that this kernel supports.
    pub(super) families: &'static [Family],
}

/// Addresses behind the node's links.
#[derive(Clone, Debug, Default)]
pub(super) struct Behind {
    /// Servers at the endpoints on the node.
    pub(super) here: BTreeSet<At>,
    /// Servers at endpoints on other nodes, or whose node is not known.
    pub(super) elsewhere: BTreeSet<At>,
    /// Service addresses, which the host outside routes to the node.
    pub(super) services: BTreeSet<IpAddr>,
}

/// Returns the addresses of servers.
pub(super) fn ips(servers: &BTreeSet<At>) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = servers.iter().map(|(address, _)| address.ip()).collect();
    // They are in order.
    ips.dedup();
    ips
}

/// Something that could not be created, in words.
pub(super) type Fault = Box<dyn Error + Send + Sync>;

/// The end of a link that is not at the node.
const OTHER_END: &str = "eth0";
/// The end, at the host outside, of its link to other nodes.
const PEER: &str = "eth1";

/// Forwarding; packets with any source; no wait for duplicate address detection; no rate
/// limits for refusals, which are not under test (both limits, since the mask exempts from the
/// global one, see ip-sysctl.rst).
const SETTINGS: [(Family, &str, &str); 11] = [
    (Family::V4, "net.ipv4.ip_forward", "1"),
    (Family::V4, "net.ipv4.conf.all.rp_filter", "0"),
    (Family::V4, "net.ipv4.conf.default.rp_filter", "0"),
    (Family::V4, "net.ipv4.icmp_ratelimit", "0"),
    (Family::V4, "net.ipv4.icmp_ratemask", "0"),
    (Family::V6, "net.ipv6.conf.all.disable_ipv6", "0"),
    (Family::V6, "net.ipv6.conf.default.disable_ipv6", "0"),
    (Family::V6, "net.ipv6.conf.all.forwarding", "1"),
    (Family::V6, "net.ipv6.conf.all.accept_dad", "0"),
    (Family::V6, "net.ipv6.conf.default.accept_dad", "0"),
    (Family::V6, "net.ipv6.icmp.ratelimit", "0"),
];

impl Network {
    /// Creates the namespaces and links, from the node's namespace.
    ///
    /// # Errors
    /// Says what could not be created.
    pub(super) async fn new(subnets: Subnets, behind: &Behind) -> Result<Network, Fault> {
        let namespace = NetworkNamespace::new;
        let has_v6 = Path::new("/proc/sys/net/ipv6").exists();
        let network = Network {
            caller: namespace("caller")?,
            here: namespace("here")?,
            elsewhere: namespace("elsewhere")?,
            outside: namespace("outside")?,
            families: if has_v6 { &Family::ALL } else { &[Family::V4] },
        };
        set(network.families)?;
        for (link, there) in [
            (Link::Caller, &network.caller),
            (Link::Here, &network.here),
            (Link::Elsewhere, &network.elsewhere),
            (Link::Outside, &network.outside),
        ] {
            network.join(link, there, subnets, behind).await?;
        }
        for family in network.families {
            // Without a route a service address could not be called from here: the call
            // would fail before any rule sees it.
            let outside = subnets.other_end(Link::Outside, *family).addr();
            route(&[everywhere(*family)], outside)?;
            let here = subnets.other_end(Link::Here, *family).addr();
            route(&hosts(ips(&behind.here), *family), here)?;
            let elsewhere = subnets.other_end(Link::Elsewhere, *family).addr();
            route(&hosts(ips(&behind.elsewhere), *family), elsewhere)?;
        }
        network.join_beyond(subnets).await?;
        Ok(network)
    }

    /// Joins the node with the other end of `link`.
    async fn join(
        &self,
        link: Link,
        there: &NetworkNamespace,
        subnets: Subnets,
        behind: &Behind,
    ) -> Result<(), Fault> {
        let families = self.families;
        begin(
            link,
            OTHER_END,
            there.namespace().as_fd(),
            subnets,
            families,
        )?;
        let mut held = match link {
            Link::Here => ips(&behind.here),
            Link::Elsewhere => ips(&behind.elsewhere),
            _ => Vec::new(),
        };
        held.retain(|ip| families.contains(&Family::of(ip)));
        // It has no route to other nodes: packets that the node does not serve end there.
        let services = (link == Link::Outside).then(|| behind.services.clone());
        let other_end = move || {
            set(families)?;
            up(OTHER_END, families, |family| {
                subnets.other_end(link, family)
            })?;
            for family in families {
                let node = subnets.node(link, *family).addr();
                match &services {
                    None => route(&[everywhere(*family)], node)?,
                    Some(services) => route(&hosts(services.clone(), *family), node)?,
                }
            }
            hold(&held)
        };
        in_there(there, other_end).await
    }

    /// Joins other nodes to the host outside.
    async fn join_beyond(&self, subnets: Subnets) -> Result<(), Fault> {
        let outside = self.outside.namespace().try_clone();
        let outside = outside.map_err(|error| format!("cannot open a namespace: {error}"))?;
        let (link, families) = (Link::Beyond, self.families);
        let one_end = move || begin(link, PEER, outside.as_fd(), subnets, families);
        in_there(&self.elsewhere, one_end).await?;
        let other_end = move || up(PEER, families, |family| subnets.other_end(link, family));
        in_there(&self.outside, other_end).await?;
        let to_caller = move || {
            families.iter().try_for_each(|family| {
                let caller = subnets.other_end(Link::Outside, *family).addr();
                route(&[caller.into()], subnets.other_end(link, *family).addr())
            })
        };
        in_there(&self.elsewhere, to_caller).await
    }
}

/// Runs `work` in the namespace `there`.
async fn in_there(
    there: &NetworkNamespace,
    work: impl FnOnce() -> Result<(), Fault> + Send + 'static,
) -> Result<(), Fault> {
    there.run(async { work() }).await?
}

/// Adds `link`, with its other end, `peer`, in the namespace `there`, and sets this end up.
fn begin(
    link: Link,
    peer: &str,
    there: BorrowedFd<'_>,
    subnets: Subnets,
    families: &[Family],
) -> Result<(), Fault> {
    veth::add(&mut open()?, link.name(), peer, there)?;
    up(link.name(), families, |family| subnets.node(link, family))
}

fn everywhere(family: Family) -> IpNet {
    IpNet::new_assert(family.unspecified(), 0)
}

fn hosts(ips: impl IntoIterator<Item = IpAddr>, family: Family) -> Vec<IpNet> {
    let ips = ips.into_iter().filter(|ip| Family::of(ip) == family);
    ips.map(IpNet::from).collect()
}

fn open() -> Result<Socket, Fault> {
    Ok(Socket::open(Protocol::Route)?)
}

/// Sets the kernel settings of the calling thread's namespace.
fn set(families: &[Family]) -> Result<(), Fault> {
    for (_, name, value) in SETTINGS
        .iter()
        .filter(|(family, ..)| families.contains(family))
    {
        match sysctl::write(name, value) {
            Err(error) if !error.is_missing() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Brings a link up, with its `own` address of each family.
fn up(name: &str, families: &[Family], own: impl Fn(Family) -> IpNet) -> Result<(), Fault> {
    let mut socket = open()?;
    let index = links::index(name)?;
    links::set_up(&mut socket, index)?;
    for family in families {
        addresses::add_with_subnet(&mut socket, index, own(*family))?;
    }
    Ok(())
}

/// Assigns the addresses `ips` in the calling thread's namespace.
fn hold(ips: &[IpAddr]) -> Result<(), Fault> {
    let mut socket = open()?;
    let outcomes = addresses::add(&mut socket, links::index(OTHER_END)?, ips)?;
    let done: Result<(), _> = outcomes.into_iter().collect();
    Ok(done.map_err(|error| format!("an endpoint cannot have its address: {error}"))?)
}

fn route(destinations: &[IpNet], gateway: IpAddr) -> Result<(), Fault> {
    Ok(routes::add_over_gateway(
        &mut open()?,
        destinations,
        gateway,
    )?)
}
