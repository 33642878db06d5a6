//! The table. Each topic is a file; a case reads like a sentence:
//!
//! ```ignore
//! case("A pod reaches every endpoint", cluster_ip(ALL))
//!     .when(Pod).calls(ClusterIp).sees(each(ALL).seeing_the_caller())
//!     .then("an endpoint goes", |web| web.on(HERE))
//!     .when(Pod).calls(ClusterIp).sees(each(HERE))
//! ```

mod affinity;
mod cluster_ip;
mod endpoints;
mod extensions;
mod external_ip;
mod load_balancer;
mod node_port;
mod ownership;
mod policies;
mod source_ranges;

use super::addresses::{SECOND_PORT, SECOND_TARGET};
use super::case::Caller::{self, Backend, Node, OtherNode, Outside, Pod, RemotePod};
use super::case::Family::{V4, V6};
use super::case::Protocol::{Sctp, Tcp, Udp};
use super::case::Target::{
    ClusterIp, ExternalIp, HealthCheck, LoadBalancer, Loopback, NodeAddress, NodePort,
    SecondNodeAddress, SecondNodePort,
};
use super::case::{Case, Flags, case};
use super::columns::{
    in_iptables, ipvs, ipvs_without_wrr, loopback_by_name, nftables, nftables_without_fib,
    no_silence, rules_without_conntrack, rules_without_recent, userspace,
};
use super::differences::Why;
use super::endpoints::Pod::{A, B, C, OnNode, OnOther};
use super::endpoints::{ALL, ELSEWHERE, HERE, ending, ready, terminating, unready};
use super::objects::{Contested, cluster_ip, everywhere, external_ip, load_balancer, node_port};
use super::observation::Observation::{self, Healthy, Refused, Silent, Unhealthy, Unserved};
use super::observation::{each, equal_shares, shares, sticky, sticky_for_a_second};

/// Cases that are shown together.
pub struct Topic {
    pub name: &'static str,
    pub cases: Vec<Case>,
}

pub fn topics() -> Vec<Topic> {
    let topic = |name, cases| Topic { name, cases };
    vec![
        topic("Cluster IPs", cluster_ip::cases()),
        topic("Endpoints come and go", endpoints::cases()),
        topic("Node ports", node_port::cases()),
        topic("Load balancers", load_balancer::cases()),
        topic("Source ranges", source_ranges::cases()),
        topic("External IPs", external_ip::cases()),
        topic("Policies and topology", policies::cases()),
        topic("Session affinity", affinity::cases()),
        topic("Weights and schedulers", extensions::cases()),
        topic("Who owns an address", ownership::cases()),
    ]
}

/// A case and its number, from which its name and addresses are derived.
pub struct Numbered {
    pub number: u16,
    pub case: Case,
}

/// All cases, in the order of the table.
pub fn numbered() -> impl Iterator<Item = Numbered> {
    let cases = topics().into_iter().flat_map(|topic| topic.cases);
    (1..)
        .zip(cases)
        .map(|(number, case)| Numbered { number, case })
}
