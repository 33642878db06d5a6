//! Names of chains and of nfacct counters.

use data_encoding::BASE32;
use sha2::{Digest, Sha256};

/// Shared by all ServicePorts: service addresses (nat, filter).
pub const SERVICES: &str = "KUBE-SERVICES";
/// Shared: service addresses that are called from outside (filter).
pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
/// Shared: node ports (nat), health-check node ports (filter).
pub const NODE_PORTS: &str = "KUBE-NODEPORTS";
/// Shared: packets that source ranges keep out (filter).
pub const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// SNAT of marked packets (nat).
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
/// Marks for SNAT (nat).
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// Lets service traffic through the FORWARD chain (filter).
pub const FORWARD: &str = "KUBE-FORWARD";
/// The kubelet's, with one rule that kube-proxy writes too (filter).
pub const FIREWALL: &str = "KUBE-FIREWALL";
/// Empty, in each table: shows whether the table was flushed.
pub const CANARY: &str = "KUBE-PROXY-CANARY";
/// Packets that connection tracking could not make sense of.
pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
/// Packets to node ports on loopback.
pub const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";

/// Prefixes of the names of a ServicePort's own chains, and those of the index. When kube-proxy
/// takes over, it deletes unused chains of the nat table with these prefixes, all at once. Any
/// other prefix would leave chains that refer to the deleted ones, which the kernel refuses.
pub const OWN_PREFIXES: [&str; 5] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-SEP-",
];

/// Names of the chains of one ServicePort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortChains {
    /// For connections to any endpoint of the cluster.
    pub cluster: String,
    /// For connections to endpoints of this node.
    pub local: String,
    /// For connections to external addresses and node ports.
    pub external: String,
    /// For connections to load-balancer addresses that have source ranges.
    pub firewall: String,
}

impl PortChains {
    /// Those of the ServicePort that kube-proxy calls `shown`; `protocol` in
    /// lower case.
    pub fn new(shown: &str, protocol: &str) -> PortChains {
        let hash = hash(&[shown, protocol]);
        PortChains {
            cluster: format!("KUBE-SVC-{hash}"),
            local: format!("KUBE-SVL-{hash}"),
            external: format!("KUBE-EXT-{hash}"),
            firewall: format!("KUBE-FW-{hash}"),
        }
    }

    /// All four names.
    pub fn all(&self) -> [&str; 4] {
        let PortChains {
            cluster,
            local,
            external,
            firewall,
        } = self;
        [cluster, local, external, firewall]
    }
}

/// The chain of an endpoint of that ServicePort; `endpoint` is address and
/// port, as in `10.0.0.1:80` or `[fd00::1]:80`.
pub fn endpoint(shown: &str, protocol: &str, endpoint: &str) -> String {
    format!("KUBE-SEP-{}", hash(&[shown, protocol, endpoint]))
}

/// Number of parts into which the endpoints of a chain are divided. Few would each have many
/// rules, which one endpoint more or less has written again; many would be a long list themselves.
pub(super) const PARTS: u8 = 128;

/// Returns the part that the endpoint with the chain `endpoint` is in, which are the first seven
/// bits of its hash, in the order of the names.
pub(super) fn part(endpoint: &str) -> u8 {
    let hash = endpoint.strip_prefix("KUBE-SEP-").unwrap_or_default();
    let rank = |at: usize| match hash.as_bytes().get(at) {
        Some(digit @ b'2'..=b'7') => digit - b'2',
        Some(letter @ b'A'..=b'Z') => letter - b'A' + 6,
        _ => 0,
    };
    rank(0) * 4 + rank(1) / 8
}

/// Name of the chain that chooses among the endpoints of `part` for `chain`.
pub(super) fn chain_of_part(chain: &str, part: u8) -> String {
    // No hash of a ServicePort holds a dash.
    format!("{chain}-{part:02X}")
}

/// Returns whether a KUBE-SVC or KUBE-SVL chain is one of a part.
pub fn is_of_part(chain: &str) -> bool {
    !chain.starts_with(INDEX) && chain.matches('-').count() > 2
}

/// How the names of the chains of the index begin.
pub const INDEX: &str = "KUBE-SVC-IDX-";

/// A chain of the index of the shared chain `root`, for the part that `part` names.
pub(super) fn index(root: &str, part: &str) -> String {
    let hash = hash(&[root, " ", part]);
    // No hash of a ServicePort holds a dash.
    format!("{INDEX}{}", &hash[..12])
}

/// 80 bits of SHA-256, which are 16 letters of base 32.
fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    BASE32.encode(&hasher.finalize()[..10])
}
